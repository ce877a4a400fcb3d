package providers

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var amazonSPAPIPreset = Preset{Name: "amazon-sp-api", Constructor: "AmazonSPAPI()", kind: "Payments and shops", New: AmazonSPAPI}

// AmazonSPAPI is the Selling Partner API of Amazon, with the limits of each operation for one
// selling partner. An operation has a token bucket for each partner and application: the one of GET
// /orders/v0/orders gains a request a minute and holds 20. The scopes are Amazon's plans, named
// after the rate and the burst, such as "0.0167/20", and each operation of a plan has a quota of
// its own. Operations without a published plan are assumed to have one request every two seconds.
// The sandbox has 5 a second and a burst of 15 for all operations. The client is assumed to act for
// one selling partner in each region.
//
// Amazon gives some selling partners higher rates, which responses report in
// x-amzn-RateLimit-Limit: change the tiers of the plan.
//
// A refusal pauses its operation only. A refusal that reports the rate pauses for the time of one
// request, and others name no wait. A batch with refused entries has status 200 and pauses nothing.
func AmazonSPAPI() Provider {
	const page = "https://developer-docs.amazon.com/sp-api/docs/usage-plans-and-rate-limits"
	p := Provider{
		Name: "amazon-sp-api",
		Profile: answers.Profile{
			Quotas: []answers.Quota{{Rate: answers.Field{Header: "X-Amzn-Ratelimit-Limit"}}},
			Rules: []answers.Rule{{Status: http.StatusTooManyRequests, Kind: answers.Limited,
				Delay: []answers.Field{{Header: "X-Amzn-Ratelimit-Limit", Format: answers.PerSecond}}}},
		},
		Hosts: []string{
			"sellingpartnerapi-na.amazon.com", "sellingpartnerapi-eu.amazon.com", "sellingpartnerapi-fe.amazon.com",
			"sandbox.sellingpartnerapi-na.amazon.com", "sandbox.sellingpartnerapi-eu.amazon.com", "sandbox.sellingpartnerapi-fe.amazon.com",
		},
		Scopes: []Scope{some("sandbox", page, amazonSandbox, bucket(5, time.Second, 15))},
	}
	plans, _ := amazonTables()
	for _, plan := range plans {
		p.Scopes = append(p.Scopes, some(plan.String(), page, plan.operation, plan.tier()))
	}
	return p
}

// An amazonPlan is a rate in requests a second, and a burst.
type amazonPlan struct {
	rate  float64
	burst int64
}

// amazonUnlisted is the plan of operations without a published one.
var amazonUnlisted = amazonPlan{0.5, 1}

func (p amazonPlan) String() string { return fmt.Sprintf("%v/%d", p.rate, p.burst) }

// tier returns the plan's bucket. Rates have at most four decimals.
func (p amazonPlan) tier() throttle.Tier {
	const parts = 10_000
	return bucket(int64(math.Round(p.rate*parts)), parts*time.Second, p.burst)
}

// operation returns the operation of a request, if it has this plan. Each region counts separately.
func (p amazonPlan) operation(req *http.Request) (operation string, counts bool) {
	if _, sandbox := amazonSandbox(req); sandbox {
		return "", false
	}
	_, find := amazonTables()
	plan, operation := find(req)
	return hostOf(req) + " " + operation, plan == p
}

// amazonSandbox returns the region of a request to the sandbox.
func amazonSandbox(req *http.Request) (region string, counts bool) {
	return hostOf(req), strings.HasPrefix(hostOf(req), "sandbox.")
}

// amazonOperations are the operations by method, path and plan: the rate in requests a second, and the
// burst. Each * stands for one segment of a path. They are the usage plans in the descriptions of
// amzn/selling-partner-api-models at 34dc93f, read on 2026-11-22.
//
//go:embed amazonoperations.txt
var amazonOperations string

// amazonTables returns the plans, slowest first, and a function that returns the plan and the operation
// of a request.
var amazonTables = sync.OnceValues(func() (plans []amazonPlan, find func(*http.Request) (amazonPlan, string)) {
	planOf := make(map[string]amazonPlan)
	for line := range strings.Lines(amazonOperations) {
		var method, path string
		var plan amazonPlan
		if _, err := fmt.Sscanf(line, "%s %s %g/%d", &method, &path, &plan.rate, &plan.burst); err != nil {
			panic(fmt.Sprintf("providers: amazonoperations.txt: %q: %v", line, err))
		}
		planOf[method+" "+path] = plan
	}
	of := operationsOf(planOf)
	plans = slices.Compact(slices.SortedFunc(maps.Values(planOf), func(a, b amazonPlan) int {
		return cmp.Or(cmp.Compare(a.rate, b.rate), cmp.Compare(a.burst, b.burst))
	}))
	return plans, func(req *http.Request) (amazonPlan, string) {
		if plan, operation := of(req); operation != "" {
			return plan, operation
		}
		return amazonUnlisted, endpoint(req.Method, req.URL.Path, isNumbered)
	}
})
