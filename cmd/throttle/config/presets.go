package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/providers"
)

// A Preset is an API of package providers with a name for files and the command line.
type Preset struct {
	// Name is the name, such as "binance-futures". Case, hyphens and underscores don't count when a
	// preset is looked up.
	Name string

	// Constructor is the name of the function of package providers, such as "BinanceFutures".
	Constructor string

	// Parameters are the parameters of the function, in their order. Most presets have none.
	Parameters []Parameter

	build func(arguments) providers.Provider
}

// A Parameter is a parameter of a Preset.
type Parameter struct {
	// Name is the name, such as "requests".
	Name string

	// About says what the parameter is, such as "requests a minute of a model".
	About string

	// Text reports that the value is a text. If false, it is a whole number.
	Text bool

	// Min and Max are the range of a number.
	Min, Max int64

	// Default is the value of a parameter that is left out. If empty, the parameter is required.
	Default string

	// Example is a value of a usual account.
	Example string

	check func(value string) string // returns what is wrong with a text, or ""
}

// Required reports whether the parameter must have a value.
func (p Parameter) Required() bool { return p.Default == "" }

// arguments are the values of a preset's parameters, by name.
type arguments map[string]string

// number returns a value that has been checked.
func (a arguments) number(name string) int64 {
	n, err := parseNumber(a[name])
	if err != nil {
		panic(fmt.Sprintf("config: parameter %q is %q: not checked", name, a[name]))
	}
	return n
}

// amount is a parameter that an account's plan decides. A value of least means no limit if least is
// zero.
func amount(name, about string, least int64, example string) Parameter {
	p := Parameter{Name: name, About: about, Min: least, Max: algorithms.MaxLimit, Example: example}
	if least == 0 {
		p.Default, p.About = "0", about+"; 0: not limited"
	}
	return p
}

// orDefault returns a parameter with a default.
func (p Parameter) orDefault(value string) Parameter {
	p.Default = value
	return p
}

// Presets returns all presets by name. TestPresets compares them with package providers.
func Presets() []Preset {
	ready := func(name, constructor string, build func() providers.Provider) Preset {
		return Preset{Name: name, Constructor: constructor, build: func(arguments) providers.Provider { return build() }}
	}
	return []Preset{
		ready("airtable", "Airtable", providers.Airtable),
		ready("alchemy", "Alchemy", providers.Alchemy),
		ready("amazon-sp-api", "AmazonSPAPI", providers.AmazonSPAPI),
		{"anthropic", "Anthropic", []Parameter{
			amount("requests", "requests a minute of a model family", 1, "50"),
			amount("input", "input tokens a minute of a model family", 1, "30000"),
			amount("output", "output tokens a minute of a model family", 1, "8000"),
		}, func(a arguments) providers.Provider {
			return providers.Anthropic(a.number("requests"), a.number("input"), a.number("output"))
		}},
		ready("atlassian", "Atlassian", providers.Atlassian),
		{"azure-openai", "AzureOpenAI", []Parameter{
			amount("requests", "requests a minute of a deployment", 1, "600"),
			amount("tokens", "tokens a minute of a deployment", 1, "100000"),
		}, func(a arguments) providers.Provider {
			return providers.AzureOpenAI(a.number("requests"), a.number("tokens"))
		}},
		{"bedrock", "Bedrock", []Parameter{
			amount("requests", "requests a minute of a model", 0, "50"),
			amount("tokens", "tokens a minute of a model", 1, "200000"),
		}, func(a arguments) providers.Provider {
			return providers.Bedrock(a.number("requests"), a.number("tokens"))
		}},
		ready("binance", "Binance", providers.Binance),
		ready("binance-futures", "BinanceFutures", providers.BinanceFutures),
		ready("binance-us", "BinanceUS", providers.BinanceUS),
		ready("bybit", "Bybit", providers.Bybit),
		ready("cloudflare", "Cloudflare", providers.Cloudflare),
		ready("coinbase-app", "CoinbaseApp", providers.CoinbaseApp),
		ready("coinbase-exchange", "CoinbaseExchange", providers.CoinbaseExchange),
		ready("discord", "Discord", providers.Discord),
		ready("etherscan", "Etherscan", providers.Etherscan),
		{"gemini", "Gemini", []Parameter{
			amount("requests", "requests a minute of a model", 1, "10"),
			amount("input_tokens", "input tokens a minute of a model", 1, "250000"),
			amount("requests_per_day", "requests a day of a model", 0, "250"),
		}, func(a arguments) providers.Provider {
			return providers.Gemini(a.number("requests"), a.number("input_tokens"), a.number("requests_per_day"))
		}},
		ready("github", "GitHub", providers.GitHub),
		ready("gitlab", "GitLab", providers.GitLab),
		ready("google-workspace", "GoogleWorkspace", func() providers.Provider { return providers.GoogleWorkspace(nil) }),
		{"hubspot", "HubSpot", []Parameter{
			{Name: "zone", About: "time zone of the account", Text: true, Default: "UTC", Example: "Europe/Berlin", check: checkZone},
		}, func(a arguments) providers.Provider { return providers.HubSpot(a["zone"]) }},
		{"infura", "Infura", []Parameter{
			amount("second", "credits a second of the account", 1, "4000").orDefault("500"),
			amount("day", "credits a day of the account", 0, "15000000").orDefault("3000000"),
		}, func(a arguments) providers.Provider { return providers.Infura(a.number("second"), a.number("day")) }},
		ready("kraken", "Kraken", providers.Kraken),
		ready("kraken-futures", "KrakenFutures", providers.KrakenFutures),
		{"meta", "Meta", []Parameter{
			amount("per_hour", "calls an hour of the app, 200 for each of its daily users", 1, "200"),
		}, func(a arguments) providers.Provider { return providers.Meta(a.number("per_hour")) }},
		ready("microsoft-graph", "MicrosoftGraph", providers.MicrosoftGraph),
		ready("notion", "Notion", providers.Notion),
		ready("okta", "Okta", providers.Okta),
		ready("okx", "OKX", providers.OKX),
		{"openai", "OpenAI", []Parameter{
			amount("requests", "requests a minute of a model", 1, "500"),
			amount("tokens", "tokens a minute of a model", 1, "30000"),
		}, func(a arguments) providers.Provider {
			return providers.OpenAI(a.number("requests"), a.number("tokens"))
		}},
		{"openai-compatible", "OpenAICompatible", []Parameter{
			{Name: "host", About: "host of the API", Text: true, Example: "api.groq.com", check: checkHost},
			amount("requests", "requests a minute of a model", 0, "30"),
			amount("tokens", "tokens a minute of a model", 0, "8000"),
		}, func(a arguments) providers.Provider {
			return providers.OpenAICompatible(a["host"], a.number("requests"), a.number("tokens"))
		}},
		ready("reddit", "Reddit", providers.Reddit),
		{"salesforce", "Salesforce", []Parameter{
			amount("per_day", "calls a day of the org", 1, "100000"),
		}, func(a arguments) providers.Provider { return providers.Salesforce(a.number("per_day")) }},
		ready("shopify-graphql", "ShopifyGraphQL", providers.ShopifyGraphQL),
		ready("shopify-rest", "ShopifyREST", providers.ShopifyREST),
		ready("slack", "Slack", providers.Slack),
		{"spotify", "Spotify", []Parameter{
			amount("requests", "requests in 30 seconds of the app, which Spotify does not publish", 1, "100"),
		}, func(a arguments) providers.Provider { return providers.Spotify(a.number("requests")) }},
		ready("stripe", "Stripe", providers.Stripe),
		ready("telegram", "Telegram", providers.Telegram),
		{"twilio", "Twilio", []Parameter{
			amount("concurrent", "requests of the account at the same time, which Twilio does not publish", 1, "10"),
		}, func(a arguments) providers.Provider { return providers.Twilio(a.number("concurrent")) }},
		ready("x", "X", providers.X),
		{"zendesk", "Zendesk", []Parameter{
			amount("requests", "requests a minute of the account", 1, "700").orDefault("200"),
		}, func(a arguments) providers.Provider { return providers.Zendesk(a.number("requests")) }},
	}
}

func checkZone(value string) string {
	if _, err := time.LoadLocation(value); err != nil {
		return "it must be a time zone such as Europe/Berlin"
	}
	return ""
}

func checkHost(value string) string {
	if value == "" || strings.ContainsAny(value, "/:@?# ") {
		return "it must be a host such as api.groq.com, without https:// and without a path"
	}
	return ""
}

// parseNumber reads a whole number. Underscores may group its digits.
func parseNumber(text string) (int64, error) {
	return strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
}

// fold returns a name as it is compared: lower case, without hyphens and underscores.
func fold(name string) string {
	return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(name))
}

// FindPreset returns the preset of a name. The error suggests names that are alike.
func FindPreset(name string) (Preset, error) {
	p, fix := findPreset(name)
	if fix != "" {
		return Preset{}, fmt.Errorf("no preset has the name %q: %s", name, fix)
	}
	return p, nil
}

// findPreset returns the preset of a name, or what to do.
func findPreset(name string) (p Preset, fix string) {
	var names []string
	for _, p := range Presets() {
		if fold(p.Name) == fold(name) {
			return p, ""
		}
		names = append(names, p.Name)
	}
	if near := nearest(name, names); near != "" {
		return Preset{}, "did you mean " + near + "?"
	}
	return Preset{}, "throttle providers lists all presets"
}

// Example returns a text of ParseLimits for a usual account.
func (p Preset) Example() string {
	args := arguments{}
	for _, param := range p.Parameters {
		args[param.Name] = param.Example
	}
	return p.text(args)
}

// Provider returns the limits of a usual account, those of Example.
func (p Preset) Provider() providers.Provider {
	args := arguments{}
	for _, param := range p.Parameters {
		args[param.Name] = param.Example
	}
	return p.build(args)
}

// text returns the preset with arguments, as ParseLimits reads it.
func (p Preset) text(args arguments) string {
	var b strings.Builder
	b.WriteString(p.Name)
	separator := ":"
	for _, param := range p.Parameters {
		if value, ok := args[param.Name]; ok {
			b.WriteString(separator + param.Name + "=" + value)
			separator = ","
		}
	}
	return b.String()
}

// A badArgument is a problem of an argument, or of a parameter that lacks one.
type badArgument struct{ name, message string }

// arguments checks the values of a preset's parameters and fills in the defaults.
func (p Preset) arguments(given map[string]string) (args arguments, bad []badArgument) {
	args = arguments{}
	var names []string
	for _, param := range p.Parameters {
		names = append(names, param.Name)
		value, ok := given[param.Name]
		if !ok {
			if param.Required() {
				bad = append(bad, badArgument{param.Name, fmt.Sprintf("is missing: give the %s, such as %s", param.About, param.Example)})
			}
			value = param.Default
		} else if message := param.wrong(value); message != "" {
			bad = append(bad, badArgument{param.Name, fmt.Sprintf("is %q: %s", value, message)})
		}
		if n, err := parseNumber(value); err == nil && !param.Text {
			value = strconv.FormatInt(n, 10)
		}
		args[param.Name] = value
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if slices.Contains(names, name) {
			continue
		}
		fix := "it has none"
		if near := nearest(name, names); near != "" {
			fix = "did you mean " + near + "?"
		} else if len(names) > 0 {
			fix = "it has " + list(names, "and")
		}
		bad = append(bad, badArgument{name, fmt.Sprintf("is not a parameter of %s: %s", p.Name, fix)})
	}
	return args, bad
}

// wrong returns what is wrong with a value, or "".
func (p Parameter) wrong(value string) string {
	if p.Text {
		return p.check(value)
	}
	n, err := parseNumber(value)
	if err != nil || n < p.Min || n > p.Max {
		return fmt.Sprintf("it must be a whole number from %d to %d, the %s", p.Min, p.Max, p.About)
	}
	return ""
}

// nearest returns the name that is most like another, or "" if none is like it.
func nearest(name string, names []string) (near string) {
	name = fold(name)
	least := math.MaxInt
	for _, n := range names {
		d := distance(name, fold(n))
		if len(name) >= 3 && strings.HasPrefix(fold(n), name) {
			d = min(d, 1)
		}
		if d < least {
			near, least = n, d
		}
	}
	if least > max(1, len(name)/3) {
		return ""
	}
	return near
}

// distance returns how many bytes of a must be inserted, deleted or replaced to make it b.
func distance(a, b string) int {
	if len(a) > 64 {
		return math.MaxInt
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// list returns names in a sentence: "a, b and c".
func list(names []string, word string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + word + " " + names[last]
}
