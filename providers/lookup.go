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
	host = strings.ToLower(host)
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
	return []Preset{
		ready("Alchemy()", Alchemy),
		told("Anthropic(requests, input, output int64)", Anthropic(1, 1, 1)),
		ready("Binance()", Binance),
		ready("BinanceFutures()", BinanceFutures),
		ready("BinanceUS()", BinanceUS),
		ready("Bybit()", Bybit),
		ready("CoinbaseApp()", CoinbaseApp),
		ready("CoinbaseExchange()", CoinbaseExchange),
		ready("Discord()", Discord),
		ready("Etherscan()", Etherscan),
		ready("GitHub()", GitHub),
		told("HubSpot(zone string)", HubSpot("")),
		told("Infura(second, day int64)", Infura(1, 1)),
		ready("Kraken()", Kraken),
		ready("KrakenFutures()", KrakenFutures),
		ready("Notion()", Notion),
		ready("OKX()", OKX),
		told("OpenAI(requests, tokens int64)", OpenAI(1, 1)),
		ready("ShopifyGraphQL()", ShopifyGraphQL),
		ready("ShopifyREST()", ShopifyREST),
		ready("Slack()", Slack),
		ready("Stripe()", Stripe),
		told("Twilio(concurrent int64)", Twilio(1)),
	}
}
