package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var airtablePreset = Preset{Name: "airtable", Constructor: "Airtable()", kind: "Code and work", New: Airtable}

// Airtable is the API of Airtable, with the limits of each base and of one user. A base has 5
// requests a second from all users, and a user's tokens have 50 together. Airtable doesn't document
// the kind of window, so windows roll.
//
// A refusal pauses its base for 30 seconds, as Airtable asks; no response names a wait. The calls
// of a month, which depend on the workspace's plan, are not limited here. When they are used up, a
// refusal pauses nothing, because a wait of minutes doesn't help.
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
