package main

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
)

// TestPeers checks that every peer, with its settings, admits requests as its documentation
// describes.
func TestPeers(t *testing.T) {
	ms := func(at ...int) []int { return at }
	for _, test := range []struct {
		name string
		open peer
		want []int // milliseconds at which eight requests of one caller are admitted under 5/s
	}{
		{"xtime-burst", xtimeBurst, ms(0, 0, 0, 0, 0, 200, 400, 600)},
		{"xtime-1", xtimeOne, ms(0, 200, 400, 600, 800, 1000, 1200, 1400)},
		{"uber", uber, ms(0, 200, 400, 600, 800, 1000, 1200, 1400)},
		{"failsafe-smooth", failsafeSmooth, ms(0, 200, 400, 600, 800, 1000, 1200, 1400)},
		{"failsafe-bursty", failsafeBursty, ms(0, 0, 0, 0, 0, 1000, 1000, 1000)},
		{"redis_rate", redisRate, ms(0, 0, 0, 0, 0, 200, 400, 600)},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := miniredis.NewMiniRedis()
				defer server.Close()
				rdb := dial(server)
				defer rdb.Close()
				wait, start := test.open("key", throttle.PerSecond(5), rdb), time.Now()
				for i, want := range test.want {
					if err := wait(t.Context(), 1); err != nil {
						t.Fatal(err)
					}
					// Rounding removes the time of the calls of Redis.
					if got := time.Since(start); got.Round(50*time.Millisecond) != time.Duration(want)*time.Millisecond {
						t.Errorf("request %d was admitted at %v, want %d ms", i, got, want)
					}
				}
			})
		})
	}
}

// TestChain checks that a chain calls its limiters in the order of their windows, longest
// first, and passes each limiter the cost in its unit.
func TestChain(t *testing.T) {
	var called []string
	open := chain(func(_ string, tier throttle.Tier, _ *redis.Client) limiter {
		return func(_ context.Context, n int64) error {
			called = append(called, tier.Window.String(), tier.Unit, string(rune('0'+n)))
			return nil
		}
	})
	transport, err := open(process{Run: Run{Policy: "5/s + 100/m;unit=tokens"}, base: http.NewFileTransport(http.Dir("."))})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodGet, "http://provider", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(costHeader, "7")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if want := []string{"1m0s", "tokens", "7", "1s", "", "1"}; !slices.Equal(called, want) {
		t.Errorf("the calls were %q, want %q", called, want)
	}
}

// TestChainSlots checks that a request holds its slot from before the first limiter until its
// body is closed, and that a request that is not sent releases its slot.
func TestChainSlots(t *testing.T) {
	refuse := false
	c := &chained{
		base:     sender{},
		slots:    make(chan struct{}, 1),
		units:    []string{""},
		limiters: []limiter{func(context.Context, int64) error { return map[bool]error{true: io.EOF}[refuse] }},
	}
	req, err := http.NewRequest(http.MethodGet, "http://provider", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.RoundTrip(req)
	if err != nil || len(c.slots) != 1 {
		t.Fatalf("%v, %d slots are taken, want 1", err, len(c.slots))
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.RoundTrip(req.WithContext(canceled)); err != context.Canceled {
		t.Errorf("without a free slot: %v, want %v", err, context.Canceled)
	}
	resp.Body.Close()
	resp.Body.Close()
	refuse = true
	if _, err := c.RoundTrip(req); err != io.EOF || len(c.slots) != 0 {
		t.Errorf("refused: %v, %d slots are taken, want 0", err, len(c.slots))
	}
}

type sender struct{}

func (sender) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}, nil
}
