package providers_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/providers"
)

func readPrices(t *testing.T, text string) providers.PriceList {
	t.Helper()
	l, err := providers.ReadPrices(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A request is rounded up once, to whole nanodollars, after the percentage of a batch.
func TestRequestIsRoundedOnce(t *testing.T) {
	p := readPrices(t, `[{"api":"a","model":"m","input":"0.075","cached_input":"0.0375","output":"0.30","batch":50}]`)[0]
	for _, test := range []struct {
		usage providers.Usage
		want  int64
	}{
		{providers.Usage{}, 0},
		{providers.Usage{Batch: true}, 0},
		{providers.Usage{Input: 1}, 75},
		{providers.Usage{CachedInput: 1}, 38},
		{providers.Usage{CachedInput: 2}, 75},
		{providers.Usage{Input: 1, CachedInput: 1}, 113},             // 112.5
		{providers.Usage{Input: 1, CachedInput: 1, Batch: true}, 57}, // 56.25
		{providers.Usage{Input: 1, CachedInput: 1, Output: 1}, 413},  // 412.5
		{providers.Usage{Input: 1_001, Batch: true}, 37_538},         // 37,537.5
		{providers.Usage{CacheWrite: 2, HourCacheWrite: 3}, 375},     // as input
		{providers.Usage{Input: -5, Output: 1}, 300},
	} {
		if got := p.Nanodollars(test.usage); got != test.want {
			t.Errorf("%+v: %d, want %d", test.usage, got, test.want)
		}
	}
}

// Absent prices of cached tokens are those of the input, and "0" is nothing.
func TestCachedTokensMayBeFree(t *testing.T) {
	l := readPrices(t, `[
		{"api":"a","model":"free","input":"1","cached_input":"0","cache_write":"0.000","output":"0","batch":50,"batch_cached_input":"0"},
		{"api":"a","model":"half","input":"1","cached_input":"0.5","output":"0","batch":50},
		{"api":"a","model":"full","input":"1","cached_input":"0.5","output":"0","batch":50,"batch_cached_input":"0.5"},
		{"api":"a","model":"call","request":"0.001"}]`)
	u := providers.Usage{Input: 1, CachedInput: 2, CacheWrite: 4, HourCacheWrite: 8}
	batch := u
	batch.Batch = true
	for model, want := range map[string][2]int64{
		"free": {1_000, 500},
		"half": {14_000, 7_000},
		"full": {14_000, 7_500},
		"call": {1_000_000, 1_000_000},
	} {
		p, _ := l.Find("a", model)
		if got := [2]int64{p.Nanodollars(u), p.Nanodollars(batch)}; got != want {
			t.Errorf("%s: %d, want %d", model, got, want)
		}
	}
}

// All tokens of a request with long input cost the long prices.
func TestLongInputCostsMore(t *testing.T) {
	p := readPrices(t, `[{"api":"a","model":"m","input":"1","cached_input":"0.1","output":"3","long":{"over":100,"input":"2","cached_input":"0.2","output":"5"}}]`)[0]
	for _, test := range []struct {
		usage providers.Usage
		want  int64
	}{
		{providers.Usage{Input: 100, Output: 1_000}, 3_100_000},
		{providers.Usage{Input: 101, Output: 1_000}, 5_202_000},
		{providers.Usage{Input: 1, CachedInput: 100}, 22_000},
		{providers.Usage{CacheWrite: 50, HourCacheWrite: 50}, 100_000},
		{providers.Usage{CacheWrite: 50, HourCacheWrite: 51}, 202_000},
		{providers.Usage{CachedInput: -1, Input: 100}, 100_000},
	} {
		if got := p.Nanodollars(test.usage); got != test.want {
			t.Errorf("%+v: %d, want %d", test.usage, got, test.want)
		}
	}
}

// The largest numbers of tokens at the largest prices are added up without overflow.
func TestHugeRequestsCostTheMost(t *testing.T) {
	million := readPrices(t, `[{"api":"a","model":"m","input":"1000","output":"1000"}]`)[0]
	const tokens = 1 << 40
	if got, want := million.Nanodollars(providers.Usage{Input: tokens, Output: tokens}), int64(2*tokens*1_000_000); got != want {
		t.Errorf("$1,000 a million: %d, want %d", got, want)
	}
	token := readPrices(t, `[{"api":"a","model":"m","input":"1000000000","output":"1000000000"}]`)[0]
	if got, want := token.Nanodollars(providers.Usage{Input: 150, Output: 150}), int64(300*1_000*1_000_000_000); got != want {
		t.Errorf("$1,000 a token: %d, want %d", got, want)
	}
	most := readPrices(t, `[{"api":"a","model":"m","input":"1000000000","output":"1000000000","request":"1000"}]`)[0]
	u := providers.Usage{Input: math.MaxInt64, CachedInput: math.MaxInt64, CacheWrite: math.MaxInt64, HourCacheWrite: math.MaxInt64, Output: math.MaxInt64, Batch: true}
	if got := most.Nanodollars(u); got != math.MaxInt64 {
		t.Errorf("$1,000 a token: %d, want %d", got, int64(math.MaxInt64))
	}
	wild := providers.Price{Input: math.MaxInt64, Output: math.MinInt64, Request: -1, Batch: math.MaxInt64}
	if got, want := wild.Nanodollars(providers.Usage{Input: 1, Output: 1, Batch: true}), int64(1_000_000_000_000); got != want {
		t.Errorf("a price out of range: %d, want %d", got, want)
	}
}

// A model has the price of the pattern with the most other characters, and an unknown one has none.
func TestFindTakesTheClosestPattern(t *testing.T) {
	entry := func(api, model, input string) string {
		return fmt.Sprintf(`{"api":%q,"model":%q,"input":%q,"output":"0"}`, api, model, input)
	}
	l := readPrices(t, "["+strings.Join([]string{
		entry("a", "gpt-*", "1"), entry("a", "gpt-4o*|o?", "2"), entry("a", "gpt-4o-mini|gpt-4o-mini-2024", "3"),
		entry("b", "*", "4"), entry("a", "vendor/model*", "5"), entry("a", "tie*", "6"), entry("a", "tie", "7"),
	}, ",")+"]")
	for _, test := range []struct {
		api, model string
		want       int64
	}{
		{"a", "gpt-5", 1}, {"a", "gpt-4o", 2}, {"a", "gpt-4o-2024-08-06", 2}, {"a", "o3", 2},
		{"a", "gpt-4o-mini", 3}, {"a", "gpt-4o-mini-2024", 3}, {"a", "gpt-4o-mini-2025", 2},
		{"b", "gpt-4o", 4}, {"b", "", 4}, {"a", "vendor/model/1", 5}, {"a", "tie", 7}, {"a", "tied", 6},
		{"a", "o13", 0}, {"a", "", 0}, {"c", "gpt-4o", 0}, {"", "", 0},
	} {
		p, ok := l.Find(test.api, test.model)
		if p.Input != test.want*1_000_000 || ok != (test.want > 0) {
			t.Errorf("Find(%q, %q) is %d, %t, want %d", test.api, test.model, p.Input, ok, test.want*1_000_000)
		}
	}
}

// Prices in front of others hold, and a malformed pattern matches nothing.
func TestOwnPricesGoInFront(t *testing.T) {
	own := providers.PriceList{{API: "openai", Model: "gpt-4o", Input: 1}}
	l := append(own, providers.Prices()...)
	if p, _ := l.Find("openai", "gpt-4o"); p.Input != 1 {
		t.Errorf("gpt-4o costs %d, want the own price", p.Input)
	}
	if p, _ := l.Find("openai", "gpt-4o-2024-08-06"); p.Input != 2_500_000 {
		t.Errorf("another name of the listed price costs %d, want the listed price", p.Input)
	}
	for _, model := range []string{"[", ""} {
		if p, ok := append(providers.PriceList{{API: "openai", Model: "[|"}}, l...).Find("openai", model); ok {
			t.Errorf("%q has the price of %q", model, p.Model)
		}
	}
	providers.Prices()[0].API = "changed"
	if providers.Prices()[0].API == "changed" {
		t.Error("a change of the list changed the listed prices")
	}
}

// An error names each entry and field that is not valid, and what to write.
func TestReadPricesNamesWhatIsWrong(t *testing.T) {
	const good = `"api":"a","model":"m","input":"1","output":"2"`
	for text, want := range map[string][]string{
		``:          {"prices: EOF"},
		`{}`:        {"prices: json:"},
		`[] []`:     {"more after the list: write one list"},
		`[{"a":1}]`: {`unknown field "a"`},
		`[{"api":"a","model":"m","input":2.5,"output":"2"}]`: {"input"},
		`[{` + good + `},{}]`: {
			`entry 2 ( ""): api is missing: write`, `entry 2 ( ""): model "" is not a pattern`,
			`entry 2 ( ""): input is missing: write`, `entry 2 ( ""): output is missing: write`,
		},
		`[{"api":"a","model":"[","request":"1"}]`:                     {`entry 1 (a "["): model "[" is not a pattern of names: write it as for path.Match`},
		`[{"api":"a","model":"m|","request":"1"}]`:                    {`model "" is not a pattern`},
		`[{` + good + `},{"api":"a","model":"n|m","request":"1"}]`:    {`entry 2 (a "n|m"): model "m" is also in entry 1: remove it from one of them`},
		`[{` + good + `,"request":"$1"}]`:                             {`request "$1" is not a number of dollars: write it as "2.50"`},
		`[{` + good + `,"cached_input":"1e3"}]`:                       {`cached_input "1e3" is not a number`},
		`[{` + good + `,"cache_write":"1/3"}]`:                        {`cache_write "1/3" is not a number`},
		`[{` + good + `,"hour_cache_write":""}]`:                      {`hour_cache_write "" is not a number`},
		`[{` + good + `,"batch_cached_input":"-1"}]`:                  {`batch_cached_input "-1" is not a number`},
		`[{"api":"a","model":"m","input":"1.2.3","output":"."}]`:      {`input "1.2.3" is not a number`, `output "." is not a number`},
		`[{"api":"a","model":"m","input":"0.0000001","output":"2"}]`:  {`input "0.0000001" has a part of a picodollar: write at most 6 decimals`},
		`[{"api":"a","model":"m","request":"0.0000000000001"}]`:       {`write at most 12 decimals`},
		`[{"api":"a","model":"m","input":"1","output":"1000000001"}]`: {`output "1000000001" is more than $1,000 for one: write the dollars for 1000000`},
		`[{"api":"a","model":"m","request":"1001"}]`:                  {`request "1001" is more than $1,000 for one: write the dollars for 1`},
		`[{` + good + `,"batch":0}]`:                                  {`batch 0 is not a percentage: write 1 to 100`},
		`[{` + good + `,"batch":101}]`:                                {`batch 101 is not a percentage`},
		`[{` + good + `,"long":{"over":0,"input":"x"}}]`:              {`long.over 0 is not a number of tokens: write 1 or more`, `long.output is missing`, `long.input "x" is not a number`},
		`[{` + good + `,"day":"29.11.2026"}]`:                         {`day "29.11.2026" is not a date: write it as "2026-11-29"`},
	} {
		l, err := providers.ReadPrices(strings.NewReader(text))
		if err == nil || l != nil {
			t.Errorf("%s: %v, %v; want an error", text, l, err)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) || !strings.HasPrefix(err.Error(), "providers: prices: ") {
				t.Errorf("%s: %v; want %s", text, err, w)
			}
		}
	}
}

// A pricePage is what testdata has of a page: dollars per million tokens by the role of a price, such as
// "batch.long.input". A role that the page leaves empty is nil.
type pricePage struct {
	page, day string
	over      int64                          // tokens that are not long input
	names     map[string]string              // of models in the API, by their names in the page
	prices    map[string]map[string]*big.Rat // by the model's name in the page
	discount  map[string]int64               // of a batch, in percent; of "*": all models
}

var (
	pageAmount = regexp.MustCompile(`\$(\d+(?:\.\d+)?)|\| (-) |(\d+)%`)
	pageNumber = regexp.MustCompile(`\d+$`)
)

// readPricePage reads the extract of a page. Each section begins with the roles of the amounts in its
// lines, in their order.
func readPricePage(t *testing.T, file string) *pricePage {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := &pricePage{names: map[string]string{}, prices: map[string]map[string]*big.Rat{}, discount: map[string]int64{}}
	var roles []string
	for s := bufio.NewScanner(strings.NewReader(string(text))); s.Scan(); {
		line := s.Text()
		switch section, isSection := strings.CutPrefix(line, "# "); {
		case isSection:
			roles = strings.Fields(section)
		case strings.HasPrefix(line, "page: "):
			p.page = line[len("page: "):]
		case strings.HasPrefix(line, "day: "):
			p.day = line[len("day: "):]
		case roles == nil || line == "" || strings.HasPrefix(line, "| Model |"):
		case roles[0] == "names,":
			in, of, _ := strings.Cut(line, " = ")
			p.names[in] = of
		case roles[0] == "long.over":
			fmt.Sscan(pageNumber.FindString(line), &p.over)
		default:
			p.row(t, roles, line)
		}
	}
	return p
}

// row reads a line with amounts.
func (p *pricePage) row(t *testing.T, roles []string, line string) {
	t.Helper()
	label, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
	label, _, _ = strings.Cut(label, " (")
	amounts := pageAmount.FindAllStringSubmatch(line, -1)
	if len(amounts) != len(roles) {
		t.Fatalf("%s has %d amounts, and its section %d", line, len(amounts), len(roles))
	}
	for i, a := range amounts {
		role, model, ok := strings.Cut(roles[i], "@")
		if !ok {
			model = label
		}
		switch {
		case role == "_":
		case role == "batch.discount":
			var percent int64
			fmt.Sscan(a[3], &percent)
			p.discount[model] = percent
		default:
			if p.prices[model] == nil {
				p.prices[model] = map[string]*big.Rat{}
			}
			p.prices[model][role] = nil
			if a[1] != "" {
				p.prices[model][role], _ = new(big.Rat).SetString(a[1])
			}
		}
	}
}

// batchShare returns the share of the prices that a batch costs, as the page says it.
func (p *pricePage) batchShare(model string) *big.Rat {
	if in := p.prices[model]["batch.input"]; in != nil {
		return new(big.Rat).Quo(in, p.prices[model]["input"])
	}
	discount, ok := p.discount[model]
	if !ok {
		discount = p.discount["*"]
	}
	return big.NewRat(100-discount, 100)
}

// dollars returns what the page charges for a million tokens of a role, such as "cached_input".
func (p *pricePage) dollars(model, role string, long, batch bool) *big.Rat {
	prices, prefix := p.prices[model], ""
	if long {
		prefix = "long."
	}
	if batch {
		if price, ok := prices["batch."+prefix+role]; ok && price != nil {
			return price
		} else if ok { // an empty place: there is no other price than that of input
			return prices["batch."+prefix+"input"]
		}
		return new(big.Rat).Mul(p.dollars(model, role, long, false), p.batchShare(model))
	}
	if price := prices[prefix+role]; price != nil {
		return price
	}
	return prices[prefix+"input"]
}

// pricePages returns all extracts.
func pricePages(t *testing.T) (all []*pricePage) {
	t.Helper()
	files, err := filepath.Glob("testdata/prices/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		all = append(all, readPricePage(t, f))
	}
	return all
}

// pageOf returns the extract that has a pattern of names, and the model's name in it.
func pageOf(pages []*pricePage, page, day, pattern string) (*pricePage, string) {
	for _, p := range pages {
		for model := range p.prices {
			name, ok := p.names[model]
			if !ok {
				name = model
			}
			if p.page == page && p.day == day && name == pattern {
				return p, model
			}
		}
	}
	return nil, ""
}

// Every listed price is on the page that it names, beside the name of its model, and the list has every
// price of the extracts.
func TestListedPricesAreOnTheirPages(t *testing.T) {
	pages, left := pricePages(t), 0
	for _, p := range pages {
		left += len(p.prices)
	}
	text, err := os.ReadFile("prices.json")
	if err != nil {
		t.Fatal(err)
	}
	var entries []map[string]any
	if err := json.Unmarshal(text, &entries); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pattern := e["model"].(string)
		p, model := pageOf(pages, e["page"].(string), e["day"].(string), pattern)
		if p == nil {
			t.Errorf("%s: no extract of %s on %s has it", pattern, e["page"], e["day"])
			continue
		}
		left--
		checkEntry(t, p, model, e)
	}
	if len(entries) < 20 || left != 0 {
		t.Errorf("%d prices are listed, and %d models of the extracts are not", len(entries), left)
	}
}

// checkEntry compares an entry of prices.json with the extract of its page.
func checkEntry(t *testing.T, p *pricePage, model string, e map[string]any) {
	t.Helper()
	listed := map[string]*big.Rat{}
	addPrices(listed, "", e)
	if long, ok := e["long"].(map[string]any); ok {
		addPrices(listed, "long.", long)
		if over := int64(long["over"].(float64)); over != p.over {
			t.Errorf("%s: long input is over %d, and over %d in its page", model, over, p.over)
		}
	}
	share := big.NewRat(1, 1)
	if percent, ok := e["batch"].(float64); ok {
		share.SetFrac64(int64(percent), 100)
	}
	if want := p.batchShare(model); share.Cmp(want) != 0 {
		t.Errorf("%s: a batch costs %s of the prices, and %s in its page", model, share.RatString(), want.RatString())
	}
	for role, price := range p.prices[model] {
		got, ok := listed[role]
		if of, isBatch := strings.CutPrefix(role, "batch."); isBatch {
			checkBatch(t, p, model, of, listed, share)
		} else if ok != (price != nil) || ok && got.Cmp(price) != 0 {
			t.Errorf("%s: %s is %v, and %v in its page", model, role, got, price)
		}
	}
	for role := range listed {
		if _, ok := p.prices[model][role]; !ok {
			t.Errorf("%s: its page doesn't have %s", model, role)
		}
	}
}

// addPrices adds the prices of an entry, or of its long input, by their roles.
func addPrices(listed map[string]*big.Rat, of string, entry map[string]any) {
	for name, v := range entry {
		if s, ok := v.(string); ok && !slices.Contains([]string{"api", "model", "page", "day"}, name) {
			role := of + name
			if in, ok := strings.CutPrefix(name, "batch_"); ok {
				role = "batch." + of + in
			}
			listed[role], _ = new(big.Rat).SetString(s)
		}
	}
}

// checkBatch compares what a role costs in a batch with the extract.
func checkBatch(t *testing.T, p *pricePage, model, role string, listed map[string]*big.Rat, share *big.Rat) {
	t.Helper()
	name, long := strings.CutPrefix(role, "long.")
	input := "input"
	if long {
		input = "long.input"
	}
	standard := listed[role]
	if standard == nil {
		standard = listed[input]
	}
	if standard == nil {
		return // it has no long input
	}
	got := new(big.Rat).Mul(standard, share)
	if own := listed["batch."+role]; own != nil {
		got = own
	}
	if want := p.dollars(model, name, long, true); got.Cmp(want) != 0 {
		t.Errorf("%s: %s costs %s in a batch, and %s in its page", model, role, got.FloatString(6), want.FloatString(6))
	}
}

// A pricedRequest is a request of testdata/prices/usages.json.
type pricedRequest struct {
	Shape, API, Model string
	Batch             bool
	Usage             struct {
		Input         int64            `json:"input_tokens"`
		Output        int64            `json:"output_tokens"`
		Prompt        int64            `json:"prompt_tokens"`
		Completion    int64            `json:"completion_tokens"`
		PromptDetails map[string]int64 `json:"prompt_tokens_details"`
		Details       map[string]int64 `json:"input_tokens_details"`
		CacheRead     int64            `json:"cache_read_input_tokens"`
		Created       map[string]int64 `json:"cache_creation"`
		PromptCount   int64            `json:"promptTokenCount"`
		CachedCount   int64            `json:"cachedContentTokenCount"`
		Candidates    int64            `json:"candidatesTokenCount"`
		Thoughts      int64            `json:"thoughtsTokenCount"`
		Hit           int64            `json:"prompt_cache_hit_tokens"`
		Miss          int64            `json:"prompt_cache_miss_tokens"`
	}
}

// usage returns the tokens of a request as the documentation of Usage takes them from its response.
func (r pricedRequest) usage() providers.Usage {
	u := r.Usage
	switch shape, _, _ := strings.Cut(r.Shape, "-"); shape {
	case "anthropic":
		return providers.Usage{
			Input: u.Input, CachedInput: u.CacheRead, Output: u.Output, Batch: r.Batch,
			CacheWrite: u.Created["ephemeral_5m_input_tokens"], HourCacheWrite: u.Created["ephemeral_1h_input_tokens"],
		}
	case "gemini":
		return providers.Usage{Input: u.PromptCount - u.CachedCount, CachedInput: u.CachedCount, Output: u.Candidates + u.Thoughts, Batch: r.Batch}
	case "deepseek":
		return providers.Usage{Input: u.Miss, CachedInput: u.Hit, Output: u.Completion, Batch: r.Batch}
	}
	cached, written := u.Details["cached_tokens"]+u.PromptDetails["cached_tokens"], u.Details["cache_write_tokens"]
	return providers.Usage{Input: u.Input + u.Prompt - cached - written, CachedInput: cached, CacheWrite: written, Output: u.Output + u.Completion, Batch: r.Batch}
}

// cost returns what the page of a price charges for a request, in nanodollars.
func (r pricedRequest) cost(p *pricePage, model string) *big.Int {
	u := r.usage()
	long := p.over > 0 && p.prices[model]["long.input"] != nil && u.Input+u.CachedInput+u.CacheWrite+u.HourCacheWrite > p.over
	sum := new(big.Rat)
	for role, tokens := range map[string]int64{
		"input": u.Input, "cached_input": u.CachedInput, "cache_write": u.CacheWrite, "hour_cache_write": u.HourCacheWrite, "output": u.Output,
	} {
		millions := big.NewRat(tokens, 1_000_000)
		sum.Add(sum, millions.Mul(millions, p.dollars(model, role, long, r.Batch)))
	}
	sum.Mul(sum, big.NewRat(1_000_000_000, 1))
	up := new(big.Int).Add(sum.Num(), new(big.Int).Sub(sum.Denom(), big.NewInt(1)))
	return up.Div(up, sum.Denom())
}

// Requests cost what the pages of their models charge for what their responses report.
func TestRequestsCostWhatPagesCharge(t *testing.T) {
	text, err := os.ReadFile("testdata/prices/usages.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Sources  map[string]string
		Requests []pricedRequest
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	pages, list := pricePages(t), providers.Prices()
	batches, long, sum, want := 0, 0, new(big.Int), new(big.Int)
	for i, r := range file.Requests {
		price, ok := list.Find(r.API, r.Model)
		page, model := pageOf(pages, price.Page, price.Day, price.Model)
		if !ok || page == nil || file.Sources[r.Shape] == "" {
			t.Fatalf("request %d has no price, page or source: %+v", i, r)
		}
		got, cost := price.Nanodollars(r.usage()), r.cost(page, model)
		if big.NewInt(got).Cmp(cost) != 0 {
			t.Errorf("request %d costs %d nanodollars, want %d: %+v", i, got, cost, r)
		}
		sum.Add(sum, big.NewInt(got))
		want.Add(want, cost)
		if r.Batch {
			batches++
		}
		if in := r.usage(); price.Long.Over > 0 && in.Input+in.CachedInput+in.CacheWrite+in.HourCacheWrite > price.Long.Over {
			long++
		}
	}
	if sum.Cmp(want) != 0 || len(file.Requests) < 60 || batches < 20 || long < 10 {
		t.Errorf("%d requests, %d of them batches and %d long, cost %d, want %d", len(file.Requests), batches, long, sum, want)
	}
}

// FuzzNanodollars compares the costs of requests with sums of fractions.
func FuzzNanodollars(f *testing.F) {
	f.Add(uint32(2_500_000), uint32(1_250_000), uint32(0), uint32(10_000_000), uint32(7), uint8(50), uint64(86), uint64(1_920), uint64(4), uint64(300), true)
	f.Add(uint32(1), uint32(1), uint32(1), uint32(1), uint32(1), uint8(1), uint64(1)<<39, uint64(1), uint64(0), uint64(1), true)
	f.Fuzz(func(t *testing.T, in, cached, write, out, request uint32, batch uint8, nIn, nCached, nWrite, nOut uint64, isBatch bool) {
		const most = 1 << 40
		p := providers.Price{Input: int64(in), CachedInput: int64(cached) + 1, CacheWrite: int64(write) + 1, Output: int64(out), Request: int64(request), Batch: int64(batch%100) + 1}
		u := providers.Usage{Input: int64(nIn % most), CachedInput: int64(nCached % most), CacheWrite: int64(nWrite % most), Output: int64(nOut % most), Batch: isBatch}
		sum := new(big.Rat).SetInt64(p.Request)
		for _, term := range [][2]int64{{p.Input, u.Input}, {p.CachedInput, u.CachedInput}, {p.CacheWrite, u.CacheWrite}, {p.Output, u.Output}} {
			sum.Add(sum, new(big.Rat).Mul(big.NewRat(term[0], 1), big.NewRat(term[1], 1)))
		}
		if isBatch {
			sum.Mul(sum, big.NewRat(p.Batch, 100))
		}
		sum.Quo(sum, big.NewRat(1_000, 1))
		got := new(big.Rat).SetInt64(p.Nanodollars(u))
		if off := got.Sub(got, sum); sum.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) < 0 && (off.Sign() < 0 || off.Cmp(big.NewRat(1, 1)) >= 0) {
			t.Errorf("%+v of %+v is %s above the sum, want 0 to 1", u, p, off)
		}
	})
}

// FuzzReadPrices reads hostile files. What it accepts can be found, and costs something that is not
// negative.
func FuzzReadPrices(f *testing.F) {
	f.Add(`[{"api":"a","model":"m|n*","input":"2.50","cached_input":"0","output":"1","request":"0.1","batch":50,"long":{"over":1,"input":"1","output":"2"},"day":"2026-11-29"}]`)
	f.Add(`[{"api":"a","model":"[","input":"` + strings.Repeat("9", 41) + `"}] x`)
	f.Add(`[null,{"api":"a","model":"\\","request":"."}]`)
	f.Fuzz(func(t *testing.T, text string) {
		l, err := providers.ReadPrices(strings.NewReader(text))
		if err != nil && l != nil {
			t.Errorf("%q: prices with %v", text, err)
		}
		for _, p := range l {
			for name := range strings.SplitSeq(p.Model, "|") {
				if strings.ContainsAny(name, `*?[\`) {
					continue
				}
				if found, ok := l.Find(p.API, name); !ok || found != p {
					t.Errorf("%q: Find(%q, %q) is %+v, want %+v", text, p.API, name, found, p)
				}
			}
			if n := p.Nanodollars(providers.Usage{Input: 1 << 40, CachedInput: 3, CacheWrite: 5, Output: 1 << 40}); n < 0 {
				t.Errorf("%q: %+v costs %d", text, p, n)
			}
		}
	})
}

func ExamplePriceList_Find() {
	price, ok := providers.Prices().Find("openai", "gpt-4o-2024-08-06")
	fmt.Println(ok, price.Nanodollars(providers.Usage{Input: 86, CachedInput: 1_920, Output: 300}))
	// Output: true 5615000
}

func ExampleReadPrices() {
	prices, err := providers.ReadPrices(strings.NewReader(`[
		{"api": "openai", "model": "gpt-4o*", "input": "2.00", "output": "8.00", "batch": 50},
		{"api": "api.example.com", "model": "*", "request": "0.004"}
	]`))
	if err != nil {
		fmt.Println(err)
	}
	gpt, _ := prices.Find("openai", "gpt-4o-mini")
	search, _ := prices.Find("api.example.com", "any")
	fmt.Println(gpt.Nanodollars(providers.Usage{Input: 1_000, Output: 100, Batch: true}), search.Nanodollars(providers.Usage{}))
	// Output: 1400000 4000000
}
