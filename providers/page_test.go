package providers

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
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

	"github.com/apithrottle/throttle"
)

var update = flag.Bool("update", false, "write the presets into docs/providers.md and README.md")

// pageKinds are the kinds of presets, as the page has them.
var pageKinds = []string{
	"Language models", "Exchanges and blockchains", "Code and work", "Payments and shops", "Messages", "Clouds and office", "Social and data", "Any other API",
}

const (
	pageBegins  = "<!-- go test ./providers -run TestPage -update writes what follows. -->\n"
	tableBegins = "| kind of API | presets |\n|---|---|\n"
)

// TestPage checks that docs/providers.md and the table of the README have the presets as they are.
func TestPage(t *testing.T) {
	docs := constructors(t)
	synopsis := regexp.MustCompile(`^(\w+) is the (\w+ )*API of .+, with the limits of .+\.$`)
	for _, c := range docs {
		if m := synopsis.FindStringSubmatch(c.synopsis); m == nil || m[1] != c.name {
			t.Errorf("%s: the comment begins %q, want: %[1]s is the API of …, with the limits of …", c.name, c.synopsis)
		}
		if !slices.Contains(pageKinds, c.preset.kind) {
			t.Errorf("%s has the kind %q, want one of %q", c.name, c.preset.kind, pageKinds)
		}
	}
	var contents, sections, table strings.Builder
	for _, kind := range pageKinds {
		fmt.Fprintf(&sections, "\n## %s\n", kind)
		var names, links []string
		for _, c := range docs {
			if c.preset.kind == kind {
				names = append(names, c.name)
				links = append(links, fmt.Sprintf("[%s](#%s)", c.name, strings.ToLower(c.name)))
				sections.WriteString(pageSection(c))
			}
		}
		fmt.Fprintf(&contents, "| [%s](#%s) | %s |\n", kind, strings.ReplaceAll(strings.ToLower(kind), " ", "-"), strings.Join(links, ", "))
		fmt.Fprintf(&table, "| %s | %s |\n", kind, strings.Join(names, ", "))
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
	name, synopsis string
	preset         Preset
}

// constructors returns the constructors of the presets, in the order of the presets.
func constructors(t *testing.T) (all []constructor) {
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
	found := map[string]constructor{} // by the constructor with its parameters
	for _, typ := range pkg.Types {
		if typ.Name != "Provider" {
			continue
		}
		for _, f := range typ.Funcs {
			var signature strings.Builder
			if err := printer.Fprint(&signature, set, &ast.FuncType{Params: f.Decl.Type.Params}); err != nil {
				t.Fatal(err)
			}
			found[f.Name+strings.TrimPrefix(signature.String(), "func")] = constructor{name: f.Name, synopsis: pkg.Synopsis(f.Doc)}
		}
	}
	for _, p := range Presets() {
		c, ok := found[p.Constructor]
		if !ok {
			t.Fatalf("%s is not a function that returns a Provider: there are %q", p, slices.Sorted(maps.Keys(found)))
		}
		delete(found, p.Constructor)
		c.preset = p
		all = append(all, c)
	}
	for signature := range found {
		t.Errorf("%s has no Preset, or it is not in presets of presets.go", signature)
	}
	return all
}

// callOf returns the call of a preset's constructor with arguments.
func callOf(p Preset, args map[string]string) string {
	var texts []string
	for _, param := range p.Parameters {
		text := args[param.Name]
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && !param.Text {
			texts = append(texts, strings.ReplaceAll(thousands(n), ",", "_"))
		} else {
			texts = append(texts, strconv.Quote(text))
		}
	}
	if p.New == nil && texts == nil {
		texts = append(texts, "nil") // a function
	}
	name, _, _ := strings.Cut(p.Constructor, "(")
	return name + "(" + strings.Join(texts, ", ") + ")"
}

// pageSection returns the part of the page about a preset.
func pageSection(c constructor) string {
	var b strings.Builder
	_, about, _ := strings.Cut(c.synopsis, " ")
	fmt.Fprintf(&b, "\n### %s\n\n%s", c.name, wrap(fmt.Sprintf("`%s` %s", c.preset, about)))
	accounts := []map[string]string{c.preset.Example()}
	if c.preset.known != nil && c.preset.Name != "unknown" {
		accounts = c.preset.known()
	}
	var hosts []string
	pages := map[string][]string{} // by the day when they were read
	shown := map[string]bool{}     // the pages of the first scopes
	for _, args := range accounts {
		e := c.preset.Provider(args)
		if shown[e.Scopes[0].Page] {
			continue // another host with the limits of an earlier one
		}
		shown[e.Scopes[0].Page] = true
		b.WriteString("\n")
		if text := callOf(c.preset, args); text != c.preset.Constructor {
			fmt.Fprintf(&b, "`%s`:\n\n", text)
		}
		var named []string
		for _, s := range e.Scopes {
			if page := fmt.Sprintf("[%s](%s)", pageName(s.Page), s.Page); !slices.Contains(pages[s.Read], page) {
				pages[s.Read] = append(pages[s.Read], page)
			}
			if first := strings.TrimPrefix(s.Name, "public ")[0]; first >= '0' && first <= '9' {
				named = append(named, s.Name)
				continue
			}
			fmt.Fprintf(&b, "- %s: %s", s.Name, limits(s.Policy))
			if s.Per != PerAccount {
				fmt.Fprintf(&b, " for each %v", s.Per)
			}
			b.WriteByte('\n')
		}
		if named != nil {
			b.WriteString(wrap("- as their names say: " + strings.Join(named, ", ")))
		}
		for _, s := range e.Sockets {
			if page := fmt.Sprintf("[%s](%s)", pageName(s.Page), s.Page); !slices.Contains(pages[s.Read], page) {
				pages[s.Read] = append(pages[s.Read], page)
			}
			fmt.Fprintf(&b, "- over WebSocket, %s: %s for each %v\n", s.Name, limits(s.Policy), s.Per)
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

// limits returns the text of a policy's tiers.
func limits(p throttle.Policy) string {
	if p.Tiers[0].Unit == noLimit.Unit {
		return "none that is known: waits after refusals"
	}
	var all []string
	for _, t := range p.Tiers {
		all = append(all, t.String())
	}
	return "`" + strings.Join(all, " + ") + "`"
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
