package providers

import (
	"cmp"
	"fmt"
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
	_, paths := amazonTables()
	plan, path := paths.find(append(strings.Split(strings.Trim(req.URL.EscapedPath(), "/"), "/"), req.Method))
	if path == "" {
		plan, path = amazonUnlisted, endpoint(req.Method, req.URL.Path, isNumbered)
	}
	return hostOf(req) + " " + path, plan == p
}

// amazonSandbox returns the region of a request to the sandbox.
func amazonSandbox(req *http.Request) (region string, counts bool) {
	return hostOf(req), strings.HasPrefix(hostOf(req), "sandbox.")
}

// amazonTables returns the plans, slowest first, and the operations.
var amazonTables = sync.OnceValues(func() ([]amazonPlan, *amazonNode) { return amazonTree(amazonOperations) })

// An amazonNode is a node of a tree of the segments of paths. The last segment is the method.
type amazonNode struct {
	next map[string]*amazonNode
	plan amazonPlan
	path string // of an operation, with its method
}

func amazonTree(operations map[amazonPlan]string) (plans []amazonPlan, root *amazonNode) {
	root = &amazonNode{}
	for plan, list := range operations {
		plans = append(plans, plan)
		for line := range strings.Lines(strings.TrimSpace(list)) {
			method, path, _ := strings.Cut(strings.TrimSpace(line), " ")
			n := root
			for _, segment := range append(strings.Split(strings.Trim(path, "/"), "/"), method) {
				if n.next[segment] == nil {
					if n.next == nil {
						n.next = make(map[string]*amazonNode)
					}
					n.next[segment] = &amazonNode{}
				}
				n = n.next[segment]
			}
			n.plan, n.path = plan, method+" "+path
		}
	}
	slices.SortFunc(plans, func(a, b amazonPlan) int { return cmp.Or(cmp.Compare(a.rate, b.rate), cmp.Compare(a.burst, b.burst)) })
	return plans, root
}

// find returns the operation at the segments, and its plan. The path is empty if there is none.
func (n *amazonNode) find(segments []string) (plan amazonPlan, path string) {
	if len(segments) == 0 {
		return n.plan, n.path
	}
	for _, step := range []string{segments[0], "*"} {
		if next := n.next[step]; next != nil {
			if plan, path = next.find(segments[1:]); path != "" {
				return plan, path
			}
		}
	}
	return plan, ""
}
