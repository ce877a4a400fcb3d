package providers

import "strings"

// A Preset is a constructor of this package.
type Preset struct {
	// Constructor is the constructor with its parameters, such as "GitHub()" and
	// "OpenAI(requests, tokens int64)".
	Constructor string

	// New calls a constructor without parameters. If nil, the limits depend on the account: call
	// the Constructor with them.
	New func() Provider

	example func() Provider // has the hosts and the profile of any account
}

// String returns the constructor.
func (p Preset) String() string { return p.Constructor }

// Lookup returns the presets of the APIs at a host, such as "api.github.com". Several APIs may
// share a host, and each preset then limits its own requests. If no API is known, Lookup returns
// none.
func Lookup(host string) (found []Preset) {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	for _, p := range presets() {
		if r := (router{hosts: p.example().Hosts}); r.serves(host) {
			found = append(found, p)
		}
	}
	return found
}

// presets returns all presets, by name.
func presets() []Preset {
	ready := func(constructor string, of func() Provider) Preset { return Preset{constructor, of, of} }
	told := func(constructor string, example Provider) Preset {
		return Preset{Constructor: constructor, example: func() Provider { return example }}
	}
	all := []Preset{
		ready("Airtable()", Airtable),
		ready("Alchemy()", Alchemy),
		ready("AmazonSPAPI()", AmazonSPAPI),
		told("Anthropic(requests, input, output int64)", Anthropic(1, 1, 1)),
		ready("Atlassian()", Atlassian),
		told("AzureOpenAI(requests, tokens int64)", AzureOpenAI(1, 1)),
		told("Bedrock(requests, tokens int64)", Bedrock(1, 1)),
		ready("Binance()", Binance),
		ready("BinanceFutures()", BinanceFutures),
		ready("BinanceUS()", BinanceUS),
		ready("Bybit()", Bybit),
		ready("Cloudflare()", Cloudflare),
		ready("CoinbaseApp()", CoinbaseApp),
		ready("CoinbaseExchange()", CoinbaseExchange),
		ready("Discord()", Discord),
		ready("Etherscan()", Etherscan),
		told("Gemini(requests, inputTokens, requestsPerDay int64)", Gemini(1, 1, 1)),
		ready("GitHub()", GitHub),
		ready("GitLab()", GitLab),
		told("GoogleWorkspace(user func(*http.Request) string)", GoogleWorkspace(nil)),
		told("HubSpot(zone string)", HubSpot("")),
		told("Infura(second, day int64)", Infura(1, 1)),
		ready("Kraken()", Kraken),
		ready("KrakenFutures()", KrakenFutures),
		told("Meta(perHour int64)", Meta(1)),
		ready("MicrosoftGraph()", MicrosoftGraph),
		ready("Notion()", Notion),
		ready("OKX()", OKX),
		ready("Okta()", Okta),
		told("OpenAI(requests, tokens int64)", OpenAI(1, 1)),
		ready("Reddit()", Reddit),
		told("Salesforce(perDay int64)", Salesforce(1)),
		ready("ShopifyGraphQL()", ShopifyGraphQL),
		ready("ShopifyREST()", ShopifyREST),
		ready("Slack()", Slack),
		told("Spotify(requests int64)", Spotify(1)),
		ready("Stripe()", Stripe),
		ready("Telegram()", Telegram),
		told("Twilio(concurrent int64)", Twilio(1)),
		ready("X()", X),
		told("Zendesk(requests int64)", Zendesk(1)),
	}
	for _, host := range openAICompatibleHosts {
		all = append(all, told("OpenAICompatible(host string, requests, tokens int64)", OpenAICompatible(host, 1, 1)))
	}
	return all
}
