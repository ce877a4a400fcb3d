package azurestand

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// An answer is a response before it is written. A stream has several pieces, each sent at once.
type answer struct {
	status int
	header http.Header
	pieces []string
}

const (
	// The answer to a wrong key, as recorded by Azure's SDK for JavaScript on 2021-01-15, with its
	// Content-Length of 224, and reported for Azure OpenAI in
	// https://github.com/openai/openai-python/issues/3282 (read 2026-11-28).
	accessDenied = `{"error":{"code":"401","message":"Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a valid key for an active subscription and use a correct regional API endpoint for your resource."}}`

	// The answer to a wrong or missing token: the error is not in an object. That a request without
	// any credential gets it too is assumed, since the text says "missing".
	tokenInvalid = `{ "statusCode": 401, "message": "Unauthorized. Access token is missing, invalid, audience is incorrect (https://cognitiveservices.azure.com), or have expired." }`

	// The answer to a deployment that doesn't exist (captured 2025-05-13). Over /openai/v1 it is
	// assumed to be the same.
	deploymentNotFound = `{"error":{"code":"DeploymentNotFound","message":"The API deployment for this resource does not exist. If you created the deployment within the last 5 minutes, please wait a moment and try again."}}`

	// The answer to another path, and to a path without api-version.
	resourceNotFound = `{"error":{"code":"404","message":"Resource not found"}}`
)

// invalid returns the body of a 400, in the form of the model's own errors (captured 2024-05-09 with
// "type": "invalid_request_error"). The message is not Azure's.
func invalid(message string) string {
	body, _ := json.Marshal(map[string]any{"error": map[string]any{ // strings always encode
		"message": message, "type": "invalid_request_error", "param": nil, "code": nil,
	}})
	return string(body)
}

// plain returns an answer with the headers that the gateway puts on each (captures of 2023-12-03,
// 2024-11-09 and 2025-03-21).
func (s *Server) plain(status int, body string) answer {
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("Strict-Transport-Security", "max-age=31536000; includeSubDomains; preload")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Ms-Region", s.options.Region)
	return answer{status, h, []string{body}}
}

// refuse returns the answer to a request beyond a limit. It tells the wait in Retry-After, in
// Retry-After-Ms (the quota page) and in its words; Policy-Id says which limit it was (captures of
// 2023-12-01, "DeploymentRatelimit-Call", and 2023-12-03, "DeploymentRatelimit-Token"). It has no
// Azureml-Model-Session, as no model has seen the request.
func (s *Server) refuse(d *deployment, c call, r refusal, now time.Time) answer {
	kind, policy := "call", "DeploymentRatelimit-Call"
	if r.tokens {
		kind, policy = "token", "DeploymentRatelimit-Token"
	}
	wait := strconv.Itoa(seconds(r.wait)) + " seconds"
	if wait == "1 seconds" {
		wait = "1 second"
	}
	// The space after "message": is in the captures of both wordings.
	body := fmt.Sprintf(`{"error":{"code":"429","message": "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version %s have exceeded %s rate limit of your current OpenAI S0 pricing tier. Please retry after %s. Please go here: https://aka.ms/oai/quotaincrease if you would like to further increase the default rate limit."}}`,
		text(c.version), kind, wait)
	if d.NewWording {
		body = fmt.Sprintf(`{"error":{"code":"RateLimitReached","message": "Your requests to %s for %s in %s have exceeded the %s rate limit for your current AIServices S0 pricing tier. This request was for ChatCompletions_Create under Azure OpenAI API version %s. Please retry after %s. To increase your default rate limit, visit: https://aka.ms/oai/quotaincrease."}}`,
			text(d.Name), text(d.Model), text(s.options.Region), kind, text(c.version), wait)
	}
	a := s.plain(http.StatusTooManyRequests, body)
	a.header.Set("Retry-After", strconv.Itoa(seconds(r.wait)))
	a.header.Set("Retry-After-Ms", strconv.Itoa(milliseconds(r.wait)))
	a.header.Set("Policy-Id", policy)
	d.tell(a.header, now)
	return a
}

// text encodes a string as it stands inside a JSON string.
func text(s string) string {
	b, _ := json.Marshal(s) // strings always encode
	return string(b[1 : len(b)-1])
}

// The tokens of each answer, from the capture of 2025-02-16, and the results of the content filter.
var reply = []string{"Hello", "!", " How", " can", " I", " assist", " you", " today", "?"}

const (
	safe        = `{"hate":{"filtered":false,"severity":"safe"},"self_harm":{"filtered":false,"severity":"safe"},"sexual":{"filtered":false,"severity":"safe"},"violence":{"filtered":false,"severity":"safe"}}`
	promptSafe  = `[{"prompt_index":0,"content_filter_results":{"hate":{"filtered":false,"severity":"safe"},"jailbreak":{"filtered":false,"detected":false},"self_harm":{"filtered":false,"severity":"safe"},"sexual":{"filtered":false,"severity":"safe"},"violence":{"filtered":false,"severity":"safe"}}}]`
	fingerprint = "fp_f3927aa00d"
)

// A completion is what an accepted request gets.
type completion struct {
	id, model string
	created   int64
	choices   int
	words     []string
	finish    string
	usage     string
}

// complete answers an accepted request. The number of prompt tokens in the usage is that of the
// estimate; a real model counts its own tokens. The capture of 2025-02-16 bills one token more than
// the nine of its words.
func (s *Server) complete(d *deployment, c call, now time.Time) answer {
	prompt := c.chat.prompt()
	cached := d.cache.use(now, c.chat.PromptCacheKey, prompt)
	d.counts.Accepted++
	d.counts.PromptTokens += len(prompt)
	d.counts.CachedTokens += cached

	done := completion{
		id:    fmt.Sprintf("chatcmpl-%029d", len(s.requests)+1),
		model: d.Model, created: now.Unix(), choices: or(c.chat.N, 1), words: reply, finish: "stop",
	}
	tokens := len(reply) + 1
	if most := c.chat.limit(); most > 0 && most < tokens {
		tokens, done.words, done.finish = most, reply[:most], "length"
	}
	tokens *= done.choices
	done.usage = fmt.Sprintf(`{"completion_tokens":%d,"completion_tokens_details":{"accepted_prediction_tokens":0,"audio_tokens":0,"reasoning_tokens":0,"rejected_prediction_tokens":0},"prompt_tokens":%d,"prompt_tokens_details":{"audio_tokens":0,"cached_tokens":%d},"total_tokens":%d}`,
		tokens, len(prompt), cached, len(prompt)+tokens)

	a := s.plain(http.StatusOK, done.whole())
	a.header.Set("Azureml-Model-Session", "v20250319-1-164616836")
	a.header.Set("X-Accel-Buffering", "no")
	a.header.Set("X-Ms-Deployment-Name", d.Name)
	a.header.Set("X-Ms-Rai-Invoked", "true")
	a.header.Set("X-Request-Id", requestID(1_000_000+len(s.requests)+1))
	d.tell(a.header, now)
	if c.chat.Stream {
		a.header.Set("Content-Type", "text/event-stream; charset=utf-8")
		a.pieces = done.stream(c.chat.StreamOptions != nil && c.chat.StreamOptions.IncludeUsage)
	}
	return a
}

// whole returns a completion in one object, as captured on 2024-09-30 (apim-request-id
// 1fac2da2-0d7d-43dc-9ced-cc04dc070711).
func (c *completion) whole() string {
	content, _ := json.Marshal(strings.Join(c.words, "")) // strings always encode
	var choices []string
	for i := range c.choices {
		choices = append(choices, fmt.Sprintf(`{"content_filter_results":%s,"finish_reason":%q,"index":%d,"logprobs":null,"message":{"content":%s,"refusal":null,"role":"assistant"}}`,
			safe, c.finish, i, content))
	}
	return fmt.Sprintf(`{"choices":[%s],"created":%d,"id":%q,"model":"%s","object":"chat.completion","prompt_filter_results":%s,"system_fingerprint":%q,"usage":%s}`,
		strings.Join(choices, ","), c.created, c.id, text(c.model), promptSafe, fingerprint, c.usage)
}

// stream returns a completion as server-sent events, as captured on 2025-02-16. The first event has
// no choices, no identifier and no model, only the results of the filter for the prompt. With usage,
// each event of the answer says "usage":null, and one more with no choices has the numbers.
func (c *completion) stream(usage bool) []string {
	null := ""
	if usage {
		null = `,"usage":null`
	}
	event := func(choices, last string) string {
		return fmt.Sprintf(`data: {"choices":[%s],"created":%d,"id":%q,"model":"%s","object":"chat.completion.chunk","system_fingerprint":%q%s}`+"\n\n",
			choices, c.created, c.id, text(c.model), fingerprint, last)
	}
	choice := func(filter, delta, finish string, i int) string {
		return event(fmt.Sprintf(`{"content_filter_results":%s,"delta":%s,"finish_reason":%s,"index":%d,"logprobs":null}`, filter, delta, finish, i), null)
	}
	events := []string{`data: {"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":` + promptSafe + "}\n\n"}
	for i := range c.choices {
		events = append(events, choice(`{}`, `{"content":"","refusal":null,"role":"assistant"}`, "null", i))
		for _, word := range c.words {
			events = append(events, choice(safe, fmt.Sprintf(`{"content":%q}`, word), "null", i))
		}
		events = append(events, choice(`{}`, `{}`, strconv.Quote(c.finish), i))
	}
	if usage {
		events = append(events, event("", `,"usage":`+c.usage))
	}
	return append(events, "data: [DONE]\n\n")
}

// requestID returns an identifier in the form of a UUID.
func requestID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }
