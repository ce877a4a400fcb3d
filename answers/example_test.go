package answers_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle/answers"
)

func ExampleProfile_Read() {
	openai := answers.Profile{
		Quotas: []answers.Quota{{
			Unit:      "tokens",
			Limit:     answers.Field{Header: "x-ratelimit-limit-tokens"},
			Remaining: answers.Field{Header: "x-ratelimit-remaining-tokens"},
			Reset:     answers.Field{Header: "x-ratelimit-reset-tokens", Format: answers.Duration},
			Full:      true,
		}},
		Rules: []answers.Rule{
			{Status: 429, Path: "error.type", Text: "insufficient_quota", Kind: answers.Other},
		},
	}
	header := http.Header{}
	header.Set("x-ratelimit-limit-tokens", "150000")
	header.Set("x-ratelimit-remaining-tokens", "149984")
	header.Set("x-ratelimit-reset-tokens", "6m0s")

	served := openai.Read(answers.Response{Status: 200, Header: header, Got: time.Now()})
	for _, r := range served.Readings {
		fmt.Println(r.Remaining, "of", r.Limit, r.Unit, "left, the bucket is full in", r.Reset)
	}

	header.Set("Retry-After", "20")
	refused := openai.Read(answers.Response{Status: 429, Header: header, Got: time.Now()})
	fmt.Println(refused.Kind == answers.Limited, refused.Delay)

	unpaid := openai.Read(answers.Response{Status: 429, Body: []byte(`{"error":{"type":"insufficient_quota"}}`)})
	fmt.Println(unpaid.Kind == answers.Other, unpaid.Reason)
	// Output:
	// 149984 of 150000 tokens left, the bucket is full in 6m0s
	// true 20s
	// true insufficient_quota
}

// Charges of one unit are added up. The last of several events counts.
func ExampleProfile_Meter() {
	anthropic := answers.Profile{Charges: []answers.Charge{
		{Unit: "input tokens", Field: answers.Field{Path: "usage.input_tokens"}, Or: answers.Field{Path: "message.usage.input_tokens"}},
		{Unit: "input tokens", Field: answers.Field{Path: "usage.cache_creation_input_tokens"}, Or: answers.Field{Path: "message.usage.cache_creation_input_tokens"}},
		{Unit: "output tokens", Field: answers.Field{Path: "usage.output_tokens"}, Or: answers.Field{Path: "message.usage.output_tokens"}},
	}}
	header := http.Header{"Content-Type": {"text/event-stream"}}
	body := strings.NewReader(`event: message_start
data: {"type":"message_start","message":{"usage":{"input_tokens":25,"cache_creation_input_tokens":100,"output_tokens":1}}}

event: message_delta
data: {"type":"message_delta","usage":{"output_tokens":15}}

`)
	if meter := anthropic.Meter(answers.Response{Status: 200, Header: header}); meter != nil {
		io.Copy(io.Discard, io.TeeReader(body, meter))
		for _, cost := range meter.Charged() {
			fmt.Println(cost.N, cost.Unit)
		}
	}
	// Output:
	// 125 input tokens
	// 15 output tokens
}

func ExampleProfile_Peeks() {
	openai := answers.Profile{Rules: []answers.Rule{
		{Status: 429, Path: "error.type", Text: "insufficient_quota", Kind: answers.Other},
	}}
	header := http.Header{"Content-Type": {"application/json"}}
	fmt.Println(openai.Peeks(200, header), openai.Peeks(429, header))
	// Output:
	// false true
}

func ExampleProfile_Validate() {
	github := answers.Profile{
		Quotas: []answers.Quota{{Reset: answers.Field{Header: "X-RateLimit-Reset"}}},
		Rules:  []answers.Rule{{Status: 403, Value: "0", Kind: answers.Limited}},
	}
	fmt.Println(github.Validate())
	// Output:
	// answers: Quotas[0].Reset has the Format Number: set a format of times, such as Seconds or EpochSeconds
	// Rules[0].Header is empty: set the header that has the Value, or clear Value
}

// Common serves an API that nobody has described.
func ExampleCommon() {
	header := http.Header{}
	header.Set("Date", "Mon, 04 May 2026 12:00:00 GMT")
	header.Set("X-RateLimit-Remaining", "0")
	header.Set("X-RateLimit-Reset", "1777896041")
	refused := answers.Common().Read(answers.Response{Status: 429, Header: header})
	fmt.Println(refused.Delay)

	header.Set("X-RateLimit-Reset", "41") // seconds left, or something else
	refused = answers.Common().Read(answers.Response{Status: 429, Header: header})
	fmt.Println(refused.Known)
	// Output:
	// 41s
	// false
}
