package ietf_test

import (
	"fmt"
	"net/http"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/ietf"
)

func ExampleProfile() {
	header := http.Header{}
	header.Set("RateLimit-Policy", `"burst";q=100;w=60`)
	header.Set("RateLimit", `"burst";r=50;t=30`)
	for _, r := range ietf.Profile().Read(answers.Response{Status: 200, Header: header}).Readings {
		fmt.Println(r.Name, r.Remaining, "of", r.Limit, "per", r.Window, "left, more in", r.Reset)
	}
	// Output:
	// burst 50 of 100 per 1m0s left, more in 30s
}

func ExampleQuota() {
	points := ietf.Quota("Beta-RateLimit")
	points.Unit = "points"
	jira := answers.Profile{Quotas: []answers.Quota{points}}

	header := http.Header{}
	header.Set("Beta-RateLimit-Policy", `"global-app-quota";q=65000;w=3600`)
	header.Set("Beta-RateLimit", `"global-app-quota";r=11000;t=600`)
	for _, r := range jira.Read(answers.Response{Status: 200, Header: header}).Readings {
		fmt.Println(r.Remaining, "of", r.Limit, r.Unit, "left, more in", r.Reset)
	}
	// Output:
	// 11000 of 65000 points left, more in 10m0s
}
