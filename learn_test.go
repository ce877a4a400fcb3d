package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

// learns returns a tier that learns a rate per second from 1 to 1000.
func learns(limit, burst int64) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: sec, Algorithm: throttle.GCRA, Burst: burst, Learn: throttle.Learn{Least: 1, Most: 1000}}
}

// A refusal leaves this part of the rate.
const left = 0.96 * 0.8

// learnedOf returns what the n-th tier has learned.
func learnedOf(t *testing.T, l *throttle.Limiter, n int) store.Learned {
	t.Helper()
	s := status(t, l)
	if s.Tiers[n].Learned == nil {
		t.Fatalf("the tier does not learn: %v", s)
	}
	return *s.Tiers[n].Learned
}

// isRate allows for the growth by the units that the test itself sends.
func isRate(got, want float64) bool { return math.Abs(got-want) <= want/100 }

// checkRate checks the rate of the first tier.
func checkRate(t *testing.T, l *throttle.Limiter, want float64) {
	t.Helper()
	if got := learnedOf(t, l, 0).Rate; !isRate(got, want) {
		t.Errorf("the rate is %v, want %v", got, want)
	}
}

// sends sends as many requests at once and returns when all have their response.
func sends(t *testing.T, rt http.RoundTripper, n int) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := trSend(t.Context(), rt); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// answersWith returns a provider whose n-th response is the n-th of those given, and then the last one. Each takes 100 ms.
func answersWith(responses ...func() *http.Response) *trBase {
	return trNewBase(func(n int, _ *http.Request) (*http.Response, error) {
		time.Sleep(100 * ms)
		return responses[min(n, len(responses)-1)](), nil
	})
}

func ok() *http.Response      { return trAnswer(200) }
func tooMany() *http.Response { return trAnswer(429) }

// Refusals of one moment decrease the rate once, and pause once.
func TestRefusalsOfOneMomentAreOneEvent(t *testing.T) {
	for _, status := range []func() *http.Response{tooMany, func() *http.Response { return trAnswer(429, "Retry-After", "3") }} {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, exact(learns(100, 20)), nil)
			start := learnedOf(t, l, 0).Rate
			tr := &throttle.Transport{Limiter: l, Base: answersWith(status)}
			sends(t, tr, 20)
			if got := learnedOf(t, l, 0); start != 100 || !isRate(got.Rate, 100*left) || got.Refused < 95 || got.Refused > 101 {
				t.Errorf("the rate was %v and is %+v, want %v of 100", start, got, 100*left)
			}
			time.Sleep(10 * sec)
			sends(t, tr, 20) // at once, or after a pause one probe after the other
			if got := learnedOf(t, l, 0); got.Rate < 100*left/2 {
				t.Errorf("after one more event: %+v", got)
			}
		})
	}
}

// Only a refusal for lack of the tier's quota teaches. A decrease of the rate replaces the pause.
func TestWhatTeaches(t *testing.T) {
	rules := &answers.Profile{Rules: []answers.Rule{
		{Status: 418, Kind: answers.Banned},
		{Status: 402, Kind: answers.Other},
		{Status: 413, Kind: answers.Other},
		{Status: 430, Kind: answers.Limited, Unit: "tokens"},
		{Status: 431, Kind: answers.Limited, Unit: "requests"},
		{Status: 503, Header: "X-Slow-Down", Kind: answers.Limited},
	}}
	for _, c := range []struct {
		name   string
		status int
		header []string
		rate   float64 // of the tier of requests
		tokens float64
		paused bool
	}{
		{"a refusal", 429, nil, 100 * left, 1000 * left, false},
		{"a told wait", 429, []string{"Retry-After", "7"}, 100 * left, 1000 * left, true},
		{"a wait of zero", 429, []string{"Retry-After", "0"}, 100 * left, 1000 * left, true},
		{"a refusal of requests", 431, nil, 100 * left, 1000, false},
		{"a refusal of tokens", 430, nil, 100, 1000 * left, false},
		{"a slow down", 503, []string{"X-Slow-Down", "1"}, 100 * left, 1000 * left, false},
		{"a ban", 418, nil, 100, 1000, true},
		{"an unpaid bill", 402, nil, 100, 1000, false},
		{"too large", 413, nil, 100, 1000, false},
		{"an outage", 503, nil, 100, 1000, false},
		{"an outage of some time", 503, []string{"Retry-After", "7"}, 100, 1000, true},
		{"a server error", 500, []string{"Retry-After", "7"}, 100, 1000, false},
		{"a bad gateway", 502, nil, 100, 1000, false},
		{"a success", 200, []string{"Retry-After", "7"}, 100, 1000, false},
		{"a missing object", 404, nil, 100, 1000, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tokens := learns(1000, 100)
				tokens.Unit = "tokens"
				l := mustNew(t, exact(learns(100, 5), tokens), nil)
				tr := &throttle.Transport{Limiter: l, Profile: rules, Base: answersWith(func() *http.Response { return trAnswer(c.status, c.header...) }),
					Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 10} }}
				sends(t, tr, 1)
				if got, of := learnedOf(t, l, 0).Rate, learnedOf(t, l, 1).Rate; !isRate(got, c.rate) || !isRate(of, c.tokens) {
					t.Errorf("the rates are %v and %v, want %v and %v", got, of, c.rate, c.tokens)
				}
				s := status(t, l)
				if paused := s.Paused > 0 || s.Closed > 0; paused != c.paused && c.name != "a wait of zero" {
					t.Errorf("paused: %v, want %v", paused, c.paused)
				}
				if len(c.header) > 0 && c.header[1] == "7" && c.paused && s.Paused != 7*sec {
					t.Errorf("paused for %v, want 7s", s.Paused)
				}
			})
		})
	}
}

// A refusal that has other reasons than the rate neither pauses nor slows down, but a told wait is obeyed.
func TestToleratedRefusals(t *testing.T) {
	for _, wait := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, exact(learns(100, 1)), nil)
			refused := func() *http.Response { return trAnswer(429) }
			if wait {
				refused = func() *http.Response { return trAnswer(429, "Retry-After", "2") }
			}
			tolerated, refusals := 0, 0
			tr := &throttle.Transport{Limiter: l, Base: trNewBase(func(n int, _ *http.Request) (*http.Response, error) {
				if n%20 == 19 {
					return refused(), nil
				}
				return trAnswer(200), nil
			})}
			for range 4000 {
				before := learnedOf(t, l, 0).Rate
				resp, err := trSend(t.Context(), tr)
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode == 429 {
					refusals++
					paused := status(t, l).Paused
					if kept := learnedOf(t, l, 0).Rate >= before; kept {
						tolerated++
						if wait != (paused == 2*sec) {
							t.Fatalf("a tolerated refusal: paused for %v", paused)
						}
					}
				}
			}
			if tolerated < refusals/2 {
				t.Errorf("%d of %d refusals were tolerated", tolerated, refusals)
			}
		})
	}
}

// Canceled requests leave no trace in the rate, whether they waited or were admitted.
func TestCanceledRequestsTeachNothing(t *testing.T) {
	for _, burst := range []int64{1, 2, 20} {
		synctest.Test(t, func(t *testing.T) {
			p := exact(learns(10, burst))
			p.Guard = 5 * sec
			l := mustNew(t, p, nil)
			sends(t, &throttle.Transport{Limiter: l, Base: answersWith(tooMany)}, 1)
			time.Sleep(20 * sec)
			before := learnedOf(t, l, 0)
			var wg sync.WaitGroup
			for i := range 1000 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*10*ms)
					defer cancel()
					if permit, err := l.Acquire(ctx, nil); err == nil {
						time.Sleep(time.Duration(i%7) * 100 * ms)
						_ = permit.Cancel(t.Context())
						permit.Release()
					}
				})
			}
			wg.Wait()
			if after := learnedOf(t, l, 0); after.Rate > before.Rate*1.05 || after.Rate < before.Rate || status(t, l).Tiers[0].Used > 0 {
				t.Errorf("after cancellations %+v, before %+v, %v", after, before, status(t, l))
			}
		})
	}
}

// A forecast is a lower bound, and no request is refused that would have been admitted in time.
func TestForecastOfALearnedRate(t *testing.T) {
	for _, burst := range []int64{1, 5, 50} {
		for _, refusedAt := range []int{-1, 0, 40} {
			synctest.Test(t, func(t *testing.T) {
				l := mustNew(t, exact(learns(10, burst)), nil)
				refuse := answersWith(tooMany)
				tr := &throttle.Transport{Limiter: l, Base: refuse}
				var wg sync.WaitGroup
				for i := range 300 {
					if i == refusedAt {
						sends(t, tr, 1)
					}
					f, err := l.Forecast(t.Context(), nil)
					if err != nil {
						t.Fatal(err)
					}
					wg.Go(func() {
						start := time.Now()
						if err := l.Wait(t.Context()); err != nil || time.Since(start) < f.Wait {
							t.Errorf("burst %d, refused at %d: %v: admitted after %v, forecast %v", burst, refusedAt, err, time.Since(start), f.Wait)
						}
					})
					synctest.Wait()
				}
				wg.Wait()
			})
		}
	}
}

// With a MaxWait of the time that a caller would wait, a growing rate admits it.
func TestGrowingRateRefusesNobodyInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := func(maxWait time.Duration) (admitted int, last time.Duration) {
			p := exact(learns(10, 1))
			p.MaxWait = maxWait
			l := mustNew(t, p, nil)
			var mu sync.Mutex
			var wg sync.WaitGroup
			start := time.Now()
			for range 600 {
				wg.Go(func() {
					if l.Wait(t.Context()) == nil {
						mu.Lock()
						defer mu.Unlock()
						admitted, last = admitted+1, max(last, time.Since(start))
					}
				})
			}
			wg.Wait()
			return admitted, last
		}
		all, last := waits(0)
		some, _ := waits(last)
		if all != 600 || some != 600 || last > 45*sec {
			t.Errorf("%d and %d admitted, the last one after %v", all, some, last)
		}
	})
}

// SetPolicy keeps what was learned where the tier still learns, within its bounds, and starts again where it did not.
func TestLearnAndSetPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(learns(100, 5)), nil)
		tr := &throttle.Transport{Limiter: l, Base: answersWith(tooMany, ok)}
		sends(t, tr, 1)
		set := func(tier throttle.Tier) {
			t.Helper()
			if err := l.SetPolicy(t.Context(), exact(tier)); err != nil {
				t.Fatal(err)
			}
		}
		check := func(what string, want float64) {
			t.Helper()
			checkRate(t, l, want)
		}
		check("refused", 100*left)
		wider := learns(100, 5)
		wider.Learn = throttle.Learn{Least: 1, Most: 5000}
		set(wider)
		check("wider bounds", 100*left)
		narrower := learns(30, 5)
		narrower.Learn = throttle.Learn{Least: 10, Most: 50}
		set(narrower)
		check("a lower Most", 50)
		low := learns(90, 5)
		low.Learn = throttle.Learn{Least: 80, Most: 500}
		set(low)
		check("a higher Least", 80)
		token := learns(100, 5)
		token.Algorithm = throttle.TokenBucket
		set(token)
		set(throttle.Tier{Limit: 60, Window: sec, Algorithm: throttle.GCRA, Burst: 5})
		if s := status(t, l).Tiers[0]; s.Learned != nil || s.Limit != 5 {
			t.Errorf("a fixed rate: %v", s)
		}
		set(learns(100, 5))
		check("a tier that has not learned before", 100)
		time.Sleep(10 * sec)
		sends(t, tr, 3)
	})
}

// Inside one another, the quota that a refusal pauses learns.
func TestLearnWithin(t *testing.T) {
	profile := &answers.Profile{Rules: []answers.Rule{{Status: 430, Kind: answers.Limited, Wide: true}}}
	fixed := throttle.PerSecond(500)
	for _, c := range []struct {
		name         string
		inner, outer throttle.Tier
		status       int
		want         [2]float64
	}{
		{"inner learns", learns(100, 5), fixed, 429, [2]float64{100 * left, 0}},
		{"inner learns, outer refuses", learns(100, 5), fixed, 430, [2]float64{100, 0}},
		{"outer learns", fixed, learns(100, 5), 429, [2]float64{0, 100 * left}},
		{"outer learns and refuses", fixed, learns(100, 5), 430, [2]float64{0, 100 * left}},
		{"both learn, inner refuses", learns(100, 5), learns(200, 5), 429, [2]float64{100 * left, 200}},
		{"both learn, outer refuses", learns(100, 5), learns(200, 5), 430, [2]float64{100, 200 * left}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner, outer := exact(c.inner), exact(c.outer)
				inner.Name, outer.Name = "inner", "outer"
				l, _ := within(t, inner, outer)
				sends(t, &throttle.Transport{Limiter: l, Profile: profile, Base: answersWith(func() *http.Response { return trAnswer(c.status) })}, 1)
				for i, tier := range status(t, l).Tiers {
					rate := 0.
					if tier.Learned != nil {
						rate = tier.Learned.Rate
					}
					if !isRate(rate, c.want[i]) {
						t.Errorf("rate %d is %v, want %v", i, rate, c.want[i])
					}
				}
			})
		})
	}
}

// A key of a Group keeps what it has learned while it is parked, and makes room for other keys.
func TestLearnInAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, exact(learns(100, 5)), 200)
		teach := func(key string) {
			tr := &throttle.Transport{Limiter: g.For(key), Base: answersWith(tooMany, ok)}
			sends(t, tr, 1)
			sends(t, tr, 1) // the probe
			time.Sleep(sec)
		}
		teach("a")
		for i := range 100 {
			g.For(fmt.Sprint(i)).Allow()
		}
		checkRate(t, g.For("a"), 100*left)
		for i := range 300 { // more keys than there is room for
			key := fmt.Sprint("taught", i)
			teach(key)
			checkRate(t, g.For(key), 100*left)
		}
		if g.Len() > 200 {
			t.Errorf("%d keys, want 200 at most", g.Len())
		}
	})
}

// Keys that follow make room for others, too.
func TestFollowedKeysMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, exact(follows(per(time.Minute, 100, throttle.FixedWindow), 0, 1000)), 50)
		api := &namer{limit: math.MaxInt64}
		for i := range 200 {
			tr := &throttle.Transport{Limiter: g.For(fmt.Sprint(i)), Base: api, Profile: namesLimit}
			if n := sendAll(t, tr, 2); n != 2 || limitOf(t, g.For(fmt.Sprint(i))) != 1000 {
				t.Fatalf("key %d: %d sent, the limit is %d", i, n, limitOf(t, g.For(fmt.Sprint(i))))
			}
			time.Sleep(2 * time.Minute)
		}
	})
}

// Each member of a Pool learns by itself.
func TestLearnInAPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := exact(learns(100, 5)), exact(learns(100, 5))
		a.Name, b.Name = "a", "b"
		la, lb := mustNew(t, a, nil), mustNew(t, b, nil)
		pool, err := throttle.NewPool(throttle.Member{Name: "a", Limiter: la}, throttle.Member{Name: "b", Limiter: lb, Rank: 1})
		if err != nil {
			t.Fatal(err)
		}
		sends(t, &throttle.Transport{Pool: pool, Rewrite: func(*http.Request, string) error { return nil }, Base: answersWith(tooMany, ok)}, 1)
		if x, y := learnedOf(t, la, 0).Rate, learnedOf(t, lb, 0).Rate; !isRate(x, 100*left) || !isRate(y, 100) {
			t.Errorf("the rates are %v and %v, want %v and 100", x, y, 100*left)
		}
	})
}

// A refusal in a stream teaches as a response does.
func TestEventTeaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(learns(100, 5)), nil)
		profile := &answers.Profile{Rules: []answers.Rule{{Event: "error", Status: 200, Path: "error.type", Text: "rate_limit", Kind: answers.Limited}}}
		tr := &throttle.Transport{Limiter: l, Profile: profile, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			resp := trAnswer(200, "Content-Type", "text/event-stream")
			resp.Body = io.NopCloser(strings.NewReader("event: error\ndata: {\"error\":{\"type\":\"rate_limit\"}}\n\n"))
			return resp, nil
		})}
		sends(t, tr, 1)
		synctest.Wait()
		checkRate(t, l, 100*left)
	})
}

// A tier that learns stands beside concurrency, estimates, budgets and classes.
func TestLearnBesideOtherTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exact(learns(100, 10),
			throttle.Tier{Limit: 3, Algorithm: throttle.Concurrency},
			throttle.Tier{Limit: 1000, Window: hour, Unit: "tokens", Estimated: true},
			cents(500, throttle.Day))
		p.Headroom, p.Aging = 50, hour
		alerts := 0
		p.Alert = func(throttle.Alert) { alerts++ }
		p.AlertAt = []int{50}
		l := mustNew(t, p, nil)
		open := acquire(t, l, throttle.Cost{"tokens": 400, "cents": 260})
		tr := &throttle.Transport{Limiter: l, Base: answersWith(tooMany, ok)}
		sends(t, tr, 1)
		if got := learnedOf(t, l, 0).Rate; !isRate(got, 100*left) || alerts != 1 {
			t.Errorf("the rate is %v, want %v; %d alerts", got, 100*left, alerts)
		}
		if err := open.Settle(throttle.Cost{"tokens": 150}); err != nil {
			t.Error(err)
		}
		open.Release()
		time.Sleep(10 * sec)
		sends(t, tr, 1)
		if got := fmt.Sprint(used(t, l)[1:]); got != "[0 150 260]" {
			t.Errorf("used %v, want [0 150 260]", got)
		}
		batch := throttle.WithClass(t.Context(), throttle.Batch)
		n := 0
		for ctx, cancel := context.WithTimeout(batch, time.Microsecond); ; n++ {
			permit, err := l.TryAcquire(ctx, nil)
			if err != nil {
				cancel()
				break
			}
			permit.Release()
		}
		if n > 5 {
			t.Errorf("batch requests used %d of 10", n)
		}
	})
}

// A quota that is used up at its start, or whose callers panic, learns as another one.
func TestLearnAfterPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exact(learns(100, 5))
		p.AssumeUsed = true
		panics := true
		p.Observer = &throttle.Observer{
			Paused: func(throttle.PausedInfo) {
				if panics {
					panic("paused")
				}
			},
			Answered: func(_ context.Context, i throttle.AnsweredInfo) {
				if panics {
					panic("answered")
				}
			},
		}
		l := mustNew(t, p, nil)
		if l.Allow() {
			t.Error("admitted at once, and the use before is not known")
		}
		tr := &throttle.Transport{Limiter: l, Base: answersWith(tooMany, ok)}
		survive(func() { _, _ = trSend(t.Context(), tr) })
		checkRate(t, l, 100*left)
		panics = false
		time.Sleep(5 * sec)
		sends(t, tr, 3)
	})
}

// Forget makes waiting callers go at the rate of the policy.
func TestForgetLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(learns(10, 1)), nil)
		tr := &throttle.Transport{Limiter: l, Base: answersWith(tooMany, ok, tooMany, ok, tooMany, ok, tooMany, ok)}
		for range 4 {
			sends(t, tr, 1)
			time.Sleep(10 * sec)
			sends(t, tr, 1)
		}
		if got := learnedOf(t, l, 0).Rate; got > 5 {
			t.Errorf("the rate is %v", got)
		}
		var wg sync.WaitGroup
		start := time.Now()
		for range 51 {
			wg.Go(func() {
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if err := l.Forget(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if took := time.Since(start); took > 6*sec {
			t.Errorf("51 requests took %v at 10/s", took)
		}
		if got := learnedOf(t, l, 0); got.Refused != 0 || got.Rate < 10 {
			t.Errorf("%+v", got)
		}
	})
}

// Two Limiters of one store share what is learned.
func TestLearnInASharedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := local.New()
		a, b := mustNew(t, exact(learns(100, 5)), s), mustNew(t, exact(learns(100, 5)), s)
		sends(t, &throttle.Transport{Limiter: a, Base: answersWith(tooMany)}, 1)
		checkRate(t, b, 100*left)
	})
}

// A shadow learns nothing: its requests are not sent by its rate.
func TestShadowLearnsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exact(learns(100, 5))
		p.Shadow = true
		l := mustNew(t, p, nil)
		sends(t, &throttle.Transport{Limiter: l, Base: answersWith(tooMany)}, 10)
		checkRate(t, l, 100)
	})
}

// One client whose own object is refused each time cannot lower the rate of the others, whether or not a rule of
// the profile knows the object's refusals.
func TestRefusalsOfOneObject(t *testing.T) {
	for _, part := range []int{20, 5, 2} {
		for name, profile := range map[string]*answers.Profile{
			"known": {Rules: []answers.Rule{{Status: 429, Header: "X-Object", Kind: answers.Other}}}, "unknown": nil,
		} {
			t.Run(fmt.Sprintf("one of %d, %s", part, name), func(t *testing.T) {
				soak.Sample(t, 3)
				synctest.Test(t, func(t *testing.T) { refuseOneObject(t, part, profile) })
			})
		}
	}
}

// refuseOneObject lets 20 clients call an API of 50/s, of which one in part only calls an object that is refused.
func refuseOneObject(t *testing.T, part int, profile *answers.Profile) {
	l := mustNew(t, exact(learns(20, 2)), nil)
	api := throttletest.New(throttle.Tier{Limit: 50, Window: sec, Algorithm: throttle.GCRA, Burst: 50})
	api.Header = throttletest.NoRetryAfter
	api.Hold = func() time.Duration { return 20 * ms }
	tr := &throttle.Transport{Limiter: l, Profile: profile, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path != "/own" {
			return api.RoundTrip(r)
		}
		time.Sleep(20 * ms)
		return trAnswer(429, "X-Object", "1"), nil
	})}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 20 {
		path := "http://api.test/"
		if i%part == 0 {
			path += "own"
		}
		wg.Go(func() {
			for {
				req, err := http.NewRequestWithContext(ctx, "GET", path, nil)
				if err != nil {
					t.Error(err)
				}
				resp, err := tr.RoundTrip(req)
				if err != nil {
					return
				}
				resp.Body.Close()
			}
		})
	}
	time.Sleep(5 * time.Minute)
	before := api.Summary().Accepted
	wg.Wait()
	if good := float64(api.Summary().Accepted-before) / 300; good < 0.85*50 {
		t.Errorf("one of %d requests is refused for its object, and the others have %.1f/s of 50", part, good)
	}
}

// Through a storm of refusals, cancellations and policies, rates stay within their bounds, and the quota is quiet again
// afterwards.
func TestStormOfRefusals(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			tokens := learns(1000, 100)
			tokens.Unit = "tokens"
			p := exact(learns(50, 1+int64(seed)), throttle.Tier{Limit: 12, Algorithm: throttle.Concurrency}, tokens)
			p.Guard = 50 * ms
			s := local.New()
			limiters := []*throttle.Limiter{mustNew(t, p, s), mustNew(t, p, s)}
			var wg sync.WaitGroup
			for w := range 16 {
				r := rand.New(rand.NewPCG(seed, uint64(w)))
				wg.Go(func() { stormOfRefusals(t, r, limiters[w%2], p) })
			}
			wg.Wait()
			time.Sleep(10 * time.Minute)
			sends(t, &throttle.Transport{Limiter: limiters[0], Base: answersWith(ok)}, 1) // a probe
			time.Sleep(sec)
			for i, tier := range status(t, limiters[1]).Tiers {
				if tier.Used != 0 || tier.InFlight != 0 {
					t.Errorf("seed %d, tier %d: %v", seed, i, tier)
				}
			}
			if err := limiters[1].Forget(t.Context()); err != nil {
				t.Error(err)
			}
			if got := learnedOf(t, limiters[0], 0).Rate; got != 50 {
				t.Errorf("seed %d: the rate is %v, want 50", seed, got)
			}
		})
	}
}

// stormOfRefusals makes calls that may be refused.
func stormOfRefusals(t *testing.T, r *rand.Rand, l *throttle.Limiter, p throttle.Policy) {
	tr := &throttle.Transport{Limiter: l, Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": r.Int64N(100)} },
		Base: roundTripper(func(req *http.Request) (*http.Response, error) {
			time.Sleep(time.Duration(r.IntN(100)) * ms)
			switch r.IntN(12) {
			case 0:
				return nil, errors.New("lost")
			case 1:
				return trAnswer(429), nil
			case 2:
				return trAnswer(429, "Retry-After", "1"), nil
			}
			return trAnswer(200), req.Context().Err()
		})}
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(5000))*ms)
		switch r.IntN(12) {
		case 0:
			p.MaxWait = time.Duration(1+r.IntN(3)) * sec
			_ = l.SetPolicy(ctx, p)
		case 1:
			_ = l.Forget(ctx)
		case 2, 3:
			if permit, err := l.Acquire(ctx, throttle.Cost{"tokens": r.Int64N(50)}); err == nil {
				endPermit(r, permit)
			}
		default:
			_, _ = trSend(ctx, tr)
		}
		cancel()
		for i, most := range []float64{1000, 0, 1000} {
			if i != 1 {
				if rate := learnedOf(t, l, i).Rate; rate < 1 || rate > most {
					t.Errorf("rate %d is %v", i, rate)
				}
			}
		}
	}
}

// A refusal that does not say what it is about teaches the account's quota, if the endpoint's limit is known.
func TestRefusalTeachesTheQuotaThatLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, outer := exact(throttle.PerSecond(100)), exact(learns(20, 2))
		inner.Name, outer.Name = "endpoint", "account"
		l, o := within(t, inner, outer)
		tr := &throttle.Transport{Limiter: l, Base: answersWith(func() *http.Response { return trAnswer(429) })}
		sends(t, tr, 1)
		if got := learnedOf(t, o, 0).Rate; !(got < 20) {
			t.Errorf("the account's rate is %v, want less than 20", got)
		}
		if s := status(t, l); s.Paused > 0 {
			t.Errorf("paused for %v", s.Paused)
		}
	})
}
