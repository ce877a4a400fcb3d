package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// answerBounds are the upper bounds of the buckets of response times, in seconds.
var answerBounds = [...]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}

// outcomes are what becomes of requests to an upstream: the classes of the status, no response, and a
// client that has gone.
var outcomes = [...]string{"other", "1xx", "2xx", "3xx", "4xx", "5xx", "error", "canceled"}

const (
	outcomeError    = 6
	outcomeCanceled = 7
)

// mostUpstreams is how many prefixes have counts of their own. The rest counts as _OTHER.
const mostUpstreams = 200

// upstreams counts the responses of upstreams by the prefix of the route. A reload keeps the counts.
type upstreams struct {
	mu  sync.Mutex // guards all
	all map[string]*upstream
}

// An upstream counts the responses to the requests of a route.
type upstream struct {
	mu       sync.Mutex // guards all below
	outcomes [len(outcomes)]uint64
	buckets  [len(answerBounds) + 1]uint64
	seconds  float64
}

// of returns the counts of a prefix.
func (u *upstreams) of(prefix string) *upstream {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = make(map[string]*upstream)
	}
	if u.all[prefix] == nil && len(u.all) >= mostUpstreams {
		prefix = "_OTHER"
	}
	if u.all[prefix] == nil {
		u.all[prefix] = new(upstream)
	}
	return u.all[prefix]
}

// start is when the program started, and sinceStart the time since then, by a clock that is never set.
var start = time.Now()

func sinceStart() time.Duration { return time.Since(start) }

// countResponse counts a response of a status, whose header came some time after the admission.
func (u *upstream) countResponse(status int, took time.Duration) {
	outcome := status / 100
	if outcome > 5 {
		outcome = 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.outcomes[outcome]++
	i, _ := slices.BinarySearch(answerBounds[:], took.Seconds())
	u.buckets[i]++
	u.seconds += took.Seconds()
}

// countFailure counts a request without a response, whose client's context has ended with gone, or not.
func (u *upstream) countFailure(gone error) {
	outcome := outcomeError
	if errors.Is(gone, context.Canceled) {
		outcome = outcomeCanceled
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.outcomes[outcome]++
}

// metrics returns the counts in the text format of Prometheus. Prefixes need no escapes.
func (u *upstreams) metrics() string {
	u.mu.Lock()
	all := maps.Clone(u.all)
	u.mu.Unlock()
	var counts, times strings.Builder
	counts.WriteString("# HELP throttle_upstream_responses_total Requests sent to upstreams, by the class of the status, or why there was none.\n" +
		"# TYPE throttle_upstream_responses_total counter\n")
	times.WriteString("# HELP throttle_upstream_response_seconds Time from the admission of a request to the header of its response.\n" +
		"# TYPE throttle_upstream_response_seconds histogram\n")
	for _, prefix := range slices.Sorted(maps.Keys(all)) {
		all[prefix].write(prefix, &counts, &times)
	}
	return counts.String() + times.String()
}

// write writes the samples of a prefix.
func (u *upstream) write(prefix string, counts, times *strings.Builder) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, name := range outcomes[1:] {
		fmt.Fprintf(counts, "throttle_upstream_responses_total{route=%q,status=%q} %d\n", prefix, name, u.outcomes[i+1])
	}
	if u.outcomes[0] > 0 {
		fmt.Fprintf(counts, "throttle_upstream_responses_total{route=%q,status=%q} %d\n", prefix, outcomes[0], u.outcomes[0])
	}
	var below uint64
	for i, n := range u.buckets {
		below += n
		bound := "+Inf"
		if i < len(answerBounds) {
			bound = fmt.Sprint(answerBounds[i])
		}
		fmt.Fprintf(times, "throttle_upstream_response_seconds_bucket{route=%q,le=%q} %d\n", prefix, bound, below)
	}
	fmt.Fprintf(times, "throttle_upstream_response_seconds_sum{route=%q} %g\n", prefix, u.seconds)
	fmt.Fprintf(times, "throttle_upstream_response_seconds_count{route=%q} %d\n", prefix, below)
}
