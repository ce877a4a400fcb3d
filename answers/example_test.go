package answers_test

import (
	"fmt"
	"net/http"
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
		fmt.Println(r.Remaining, "of", r.Limit, r.Unit, "left, all of them in", r.Reset)
	}

	header.Set("Retry-After", "20")
	refused := openai.Read(answers.Response{Status: 429, Header: header, Got: time.Now()})
	fmt.Println(refused.Kind == answers.Limited, refused.Delay)

	unpaid := openai.Read(answers.Response{Status: 429, Body: []byte(`{"error":{"type":"insufficient_quota"}}`)})
	fmt.Println(unpaid.Kind == answers.Other, unpaid.Reason)
	// Output:
	// 149984 of 150000 tokens left, all of them in 6m0s
	// true 20s
	// true insufficient_quota
}
