package providers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/outcome"
	"github.com/apithrottle/throttle/internal/prompt"
	"github.com/apithrottle/throttle/store"
)

// ErrNoPrice is the error of a request to a model that has no price. It was not sent, and nothing was
// charged. The error's text names the model, and how to add its price.
var ErrNoPrice = errors.New("providers: no price is known")

// A Spending charges requests what they cost in dollars. One Spending, with one budget, may be that of
// several APIs:
//
//	policy, err := throttle.ParsePolicy("spending", "$500/month | alert_at=80,100")
//	…
//	budget, err := throttle.New(policy, store)
//	…
//	t, err := providers.OpenAI(500, 30_000).Transport(store)
//	…
//	spending := &providers.Spending{Limiter: budget, Prices: providers.Prices()}
//	err = spending.Limit(t, "openai")
//
// Set the fields before the first call of Limit. A Spending is then safe for concurrent use.
type Spending struct {
	// Limiter is the budget, around the quotas of the Transport. Its tiers count Nanodollars and are
	// Estimated, as those are that ParsePolicy reads in dollars. If nil, the Transport has such tiers already: those of a Scope,
	// for example, in which each of its requests counts.
	Limiter *throttle.Limiter

	// Prices are the prices of models. If empty, Prices(). Put your own in front of those.
	Prices PriceList

	// Default is the price of models that have none in Prices. If nil, requests to them fail with
	// ErrNoPrice.
	Default *Price

	// Tokens counts the tokens of a text, as Provider.Tokens. If nil, TokensOf the model.
	Tokens func(text string) int64

	mu     sync.Mutex // guards all below
	output *outputs   // of all APIs; nil before the first call of Limit
	nested map[*throttle.Limiter]*throttle.Limiter
}

// Limit makes the requests of t, a Transport to an API, cost dollars. It changes the functions and the
// Profile of t, so call it before t is used, and after t has its quotas. The API is the name of a preset, or
// the host of [OpenAICompatible], as in Price.API.
//
// A request that a model answers is charged an estimate before it is sent: the tokens of its input, as for
// [OpenAI], and of the output that is expected after earlier answers, as for [Anthropic]. The response
// reports how many tokens it took, and they replace the estimate: input, input from a cache and for a cache,
// and output, each at its price. The budget can be exceeded only by the difference, for the requests in
// flight. If a response reports no usage, the estimate stays. This is so for streams of chat completions of
// OpenAI's protocol without stream_options.include_usage. A stream that is cut off costs what it has
// reported, and the expected output if it has reported none. A request that was refused, or that was not
// sent, costs nothing, and one without a response its estimate. So does a response in the background, whose usage
// comes later. Requests that no model reads, and those that t doesn't limit, cost nothing: batches too, whose
// results Charge takes, and forms with files, such as audio to transcribe.
//
// If the prices of an API are of requests alone, a request costs that of its path, such as
// "/v1/lookups/*": the path is what Price.Model matches.
//
// Flex processing of OpenAI has the prices of its batch API. Priority processing and Anthropic's fast mode
// need prices of their own, of models with "-priority" or "-fast" behind their names.
//
// Limit returns an error if an API has no price and there is no Default, if t has a Pool, a Meter or a
// ProfileFor, if the requests of t cost dollars already, or if neither t nor the Spending has a Limiter.
func (s *Spending) Limit(t *throttle.Transport, api string) error {
	find, err := s.finder(api)
	if err != nil {
		return err
	}
	if t.Pool != nil || t.Meter != nil || t.ProfileFor != nil {
		return fmt.Errorf("providers: Spending of %s: the Transport has a Pool, a Meter or a ProfileFor: limit the spending of a Transport around it, or of each API", api)
	}
	if s.Limiter == nil && t.Limiter == nil && t.Route == nil {
		return fmt.Errorf("providers: Spending of %s: there is no budget: set Limiter, or give the Transport one", api)
	}
	if t.Profile != nil && slices.ContainsFunc(t.Profile.Charges, func(c answers.Charge) bool { return c.Unit == usedInput[0] }) {
		return fmt.Errorf("providers: Spending of %s: the requests of the Transport cost dollars already: give one budget several tiers, such as $50/day + $500/month", api)
	}
	refuse, err := throttle.NewGroup(throttle.Policy{Name: "spending", Tiers: []throttle.Tier{noLimit}}, unpriced{}, throttle.GroupOptions{MaxKeys: 1})
	if err != nil {
		return err
	}
	b := &bill{
		Spending: s, api: api, find: find, perCall: s.perCall(api), refuse: refuse, inner: *t,
		bodies: prompt.Reader{Image: anthropicImage, Unknown: prompt.Cl100k}, output: s.outputs(),
	}
	if t.Profile != nil {
		b.profile = *t.Profile
	}
	b.profile.Charges = slices.Concat(b.profile.Charges, usageCharges(api))
	t.Route, t.Cost, t.Settle, t.Profile = b.route, b.cost, b.settle, &b.profile
	return nil
}

// outputs returns what is known of the length of answers.
func (s *Spending) outputs() *outputs {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.output == nil {
		s.output = newOutputs()
	}
	return s.output
}

// finder returns the function that returns the prices of models of an API.
func (s *Spending) finder(api string) (find func(model string) (Price, bool), err error) {
	list := s.pricesOf(api)
	if len(list) == 0 {
		return nil, fmt.Errorf("providers: Spending of %s: %w: add its prices to Prices, or set Default", api, ErrNoPrice)
	}
	if s.Default != nil {
		list = list[:len(list)-1]
	}
	return func(model string) (Price, bool) {
		p, ok := list.Find(api, model)
		if mode := dearMode[api]; mode != "" && strings.HasSuffix(model, mode) { // no pattern of all versions is of it
			ok = ok && strings.Contains(p.Model, mode)
		}
		if !ok && s.Default != nil {
			return *s.Default, true
		}
		return p, ok
	}, nil
}

// pricesOf returns the prices of an API, and then the Default.
func (s *Spending) pricesOf(api string) (all PriceList) {
	list := s.Prices
	if len(list) == 0 {
		list = Prices()
	}
	all = slices.DeleteFunc(slices.Clone(list), func(p Price) bool { return p.API != api })
	if s.Default != nil {
		all = append(all, *s.Default)
	}
	return all
}

// perCall reports whether the prices of an API are of requests alone.
func (s *Spending) perCall(api string) bool {
	all := s.pricesOf(api)
	return slices.ContainsFunc(all, func(p Price) bool { return p.Request > 0 }) &&
		!slices.ContainsFunc(all, func(p Price) bool { return p.Input > 0 || p.Output > 0 })
}

// Charge charges what has been used of a model and no response to a request has reported: the results of a
// batch, for example, with Usage.Batch. It returns the cost, in nanodollars, or ErrNoPrice if the model has
// no price. It charges more than is left of the budget, because the money is spent, and blocks only for the
// round trips of a shared store, and during a pause of the budget.
func (s *Spending) Charge(ctx context.Context, api, model string, used Usage) (nanodollars int64, err error) {
	find, err := s.finder(api)
	if err != nil {
		return 0, err
	}
	price, ok := find(model)
	if !ok {
		return 0, noPrice(api, model)
	}
	nanodollars = price.Nanodollars(used)
	outcome.Spent(ctx, nanodollars)
	if s.Limiter == nil {
		return nanodollars, nil
	}
	for left := min(nanodollars, algorithms.MaxDollars); left > 0 && err == nil; left -= algorithms.MaxLimit {
		err = s.take(ctx, min(left, algorithms.MaxLimit))
	}
	return nanodollars, err
}

// take charges what has been spent to the budget, at most MaxLimit.
func (s *Spending) take(ctx context.Context, nanodollars int64) error {
	p, err := s.Limiter.Acquire(ctx, throttle.Cost{throttle.Nanodollars: 0})
	if err != nil {
		return err
	}
	defer p.Release()
	return p.Settle(throttle.Cost{throttle.Nanodollars: nanodollars})
}

func noPrice(api, model string) error {
	return fmt.Errorf("%w: %s has none for %q: add a Price with this API and Model to Spending.Prices, or set Spending.Default", ErrNoPrice, api, model)
}

// unpriced is a store that keeps no quota: its Limiters refuse all requests with ErrNoPrice.
type unpriced struct{}

func (unpriced) Open(key string, _ *algorithms.Plan, _ func(store.Call)) (store.Quota, error) {
	of := strings.SplitN(key, "\x00", 3) // the policy, the API and the model
	return nil, noPrice(of[1], of[2])
}

// maxNested is the number of limiters inside the budget that are kept. Above it they are made again.
const maxNested = 1_000

// within returns a limiter inside the budget.
func (s *Spending) within(l *throttle.Limiter) *throttle.Limiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	nested := s.nested[l]
	if nested == nil {
		if s.nested == nil || len(s.nested) >= maxNested {
			s.nested = make(map[*throttle.Limiter]*throttle.Limiter)
		}
		nested = l.Within(s.Limiter)
		s.nested[l] = nested
	}
	return nested
}

// A bill is what the requests of one Transport cost.
type bill struct {
	*Spending
	api     string
	find    func(model string) (Price, bool)
	perCall bool               // the prices are of requests alone
	refuse  *throttle.Group    // of models without a price, by API and model
	inner   throttle.Transport // as it was
	profile answers.Profile    // with the charges of the usage
	bodies  prompt.Reader
	output  *outputs
}

// route returns the limiter of a request, inside the budget.
func (b *bill) route(req *http.Request) *throttle.Limiter {
	l := b.inner.Limiter
	if b.inner.Route != nil {
		l = b.inner.Route(req)
	}
	alone := b.inner.Route == nil && l == nil // t limits nothing
	if l == nil && !alone {
		return nil
	}
	o, ok := b.order(req, b.bodies.Read)
	switch {
	case !ok:
		return b.refuse.For(b.api + "\x00" + o.model)
	case o.isFree || b.Limiter == nil:
		return l
	case alone:
		return b.Limiter
	}
	return b.within(l)
}

// cost returns the estimated cost of a request.
func (b *bill) cost(req *http.Request) throttle.Cost {
	cost := throttle.Cost{}
	if b.inner.Cost != nil {
		maps.Copy(cost, b.inner.Cost(req))
	}
	if o, _ := b.order(req, b.bodies.Peek); !o.isFree || b.Limiter == nil {
		cost[throttle.Nanodollars] = o.estimate()
	}
	return cost
}

// settle returns the function that receives the usage which the response to a request reports.
func (b *bill) settle(req *http.Request) func(throttle.Cost) throttle.Cost {
	var inner func(throttle.Cost) throttle.Cost
	if b.inner.Settle != nil {
		inner = b.inner.Settle(req)
	}
	o, _ := b.order(req, b.bodies.Take)
	if o.isFree {
		return inner
	}
	learn := b.output.begin(o.question)
	return func(reported throttle.Cost) throttle.Cost {
		n, output := o.actual(reported)
		learn(output, output > 0)
		actual := maps.Clone(reported)
		if inner != nil {
			actual = maps.Clone(inner(reported))
		}
		if actual == nil {
			actual = throttle.Cost{}
		}
		actual[throttle.Nanodollars] = n
		outcome.Spent(req.Context(), n)
		return actual
	}
}

// An order is a request to a model, before it is answered.
type order struct {
	question
	price    Price
	expected Usage
	isFree   bool // no model reads the request
}

// priorityMode follows the name of a model in priority processing, and flex processing has the prices of
// a batch: https://developers.openai.com/api/docs/guides/flex-processing, read on 2026-11-29.
const priorityMode = "-priority"

// dearMode has the modes that need prices of their own. Models of other APIs may have such names.
var dearMode = map[string]string{"openai": priorityMode, "anthropic": fastMode}

// writesNothing matches the paths and models of requests without output.
var writesNothing = regexp.MustCompile(`embed|rerank|moderation`)

// startsNoModel matches the paths of requests that name a model and do not run it: they count tokens, or begin
// a training, which is paid in other ways.
var startsNoModel = regexp.MustCompile(`/(input_tokens|count_tokens|fine_tuning/jobs)$`)

// order returns the order of a request. It returns false if the model has no price.
func (b *bill) order(req *http.Request, read func(*http.Request) prompt.Prompt) (o order, ok bool) {
	if b.perCall {
		o.model = req.URL.Path
		o.price, ok = b.find(o.model)
		return o, ok
	}
	p, counts := b.prompt(&o.question, prompt.WithTokens(req, b.Tokens), read)
	if o.isFree = !counts; o.isFree {
		return o, true
	}
	o.expected.Input = p.Tokens
	if b.api == "openai" {
		o.expected.Batch = p.Fields["service_tier"] == "flex"
		if p.Fields["service_tier"] == "priority" {
			o.model += priorityMode
		}
	}
	if !writesNothing.MatchString(req.URL.Path + o.model) {
		o.most = max(maxOutput(p), p.Number(otherMaxima...))
		o.expected.Output = b.output.expect(o.question)
	}
	o.price, ok = b.find(o.model)
	return o, ok
}

// otherMaxima are the fields of the most output in other protocols than OpenAI's and Anthropic's.
var otherMaxima = []string{"generationConfig.maxOutputTokens", "max_gen_len", "inferenceConfig.maxTokens", "inferenceConfig.max_new_tokens", "textGenerationConfig.maxTokenCount"}

// prompt sets the model of a question, and returns its prompt and whether a model reads it.
func (b *bill) prompt(q *question, req *http.Request, read func(*http.Request) prompt.Prompt) (p prompt.Prompt, counts bool) {
	if req.Method != http.MethodPost || startsNoModel.MatchString(req.URL.Path) {
		return p, false
	}
	p = read(req)
	same := func(*http.Request) prompt.Prompt { return p }
	switch b.api {
	case "anthropic":
		model, fast := modelOf(p)
		q.model, counts = model+fast, isMessage(req)
	case "gemini":
		q.model, counts = geminiModel(req, same)
	case "bedrock":
		q.model, counts = bedrockModel(req, same)
	case "azureopenai":
		q.model, counts = azureDeployment(req, same)
		_, q.model, _ = strings.Cut(q.model, "/")
	default:
		q.model, counts = p.Fields["model"], readsPrompt(req, p)
	}
	return p, counts
}

// estimate returns the nanodollars to reserve.
func (o *order) estimate() int64 {
	if o.isFree {
		return 0
	}
	return min(o.price.Nanodollars(o.expected), algorithms.MaxLimit)
}

// actual returns what a request has cost, by the usage that its response reports, and the tokens of output,
// 0 if they are not reported.
func (o *order) actual(reported throttle.Cost) (nanodollars, output int64) {
	input, reads := usedInput.most(reported)
	output, writes := usedOutput.most(reported)
	if !reads && !writes {
		if _, isZero := reported[throttle.Nanodollars]; isZero { // it was refused, or not sent
			return 0, 0
		}
		return o.estimate(), 0
	}
	used := o.expected
	if reads {
		tools, _ := toolInput.most(reported)
		cached, _ := cachedOfInput.most(reported)
		read, _ := readFromCache.most(reported)
		written, _ := writtenToCache.most(reported)
		part, _ := writtenOfInput.most(reported)
		used.HourCacheWrite, _ = writtenForAnHour.most(reported)
		input += tools
		// A gateway that reports the numbers of two protocols means the same tokens.
		used.Input, used.CachedInput, used.CacheWrite = input-cached-part, max(cached, read), max(written, part)-used.HourCacheWrite
	}
	if total, sums := usedTotal.most(reported); reads && sums { // with the tokens of thoughts, which the output may lack
		output, writes = max(output, total-input), true
	}
	if writes {
		used.Output = output
	}
	return min(o.price.Nanodollars(used), algorithms.MaxLimit), output
}

// Places are where responses of several protocols report one number of a usage: paths in the body, and
// headers. They are units of the Charges of a Profile, which no tier counts.
type places []string

// The places of the protocols of OpenAI (chat completions, and responses), Anthropic, Gemini (its own, and
// interactions) and Bedrock (Converse, and streams), read on 2026-11-29:
// https://developers.openai.com/api/docs/guides/prompt-caching,
// https://platform.claude.com/docs/en/build-with-claude/prompt-caching,
// https://ai.google.dev/api/generate-content#UsageMetadata, and
// https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_TokenUsage.html. The cached input of
// OpenAI and Gemini is a part of the input, and that of the others is not. The totals have all input, but
// not what Anthropic's and Bedrock's caches had.
var (
	usedInput = places{
		"usage.prompt_tokens", "usage.input_tokens", "message.usage.input_tokens", "response.usage.input_tokens",
		"usageMetadata.promptTokenCount", "*.usageMetadata.promptTokenCount", "usage.total_input_tokens", "interaction.usage.total_input_tokens",
		"usage.inputTokens", "amazon-bedrock-invocationMetrics.inputTokenCount", "X-Amzn-Bedrock-Input-Token-Count",
	}
	toolInput  = places{"usageMetadata.toolUsePromptTokenCount", "*.usageMetadata.toolUsePromptTokenCount"}
	usedOutput = places{ // the message_start of a stream of Anthropic has the first token alone
		"usage.completion_tokens", "usage.output_tokens", "response.usage.output_tokens",
		"usageMetadata.candidatesTokenCount", "*.usageMetadata.candidatesTokenCount", "usage.total_output_tokens", "interaction.usage.total_output_tokens",
		"usage.outputTokens", "amazon-bedrock-invocationMetrics.outputTokenCount", "X-Amzn-Bedrock-Output-Token-Count",
	}
	usedTotal = places{
		"usage.total_tokens", "response.usage.total_tokens", "usageMetadata.totalTokenCount", "*.usageMetadata.totalTokenCount", "interaction.usage.total_tokens",
	}
	cachedOfInput = places{
		"usage.prompt_tokens_details.cached_tokens", "usage.input_tokens_details.cached_tokens", "response.usage.input_tokens_details.cached_tokens",
		"usage.prompt_cache_hit_tokens", // DeepSeek: https://api-docs.deepseek.com/guides/kv_cache
		"usageMetadata.cachedContentTokenCount", "*.usageMetadata.cachedContentTokenCount", "usage.total_cached_tokens", "interaction.usage.total_cached_tokens",
	}
	readFromCache = places{
		"usage.cache_read_input_tokens", "message.usage.cache_read_input_tokens",
		"usage.cacheReadInputTokens", "amazon-bedrock-invocationMetrics.cacheReadInputTokenCount", "X-Amzn-Bedrock-Cache-Read-Input-Token-Count",
	}
	writtenToCache = places{
		"usage.cache_creation_input_tokens", "message.usage.cache_creation_input_tokens",
		"usage.cacheWriteInputTokens", "amazon-bedrock-invocationMetrics.cacheWriteInputTokenCount", "X-Amzn-Bedrock-Cache-Write-Input-Token-Count",
	}
	writtenOfInput = places{ // of OpenAI since GPT-5.6, a part of the input: https://github.com/coder/xum/issues/3705
		"usage.prompt_tokens_details.cache_write_tokens", "usage.input_tokens_details.cache_write_tokens", "response.usage.input_tokens_details.cache_write_tokens",
	}
	writtenForAnHour = places{ // a part of writtenToCache
		"usage.cache_creation.ephemeral_1h_input_tokens", "message.usage.cache_creation.ephemeral_1h_input_tokens",
	}
)

// most returns the largest number that a response reports in any of the places. A gateway may report it in
// several of them.
func (all places) most(reported throttle.Cost) (n int64, known bool) {
	for _, place := range all {
		at, has := reported[place]
		n, known = max(n, at), known || has
	}
	return n, known
}

// usageCharges returns the charges of the places where responses of an API may report a usage. All APIs may
// speak the protocols of OpenAI, and of the others those that aren't OpenAI's or Gemini's that of Anthropic.
func usageCharges(api string) (charges []answers.Charge) {
	for _, place := range slices.Concat(usedInput, toolInput, usedOutput, usedTotal, cachedOfInput, readFromCache, writtenToCache, writtenOfInput, writtenForAnHour) {
		switch {
		case ofAnthropic.MatchString(place) && (api == "openai" || api == "gemini"),
			ofGemini.MatchString(place) && api != "gemini", ofBedrock.MatchString(place) && api != "bedrock":
			continue
		}
		field := answers.Field{Path: place}
		if strings.HasPrefix(place, "X-") {
			field = answers.Field{Header: place}
		}
		charges = append(charges, answers.Charge{Unit: place, Field: field})
	}
	return charges
}

// The places of one protocol alone.
var (
	ofAnthropic = regexp.MustCompile(`^message\.|^usage\.cache_`)
	ofGemini    = regexp.MustCompile(`^(\*\.)?usageMetadata\.|^interaction\.|^usage\.total_(input|output|cached)_`)
	ofBedrock   = regexp.MustCompile(`^X-|^amazon-|^usage\.[a-z]+[A-Z]`)
)
