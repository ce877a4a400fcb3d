package providers

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	gotoken "go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
)

var update = flag.Bool("update", false, "write the presets into docs/providers.md and README.md")

// pageKinds are the presets by kind of API.
var pageKinds = []struct {
	name    string
	presets []string
}{
	{"Language models", []string{"Anthropic", "AzureOpenAI", "Bedrock", "Gemini", "OpenAI", "OpenAICompatible"}},
	{"Exchanges and blockchains", []string{"Alchemy", "Binance", "BinanceFutures", "BinanceUS", "Bybit", "CoinbaseApp",
		"CoinbaseExchange", "Etherscan", "Infura", "Kraken", "KrakenFutures", "OKX"}},
	{"Code and work", []string{"Airtable", "Atlassian", "GitHub", "GitLab", "HubSpot", "Notion", "Salesforce", "Zendesk"}},
	{"Payments and shops", []string{"AmazonSPAPI", "ShopifyGraphQL", "ShopifyREST", "Stripe"}},
	{"Messages", []string{"Discord", "Slack", "Telegram", "Twilio"}},
	{"Clouds and office", []string{"Cloudflare", "GoogleWorkspace", "MicrosoftGraph", "Okta"}},
	{"Social and data", []string{"Meta", "Reddit", "Spotify", "X"}},
}

// A call is a call of a constructor, and what it returns.
type call struct {
	text string
	Provider
}

// examples call the constructors that have parameters.
var examples = []call{
	{"Anthropic(50, 30_000, 8_000)", Anthropic(50, 30_000, 8_000)},
	{"AzureOpenAI(600, 100_000)", AzureOpenAI(600, 100_000)},
	{"Bedrock(50, 200_000)", Bedrock(50, 200_000)},
	{"Gemini(10, 250_000, 250)", Gemini(10, 250_000, 250)},
	{"GoogleWorkspace(nil)", GoogleWorkspace(nil)},
	{`HubSpot("Europe/Berlin")`, HubSpot("Europe/Berlin")},
	{"Infura(500, 3_000_000)", Infura(500, 3_000_000)},
	{"Meta(200)", Meta(200)},
	{"OpenAI(500, 30_000)", OpenAI(500, 30_000)},
	{`OpenAICompatible("api.groq.com", 30, 8_000)`, OpenAICompatible("api.groq.com", 30, 8_000)},
	{`OpenAICompatible("openrouter.ai", 0, 0)`, OpenAICompatible("openrouter.ai", 0, 0)},
	{`OpenAICompatible("api.mistral.ai", 60, 500_000)`, OpenAICompatible("api.mistral.ai", 60, 500_000)},
	{`OpenAICompatible("api.x.ai", 480, 2_000_000)`, OpenAICompatible("api.x.ai", 480, 2_000_000)},
	{`OpenAICompatible("api.deepseek.com", 0, 0)`, OpenAICompatible("api.deepseek.com", 0, 0)},
	{`OpenAICompatible("api.together.ai", 0, 0)`, OpenAICompatible("api.together.ai", 0, 0)},
	{`OpenAICompatible("api.cerebras.ai", 30, 60_000)`, OpenAICompatible("api.cerebras.ai", 30, 60_000)},
	{"Salesforce(100_000)", Salesforce(100_000)},
	{"Spotify(100)", Spotify(100)},
	{"Twilio(10)", Twilio(10)},
	{"Zendesk(700)", Zendesk(700)},
}

const (
	pageBegins  = "<!-- go test ./providers -run TestPage -update writes what follows. -->\n"
	tableBegins = "| kind of API | presets |\n|---|---|\n"
)

// TestPage checks that docs/providers.md and the table of the README have the presets as they are.
func TestPage(t *testing.T) {
	docs := constructors(t)
	synopsis := regexp.MustCompile(`^(\w+) is the (\w+ )*API of .+, with the limits of .+\.$`)
	for name, c := range docs {
		if m := synopsis.FindStringSubmatch(c.synopsis); m == nil || m[1] != name {
			t.Errorf("%s: the comment begins %q, want: %[1]s is the API of …, with the limits of …", name, c.synopsis)
		}
	}
	var contents, sections, table strings.Builder
	listed := map[string]bool{}
	for _, kind := range pageKinds {
		fmt.Fprintf(&sections, "\n## %s\n", kind.name)
		var links []string
		for _, name := range kind.presets {
			links = append(links, fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name)))
			sections.WriteString(pageSection(t, docs[name]))
			listed[name] = true
		}
		fmt.Fprintf(&contents, "| [%s](#%s) | %s |\n", kind.name, strings.ReplaceAll(strings.ToLower(kind.name), " ", "-"), strings.Join(links, ", "))
		fmt.Fprintf(&table, "| %s | %s |\n", kind.name, strings.Join(kind.presets, ", "))
	}
	for name := range docs {
		if !listed[name] {
			t.Errorf("%s is in none of the kinds: add it", name)
		}
	}
	checkGenerated(t, "../docs/providers.md", pageBegins, "", "\n"+tableBegins+contents.String()+sections.String())
	checkGenerated(t, "../README.md", tableBegins, "\n", table.String())
}

// checkGenerated checks the text between begin and end in a file. With -update, it writes the text.
func checkGenerated(t *testing.T, file, begin, end, want string) {
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), begin)
	if !found {
		t.Fatalf("%s lacks %q", file, begin)
	}
	got, after := rest, ""
	if end != "" {
		i := strings.Index("\n"+rest, "\n"+end)
		got, after = rest[:i], rest[i:]
	}
	if got == want {
		return
	}
	if !*update {
		t.Errorf("%s does not have the presets as they are: go test ./providers -run TestPage -update", file)
		return
	}
	if err := os.WriteFile(file, []byte(before+begin+want+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A constructor is the documentation of a preset.
type constructor struct {
	name, synopsis, file string
	signature            string // with parameters
	calls                []call
}

// constructors returns the presets of this package by name.
func constructors(t *testing.T) map[string]*constructor {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	set := gotoken.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	pkg, err := doc.NewFromFiles(set, files, "github.com/apithrottle/throttle/providers")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*constructor{}
	for _, typ := range pkg.Types {
		if typ.Name != "Provider" {
			continue
		}
		for _, f := range typ.Funcs {
			found[f.Name] = &constructor{name: f.Name, synopsis: pkg.Synopsis(f.Doc), file: set.Position(f.Decl.Pos()).Filename}
		}
	}
	for _, p := range presets() {
		name, _, _ := strings.Cut(p.Constructor, "(")
		c := found[name]
		if c == nil {
			t.Fatalf("%s is not a function that returns a Provider", p)
		}
		c.signature = p.Constructor
		if p.New != nil {
			c.calls = []call{{p.Constructor, p.New()}}
		}
	}
	for _, e := range examples {
		name, _, _ := strings.Cut(e.text, "(")
		found[name].calls = append(found[name].calls, e)
	}
	return found
}

// pageSection returns the part of the page about a preset.
func pageSection(t *testing.T, c *constructor) string {
	if c == nil || len(c.calls) == 0 {
		t.Fatalf("%+v: no preset or no example of it", c)
	}
	var b strings.Builder
	_, about, _ := strings.Cut(c.synopsis, " ")
	fmt.Fprintf(&b, "\n### %s\n\n%s", c.name, wrap(fmt.Sprintf("`%s` %s [More](../providers/%s).", c.signature, about, c.file)))
	var hosts []string
	pages := map[string][]string{} // by the day when they were read
	for _, e := range c.calls {
		if e.text == c.signature {
			b.WriteString("\n| scope | limits |\n|---|---|\n")
		} else {
			fmt.Fprintf(&b, "\n| scope | limits of `%s` |\n|---|---|\n", e.text)
		}
		var named []string
		for _, s := range e.Scopes {
			if page := fmt.Sprintf("[%s](%s)", pageName(s.Page), s.Page); !slices.Contains(pages[s.Read], page) {
				pages[s.Read] = append(pages[s.Read], page)
			}
			if s.Name[0] >= '0' && s.Name[0] <= '9' {
				named = append(named, "`"+s.Name+"`")
				continue
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", s.Name, limits(s.Policy))
		}
		if named != nil {
			fmt.Fprintf(&b, "| %s | as their names say |\n", strings.Join(named, ", "))
		}
		for _, h := range e.Hosts {
			hosts = append(hosts, "`"+h+"`")
		}
	}
	b.WriteString("\n" + wrap("Hosts: "+strings.Join(hosts, ", ")))
	for _, day := range slices.Sorted(maps.Keys(pages)) {
		b.WriteString("\n" + wrap("Read on "+day+": "+strings.Join(pages[day], ", ")))
	}
	return b.String()
}

// pageName returns a short name of a page: its host and the last part of its path.
func pageName(page string) string {
	host, rest, _ := strings.Cut(strings.TrimPrefix(page, "https://"), "/")
	rest, fragment, _ := strings.Cut(rest, "#")
	last := path.Base(strings.TrimSuffix(rest, "/"))
	last = strings.TrimSuffix(last, path.Ext(last))
	if fragment != "" {
		last = fragment
	}
	if last == "" || last == "." {
		return host
	}
	return host + "/…/" + last
}

// limits returns a policy's tiers in words.
func limits(p throttle.Policy) string {
	var all []string
	for _, t := range p.Tiers {
		all = append(all, words(t))
	}
	return strings.Join(all, "; ")
}

// words returns a tier in words.
func words(t throttle.Tier) string {
	if t.Unit == noLimit.Unit {
		return "none that is known: waits after refusals"
	}
	amount := func(n int64) string {
		switch {
		case t.Unit != "":
			return thousands(n) + " `" + t.Unit + "`"
		case n == 1:
			return "1 request"
		}
		return thousands(n) + " requests"
	}
	text := amount(t.Limit)
	switch t.Algorithm {
	case throttle.Concurrency:
		text += " at once"
	case throttle.Calendar:
		zone := t.Zone
		if zone == "" {
			zone = "UTC"
		}
		text += " in each " + t.Period.String() + " of " + zone
	case throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA:
		rate := thousands(t.Limit) + " in " + length(t.Window)
		if seconds := t.Window.Seconds(); t.Window%(10*time.Second) == 0 && strings.Trim(strconv.Itoa(int(seconds)), "0") == "1" {
			rate = strconv.FormatFloat(float64(t.Limit)/seconds, 'f', -1, 64) + " a second"
		} else if one := length(t.Window); !strings.Contains(one, " ") {
			rate = thousands(t.Limit) + " a " + one
		}
		text = "a bucket of " + amount(t.Capacity()) + " that gains " + rate
	case throttle.FixedWindow:
		text += " in each " + length(t.Window)
	case throttle.AnchoredWindow:
		text += " in each " + length(t.Window) + " after a first request"
	default:
		text += " in any " + length(t.Window)
	}
	if t.PaceBurst > 0 {
		text += ", spread evenly"
	}
	if t.Estimated {
		text += ", estimated"
	}
	return text
}

// length returns a duration in words.
func length(d time.Duration) string {
	for _, unit := range []struct {
		name string
		time.Duration
	}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second}} {
		if n := d / unit.Duration; d%unit.Duration == 0 && n == 1 {
			return unit.name
		} else if d%unit.Duration == 0 {
			return fmt.Sprintf("%d %ss", n, unit.name)
		}
	}
	return d.String()
}

// thousands returns n with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// wrap returns a paragraph in lines of at most 140 bytes, unless a word is longer.
func wrap(text string) string {
	var b strings.Builder
	n := 0
	for _, word := range strings.Split(text, " ") {
		switch {
		case n == 0:
		case n+1+len(word) > 140:
			b.WriteByte('\n')
			n = 0
		default:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(word)
		n += len(word)
	}
	return b.String() + "\n"
}
