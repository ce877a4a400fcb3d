package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Airtable is Airtable's API for the tokens of one user. A base has 5 requests a second, whoever
// sends them, and the user has 50. Airtable doesn't document the kind of window, so seconds roll.
//
// A refusal pauses its base for 30 seconds, as Airtable asks; no response names a wait. Not limited
// here are the calls of a month, which depend on the workspace's plan. A refusal because they are
// used up pauses nothing, since no wait of minutes helps.
func Airtable() Provider {
	const page = "https://support.airtable.com/docs/managing-api-call-limits-in-airtable"
	return Provider{
		Name: "airtable",
		Scopes: []Scope{
			some("base", page, airtableBase, throttle.PerSecond(5)),
			every("user", page, throttle.PerSecond(50)),
		},
		Profile: answers.Profile{Rules: []answers.Rule{
			{Status: http.StatusTooManyRequests, Path: "errors.*.error", Text: "*BILLING_LIMIT_EXCEEDED", Kind: answers.Other},
			{Status: http.StatusTooManyRequests, Path: "error.type", Text: "*BILLING_LIMIT_EXCEEDED", Kind: answers.Other},
			{Status: http.StatusTooManyRequests, Kind: answers.Limited, Wait: 30 * time.Second},
		}},
		Hosts: []string{"api.airtable.com"},
	}
}

// airtableBase returns the base of a request.
func airtableBase(req *http.Request) (base string, counts bool) {
	for segment := range strings.SplitSeq(req.URL.Path, "/") {
		if strings.HasPrefix(segment, "app") {
			return segment, true
		}
	}
	return "", false
}
