package distributed_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// An account is processes whose callers send under several quotas inside one outer quota.
type account struct {
	processes []time.Duration // how far each is away
	callers   int             // of each process under each inner quota
	inner     [][]throttle.Tier
	outer     []throttle.Tier
	lasts     time.Duration
	flat      bool // the inner quotas are the outer one too
	call      func(*rand.Rand, *throttle.Limiter, context.Context) (sent bool, err error)
}

// An accounted is the outcome of an account.
type accounted struct {
	sent    [][]int // by inner quota and process
	all     int
	gaveUp  int
	calls   int64
	longest time.Duration
	refused []int     // by the inner quotas and the outer one
	waste   []float64 // the same, what was charged and not sent
}

func justWait(_ *rand.Rand, l *throttle.Limiter, ctx context.Context) (bool, error) {
	err := l.Wait(ctx)
	return err == nil, err
}

func (a account) play(t *testing.T) (got accounted) {
	if a.call == nil {
		a.call = justWait
	}
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		ctx, end := t.Context(), time.Now().Add(a.lasts)
		arrived := make([]arrivals, len(a.inner)+1)
		outer := &arrived[len(a.inner)]
		counter := new(calls.Counter)
		var last []*throttle.Limiter
		var mu sync.Mutex
		var wg sync.WaitGroup
		got.sent = make([][]int, len(a.inner))
		for i := range got.sent {
			got.sent[i] = make([]int, len(a.processes))
		}
		for p, far := range a.processes {
			rdb := distant(t, s, func() time.Duration { return far })
			rdb.AddHook(counter)
			redis := distributed.New(rdb, distributed.Options{})
			open := func(name string, tiers []throttle.Tier) *throttle.Limiter {
				return limiter(t, throttle.Policy{Name: name, Tiers: slices.Concat(tiers, []throttle.Tier{everything})}, redis)
			}
			around := open("outer", a.outer)
			last = []*throttle.Limiter{around}
			for i, tiers := range a.inner {
				l := around
				if !a.flat {
					l = open(fmt.Sprint("inner ", i), tiers)
					last = append(last, l)
					l = l.Within(around)
				}
				for c := range a.callers {
					g := rand.New(rand.NewPCG(uint64(p), uint64(i*1000+c)))
					wg.Go(func() {
						for time.Now().Before(end) {
							began := time.Now()
							sent, err := a.call(g, l, ctx)
							mu.Lock()
							got.longest = max(got.longest, time.Since(began))
							if sent {
								got.sent[i][p]++
								got.all++
							} else {
								got.gaveUp++
							}
							mu.Unlock()
							if sent {
								arrived[i].send(50 * ms)
								arrived[i].mu.Lock()
								at := arrived[i].at[len(arrived[i].at)-1]
								arrived[i].mu.Unlock()
								outer.mu.Lock()
								outer.at = append(outer.at, at)
								outer.mu.Unlock()
							} else if time.Sleep(50 * ms); err != nil && !errors.Is(err, context.DeadlineExceeded) {
								t.Error(err)
								return
							}
						}
					})
				}
			}
		}
		wg.Wait()
		got.calls = counter.Count()
		time.Sleep(sec)
		for i, l := range append(last[1:], last[0]) {
			status, err := l.Status(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			tiers := a.outer
			n := got.all
			if i < len(last)-1 {
				tiers, n = a.inner[i], len(arrived[i].at)
			}
			refused := 0
			for _, tier := range tiers {
				at := &arrived[min(i, len(a.inner))]
				if i == len(last)-1 {
					at = outer
				}
				refused += at.refused(int(tier.Limit), tier.Window)
			}
			got.refused = append(got.refused, refused)
			got.waste = append(got.waste, float64(status.Tiers[len(status.Tiers)-1].Used-int64(n)))
		}
	})
	return got
}

func (a accounted) of(i int) (n int) {
	for _, sent := range a.sent[i] {
		n += sent
	}
	return n
}

func logs(limits ...int64) (tiers []throttle.Tier) {
	windows := []time.Duration{sec, 10 * sec}
	for i, limit := range limits {
		tiers = append(tiers, per(windows[i], limit, throttle.SlidingLog))
	}
	return tiers
}

// callAnyhow makes a call in one of several ways.
func callAnyhow(g *rand.Rand, l *throttle.Limiter, ctx context.Context) (sent bool, err error) {
	switch g.IntN(10) {
	case 0: // it gives up before or after
		limited, cancel := context.WithTimeout(ctx, time.Duration(g.IntN(3000))*ms)
		defer cancel()
		return justWait(g, l, limited)
	case 1:
		return justWait(g, l, throttle.WithClass(ctx, throttle.Batch))
	}
	return justWait(g, l, ctx)
}

// TestBundleLaw checks that inner and outer quotas admit no more than their providers do, with random
// callers, some of which give up. All charged requests are sent, except two percent and one for each
// caller that gave up.
func TestBundleLaw(t *testing.T) {
	t.Parallel()
	for seed := range uint64(soak.Times(10)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			g := rand.New(rand.NewPCG(seed, 7))
			tiers := func(most int64) (tiers []throttle.Tier) {
				limit := 1 + g.Int64N(most)
				tiers = append(tiers, per(sec, limit, throttle.SlidingLog))
				if g.IntN(2) == 0 {
					kind := []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow}[g.IntN(2)]
					tiers = append(tiers, per(10*sec, limit*(3+g.Int64N(8)), kind))
				}
				return tiers
			}
			a := account{callers: 1 + g.IntN(8), outer: tiers(40), lasts: 20 * sec, call: callAnyhow}
			for range 1 + g.IntN(4) {
				a.processes = append(a.processes, time.Duration(g.IntN(40))*ms+ms/2)
			}
			for range 1 + g.IntN(3) {
				a.inner = append(a.inner, tiers(20))
			}
			got := a.play(t)
			for i, refused := range got.refused {
				if n := got.all; refused > 0 || got.waste[i] > 0.02*float64(n)+float64(got.gaveUp)+2 {
					t.Errorf("of %d sent, quota %d of %v in %v refuses %d, and %v are charged and not sent", n, i, a.inner, a.outer, refused, got.waste[i])
				}
			}
			t.Logf("%+v: %+v", a.processes, got)
		})
	}
}

// TestBundleFleets checks that nested quotas admit as many requests as the slower quota alone does,
// for near and far processes, few and many, whichever quota is slower. Processes get equal shares.
func TestBundleFleets(t *testing.T) {
	t.Parallel()
	many := min(20*soak.Times(1), 100)
	for _, far := range []time.Duration{ms, 40 * ms} {
		for name, n := range map[string]struct {
			processes, callers int
			inner, outer, flat []throttle.Tier
		}{
			"equal":            {3, 8, logs(5, 30), logs(5, 30), logs(5, 30)},
			"inner":            {3, 8, logs(5, 30), logs(50), logs(5, 30)},
			"inner by little":  {3, 8, logs(5), logs(6), logs(5)},
			"outer by little":  {3, 8, logs(6), logs(5), logs(5)},
			"many processes":   {many, 4, logs(50), logs(60), logs(50)},
			"many callers":     {3, 4 * many, logs(60), logs(50), logs(50)},
			"buckets":          {3, 8, []throttle.Tier{per(sec, 5, throttle.GCRA)}, logs(50), []throttle.Tier{per(sec, 5, throttle.GCRA)}},
			"with another one": {3, 8, append(logs(10), per(time.Hour, 100_000, throttle.SlidingWindow)), logs(12), logs(10)},
		} {
			t.Run(fmt.Sprintf("%s, %v away", name, far), func(t *testing.T) {
				soak.Sample(t, 12)
				t.Parallel()
				a := account{processes: slices.Repeat([]time.Duration{far}, n.processes), callers: n.callers, lasts: 40 * sec, outer: n.outer, inner: [][]throttle.Tier{n.inner}}
				if n.processes == many {
					a.lasts = 12 * sec // more requests than the others have in 40 s
				}
				got := a.play(t)
				a.outer, a.flat = n.flat, true
				flat := a.play(t)
				if float64(got.all) < 0.97*float64(flat.all) {
					t.Errorf("%d are sent, %d by a flat quota", got.all, flat.all)
				}
				if least := slices.Min(got.sent[0]); float64(least) < 0.6*float64(got.all)/float64(n.processes) {
					t.Errorf("processes send %v", got.sent[0])
				}
				for i, waste := range got.waste {
					if waste > 0.02*float64(got.all)+2 || got.refused[i] > 0 && name != "buckets" {
						t.Errorf("of %d sent, quota %d refuses %d, and %v are charged and not sent", got.all, i, got.refused[i], waste)
					}
				}
				if calls, each := float64(got.calls)/float64(got.all), float64(flat.calls)/float64(flat.all); calls > 2.5*max(each, 0.55)+0.2 {
					t.Errorf("%.2f calls an admission, %.2f of a flat quota", calls, each)
				}
				t.Logf("%+v, flat %+v", got, flat)
			})
		}
	}
}

// TestBundleAccounts checks that several quotas inside one use all that the outer quota admits. Quotas
// with enough of their own get equal shares of it.
func TestBundleAccounts(t *testing.T) {
	t.Parallel()
	for _, far := range []time.Duration{ms, 40 * ms} {
		for _, limits := range [][]int64{{2, 20, 20, 12}, {4, 4, 4, 12}, {5, 5, 5, 12}, {5, 5, 100, 100, 25}} {
			t.Run(fmt.Sprint(limits, far), func(t *testing.T) {
				soak.Sample(t, 8)
				t.Parallel()
				const lasts = 20 * sec
				a := account{processes: slices.Repeat([]time.Duration{far}, 3), callers: 8, lasts: lasts, outer: logs(limits[len(limits)-1])}
				for _, limit := range limits[:len(limits)-1] {
					a.inner = append(a.inner, logs(limit))
				}
				got := a.play(t)
				a.flat = true
				flat := a.play(t)
				if float64(got.all) < 0.95*float64(flat.all) {
					t.Errorf("%d are sent, %d by a flat quota", got.all, flat.all)
				}
				for i := range a.inner {
					share := min(float64(flat.all)/float64(len(a.inner)), lasts.Seconds()*float64(limits[i])/1.1)
					if n := got.of(i); float64(n) < 0.6*share {
						t.Errorf("of %d sent, %d are under the quota of %v, share %.0f", got.all, n, a.inner[i], share)
					}
					if got.refused[i] > 0 {
						t.Errorf("the quota of %v refuses %d", a.inner[i], got.refused[i])
					}
				}
				t.Logf("%+v, flat %+v", got, flat)
			})
		}
	}
}

// TestBundleChanges checks that a pause of the outer quota voids the reservations in both quotas, and
// that a new policy of either quota applies to waiting callers.
func TestBundleChanges(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		redis := distributed.New(near(t, s), distributed.Options{})
		other := distributed.New(near(t, s), distributed.Options{})
		inner, outer := throttle.Policy{Name: "inner", Tiers: logs(20)}, throttle.Policy{Name: "outer", Tiers: logs(10)}
		around := limiter(t, outer, redis)
		in := limiter(t, inner, redis)
		l := in.Within(around)
		var sent arrivals
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				for l.Wait(ctx) == nil {
					sent.send(ms)
				}
			})
		}
		during := func(d time.Duration) (n int) {
			sent.mu.Lock()
			before := len(sent.at)
			sent.mu.Unlock()
			time.Sleep(d)
			sent.mu.Lock()
			defer sent.mu.Unlock()
			return len(sent.at) - before
		}
		expect := func(what string, got, least, most int) {
			t.Helper()
			if got < least || got > most {
				t.Errorf("%s: %d, want %d to %d", what, got, least, most)
			}
		}
		expect("both at rest", during(10*sec), 90, 110)
		if err := limiter(t, outer, other).Pause(ctx, 5*sec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * ms)
		expect("the outer pauses", during(4900*ms), 0, 0)
		expect("after that", during(10*sec), 80, 110)
		if err := limiter(t, inner, other).Pause(ctx, 5*sec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * ms)
		expect("the inner pauses", during(4900*ms), 0, 0)
		outer.Tiers = logs(5)
		if err := around.SetPolicy(ctx, outer); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sec)
		expect("the outer is slower", during(10*sec), 40, 55)
		inner.Tiers = logs(2)
		if err := in.SetPolicy(ctx, inner); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sec)
		expect("the inner is slower", during(10*sec), 16, 22)
		inner.Tiers = append(logs(2), throttle.Tier{Limit: 100, Window: 24 * hour, Algorithm: throttle.SlidingLog})
		if err := in.SetPolicy(ctx, inner); err != nil {
			t.Fatal(err)
		}
		expect("with another tier", during(10*sec), 14, 22)
		stop()
		wg.Wait()
	})
}

// TestBundleOfOneStore checks that quotas reserve together only if they are different ones of one store.
func TestBundleOfOneStore(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		p := plan(t, 50*ms, logs(10)...)
		open := func(st store.Store, key string) store.Quota { return quota(t, st, key, p) }
		one := distributed.New(near(t, s), distributed.Options{})
		for name, c := range map[string]struct {
			around []store.Quota
			want   bool
		}{
			"one store":       {[]store.Quota{open(one, "outer"), open(one, "outermost")}, true},
			"another store":   {[]store.Quota{open(distributed.New(near(t, s), distributed.Options{}), "outer")}, false},
			"another process": {[]store.Quota{open(one, "outer"), open(local.New(), "outermost")}, false},
			"the same quota":  {[]store.Quota{open(one, "outer"), open(one, "inner")}, false},
		} {
			b := open(one, "inner").(store.Bundler).Bundle(c.around, make([]int, 1+len(c.around)))
			if (b != nil) != c.want {
				t.Errorf("%s: got a bundle: %v, want %v", name, b != nil, c.want)
			}
		}
	})
}

// TestBundleBesideAlone checks that processes that use the inner quota alone share it with processes
// that use it inside another quota.
func TestBundleBesideAlone(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		ctx, stop := context.WithTimeout(t.Context(), 40*sec)
		defer stop()
		var sent [2]int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range sent {
			redis := distributed.New(near(t, s), distributed.Options{})
			l := limiter(t, throttle.Policy{Name: "inner", Tiers: logs(10)}, redis)
			if i == 1 {
				l = l.Within(limiter(t, throttle.Policy{Name: "outer", Tiers: logs(50)}, redis))
			}
			for range 20 {
				wg.Go(func() {
					for l.Wait(ctx) == nil {
						mu.Lock()
						sent[i]++
						mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		if sent[0]+sent[1] < 340 || slices.Min(sent[:]) < 100 {
			t.Errorf("%v are sent", sent)
		}
		t.Log(sent)
	})
}

// TestBundleBesideApart checks that callers under an inner quota that no call charges together with others share the quotas around it
// with callers that are charged in all of theirs at once.
func TestBundleBesideApart(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	for _, outer := range []throttle.Tier{per(sec, 10, throttle.SlidingLog), per(sec, 10, throttle.GCRA)} {
		t.Run(outer.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				ctx, stop := context.WithTimeout(t.Context(), 40*sec)
				defer stop()
				var sent [2]arrivals
				var all arrivals
				var wg sync.WaitGroup
				for i := range 4 {
					redis := distributed.New(near(t, s), distributed.Options{})
					inner := throttle.Policy{Name: fmt.Sprint("inner ", i%2), Tiers: logs(50)}
					if i%2 == 1 {
						inner.Tiers = append(inner.Tiers, throttle.Tier{Limit: 1_000_000, Algorithm: throttle.Calendar, Period: throttle.Day})
					}
					l := limiter(t, inner, redis).
						Within(limiter(t, throttle.Policy{Name: "middle", Tiers: logs(50)}, redis)).
						Within(limiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{outer}}, redis))
					for range 8 {
						wg.Go(func() {
							for l.Wait(ctx) == nil {
								sent[i%2].send(1)
								all.send(50 * ms)
							}
						})
					}
				}
				wg.Wait()
				at, apart := len(sent[0].at), len(sent[1].at)
				if min(at, apart) < 120 || at+apart < 330 {
					t.Errorf("%d are charged at once and %d apart, want 120 each at least and 330 together", at, apart)
				}
				slices.SortFunc(all.at, time.Time.Compare)
				var events []event
				for _, at := range all.at {
					events = append(events, event{At: at.UnixMicro(), Cost: 1})
				}
				checkBound(t, events, outer)
			})
		})
	}
}

// TestBundlePauseReachesWaiters checks that a waiting caller with a reservation in nested quotas does
// not use it during a pause of either quota that another process made meanwhile.
func TestBundlePauseReachesWaiters(t *testing.T) {
	for _, paused := range []string{"inner", "outer"} {
		t.Run(paused, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				ctx, cancel := context.WithTimeout(t.Context(), hour)
				defer cancel()
				here, there := distributed.New(near(t, s), distributed.Options{}), distributed.New(near(t, s), distributed.Options{})
				policies := map[string]throttle.Policy{
					"inner": {Name: "inner", Tiers: []throttle.Tier{per(sec, 10, throttle.SlidingLog)}},
					"outer": {Name: "outer", Tiers: []throttle.Tier{per(10*sec, 1, throttle.SlidingLog)}},
				}
				l := limiter(t, policies["inner"], here).Within(limiter(t, policies["outer"], here))
				if err := l.Wait(ctx); err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				var took time.Duration
				began := time.Now()
				wg.Go(func() {
					if err := l.Wait(ctx); err != nil {
						t.Error(err)
					}
					took = time.Since(began)
				})
				time.Sleep(5 * sec)
				if err := limiter(t, policies[paused], there).Pause(ctx, 60*sec); err != nil {
					t.Fatal(err)
				}
				wg.Wait()
				if took < 65*sec || took > 66*sec {
					t.Errorf("it waits for %v, the pause ends after 65s", took)
				}
			})
		})
	}
}

// TestBundleEndsMidLife checks that callers in nested quotas go on, with a call for each quota, when a
// new policy rules out a call for both. They are refused when either Limiter is closed.
func TestBundleEndsMidLife(t *testing.T) {
	type world struct {
		in, out      *throttle.Limiter
		inner, outer throttle.Policy
	}
	for name, n := range map[string]struct {
		change func(context.Context, *world) error
		err    error
	}{
		"outer closes": {func(_ context.Context, w *world) error { w.out.Close(); return nil }, throttle.ErrClosed},
		"inner closes": {func(_ context.Context, w *world) error { w.in.Close(); return nil }, throttle.ErrClosed},
		"outer calendar": {func(ctx context.Context, w *world) error {
			w.outer.Tiers = append(w.outer.Tiers, throttle.Tier{Limit: 1000, Algorithm: throttle.Calendar, Period: throttle.Day})
			return w.out.SetPolicy(ctx, w.outer)
		}, nil},
		"inner calendar": {func(ctx context.Context, w *world) error {
			w.inner.Tiers = append(w.inner.Tiers, throttle.Tier{Limit: 1000, Algorithm: throttle.Calendar, Period: throttle.Day})
			return w.in.SetPolicy(ctx, w.inner)
		}, nil},
		"outer concurrency": {func(ctx context.Context, w *world) error {
			w.outer.Tiers = append(w.outer.Tiers, throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency})
			return w.out.SetPolicy(ctx, w.outer)
		}, throttle.ErrNeedsPermit},
		"inner concurrency": {func(ctx context.Context, w *world) error {
			w.inner.Tiers = append(w.inner.Tiers, throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency})
			return w.in.SetPolicy(ctx, w.inner)
		}, throttle.ErrNeedsPermit},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				ctx, cancel := context.WithTimeout(t.Context(), hour)
				defer cancel()
				redis := distributed.New(near(t, s), distributed.Options{})
				w := &world{inner: throttle.Policy{Name: "inner", Tiers: logs(2)}, outer: throttle.Policy{Name: "outer", Tiers: logs(1)}}
				w.in, w.out = limiter(t, w.inner, redis), limiter(t, w.outer, redis)
				l := w.in.Within(w.out)
				var wg sync.WaitGroup
				var sent arrivals
				for range 20 {
					wg.Go(func() {
						if err := l.Wait(ctx); n.err != nil && err != nil && !errors.Is(err, n.err) || n.err == nil && err != nil {
							t.Error(err)
						} else if err == nil {
							sent.send(1)
						}
					})
				}
				time.Sleep(5500 * ms)
				if err := n.change(ctx, w); err != nil {
					t.Fatal(err)
				}
				wg.Wait()
				if refused, all := sent.refused(1, sec), len(sent.at); refused > 0 || n.err != nil && all > 7 {
					t.Errorf("of %d sent the provider refuses %d", all, refused)
				}
			})
		})
	}
}

// TestBundleEndedIsLeft checks that a Group can drop the outer quota of callers that were refused because a
// new policy of it needs Permits.
func TestBundleEndedIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		ctx, redis := t.Context(), distributed.New(near(t, s), distributed.Options{})
		policy := throttle.Policy{Name: "outer", Tiers: logs(1)}
		outer, err := throttle.NewGroup(policy, redis, throttle.GroupOptions{MaxKeys: 1})
		if err != nil {
			t.Fatal(err)
		}
		l := limiter(t, throttle.Policy{Name: "inner", Tiers: logs(2)}, redis).Within(outer.For("a"))
		var wg sync.WaitGroup
		var refused atomic.Int64
		for range 5 {
			wg.Go(func() {
				if errors.Is(l.Wait(ctx), throttle.ErrNeedsPermit) {
					refused.Add(1)
				}
			})
		}
		time.Sleep(1500 * ms)
		policy.Tiers = append(policy.Tiers, throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency})
		if err := outer.SetPolicy(ctx, policy); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		time.Sleep(time.Minute)
		if _, err := outer.For("b").Status(ctx); err != nil || refused.Load() == 0 {
			t.Errorf("with %d refused, another key gets %v, want its quota", refused.Load(), err)
		}
	})
}

// TestBundleHeadroom checks that Batch requests in nested quotas leave the headroom of either quota to
// other processes.
func TestBundleHeadroom(t *testing.T) {
	for _, leaves := range []string{"inner", "outer"} {
		t.Run(leaves, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				policies := make(map[string]throttle.Policy)
				for _, name := range []string{"inner", "outer"} {
					p := throttle.Policy{Name: name, Tiers: logs(100), Aging: time.Minute}
					if name == leaves {
						p.Tiers, p.Headroom = []throttle.Tier{per(10*sec, 20, throttle.SlidingLog)}, 50
					}
					policies[name] = p
				}
				open := func() *throttle.Limiter {
					redis := distributed.New(near(t, s), distributed.Options{})
					return limiter(t, policies["inner"], redis).Within(limiter(t, policies["outer"], redis))
				}
				ctx, stop := context.WithTimeout(t.Context(), 40*sec)
				defer stop()
				batch, l := open(), open()
				var wg sync.WaitGroup
				var sent atomic.Int64
				for range 10 {
					wg.Go(func() {
						for batch.Wait(throttle.WithClass(ctx, throttle.Batch)) == nil {
							sent.Add(1)
						}
					})
				}
				for range 10 {
					time.Sleep(3 * sec)
					began := time.Now()
					if err := l.Wait(ctx); err != nil || time.Since(began) > sec {
						t.Errorf("a request waits for %v: %v", time.Since(began), err)
					}
				}
				wg.Wait()
				if n := sent.Load(); n < 25 {
					t.Errorf("%d Batch requests are sent", n)
				}
			})
		})
	}
}
