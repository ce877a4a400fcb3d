package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

// TestWaitErrorText checks the texts of errors: each names the policy, the reason, the tier that
// decides, how many callers are ahead, and "until" once.
func TestWaitErrorText(t *testing.T) {
	until := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for want, e := range map[string]*throttle.WaitError{
		`throttle: policy "mail": the wait would outlast the deadline: 12s for tier 5/s, 60 callers ahead`: {Policy: "mail", Tier: "5/s", Wait: 12 * time.Second, Ahead: 60, Err: throttle.ErrDeadline},
		`throttle: policy "mail": the wait would outlast the deadline: 250ms, 1 caller ahead`:              {Policy: "mail", Wait: 250 * time.Millisecond, Ahead: 1, Err: throttle.ErrDeadline},
		`throttle: the wait would outlast the context's deadline: 2s`:                                      {Wait: 2 * time.Second, Err: throttle.ErrDeadline, Bound: "context"},
		`throttle: the wait would outlast MaxWait: 2s for tier 5/s`:                                        {Tier: "5/s", Wait: 2 * time.Second, Err: throttle.ErrDeadline, Bound: "MaxWait"},
		`throttle: policy "usd": budget is used up until 2026-12-01T00:00:00Z: tier 100/month;budget=true`: {Policy: "usd", Tier: "100/month;budget=true", Wait: time.Hour, Until: until, Err: throttle.ErrExhausted},
		`throttle: policy "github": the provider closed the quota until 2026-12-01T00:00:00Z`:              {Policy: "github", Wait: time.Hour, Until: until, Err: throttle.ErrBanned},
		`throttle: queue is full: 9 callers ahead`:                                                         {Ahead: 9, Err: throttle.ErrQueueFull},
		`throttle: policy "maps": store is unavailable: connection refused`:                                {Policy: "maps", Err: throttle.ErrUnavailable, Cause: errors.New("connection refused")},
		`throttle: policy "maps": concurrency is limited: use Acquire and release the permit`:              {Policy: "maps", Err: throttle.ErrNeedsPermit},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestErrDeadlineNamesTheBound checks that a refusal for lack of time names what the wait would
// outlast, before the wait and during it, in one quota and in nested ones.
func TestErrDeadlineNamesTheBound(t *testing.T) {
	within := func(d time.Duration) func(context.Context) (context.Context, context.CancelFunc) {
		return func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, d) }
	}
	for _, tt := range []struct {
		name         string
		inner, outer time.Duration // MaxWait
		timeout      time.Duration
		want         throttle.Bound
		text         string
	}{
		{"context", 0, 0, sec, "context", "the wait would outlast the context's deadline: "},
		{"MaxWait", sec, 0, 0, "MaxWait", "the wait would outlast MaxWait: "},
		{"the context is earlier", 2 * sec, 2 * sec, sec, "context", "the wait would outlast the context's deadline: "},
		{"MaxWait is earlier", sec, 0, 2 * sec, "MaxWait", "the wait would outlast MaxWait: "},
		{"MaxWait of the outer policy", 0, sec, 0, "MaxWait", "the wait would outlast MaxWait: "},
	} {
		for _, nested := range []string{"", "the inner quota is full", "the outer quota is full"} {
			for _, pauses := range []bool{false, true} {
				if tt.outer > 0 && tt.inner == 0 && nested != "the outer quota is full" {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					policy := func(name string, maxWait time.Duration, full bool) *throttle.Limiter {
						p := exact(throttle.PerMinute(1))
						p.Name, p.MaxWait = name, maxWait
						l := mustNew(t, p, nil)
						if full && !pauses {
							l.Allow()
						}
						return l
					}
					l := policy("inner", tt.inner, nested != "the outer quota is full")
					paused := l
					if nested != "" {
						outer := policy("outer", tt.outer, nested == "the outer quota is full")
						l = l.Within(outer)
						if nested == "the outer quota is full" {
							paused = outer
						}
					}
					if pauses { // during the wait
						_ = paused.Pause(t.Context(), sec/2)
						time.AfterFunc(sec/4, func() { _ = paused.Pause(t.Context(), time.Minute) })
					}
					ctx, cancel := t.Context(), func() {}
					if tt.timeout > 0 {
						ctx, cancel = within(tt.timeout)(ctx)
					}
					defer cancel()
					_, err := l.Acquire(ctx, nil)
					var e *throttle.WaitError
					if !errors.As(err, &e) || e.Err != throttle.ErrDeadline || e.Bound != tt.want || !strings.Contains(err.Error(), tt.text) {
						t.Errorf("%s, %q, pause %v: %v, bound %q; want bound %q", tt.name, nested, pauses, err, e.Bound, tt.want)
					}
				})
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(throttle.PerMinute(1)), nil)
		base := trNewBase(nil)
		tr := &throttle.Transport{Limiter: l, Base: base, SendBy: func(*http.Request) time.Time { return time.Now().Add(sec) }}
		trExpect(t, tr, 200)
		_, err := trSend(t.Context(), tr)
		var e *throttle.WaitError
		if !errors.As(err, &e) || e.Bound != "SendBy" || !strings.Contains(err.Error(), "the wait would outlast SendBy: 1m0s for tier 1/m") {
			t.Errorf("SendBy: %v", err)
		}
		if _, err = l.TryAcquire(t.Context(), nil); !errors.As(err, &e) || e.Bound != "" || !strings.Contains(err.Error(), "the wait would outlast the deadline: ") {
			t.Errorf("TryAcquire: %v", err)
		}
	})
}

// A judged limiter is one whose every admission is also counted, tier by tier, by a counter that
// shares no arithmetic with it.
type judged struct {
	*throttle.Limiter
	mu       sync.Mutex // guards all below
	counters map[string]*throttletest.Counter
	refused  int // by a counter
}

func judge(t *testing.T, l *throttle.Limiter, policies ...throttle.Policy) *judged {
	j := &judged{Limiter: l, counters: make(map[string]*throttletest.Counter)}
	for _, p := range policies {
		for _, tier := range p.Tiers {
			j.counters[p.Name+"/"+tier.String()] = counter(t, tier)
		}
	}
	return j
}

// acquire acquires a permit, whose response comes at once. It returns how long that took.
func (j *judged) acquire(ctx context.Context) (p *throttle.Permit, took time.Duration, err error) {
	began := time.Now()
	p, err = j.Acquire(ctx, nil)
	if took = time.Since(began); err == nil {
		p.Arrived()
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, c := range j.counters {
			if !c.Arrive(time.Now().UnixMicro(), nil) {
				j.refused++
			}
		}
	}
	return p, took, err
}

// admits reports whether a counter admits one more unit.
func (j *judged) admits(policy string, tier throttle.Tier, now int64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.counters[policy+"/"+tier.String()].Admits(now, nil) < 0
}

func (j *judged) release(p *throttle.Permit) {
	j.mu.Lock()
	for _, c := range j.counters { // before the next request is admitted in its place
		c.Release(nil)
	}
	j.mu.Unlock()
	p.Release()
}

// TestExplainIsTrue checks random states of quotas: an Explanation contains the Forecast, the
// request then waits for that time where it is exact, and never less; a tier that is said to be full
// refuses one more unit, and one that is said to have room admits it; the classes ahead add up; and
// Acquire fails at once, with the same reason, where Err says so.
func TestExplainIsTrue(t *testing.T) {
	var waited, refused, paused, ahead, full, room int
	seeds := soak.Times(1000)
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(71, seed))
			one := func(from ...throttle.Algorithm) throttle.Algorithm { return from[rnd.IntN(len(from))] }
			policy := func(name string, isExact bool) throttle.Policy {
				from := []throttle.Algorithm{throttle.SlidingLog, throttle.FixedWindow, throttle.TokenBucket, throttle.AnchoredWindow, throttle.GCRA, throttle.LeakyBucket}
				if !isExact {
					from = append(from, throttle.WeightedWindow, throttle.SlidingWindow)
				}
				p := exact(
					per(time.Duration(1+rnd.IntN(3))*sec, 2+rnd.Int64N(5), one(from...)),
					per(time.Minute, 10+rnd.Int64N(20), one(from...)))
				if p.Name = name; !isExact {
					if rnd.IntN(3) == 0 {
						p.Tiers = append(p.Tiers, throttle.Tier{Limit: 1 + rnd.Int64N(6), Algorithm: throttle.Concurrency})
					}
					if rnd.IntN(3) == 0 {
						p.Tiers = append(p.Tiers, throttle.Budget(5+rnd.Int64N(40), "", throttle.Day))
					}
					p.Headroom, p.Aging = rnd.IntN(2)*20, time.Duration(rnd.IntN(3))*sec
				}
				if p.MaxWait = time.Duration(rnd.IntN(4)) * 20 * sec; rnd.IntN(4) == 0 {
					p.MaxQueue = 1 + rnd.IntN(30)
				}
				return p
			}
			isExact := rnd.IntN(2) == 0
			policies, sameAging := []throttle.Policy{policy("inner", isExact)}, true
			l := mustNew(t, policies[0], nil)
			if !isExact && rnd.IntN(3) == 0 {
				policies = append(policies, policy("outer", false))
				sameAging = policies[0].Aging == policies[1].Aging
				l = l.Within(mustNew(t, policies[1], nil))
			}
			j := judge(t, l, policies...)
			ctx, cancel := context.WithCancel(t.Context())
			class := func() context.Context { return ctx }
			if !isExact {
				class = func() context.Context {
					return throttle.WithClass(ctx, []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}[rnd.IntN(3)])
				}
			}
			var callers sync.WaitGroup
			var gaveUp atomic.Int32
			for range rnd.IntN(40) {
				if rnd.IntN(3) == 0 {
					time.Sleep(time.Duration(rnd.IntN(2e6)) * time.Microsecond)
				}
				hold := rnd.IntN(2) * rnd.IntN(3e6)
				ctx := class()
				callers.Go(func() {
					p, _, err := j.acquire(ctx)
					if err != nil {
						gaveUp.Add(1)
						return
					}
					_ = sleep(ctx, time.Duration(hold)*time.Microsecond)
					j.release(p)
				})
				synctest.Wait()
			}
			if rnd.IntN(6) == 0 {
				_ = l.Pause(ctx, time.Duration(rnd.IntN(5e6))*time.Microsecond)
				synctest.Wait()
			}
			asks := class()
			if rnd.IntN(4) == 0 {
				var end context.CancelFunc
				asks, end = context.WithTimeout(asks, time.Duration(rnd.IntN(9e6))*time.Microsecond)
				defer end()
			}
			status := status(t, l)
			e, err := l.Explain(asks, nil)
			f, failed := l.Forecast(asks, nil)
			if err != nil || e.Forecast != f || failed != nil && (e.Err == nil || e.Err.Error() != failed.Error()) {
				t.Fatalf("seed %d, %v: explanation %v, %v; forecast %+v, %v", seed, policies, e, err, f, failed)
			}
			if e.Interactive+e.Normal+e.Batch != e.Ahead || e.Ahead > status.Waiting && len(policies) == 1 {
				t.Errorf("seed %d: %d + %d + %d of %d are ahead, while %d wait", seed, e.Interactive, e.Normal, e.Batch, e.Ahead, status.Waiting)
			}
			now := time.Now().UnixMicro()
			for _, q := range e.Quotas {
				for _, tier := range q.Tiers {
					admits := j.admits(q.Policy, tier.Tier, now)
					if admits == tier.Limited && !(admits && tier.Tier.Algorithm == throttle.SlidingWindow) { // which counts in whole parts
						t.Errorf("seed %d: %v while the counter admits one more: %v", seed, tier, admits)
					}
					if tier.Limited {
						full++
					} else {
						room++
					}
				}
				if q.Paused > 0 {
					if paused++; q.Cause != "call" {
						t.Errorf("seed %d: paused by %q", seed, q.Cause)
					}
				}
			}
			before := gaveUp.Load()
			p, took, err := j.acquire(asks)
			leftAhead := gaveUp.Load() > before
			switch {
			case e.Err != nil:
				refused++
				var want, got *throttle.WaitError
				if !errors.As(e.Err, &want) || !errors.As(err, &got) || want.Err != got.Err || want.Bound != got.Bound || took > 0 {
					t.Errorf("seed %d, %v: Err is %v, and Acquire returned %v after %v", seed, policies, e.Err, err, took)
				}
			// See Forecast.Wait.
			case err == nil && (took < e.Wait && e.Wait < 1<<62 && !leftAhead && (sameAging || e.Ahead == 0) || isExact && took != e.Wait):
				t.Errorf("seed %d, %v: waited for %v, exact %v: %v", seed, policies, took, isExact, e)
			case isExact && err != nil:
				t.Errorf("seed %d, %v: %v after %v: %v", seed, policies, err, took, e)
			}
			if e.Wait > 0 {
				waited++
			}
			if e.Ahead > 0 {
				ahead++
			}
			if err == nil {
				j.release(p)
			}
			cancel()
			if callers.Wait(); j.refused > 0 {
				t.Errorf("seed %d, %v: the counters refuse %d", seed, policies, j.refused)
			}
		})
	}
	t.Logf("%d waited, %d behind others, %d refused, %d paused; %d tiers full, %d with room", waited, ahead, refused, paused, full, room)
	if waited < 3*seeds/10 || ahead < seeds/5 || refused < seeds/20 || paused < seeds/20 || full < 3*seeds/10 || room < 3*seeds/10 {
		t.Error("too few of some kind")
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestExplainSentences checks the texts of typical situations.
func TestExplainSentences(t *testing.T) {
	coinbase := []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10)}
	named := func(name string, tiers ...throttle.Tier) throttle.Policy {
		p := exact(tiers...)
		p.Name = name
		return p
	}
	use := func(l *throttle.Limiter, n int) {
		for range n {
			l.Allow()
		}
	}
	refused := func(t *testing.T, l *throttle.Limiter, profile *answers.Profile, response string) {
		_, _ = trSend(t.Context(), &throttle.Transport{Limiter: l, Base: answering(response), Profile: profile})
	}
	for _, tt := range []struct {
		name string
		make func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost)
		want string
	}{
		{"at once", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			return mustNew(t, throttle.Policy{Tiers: coinbase}, nil), nil
		}, "The request would be sent at once. 5/s has room for 5: 0 of 5 used. 10/h has room for 10: 0 of 10 used. The guard interval is 50ms."},
		{"dollars", func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost) {
			p, err := throttle.ParsePolicy("spending", "$5/month | guard=none")
			if err != nil {
				t.Fatal(err)
			}
			l := mustNew(t, p, nil)
			acquire(t, l, throttle.Cost{throttle.Nanodollars: 1_250_000_000})
			return l, throttle.Cost{throttle.Nanodollars: 4_000_000_000}
		}, `The request would be refused: policy "spending": budget is used up: tier $5/month. $5/month has room for $3.75: $1.25 of $5.00 used, $1.25 of them in flight.`},
		{"a queue", func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, throttle.Policy{Tiers: coinbase}, nil)
			use(l, 5)
			time.Sleep(time.Second + 50*time.Millisecond)
			use(l, 2)
			for range 2 {
				acquire(t, l, nil)
			}
			for i := range 7 {
				go l.Wait(throttle.WithClass(ctx, []throttle.Class{throttle.Normal, throttle.Batch}[min(i%3, 1)]))
				synctest.Wait()
			}
			return l, nil
		}, "The request would wait 1h0m0s for tier 10/h, behind 6 callers (2 normal, 4 batch). 5/s is full until 00:00:02.1Z: 5 of 5 used, 5 of them in flight. " +
			"10/h is full until 01:00:00.05Z: 10 of 10 used, 5 of them in flight. The guard interval is 50ms."},
		{"the deadline", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			p := exact(coinbase...)
			p.MaxWait = time.Minute
			l := mustNew(t, p, nil)
			use(l, 4)
			return l, throttle.Cost{"requests": 5}
		}, "The request would wait 1s for tier 5/s. 5/s has room for 1: 4 of 5 used. 10/h has room for 6: 4 of 10 used."},
		{"MaxWait", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			p := exact(throttle.PerHour(1))
			p.MaxWait = time.Minute
			l := mustNew(t, p, nil)
			use(l, 1)
			return l, nil
		}, `The request would be refused: policy "api": the wait would outlast MaxWait: 1h0m0s for tier 1/h. 1/h is full until 01:00:00Z: 1 of 1 used.`},
		{"concurrency", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(throttle.Tier{Limit: 2, Algorithm: throttle.Concurrency}), nil)
			acquire(t, l, throttle.Cost{"requests": 2})
			return l, nil
		}, "The request would wait for tier 2;algo=concurrency until another request ends. 2;algo=concurrency is full until a request ends: 2 of 2 used."},
		{"a call of Pause", func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(coinbase...), nil)
			_ = l.Pause(ctx, 28*time.Second)
			return l, nil
		}, "The request would wait 28s for the end of a pause. 5/s has room for 5: 0 of 5 used. 10/h has room for 10: 0 of 10 used. The quota is paused for 28s, by a call of Pause."},
		{"a pause by another Limiter", func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost) {
			s := local.New()
			l := mustNew(t, named("api", coinbase[0]), s)
			_ = l.Pause(ctx, time.Second)
			_ = mustNew(t, named("api", coinbase[0]), s).Pause(ctx, 28*time.Second)
			return l, nil
		}, "The request would wait 28s for the end of a pause. 5/s has room for 5: 0 of 5 used. The quota is paused for 28s, by another process or Limiter."},
		{"a refusal", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(coinbase[0]), nil)
			refused(t, l, &answers.Profile{Reasons: []answers.Field{{Header: "X-Reason"}}}, "429\nRetry-After: 30\nX-Reason: burst")
			return l, nil
		}, `The request would wait 30s for the end of a pause. 5/s has room for 4: 1 of 5 used. The quota is paused for 30s, after a response with status 429 ("burst").`},
		{"a probe", func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(coinbase[0]), nil)
			refused(t, l, nil, "429\nRetry-After: 30")
			_, _ = l.Acquire(ctx, nil)
			time.Sleep(time.Second)
			return l, nil
		}, "The request would wait for the response to another request, at most 29s. 5/s has room for 5: 0 of 5 used. " +
			"The first request after a pause is in flight, and the others wait for its response, at most 29s."},
		{"a ban", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) { return banned(t), nil },
			`The request would be refused: policy "api": the provider closed the quota until 2000-01-01T02:00:00Z. 5/s has room for 4: 1 of 5 used. ` +
				`The provider has closed the quota for 2h0m0s, after a response with status 429. The guard interval is 50ms.`},
		{"a budget", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(coinbase[0], throttle.Budget(3, "", throttle.Month)), nil)
			use(l, 3)
			return l, nil
		}, `The request would be refused: policy "api": budget is used up until 2000-02-01T00:00:00Z: tier 3/month;budget=true. 5/s has room for 2: 3 of 5 used. ` +
			"3/month;budget=true is used up until 2000-02-01T00:00:00Z: 3 of 3 used."},
		{"no wait helps", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			return mustNew(t, exact(coinbase...), nil), throttle.Cost{"requests": 11}
		}, `The request would be refused: policy "api": cost of 11 requests exceeds the capacity of tier 5/s. 5/s has room for 5: 0 of 5 used. 10/h has room for 10: 0 of 10 used.`},
		{"a nest", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			outer := mustNew(t, named("account", coinbase[1]), nil)
			use(outer, 10)
			return mustNew(t, named("orders", coinbase[0]), nil).Within(outer), nil
		}, `The request would wait 1h0m0s for tier 10/h of policy "account". Policy "orders": 5/s has room for 5: 0 of 5 used. ` +
			`Policy "account": 10/h is full until 01:00:00Z: 10 of 10 used.`},
		{"a learned guard", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			return mustNew(t, throttle.Policy{Tiers: coinbase[:1], Guard: throttle.AutoGuard}, nil), nil
		}, "The request would be sent at once. 5/s has room for 5: 0 of 5 used. The guard interval is 1s, learned from responses."},
		{"other programs", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(coinbase[1]), nil)
			profile := &answers.Profile{Quotas: []answers.Quota{{Limit: answers.Field{Header: "L"}, Remaining: answers.Field{Header: "R"}, Reset: answers.Field{Header: "S"}}}}
			refused(t, l, profile, "200\nL: 10\nR: 4\nS: 60")
			return l, nil
		}, "The request would be sent at once. 10/h has room for 4: 6 of 10 used, 5 of them by others."},
		{"the store is away", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			return mustNew(t, named("api", coinbase...), &away{}), nil
		}, "The request would wait until the store answers. The quota is shared through Redis. The store does not answer: callers wait for it."},
		{"a fallback", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			return mustNew(t, named("api", coinbase...), &away{fallback: 4}), nil
		}, "The request would be sent at once. The quota is shared through Redis. The store does not answer: this process decides on 1/4 of the quota."},
		{"closed", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, named("api", coinbase...), nil)
			l.Close()
			return l, nil
		}, `The request would be refused: policy "api": limiter is closed.`},
		{"a group", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			g, err := throttle.NewGroup(named("key", coinbase[0]), nil, throttle.GroupOptions{})
			if err != nil {
				t.Fatal(err)
			}
			use(g.For("secret"), 5)
			return g.For("secret"), nil
		}, "The request would wait 1s for tier 5/s. 5/s is full until 00:00:01Z: 5 of 5 used."},
		{"a pace", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(throttle.Tier{Limit: 60, Window: time.Minute, PaceBurst: 2}), nil)
			use(l, 2)
			time.Sleep(time.Second)
			use(l, 1)
			return l, nil
		}, "The request would wait 1s for tier 60/m;pace_burst=2. 60/m;pace_burst=2 admits one more at 00:00:02Z: 3 of 60 used."},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l, cost := tt.make(t, ctx)
			if tt.name == "a queue" {
				ctx = throttle.WithClass(ctx, throttle.Batch)
			}
			e, err := l.Explain(ctx, cost)
			if got := e.String(); err != nil || got != tt.want {
				t.Errorf("%s: %v\n%s\nwant\n%s", tt.name, err, got, tt.want)
			}
		})
	}
}

// TestExplainLongestWait checks that the quota decides for which the request would wait longest, also if
// that is paused and another quota is full.
func TestExplainLongestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, nil)
		l := inner.Within(outer)
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			pause    time.Duration
			by, tier string
		}{{0, "outer", "1/s"}, {500 * ms, "outer", "1/s"}, {5 * time.Second, "inner", ""}} {
			if err := inner.Pause(t.Context(), step.pause); err != nil {
				t.Fatal(err)
			}
			e, err := l.Explain(t.Context(), nil)
			if err != nil || e.By != step.by || e.Tier != step.tier {
				t.Errorf("paused for %v: decided by %q of %q, %v; want %q of %q", step.pause, e.Tier, e.By, err, step.tier, step.by)
			}
		}
	})
}

// TestExplainPauseOfAFullTier checks that a request that waits for the release of another is refused if a
// pause outlasts its deadline, as Acquire refuses it.
func TestExplainPauseOfAFullTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}
		l := mustNew(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{open}, MaxWait: time.Minute}, nil)
		for name, l := range map[string]*throttle.Limiter{
			"alone": l, "nested": l.Within(mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, nil)),
		} {
			p, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, pause := range []time.Duration{0, 30 * time.Second, time.Hour} {
				if err := l.Pause(t.Context(), pause); err != nil {
					t.Fatal(err)
				}
				e, err := l.Explain(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				_, err = l.Acquire(t.Context(), nil)
				if atOnce := time.Since(began) == 0; atOnce != (e.Err != nil) || atOnce && e.Err.Error() != err.Error() {
					t.Errorf("%s, paused for %v: explained %v; acquired %v after %v", name, pause, e.Err, err, time.Since(began))
				}
			}
			_ = l.Resume(t.Context())
			p.Release()
			time.Sleep(time.Second)
		}
	})
}

// TestExplainErrors checks that Explain fails only where there is nothing to explain, and charges
// nothing.
func TestExplainErrors(t *testing.T) {
	l := mustNew(t, exact(throttle.PerHour(5)), nil)
	for _, cost := range []throttle.Cost{{"cats": 1}, {"requests": -1}} {
		if e, err := l.Explain(t.Context(), cost); err == nil || e.Quotas != nil {
			t.Errorf("%v: %v, %v; want an error", cost, e, err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if e, err := l.Explain(ended, nil); err != context.Canceled || e.Quotas != nil {
		t.Errorf("%v, %v; want the error of the context", e, err)
	}
	if used := status(t, l).Tiers[0].Used; used != 0 {
		t.Errorf("%d used, want 0", used)
	}
}

// TestForecastIsExact checks that, without deadlines and with equal costs, a Forecast is exact to
// the microsecond and charges nothing.
func TestForecastIsExact(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(6, seed))
			algorithms := []throttle.Algorithm{throttle.SlidingLog, throttle.FixedWindow, throttle.TokenBucket, throttle.AnchoredWindow, throttle.GCRA, throttle.LeakyBucket}
			policy := exact(
				per(time.Duration(1+rnd.IntN(3))*time.Second, 2+rnd.Int64N(5), algorithms[rnd.IntN(len(algorithms))]),
				per(time.Minute, 20+rnd.Int64N(20), algorithms[rnd.IntN(len(algorithms))]))
			l := mustNew(t, policy, nil)
			var wg sync.WaitGroup
			for i := range 60 {
				if rnd.IntN(3) == 0 {
					time.Sleep(time.Duration(rnd.IntN(1e6)) * time.Microsecond)
				}
				waiting := status(t, l).Waiting
				f, err := l.Forecast(t.Context(), nil)
				if again, _ := l.Forecast(t.Context(), nil); err != nil || again != f {
					t.Fatalf("seed %d, %v, caller %d: forecasts %v and %v, %v; want equal ones", seed, policy.Tiers, i, f, again, err)
				}
				if (f.Wait > 0) != (f.Tier != "") || f.Ahead != waiting {
					t.Errorf("seed %d, %v, caller %d: forecast is %+v while %d callers wait", seed, policy.Tiers, i, f, waiting)
				}
				wg.Go(func() {
					began := time.Now()
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					if took := time.Since(began); took != f.Wait {
						t.Errorf("seed %d, %v, caller %d waited for %v, want the forecast %+v", seed, policy.Tiers, i, took, f)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
		})
	}
}

// TestForecastOfBatch checks that a Batch request waits for room for the headroom, but no longer
// than until it has aged.
func TestForecastOfBatch(t *testing.T) {
	for aging, want := range map[time.Duration]time.Duration{0: 10 * sec, 3 * sec: 3 * sec, 2 * time.Minute: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			p := exact(throttle.Tier{Limit: 10, Window: time.Minute, Algorithm: throttle.FixedWindow})
			p.Headroom, p.Aging = 50, aging
			l := limiter(t, p, nil)
			for range 6 {
				l.Allow()
			}
			ctx := throttle.WithClass(t.Context(), throttle.Batch)
			f, err := l.Forecast(ctx, nil)
			if err != nil || f.Wait != want || f.Tier != p.Tiers[0].String() {
				t.Errorf("aging %v: %+v, %v; want %v", aging, f, err, want)
			}
			if f, err := l.Forecast(t.Context(), nil); err != nil || f.Wait != 0 {
				t.Errorf("another class: %+v, %v", f, err)
			}
			start := time.Now()
			if err := l.Wait(ctx); err != nil || time.Since(start) != want {
				t.Errorf("aging %v: admitted after %v, %v; want %v", aging, time.Since(start), err, want)
			}
		})
	}
}

// TestForecastErrors checks that a Forecast fails as Acquire would at once.
func TestForecastErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(5), throttle.Budget(3, "cents", throttle.Month)}}, nil)
		acquire(t, l, throttle.Cost{"cents": 2}).Release()
		for _, tt := range []struct {
			cost throttle.Cost
			want error
		}{
			{throttle.Cost{"requests": 6}, throttle.ErrExceedsCapacity},
			{throttle.Cost{"cents": 2}, throttle.ErrExhausted},
		} {
			if _, err := l.Forecast(t.Context(), tt.cost); !errors.Is(err, tt.want) {
				t.Errorf("%v: %v, want %v", tt.cost, err, tt.want)
			}
		}
		for _, cost := range []throttle.Cost{{"cats": 1}, {"requests": -1}} {
			if _, err := l.Forecast(t.Context(), cost); err == nil {
				t.Errorf("%v: no error, want one", cost)
			}
		}
		_ = l.Pause(t.Context(), time.Minute)
		if f, err := l.Forecast(t.Context(), nil); err != nil || f.Wait != time.Minute {
			t.Errorf("in a pause of 1m: %+v, %v; want a Wait of 1m", f, err)
		}
		_, _ = trSend(t.Context(), &throttle.Transport{Limiter: l, Base: trNewBase(nil)})
	})
	synctest.Test(t, func(t *testing.T) {
		l := banned(t)
		if _, err := l.Forecast(t.Context(), nil); !errors.Is(err, throttle.ErrBanned) {
			t.Errorf("banned: %v, want ErrBanned", err)
		}
	})
}

// TestBanUnderAPause checks that a longer pause does not change a ban: callers are still refused
// until it ends.
func TestBanUnderAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := banned(t)
		if err := l.Pause(t.Context(), 3*time.Hour); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var e *throttle.WaitError
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || time.Since(began) > 0 || e.Until.Sub(began) != 2*time.Hour {
			t.Errorf("%v after %v, want ErrBanned for 2h at once", err, time.Since(began))
		}
		time.Sleep(2*time.Hour + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.Wait(ctx); !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("after the ban: %v, want ErrDeadline because of the pause", err)
		}
	})
}

// TestLateNamesTierAndAhead checks that ErrDeadline comes with the tier that decides, the wait, and
// how many callers are ahead.
func TestLateNamesTierAndAhead(t *testing.T) {
	soon := func(ctx context.Context, d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(ctx, d)
		_ = cancel // the timeout ends it
		return ctx
	}
	for _, nested := range []bool{false, true} {
		for _, tt := range []struct {
			name  string
			ahead int
			limit time.Duration
			want  time.Duration
			tier  string
		}{
			{"none ahead", 0, 30 * time.Second, time.Minute, "1/m"},
			{"four ahead", 4, 4 * time.Minute, 5 * time.Minute, "1/m"},
			{"the longer tier", 9, 30 * time.Minute, time.Hour, "10/h"},
		} {
			t.Run(fmt.Sprint(tt.name, ", nested: ", nested), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					policy := exact(throttle.PerMinute(1), throttle.PerHour(10))
					l := mustNew(t, policy, nil)
					if nested {
						l = mustNew(t, exact(throttle.PerSecond(1000)), nil).Within(l)
					}
					if !l.Allow() {
						t.Fatal("Allow is false, although the quota is unused")
					}
					ctx, cancel := context.WithCancel(t.Context())
					var wg sync.WaitGroup
					defer wg.Wait()
					defer cancel()
					for range tt.ahead {
						wg.Go(func() { _ = l.Wait(ctx) })
						synctest.Wait()
					}
					err := l.Wait(soon(t.Context(), tt.limit))
					var e *throttle.WaitError
					if !errors.Is(err, throttle.ErrDeadline) || !errors.As(err, &e) || e.Tier != tt.tier || e.Ahead != tt.ahead || e.Wait != tt.want {
						t.Errorf("%v (%+v), want tier %s, %v, %d ahead", err, e, tt.tier, tt.want, tt.ahead)
					}
				})
			})
		}
	}
}

// TestMaxWaitOfTheOvertaken checks that MaxWait also bounds the wait of callers that others
// overtake.
func TestMaxWaitOfTheOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}, MaxWait: 5 * time.Second, Guard: throttle.NoGuard, Aging: time.Hour}
		l := mustNew(t, p, nil)
		l.Allow()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				began := time.Now()
				err := l.Wait(throttle.WithClass(ctx, throttle.Batch))
				var e *throttle.WaitError
				if !errors.Is(err, throttle.ErrDeadline) || !errors.As(err, &e) || time.Since(began) > 5*time.Second || e.Tier != "1/s" {
					t.Errorf("%v after %v, want ErrDeadline of tier 1/s by 5s", err, time.Since(began))
				}
			})
			synctest.Wait()
		}
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = l.Wait(throttle.WithClass(ctx, throttle.Interactive))
				}
			})
		}
		time.Sleep(20 * time.Second)
		cancel()
		wg.Wait()
	})
}

// TestCostOfZero checks that a request that costs nothing waits only for a pause, and is refused
// only by a ban.
func TestCostOfZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(throttle.PerHour(1)), nil)
		l.Allow()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = l.Wait(ctx) }) // makes a queue
		synctest.Wait()
		nothing := throttle.Cost{"requests": 0}
		acquire(t, l, nothing).Release()
		_ = l.Pause(t.Context(), time.Minute)
		began := time.Now()
		p, err := l.Acquire(t.Context(), nothing)
		if took := time.Since(began); err != nil || took != time.Minute {
			t.Errorf("in a pause: %v after %v, want nil after 1m", err, took)
		}
		p.Release()
		cancel()
		wg.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		if _, err := banned(t).Acquire(t.Context(), throttle.Cost{"requests": 0}); !errors.Is(err, throttle.ErrBanned) {
			t.Errorf("in a ban: %v, want ErrBanned", err)
		}
	})
}

// TestNoTierCountsRequests checks that a request without a Cost is an error if no tier counts
// requests, instead of being admitted at any rate.
func TestNoTierCountsRequests(t *testing.T) {
	l := mustNew(t, throttle.Policy{Name: "model", Tiers: []throttle.Tier{{Limit: 100, Window: time.Hour, Unit: "tokens"}}}, nil)
	_, acquired := l.Acquire(t.Context(), nil)
	_, tried := l.TryAcquire(t.Context(), nil)
	_, forecast := l.Forecast(t.Context(), nil)
	_, sent := trSend(t.Context(), &throttle.Transport{Limiter: l, Base: trNewBase(nil)})
	for name, err := range map[string]error{
		"Wait": l.Wait(t.Context()), "WaitN": l.WaitN(t.Context(), 3), "Acquire": acquired, "TryAcquire": tried, "Forecast": forecast, "Transport": sent,
	} {
		if err == nil {
			t.Errorf("%s: no error, want one", name)
		}
	}
	if l.Allow() || l.AllowN(3) {
		t.Error("Allow or AllowN is true")
	}
	p, err := l.Acquire(t.Context(), throttle.Cost{"tokens": 100})
	if err != nil {
		t.Error(err)
	}
	p.Release()
	// An outer scope may count requests.
	n := l.Within(mustNew(t, exact(throttle.PerHour(1)), nil))
	if err := n.Wait(t.Context()); err != nil || n.Allow() {
		t.Errorf("inside a scope that counts requests: %v", err)
	}
}

// TestMaxQueueExpelsTheLast checks that a full queue expels its last caller: an Interactive caller
// is accepted if Batch requests fill the queue.
func TestMaxQueueExpelsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exact(throttle.PerMinute(1))
		p.MaxQueue = 10
		l := mustNew(t, p, nil)
		l.Allow()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var full atomic.Int64
		for range 10 {
			wg.Go(func() {
				if err := l.Wait(throttle.WithClass(ctx, throttle.Batch)); errors.Is(err, throttle.ErrQueueFull) {
					full.Add(1)
				}
			})
			synctest.Wait()
		}
		began := time.Now()
		wg.Go(func() {
			if err := l.Wait(throttle.WithClass(ctx, throttle.Interactive)); err != nil || time.Since(began) != time.Minute {
				t.Errorf("the interactive caller: %v after %v, want nil after 1m", err, time.Since(began))
			}
		})
		synctest.Wait()
		if n := full.Load(); n != 1 || status(t, l).Waiting != 10 {
			t.Errorf("%d callers were expelled and %d wait, want 1 and 10", n, status(t, l).Waiting)
		}
		if err := l.Wait(throttle.WithClass(ctx, throttle.Batch)); !errors.Is(err, throttle.ErrQueueFull) {
			t.Errorf("one more Batch request: %v, want ErrQueueFull", err)
		}
		time.Sleep(time.Minute + time.Second)
		cancel()
		wg.Wait()
	})
}

// TestHeadroomOfABudget checks that a Batch request leaves no headroom in a budget, whether it
// arrives at an idle Limiter or waits for another tier.
func TestHeadroomOfABudget(t *testing.T) {
	for _, idle := range []bool{true, false} {
		t.Run(fmt.Sprint("idle: ", idle), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := exact(throttle.Tier{Limit: 1, Window: 10 * time.Second}, throttle.Budget(10, "cents", throttle.Month))
				p.Headroom, p.Aging = 50, 10*time.Second
				l := mustNew(t, p, nil)
				acquire(t, l, throttle.Cost{"cents": 8})
				want := 10 * time.Second
				if idle {
					time.Sleep(time.Minute)
					want = 0
				}
				began := time.Now()
				ctx, cancel := context.WithTimeout(throttle.WithClass(t.Context(), throttle.Batch), time.Minute)
				defer cancel()
				_, err := l.Acquire(ctx, throttle.Cost{"cents": 1})
				if took := time.Since(began); err != nil || took != want {
					t.Errorf("%v after %v, want %v", err, took, want)
				}
			})
		})
	}
}

// TestAllowAfterWait checks that Allow finds an empty queue right after the only waiting caller was
// admitted.
func TestAllowAfterWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(throttle.PerDay(1e9)), far(0))
		refused := 0
		for range 5000 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !l.Allow() {
				refused++
			}
		}
		if refused > 0 {
			t.Errorf("Allow was false %d times of 5000, want 0", refused)
		}
	})
}

// TestStaleForecastRefusesNobody checks that a refusal during a pause refuses nobody after the pause,
// whether the refused caller found a queue or not, in one quota and in nested ones.
func TestStaleForecastRefusesNobody(t *testing.T) {
	for _, nested := range []bool{false, true} {
		for _, queue := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				paused := mustNew(t, exact(throttle.PerSecond(2)), nil)
				l := paused
				if nested {
					l = mustNew(t, exact(throttle.PerSecond(2)), nil).Within(paused)
				}
				wait := func() chan struct{} {
					done := make(chan struct{})
					go func() {
						defer close(done)
						if err := l.Wait(t.Context()); err != nil {
							t.Error(err)
						}
					}()
					synctest.Wait()
					return done
				}
				for range 2 {
					if !l.Allow() {
						t.Fatal("Allow is false, although the quota is unused")
					}
				}
				time.Sleep(sec / 2)
				var before chan struct{}
				if queue {
					before = wait()
				}
				_ = paused.Pause(t.Context(), time.Hour)
				refuse(t, l)
				if f, err := l.Forecast(t.Context(), nil); err != nil || f.Wait < time.Hour {
					t.Errorf("in the pause: %+v, %v", f, err)
				}
				_ = paused.Resume(t.Context())
				after := wait()
				ctx, cancel := context.WithTimeout(t.Context(), 10*sec)
				defer cancel()
				if err := l.Wait(ctx); err != nil {
					t.Errorf("nested %v, a queue %v: a caller with 10s: %v", nested, queue, err)
				}
				<-after
				if before != nil {
					<-before
				}
			})
		}
	}
}

// TestSetPolicyAfterRefusal checks that callers wait under a policy with other units after a caller was
// refused under the old one, in one quota, for another Limiter of the quota, and in nested quotas.
func TestSetPolicyAfterRefusal(t *testing.T) {
	tokens := throttle.Tier{Limit: 1000, Window: time.Minute, Unit: "tokens"}
	old, units := exact(throttle.PerSecond(1)), exact(tokens, throttle.PerSecond(1))
	for name, limiters := range map[string]func(t *testing.T) (l, changed *throttle.Limiter){
		"alone": func(t *testing.T) (l, changed *throttle.Limiter) {
			l = mustNew(t, old, nil)
			return l, l
		},
		"another Limiter": func(t *testing.T) (l, changed *throttle.Limiter) {
			s := local.New()
			return mustNew(t, old, s), mustNew(t, old, s)
		},
		"inner": func(t *testing.T) (l, changed *throttle.Limiter) {
			changed = mustNew(t, old, nil)
			return changed.Within(mustNew(t, old, nil)), changed
		},
		"outer": func(t *testing.T) (l, changed *throttle.Limiter) {
			changed = mustNew(t, old, nil)
			return mustNew(t, old, nil).Within(changed), changed
		},
	} {
		for _, next := range []throttle.Policy{units, exact(throttle.PerSecond(1), throttle.PerMinute(60))} {
			synctest.Test(t, func(t *testing.T) {
				l, changed := limiters(t)
				if !l.Allow() {
					t.Fatal("Allow is false, although the quota is unused")
				}
				refuse(t, l)
				if err := changed.SetPolicy(t.Context(), next); err != nil {
					t.Fatal(err)
				}
				soon, cancel := context.WithTimeout(t.Context(), 10*sec)
				defer cancel()
				for _, ctx := range []context.Context{t.Context(), soon} {
					if err := l.Wait(ctx); err != nil {
						t.Errorf("%s, %v: %v", name, next.Tiers, err)
					}
				}
			})
		}
	}
}

// TestChangedByAnotherLimiter checks that a caller is not refused under a policy that another Limiter of
// the quota has replaced.
func TestChangedByAnotherLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := local.New()
		l, other := mustNew(t, exact(throttle.PerHour(1)), s), mustNew(t, exact(throttle.PerHour(1)), s)
		if !l.Allow() {
			t.Fatal("Allow is false, although the quota is unused")
		}
		if err := other.SetPolicy(t.Context(), exact(throttle.PerHour(1000))); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), sec)
		defer cancel()
		if err := l.Wait(ctx); err != nil {
			t.Errorf("under 1000/h, which another Limiter has set: %v", err)
		}
	})
}

// TestForecastCountsHeadOnce checks that the caller at the head of a nested Limiter's queue, which waits
// in the outer queue too, is ahead once.
func TestForecastCountsHeadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := mustNew(t, exact(throttle.PerMinute(1)), nil)
		l := mustNew(t, exact(throttle.PerSecond(100)), nil).Within(outer)
		if !l.Allow() {
			t.Fatal("Allow is false, although the quota is unused")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for want := range 4 {
			f, err := l.Forecast(ctx, nil)
			e, _ := l.Explain(ctx, nil)
			if err != nil || f.Ahead != want || e.Normal != want {
				t.Errorf("%+v, %d normal, %v, while %d callers wait", f, e.Normal, err, want)
			}
			go l.Wait(ctx)
			synctest.Wait()
		}
		go outer.Wait(ctx)
		synctest.Wait()
		if f, err := l.Forecast(ctx, nil); err != nil || f.Ahead != 5 {
			t.Errorf("%+v, %v, while 4 callers and one of the outer Limiter wait", f, err)
		}
	})
}

// TestStatusOfPacedTiers plays random traffic on random policies whose tiers have paces. The count of
// a tier is of the tier itself, and what may go now is what the pace allows too.
func TestStatusOfPacedTiers(t *testing.T) {
	for seed := range uint64(soak.Times(200)) {
		synctest.Test(t, func(t *testing.T) { playPaces(t, seed) })
	}
}

func playPaces(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 41))
	p := throttle.Policy{Name: "paced", Tiers: groupTiers(r), Guard: []time.Duration{throttle.NoGuard, 0}[r.IntN(2)]}
	for i := range p.Tiers {
		tier := &p.Tiers[i]
		if tier.Unit, tier.Estimated = "", false; tier.Window > 0 {
			tier.PaceBurst = 1 + r.Int64N(tier.Limit)
		}
	}
	l := mustNew(t, p, nil)
	for range 60 {
		switch r.IntN(4) {
		case 0:
			time.Sleep(time.Duration(r.IntN(100)) * []time.Duration{time.Millisecond, time.Second, time.Minute}[r.IntN(3)])
		case 1:
			if permit, err := l.TryAcquire(t.Context(), throttle.Cost{"requests": r.Int64N(4)}); err == nil {
				permit.Arrived()
				permit.Release()
			}
		}
		status, err := l.Status(t.Context())
		if err != nil || len(status.Tiers) != len(p.Tiers) {
			t.Fatalf("seed %d: Status of %v returned %v, %v", seed, p, status, err)
		}
		limited := false
		for i, s := range status.Tiers {
			unpaced := p.Tiers[i]
			unpaced.PaceBurst = 0
			if s.Limit != unpaced.Capacity() || s.Used < 0 || s.Used > s.Limit || s.Remaining < 0 || s.Remaining > s.Limit-s.Used {
				t.Fatalf("seed %d: tier %v: %d of %d used, %d remaining", seed, s.Tier, s.Used, s.Limit, s.Remaining)
			}
			if s.Used == 0 && s.ResetAfter != 0 {
				t.Fatalf("seed %d: tier %v: nothing is used, and ResetAfter is %v", seed, s.Tier, s.ResetAfter)
			}
			if s.Limited != (s.Remaining == 0) || s.Limited != (s.RetryAfter > 0) {
				t.Errorf("seed %d: tier %v: Limited is %v, Remaining %d, RetryAfter %v, used %d in flight %d", seed, s.Tier, s.Limited, s.Remaining, s.RetryAfter, s.Used, s.InFlight)
			}
			limited = limited || s.Limited
		}
		_, err = l.TryAcquire(t.Context(), nil)
		if admitted := err == nil; admitted == limited {
			t.Fatalf("seed %d: admitted is %v: %v, and the state was %v", seed, admitted, err, status)
		}
	}
}

// TestGroupSetPolicyReachesDroppedKeys checks that a Limiter whose quota the Group has dropped has the
// Group's newest policy from the first call on: its units and its Observer.
func TestGroupSetPolicyReachesDroppedKeys(t *testing.T) {
	var before, after int
	policy := func(admitted *int, tiers ...throttle.Tier) throttle.Policy {
		return throttle.Policy{Name: "keys", Tiers: tiers, Observer: &throttle.Observer{
			Admitted: func(context.Context, throttle.AdmittedInfo) { *admitted++ },
		}}
	}
	g := groupOf(t, policy(&before, throttle.PerSecond(5)), 0)
	first, second, third := g.For("first"), g.For("second"), g.For("third")
	nested := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil).Within(third)
	for i := range 10 { // the new keys take the places of the unused ones
		g.For(fmt.Sprint("new", i)).Allow()
	}
	tokens := throttle.Cost{"tokens": 1}
	if err := g.SetPolicy(t.Context(), policy(&after, throttle.PerSecond(5), throttle.Tier{Limit: 9, Window: time.Second, Unit: "tokens"})); err != nil {
		t.Fatal(err)
	}
	before = 0
	if first.Allow(); before != 0 || after != 1 {
		t.Errorf("the old Observer received %d admissions and the new one %d, want 0 and 1", before, after)
	}
	if _, err := second.Forecast(t.Context(), tokens); err != nil {
		t.Errorf("Forecast: %v", err)
	}
	if _, err := nested.TryAcquire(t.Context(), tokens); err != nil {
		t.Errorf("TryAcquire inside a dropped quota: %v", err)
	}
}

// TestWithinFollowsTheOuterPolicy checks that a nested Limiter counts a unit that another Limiter has
// added to the outer quota.
func TestWithinFollowsTheOuterPolicy(t *testing.T) {
	s := local.New()
	outer := throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(5)}}
	l := mustNew(t, throttle.Policy{Name: "inner", Tiers: outer.Tiers}, nil).Within(mustNew(t, outer, s))
	other := mustNew(t, outer, s)
	outer.Tiers = append(outer.Tiers[:1:1], throttle.Tier{Limit: 9, Window: time.Second, Unit: "tokens"})
	if err := other.SetPolicy(t.Context(), outer); err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAcquire(t.Context(), throttle.Cost{"tokens": 2}); err != nil {
		t.Error(err)
	}
	if got := used(t, l); !slices.Equal(got, []int64{1, 1, 2}) {
		t.Errorf("%v are used, want 1, 1 and 2", got)
	}
}

// TestExplainNamesTheLimiterThatDoesNotWait checks that By is the policy of the Limiter itself if a nested
// request would not wait.
func TestExplainNamesTheLimiterThatDoesNotWait(t *testing.T) {
	l, _ := within(t, exact(throttle.PerSecond(1)), exact(throttle.PerSecond(1)))
	if e, err := l.Explain(t.Context(), nil); err != nil || e.By != "inner" || e.Wait != 0 {
		t.Errorf("By is %q, Wait %v, error %v, want inner, 0 and none", e.By, e.Wait, err)
	}
}

// TestForecastIsTrue checks random policies of all counters, alone and nested, while the responses to
// requests in flight are to come: a caller that comes now waits for no less than the Forecast, if nobody
// ahead leaves, and Forecast and Explain name an error if and only if Acquire fails with it at once.
func TestForecastIsTrue(t *testing.T) {
	soak.Slow(t, "it plays many policies, and TestForecastIsExact plays some")
	algorithms := []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.WeightedWindow, throttle.FixedWindow,
		throttle.AnchoredWindow, throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA, throttle.Calendar, throttle.Concurrency}
	classes := []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}
	var waited, refused, behind int
	for seed := range uint64(1500) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(91, seed))
			policy := func(name string) throttle.Policy {
				p := throttle.Policy{Name: name, Guard: time.Duration(rnd.IntN(3)) * 5 * sec}
				if p.Guard == 0 {
					p.Guard = throttle.NoGuard
				}
				for range 1 + rnd.IntN(3) {
					tier := throttle.Tier{Limit: 2 + rnd.Int64N(5), Window: time.Duration(1+rnd.IntN(5000)) * ms, Algorithm: algorithms[rnd.IntN(len(algorithms))]}
					switch tier.Algorithm {
					case throttle.Calendar:
						tier.Window, tier.Period, tier.Limit, tier.Budget = 0, throttle.Day, 10+rnd.Int64N(20), rnd.IntN(2) == 0
					case throttle.Concurrency:
						tier.Window = 0
					}
					p.Tiers = append(p.Tiers, tier)
				}
				p.Headroom = rnd.IntN(2) * 30
				if rnd.IntN(3) == 0 {
					p.MaxQueue = 1 + rnd.IntN(8)
				}
				return p
			}
			newcomer := policy("inner")
			l := mustNew(t, newcomer, nil)
			for range rnd.IntN(3) {
				l = l.Within(mustNew(t, policy("outer"), nil))
			}
			ctx, cancel := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			var left atomic.Int64 // callers that a budget has refused in their turn
			send := func(ctx context.Context, p *throttle.Permit, answered time.Duration) {
				_ = sleep(ctx, answered)
				p.Arrived()
				p.Release()
			}
			cost := func() throttle.Cost { return throttle.Cost{"requests": 1 + rnd.Int64N(2)} }
			class := func() context.Context { return throttle.WithClass(ctx, classes[rnd.IntN(3)]) }
			for range rnd.IntN(12) {
				if rnd.IntN(3) == 0 {
					time.Sleep(time.Duration(rnd.IntN(1e6)) * time.Microsecond)
				}
				c, asks, answered := cost(), class(), time.Duration(rnd.IntN(8e6))*time.Microsecond
				callers.Go(func() {
					switch p, err := l.Acquire(asks, c); {
					case err == nil:
						send(ctx, p, answered)
					case errors.Is(err, throttle.ErrExhausted):
						left.Add(1)
					}
				})
				synctest.Wait()
			}
			if rnd.IntN(5) == 0 {
				_ = l.Pause(ctx, time.Duration(rnd.IntN(5e6))*time.Microsecond)
				synctest.Wait()
			}
			asks := class()
			if rnd.IntN(2) == 0 {
				var end context.CancelFunc
				asks, end = context.WithTimeout(asks, time.Duration(rnd.IntN(6e6))*time.Microsecond)
				defer end()
			}
			c := cost()
			f, failed := l.Forecast(asks, c)
			e, err := l.Explain(asks, c)
			if err != nil || e.Forecast != f || (e.Err == nil) != (failed == nil) || failed != nil && failed.Error() != e.Err.Error() {
				t.Errorf("seed %d: forecast %+v, %v; explanation %v, %v", seed, f, failed, e, err)
			}
			before, began := left.Load(), time.Now()
			p, err := l.Acquire(asks, c)
			took := time.Since(began)
			if err == nil {
				callers.Go(func() { send(ctx, p, 0) })
			}
			atOnce := err != nil && took == 0 && asks.Err() == nil
			if atOnce != (failed != nil) || atOnce && err.Error() != failed.Error() {
				t.Errorf("seed %d: Forecast failed with %v, and Acquire with %v after %v", seed, failed, err, took)
			}
			if err == nil && took < f.Wait && left.Load() == before {
				t.Errorf("seed %d: waited for %v, and the Forecast is %+v", seed, took, f)
			}
			if f.Wait > 0 {
				waited++
			}
			if f.Ahead > 0 {
				behind++
			}
			if errors.Is(failed, throttle.ErrDeadline) {
				refused++
			}
			cancel()
			callers.Wait()
		})
	}
	t.Logf("%d waited, %d behind others, %d refused for lack of time", waited, behind, refused)
	if waited < 300 || behind < 200 || refused < 50 {
		t.Error("too few of some kind")
	}
}

// poolOfTwo returns a Pool of the members east and west, whose policies have the same name.
func poolOfTwo(t *testing.T, east, west string) (_ *throttle.Pool, l [2]*throttle.Limiter) {
	t.Helper()
	for i, text := range []string{east, west} {
		p, err := throttle.ParsePolicy("gpt", text+" | guard=none")
		if err != nil {
			t.Fatal(err)
		}
		l[i] = mustNew(t, p, nil)
	}
	p, err := throttle.NewPool(throttle.Member{Name: "east", Limiter: l[0]}, throttle.Member{Name: "west", Limiter: l[1]})
	if err != nil {
		t.Fatal(err)
	}
	return p, l
}

// TestExplainPool checks that the sentences about a Pool name the members, and say what a request meets at
// the one that would admit it.
func TestExplainPool(t *testing.T) {
	hold := func(t *testing.T, l *throttle.Limiter) *throttle.Permit {
		p, err := l.Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	pause := func(t *testing.T, l *throttle.Limiter, d time.Duration) {
		if err := l.Pause(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, east, west string
		make             func(*testing.T, *throttle.Pool, [2]*throttle.Limiter)
		want             string
	}{
		{"one is paused", "10/s", "2/m", func(t *testing.T, _ *throttle.Pool, l [2]*throttle.Limiter) {
			pause(t, l[0], 90*time.Second)
		}, `The request would be sent at once. Member "east", policy "gpt": 10/s has room for 10: 0 of 10 used. The quota is paused for 1m30s, by a call of Pause. Member "west", policy "gpt": 2/m has room for 2: 0 of 2 used.`},
		{"one is paused and the other one is full", "10/s", "2/m", func(t *testing.T, p *throttle.Pool, l [2]*throttle.Limiter) {
			pause(t, l[0], 90*time.Second)
			for range 2 {
				if err := p.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}, `The request would wait 1m0s for tier 2/m of policy "gpt" of member "west". Member "east", policy "gpt": 10/s has room for 10: 0 of 10 used. The quota is paused for 1m30s, by a call of Pause. Member "west", policy "gpt": 2/m is full until 00:01:00Z: 2 of 2 used.`},
		{"behind callers", "1/m", "1/h", func(t *testing.T, p *throttle.Pool, _ [2]*throttle.Limiter) {
			for range 4 {
				go p.Wait(throttle.WithClass(t.Context(), throttle.Interactive))
				synctest.Wait()
			}
		}, `The request would wait 3m0s for tier 1/m of policy "gpt" of member "east", behind 2 callers (2 interactive). Member "east", policy "gpt": 1/m is full until 00:01:00Z: 1 of 1 used. Member "west", policy "gpt": 1/h is full until 01:00:00Z: 1 of 1 used.`},
		{"all are paused", "10/s", "2/m", func(t *testing.T, _ *throttle.Pool, l [2]*throttle.Limiter) {
			pause(t, l[0], time.Hour)
			pause(t, l[1], time.Minute)
		}, `The request would wait 1m0s for the end of a pause. Member "east", policy "gpt": 10/s has room for 10: 0 of 10 used. The quota is paused for 1h0m0s, by a call of Pause. Member "west", policy "gpt": 2/m has room for 2: 0 of 2 used. The quota is paused for 1m0s, by a call of Pause.`},
		{"one waits for the response to a probe", "10/s", "2/m", func(t *testing.T, _ *throttle.Pool, l [2]*throttle.Limiter) {
			if err := hold(t, l[0]).Refused(t.Context(), 30*time.Second); err != nil {
				t.Error(err)
			}
			hold(t, l[0])
			time.Sleep(time.Second)
		}, `The request would be sent at once. Member "east", policy "gpt": 10/s has room for 10: 0 of 10 used. The first request after a pause is in flight, and the others wait for its response, at most 29s. Member "west", policy "gpt": 2/m has room for 2: 0 of 2 used.`},
		{"one waits for the end of a request", "1;algo=concurrency", "2/m", func(t *testing.T, _ *throttle.Pool, l [2]*throttle.Limiter) {
			hold(t, l[0])
		}, `The request would be sent at once. Member "east", policy "gpt": 1;algo=concurrency is full until a request ends: 1 of 1 used. Member "west", policy "gpt": 2/m has room for 2: 0 of 2 used.`},
		{"the only member", "10/s", "2/m", func(_ *testing.T, p *throttle.Pool, _ [2]*throttle.Limiter) {
			p.Remove("east")
		}, `The request would be sent at once. Member "west", policy "gpt": 2/m has room for 2: 0 of 2 used.`},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p, l := poolOfTwo(t, tt.east, tt.west)
			tt.make(t, p, l)
			e, err := p.Explain(ctx, nil)
			if err != nil || e.String() != tt.want {
				t.Errorf("%s: %v\ngot  %v\nwant %s", tt.name, err, e, tt.want)
			}
		})
	}
}

// TestPoolStatusAsksAllAtOnce checks that a member whose store does not answer hides the state of no other.
func TestPoolStatusAsksAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := poolOfTwo(t, "10/s", "2/m")
		stuck, err := throttle.New(throttle.Policy{Name: "stuck", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, stuckStatusStore{})
		if err != nil {
			t.Fatal(err)
		}
		p.Remove("east")
		if err := p.Add(throttle.Member{Name: "stuck", Limiter: stuck}); err != nil {
			t.Fatal(err)
		}
		if err := p.Add(throttle.Member{Name: "later", Limiter: mustNew(t, exact(throttle.PerMinute(1)), nil)}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		members := p.Status(ctx).Members
		for i, want := range []string{"west", "stuck", "later"} {
			if m := members[i]; m.Member.Name != want || (m.Err != nil) != (want == "stuck") || len(m.Status.Tiers) == 0 && want != "stuck" {
				t.Errorf("member %s: %v, %+v", m.Member.Name, m.Err, m.Status)
			}
		}
	})
}

// A stuckStatusStore has quotas whose Status does not return before its context ends.
type stuckStatusStore struct{}

type stuckStatusQuota struct{ store.Quota }

func (stuckStatusStore) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := new(local.Store).Open(key, plan, nil)
	return stuckStatusQuota{q}, err
}

func (stuckStatusQuota) Status(ctx context.Context) (store.Status, error) {
	<-ctx.Done()
	return store.Status{}, ctx.Err()
}
