package providers

import (
	"net/http"
	"slices"
	"strings"

	"github.com/apithrottle/throttle"
)

var asanaPreset = Preset{
	Name: "asana", Constructor: "Asana(requests int64)", kind: "Code and work",
	Parameters: []Parameter{{Name: "requests", About: "requests a minute of a token", Min: 1, Default: "150", Example: "1500"}},
	call:       func(a arguments) Provider { return Asana(a.number("requests")) },
}

// Asana is the API of Asana, with the limits of each token. A token has a number of requests a
// minute, by the plan of the domain: 150 (free) or 1,500 (paid). It has 50 reads and 15 writes at
// once, and 60 searches a minute. Duplications, instantiations and exports have 5 jobs at once,
// together. A request costs one. A batch costs as much as its actions, of which it has up to 10.
// Asana looks at the minute more often than once a minute, so minutes roll.
//
// Asana also has a quota of the cost of building responses, such as all tasks of a project with all
// their fields. It publishes neither the quota nor a request's cost, so the preset does not limit
// it. No response reports what is left of any limit. A job may last longer than its request, which
// the preset can't see. So some requests for jobs may be refused.
//
// A refusal pauses the token, or searches or jobs alone if it is of one of them. It names the wait.
// Asana counts refused requests, too.
func Asana(requests int64) Provider {
	const page = "https://developers.asana.com/docs/rate-limits"
	counts := func(unit string) func(*http.Request) (string, bool) {
		return when(func(req *http.Request) bool { return asanaCost(req)[unit] > 0 })
	}
	shared := func(s Scope) Scope { // a batch may count in both
		s.Shared = true
		return s
	}
	atOnce := func(limit int64, unit string) throttle.Tier {
		return throttle.Tier{Limit: limit, Algorithm: throttle.Concurrency, Unit: unit}
	}
	p := Provider{
		Name: "asana",
		Scopes: []Scope{
			shared(some("reads", page, counts("reads"), atOnce(50, "reads"))),
			shared(some("writes", page, counts("writes"), atOnce(15, "writes"))),
			some("search", page, counts("searches"), minute(60, "searches")),
			some("jobs", page, counts("jobs"), atOnce(asanaJobsAtOnce, "jobs")),
			some("token", page, counts("requests"), throttle.PerMinute(requests)),
		},
		Cost:  asanaCost,
		Hosts: []string{"app.asana.com"},
	}
	for i := range p.Scopes {
		p.Scopes[i].Per = PerToken
	}
	return p.readOn("2026-11-29")
}

const asanaBase = "/api/1.0/"

// asanaJobs are the paths of POSTs that start a job.
var asanaJobs = []string{"*/*/duplicate", "*/*/instantiateProject", "*/*/instantiateTask", "organization_exports", "exports/*"}

const asanaJobsAtOnce = 5

// asanaCost returns what a request costs: what its actions cost, if it is a batch. A batch that can't be
// read costs as much as the largest. See https://developers.asana.com/docs/batch-requests, read on
// 2026-11-29.
func asanaCost(req *http.Request) throttle.Cost {
	const most = 10 // actions
	path, api := strings.CutPrefix(req.URL.Path, asanaBase)
	if path = strings.TrimSuffix(path, "/"); !api {
		return nil
	}
	if req.Method != http.MethodPost || path != "batch" {
		return asanaActions([]asanaAction{{req.Method, path}})
	}
	var batch struct {
		Data struct{ Actions []asanaAction }
	}
	if decode(req, &batch) && 0 < len(batch.Data.Actions) && len(batch.Data.Actions) <= most {
		return asanaActions(batch.Data.Actions)
	}
	return throttle.Cost{"requests": most, "reads": most, "writes": most}
}

// An asanaAction is a request, or an action of a batch.
type asanaAction struct {
	Method string
	Path   string `json:"relative_path"`
}

// asanaActions returns what actions cost.
func asanaActions(actions []asanaAction) throttle.Cost {
	cost := throttle.Cost{"requests": int64(len(actions))}
	for _, action := range actions {
		method := strings.ToUpper(action.Method)
		path, _, _ := strings.Cut(strings.TrimPrefix(action.Path, "/"), "?")
		if method == http.MethodGet || method == "" {
			cost["reads"]++
		} else {
			cost["writes"]++
		}
		if matches("workspaces/*/tasks/search", path) {
			cost["searches"]++
		}
		starts := slices.ContainsFunc(asanaJobs, func(pattern string) bool { return matches(pattern, path) })
		if method == http.MethodPost && starts && cost["jobs"] < asanaJobsAtOnce {
			cost["jobs"]++
		}
	}
	return cost
}
