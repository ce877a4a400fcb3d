package providers

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
)

var linearPreset = Preset{Name: "linear", Constructor: "Linear()", kind: "Code and work", New: Linear}

// Linear is the GraphQL API of Linear, with the limits of one user with API keys, of each token of
// an OAuth app, and of an address without credentials. All are buckets that hold the limit of an
// hour and gain it in an hour. A user has 2,500 requests and 3,000,000 points of complexity,
// whatever the number of API keys: for several users, set Account. A token of an OAuth app, which
// begins with "Bearer", is taken to be one user of the app, with 5,000 requests and 2,000,000
// points. An address has 600 and 100,000. Responses name the limits, and the tiers take them over,
// up to ten times as much, because an app in a large workspace has more.
//
// A query costs a tenth of a point for each property and a point for each object. A connection
// multiplies what it selects by its argument first or last, or by 50. The preset computes that from
// the query's text, its fragments and its variables, and X-Complexity in the response corrects it.
// If similar queries, which have the same text and the same variables except for strings, have cost
// more, the charge is what they cost. A query that can't be read is charged 10,000 points, which is
// the most that Linear allows one query.
//
// A refusal has status 400, or sometimes 200 or 429, and the code RATELIMITED or only its message.
// It pauses the user, token or address briefly: responses name a reset that is always an hour away,
// but the buckets gain all the time. Some queries and mutations have limits of their own, which
// Linear doesn't publish. A refusal by one of these has headers of an endpoint, and pauses only the
// requests with the same fields at their root, until the reset that the headers name.
func Linear() Provider {
	const page = "https://linear.app/developers/rate-limiting"
	endpoint := some("endpoint", page, linearEndpoint, noLimit)
	app := some("app", page, linearBy(true, true), linearTiers(5_000, 2_000_000)...)
	endpoint.Per, app.Per = PerToken, PerToken
	spent := new(prompt.Learner)
	p := Provider{
		Name: "linear",
		Scopes: []Scope{
			endpoint,
			some("user", page, linearBy(true, false), linearTiers(2_500, 3_000_000)...),
			app,
			byAddress(some("address", page, linearBy(false, false), linearTiers(600, 100_000)...)),
		},
		Cost: func(req *http.Request) throttle.Cost {
			if req.URL.Path != linearPath {
				return nil
			}
			return throttle.Cost{linearPoints: max(linearCost(req), min(spent.Estimate(queryKinds(req)...), linearMost)), "nothing": 0}
		},
		Settle: func(req *http.Request) func(throttle.Cost) throttle.Cost {
			end := spent.Begin(queryKinds(req)...)
			return func(reported throttle.Cost) throttle.Cost {
				n, known := reported[linearPoints]
				if n = min(n, linearMost); known {
					reported[linearPoints] = n
				}
				end(n, known)
				return reported
			}
		},
		Profile: linearProfile(),
		Hosts:   []string{"api.linear.app"},
	}
	for i := range p.Scopes {
		p.Scopes[i].Policy.MaxPause = time.Hour + time.Minute
	}
	return p.readOn("2026-11-29")
}

const linearPath, linearPoints = "/graphql", "complexity"

// linearTiers returns the limits of an hour.
func linearTiers(requests, points int64) []throttle.Tier {
	complexity := bucket(points, time.Hour, points)
	complexity.Unit, complexity.Estimated = linearPoints, true
	return []throttle.Tier{tenfold(0, bucket(requests, time.Hour, requests)), tenfold(0, complexity)}
}

func linearProfile() answers.Profile {
	const of = "X-Ratelimit-"
	quota := func(unit, of string) answers.Quota {
		return within(time.Hour, inHeaders(unit, of+"-Limit", of+"-Remaining", answers.Field{}))
	}
	p := answers.Profile{
		Quotas:  []answers.Quota{quota("", of+"Requests"), quota(linearPoints, of+"Complexity")},
		Charges: []answers.Charge{{Unit: linearPoints, Field: answers.Field{Header: "X-Complexity"}}},
	}
	for _, status := range []int{http.StatusBadRequest, http.StatusTooManyRequests, http.StatusOK} {
		limited := answers.Rule{Method: http.MethodPost, Status: status, Path: "errors.*.extensions.code", Text: "RATELIMITED", Kind: answers.Limited}
		endpoint := limited
		endpoint.Header, endpoint.Value = of+"Endpoint-Requests-Remaining", "0"
		endpoint.Delay = []answers.Field{{Header: of + "Endpoint-Requests-Reset", Format: answers.EpochMillis}}
		limited.Wide = true
		bare := limited // without a code
		bare.Path, bare.Text = "errors.*.message", "Rate limit exceeded. Only *"
		p.Rules = append(p.Rules, endpoint, limited, bare)
	}
	p.Rules = append(p.Rules, answers.Rule{Status: http.StatusTooManyRequests, Kind: answers.Limited, Wide: true})
	return p
}

// linearBy returns the Key of requests with or without credentials, and with those of an OAuth app or not.
func linearBy(credentials, oauth bool) func(*http.Request) (string, bool) {
	return when(func(req *http.Request) bool {
		with := req.Header.Get("Authorization")
		scheme, _, _ := strings.Cut(with, " ")
		return req.URL.Path == linearPath && (with != "") == credentials && strings.EqualFold(scheme, "Bearer") == oauth
	})
}

// linearEndpoint returns the fields at the root of a query.
func linearEndpoint(req *http.Request) (fields string, counts bool) {
	q, _ := graphQL(req)
	for _, f := range q.fields {
		fields += f.name + " "
	}
	return fields, req.URL.Path == linearPath
}

const linearMost = 10_000 // points that one query may cost

// linearCost returns the complexity of a query.
func linearCost(req *http.Request) int64 {
	q, ok := graphQL(req)
	if !ok {
		return linearMost
	}
	c := linearComplexity{&q, make(map[string]int64)}
	return min((c.tenths(q.fields)+9)/10, linearMost)
}

// A linearComplexity computes the complexity of a query.
type linearComplexity struct {
	query *gqlQuery
	known map[string]int64 // of fragments
}

// tenths returns the complexity of fields in tenths of a point, at most a million times 250.
func (c *linearComplexity) tenths(fields []gqlField) (sum int64) {
	for _, f := range fields {
		switch {
		case f.spread:
			if _, known := c.known[f.name]; !known {
				c.known[f.name] = 0 // a fragment in itself is malformed
				c.known[f.name] = c.tenths(c.query.fragments[f.name])
			}
			sum += c.known[f.name]
		case f.fields == nil:
			sum++
		case c.query.selects(f.fields, "nodes", "edges"):
			sum += c.items(f.args) * c.tenths(f.fields)
		default:
			sum += 10 + c.tenths(f.fields)
		}
		sum = min(sum, 1_000_000)
	}
	return sum
}

// items returns the number of items of a connection.
func (c *linearComplexity) items(args map[string]string) int64 {
	for _, name := range []string{"first", "last"} {
		if n, err := strconv.ParseInt(c.query.number(args[name]), 10, 64); err == nil {
			return min(max(n, 1), 250)
		}
	}
	return 50
}
