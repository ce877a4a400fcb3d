package fakeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

// GitHub is GitHub's REST and GraphQL APIs for one user. REST accepts most requests an hour, and
// GraphQL as many points. hour may be shorter than an hour. Windows begin at 17/60 of an hour. The
// cost of a GraphQL query is its variable "cost".
func GitHub(most int64, hour time.Duration) *Server {
	resources := map[string]*window{
		"core":        {limit: most, length: hour},
		"graphql":     {limit: most, length: hour},
		"search":      {limit: 30, length: time.Minute},
		"code_search": {limit: 9, length: time.Minute},
	}
	phase, secondary := 17*hour/60, newGitHubLimits()
	return newServer(func(c *Call) Reply {
		name, cost, writes := githubCall(c)
		primary, at := resources[name], c.Now.Add(-phase)
		headers := func() map[string]string {
			left := primary.left(at)
			return map[string]string{
				"X-RateLimit-Limit": strconv.FormatInt(primary.limit, 10), "X-RateLimit-Remaining": strconv.FormatInt(left, 10),
				"X-RateLimit-Used":  strconv.FormatInt(primary.limit-left, 10),
				"X-RateLimit-Reset": strconv.FormatInt(primary.start.Add(primary.length+phase+time.Second-1).Unix(), 10), "X-RateLimit-Resource": name,
			}
		}
		if primary.left(at) < cost {
			return githubSpent(name, headers())
		}
		if by := secondary.charge(c, name == "graphql", writes); by != "" {
			return githubSecondary(by, headers())
		}
		primary.used += cost
		secondary.open++
		return Reply{Header: headers(), Body: fmt.Sprintf(`{"data":{"rateLimit":{"cost":%d}}}`, cost), Release: func() { secondary.open-- }}
	})
}

// gitHubLimits are the secondary limits, which no header reports.
type gitHubLimits struct {
	points, graphql, content *throttletest.Counter
	open                     int
}

func newGitHubLimits() *gitHubLimits {
	return &gitHubLimits{
		points:  newCounters(algorithms.PerMinute(900)).of(""),
		graphql: newCounters(algorithms.PerMinute(2_000)).of(""),
		content: newCounters(algorithms.PerMinute(80), algorithms.PerHour(500)).of(""),
	}
}

// charge counts a call, or returns the limit that refuses it.
func (g *gitHubLimits) charge(c *Call, graphql, writes bool) (by string) {
	weight := map[string]int64{"requests": 1}
	if writes {
		weight["requests"] = 5
	}
	limits := []limit{{"points", g.points, weight}}
	if graphql {
		limits[0] = limit{"graphql points", g.graphql, weight}
	}
	if c.Method == http.MethodPost && (!graphql || writes) {
		limits = append(limits, limit{"content", g.content, nil})
	}
	if g.open == 100 {
		return "concurrency"
	}
	by, _ = charge(c.Now, limits...)
	return by
}

// githubCall returns the resource of a call, its cost, and whether it writes.
func githubCall(c *Call) (resource string, cost int64, writes bool) {
	writes = c.Method != http.MethodGet
	switch path := c.URL.Path; {
	case path == "/graphql":
		var query struct {
			Query     string
			Variables struct{ Cost int64 }
		}
		_ = json.Unmarshal(c.Body, &query)
		return "graphql", max(1, query.Variables.Cost), strings.HasPrefix(query.Query, "mutation")
	case path == "/search/code":
		return "code_search", 1, false
	case strings.HasPrefix(path, "/search/"):
		return "search", 1, false
	case path == "/rate_limit":
		return "core", 0, false
	}
	return "core", 1, writes
}

func githubSpent(resource string, header map[string]string) Reply {
	if resource == "graphql" {
		return Reply{Refused: resource, Header: header, Body: `{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded for user ID 1."}]}`}
	}
	return Reply{Status: http.StatusForbidden, Refused: resource, Header: header, Body: `{"message":"API rate limit exceeded for user ID 1."}`}
}

// githubSecondary refuses a call without a time at which the refusal ends.
func githubSecondary(by string, header map[string]string) Reply {
	return Reply{Status: http.StatusForbidden, Refused: by, Header: header, Body: `{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`}
}
