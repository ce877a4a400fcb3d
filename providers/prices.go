package providers

import (
	"bytes"
	"cmp"
	_ "embed" // of the listed prices
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Price is what the requests of a model cost, as a page of its provider says. Prices are in
// picodollars, of which a dollar has 10^12: $1.25 per million tokens are 1,250,000 a token.
//
// A Price contains the tokens of text. It does not contain what some providers charge in other ways: calls of hosted tools and searches, the hours that a cache is kept, images, audio and
// video, surcharges of regions, faster or slower service tiers, taxes and discounts of an account.
type Price struct {
	// API is the Name of the Provider: "openai", "anthropic", "gemini", "azureopenai", "bedrock", or
	// the host of [OpenAICompatible], such as "api.mistral.ai".
	API string

	// Model is a pattern of the names of models, as in [Models]: "gpt-4o|gpt-4o-2024-08-06".
	Model string

	// Input and Output are the prices of a token that a model reads and of one that it writes. The
	// tokens that it thinks in are written.
	Input, Output int64

	// CachedInput is the price of a token of input that a cache had. If zero, Input. If it costs
	// nothing, Free.
	CachedInput int64

	// CacheWrite is the price of a token of input that is also written to a cache. If zero, Input. If
	// it costs nothing, Free.
	CacheWrite int64

	// HourCacheWrite is the price of a token that is written to a cache for an hour, where that costs
	// more than CacheWrite. If zero, CacheWrite. If it costs nothing, Free.
	HourCacheWrite int64

	// Request is the price of a request, beside that of its tokens.
	Request int64

	// Batch is the percentage of these prices that a request of the provider's batch API costs. If
	// zero, 100.
	Batch int64

	// BatchCachedInput is the price of a token that a cache had in a request of the batch API, if that
	// isn't the percentage of CachedInput. If zero, it is.
	BatchCachedInput int64

	// Long are the prices of requests with long input. If zero, they cost the same.
	Long LongPrice

	// Page is the address of the provider's page. Day is the day of what was read of it, such as
	// "2026-11-29": of the page, or of a copy of it.
	Page, Day string
}

// A LongPrice is what the tokens of a request cost instead, all of them, if its input is long. Its
// prices are picodollars a token, and zero means the same as in a [Price].
type LongPrice struct {
	// Over is how many tokens of input, cached or not, are not long yet. If zero, no input is long.
	Over int64

	Input, CachedInput, BatchCachedInput, CacheWrite, HourCacheWrite, Output int64
}

// Free is the CachedInput, BatchCachedInput, CacheWrite or HourCacheWrite of tokens that cost nothing.
const Free int64 = -1

// A Usage contains the numbers of tokens that the response of a request reports. Each token counts in
// one of them only. Where an API reports cached tokens as a part of its input, subtract them:
//
//	OpenAI     Input is input_tokens or prompt_tokens minus the cached_tokens and cache_write_tokens
//	           of its details, which are CachedInput and CacheWrite. Also most APIs in its protocol.
//	Anthropic  Input is input_tokens as it is, CachedInput cache_read_input_tokens, and of
//	           cache_creation CacheWrite is ephemeral_5m_input_tokens and HourCacheWrite
//	           ephemeral_1h_input_tokens.
//	Gemini     Input is promptTokenCount minus cachedContentTokenCount, which is CachedInput. Output
//	           is the sum of candidatesTokenCount and thoughtsTokenCount.
//	DeepSeek   Input is prompt_cache_miss_tokens, and CachedInput prompt_cache_hit_tokens.
type Usage struct {
	Input       int64 // tokens that are read, and neither come from a cache nor go to one
	CachedInput int64 // tokens that are read from a cache
	CacheWrite  int64 // tokens that are read and written to a cache, but for those of HourCacheWrite
	Output      int64 // tokens that are written, with those that the model thinks in

	HourCacheWrite int64 // tokens that are read and written to a cache for an hour

	Batch bool // whether the request is of the provider's batch API
}

// The largest numbers with which Nanodollars counts. The products of a request fit in 128 bits together.
const (
	maxPrice  = 1_000_000_000_000_000 // picodollars: $1,000 a token or a request
	maxTokens = 1 << 40
)

// Nanodollars returns the cost of a request in billionths of a dollar. The sum is exact: only that of the
// whole request, after the percentage of a batch, is rounded, up to the next nanodollar. So 1,001 tokens
// of $0.0375 per million, which are 37,537.5 nanodollars, cost 37,538.
//
// Negative numbers of tokens count as none, and more than 2^40 as 2^40. The result is never negative.
// It is at most math.MaxInt64.
func (p Price) Nanodollars(u Usage) int64 {
	rates, percent := p.rates(u), int64(100)
	cached, cachedPercent := cmp.Or(rates.CachedInput, rates.Input), int64(100)
	if u.Batch && p.Batch > 0 {
		percent = min(p.Batch, 100)
		cachedPercent = percent
	}
	if u.Batch && rates.BatchCachedInput != 0 {
		cached, cachedPercent = rates.BatchCachedInput, 100
	}
	write := cmp.Or(rates.CacheWrite, rates.Input)
	var sum centiPicodollars
	sum.add(1, p.Request, percent)
	sum.add(u.Input, rates.Input, percent)
	sum.add(u.CachedInput, cached, cachedPercent)
	sum.add(u.CacheWrite, write, percent)
	sum.add(u.HourCacheWrite, cmp.Or(rates.HourCacheWrite, write), percent)
	sum.add(u.Output, rates.Output, percent)
	return sum.nanodollars()
}

// rates returns the prices of the tokens of a request.
func (p Price) rates(u Usage) LongPrice {
	input := counted(u.Input) + counted(u.CachedInput) + counted(u.CacheWrite) + counted(u.HourCacheWrite)
	if p.Long.Over > 0 && input > p.Long.Over {
		return p.Long
	}
	return LongPrice{
		Input: p.Input, CachedInput: p.CachedInput, BatchCachedInput: p.BatchCachedInput,
		CacheWrite: p.CacheWrite, HourCacheWrite: p.HourCacheWrite, Output: p.Output,
	}
}

// counted returns a number of tokens as Nanodollars counts it.
func counted(tokens int64) int64 { return max(0, min(tokens, maxTokens)) }

// centiPicodollars are a sum of hundredths of a picodollar, in 128 bits.
type centiPicodollars struct{ hi, lo uint64 }

// add adds a percentage of the price of tokens.
func (s *centiPicodollars) add(tokens, price, percent int64) {
	hi, lo := bits.Mul64(uint64(counted(tokens)), uint64(max(0, min(price, maxPrice))*percent))
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi += hi + carry
}

// nanodollars returns the sum, rounded up.
func (s centiPicodollars) nanodollars() int64 {
	const each = 100 * 1_000
	lo, carry := bits.Add64(s.lo, each-1, 0)
	hi := s.hi + carry
	if hi >= each {
		return math.MaxInt64
	}
	n, _ := bits.Div64(hi, lo, each)
	return int64(min(n, math.MaxInt64))
}

// A PriceList is the prices of models. It may contain several APIs.
type PriceList []Price

// Find returns the price of a model: of the prices of an API, the one whose pattern matches the name and
// has the most other characters, as in [Models]. If two prices have the same pattern, the first one
// holds, so that your own prices go in front of the listed ones:
//
//	prices := append(providers.PriceList{{API: "openai", Model: "gpt-4o", Input: 2_000_000, Output: 8_000_000}}, providers.Prices()...)
//
// A name that no pattern matches has no price. A malformed pattern, which ReadPrices reports, matches none.
func (l PriceList) Find(api, model string) (price Price, found bool) {
	closest := -1
	for _, p := range l {
		if p.API != api {
			continue
		}
		for one := range strings.SplitSeq(p.Model, "|") {
			if n := fit(one, model); n > closest {
				price, found, closest = p, true, n
			}
		}
	}
	return price, found
}

//go:embed prices.json
var listedPrices []byte

var readListed = sync.OnceValues(func() (PriceList, error) { return ReadPrices(bytes.NewReader(listedPrices)) })

// Prices returns the listed prices of 55 models of OpenAI, Anthropic, Gemini, xAI, DeepSeek and Mistral.
// Each names the page of its provider and the day on which the page was read.
//
// Providers change prices, and a model that is newer than the list has none. Compare the Page where the
// Day is long ago. To replace prices, put your own in front of the list, as in [PriceList.Find], or read
// a file of your own with [ReadPrices]. The caller may change the list that Prices returns.
//
// DeepSeek has the prices of its peak hours; others cost half. A model whose page ends its price on a
// certain day, such as gemini-3.8-flash, is not listed. Neither are the models of Azure OpenAI and of
// Bedrock: their pages show prices for one region at a time, and a deployment may have any name.
func Prices() PriceList {
	l, err := readListed()
	if err != nil {
		panic(err) // the file is part of the program, and a test reads it
	}
	return slices.Clone(l)
}

// A priceEntry is a Price in a file.
type priceEntry struct {
	API   string `json:"api"`
	Model string `json:"model"`
	rateEntry
	Request *string    `json:"request"`
	Batch   *int64     `json:"batch"`
	Long    *longEntry `json:"long"`
	Page    string     `json:"page"`
	Day     string     `json:"day"`
}

// A longEntry is a LongPrice in a file.
type longEntry struct {
	Over int64 `json:"over"`
	rateEntry
}

// A rateEntry is the prices of tokens in a file.
type rateEntry struct {
	Input            *string `json:"input"`
	CachedInput      *string `json:"cached_input"`
	BatchCachedInput *string `json:"batch_cached_input"`
	CacheWrite       *string `json:"cache_write"`
	HourCacheWrite   *string `json:"hour_cache_write"`
	Output           *string `json:"output"`
}

// ReadPrices reads prices from JSON, in the format of the listed ones:
//
//	[{
//		"api": "openai", "model": "gpt-4o|gpt-4o-2024-08-06",
//		"input": "2.50", "cached_input": "1.25", "output": "10.00", "batch": 50,
//		"page": "https://developers.openai.com/api/docs/pricing", "day": "2026-11-29"
//	}]
//
// Prices are texts with a decimal number of dollars, which is read exactly: "request" for a request, and
// all others for a million tokens. An entry has at least "api", "model", and either both "input" and
// "output" or a "request". "batch" is a percentage. "cached_input", "cache_write", "hour_cache_write" and
// "batch_cached_input" may be absent, and what then holds is said at the fields of [Price]. If one of them
// is "0", such tokens cost nothing. "long" contains the prices of requests with more than "over" tokens of
// input:
//
//	"long": {"over": 200000, "input": "2.50", "cached_input": "0.25", "output": "15.00"}
//
// The error names each field that is not valid, with its entry, and no prices are returned then.
func ReadPrices(r io.Reader) (PriceList, error) {
	var entries []priceEntry
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&entries); err != nil {
		return nil, fmt.Errorf("providers: prices: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("providers: prices: there is more after the list: write one list")
	}
	var errs []error
	var l PriceList
	taken := make(map[[2]string]int) // the entry by the API and a pattern
	for i, e := range entries {
		p, problems := e.price()
		for one := range strings.SplitSeq(e.Model, "|") {
			first, twice := taken[[2]string{e.API, one}]
			if twice {
				problems = append(problems, fmt.Errorf("model %q is also in entry %d: remove it from one of them", one, first))
			}
			taken[[2]string{e.API, one}] = i + 1
		}
		for _, err := range problems {
			errs = append(errs, fmt.Errorf("providers: prices: entry %d (%s %q): %w", i+1, e.API, e.Model, err))
		}
		l = append(l, p)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return l, nil
}

// price returns the Price of an entry and what is not valid.
func (e priceEntry) price() (Price, []error) {
	r := &dollarReader{}
	if e.API == "" {
		r.fail(`api is missing: write the Name of the provider, such as "openai"`)
	}
	for one := range strings.SplitSeq(e.Model, "|") {
		if !isPattern(one) {
			r.fail("model %q is not a pattern of names: write it as for path.Match", one)
		}
	}
	rates := e.rates(r, "", e.Request == nil)
	p := Price{
		API: e.API, Model: e.Model, Page: e.Page, Day: e.Day,
		Input: rates.Input, CachedInput: rates.CachedInput, BatchCachedInput: rates.BatchCachedInput,
		CacheWrite: rates.CacheWrite, HourCacheWrite: rates.HourCacheWrite, Output: rates.Output,
		Request: r.picodollars("request", e.Request, 1),
	}
	if e.Batch != nil {
		p.Batch = *e.Batch
		if p.Batch < 1 || p.Batch > 100 {
			r.fail("batch %d is not a percentage: write 1 to 100", p.Batch)
		}
	}
	if e.Long != nil {
		p.Long = e.Long.rates(r, "long.", true)
		p.Long.Over = e.Long.Over
		if p.Long.Over < 1 {
			r.fail("long.over %d is not a number of tokens: write 1 or more", p.Long.Over)
		}
	}
	if _, err := time.Parse(time.DateOnly, e.Day); err != nil && e.Day != "" {
		r.fail(`day %q is not a date: write it as "2026-11-29"`, e.Day)
	}
	return p, r.errs
}

// rates returns the prices of tokens. Their names in errors begin with those of what has them.
func (e rateEntry) rates(r *dollarReader, of string, required bool) LongPrice {
	if required && e.Input == nil {
		r.fail(`%sinput is missing: write the dollars per million tokens, such as "2.50"`, of)
	}
	if required && e.Output == nil {
		r.fail(`%soutput is missing: write the dollars per million tokens, or "0" if there is no output`, of)
	}
	const million = 1_000_000
	cached := func(name string, text *string) int64 {
		n := r.picodollars(of+name, text, million)
		if text != nil && n == 0 {
			return Free
		}
		return n
	}
	return LongPrice{
		Input:            r.picodollars(of+"input", e.Input, million),
		CachedInput:      cached("cached_input", e.CachedInput),
		BatchCachedInput: cached("batch_cached_input", e.BatchCachedInput),
		CacheWrite:       cached("cache_write", e.CacheWrite),
		HourCacheWrite:   cached("hour_cache_write", e.HourCacheWrite),
		Output:           r.picodollars(of+"output", e.Output, million),
	}
}

// A dollarReader reads dollars and collects what is not valid.
type dollarReader struct{ errs []error }

func (r *dollarReader) fail(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

// picodollars returns the price of one of so many, or 0 if the text is absent or not valid.
func (r *dollarReader) picodollars(name string, text *string, many int64) int64 {
	if text == nil {
		return 0
	}
	s := *text
	dollars, ok := new(big.Rat), len(s) <= 40 && strings.Trim(s, "0123456789.") == ""
	if ok {
		_, ok = dollars.SetString(s)
	}
	each := dollars.Mul(dollars, big.NewRat(1_000_000_000_000, many))
	switch {
	case !ok:
		r.fail(`%s %.40q is not a number of dollars: write it as "2.50"`, name, s)
	case !each.IsInt():
		r.fail("%s %q has a part of a picodollar: write at most %d decimals", name, s, len(strconv.FormatInt(1_000_000_000_000/many, 10))-1)
	case each.Cmp(big.NewRat(maxPrice, 1)) > 0:
		r.fail("%s %q is more than $1,000 for one: write the dollars for %d", name, s, many)
	default:
		return each.Num().Int64()
	}
	return 0
}
