package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/throttletest"
)

func trUsed(t *testing.T, l *throttle.Limiter) int64 {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[0].Used
}

// trPaused returns the time at which the pause ends, by Status.
func trPaused(t *testing.T, l *throttle.Limiter) time.Time {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return time.Now().Add(s.Paused)
}

func TestTransportZero(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
	}))
	defer server.Close()
	tr := &throttle.Transport{}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	for range 3 {
		resp, err := client.Post(server.URL, "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(text) != "hello" {
			t.Fatalf("got %q, %v; want hello", text, err)
		}
	}
}

func TestTransportRoute(t *testing.T) {
	hour := throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(100)}}
	limiter, other := trLimiter(t, hour), trLimiter(t, hour)
	for _, c := range []struct {
		name                   string
		limiter                *throttle.Limiter
		route                  func(*http.Request) *throttle.Limiter
		limiterPaid, otherPaid int64
	}{
		{name: "neither", limiter: nil, route: nil},
		{name: "limiter", limiter: limiter, limiterPaid: 1},
		{name: "route instead of limiter", limiter: limiter, route: func(*http.Request) *throttle.Limiter { return other }, otherPaid: 1},
		{name: "route to nothing", limiter: limiter, route: func(*http.Request) *throttle.Limiter { return nil }},
		{name: "route by path", route: func(r *http.Request) *throttle.Limiter {
			return map[string]*throttle.Limiter{"/v1/things": other}[r.URL.Path]
		}, otherPaid: 1},
	} {
		l, o := trUsed(t, limiter), trUsed(t, other)
		base := trNewBase(nil)
		trExpect(t, &throttle.Transport{Base: base, Limiter: c.limiter, Route: c.route}, 200)
		if got := trUsed(t, limiter) - l; got != c.limiterPaid {
			t.Errorf("%s: limiter was charged %d, want %d", c.name, got, c.limiterPaid)
		}
		if got := trUsed(t, other) - o; got != c.otherPaid {
			t.Errorf("%s: other limiter was charged %d, want %d", c.name, got, c.otherPaid)
		}
		if len(base.sent) != 1 {
			t.Errorf("%s: %d requests were sent, want 1", c.name, len(base.sent))
		}
	}
}

func TestTransportCost(t *testing.T) {
	lim := trLimiter(t, throttle.Policy{Name: "llm", Tiers: []throttle.Tier{
		throttle.PerHour(10),
		{Limit: 1000, Window: time.Hour, Unit: "tokens"},
	}})
	for _, c := range []struct {
		name             string
		cost             throttle.Cost
		requests, tokens int64 // charged
		err              string
	}{
		{name: "nil", cost: nil, requests: 1},
		{name: "empty", cost: throttle.Cost{}, requests: 1},
		{name: "tokens", cost: throttle.Cost{"tokens": 300}, requests: 1, tokens: 300},
		{name: "both", cost: throttle.Cost{"requests": 2, "tokens": 5}, requests: 2, tokens: 5},
		{name: "tokens alone", cost: throttle.Cost{"requests": 0, "tokens": 5}, tokens: 5},
		{name: "nothing", cost: throttle.Cost{"requests": 0}},
		{name: "unknown unit", cost: throttle.Cost{"tokns": 5}, err: `throttle: policy "llm": cost names the unit "tokns"`},
		{name: "negative", cost: throttle.Cost{"tokens": -5}, err: `cost of "tokens" is -5`},
		{name: "too much", cost: throttle.Cost{"tokens": 1001}, err: "exceeds the capacity of tier"},
	} {
		before, _ := lim.Status(t.Context())
		base := trNewBase(nil)
		tr := &throttle.Transport{Base: base, Limiter: lim, Cost: func(r *http.Request) throttle.Cost {
			if r.URL.String() != trURL {
				t.Errorf("%s: Cost was called for %s", c.name, r.URL)
			}
			return c.cost
		}}
		_, err := trSend(t.Context(), tr)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: error is %v, want %q", c.name, err, c.err)
		}
		if sent := len(base.sent); (sent == 1) != (c.err == "") {
			t.Errorf("%s: %d requests were sent, want one unless it is an error", c.name, sent)
		}
		after, _ := lim.Status(t.Context())
		for i, want := range []int64{c.requests, c.tokens} {
			if got := after.Tiers[i].Used - before.Tiers[i].Used; got != want {
				t.Errorf("%s: tier %d was charged %d, want %d", c.name, i, got, want)
			}
		}
	}
}

// TestTransportStrictProvider sends 12,000 requests, each 5 to 50 ms late, to a provider that
// allows 5/s + 10000/h. It must refuse none, and each request must be sent as soon as it is certain
// not to be refused.
func TestTransportStrictProvider(t *testing.T) {
	soak.Slow(t, "it sends 12,000 requests")
	synctest.Test(t, func(t *testing.T) {
		const n, workers = 12_000, 16
		tiers := []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10_000)}
		api := throttletest.New(tiers...)
		api.Delay = func() time.Duration { return 5*trTick + time.Duration(rand.IntN(45_001))*time.Microsecond }
		base := trNewBase(func(_ int, r *http.Request) (*http.Response, error) { return api.RoundTrip(r) })
		tr := &throttle.Transport{Base: base, Limiter: trLimiter(t, throttle.Policy{Tiers: tiers})}
		var left atomic.Int64
		left.Store(n)
		var group sync.WaitGroup
		for range workers {
			group.Go(func() {
				for left.Add(-1) >= 0 {
					if _, err := trSend(t.Context(), tr); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		if s := api.Summary(); s.Sent != n || s.Refused != 0 || s.WorstSecond != 5 {
			t.Errorf("summary is %+v, want %d sent, none refused and at most 5 in a second", s, n)
		}
		arrived, sent := api.Arrivals(), base.times()
		for i, at := range sent {
			first := time.Duration(0)
			for _, tier := range tiers {
				if k := i - int(tier.Limit); k >= 0 {
					first = max(first, arrived[k].At.Sub(base.start)+tier.Window)
				}
			}
			if at != first {
				t.Fatalf("request %d was sent at %v, want %v", i, at, first)
			}
		}
	})
}

func TestTransportClosesBodyOnce(t *testing.T) {
	failed := errors.New("connection refused")
	one := throttle.Policy{Name: "api", Tiers: trTier(1, time.Hour)}
	taken := func(t *testing.T, p throttle.Policy) *throttle.Limiter {
		l := trLimiter(t, p)
		if !l.Allow() {
			t.Fatal("not admitted")
		}
		return l
	}
	for _, c := range []struct {
		name   string
		tr     func(t *testing.T) *throttle.Transport
		within time.Duration // timeout of the context; 0 for none
		cancel time.Duration // when the context is canceled; 0 for never
		answer func(int, *http.Request) (*http.Response, error)
		err    error
		at     time.Duration // when the error is returned
		sent   int
		panics bool
	}{
		{
			name: "not limited",
			tr:   func(t *testing.T) *throttle.Transport { return &throttle.Transport{} },
			sent: 1,
		},
		{
			name: "admitted",
			tr:   func(t *testing.T) *throttle.Transport { return &throttle.Transport{Limiter: trLimiter(t, one)} },
			sent: 1,
		},
		{
			name: "admitted with a timeout",
			tr: func(t *testing.T) *throttle.Transport {
				return &throttle.Transport{Limiter: trLimiter(t, one), AttemptTimeout: time.Second}
			},
			sent: 1,
		},
		{
			name:   "base fails",
			tr:     func(t *testing.T) *throttle.Transport { return &throttle.Transport{Limiter: trLimiter(t, one)} },
			answer: func(int, *http.Request) (*http.Response, error) { return nil, failed },
			err:    failed,
			sent:   1,
		},
		{
			name:   "base panics",
			tr:     func(t *testing.T) *throttle.Transport { return &throttle.Transport{Limiter: trLimiter(t, one)} },
			answer: func(int, *http.Request) (*http.Response, error) { panic("base") },
			panics: true,
			sent:   1,
		},
		{
			name:   "429",
			tr:     func(t *testing.T) *throttle.Transport { return &throttle.Transport{Limiter: trLimiter(t, one)} },
			answer: func(int, *http.Request) (*http.Response, error) { return trAnswer(429, "Retry-After", "5"), nil },
			sent:   1,
		},
		{
			name: "never",
			tr: func(t *testing.T) *throttle.Transport {
				return &throttle.Transport{Limiter: trLimiter(t, one), Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"requests": 2} }}
			},
			err: throttle.ErrExceedsCapacity,
		},
		{
			name: "budget used up",
			tr: func(t *testing.T) *throttle.Transport {
				return &throttle.Transport{Limiter: taken(t, throttle.Policy{Tiers: []throttle.Tier{throttle.Budget(1, "", throttle.Month)}})}
			},
			err: throttle.ErrExhausted,
		},
		{
			name:   "deadline",
			tr:     func(t *testing.T) *throttle.Transport { return &throttle.Transport{Limiter: taken(t, one)} },
			within: time.Second,
			err:    throttle.ErrDeadline,
		},
		{
			name: "longer than MaxWait",
			tr: func(t *testing.T) *throttle.Transport {
				return &throttle.Transport{Limiter: taken(t, throttle.Policy{Tiers: trTier(1, time.Hour), MaxWait: time.Minute})}
			},
			err: throttle.ErrDeadline,
		},
		{
			name: "queue is full",
			tr: func(t *testing.T) *throttle.Transport {
				l := taken(t, throttle.Policy{Tiers: trTier(1, time.Hour), MaxQueue: 1})
				go l.Wait(t.Context())
				synctest.Wait()
				return &throttle.Transport{Limiter: l}
			},
			err: throttle.ErrQueueFull,
		},
		{
			name: "banned",
			tr: func(t *testing.T) *throttle.Transport {
				l := trLimiter(t, throttle.Policy{Tiers: trTier(10, time.Hour)})
				base := trNewBase(func(int, *http.Request) (*http.Response, error) {
					return trAnswer(429, "Retry-After", "7200"), nil
				})
				trExpect(t, &throttle.Transport{Base: base, Limiter: l}, 429)
				return &throttle.Transport{Limiter: l}
			},
			err: throttle.ErrBanned,
		},
		{
			name:   "canceled while waiting",
			tr:     func(t *testing.T) *throttle.Transport { return &throttle.Transport{Limiter: taken(t, one)} },
			cancel: 3 * time.Second,
			err:    context.Canceled,
			at:     3 * time.Second,
		},
		{
			name: "unknown unit",
			tr: func(t *testing.T) *throttle.Transport {
				return &throttle.Transport{Limiter: trLimiter(t, one), Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 2} }}
			},
			err: errors.ErrUnsupported, // any error
		},
		{
			name: "too many keys",
			tr: func(t *testing.T) *throttle.Transport {
				g, err := throttle.NewGroup(one, nil, throttle.GroupOptions{MaxKeys: 1})
				if err != nil {
					t.Fatal(err)
				}
				g.For("other").Allow()
				return &throttle.Transport{Route: func(r *http.Request) *throttle.Limiter { return g.For(r.URL.Host) }}
			},
			err: throttle.ErrTooManyKeys,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, base := c.tr(t), trNewBase(c.answer)
				tr.Base = base
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.within > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.within)
					defer cancel()
				}
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				body := &trBody{Reader: strings.NewReader("body")}
				req, err := http.NewRequestWithContext(ctx, "POST", trURL, body)
				if err != nil {
					t.Fatal(err)
				}
				func() {
					defer func() {
						if p := recover(); (p != nil) != c.panics {
							t.Errorf("panic is %v, want one: %v", p, c.panics)
						}
					}()
					resp, e := tr.RoundTrip(req)
					if err = e; err == nil {
						resp.Body.Close()
					} else if resp != nil {
						t.Errorf("RoundTrip returned the response %v with an error", resp)
					}
				}()
				if c.err == errors.ErrUnsupported && err != nil {
					err = c.err
				}
				if !errors.Is(err, c.err) || err != nil && c.err == nil {
					t.Errorf("error is %v, want %v", err, c.err)
				}
				if at := time.Since(base.start); at != c.at {
					t.Errorf("ended at %v, want %v", at, c.at)
				}
				if n := body.closed.Load(); n != 1 {
					t.Errorf("the body was closed %d times, want 1", n)
				}
				if len(base.sent) != c.sent {
					t.Errorf("sent %d, want %d", len(base.sent), c.sent)
				}
			})
		})
	}
}

func TestTransportContextEndsWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := trNewBase(nil)
		lim := trLimiter(t, throttle.Policy{Tiers: trTier(1, time.Minute), Guard: throttle.NoGuard})
		tr := &throttle.Transport{Base: base, Limiter: lim}
		trExpect(t, tr, 200)

		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(10*time.Second, func() { cancel(errors.New("the user has left")) })
		go trExpect(t, tr, 200) // at the head of the queue
		synctest.Wait()
		go trSend(ctx, tr)
		synctest.Wait()
		if _, err := trSend(ctx, tr); err != context.Canceled {
			t.Errorf("error is %v, want the context's own", err)
		}
		if got := time.Since(base.start); got != 10*time.Second {
			t.Errorf("RoundTrip returned after %v, want 10s", got)
		}
		trExpect(t, tr, 200) // behind the head; the canceled callers leave no trace
		if got, want := base.times(), []time.Duration{0, time.Minute, 2 * time.Minute}; !slices.Equal(got, want) {
			t.Errorf("sent at %v, want %v", got, want)
		}
	})
}

// A trTaker is a context that ends when the limiter has charged a request.
type trTaker struct {
	context.Context
	t   *testing.T
	lim *throttle.Limiter
}

func (c trTaker) Err() error {
	if trUsed(c.t, c.lim) > 0 {
		return context.Canceled
	}
	return nil
}

func TestTransportContextEndsAtAdmission(t *testing.T) {
	for name, tier := range map[string]throttle.Tier{
		"rolling":     throttle.PerHour(5),
		"concurrency": {Limit: 5, Algorithm: throttle.Concurrency},
	} {
		lim := trLimiter(t, throttle.Policy{Tiers: []throttle.Tier{tier}, Guard: time.Hour})
		base := trNewBase(nil)
		_, err := trSend(trTaker{t.Context(), t, lim}, &throttle.Transport{Base: base, Limiter: lim})
		if err != context.Canceled {
			t.Errorf("%s: error is %v", name, err)
		}
		if len(base.sent) != 0 {
			t.Errorf("%s: the request was sent", name)
		}
		if n := trUsed(t, lim); n != 0 {
			t.Errorf("%s: %d requests are still charged, want 0", name, n)
		}
	}
}

// A slowContext is a context that has ended, which takes some time to report.
type slowContext struct{ context.Context }

func (slowContext) Err() error {
	time.Sleep(trTick)
	return context.Canceled
}

// TestTransportEndedContext tests that a request whose context has ended is not charged, even for a
// moment: after its guard a charge can't be refunded.
func TestTransportEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := trLimiter(t, throttle.Policy{Guard: time.Microsecond, Tiers: trTier(10, time.Hour)})
		tr := &throttle.Transport{Base: trNewBase(nil), Limiter: lim}
		trExpect(t, tr, 200)
		for range 5 {
			if _, err := trSend(slowContext{t.Context()}, tr); err != context.Canceled {
				t.Fatal(err)
			}
			if n := trUsed(t, lim); n != 1 {
				t.Fatalf("%d are charged, want 1", n)
			}
		}
	})
}

// TestTransportRetryAfter refuses a first request after 50 ms while three more wait, and sends
// another one during the pause.
func TestTransportRetryAfter(t *testing.T) {
	const answered, apart = 50 * trTick, 100 * trTick
	bubble := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // the start of every synctest bubble
	date := func(d time.Duration) string { return bubble.Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		name   string
		status int
		header []string
		min    time.Duration // the length of the pause after the answer
		max    time.Duration // if zero, exactly min
	}{
		{name: "seconds", status: 429, header: []string{"Retry-After", "3"}, min: 3 * time.Second},
		{name: "decimal", status: 429, header: []string{"Retry-After", "2.25"}, min: 2250 * trTick},
		{name: "zero dot", status: 429, header: []string{"Retry-After", "0.5"}, min: 500 * trTick},
		{name: "date against Date", status: 429, header: []string{"Retry-After", date(time.Hour + 7*time.Second), "Date", date(time.Hour)}, min: 7 * time.Second},
		{name: "date against our clock", status: 429, header: []string{"Retry-After", date(7 * time.Second)}, min: 7*time.Second - answered},
		{name: "the longest of several", status: 429, header: []string{"Retry-After", "2", "Retry-After", "9", "Retry-After", "4"}, min: 9 * time.Second},
		{name: "MaxPause itself", status: 429, header: []string{"Retry-After", "900"}, min: 15 * time.Minute},
		{name: "503", status: 503, header: []string{"Retry-After", "7"}, min: 7 * time.Second},
		{name: "503 with an hour", status: 503, header: []string{"Retry-After", "3600"}, min: time.Minute},
		{name: "503 for centuries", status: 503, header: []string{"Retry-After", strings.Repeat("9", 30)}, min: apart - answered},

		{name: "503 alone", status: 503, min: apart - answered},
		{name: "503 with junk", status: 503, header: []string{"Retry-After", "soon"}, min: apart - answered},
		{name: "500 with Retry-After", status: 500, header: []string{"Retry-After", "7"}, min: apart - answered},
		{name: "403 with Retry-After", status: 403, header: []string{"Retry-After", "7"}, min: apart - answered},
		{name: "200 with Retry-After", status: 200, header: []string{"Retry-After", "7"}, min: apart - answered},

		{name: "nothing", status: 429, min: time.Second, max: 2 * time.Second},
		{name: "empty", status: 429, header: []string{"Retry-After", ""}, min: time.Second, max: 2 * time.Second},
		{name: "junk", status: 429, header: []string{"Retry-After", "soon"}, min: time.Second, max: 2 * time.Second},
		{name: "negative", status: 429, header: []string{"Retry-After", "-5"}, min: time.Second, max: 2 * time.Second},
		{name: "zero", status: 429, header: []string{"Retry-After", "0"}, min: apart - answered},
		{name: "NaN", status: 429, header: []string{"Retry-After", "NaN"}, min: time.Second, max: 2 * time.Second},
		{name: "a date in the past", status: 429, header: []string{"Retry-After", date(-time.Minute)}, min: time.Second, max: 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := trNewBase(func(n int, _ *http.Request) (*http.Response, error) {
					if n > 0 {
						return trAnswer(200), nil
					}
					time.Sleep(answered)
					return trAnswer(c.status, c.header...), nil
				})
				lim := trLimiter(t, throttle.Policy{Tiers: trTier(1, apart), Guard: throttle.NoGuard})
				tr := &throttle.Transport{Base: base, Limiter: lim}
				go trExpect(t, tr, c.status)
				synctest.Wait()
				for range 3 {
					go trExpect(t, tr, 200)
				}
				time.Sleep(answered)
				synctest.Wait()
				time.Sleep(200 * trTick)
				trExpect(t, tr, 200)
				sent := base.times()
				if len(sent) != 5 {
					t.Fatalf("sent at %v", sent)
				}
				most := max(c.min, c.max)
				if pause := sent[1] - answered; pause < c.min || pause > most {
					t.Errorf("paused for %v, want %v to %v", pause, c.min, most)
				}
				for i := 2; i < len(sent); i++ {
					if got := sent[i] - sent[i-1]; got != apart {
						t.Errorf("request %d was sent %v after the one before", i, got)
					}
				}
			})
		})
	}
}

// TestTransportSharesThePause checks that Limiters with one name on one store share pauses and
// bans, also for waiting requests.
func TestTransportSharesThePause(t *testing.T) {
	for _, c := range []struct {
		after string
		err   error
		end   time.Duration // when the waiting requests end
	}{
		{after: "30", end: 31 * time.Second},
		{after: "3600", err: throttle.ErrBanned, end: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			shared := local.New()
			transport := func(answer func(int, *http.Request) (*http.Response, error)) *throttle.Transport {
				lim, err := throttle.New(throttle.Policy{Name: "api", Tiers: trTier(1, 2*time.Second), Guard: throttle.NoGuard}, shared)
				if err != nil {
					t.Fatal(err)
				}
				return &throttle.Transport{Base: trNewBase(answer), Limiter: lim}
			}
			refused := transport(func(int, *http.Request) (*http.Response, error) {
				time.Sleep(time.Second)
				return trAnswer(429, "Retry-After", c.after), nil
			})
			other := transport(nil)
			start := time.Now()
			go trExpect(t, refused, 429)
			synctest.Wait()
			_, err := trSend(t.Context(), other)
			if !errors.Is(err, c.err) || err != nil && c.err == nil {
				t.Errorf("Retry-After %s: error is %v, want %v", c.after, err, c.err)
			}
			if got := time.Since(start); got != c.end {
				t.Errorf("Retry-After %s: ended at %v, want %v", c.after, got, c.end)
			}
		})
	}
}

// TestTransportPauseMakesLate checks that a waiting request that a pause makes late is refused at
// once, and that the requests behind it move up.
func TestTransportPauseMakesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := trNewBase(func(n int, _ *http.Request) (*http.Response, error) {
			if n > 0 {
				return trAnswer(200), nil
			}
			time.Sleep(500 * trTick)
			return trAnswer(429, "Retry-After", "30"), nil
		})
		lim := trLimiter(t, throttle.Policy{Tiers: trTier(1, time.Second), Guard: throttle.NoGuard})
		tr := &throttle.Transport{Base: base, Limiter: lim}
		go trExpect(t, tr, 429)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		go func() {
			_, err := trSend(ctx, tr)
			if !errors.Is(err, throttle.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error is %v, want ErrDeadline", err)
			}
			if at := time.Since(base.start); at != 500*trTick {
				t.Errorf("refused at %v, want 500ms", at)
			}
		}()
		synctest.Wait()
		trExpect(t, tr, 200)
		if got, want := base.times(), []time.Duration{0, 30500 * trTick}; !slices.Equal(got, want) {
			t.Errorf("sent at %v, want %v", got, want)
		}
	})
}

func TestTransportBan(t *testing.T) {
	for _, c := range []struct {
		name     string
		maxPause time.Duration
		after    string
		ban      time.Duration
	}{
		{name: "a second beyond the default", after: "901", ban: 901 * time.Second},
		{name: "beyond MaxPause", maxPause: time.Minute, after: "60.5", ban: 60500 * trTick},
		{name: "seconds since 1970", after: "946688401", ban: time.Hour}, // 01:00:01 of the day on which the bubble begins
		{name: "31 days", after: "2678400", ban: 31 * 24 * time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := trNewBase(func(n int, _ *http.Request) (*http.Response, error) {
					if n > 0 {
						return trAnswer(200), nil
					}
					time.Sleep(time.Second)
					return trAnswer(429, "Retry-After", c.after), nil
				})
				lim := trLimiter(t, throttle.Policy{Name: "api", Tiers: trTier(1, time.Minute), Guard: throttle.NoGuard, MaxPause: c.maxPause})
				tr := &throttle.Transport{Base: base, Limiter: lim}
				until := base.start.Add(time.Second + c.ban)
				banned := func(at time.Duration) {
					t.Helper()
					_, err := trSend(t.Context(), tr)
					var e *throttle.WaitError
					if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) {
						t.Errorf("error is %v", err)
						return
					}
					if got := time.Since(base.start); got != at {
						t.Errorf("refused at %v, want %v", got, at)
					}
					if !e.Until.Equal(until) || e.Wait != c.ban-(at-time.Second) || e.Policy != "api" {
						t.Errorf("error is %+v, want until %v", e, until)
					}
				}
				var group sync.WaitGroup
				group.Go(func() { trExpect(t, tr, 429) })
				synctest.Wait()
				for range 4 {
					group.Go(func() { banned(time.Second) })
				}
				group.Wait()
				time.Sleep(c.ban - time.Microsecond)
				banned(time.Since(base.start))
				if lim.Allow() {
					t.Error("Allow is true during a ban")
				}
				if s, _ := lim.Status(t.Context()); s.Closed != time.Microsecond || s.Waiting != 0 {
					t.Errorf("status is %+v, want 1µs of the ban and none waiting", s)
				}
				time.Sleep(time.Microsecond)
				trExpect(t, tr, 200)
				if sent := base.times(); sent[len(sent)-1] != time.Second+c.ban {
					t.Errorf("sent at %v, want the last at %v", sent, time.Second+c.ban)
				}
			})
		})
	}
}

// trGaps sends n requests one after the other, each of which is refused without a time, and returns
// how long each waited.
func trGaps(t *testing.T, lim *throttle.Limiter, n int) (gaps []time.Duration) {
	t.Helper()
	base := trNewBase(func(int, *http.Request) (*http.Response, error) { return trAnswer(429), nil })
	tr := &throttle.Transport{Base: base, Limiter: lim}
	for range n {
		trExpect(t, tr, 429)
	}
	for i, at := range base.times() {
		if i > 0 {
			at -= base.times()[i-1]
		}
		gaps = append(gaps, at)
	}
	return gaps
}

func trWithin(t *testing.T, name string, d, from, to time.Duration) {
	t.Helper()
	if d < from || d > to {
		t.Errorf("%s: paused for %v, want %v to %v", name, d, from, to)
	}
}

func TestTransportBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		firsts := map[time.Duration]bool{}
		for range 20 {
			lim := trLimiter(t, throttle.Policy{Tiers: trTier(1000, time.Second), MaxPause: time.Minute})
			gaps := trGaps(t, lim, 10)
			if gaps[0] != 0 {
				t.Errorf("the first request waited for %v, want 0", gaps[0])
			}
			for i, gap := range gaps[1:] {
				from := time.Second << i
				trWithin(t, fmt.Sprint("pause ", i+1), gap, min(from, time.Minute), min(2*from, time.Minute))
			}
			firsts[gaps[1]] = true
		}
		if len(firsts) == 1 {
			t.Error("all first pauses are equally long, want random lengths")
		}
	})
}

func TestTransportBackoffBelowASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := trLimiter(t, throttle.Policy{Tiers: trTier(1000, time.Second), MaxPause: 300 * trTick})
		want := []time.Duration{0, 300 * trTick, 300 * trTick, 300 * trTick}
		if got := trGaps(t, lim, 4); !slices.Equal(got, want) {
			t.Errorf("waited %v, want %v", got, want)
		}
	})
}

// TestTransportBackoffOneEvent checks that eight refusals of requests that were in flight together
// count as one.
func TestTransportBackoffOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := trLimiter(t, throttle.Policy{Tiers: trTier(1000, time.Second)})
		base := trNewBase(func(n int, _ *http.Request) (*http.Response, error) {
			time.Sleep(time.Duration(n+1) * 10 * trTick)
			return trAnswer(429), nil
		})
		tr := &throttle.Transport{Base: base, Limiter: lim}
		for range 8 {
			go trExpect(t, tr, 429)
			synctest.Wait()
		}
		time.Sleep(15 * trTick)
		end := trPaused(t, lim)
		trWithin(t, "the first", end.Sub(base.start)-10*trTick, time.Second, 2*time.Second)
		time.Sleep(75 * trTick)
		if got := trPaused(t, lim); !got.Equal(end) {
			t.Errorf("the pause ends at %v, want %v as after the first refusal", got, end)
		}
		gaps := trGaps(t, lim, 3)
		if got := base.start.Add(90*trTick + gaps[0]); !got.Equal(end) {
			t.Errorf("the next request was sent at %v, want %v", got, end)
		}
		trWithin(t, "the second", gaps[1], 2*time.Second, 4*time.Second)
		trWithin(t, "the third", gaps[2], 4*time.Second, 8*time.Second)
	})
}

// TestTransportBackoffLate checks the effect of a late response. One request is refused at once and
// pauses the quota; another one, admitted before or after the pause, is answered later.
func TestTransportBackoffLate(t *testing.T) {
	for _, c := range []struct {
		name     string
		before   bool // the other request is admitted before the pause
		status   int
		pauses   bool // its response pauses the quota
		from, to time.Duration
	}{
		{name: "refusal of one before", before: true, status: 429, from: 2 * time.Second, to: 4 * time.Second},
		{name: "success of one before", before: true, status: 200, from: 2 * time.Second, to: 4 * time.Second},
		{name: "refusal of one after", status: 429, pauses: true, from: 4 * time.Second, to: 8 * time.Second},
		{name: "success of one after", status: 200, from: time.Second, to: 2 * time.Second},
		{name: "not found, after", status: 404, from: time.Second, to: 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim := trLimiter(t, throttle.Policy{Tiers: trTier(1000, time.Second)})
				late := &throttle.Transport{Limiter: lim, Base: trNewBase(func(int, *http.Request) (*http.Response, error) {
					time.Sleep(5 * time.Second)
					return trAnswer(c.status), nil
				})}
				var group sync.WaitGroup
				if c.before {
					group.Go(func() { trExpect(t, late, c.status) })
					synctest.Wait()
				}
				trGaps(t, lim, 1)
				if !c.before {
					group.Go(func() { trExpect(t, late, c.status) })
				}
				group.Wait()
				if s, _ := lim.Status(t.Context()); (s.Paused > 0) != c.pauses {
					t.Errorf("paused for %v, want a pause: %v", s.Paused, c.pauses)
				}
				trWithin(t, "the next", trGaps(t, lim, 2)[1], c.from, c.to)
			})
		})
	}
}

// TestTransportBackoffFailure checks that a failure of the server does not end the back-off.
func TestTransportBackoffFailure(t *testing.T) {
	for name, answer := range map[string]func(int, *http.Request) (*http.Response, error){
		"500":                     func(int, *http.Request) (*http.Response, error) { return trAnswer(500), nil },
		"503 without Retry-After": func(int, *http.Request) (*http.Response, error) { return trAnswer(503), nil },
		"no response":             func(int, *http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim := trLimiter(t, throttle.Policy{Tiers: trTier(1000, time.Second)})
				tr := &throttle.Transport{Limiter: lim, Base: trNewBase(answer)}
				trGaps(t, lim, 1)
				trSend(t.Context(), tr)
				trWithin(t, "the next", trGaps(t, lim, 2)[1], 2*time.Second, 4*time.Second)
			})
		})
	}
}

func TestTransportHandsOnTheResponse(t *testing.T) {
	for _, status := range []int{200, 304, 404, 429, 500, 503} {
		for name, lim := range map[string]*throttle.Limiter{
			"not limited": nil,
			"limited":     trLimiter(t, throttle.Policy{Tiers: trTier(10, time.Hour)}),
		} {
			want := trAnswer(status, "Retry-After", "1", "X-One", "1")
			body, header := want.Body, want.Header.Clone()
			base := trNewBase(func(int, *http.Request) (*http.Response, error) { return want, nil })
			req := httptest.NewRequest("GET", trURL, nil)
			got, err := (&throttle.Transport{Base: base, Limiter: lim}).RoundTrip(req)
			if err != nil || got != want {
				t.Fatalf("%s: %v, %v; want the response of the Base", name, got, err)
			}
			if got.Body != body {
				t.Errorf("%s: the body is wrapped, want the Base's", name)
			}
			if got.StatusCode != status || !reflect.DeepEqual(got.Header, header) {
				t.Errorf("%s: status %d, header %v; want %d, %v", name, got.StatusCode, got.Header, status, header)
			}
			if sent := base.requests[0]; lim == nil && sent != req || sent.URL != req.URL || sent.Body != req.Body {
				t.Errorf("%s: the request is cloned, want the caller's", name)
			}
			if text, err := io.ReadAll(got.Body); string(text) != "answer" || err != nil {
				t.Errorf("%s: body is %q, %v; want answer", name, text, err)
			}
		}
	}
}

// TestTransportRequestOfTheResponse checks that the response has the caller's request, not a copy
// that the Transport made.
func TestTransportRequestOfTheResponse(t *testing.T) {
	base := trNewBase(func(_ int, r *http.Request) (*http.Response, error) {
		resp := trAnswer(200)
		resp.Request = r
		return resp, nil
	})
	req := httptest.NewRequest("GET", trURL, nil).WithContext(t.Context())
	tr := &throttle.Transport{Base: base, Limiter: trLimiter(t, trAtOnce(1)), AttemptTimeout: time.Hour}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Request != req {
		t.Error("resp.Request is not the caller's request")
	}
}

// A Transport to several APIs reads the responses of each by its own profile.
func TestTransportProfileFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuses := func(status int) *answers.Profile {
			return &answers.Profile{Rules: []answers.Rule{{Status: status, Kind: answers.Limited, Wait: time.Minute}}}
		}
		profiles := map[string]*answers.Profile{"/a": refuses(200), "/b": refuses(201)}
		group, err := throttle.NewGroup(throttle.Policy{Tiers: trTier(100, time.Second), Guard: throttle.NoGuard}, nil, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		tr := &throttle.Transport{
			Base: trNewBase(func(int, *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			}),
			Route:      func(req *http.Request) *throttle.Limiter { return group.For(req.URL.Path) },
			Profile:    refuses(200),
			ProfileFor: func(req *http.Request) *answers.Profile { return profiles[req.URL.Path] },
		}
		for path, want := range map[string]time.Duration{"/a": time.Minute, "/b": 0, "/other": time.Minute} {
			start := time.Now()
			for range 2 {
				resp, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com"+path, nil))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
			}
			if took := time.Since(start); took != want {
				t.Errorf("%s: the second request waited %v, want %v", path, took, want)
			}
		}
	})
}

// A trReader fails in the middle.
type trReader struct{}

func (trReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestTransportConcurrency(t *testing.T) {
	readAll := func(b io.ReadCloser) error { _, err := io.ReadAll(b); return err }
	body := func(r io.Reader) func(int, *http.Request) (*http.Response, error) {
		return func(int, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(r)}, nil
		}
	}
	for _, c := range []struct {
		name   string
		answer func(int, *http.Request) (*http.Response, error)
		end    func(io.ReadCloser) error // ends the body; nil if the headers free the place
		err    error
	}{
		{name: "EOF", answer: body(strings.NewReader("answer")), end: readAll},
		{name: "Close", answer: body(strings.NewReader("answer")), end: io.ReadCloser.Close},
		{name: "read error", answer: body(trReader{}), end: readAll, err: io.ErrUnexpectedEOF},
		{name: "429", answer: func(int, *http.Request) (*http.Response, error) { return trAnswer(429, "Retry-After", "1"), nil }, end: readAll},
		{name: "NoBody", answer: func(int, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 204, Body: http.NoBody}, nil
		}},
		{name: "nil body", answer: func(int, *http.Request) (*http.Response, error) { return &http.Response{StatusCode: 204}, nil }},
		{name: "base error", answer: func(int, *http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, err: io.ErrUnexpectedEOF},
		{name: "base panic", answer: func(int, *http.Request) (*http.Response, error) { panic("base") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			lim := trLimiter(t, trAtOnce(2))
			other, err := lim.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Release()
			tr := &throttle.Transport{Limiter: lim, Base: trNewBase(func(n int, r *http.Request) (*http.Response, error) {
				if got := trUsed(t, lim); got != 2 {
					t.Errorf("%d requests are open while it is sent, want 2", got)
				}
				return c.answer(n, r)
			})}
			var resp *http.Response
			func() {
				defer func() { recover() }()
				resp, err = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
			}()
			if c.end != nil {
				if got := trUsed(t, lim); got != 2 {
					t.Errorf("%d requests are open after the headers, want 2", got)
				}
				err = c.end(resp.Body)
			}
			if err != c.err {
				t.Errorf("error is %v, want %v", err, c.err)
			}
			if got := trUsed(t, lim); got != 1 {
				t.Errorf("%d requests are open after the end, want 1", got)
			}
			if c.end != nil { // again
				resp.Body.Read(make([]byte, 1))
				resp.Body.Close()
				resp.Body.Close()
			}
			if got := trUsed(t, lim); got != 1 {
				t.Errorf("%d requests are open after the second end, want 1", got)
			}
		})
	}
}

// TestTransportConcurrencyWaitsForTheBody checks that, with two places and a slow reader, the third
// request is sent when a body ends.
func TestTransportConcurrencyWaitsForTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := trNewBase(nil)
		tr := &throttle.Transport{Base: base, Limiter: trLimiter(t, trAtOnce(2))}
		for i := range 2 {
			resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(time.Duration(i+1)*time.Minute, func() { resp.Body.Close() })
		}
		for range 3 {
			trExpect(t, tr, 200)
		}
		if got, want := base.times(), []time.Duration{0, 0, time.Minute, time.Minute, time.Minute}; !slices.Equal(got, want) {
			t.Errorf("sent at %v, want %v", got, want)
		}
	})
}

// TestTransportInFlight checks that the window of 1/s begins with the response, or at the end of
// the guard interval.
func TestTransportInFlight(t *testing.T) {
	for _, c := range []struct {
		name     string
		guard    time.Duration
		response time.Duration
		err      error
		second   time.Duration // when the next request is sent
	}{
		{name: "fast", guard: 500 * trTick, response: 20 * trTick, second: 1020 * trTick},
		{name: "at once", guard: 500 * trTick, second: time.Second},
		{name: "slow", guard: 500 * trTick, response: 800 * trTick, second: 1500 * trTick},
		{name: "fast, default guard", response: 20 * trTick, second: 1020 * trTick},
		{name: "slow, default guard", response: 800 * trTick, second: 1050 * trTick},
		{name: "NoGuard", guard: throttle.NoGuard, response: 800 * trTick, second: time.Second},
		{name: "no response", guard: 500 * trTick, response: 20 * trTick, err: io.ErrUnexpectedEOF, second: 1500 * trTick},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := trNewBase(func(int, *http.Request) (*http.Response, error) {
					time.Sleep(c.response)
					return trAnswer(200), c.err
				})
				tr := &throttle.Transport{Base: base, Limiter: trLimiter(t, throttle.Policy{Tiers: trTier(1, time.Second), Guard: c.guard})}
				var group sync.WaitGroup
				for range 2 {
					group.Go(func() { trSend(t.Context(), tr) })
				}
				group.Wait()
				if got, want := base.times(), []time.Duration{0, c.second}; !slices.Equal(got, want) {
					t.Errorf("sent at %v, want %v", got, want)
				}
			})
		})
	}
}

// A trSlowBody ends after some time, or with the context.
type trSlowBody struct {
	ctx  context.Context
	long time.Duration
}

func (b *trSlowBody) Read([]byte) (int, error) {
	select {
	case <-time.After(b.long):
		return 0, io.EOF
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (b *trSlowBody) Close() error { return nil }

// TestTransportAttemptTimeout lets a request wait for ten seconds. The attempt may then take two.
func TestTransportAttemptTimeout(t *testing.T) {
	for _, c := range []struct {
		name          string
		headers, body time.Duration
		err           error
		end           time.Duration
	}{
		{name: "in time", headers: time.Second, end: 11 * time.Second},
		{name: "in time with the body", headers: time.Second, body: 900 * trTick, end: 11900 * trTick},
		{name: "slow headers", headers: 3 * time.Second, err: context.DeadlineExceeded, end: 12 * time.Second},
		{name: "slow body", headers: time.Second, body: 3 * time.Second, err: context.DeadlineExceeded, end: 12 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := trNewBase(func(_ int, r *http.Request) (*http.Response, error) {
					slow := &trSlowBody{r.Context(), c.headers}
					if _, err := slow.Read(nil); err != io.EOF {
						return nil, err
					}
					return &http.Response{StatusCode: 200, Body: &trSlowBody{r.Context(), c.body}}, nil
				})
				lim := trLimiter(t, throttle.Policy{Tiers: trTier(1, 10*time.Second), Guard: throttle.NoGuard})
				if !lim.Allow() {
					t.Fatal("not admitted")
				}
				tr := &throttle.Transport{Base: base, Limiter: lim, AttemptTimeout: 2 * time.Second}
				if _, err := trSend(t.Context(), tr); err != c.err {
					t.Errorf("error is %v, want %v", err, c.err)
				}
				if got, want := base.times(), []time.Duration{10 * time.Second}; !slices.Equal(got, want) {
					t.Errorf("sent at %v, want %v", got, want)
				}
				if got := time.Since(base.start); got != c.end {
					t.Errorf("ended at %v, want %v", got, c.end)
				}
			})
		})
	}
}

// TestTransportAttemptTimeoutEnds checks that the timeout's context ends with the attempt, so its
// timer is stopped.
func TestTransportAttemptTimeoutEnds(t *testing.T) {
	answer := func(*http.Request) (*http.Response, error) { return trAnswer(200), nil }
	for _, c := range []struct {
		name   string
		answer func(*http.Request) (*http.Response, error)
		end    func(io.ReadCloser)
	}{
		{name: "EOF", answer: answer, end: func(b io.ReadCloser) { io.ReadAll(b) }},
		{name: "Close", answer: answer, end: func(b io.ReadCloser) { b.Close() }},
		{name: "NoBody", answer: func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 204, Body: http.NoBody}, nil
		}},
		{name: "base error", answer: func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }},
		{name: "base panic", answer: func(*http.Request) (*http.Response, error) { panic("base") }},
	} {
		var ctx context.Context
		tr := &throttle.Transport{AttemptTimeout: time.Hour, Base: trNewBase(func(_ int, r *http.Request) (*http.Response, error) {
			ctx = r.Context()
			return c.answer(r)
		})}
		req := httptest.NewRequest("GET", trURL, nil)
		before := req.Context()
		var resp *http.Response
		func() {
			defer func() { recover() }()
			resp, _ = tr.RoundTrip(req)
		}()
		if _, ok := ctx.Deadline(); !ok || req.Context() != before {
			t.Errorf("%s: the timeout is not on a copy of the request", c.name)
		}
		if c.end != nil {
			if err := ctx.Err(); err != nil {
				t.Errorf("%s: the context ended before the body: %v", c.name, err)
			}
			c.end(resp.Body)
		}
		if err := ctx.Err(); err != context.Canceled {
			t.Errorf("%s: the context's error is %v", c.name, err)
		}
	}
}

// TestTransportClientTimeout checks that a request is refused at once if it would wait longer than
// http.Client.Timeout, which includes the wait.
func TestTransportClientTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := trNewBase(nil)
		lim := trLimiter(t, throttle.Policy{Tiers: trTier(1, 10*time.Second)})
		client := &http.Client{Transport: &throttle.Transport{Base: base, Limiter: lim}, Timeout: 5 * time.Second}
		for i, want := range []error{nil, throttle.ErrDeadline} {
			resp, err := client.Get(trURL)
			if !errors.Is(err, want) {
				t.Fatalf("request %d: error is %v, want %v", i, err, want)
			}
			if err == nil {
				resp.Body.Close()
				continue
			}
			var e *url.Error
			if !errors.As(err, &e) || !e.Timeout() {
				t.Errorf("request %d: error is %v, want a timeout", i, err)
			}
		}
		if got := time.Since(base.start); got != 0 {
			t.Errorf("refused after %v, want at once", got)
		}
	})
}

type trCloser struct {
	trBase
	closed int
}

func (c *trCloser) CloseIdleConnections() { c.closed++ }

func TestTransportCloseIdleConnections(t *testing.T) {
	base := &trCloser{}
	client := &http.Client{Transport: &throttle.Transport{Base: &throttle.Transport{Base: base}}}
	client.CloseIdleConnections()
	if base.closed != 1 {
		t.Errorf("the Base's method was called %d times, want 1", base.closed)
	}
	(&throttle.Transport{Base: trNewBase(nil)}).CloseIdleConnections() // the Base has no such method
}

// TestTransportConcurrentUse uses one Transport in many goroutines, some of which give up.
func TestTransportConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiers := []throttle.Tier{{Limit: 7, Algorithm: throttle.Concurrency}, {Limit: 100, Window: time.Second}}
		api := throttletest.New(tiers...)
		random := func() time.Duration { return time.Duration(rand.IntN(50)) * trTick }
		api.Delay, api.Hold = random, random
		lim := trLimiter(t, throttle.Policy{Tiers: tiers})
		tr := &throttle.Transport{Base: api, Limiter: lim, AttemptTimeout: time.Second}
		var answered, gaveUp, refused atomic.Int64
		var group sync.WaitGroup
		for i := range 64 {
			group.Go(func() {
				for range 20 {
					ctx, cancel := context.WithCancel(t.Context())
					switch i % 4 {
					case 0:
						time.AfterFunc(random(), cancel)
					case 1:
						ctx, cancel = context.WithTimeout(ctx, 10*random())
					}
					_, err := trSend(ctx, tr)
					cancel()
					switch {
					case err == nil:
						answered.Add(1)
					case errors.Is(err, throttle.ErrDeadline):
						refused.Add(1)
					case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
						gaveUp.Add(1)
					default:
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		if s := api.Summary(); s.Refused != 0 || s.Accepted < answered.Load() {
			t.Errorf("summary is %+v, want none refused and at least %d accepted", s, answered.Load())
		}
		if n := answered.Load(); n < 32*20 {
			t.Errorf("%d were answered, %d gave up, %d were refused; want at least 640 answered", n, gaveUp.Load(), refused.Load())
		}
		if s, _ := lim.Status(t.Context()); s.Tiers[0].Used != 0 || s.Waiting != 0 {
			t.Errorf("status is %+v, want none used and none waiting", s)
		}
	})
}

// TestTransportUnseenRepeat shows that the limiter does not see the requests that net/http repeats
// by itself when a kept-alive connection turns out to be closed.
func TestTransportUnseenRepeat(t *testing.T) {
	var seen atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1) != 2 {
			io.WriteString(w, "answer")
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close()
	}))
	defer server.Close()
	for _, c := range []struct {
		name        string
		noKeepAlive bool
		seen        int64
		failed      int
	}{
		{name: "kept alive", seen: 3},
		{name: "DisableKeepAlives", noKeepAlive: true, seen: 2, failed: 1},
	} {
		seen.Store(0)
		lim := trLimiter(t, throttle.Policy{Tiers: trTier(10, time.Hour)})
		base := &http.Transport{DisableKeepAlives: c.noKeepAlive}
		client := &http.Client{Transport: &throttle.Transport{Base: base, Limiter: lim}}
		failed := 0
		for range 2 {
			resp, err := client.Get(server.URL)
			if err != nil {
				failed++
				continue
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		client.CloseIdleConnections()
		if n := seen.Load(); n != c.seen || failed != c.failed {
			t.Errorf("%s: the server received %d requests, %d failed; want %d, %d", c.name, n, failed, c.seen, c.failed)
		}
		if n := trUsed(t, lim); n != 2 {
			t.Errorf("%s: the limiter charged %d, want 2", c.name, n)
		}
	}
}

func ExampleTransport() {
	api := throttletest.NewProvider(throttle.Tier{Limit: 5, Window: 100 * time.Millisecond}) // in place of the real provider
	defer api.Close()

	policy, err := throttle.ParsePolicy("api", "5/100ms + 10000/h | guard=1s")
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := throttle.New(policy, nil)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &throttle.Transport{Limiter: limiter}}
	for range 12 {
		resp, err := client.Get(api.URL)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
	}
	fmt.Println(api.Summary().Accepted, "accepted,", api.Summary().Refused, "refused")
	// Output: 12 accepted, 0 refused
}

func TestNewClient(t *testing.T) {
	l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	client := throttle.NewClient(l)
	resp, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if l.Allow() {
		t.Error("the request was not charged")
	}
	if got := client.Transport.(*throttle.Transport).Unwrap(); got != http.DefaultTransport {
		t.Errorf("Unwrap = %v, want http.DefaultTransport", got)
	}
}

// A Retry-After of zero lets one request try at once, and the others wait for its response. Only if that is refused,
// too, the quota pauses for some time.
func TestRetryAfterOfZero(t *testing.T) {
	for refused := range 3 {
		synctest.Test(t, func(t *testing.T) {
			base := trNewBase(func(n int, _ *http.Request) (*http.Response, error) {
				time.Sleep(50 * time.Millisecond)
				if n < refused {
					return trAnswer(429, "Retry-After", "0"), nil
				}
				return trAnswer(200), nil
			})
			tr := &throttle.Transport{Base: base, Limiter: mustNew(t, exact(throttle.PerMinute(100)), nil)}
			for n := range refused {
				trExpect(t, tr, 429)
				if sent := base.times(); n > 0 && sent[n]-sent[n-1] != 50*time.Millisecond {
					t.Errorf("the probe goes %v after the refused request, want at once", sent[n]-sent[n-1])
				}
			}
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { trExpect(t, tr, 200) })
			}
			wg.Wait()
			sent, gap := base.times(), time.Duration(0)
			if refused > 0 {
				gap = sent[refused] - sent[refused-1] - 50*time.Millisecond
			}
			if probe := sent[refused+1] - sent[refused]; refused > 0 && probe < 50*time.Millisecond {
				t.Errorf("another request goes %v after the probe, want behind its response", probe)
			}
			if refused == 2 && (gap < time.Second || gap > 4*time.Second) || refused < 2 && gap != 0 {
				t.Errorf("after %d refusals the quota pauses for %v", refused, gap)
			}
		})
	}
}
