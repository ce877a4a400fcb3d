package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/internal/alike"
	"github.com/apithrottle/throttle/providers"
)

// priceFlags are the flags that say what requests cost in dollars.
type priceFlags struct {
	model, file string
	tokens      []string
	batch       bool
}

func (f *priceFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.model, "price", "", "the `model` whose prices the requests have, such as gpt-4o or openai/gpt-4o")
	flags.StringSliceVar(&f.tokens, "tokens", nil, "the tokens of a request with a price, as `kind=n`: input, cached, written and output")
	flags.BoolVar(&f.batch, "batch", false, "the price of the provider's batch API")
	flags.StringVar(&f.file, "prices", "", "a `file` of your own prices, which hold before the listed ones")
}

// A priceResult is what a batch costs in dollars.
type priceResult struct {
	API     string           `json:"api"`
	Model   string           `json:"model"`
	Tokens  map[string]int64 `json:"tokens"`
	Batch   bool             `json:"batch"`
	Request float64          `json:"request_dollars"`
	Total   float64          `json:"total_dollars"`
	Page    string           `json:"page,omitempty"`
	Day     string           `json:"day,omitempty"`

	request int64 // nanodollars
	tokens  []string
}

// tokenKinds are the kinds of tokens, in the order in which they are printed, and in words.
var tokenKinds = []struct{ kind, words string }{
	{"input", "tokens of input"}, {"cached", "cached ones"}, {"written", "written to a cache"}, {"output", "tokens of output"},
}

// read returns what a request costs, or nil without a price. The policies' presets say which API the model is of.
func (f *priceFlags) read(policies []string) (*priceResult, error) {
	if f.model == "" {
		if f.file != "" || f.batch || len(f.tokens) > 0 {
			return nil, usagef("--tokens, --batch and --prices are of --price: add --price MODEL, such as --price gpt-4o")
		}
		return nil, nil
	}
	list, err := f.list()
	if err != nil {
		return nil, err
	}
	price, model, err := findPrice(list, f.model, policies)
	if err != nil {
		return nil, err
	}
	r := &priceResult{API: price.API, Model: model, Batch: f.batch, Page: price.Page, Day: price.Day}
	if r.Tokens, err = parseTokens(f.tokens); err != nil {
		return nil, err
	}
	switch {
	case f.batch && price.Batch == 0:
		return nil, usagef("--batch: %s of %s has no price of a batch: leave --batch out, or give one with --prices", model, price.API)
	case len(r.Tokens) == 0 && price.Request == 0:
		return nil, usagef("--price needs the tokens of a request: add --tokens input=600,output=300")
	}
	for _, k := range tokenKinds {
		if n := r.Tokens[k.kind]; n > 0 {
			r.tokens = append(r.tokens, thousands(n)+" "+k.words)
		}
	}
	r.request = price.Nanodollars(providers.Usage{
		Input: r.Tokens["input"], CachedInput: r.Tokens["cached"], CacheWrite: r.Tokens["written"], Output: r.Tokens["output"], Batch: f.batch,
	})
	r.Request = float64(r.request) / 1e9
	return r, nil
}

// list returns the prices of the file, if there is one, and the listed ones.
func (f *priceFlags) list() (providers.PriceList, error) {
	if f.file == "" {
		return providers.Prices(), nil
	}
	file, err := os.Open(f.file)
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	if err != nil {
		return nil, usagef("--prices %s: %w", f.file, err)
	}
	defer file.Close()
	own, err := providers.ReadPrices(file)
	if err != nil {
		return nil, &configError{fmt.Errorf("--prices %s: %w", f.file, err)}
	}
	return append(own, providers.Prices()...), nil
}

// findPrice returns the price of a model, whose name may begin with that of its API and a slash. Without one, it
// is of the API of a preset, or of the only API that has the model.
func findPrice(list providers.PriceList, name string, policies []string) (price providers.Price, model string, err error) {
	var found []providers.Price
	for _, api := range apisOf(list) {
		if p, ok := list.Find(api, name); ok {
			found = append(found, p)
		}
		if own, ok := strings.CutPrefix(name, api+"/"); ok {
			if p, ok := list.Find(api, own); ok {
				return p, own, nil
			}
		}
	}
	if len(found) > 1 {
		i := slices.IndexFunc(found, func(p providers.Price) bool {
			return slices.ContainsFunc(policies, func(text string) bool { preset, _, _ := strings.Cut(text, ":"); return preset == p.API })
		})
		if i < 0 {
			return price, "", usagef("--price: %s is a model of %s: write --price %s/%s", name, apisText(found), found[0].API, name)
		}
		found = found[i:]
	}
	if len(found) == 0 {
		return price, "", usagef("--price: no price of %q is known: %sgive prices of your own with --prices FILE, "+
			`such as [{"api": "openai", "model": %q, "input": "2.50", "output": "10.00"}] in dollars per million tokens`, name, near(name, list), name)
	}
	return found[0], name, nil
}

// apisOf returns the APIs that a list has.
func apisOf(list providers.PriceList) (all []string) {
	for _, p := range list {
		if !slices.Contains(all, p.API) {
			all = append(all, p.API)
		}
	}
	return all
}

func apisText(prices []providers.Price) string {
	var names []string
	for _, p := range prices {
		names = append(names, p.API)
	}
	return strings.Join(names, " and of ")
}

// near returns a question for the models with prices whose names are most like another.
func near(name string, list providers.PriceList) string {
	var names, alikes []string
	for _, p := range list {
		for one := range strings.SplitSeq(p.Model, "|") {
			if !slices.Contains(names, one) {
				names = append(names, one)
			}
		}
	}
	for range 3 {
		one := alike.Nearest(name, names)
		if one == "" {
			break
		}
		alikes = append(alikes, one)
		names = slices.DeleteFunc(names, func(n string) bool { return n == one })
	}
	if alikes == nil {
		return ""
	}
	return "did you mean " + strings.Join(alikes, ", ") + "? Or "
}

// parseTokens parses numbers of tokens, each as kind=n.
func parseTokens(texts []string) (map[string]int64, error) {
	all := make(map[string]int64)
	for _, text := range texts {
		kind, amount, _ := strings.Cut(text, "=")
		n, err := strconv.ParseInt(amount, 10, 64)
		known := false
		for _, k := range tokenKinds {
			known = known || k.kind == kind
		}
		if _, twice := all[kind]; twice || !known || err != nil || n < 0 || n > 1_000_000_000 {
			return nil, usagef("--tokens is %q: write each of input, cached, written and output once, with a whole number, such as input=600,cached=200,output=300", text)
		}
		all[kind] = n
	}
	return all, nil
}

// add adds the dollars of a request to its cost and, where the cost does not name them, its tokens.
func (r *priceResult) add(cost throttle.Cost) throttle.Cost {
	all := throttle.Cost{algorithms.Nanodollars: r.request}
	if in, out := r.Tokens["input"]+r.Tokens["written"], r.Tokens["output"]; len(r.Tokens) > 0 {
		all["tokens"], all["input_tokens"], all["output_tokens"] = in+r.Tokens["cached"]+out, in, out
	}
	maps.Copy(all, cost)
	return all
}

// text returns what the batch costs, and where the prices come from.
func (r *priceResult) text() string {
	text := fmt.Sprintf("They cost %s, each %s: %s", dollars(r.Total), exactDollars(r.request), strings.Join(r.tokens, ", "))
	if len(r.tokens) == 0 {
		text = strings.TrimSuffix(text, ": ")
	}
	text += fmt.Sprintf("\nPrices of %s of %s", plain(r.Model), plain(r.API))
	if r.Batch {
		text += " in a batch"
	}
	if r.Page != "" {
		text += ", from " + plain(r.Page)
	}
	if r.Day != "" {
		text += " on " + plain(r.Day)
	}
	return text + "\n"
}

// dollars returns an amount for people.
func dollars(n float64) string {
	return algorithms.FormatAmount(int64(n*1e9), algorithms.Nanodollars)
}

// exactDollars returns nanodollars without rounding.
func exactDollars(n int64) string {
	return "$" + strconv.FormatFloat(float64(n)/1e9, 'f', -1, 64)
}

// A budgetResult compares a batch with a budget in dollars.
type budgetResult struct {
	Tier  string  `json:"tier"`
	Share float64 `json:"share"` // which part of the budget the batch costs

	// UsedUpAt is the last request that the budget admits. If zero, it admits all.
	UsedUpAt int64 `json:"used_up_at_request,omitempty"`
}

// compare compares the requests of a plan with the budgets of its policy.
func (r *priceResult) compare(p *plan, policy throttle.Policy, requests int64) {
	for i, t := range policy.Tiers {
		if t.Unit != algorithms.Nanodollars || !t.Budget {
			continue
		}
		b := budgetResult{Tier: t.String(), Share: float64(requests) * float64(r.request) / float64(t.Limit)}
		if p.Refused != nil && p.Refused.Tier == p.run.Tiers()[i] {
			b.UsedUpAt = p.Refused.Request - 1
		}
		p.Budgets = append(p.Budgets, b)
	}
}

// text returns the comparison in a line.
func (b budgetResult) text() string {
	name := strings.TrimSuffix(withoutOptions(b.Tier), " budget")
	if b.UsedUpAt > 0 {
		return fmt.Sprintf("  the budget of %s is used up at request %s\n", name, thousands(b.UsedUpAt))
	}
	return fmt.Sprintf("  the batch costs %s of the budget of %s\n", percent(b.Share), name)
}
