package providers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apithrottle/throttle/algorithms"
)

// A Preset describes a constructor of this package.
type Preset struct {
	// Name is the name in files and command lines, such as "binance-futures".
	Name string

	// Constructor is the constructor with its parameters, such as "GitHub()" and
	// "OpenAI(requests, tokens int64)".
	Constructor string

	// New calls a constructor without parameters. If nil, the limits depend on the account: call
	// the Constructor with them, or Provider with their texts.
	New func() Provider

	// Parameters are the parameters of the constructor that a text can have, in their order.
	Parameters []Parameter

	// Models is the name of the scope that has limits for each model, family of models or deployment.
	// If empty, there is none.
	Models string

	kind  string                     // of API: one of pageKinds, the headings of docs/providers.md
	call  func(arguments) Provider   // if nil, New
	known func() []map[string]string // arguments for each known API of the preset; if nil, Example
}

// Presets returns all presets, sorted by Name. The caller must not change their Parameters.
func Presets() (all []Preset) {
	for _, p := range presets {
		all = append(all, *p)
	}
	return all
}

// presets are pointers, so that the compiler needs no code for them and a program contains only the
// presets that it uses.
var presets = []*Preset{
	&airtablePreset,
	&alchemyPreset,
	&amazonSPAPIPreset,
	&anthropicPreset,
	&asanaPreset,
	&atlassianPreset,
	&azureOpenAIPreset,
	&bedrockPreset,
	&binancePreset,
	&binanceFuturesPreset,
	&binanceUSPreset,
	&bitbucketPreset,
	&bybitPreset,
	&clickUpPreset,
	&cloudflarePreset,
	&coinbaseAppPreset,
	&coinbaseExchangePreset,
	&datadogPreset,
	&discordPreset,
	&elevenLabsPreset,
	&etherscanPreset,
	&geminiPreset,
	&githubPreset,
	&gitlabPreset,
	&googleAdsPreset,
	&googleWorkspacePreset,
	&hubSpotPreset,
	&infuraPreset,
	&intercomPreset,
	&klaviyoPreset,
	&krakenPreset,
	&krakenFuturesPreset,
	&linearPreset,
	&linkedInPreset,
	&metaPreset,
	&microsoftGraphPreset,
	&mondayPreset,
	&notionPreset,
	&oktaPreset,
	&okxPreset,
	&openAIPreset,
	&openAICompatiblePreset,
	&pipedrivePreset,
	&quickBooksPreset,
	&redditPreset,
	&salesforcePreset,
	&shopifyGraphQLPreset,
	&shopifyRESTPreset,
	&slackPreset,
	&spotifyPreset,
	&stripePreset,
	&telegramPreset,
	&twilioPreset,
	&unknownPreset,
	&vertexAIPreset,
	&xPreset,
	&xeroPreset,
	&zendeskPreset,
}

// Lookup returns the presets of the APIs at a host, such as "api.github.com". Several APIs may
// share a host, and each preset then limits its own requests. If no API is known, Lookup returns
// none.
func Lookup(host string) (found []Preset) {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	for _, p := range Presets() {
		if slices.ContainsFunc(p.apis(), func(api Provider) bool { return serves(api.Hosts, host) }) {
			found = append(found, p)
		}
	}
	return found
}

// String returns the constructor.
func (p Preset) String() string { return p.Constructor }

// Provider calls the constructor with arguments by the names of the parameters, which are as
// Parameter.Parse returns them. It panics if a number is missing or malformed.
func (p Preset) Provider(args map[string]string) Provider {
	if p.New != nil {
		return p.New()
	}
	return p.call(args)
}

// Example returns the arguments of a usual account.
func (p Preset) Example() map[string]string {
	args := map[string]string{}
	for _, param := range p.Parameters {
		args[param.Name] = param.Example
	}
	return args
}

// apis returns the APIs of the preset with the limits of usual accounts.
func (p Preset) apis() (all []Provider) {
	if p.known == nil {
		return []Provider{p.Provider(p.Example())}
	}
	for _, args := range p.known() {
		all = append(all, p.Provider(args))
	}
	return all
}

// arguments are the values of a preset's parameters, by name.
type arguments map[string]string

func (a arguments) number(name string) int64 {
	n, err := strconv.ParseInt(a[name], 10, 64)
	if err != nil {
		panic(fmt.Sprintf("providers: parameter %s: %v", name, err))
	}
	return n
}

// A Parameter is a parameter of a Preset.
type Parameter struct {
	// Name is the name, such as "requests".
	Name string

	// About says what the parameter is, such as "requests a minute of a model".
	About string

	// Text reports that the value is a text. If false, it is a whole number from Min to
	// algorithms.MaxLimit.
	Text bool
	Min  int64

	// Default is the value of a parameter that is left out. If empty, the parameter is required.
	Default string

	// Example is a value of a usual account.
	Example string

	check func(text string) error
}

// Required reports whether the parameter must have a value.
func (p Parameter) Required() bool { return p.Default == "" }

// Parse returns a value in normal form. Underscores may group the digits of a number. The error says
// what the value must be.
func (p Parameter) Parse(value string) (string, error) {
	if p.Text {
		return value, p.check(value)
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(value, "_", ""), 10, 64)
	if err != nil || n < p.Min || n > algorithms.MaxLimit {
		return "", fmt.Errorf("it must be a whole number from %d to %d, the %s", p.Min, int64(algorithms.MaxLimit), p.About)
	}
	return strconv.FormatInt(n, 10), nil
}
