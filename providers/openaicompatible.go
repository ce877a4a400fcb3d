package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
)

// openAICompatibleHosts are the hosts that OpenAICompatible knows.
var openAICompatibleHosts = []string{
	"api.groq.com", "openrouter.ai", "api.mistral.ai", "api.eu.mistral.ai", "api.x.ai", "api.deepseek.com", "api.together.ai", "api.together.xyz", "api.cerebras.ai",
}

// OpenAICompatible is the API of a host that speaks OpenAI's protocol, with the limits of each
// model there. The arguments are the requests and tokens that the host allows a model per minute.
// If the host documents no such limit, or you don't know it, 0 leaves the limit out: a model then
// waits after refusals only. Only POST requests are limited.
//
//	client, err := providers.OpenAICompatible("api.groq.com", 30, 8_000).Client(nil)
//
// A request is charged an estimate in tokens, as for [OpenAI], but for its text and its highest
// output together. These hosts differ from OpenAI:
//
//	api.groq.com      Headers report the requests of a day: add a tier of throttle.PerDay. The wait
//	                  may stand in the message alone.
//	openrouter.ai     Models whose names end in ":free" have 20 requests a minute and 50 a day in
//	                  UTC together, in the scope "free", or 1,000 a day after a purchase of 10
//	                  credits. Others have no limit. Waits end at a time in milliseconds. A busy
//	                  upstream provider that names no wait pauses nothing.
//	api.mistral.ai    Headers report the minute. The tokens that a response reports replace the
//	                  estimate. A full model, and one outside the plan, pause nothing.
//	api.x.ai          A sixtieth of the requests is the limit of a second. The tokens that a response
//	                  reports replace the estimate. A full service, spent credits, and a model that
//	                  is not granted pause nothing. Refused requests count.
//	api.deepseek.com  A model has 500 requests at the same time, and a flash model 2,500. There is
//	                  no limit of a minute.
//	api.together.ai   Limits change with the load and are not published. Headers report seconds.
//	                  A full platform, with status 503, pauses nothing. Also api.together.xyz.
//	api.cerebras.ai   Headers report minutes, hours and days: add tiers for these. The tokens that
//	                  a response reports replace the estimate. A full queue pauses nothing.
//
// Any other host has OpenAI's headers and errors, as far as its responses have them. Unused tokens
// are not refunded, unless the list says otherwise. A refusal for lack of credit, or of a request
// above the limit, pauses nothing.
func OpenAICompatible(host string, requests, tokens int64) Provider {
	bodies := new(prompts)
	p := Provider{
		Name:   host,
		Scopes: []Scope{some("model", "https://"+host, bodies.model, modelTiers(requests, tokens)...)},
		Profile: answers.Profile{
			Quotas:     []answers.Quota{openAIQuota("Requests", ""), openAIQuota("Tokens", "tokens")},
			RetryAfter: openAIWaits(),
			Rules:      openAIRules(),
		},
		Hosts: []string{host},
	}
	switch {
	case tokens > 0:
		p.Cost = func(req *http.Request) throttle.Cost {
			body := bodies.cost(req)
			if !readsPrompt(req, body) {
				return nil
			}
			return throttle.Cost{"tokens": min(body.tokens(openAIImage)+body.output(), algorithms.MaxLimit)}
		}
	case requests <= 0 && host != "api.deepseek.com":
		p.Cost = costsNothing
	}
	model := &p.Scopes[0]
	switch host {
	case "api.groq.com":
		model.Page = "https://console.groq.com/docs/rate-limits"
		p.Profile.Quotas = []answers.Quota{
			within(24*time.Hour, openAIQuota("Requests", "")), within(time.Minute, openAIQuota("Tokens", "tokens")),
			within(time.Hour, openAIQuota("Audio-Seconds", "audio-seconds")),
		}
	case "openrouter.ai":
		model.Page = "https://openrouter.ai/docs/api-reference/limits"
		model.Key = bodies.sameModel
		free := some("free", model.Page, bodies.freeModel, throttle.PerMinute(20), throttle.Tier{Limit: 50, Algorithm: throttle.Calendar, Period: throttle.Day})
		p.Scopes = append(p.Scopes, free)
		p.Profile.Quotas = nil
		p.Profile.Rules = openRouterRules()
	case "api.mistral.ai", "api.eu.mistral.ai":
		model.Page = "https://docs.mistral.ai/deployment/laplateforme/tier"
		settle(&p, answers.Field{Header: "X-Ratelimit-Tokens-Query-Cost"})
		p.Profile.Quotas = []answers.Quota{
			{Window: time.Minute, Limit: answers.Field{Header: "X-Ratelimit-Limit-Req-Minute"}, Remaining: answers.Field{Header: "X-Ratelimit-Remaining-Req-Minute"}},
			{Unit: "tokens", Window: time.Minute, Limit: answers.Field{Header: "X-Ratelimit-Limit-Tokens-Minute"}, Remaining: answers.Field{Header: "X-Ratelimit-Remaining-Tokens-Minute"}},
			{Unit: "tokens", Window: time.Minute, Limit: answers.Field{Header: "X-Ratelimitbysize-Limit-Minute"}, Remaining: answers.Field{Header: "X-Ratelimitbysize-Remaining-Minute"}},
		}
		p.Profile.Rules = []answers.Rule{
			{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Limit-Req-Minute", Value: "0", Kind: answers.Other, Reason: "not in the plan"},
			{Status: http.StatusTooManyRequests, Path: "type", Text: "service_tier_capacity_exceeded", Kind: answers.Other},
			{Status: http.StatusTooManyRequests, Path: "message", Text: "Service tier capacity exceeded*", Kind: answers.Other},
		}
	case "api.x.ai":
		model.Page = "https://docs.x.ai/docs/models"
		if requests > 0 {
			model.Policy.Tiers = append(model.Policy.Tiers, throttle.PerSecond(max(1, requests/60)))
		}
		settle(&p, answers.Field{Path: "usage.total_tokens"})
		p.Profile.RetryAfter = append(p.Profile.RetryAfter, answers.Field{Path: "error", After: "Resets in: ", Format: answers.Duration})
		p.Profile.Rules = []answers.Rule{
			{Status: http.StatusTooManyRequests, Path: "error", Text: "*(actual/limit): 0/0*", Kind: answers.Other, Reason: "not granted"},
			{Status: http.StatusTooManyRequests, Path: "error", Text: "*used all available credits*", Kind: answers.Other},
			{Status: http.StatusTooManyRequests, Path: "error", Text: "*temporarily at capacity*", Kind: answers.Other},
		}
	case "api.deepseek.com":
		model.Page = "https://api-docs.deepseek.com/quick_start/rate_limit"
		flash := *model
		flash.Name, flash.Key, flash.Policy.Tiers = "flash", bodies.flashModel, atOnce(2_500, requests, tokens)
		model.Key, model.Policy.Tiers = bodies.notFlash, atOnce(500, requests, tokens)
		p.Scopes = []Scope{flash, *model}
	case "api.together.ai", "api.together.xyz":
		model.Page = "https://docs.together.ai/docs/rate-limits"
		p.Hosts = []string{"api.together.ai", "api.together.xyz"}
		reset := answers.Field{Header: "X-Ratelimit-Reset", Format: answers.Seconds}
		p.Profile.Quotas = []answers.Quota{
			{Window: time.Second, Limit: answers.Field{Header: "X-Ratelimit-Limit"}, Remaining: answers.Field{Header: "X-Ratelimit-Remaining"}, Reset: reset},
			{Unit: "tokens", Window: time.Second, Limit: answers.Field{Header: "X-Tokenlimit-Limit"}, Remaining: answers.Field{Header: "X-Tokenlimit-Remaining"}, Reset: reset},
		}
		p.Profile.RetryAfter = append(p.Profile.RetryAfter, reset)
	case "api.cerebras.ai":
		model.Page = "https://inference-docs.cerebras.ai/support/rate-limits"
		settle(&p, answers.Field{Path: "usage.total_tokens"})
		p.Profile.Quotas, p.Profile.Rules = cerebras()
	}
	return p
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

// atOnce returns the tiers of a model that has a number of requests at the same time.
func atOnce(concurrent, requests, tokens int64) []throttle.Tier {
	tiers := []throttle.Tier{{Limit: concurrent, Algorithm: throttle.Concurrency}}
	if requests > 0 || tokens > 0 {
		tiers = append(tiers, modelTiers(requests, tokens)...)
	}
	return tiers
}

// within returns a quota with its window.
func within(window time.Duration, q answers.Quota) answers.Quota {
	q.Window = window
	return q
}

// settle lets the tokens that a response reports replace the estimate.
func settle(p *Provider, used answers.Field) {
	for i := range p.Scopes[0].Policy.Tiers {
		if t := &p.Scopes[0].Policy.Tiers[i]; t.Unit == "tokens" {
			t.Estimated = true
		}
	}
	p.Profile.Charges = []answers.Charge{{Unit: "tokens", Field: used, Or: answers.Field{Path: "usage.total_tokens"}}}
}

// freeModel reports whether the model of a request is free. All free models share one quota.
func (c *prompts) freeModel(req *http.Request) (key string, counts bool) {
	model, counts := c.model(req)
	return "", counts && strings.HasSuffix(model, ":free")
}

// notFlash returns the model of a request unless it is a flash model of DeepSeek.
func (c *prompts) notFlash(req *http.Request) (model string, counts bool) {
	model, counts = c.model(req)
	return model, counts && !strings.HasSuffix(model, "-flash")
}

// flashModel returns the model of a request if it is a flash model of DeepSeek.
func (c *prompts) flashModel(req *http.Request) (model string, counts bool) {
	model, counts = c.sameModel(req)
	return model, counts && strings.HasSuffix(model, "-flash")
}

// openRouterRules returns the rules of OpenRouter. Its errors have the headers of the limit in their
// bodies, and an error of the upstream provider as text.
func openRouterRules() []answers.Rule {
	const status = http.StatusTooManyRequests
	reset := []answers.Field{
		{Path: "error.metadata.headers.X-RateLimit-Reset", Format: answers.EpochMillis},
		{Header: "X-Ratelimit-Reset", Format: answers.EpochMillis},
		{Path: "error.metadata.raw", After: `"retryDelay":"`, Format: answers.Duration},
	}
	return []answers.Rule{
		{Status: status, Path: "error.message", Text: "*free-models-per-*", Kind: answers.Limited, Wide: true, Delay: reset},
		{Status: status, Header: "Retry-After", Kind: answers.Limited},
		{Status: status, Path: "error.metadata.limit_source", Text: "upstream_provider*", Kind: answers.Other},
		{Status: status, Kind: answers.Limited, Delay: reset},
		{Status: http.StatusPaymentRequired, Header: "Retry-After", Kind: answers.Limited, Reason: "in-flight budget"},
		{Status: http.StatusOK, Path: "error.code", Text: "429", Kind: answers.Limited},
	}
}

// cerebras returns the quotas and rules of Cerebras. Only the message of a refusal names the window.
func cerebras() (quotas []answers.Quota, rules []answers.Rule) {
	rules = []answers.Rule{{Status: http.StatusTooManyRequests, Path: "param", Text: "queue", Kind: answers.Other, Reason: "queue full"}}
	for _, of := range []struct{ name, unit string }{{"Requests", ""}, {"Tokens", "tokens"}} {
		for _, per := range []struct {
			name   string
			window time.Duration
		}{{"Minute", time.Minute}, {"Hour", time.Hour}, {"Day", 24 * time.Hour}} {
			q := within(per.window, openAIQuota(of.name+"-"+per.name, of.unit))
			q.Reset.Format = answers.Seconds
			quotas = append(quotas, q)
			rules = append(rules, answers.Rule{
				Status: http.StatusTooManyRequests, Path: "message", Text: of.name + " per " + strings.ToLower(per.name) + "*",
				Kind: answers.Limited, Delay: []answers.Field{q.Reset},
			})
		}
	}
	return quotas, rules
}
