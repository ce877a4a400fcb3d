package answers

import (
	"net/http"
	"time"
)

// Common returns a Profile for APIs without a description. It reads only fields
// that mean the same at every API:
//
//   - The header retry-after-ms.
//   - Waits in the bodies of 429s: Google's retryDelay, Telegram's parameters.retry_after, and in the
//     messages of errors "try again in 1.2s" (OpenAI), "retry after 33 seconds" (Azure) and the like.
//   - The reset of a quota of which a 429 reports that nothing is left, if it is [Evident]. Seconds
//     left, such as "41", look like other numbers and are not read.
//   - The refusals of Google, AWS, Meta, WhatsApp, GitHub, Salesforce, Linear and Telegram with status 400
//     or 403, by their codes, and the bans of Binance with status 418.
//   - 429s whose code reports an unpaid bill, a model that is not in the plan, or a request that is too
//     large, which are not of the rate.
//   - The errors of Kraken in the successes of POSTs, which a Meter reads. No other success is read.
//
// It reads no counts, because a count doesn't tell its window or unit. Add the Quotas of package ietf for
// the fields of the drafts.
func Common() Profile {
	p := Profile{RetryAfter: []Field{
		{Header: "Retry-After-Ms", Format: Millis}, {Header: "X-Ms-Retry-After-Ms", Format: Millis},
		{Header: "Retry-After", Format: RetryAfter},
	}}
	waits := waitsInBodies()
	p.Rules = append(p.Rules, commonOthers()...)
	p.Rules = append(p.Rules, commonGoogle()...)
	p.Rules = append(p.Rules, commonCodes()...)
	p.Rules = append(p.Rules, commonTexts()...)
	for _, name := range []string{"X-Ratelimit", "X-Rate-Limit", "Ratelimit"} {
		reset := Field{Header: name + "-Reset", Format: Evident}
		p.Rules = append(p.Rules,
			Rule{Status: http.StatusTooManyRequests, Header: name + "-Limit", Value: "0", Kind: Limited}, // Okta, if another quota refuses
			Rule{Status: http.StatusTooManyRequests, Header: name + "-Remaining", Value: "0", Kind: Limited, Delay: append(waits[:len(waits):len(waits)], reset)},
			Rule{Status: http.StatusForbidden, Header: name + "-Remaining", Value: "0", Path: "message", Text: "*rate limit exceeded*", Kind: Limited, Delay: []Field{reset}})
	}
	p.Rules = append(p.Rules, Rule{Status: http.StatusTooManyRequests, Kind: Limited, Delay: waits})
	return p
}

// waitsInBodies returns the places of waits that have one meaning. In a text a wait has its unit: "Please
// try again in 20" may be of minutes.
func waitsInBodies() []Field {
	waits := []Field{
		{Path: "error.details.*.retryDelay", Format: Duration}, {Path: "*.error.details.*.retryDelay", Format: Duration},
		{Path: "parameters.retry_after", Format: Seconds},
		{Path: "error.message", After: "Retry after ", Format: Timestamp},
	}
	for _, message := range []string{"error.message", "message", "error"} {
		for _, after := range []string{"ry again in ", "etry after ", "etry in "} { // Try, try, Retry and retry
			waits = append(waits, Field{Path: message, After: after, Format: Duration})
		}
	}
	return waits
}

// commonTexts are refusals with other statuses whose codes or texts no other API has. Sources, read on
// 2026-11-28: the captures in answers/corpus/testdata/common.json.
func commonTexts() []Rule {
	rules := []Rule{
		{Status: http.StatusTeapot, Path: "code", Text: "-1003", Kind: Banned, Reason: "banned", // Binance
			Delay: []Field{{Path: "msg", After: "banned until ", Format: EpochMillis}}},
		{Status: http.StatusBadRequest, Path: "description", Text: "*Too Many Requests: retry after *", Kind: Limited, // Telegram
			Delay: []Field{{Path: "parameters.retry_after", Format: Seconds}, {Path: "description", After: "retry after ", Format: Seconds}}},
		{Status: http.StatusBadRequest, Path: "error.code", Text: "130429", Kind: Limited}, // WhatsApp
		{Status: http.StatusForbidden, Path: "error.code", Text: "130429", Kind: Limited},
	}
	for _, text := range []string{"EAPI:Rate limit exceeded", "EOrder:Rate limit exceeded"} { // Kraken
		rules = append(rules, Rule{Method: http.MethodPost, Event: defaultEvent, Status: http.StatusOK, Path: "error.*", Text: text, Kind: Limited})
	}
	return rules
}

// commonOthers are the 429s that are not of the rate, by the place of their code.
func commonOthers() (rules []Rule) {
	rules = append(rules, Rule{Status: http.StatusTooManyRequests, Header: "X-Should-Retry", Value: "false", Kind: Other, Reason: "x-should-retry: false"})
	for _, place := range []struct{ path, text string }{
		{"error.type", "insufficient_quota"}, {"error.code", "insufficient_quota"}, {"error.code", "billing_hard_limit_reached"},
		{"error.message", "Request too large*"}, {"error.code", "lock_timeout"},
		{"error.details.error_code", "enforced_spend_limit_reached"}, {"title", "UsageCapExceeded"},
		{"error", "*used all available credits*"}, {"error.message", "*, limit: 0, model: *"}, {"error.message", "*, limit: 0\n*"},
	} {
		rules = append(rules, Rule{Status: http.StatusTooManyRequests, Path: place.path, Text: place.text, Kind: Other})
	}
	return rules
}

// commonGoogle are the refusals of Google's APIs. A day's quota ends at midnight Pacific Time.
func commonGoogle() []Rule {
	const pacific, reason = "America/Los_Angeles", "error.errors.*.reason"
	rules := []Rule{
		{Status: http.StatusTooManyRequests, Path: "error.details.*.violations.*.quotaId", Text: "*PerDay*", Kind: Limited, Until: pacific},
		{Status: http.StatusTooManyRequests, Path: "*.error.details.*.violations.*.quotaId", Text: "*PerDay*", Kind: Limited, Until: pacific},
	}
	waits := waitsInBodies()
	for _, text := range []string{"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded", "dailyLimitExceeded"} {
		rules = append(rules, Rule{Status: http.StatusForbidden, Path: reason, Text: text, Kind: Limited, Delay: waits})
	}
	return rules
}

// commonCodes are the refusals with status 400, 403 and 503 by code. Only XML escapes the < of a text
// from the request that a message repeats.
func commonCodes() []Rule {
	rules := []Rule{
		{Status: http.StatusForbidden, Path: "*.errorCode", Text: "REQUEST_LIMIT_EXCEEDED", Kind: Limited},
		{Status: http.StatusForbidden, Path: "message", Text: "You have exceeded a secondary rate limit*", Kind: Limited, Wait: time.Minute, Reason: "secondary"},
		// Linear's resets are always an hour away, though its buckets gain all the time.
		{Status: http.StatusBadRequest, Path: "errors.*.extensions.code", Text: "RATELIMITED", Kind: Limited},
	}
	for _, code := range []string{"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
		"TooManyRequestsException", "ProvisionedThroughputExceededException", "RequestLimitExceeded", "BandwidthLimitExceeded", "SlowDown"} {
		rules = append(rules,
			Rule{Status: http.StatusBadRequest, Header: "X-Amzn-Errortype", Value: code, Kind: Limited, Reason: code},
			Rule{Status: http.StatusBadRequest, Header: "X-Amzn-Errortype", Value: code + ":*", Kind: Limited, Reason: code},
			Rule{Status: http.StatusBadRequest, Path: "__type", Text: code, Kind: Limited},
			Rule{Status: http.StatusBadRequest, Path: "__type", Text: "*#" + code, Kind: Limited, Reason: code},
			Rule{Status: http.StatusBadRequest, Header: "Content-Type", Value: "*xml*", Text: "*<Code>" + code + "</Code>*", Kind: Limited, Reason: code},
			Rule{Status: http.StatusServiceUnavailable, Header: "Content-Type", Value: "*xml*", Text: "*<Code>" + code + "</Code>*", Kind: Limited, Reason: code})
	}
	regain := []Field{{Header: "X-Business-Use-Case-Usage", Path: "*.*.estimated_time_to_regain_access", Format: Minutes}}
	for _, status := range []int{http.StatusBadRequest, http.StatusForbidden} {
		for _, code := range []string{"(#4) ", "(#17) ", "(#32) ", "(#613) ", "(#8000", "(#8001"} {
			rules = append(rules, Rule{Status: status, Path: "error.message", Text: code + "*", Kind: Limited, Delay: regain})
		}
	}
	return rules
}
