package providers

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
	"github.com/apithrottle/throttle/internal/streamrules"
)

var openAICompatiblePreset = Preset{
	Name: "openai-compatible", Constructor: "OpenAICompatible(host string, requests, tokens int64)", kind: "Language models", Models: "model",
	Parameters: []Parameter{
		{Name: "host", About: "host of the API", Text: true, Example: "api.groq.com", check: isHost},
		{Name: "requests", About: "requests a minute of a model; 0: not limited", Default: "0", Example: "30"},
		{Name: "tokens", About: "tokens a minute of a model; 0: not limited", Default: "0", Example: "8000"},
	},
	call: func(a arguments) Provider {
		return OpenAICompatible(a["host"], a.number("requests"), a.number("tokens"))
	},
	known: compatibleExamples,
}

// compatibleHosts are the hosts that differ from OpenAI, with the limits of usual accounts.
var compatibleHosts = []struct {
	host             string
	requests, tokens string
	page             string
	differs          func(*compatible)
}{
	{"api.groq.com", "30", "8000", "https://console.groq.com/docs/rate-limits", (*compatible).groq},
	{"openrouter.ai", "0", "0", "https://openrouter.ai/docs/api-reference/limits", (*compatible).openRouter},
	{"api.mistral.ai", "60", "500000", "https://docs.mistral.ai/deployment/laplateforme/tier", (*compatible).mistral},
	{"api.eu.mistral.ai", "60", "500000", "https://docs.mistral.ai/deployment/laplateforme/tier", (*compatible).mistral},
	{"api.x.ai", "480", "2000000", "https://docs.x.ai/docs/models", (*compatible).xAI},
	{"api.deepseek.com", "0", "0", "https://api-docs.deepseek.com/quick_start/rate_limit", (*compatible).deepSeek},
	{"api.together.ai", "0", "0", "https://docs.together.ai/docs/rate-limits", (*compatible).together},
	{"api.together.xyz", "0", "0", "https://docs.together.ai/docs/rate-limits", (*compatible).together},
	{"api.cerebras.ai", "30", "60000", "https://inference-docs.cerebras.ai/support/rate-limits", (*compatible).cerebras},
}

func compatibleExamples() (all []map[string]string) {
	for _, c := range compatibleHosts {
		all = append(all, map[string]string{"host": c.host, "requests": c.requests, "tokens": c.tokens})
	}
	return all
}

// OpenAICompatible is the API of a host that speaks OpenAI's protocol, with the limits of each
// model there. The arguments are the requests and tokens that the host allows a model per minute.
// If the host documents no such limit, or you don't know it, 0 leaves the limit out: a model then
// waits after refusals only. Only POST requests are limited.
//
//	client, err := providers.OpenAICompatible("api.groq.com", 30, 8_000).Client(nil)
//
// A request is charged an estimate in tokens, as for [OpenAI], but for its text and its highest
// output together. Where headers of Groq (tokens), Mistral and Cerebras (requests) name other limits of a
// minute, these hold, up to ten times the arguments. These hosts differ from OpenAI:
//
//	api.groq.com      Headers report the requests of a day: add a tier of throttle.PerDay. The wait
//	                  may stand in the message alone.
//	openrouter.ai     Models whose names end in ":free" have 20 requests a minute and 50 a day in
//	                  UTC together, in the scope "free", or 1,000 a day after a purchase of 10
//	                  credits. Others have no limit. Waits end at a time in milliseconds, and those
//	                  for the day that name none at midnight. A busy upstream provider that names
//	                  no wait pauses nothing.
//	api.mistral.ai    Headers report the minute. The tokens that a response reports replace the
//	                  estimate. max_tokens plays no part, so the output is estimated from earlier
//	                  answers of the model to requests with the same max_tokens, as for
//	                  [Anthropic]. A full model, and one outside the plan, pause nothing. Also
//	                  api.eu.mistral.ai.
//	api.x.ai          A sixtieth of the requests is the limit of a second. The tokens that a response
//	                  reports replace the estimate, of which the output is learned as for Mistral.
//	                  A full service, spent credits, and a model that is not granted pause nothing.
//	                  Refused requests count.
//	api.deepseek.com  A model has 500 requests at the same time, and the flash model 2,500 under all
//	                  its names, such as deepseek-chat. There is no limit of a minute.
//	api.together.ai   Limits change with the load and are not published. Headers report seconds.
//	                  A full platform, with status 503, pauses nothing. Also api.together.xyz.
//	api.cerebras.ai   The tokens are those that are not in its cache. All tokens have a limit of three
//	                  times as many, in the unit "total-tokens". Both are buckets that refill
//	                  continuously. A request without a maximum of output is charged 16,384 for
//	                  it. The tokens that a response reports replace the estimate. Headers report
//	                  minutes, hours and days: add tiers for these. A full queue pauses nothing.
//
// Any other host has OpenAI's headers and errors, as far as its responses have them. Unused tokens
// are not refunded, unless the list says otherwise. A refusal for lack of credit, or of a request
// above the limit, pauses nothing.
func OpenAICompatible(host string, requests, tokens int64) Provider {
	c := compatible{requests: requests, tokens: tokens, units: []string{"tokens"}, bodies: &prompt.Reader{Image: openAIImage, Unknown: prompt.Cl100k}}
	c.prompt = c.bodies.Take
	c.output = func(_ *http.Request, body prompt.Prompt) int64 { return maxOutput(body) }
	c.Provider = Provider{
		Name:   host,
		Scopes: []Scope{some("model", "https://"+host, namedModel(c.bodies.Read), modelTiers(requests, tokens)...)},
		Profile: answers.Profile{
			Quotas:     []answers.Quota{openAIQuota("Requests", ""), openAIQuota("Tokens", "tokens")},
			RetryAfter: openAIWaits(),
			Rules:      append(openAIRules(), streamrules.OpenAI()...),
		},
		Hosts: []string{host},
	}
	if tokens > 0 {
		c.Cost = c.cost
	} else if requests <= 0 {
		c.Cost = costsNothing
	}
	for _, known := range compatibleHosts {
		if known.host == host {
			c.Scopes[0].Page = known.page
			known.differs(&c)
		}
	}
	return c.Provider
}

// A compatible is what OpenAICompatible makes.
type compatible struct {
	Provider         // its first scope is that of a model
	bodies           *prompt.Reader
	requests, tokens int64
	units            []string // of tokens
	// prompt returns the prompt for Cost, and output the tokens to reserve for the answer to it.
	prompt func(*http.Request) prompt.Prompt
	output func(*http.Request, prompt.Prompt) int64
}

// cost returns the estimated tokens of a request.
func (c *compatible) cost(req *http.Request) throttle.Cost {
	body := c.prompt(req)
	if !readsPrompt(req, body) {
		return nil
	}
	cost := throttle.Cost{}
	for _, unit := range c.units {
		cost[unit] = min(body.Tokens+c.output(req, body), algorithms.MaxLimit)
	}
	return cost
}

func (c *compatible) groq() {
	c.follows("tokens")
	c.Profile.Quotas = []answers.Quota{
		within(24*time.Hour, openAIQuota("Requests", "")), within(time.Minute, openAIQuota("Tokens", "tokens")),
		within(time.Hour, openAIQuota("Audio-Seconds", "audio-seconds")),
	}
	// Nothing is used, and the request does not fit.
	c.Profile.Rules = append([]answers.Rule{{Status: http.StatusTooManyRequests, Path: "error.message", Text: "*, Used 0, Requested *", Kind: answers.Other, Reason: "too large"}}, c.Profile.Rules...)
}

// openRouter is for a host whose errors have the headers of the limit in their bodies, and an error of the
// upstream provider as text. The day of free models ends at midnight in UTC, see
// https://openrouter.ai/docs/client-sdks/typescript/models/freemodeldailyrequests, read on 2026-11-28.
func (c *compatible) openRouter() {
	model := &c.Scopes[0]
	model.Key = namedModel(c.bodies.Peek)
	read := namedModel(c.bodies.Read)
	isFree := func(req *http.Request) bool {
		name, counts := read(req)
		return counts && strings.HasSuffix(name, ":free")
	}
	c.Scopes = append(c.Scopes, some("free", model.Page, when(isFree),
		throttle.PerMinute(20), throttle.Tier{Limit: 50, Algorithm: throttle.Calendar, Period: throttle.Day}))
	const status = http.StatusTooManyRequests
	reset := []answers.Field{
		{Path: "error.metadata.headers.X-RateLimit-Reset", Format: answers.EpochMillis},
		{Header: "X-Ratelimit-Reset", Format: answers.EpochMillis},
		{Path: "error.metadata.raw", After: `"retryDelay":"`, Format: answers.Duration},
	}
	c.Profile.Quotas = nil
	c.Profile.Rules = []answers.Rule{
		{Status: status, Path: "error.message", Text: "*free-models-per-day*", Kind: answers.Limited, Wide: true, Delay: reset, Until: "UTC"},
		{Status: status, Path: "error.message", Text: "*free-models-per-*", Kind: answers.Limited, Wide: true, Delay: reset},
		{Status: status, Header: "Retry-After", Kind: answers.Limited},
		{Status: status, Path: "error.metadata.limit_source", Text: "upstream_provider*", Kind: answers.Other},
		{Status: status, Kind: answers.Limited, Delay: reset},
		{Status: http.StatusPaymentRequired, Header: "Retry-After", Kind: answers.Limited, Reason: "in-flight budget"},
		{Status: http.StatusOK, Path: "error.code", Text: "429", Kind: answers.Limited},
		{Method: http.MethodPost, Event: "message", Path: "error.code", Text: "429", Kind: answers.Limited},
	}
}

func (c *compatible) mistral() {
	c.learns(answers.Field{Header: "X-Ratelimit-Tokens-Query-Cost"})
	c.follows("")
	c.follows("tokens")
	quota := func(unit, of, per string) answers.Quota {
		return within(time.Minute, inHeaders(unit, of+"-Limit-"+per, of+"-Remaining-"+per, answers.Field{}))
	}
	c.Profile.Quotas = []answers.Quota{
		quota("", "X-Ratelimit", "Req-Minute"), quota("tokens", "X-Ratelimit", "Tokens-Minute"), quota("tokens", "X-Ratelimitbysize", "Minute"),
	}
	c.Profile.Rules = []answers.Rule{
		{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Limit-Req-Minute", Value: "0", Kind: answers.Other, Reason: "not in the plan"},
		{Status: http.StatusTooManyRequests, Path: "type", Text: "service_tier_capacity_exceeded", Kind: answers.Other},
		{Status: http.StatusTooManyRequests, Path: "message", Text: "Service tier capacity exceeded*", Kind: answers.Other},
	}
}

func (c *compatible) xAI() {
	if tiers := &c.Scopes[0].Policy.Tiers; c.requests > 0 {
		*tiers = append(*tiers, throttle.PerSecond(max(1, c.requests/60)))
	}
	c.learns(answers.Field{Path: "response.usage.total_tokens"})
	c.Profile.RetryAfter = append(c.Profile.RetryAfter, answers.Field{Path: "error", After: "Resets in: ", Format: answers.Duration})
	c.Profile.Rules = []answers.Rule{
		{Status: http.StatusTooManyRequests, Path: "error", Text: "*(actual/limit): 0/0*", Kind: answers.Other, Reason: "not granted"},
		{Status: http.StatusTooManyRequests, Path: "error", Text: "*used all available credits*", Kind: answers.Other},
		{Status: http.StatusTooManyRequests, Path: "error", Text: "*temporarily at capacity*", Kind: answers.Other},
	}
}

func (c *compatible) deepSeek() {
	scope := func(name string, concurrent int64, read func(*http.Request) prompt.Prompt) Scope {
		tiers := []throttle.Tier{{Limit: concurrent, Algorithm: throttle.Concurrency}}
		if c.requests > 0 || c.tokens > 0 {
			tiers = append(tiers, modelTiers(c.requests, c.tokens)...)
		}
		named := namedModel(read)
		return some(name, c.Scopes[0].Page, func(req *http.Request) (string, bool) {
			model, counts := named(req)
			model = deepSeekModel(model)
			return model, counts && (model == deepSeekFlash) == (name == "flash")
		}, tiers...)
	}
	c.Scopes = []Scope{scope("flash", 2_500, c.bodies.Peek), scope("model", 500, c.bodies.Read)}
	for i := range c.Scopes {
		c.Scopes[i].Read = "2026-11-28"
	}
	if c.tokens <= 0 {
		c.Cost = nil
	}
}

const deepSeekFlash = "deepseek-flash"

// deepSeekModel returns the model that answers to a name. The flash model has several. See
// https://api-docs.deepseek.com/quick_start/pricing, read on 2026-11-28. The two aliases are of earlier
// versions of that page.
func deepSeekModel(name string) string {
	if strings.Contains(name, "-flash") || name == "deepseek-chat" || name == "deepseek-reasoner" {
		return deepSeekFlash
	}
	return name
}

func (c *compatible) together() {
	c.Hosts = []string{"api.together.ai", "api.together.xyz"}
	reset := answers.Field{Header: "X-Ratelimit-Reset", Format: answers.Seconds}
	c.Profile.Quotas = []answers.Quota{
		within(time.Second, inHeaders("", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", reset)),
		within(time.Second, inHeaders("tokens", "X-Tokenlimit-Limit", "X-Tokenlimit-Remaining", reset)),
	}
	c.Profile.RetryAfter = append(c.Profile.RetryAfter, reset)
}

// cerebras is for a host where only the message of a refusal names the window. It judges a request by its
// text and its highest output together, by two buckets, and settles both at the end.
func (c *compatible) cerebras() {
	c.Scopes[0].Read = "2026-11-28"
	c.follows("")
	c.settles(answers.Field{Path: "response.usage.total_tokens"})
	if c.tokens > 0 {
		c.splitsCached()
	}
	c.Profile.Quotas = nil
	c.Profile.Rules = []answers.Rule{{Status: http.StatusTooManyRequests, Path: "param", Text: "queue", Kind: answers.Other, Reason: "queue full"}}
	for _, of := range []struct{ name, unit string }{{"Requests", ""}, {"Tokens", "tokens"}} {
		for _, per := range []struct {
			name   string
			window time.Duration
		}{{"Minute", time.Minute}, {"Hour", time.Hour}, {"Day", 24 * time.Hour}} {
			q := within(per.window, openAIQuota(of.name+"-"+per.name, of.unit))
			q.Reset.Format = answers.Seconds
			c.Profile.Quotas = append(c.Profile.Quotas, q)
			c.Profile.Rules = append(c.Profile.Rules, answers.Rule{
				Status: http.StatusTooManyRequests, Path: "message", Text: of.name + " per " + strings.ToLower(per.name) + "*",
				Kind: answers.Limited, Delay: []answers.Field{q.Reset},
			})
		}
	}
}

// follows lets the limit of a minute that responses name replace that of a unit.
func (c *compatible) follows(unit string) {
	for i, t := range c.Scopes[0].Policy.Tiers {
		if t.Unit == unit && t.Window == time.Minute {
			c.Scopes[0].Policy.Tiers[i] = tenfold(0, t)
		}
	}
	c.Scopes[0].preset = slices.Clone(c.Scopes[0].Policy.Tiers)
}

// settles lets the tokens that a response reports replace the estimate.
func (c *compatible) settles(used answers.Field) {
	for i := range c.Scopes[0].Policy.Tiers {
		if t := &c.Scopes[0].Policy.Tiers[i]; t.Unit == "tokens" {
			t.Estimated = true
		}
	}
	c.Profile.Charges = []answers.Charge{{Unit: "tokens", Field: used, Or: answers.Field{Path: "usage.total_tokens"}}}
}

// learns is for a host that counts the tokens of a response and not those that a request allows, as
// https://docs.x.ai/docs/rate-limits says, read on 2026-11-28. What a response costs beyond the estimate of
// its prompt is taken for the output, because completion_tokens of xAI lack those of reasoning.
func (c *compatible) learns(used answers.Field) {
	c.settles(used)
	if c.tokens <= 0 {
		return
	}
	known := newOutputs()
	c.prompt = c.bodies.Peek
	c.output = func(req *http.Request, body prompt.Prompt) int64 {
		if !writesText(req) {
			return 0
		}
		return known.expect(asked(body))
	}
	c.Settle = func(req *http.Request) func(throttle.Cost) throttle.Cost {
		body := c.bodies.Take(req)
		if !writesText(req) {
			return nil
		}
		end := known.begin(asked(body))
		return func(reported throttle.Cost) throttle.Cost {
			end(max(0, reported["tokens"]-body.Tokens), reported["tokens"] > 0)
			return reported
		}
	}
}

// The units of Cerebras beside the uncached tokens.
const (
	totalTokens  = "total-tokens"
	cachedTokens = "cached-tokens" // no tier counts them
)

// cerebrasOutput is the tokens of output that Cerebras reserves for a request that sets no maximum. The
// documentation speaks of an upper bound. A client measured this one:
// https://github.com/dcdpr/jp/pull/1085, read on 2026-11-28.
const cerebrasOutput = 16_384

// splitsCached is for a host that has a bucket of tokens without those from its cache, and one of three times
// as many for all tokens.
func (c *compatible) splitsCached() {
	for i := range c.Scopes[0].Policy.Tiers {
		if t := &c.Scopes[0].Policy.Tiers[i]; t.Unit == "tokens" {
			t.Algorithm = throttle.TokenBucket
			total := *t
			total.Unit, total.Limit = totalTokens, 3*min(t.Limit, algorithms.MaxLimit/3)
			c.Scopes[0].Policy.Tiers = append(c.Scopes[0].Policy.Tiers, total)
			break
		}
	}
	c.units = append(c.units, totalTokens)
	c.Profile.Charges = append(c.Profile.Charges, answers.Charge{
		Unit: cachedTokens, Field: answers.Field{Path: "usage.prompt_tokens_details.cached_tokens"}, Or: answers.Field{Path: "response.usage.input_tokens_details.cached_tokens"},
	})
	c.prompt = c.bodies.Peek
	c.output = func(_ *http.Request, body prompt.Prompt) int64 { return cmp.Or(maxOutput(body), cerebrasOutput) }
	c.Settle = func(req *http.Request) func(throttle.Cost) throttle.Cost {
		c.bodies.Take(req) // forgets the body
		return func(reported throttle.Cost) throttle.Cost {
			if total, known := reported["tokens"]; known {
				reported[totalTokens] = total
				reported["tokens"] = max(0, total-reported[cachedTokens])
			}
			return reported
		}
	}
}

// modelTiers returns the tiers of a model, or noLimit if no limit is known.
func modelTiers(requests, tokens int64) (tiers []throttle.Tier) {
	if requests > 0 {
		tiers = append(tiers, throttle.PerMinute(requests))
	}
	if tokens > 0 {
		tiers = append(tiers, minute(tokens, "tokens"))
	}
	if tiers == nil {
		tiers = append(tiers, noLimit)
	}
	return tiers
}

func isHost(text string) error {
	if text == "" || strings.ContainsAny(text, "/:@?# ") {
		return errors.New("it must be a host such as api.groq.com, without https:// and without a path")
	}
	return nil
}
