package gauntlet

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

// Every peer, with its settings, lets pass what its documentation says.
func TestPeers(t *testing.T) {
	ms := func(at ...int) []int { return at }
	for _, test := range []struct {
		name string
		one  peer
		want []int // milliseconds at which eight requests of a lone caller pass, under 5/s
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
				wait, start := test.one("key", throttle.PerSecond(5), rdb), time.Now()
				for i, want := range test.want {
					if err := wait(t.Context(), 1); err != nil {
						t.Fatal(err)
					}
					// What is on the way to Redis and back is not the peer's.
					if got := time.Since(start); got.Round(50*time.Millisecond) != time.Duration(want)*time.Millisecond {
						t.Errorf("request %d passed at %v, want %d ms", i, got, want)
					}
				}
			})
		})
	}
}

// The limiters of a chain are asked in the order of their windows, longest first, and
// each is told what its unit costs.
func TestChain(t *testing.T) {
	var asked []string
	open := chain(func(_ string, tier throttle.Tier, _ *redis.Client) limiter {
		return func(_ context.Context, n int64) error {
			asked = append(asked, tier.Window.String(), tier.Unit, string(rune('0'+n)))
			return nil
		}
	})
	send, err := open(seat{Run: Run{Policy: "5/s + 100/m;unit=tokens"}, base: http.NewFileTransport(http.Dir("."))})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodGet, "http://provider", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(costHeader, "7")
	resp, err := send.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if want := []string{"1m0s", "tokens", "7", "1s", "", "1"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}

// A chain holds a place from before the first limiter until the body is closed, and
// gives it back if it is not sent.
func TestChainPlaces(t *testing.T) {
	refuse := false
	c := &chained{
		base:     sender{},
		places:   make(chan struct{}, 1),
		units:    []string{""},
		limiters: []limiter{func(context.Context, int64) error { return map[bool]error{true: io.EOF}[refuse] }},
	}
	req, err := http.NewRequest(http.MethodGet, "http://provider", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.RoundTrip(req)
	if err != nil || len(c.places) != 1 {
		t.Fatalf("%v, %d places are taken, want 1", err, len(c.places))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.RoundTrip(req.WithContext(ended)); err != context.Canceled {
		t.Errorf("without a place: %v", err)
	}
	resp.Body.Close()
	resp.Body.Close()
	refuse = true
	if _, err := c.RoundTrip(req); err != io.EOF || len(c.places) != 0 {
		t.Errorf("refused: %v, %d places are taken, want 0", err, len(c.places))
	}
}

type sender struct{}

func (sender) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}, nil
}
