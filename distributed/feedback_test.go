package distributed_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/redistest"
)

// A headerProvider answers with the given statuses and headers.
type headerProvider struct {
	mu sync.Mutex
	// lines holds status and header of each answer. The last line is repeated.
	lines []string
	sent  []time.Time
}

func (b *headerProvider) RoundTrip(*http.Request) (*http.Response, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, time.Now())
	status, header, _ := strings.Cut(b.lines[0], " ")
	if len(b.lines) > 1 {
		b.lines = b.lines[1:]
	}
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}
	if status == "429" {
		resp.StatusCode = 429
	}
	for _, line := range strings.Fields(header) {
		name, value, _ := strings.Cut(line, "=")
		resp.Header.Set(name, value)
	}
	return resp, nil
}

var remaining = &answers.Profile{Quotas: []answers.Quota{{
	Window: time.Hour, Limit: answers.Field{Header: "X-Limit"}, Remaining: answers.Field{Header: "X-Remaining"},
	Reset: answers.Field{Header: "X-Reset", Format: answers.Seconds},
}}}

// newClients returns a client and a limiter of each of two processes that share a quota.
func newClients(t *testing.T, s *redistest.Server, policy throttle.Policy, profile *answers.Profile, base http.RoundTripper) (clients [2]*http.Client, limiters [2]*throttle.Limiter) {
	t.Helper()
	for i := range clients {
		rdb := s.PatientClient()
		lim, err := throttle.New(policy, distributed.New(rdb, distributed.Options{Timeout: slow}))
		if err != nil {
			t.Fatal(err)
		}
		limiters[i] = lim
		clients[i] = &http.Client{Transport: &throttle.Transport{Base: base, Limiter: lim, Profile: profile}}
	}
	return clients, limiters
}

func get(t *testing.T, c *http.Client) {
	t.Helper()
	resp, err := c.Get("http://api.test/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// eventually waits until is returns true, and fails with what after ten seconds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline, poll := time.After(10*time.Second), time.NewTicker(5*time.Millisecond)
	defer poll.Stop()
	for !is() {
		select {
		case <-deadline:
			t.Fatal(what)
		case <-poll.C:
		}
	}
}

func usedUnits(t *testing.T, l *throttle.Limiter) int64 {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[0].Used
}

// All processes count a remaining amount that was reported to one of them.
func TestFleetSharesReportedRemaining(t *testing.T) {
	s := redistest.Start(t)
	base := &headerProvider{lines: []string{"200 X-Limit=100 X-Remaining=40 X-Reset=600", "200 X-Limit=100 X-Remaining=90 X-Reset=600"}}
	clients, limiters := newClients(t, s, throttle.Policy{Name: "left", Tiers: []throttle.Tier{throttle.PerHour(100)}}, remaining, base)
	get(t, clients[0])
	eventually(t, "the other process does not count the 60 used units", func() bool { return usedUnits(t, limiters[1]) >= 60 })
	get(t, clients[1]) // a larger remaining count changes nothing
	if got := usedUnits(t, limiters[0]); got < 61 || got > 63 {
		t.Errorf("got %d used, want 61 to 63", got)
	}
	base.lines = []string{"200 X-Limit=100 X-Remaining=0 X-Reset=600"}
	get(t, clients[1])
	eventually(t, "the other process still admits with nothing left", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return limiters[0].Wait(ctx) != nil
	})
}

// A request that was never sent is refunded in Redis.
func TestFleetUnsent(t *testing.T) {
	s := redistest.Start(t)
	_, limiters := newClients(t, s, throttle.Policy{Name: "unsent", Tiers: []throttle.Tier{throttle.PerHour(10)}, Guard: time.Minute}, nil, nil)
	client := &http.Client{Transport: &throttle.Transport{Limiter: limiters[0]}}
	if _, err := client.Get("http://127.0.0.1:1/"); err == nil {
		t.Fatal("got a response from port 1, want a refused connection")
	}
	eventually(t, "the request still counts", func() bool { return usedUnits(t, limiters[1]) == 0 })
}

// A process that no longer holds anything does not renew its lease.
func TestSettledLeaseIsNotRenewed(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		rdb, counter := near(t, s), new(calls.Counter)
		rdb.AddHook(counter)
		const lease = 30 * time.Millisecond
		lim := limiter(t, throttle.Policy{Name: "rest", Tiers: []throttle.Tier{
			throttle.PerHour(10), {Limit: 1000, Window: time.Hour, Unit: "tokens", Algorithm: throttle.FixedWindow, Estimated: true},
		}}, distributed.New(rdb, distributed.Options{Lease: lease}))
		p, err := lim.Acquire(t.Context(), throttle.Cost{"tokens": 500})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Settle(throttle.Cost{"tokens": 20}); err != nil {
			t.Fatal(err)
		}
		p.Release()
		time.Sleep(lease) // the lease reports the settled cost
		if used := tierStatus(t, lim, 1).Used; used != 20 {
			t.Errorf("got %d tokens used, want 20", used)
		}
		before := counter.Count()
		time.Sleep(10 * lease)
		if more := counter.Count() - before; more > 0 {
			t.Errorf("got %d calls in ten lease lengths, want none", more)
		}
	})
}

// A reading is of the tier whose limit it reports, in whichever scope that is.
func TestFleetReadingOfOuterScope(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.PatientClient()
	for _, outer := range []string{"{a}/account", "{b}/account"} { // in the slot of the inner scope, and in another
		fleet := distributed.New(rdb, distributed.Options{Timeout: slow})
		endpoint := limiter(t, throttle.Policy{Name: "{a}" + outer, Tiers: []throttle.Tier{throttle.PerHour(600)}}, fleet)
		account := limiter(t, throttle.Policy{Name: outer, Tiers: []throttle.Tier{throttle.PerHour(1200)}}, fleet)
		get(t, &http.Client{Transport: &throttle.Transport{
			Limiter: endpoint.Within(account), Profile: remaining,
			Base: &headerProvider{lines: []string{"200 X-Limit=1200 X-Remaining=200 X-Reset=600"}},
		}})
		eventually(t, "the account does not count the 1,000 used units", func() bool { return usedUnits(t, account) == 1000 })
		if got := usedUnits(t, endpoint); got != 1 {
			t.Errorf("%s: got %d used of the endpoint, want 1", outer, got)
		}
	}
}
