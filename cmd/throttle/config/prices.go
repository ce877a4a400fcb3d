package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/providers"
)

// Prices are what the models of a route cost, for a Budget in dollars. The listed prices of well-known models
// hold for all others: see docs/costs.md.
type Prices struct {
	// File is the path of a file with prices in JSON, as providers.ReadPrices reads them. They come before
	// the listed ones. If empty, there are only those.
	File string `json:"file,omitempty"`

	// UnknownModel is the price of models without one, in dollars per million tokens, such as {input: "3",
	// output: "15"}, with cached_input, cache_write, hour_cache_write and request, in dollars per request,
	// beside them. If empty, requests to such models are refused.
	UnknownModel map[string]string `json:"unknown_model,omitempty"`
}

// mostPrices is how many bytes a file of prices has at most.
const mostPrices = 1 << 20

// costsDollars reports whether requests of the route cost what the prices say: a budget is in dollars, and Cost
// is not.
func (r *Route) costsDollars() bool {
	_, fixed := r.Cost[throttle.Nanodollars]
	return units(r.budget.Tiers)[throttle.Nanodollars] && !fixed
}

// prices checks the prices of a route.
func (d *decoder) prices(field string, r *Route) {
	at := field + ".prices"
	if !r.costsDollars() {
		if d.filled(at) && !d.hasProblem(field+".budget") {
			d.bad(at, "belongs to a budget in dollars: add one such as budget: $500/month, without nanodollars in cost, or remove it")
		}
		return
	}
	r.spending = new(providers.Spending)
	before := len(d.problems)
	d.ownPrices(at, r)
	var apis []string
	for _, part := range r.parts() {
		if api := part.api(); !slices.Contains(apis, api) {
			apis = append(apis, api)
		}
	}
	switch {
	case len(d.problems) > before || slices.ContainsFunc(apis, func(api string) bool { return api == "" }): // of problems that are reported
	case len(apis) > 1:
		d.bad(field+".budget", "is %q: the members of the pool are of several APIs, %s, and what a request costs depends on the one that serves it: give each a route of its own", r.Budget, list(apis, "and"))
	default:
		if err := r.spending.Limit(&throttle.Transport{Limiter: new(throttle.Limiter)}, apis[0]); errors.Is(err, providers.ErrNoPrice) {
			d.bad(field+".budget", `is %q: no prices of %s are known: add prices: {file: PATH}, or prices: {unknown_model: {input: "3", output: "15"}}`, r.Budget, apis[0])
		} else if err != nil {
			d.bad(field+".budget", "is %q: %s", r.Budget, oneLine(err))
		}
	}
}

// ownPrices reads the prices of a route, before the listed ones.
func (d *decoder) ownPrices(at string, r *Route) {
	var own providers.PriceList
	if file := r.Prices.File; file != "" && !d.loader.WithoutSecrets {
		text, err := d.loader.readPrices(file)
		if err == nil {
			own, err = providers.ReadPrices(bytes.NewReader(text))
		}
		if err != nil {
			d.bad(at+".file", "is %q: %s", file, oneLine(err))
		}
	}
	r.spending.Prices = append(own, providers.Prices()...)
	if len(r.Prices.UnknownModel) > 0 {
		price, err := defaultPrice(r.Prices.UnknownModel)
		if err != nil {
			d.bad(at+".unknown_model", "is not a price: %s", oneLine(err))
		}
		r.spending.Default = &price
	}
}

// ofEach returns the units that requests of the route cost whatever its limits: requests and, by prices,
// nanodollars.
func (r *Route) ofEach() map[string]bool {
	all := map[string]bool{algorithms.Requests: true}
	if r.spending != nil {
		all[throttle.Nanodollars] = true
	}
	return all
}

// readPrices reads a file of prices.
func (l Loader) readPrices(path string) ([]byte, error) {
	text, err := readAtMost(path, mostPrices+1)
	switch {
	case os.IsNotExist(err):
		return nil, errors.New("it does not exist")
	case err != nil || len(text) > mostPrices:
		return nil, errors.New("it is no file of at most 1MB that can be read")
	}
	return text, nil
}

// defaultPrice returns the price of models that have none.
func defaultPrice(fields map[string]string) (providers.Price, error) {
	entry := map[string]string{"api": "any", "model": "*"}
	for name, value := range fields {
		if _, taken := entry[name]; taken {
			return providers.Price{}, fmt.Errorf("%s does not belong there: remove it", name)
		}
		entry[name] = value
	}
	text, err := json.Marshal([]map[string]string{entry})
	if err != nil {
		return providers.Price{}, err
	}
	prices, err := providers.ReadPrices(bytes.NewReader(text))
	if err != nil {
		return providers.Price{}, err
	}
	return prices[0], nil
}

// oneLine returns the text of errors that may be joined, without the names of packages.
func oneLine(err error) string {
	return strings.NewReplacer("\n", "; ", "providers: prices: ", "", `entry 1 (any "*"): `, "").Replace(err.Error())
}

// api returns the name of the API in prices: that of the preset, or the host. It is empty if that is not known.
func (r *Route) api() string {
	if r.limits.IsPreset() {
		p := r.limits.preset.Provider(r.limits.args)
		if r.limits.preset.Name != "unknown" {
			return p.Name
		}
	}
	if r.upstream == nil {
		return ""
	}
	return r.upstream.Hostname()
}

// spend makes the requests of a route's transport cost dollars, if its budget is in dollars. What the Spending of
// the route before has learned remains if the prices are the same.
func (q *quotas) spend(r, before *Route) error {
	if r.spending == nil {
		return nil
	}
	if before != nil && reflect.DeepEqual(r.priced(), before.priced()) {
		r.spending = before.spending
	}
	return r.spending.Limit(q.transport, r.parts()[0].api())
}

// priced returns the prices of a route whose budget is in dollars.
func (r *Route) priced() []any {
	if r.spending == nil {
		return nil
	}
	return []any{r.spending.Prices, r.spending.Default}
}
