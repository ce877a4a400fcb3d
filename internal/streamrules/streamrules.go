// Package streamrules has the rules of refusals in the streams of language models: the status is 200,
// and then an event says that the request is refused. Packages profiles and providers share them.
//
// The models write any text into their events, and also any value of some keys: an event
// response.code_interpreter_call_code.done has code that a model wrote as its "code". So a rule names
// either a type of event or a path that only errors have.
package streamrules

import (
	"net/http"
	"strings"

	"github.com/apithrottle/throttle/answers"
)

// OpenAI are the rules of OpenAI's streams and of those that are like them. Errors of Chat Completions
// have no type. Sources, read on 2026-11-28:
//
//   - response.failed: the capture of providers/testdata/fixtures/openai.json.
//   - event error with an error in it: the capture of azureopenai.json beside it, and
//     https://github.com/pomerium/mcp-app-demo/issues/156.
//   - event error with its code beside its type: the description of the API, as in
//     https://docs.rs/crate/openai-client-base/latest/source/docs/ResponseErrorEvent.md.
func OpenAI() (rules []answers.Rule) {
	for _, of := range []struct{ event, path string }{
		{"error", "error."}, {"error", ""}, {"response.failed", "response.error."}, {"message", "error."},
	} {
		rules = append(rules,
			answers.Rule{Method: http.MethodPost, Event: of.event, Path: of.path + "message", Text: "Request too large*", Kind: answers.Other, Reason: "too large"},
			answers.Rule{Method: http.MethodPost, Event: of.event, Path: of.path + "code", Text: "rate_limit_exceeded", Kind: answers.Limited,
				Delay: []answers.Field{{Path: of.path + "message", After: "try again in ", Format: answers.Duration}}})
	}
	return rules
}

// AzureOpenAI are the rules of the streams of Azure's models, some of which are Anthropic's. A stream with
// Retry-After is refused, whatever the code of its error is.
func AzureOpenAI() []answers.Rule {
	return append(append(OpenAI(), Anthropic()...),
		answers.Rule{Method: http.MethodPost, Event: "error", Header: "Retry-After", Kind: answers.Limited, Reason: "in the stream"})
}

// Anthropic are the rules of the streams of the Messages API. An overload is nobody's quota and names no
// wait. Sources, read on 2026-11-28: https://docs.anthropic.com/en/api/messages-streaming, section "Error
// events", and the capture in https://github.com/Wei-Shaw/sub2api/issues/5563.
func Anthropic() []answers.Rule {
	rule := func(path, text string, kind answers.Kind) answers.Rule {
		return answers.Rule{Method: http.MethodPost, Event: "error", Path: path, Text: text, Kind: kind}
	}
	return []answers.Rule{
		rule("error.details.error_code", "enforced_spend_limit_reached", answers.Other),
		rule("error.type", "rate_limit_error", answers.Limited),
		rule("error.type", "overloaded_error", answers.Other),
	}
}

// Gemini are the rules of Gemini's streams, whose errors are those of its responses: rules are the rules
// of these. Without alt=sse a stream is an array of JSON. Sources, read on 2026-11-28:
// https://github.com/ankit373/hydra/issues/869 and https://github.com/diegosouzapw/OmniRoute/pull/4182.
func Gemini(rules []answers.Rule) (all []answers.Rule) {
	for _, r := range rules {
		if r.Status == http.StatusTooManyRequests && strings.HasPrefix(r.Path, "error.") {
			r.Method, r.Status, r.Event = http.MethodPost, 0, "message"
			all = append(all, r)
		}
	}
	return append(rules, all...)
}
