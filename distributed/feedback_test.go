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
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/redistest"
)

// told is a base whose answers have a header.
type told struct {
	mu    sync.Mutex
	lines []string // status and header of each answer; the last is repeated
	sent  []time.Time
}

func (b *told) RoundTrip(*http.Request) (*http.Response, error) {
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

// twoOf is a client and a limiter in each of two processes that share a quota.
func twoOf(t *testing.T, s *redistest.Server, policy throttle.Policy, profile *answers.Profile, base http.RoundTripper) (clients [2]*http.Client, limiters [2]*throttle.Limiter) {
	t.Helper()
	for i := range clients {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
		t.Cleanup(func() { rdb.Close() })
		lim, err := throttle.New(policy, distributed.New(rdb, distributed.Options{}))
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

// eventually waits for what a goroutine that ends with a call to Redis brings about.
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

func usedOf(t *testing.T, l *throttle.Limiter) int64 {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[0].Used
}

// What one process hears is left, all know.
func TestFleetHearsWhatIsLeft(t *testing.T) {
	s := redistest.Start(t)
	base := &told{lines: []string{"200 X-Limit=100 X-Remaining=40 X-Reset=600", "200 X-Limit=100 X-Remaining=90 X-Reset=600"}}
	clients, limiters := twoOf(t, s, throttle.Policy{Name: "left", Tiers: []throttle.Tier{throttle.PerHour(100)}}, remaining, base)
	get(t, clients[0])
	eventually(t, "the other process does not count the 60 that are used", func() bool { return usedOf(t, limiters[1]) >= 60 })
	get(t, clients[1]) // which does not loosen it
	if got := usedOf(t, limiters[0]); got < 61 || got > 63 {
		t.Errorf("%d used", got)
	}
	base.lines = []string{"200 X-Limit=100 X-Remaining=0 X-Reset=600"}
	get(t, clients[1])
	eventually(t, "the other process does not know that nothing is left", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return limiters[0].Wait(ctx) != nil
	})
}

// What was never sent is taken off its way in Redis.
func TestFleetUnsent(t *testing.T) {
	s := redistest.Start(t)
	_, limiters := twoOf(t, s, throttle.Policy{Name: "unsent", Tiers: []throttle.Tier{throttle.PerHour(10)}, Guard: time.Minute}, nil, nil)
	client := &http.Client{Transport: &throttle.Transport{Limiter: limiters[0]}}
	if _, err := client.Get("http://127.0.0.1:1/"); err == nil {
		t.Fatal("somebody listens there")
	}
	eventually(t, "the request still counts", func() bool { return usedOf(t, limiters[1]) == 0 })
}

// A process that holds nothing any more has nothing to renew.
func TestSettledLeasesRest(t *testing.T) {
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
		time.Sleep(lease) // it is told
		if used := tierStatus(t, lim, 1).Used; used != 20 {
			t.Errorf("%d tokens are used, want 20", used)
		}
		before := counter.Count()
		time.Sleep(10 * lease)
		if more := counter.Count() - before; more > 0 {
			t.Errorf("%d calls in ten leases", more)
		}
	})
}
