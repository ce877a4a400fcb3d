package throttle_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// parsed returns the Limiter of a policy's text, inside others if any are given.
func parsed(t *testing.T, text string, around ...*throttle.Limiter) *throttle.Limiter {
	t.Helper()
	p, err := throttle.ParsePolicy(text, text)
	if err != nil {
		t.Fatal(err)
	}
	p.MaxPause = sec // a longer one is a ban
	l := limiter(t, p, nil)
	for _, outer := range around {
		l = l.Within(outer)
	}
	return l
}

// ban bans a Limiter, which admits a request for that.
func ban(t *testing.T, l *throttle.Limiter, length time.Duration) {
	t.Helper()
	permit := acquire(t, l, nil)
	defer permit.Release()
	if err := permit.Refused(t.Context(), length); err != nil {
		t.Fatal(err)
	}
}

// newPool returns a Pool of members whose names are their indexes.
func newPool(t *testing.T, members ...throttle.Member) *throttle.Pool {
	t.Helper()
	for i := range members {
		members[i].Name = fmt.Sprint(i)
	}
	p, err := throttle.NewPool(members...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPoolPrefersTheLowRankWhateverItsPolicy(t *testing.T) {
	preferred := map[string]func() *throttle.Limiter{
		"plain":       func() *throttle.Limiter { return parsed(t, "10/s") },
		"concurrency": func() *throttle.Limiter { return parsed(t, "10/s + 100;algo=concurrency") },
		"nested":      func() *throttle.Limiter { return parsed(t, "10/s", parsed(t, "100/s")) },
		"log":         func() *throttle.Limiter { return parsed(t, "10/s;algo=sliding_log") },
		"auto guard":  func() *throttle.Limiter { return parsed(t, "10/s | guard=auto") },
	}
	for name, limiter := range preferred {
		synctest.Test(t, func(t *testing.T) {
			first, second := limiter(), parsed(t, "1000/s;algo=fixed_window")
			p := newPool(t, throttle.Member{Limiter: first}, throttle.Member{Limiter: second, Rank: 1})
			for i := range 20 {
				want := fmt.Sprint(i / 10)
				permit, err := p.TryAcquire(t.Context(), nil)
				if i%2 == 0 && err == nil {
					permit.Cancel(t.Context())
					permit, err = p.Acquire(t.Context(), nil)
				}
				if err != nil {
					t.Fatal(err)
				}
				if permit.Member() != want {
					t.Errorf("%s: request %d went to member %s, want %s", name, i, permit.Member(), want)
				}
				defer permit.Release()
			}
			if name == "concurrency" {
				return
			}
			time.Sleep(10 * time.Second)
			for range 10 {
				if err := p.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if s := status(t, second); s.Tiers[0].Remaining != 1000 {
				t.Errorf("%s: Wait went to the member of rank 1: %v", name, s.Tiers)
			}
		})
	}
}

func TestPoolOfNestedMembersLosesNoCharge(t *testing.T) {
	soak.Slow(t, "it plays many pools")
	for _, inner := range []string{"10/s;algo=fixed_window | guard=none", "10/s | guard=none", "10/s;algo=gcra | guard=none", "10/s", "10/s;algo=fixed_window + 20;algo=concurrency"} {
		for _, outer := range []string{"12/s;algo=fixed_window | guard=none", "12/s", "30/s", "30/s | guard=none"} {
			for _, shared := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					account := parsed(t, outer)
					var members []throttle.Member
					for range 2 {
						members = append(members, throttle.Member{Limiter: parsed(t, inner, account)})
						if !shared {
							account = parsed(t, outer)
						}
					}
					p := newPool(t, members...)
					got := saturatePool(t, p, 50, 20*time.Second)
					n := len(got["0"]) + len(got["1"])
					want := 2 * 10 * 20
					if shared && outer[:2] == "12" {
						want = 12 * 20
					}
					if n < want*98/100 {
						t.Errorf("%s in %s (shared: %v): %d admissions, want %d", inner, outer, shared, n, want)
					}
				})
			}
		}
	}
}

func TestPoolUsesAMemberAfterItsBan(t *testing.T) {
	for _, resume := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			slow, fast := parsed(t, "1/m;algo=gcra"), parsed(t, "100/s;algo=gcra | guard=none")
			p := newPool(t, throttle.Member{Limiter: slow}, throttle.Member{Limiter: fast})
			ban(t, fast, 10*time.Second)
			if resume {
				time.AfterFunc(5*time.Second, func() { fast.Resume(t.Context()) })
			}
			var wg sync.WaitGroup
			start := time.Now()
			var mu sync.Mutex
			order := make([]time.Duration, 30)
			for i := range 30 {
				time.Sleep(time.Millisecond)
				wg.Go(func() {
					if err := p.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					mu.Lock()
					order[i] = time.Since(start)
					mu.Unlock()
				})
			}
			wg.Wait()
			if took := time.Since(start); took > 11*time.Second || resume && took > 6*time.Second {
				t.Errorf("resumed %v: took %v", resume, took)
			}
			if !slices.IsSorted(order) {
				t.Errorf("resumed %v: admitted in the order %v", resume, order)
			}
		})
	}
}

// A pause that would outlast the deadline of a caller changes no place either: when it ends early, the caller is
// served before those that come later.
func TestPoolCallerIsFirstWhenAPauseEndsEarly(t *testing.T) {
	for _, nested := range []bool{false, true} {
		for _, patience := range []string{"", ";max_wait=100s"} {
			synctest.Test(t, func(t *testing.T) {
				a, b := parsed(t, "1/s;algo=fixed_window | guard=none"+patience), parsed(t, "1/m;algo=fixed_window | guard=none"+patience)
				paused := a
				if nested {
					a = a.Within(parsed(t, "5/s;algo=fixed_window | guard=none"))
				}
				p := newPool(t, throttle.Member{Limiter: a}, throttle.Member{Limiter: b})
				if err := paused.Pause(t.Context(), time.Hour); err != nil || !b.Allow() {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				if patience == "" {
					ctx, cancel = context.WithTimeout(ctx, 100*time.Second)
				}
				defer cancel()
				start := time.Now()
				var wg sync.WaitGroup
				wg.Go(func() {
					permit, err := p.Acquire(ctx, nil)
					if permit.Member() != "0" || time.Since(start) > time.Second {
						t.Errorf("nested %v%s: %q, %v after %v", nested, patience, permit.Member(), err, time.Since(start))
					}
				})
				time.Sleep(time.Second)
				if err := paused.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if a.Allow() {
					t.Errorf("nested %v%s: a newcomer was faster", nested, patience)
				}
				wg.Wait()
			})
		}
	}
}

func TestPoolUsesAMemberAfterItsPolicyAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small, slow := parsed(t, "10/s;unit=tokens | guard=none"), parsed(t, "100/m;unit=tokens;algo=fixed_window | guard=none")
		p := newPool(t, throttle.Member{Limiter: small}, throttle.Member{Limiter: slow})
		if _, err := p.Acquire(t.Context(), throttle.Cost{"tokens": 100}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.AfterFunc(5*time.Second, func() {
			larger, _ := throttle.ParsePolicy(small.Name(), "50/s;unit=tokens | guard=none")
			if err := small.SetPolicy(t.Context(), larger); err != nil {
				t.Error(err)
			}
		})
		permit, err := p.Acquire(t.Context(), throttle.Cost{"tokens": 50})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); permit.Member() != "0" || took > 6*time.Second {
			t.Errorf("member %s after %v", permit.Member(), took)
		}
	})
}

// A poolCaller arrives at a Pool in the order of its index.
type poolCaller struct {
	arrives time.Duration // since the start
	within  time.Duration // the deadline, counted from then; zero for none
	leaves  time.Duration // when it is canceled, since the start; zero for never

	end    time.Duration
	member int
	err    error
}

// randomPool returns the policies of members without a guard, and callers that arrive about as fast as all
// members admit.
func randomPool(r *rand.Rand, deadlines bool) (policies []throttle.Policy, callers []poolCaller) {
	pace := 0.0
	for i := range 2 + r.IntN(3) {
		limit := 1 + r.Int64N(20)
		window := time.Duration(1_000+r.Int64N(2_000_000)) * time.Microsecond
		p := exact(per(window, limit, counters[r.IntN(len(counters))]))
		p.Name = fmt.Sprint(i)
		if r.IntN(3) == 0 {
			p.Tiers = append(p.Tiers, per(window*3, limit*2, counters[r.IntN(len(counters))]))
		}
		policies = append(policies, p)
		pace += float64(limit) / float64(window)
	}
	callers = make([]poolCaller, 200)
	now := time.Duration(0)
	for i := range callers {
		now += time.Microsecond + time.Duration(1.2*r.Float64()/pace).Truncate(time.Microsecond)
		callers[i].arrives = now
		switch {
		case deadlines && r.IntN(2) == 0:
			callers[i].within = time.Duration(r.Float64()*20/pace).Truncate(time.Microsecond) + 500
		case !deadlines && r.IntN(2) == 0:
			callers[i].leaves = now + time.Microsecond + time.Duration(r.Float64()*20/pace).Truncate(time.Microsecond)
		}
	}
	return policies, callers
}

// runPool sends the callers to a Pool.
func runPool(t *testing.T, policies []throttle.Policy, callers []poolCaller) {
	var members []throttle.Member
	for _, p := range policies {
		members = append(members, throttle.Member{Limiter: limiter(t, p, nil)})
	}
	p, start := newPool(t, members...), time.Now()
	var wg sync.WaitGroup
	for i := range callers {
		c := &callers[i]
		time.Sleep(c.arrives - time.Since(start))
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if c.within > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), c.within)
			}
			defer cancel()
			if c.leaves > 0 {
				defer time.AfterFunc(c.leaves-c.arrives, cancel).Stop()
			}
			permit, err := p.Acquire(ctx, nil)
			if c.end, c.err = time.Since(start), err; err == nil {
				fmt.Sscan(permit.Member(), &c.member)
				permit.Release()
			}
		})
		synctest.Wait()
	}
	wg.Wait()
	if n := p.Status(t.Context()).Waiting; n != 0 {
		t.Errorf("%d callers wait at the end", n)
	}
}

// checkPool compares what became of callers with what the providers' own counters admit. Each caller takes
// the member that it took in the Pool.
func checkPool(policies []throttle.Policy, callers []poolCaller, counters []*throttletest.Counter) error {
	start, free := bubbleStart.UnixMicro(), time.Duration(0)
	for i, c := range callers {
		head, best := max(c.arrives, free), time.Duration(1<<62)
		if c.leaves > 0 && c.leaves <= head {
			if c.err != context.Canceled || c.end != c.leaves {
				return fmt.Errorf("caller %d: %v at %v, canceled at %v", i, c.err, c.end, c.leaves)
			}
			continue
		}
		for _, m := range counters {
			at, _ := m.Earliest(start+head.Microseconds(), nil)
			best = min(best, max(head, time.Duration(at-start)*time.Microsecond))
		}
		switch {
		case c.leaves > 0 && best > c.leaves:
			if free = c.leaves; c.err != context.Canceled {
				return fmt.Errorf("caller %d: %v at %v, canceled at %v before %v", i, c.err, c.end, c.leaves, best)
			}
		case c.within > 0 && best > c.arrives+c.within:
			if !errors.Is(c.err, throttle.ErrDeadline) || c.end != c.arrives {
				return fmt.Errorf("caller %d: %v at %v, want ErrDeadline at %v: its turn is %v, its deadline %v", i, c.err, c.end, c.arrives, best, c.arrives+c.within)
			}
		case c.err != nil || c.end != best:
			return fmt.Errorf("caller %d (%+v): %v at %v, want an admission at %v", i, c, c.err, c.end, best)
		default:
			if free = best; !counters[c.member].Arrive(start+best.Microseconds(), nil) {
				return fmt.Errorf("caller %d: member %d refuses it at %v", i, c.member, best)
			}
		}
	}
	return nil
}

func TestPoolAdmitsAtTheEarliestTime(t *testing.T) {
	soak.Slow(t, "it plays many pools")
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		policies, callers := randomPool(r, seed%2 == 0)
		synctest.Test(t, func(t *testing.T) { runPool(t, policies, callers) })
		var counters []*throttletest.Counter
		for _, p := range policies {
			counters = append(counters, counter(t, p.Tiers...))
		}
		if err := checkPool(policies, callers, counters); err != nil {
			t.Errorf("seed %d: %v: %v", seed, policies, err)
		}
	}
}

// An ordered caller may be admitted by some members.
type orderedCaller struct {
	arrives, rank, end time.Duration
	may                []string // the members
	by                 string
}

// checkOrder returns an error if a member has admitted a caller before one that was ahead of it and that the
// member could have admitted too.
func checkOrder(callers []orderedCaller) error {
	for _, c := range callers {
		for _, ahead := range callers {
			if ahead.rank < c.rank && ahead.arrives < c.end && c.end < ahead.end && slices.Contains(ahead.may, c.by) {
				return fmt.Errorf("member %s admitted the caller of %v at %v, that of %v only at %v", c.by, c.rank, c.end, ahead.rank, ahead.end)
			}
		}
	}
	return nil
}

func TestPoolKeepsOneOrderWithDirectCallersAndOtherPools(t *testing.T) {
	soak.Slow(t, "it plays many pools")
	plain := func(text string) *throttle.Limiter { return parsed(t, text) }
	kinds := map[string]func(string) *throttle.Limiter{
		"plain":  plain,
		"nested": func(text string) *throttle.Limiter { return parsed(t, text, parsed(t, "9/s | guard=none")) },
		"of a group": func(text string) *throttle.Limiter {
			p, _ := throttle.ParsePolicy(text, text)
			g, err := throttle.NewGroup(p, nil, throttle.GroupOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return g.For("key")
		},
	}
	for kind, open := range kinds {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 2))
			costs := seed%2 == 0
			synctest.Test(t, func(t *testing.T) {
				l := []*throttle.Limiter{open("7/s | guard=none"), open("11/s;algo=gcra | guard=none"), open("10/s;algo=fixed_window")}
				p := newPool(t, throttle.Member{Limiter: l[0]}, throttle.Member{Limiter: l[1]})
				q, err := throttle.NewPool(throttle.Member{Name: "1", Limiter: l[1]}, throttle.Member{Name: "2", Limiter: l[2]})
				if err != nil {
					t.Fatal(err)
				}
				callers := make([]orderedCaller, 300)
				start := time.Now()
				var wg sync.WaitGroup
				for i := range callers {
					time.Sleep(time.Duration(1 + r.IntN(60_000_000)))
					c, cost, ctx := &callers[i], throttle.Cost{"requests": 1}, t.Context()
					c.arrives = time.Since(start)
					c.rank = c.arrives + 10*time.Second
					if r.IntN(4) == 0 {
						ctx = throttle.WithClass(ctx, throttle.Interactive)
						c.rank -= 10 * time.Second
					}
					if costs {
						cost["requests"] = 1 + r.Int64N(5)
					}
					var admit func(context.Context, throttle.Cost) (*throttle.Permit, error)
					switch n := r.IntN(6); n {
					case 0, 1, 2:
						admit, c.may, c.by = l[n].Acquire, []string{fmt.Sprint(n)}, fmt.Sprint(n)
					case 3, 4:
						admit, c.may = p.Acquire, []string{"0", "1"}
					default:
						admit, c.may = q.Acquire, []string{"1", "2"}
					}
					wg.Go(func() {
						permit, err := admit(ctx, cost)
						if err != nil {
							t.Error(err)
							return
						}
						c.end, c.by = time.Since(start), cmp.Or(permit.Member(), c.by)
						permit.Arrived()
						permit.Release()
					})
					synctest.Wait()
				}
				wg.Wait()
				if err := checkOrder(callers); err != nil {
					t.Errorf("%s, seed %d: %v", kind, seed, err)
				}
			})
		}
	}
}

func TestPoolServesOthersWhileOneCallerNeedsTheLargeMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large, small := parsed(t, "100/10s;algo=fixed_window | guard=none"), parsed(t, "10/s;algo=fixed_window | guard=none")
		p := newPool(t, throttle.Member{Limiter: large}, throttle.Member{Limiter: small})
		acquire(t, large, throttle.Cost{"requests": 60})
		var wg sync.WaitGroup
		start := time.Now()
		wg.Go(func() {
			permit, err := p.Acquire(t.Context(), throttle.Cost{"requests": 50})
			if err != nil || permit.Member() != "0" || time.Since(start) != 10*time.Second {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		})
		time.Sleep(time.Millisecond)
		for i := range 90 {
			wg.Go(func() {
				permit, err := p.Acquire(t.Context(), nil)
				if err != nil || permit.Member() != "1" || time.Since(start) > 9*time.Second {
					t.Errorf("request %d: %v after %v", i, err, time.Since(start))
				}
			})
		}
		wg.Wait()
	})
}

func TestPoolUtilization(t *testing.T) {
	soak.Slow(t, "it plays many pools")
	for _, policies := range [][]string{
		{"1000/s;unit=tokens | guard=none", "4000/s;unit=tokens;algo=gcra | guard=none"},
		{"1000/s;unit=tokens", "4000/s;unit=tokens;algo=fixed_window"},
		{"1000/s;unit=tokens + 20;algo=concurrency", "4000/s;unit=tokens + 80;algo=concurrency"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPool(t, throttle.Member{Limiter: parsed(t, policies[0])}, throttle.Member{Limiter: parsed(t, policies[1])})
			var mu sync.Mutex
			total, start := int64(0), time.Now()
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(3, uint64(i)))
					for time.Since(start) < 30*time.Second {
						n := 1 + r.Int64N(200)
						permit, err := p.Acquire(t.Context(), throttle.Cost{"tokens": n})
						if err != nil {
							t.Error(err)
							return
						}
						if mu.Lock(); time.Since(start) < 30*time.Second {
							total += n
						}
						mu.Unlock()
						time.Sleep(20 * time.Millisecond)
						permit.Arrived()
						permit.Release()
					}
				})
			}
			wg.Wait()
			if want := int64(5000 * 30 * 95 / 100); total < want {
				t.Errorf("%v: %d tokens, want %d", policies, total, want)
			}
		})
	}
}

func TestPoolRefusalChangesNoMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l []*throttle.Limiter
		for _, text := range []string{"3/m;algo=fixed_window", "3/m | guard=none", "3/m;algo=gcra + 5;algo=concurrency"} {
			l = append(l, parsed(t, text, parsed(t, "100/m")))
		}
		p := newPool(t, throttle.Member{Limiter: l[0]}, throttle.Member{Limiter: l[1]}, throttle.Member{Limiter: l[2]})
		for range 9 {
			if _, err := p.TryAcquire(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		before := p.Status(t.Context()).Members
		canceled, cancel := context.WithCancel(t.Context())
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		go func() {
			synctest.Wait() // until it waits
			cancel()
		}()
		for _, err := range []error{
			func() error { _, err := p.TryAcquire(t.Context(), nil); return err }(),
			func() error { _, err := p.Acquire(short, nil); return err }(),
			func() error { _, err := p.Acquire(canceled, nil); return err }(),
			func() error { _, err := p.Acquire(t.Context(), throttle.Cost{"requests": 4}); return err }(),
		} {
			if err == nil {
				t.Error("admitted")
			}
		}
		if after := p.Status(t.Context()); after.Waiting != 0 || fmt.Sprint(before) != fmt.Sprint(after.Members) {
			t.Errorf("%v, before %v", after, before)
		}
	})
}

func TestPoolIsBannedOnlyIfAllMembersAre(t *testing.T) {
	for _, nested := range []bool{false, true} {
		for _, within := range []time.Duration{0, time.Minute, 2 * time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				open := func(text string) (l, banned *throttle.Limiter) {
					if nested {
						outer := parsed(t, "100/h")
						return parsed(t, text, outer), outer
					}
					l = parsed(t, text)
					return l, l
				}
				a, banA := open("2/h;algo=fixed_window | guard=none")
				b, banB := open("2/h;algo=anchored_window | guard=none")
				p := newPool(t, throttle.Member{Limiter: a}, throttle.Member{Limiter: b, Rank: 1})
				probe := acquire(t, a, nil)
				other := acquire(t, b, nil)
				for range 2 {
					if err := p.Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				start := time.Now()
				check := func(what string, want time.Duration) {
					ctx := t.Context()
					if within > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, within)
						defer cancel()
					}
					err := p.Wait(ctx)
					var e *throttle.WaitError
					if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || !e.Until.Equal(start.Add(90*time.Minute)) || time.Since(start) != want {
						t.Errorf("nested %v, within %v, %s: %v after %v, want ErrBanned after %v until 1h30m", nested, within, what, err, time.Since(start), want)
					}
				}
				var wg sync.WaitGroup
				if within != time.Minute {
					wg.Go(func() { check("a waiting caller", 20*time.Second) })
				}
				time.Sleep(10 * time.Second)
				_, _ = banA, banB
				if err := probe.Refused(t.Context(), 90*time.Minute-10*time.Second); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if n := p.Status(t.Context()).Waiting; n == 0 && within != time.Minute {
					t.Errorf("nested %v, within %v: nobody waits after one member was banned", nested, within)
				}
				if err := other.Refused(t.Context(), 3*time.Hour); err != nil {
					t.Fatal(err)
				}
				wg.Wait()
				check("a new caller", 20*time.Second)
			})
		}
	}
}

func TestPoolMembersComeAndGoWhileCallersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := parsed(t, "1/h | guard=none")
		p := newPool(t, throttle.Member{Limiter: slow})
		if err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		results := make(chan string, 100)
		start := time.Now()
		for range 3 {
			time.Sleep(time.Millisecond)
			go func() {
				permit, err := p.Acquire(t.Context(), nil)
				if err != nil {
					results <- err.Error()
					return
				}
				results <- permit.Member()
			}()
		}
		time.Sleep(time.Second)
		for i, text := range []string{"1/m;algo=fixed_window | guard=none", "1/2m;algo=fixed_window | guard=none"} {
			if err := p.Add(throttle.Member{Name: fmt.Sprint("new ", i), Limiter: parsed(t, text)}); err != nil {
				t.Fatal(err)
			}
			if got := <-results; got != fmt.Sprint("new ", i) || time.Since(start) > 2*time.Second {
				t.Errorf("%q after %v", got, time.Since(start))
			}
		}
		p.Remove("new 0")
		p.Remove("new 1")
		p.Remove("0")
		if got := <-results; got != "throttle: the pool has no members: add one" {
			t.Error(got)
		}
		if n := p.Status(t.Context()).Waiting; n != 0 || slow.Allow() {
			t.Errorf("%d wait", n)
		}
		if s := status(t, slow); s.Waiting != 0 {
			t.Errorf("%d wait at the removed member", s.Waiting)
		}
	})
}

func TestPoolOfAClosedMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := parsed(t, "1/h | guard=none"), parsed(t, "1/m;algo=fixed_window | guard=none")
		p := newPool(t, throttle.Member{Limiter: a}, throttle.Member{Limiter: b})
		var wg sync.WaitGroup
		for i := range 4 {
			time.Sleep(time.Millisecond)
			wg.Go(func() {
				if err := p.Wait(t.Context()); i < 3 && err != nil || i == 3 && !errors.Is(err, throttle.ErrClosed) {
					t.Errorf("caller %d: %v", i, err)
				}
			})
		}
		time.Sleep(time.Second)
		a.Close()
		time.Sleep(time.Minute)
		b.Close()
		wg.Wait()
	})
}

func TestPoolMaxWaitRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var members []throttle.Member
		for range 2 {
			policy := exact(per(time.Second, 1, throttle.FixedWindow))
			policy.MaxWait = 1500 * time.Millisecond
			members = append(members, throttle.Member{Limiter: limiter(t, policy, nil)})
		}
		p := newPool(t, members...)
		time.Sleep(time.Millisecond)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 8 {
			time.Sleep(time.Nanosecond)
			wg.Go(func() {
				err := p.Wait(t.Context())
				var e *throttle.WaitError
				if i < 4 && err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
				if i >= 4 && (!errors.As(err, &e) || e.Err != throttle.ErrDeadline || time.Since(start) > time.Microsecond) {
					t.Errorf("caller %d: %v after %v, want ErrDeadline at once", i, err, time.Since(start))
				}
			})
		}
		wg.Wait()
	})
}

func TestPoolCallbacksThatDoNotReturn(t *testing.T) {
	ends := map[string]func(){"panic": func() { panic("of the user") }, "Goexit": runtime.Goexit}
	for how, end := range ends {
		for _, where := range []string{"Queued", "Admitted", "Refused", "Alert", "outer Alert"} {
			synctest.Test(t, func(t *testing.T) {
				armed := false
				do := func(at string) {
					if armed && at == where {
						armed = false
						end()
					}
				}
				policy := exact(per(time.Second, 2, throttle.FixedWindow), throttle.Budget(100, "", throttle.Month))
				policy.AlertAt = []int{3}
				policy.Alert = func(throttle.Alert) { do("Alert") }
				outer := policy
				outer.Name, outer.Tiers = "outer", []throttle.Tier{throttle.Budget(100, "", throttle.Month)}
				outer.Alert = func(throttle.Alert) { do("outer Alert") }
				l := limiter(t, policy, nil).Within(limiter(t, outer, nil))
				p := newPool(t, throttle.Member{Limiter: l})
				p.Observer = &throttle.Observer{
					Queued:   func(context.Context, throttle.QueuedInfo) { do("Queued") },
					Admitted: func(context.Context, throttle.AdmittedInfo) { do("Admitted") },
					Refused:  func(context.Context, throttle.RefusedInfo) { do("Refused") },
				}
				time.Sleep(time.Millisecond)
				for range 2 {
					if err := p.Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				armed = true
				returned, panicked := false, any(nil)
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { panicked = recover() }()
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if where == "Refused" {
						ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
					}
					defer cancel()
					_ = p.Wait(ctx)
					returned = true
				}()
				<-done
				if returned || (panicked == nil) == (how == "panic") {
					t.Errorf("%s in %s: returned %v, panicked with %v", how, where, returned, panicked)
				}
				time.Sleep(2 * time.Second)
				if n := p.Status(t.Context()).Waiting; n != 0 {
					t.Errorf("%s in %s: %d wait", how, where, n)
				}
				for range 2 {
					permit, err := p.TryAcquire(t.Context(), nil)
					if err != nil {
						t.Errorf("%s in %s: %v", how, where, err)
						return
					}
					permit.Arrived()
				}
			})
		}
	}
}

func TestPoolForecastIsWhatTheWaitTakes(t *testing.T) {
	soak.Slow(t, "it plays many pools")
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 5))
		policies, callers := randomPool(r, false)
		synctest.Test(t, func(t *testing.T) {
			var members []throttle.Member
			for _, p := range policies {
				members = append(members, throttle.Member{Limiter: limiter(t, p, nil)})
			}
			p, start := newPool(t, members...), time.Now()
			var wg sync.WaitGroup
			for i := range callers {
				time.Sleep(callers[i].arrives - time.Since(start))
				f, err := p.Forecast(t.Context(), nil)
				if err != nil {
					t.Error(err)
				}
				wg.Go(func() {
					asked := time.Now()
					if err := p.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					if took := time.Since(asked); took != f.Wait {
						t.Errorf("seed %d: caller %d waited %v, forecast %v", seed, i, took, f.Wait)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
		})
	}
}

// At the instant at which windows open, callers that were admitted just now must not count twice.
func TestPoolForecastsDoNotCountAdmittedCallersTwice(t *testing.T) {
	soak.Slow(t, "it plays many pools")
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			p := newPool(t,
				throttle.Member{Limiter: parsed(t, "100/s;algo=fixed_window | guard=none")},
				throttle.Member{Limiter: parsed(t, "100/s;algo=fixed_window | guard=none")})
			var wg sync.WaitGroup
			ask := func(within time.Duration) {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), within)
					defer cancel()
					if err := p.Wait(ctx); err != nil {
						t.Errorf("within %v: %v", within, err)
					}
				})
			}
			for range 200 {
				if _, err := p.TryAcquire(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(500 * time.Millisecond)
			for range 150 {
				ask(time.Minute)
			}
			time.Sleep(500 * time.Millisecond)
			for range 50 {
				ask(900 * time.Millisecond)
			}
			wg.Wait()
		})
	}
}

// Whatever the costs of others, the wait for which a deadline is refused is not longer than what a caller takes
// that comes instead.
func TestPoolRefusesNoRequestThatWouldBeInTime(t *testing.T) {
	soak.Slow(t, "it plays many pools")
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			l := []*throttle.Limiter{parsed(t, "97/s;unit=tokens | guard=none"), parsed(t, "231/s;unit=tokens;algo=gcra | guard=none"), parsed(t, "53/s;unit=tokens;algo=token_bucket")}
			p := newPool(t, throttle.Member{Limiter: l[0]}, throttle.Member{Limiter: l[1]}, throttle.Member{Limiter: l[2], Rank: 1})
			r := rand.New(rand.NewPCG(seed, 9))
			var wg sync.WaitGroup
			for range 150 {
				time.Sleep(time.Duration(1 + r.IntN(90_000_000)))
				ctx, admit, cost := t.Context(), p.Acquire, throttle.Cost{"tokens": 1 + r.Int64N(50)}
				if r.IntN(4) == 0 {
					ctx = throttle.WithClass(ctx, throttle.Interactive)
				}
				if n := r.IntN(8); n < 3 {
					admit = l[n].Acquire
				}
				asked, least := time.Now(), time.Duration(0)
				short, cancel := context.WithTimeout(ctx, time.Microsecond)
				var e *throttle.WaitError
				_, err := admit(short, cost)
				if cancel(); err == nil {
					continue
				}
				if errors.As(err, &e) {
					least = e.Wait
				}
				wg.Go(func() {
					if _, err := admit(ctx, cost); err != nil || time.Since(asked) < least-time.Microsecond {
						t.Errorf("seed %d: %v after %v, refused before as %v", seed, err, time.Since(asked), least)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
		})
	}
}

func TestPoolCallersDelayNoForecastOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, fast := parsed(t, "1/s;algo=fixed_window | guard=none"), parsed(t, "100/s;algo=fixed_window | guard=none")
		p := newPool(t, throttle.Member{Limiter: slow}, throttle.Member{Limiter: fast})
		for range 101 {
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(500 * time.Millisecond)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := p.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 1700*time.Millisecond)
		defer cancel()
		if err := slow.Wait(ctx); err != nil {
			t.Errorf("a direct caller behind those of the pool: %v", err)
		}
		wg.Wait()
	})
}

func TestPoolMemberGetsConcurrencyWhileCallersWait(t *testing.T) {
	for _, both := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := []*throttle.Limiter{parsed(t, "1/s;algo=fixed_window | guard=none"), parsed(t, "1/s;algo=fixed_window | guard=none ")}
			p := newPool(t, throttle.Member{Limiter: l[0]}, throttle.Member{Limiter: l[1]})
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					if err := p.Wait(t.Context()); err != nil && (!both || !errors.Is(err, throttle.ErrNeedsPermit)) {
						t.Errorf("caller %d: %v", i, err)
					} else if time.Since(bubbleStart) > 2*time.Second && both && err == nil {
						t.Error("admitted without a permit")
					}
				})
			}
			time.Sleep(1500 * time.Millisecond)
			for _, l := range l[:map[bool]int{false: 1, true: 2}[both]] {
				next := exact(per(time.Second, 1, throttle.FixedWindow), throttle.Tier{Limit: 5, Algorithm: throttle.Concurrency})
				next.Name = l.Name()
				if err := l.SetPolicy(t.Context(), next); err != nil {
					t.Fatal(err)
				}
			}
			wg.Wait()
			if _, err := p.Acquire(t.Context(), nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPoolPolicyChangesWhileCallersWait(t *testing.T) {
	change := func(t *testing.T, l *throttle.Limiter, text string) {
		next, err := throttle.ParsePolicy(l.Name(), text)
		if err == nil {
			err = l.SetPolicy(t.Context(), next)
		}
		if err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		what, policy, other string // of one member and the other one, after a second
		by                  string // the member that admits a request of 50 tokens
		err                 error
		after               time.Duration
	}{
		{what: "smaller", policy: "10/s;unit=tokens", by: "1", after: time.Minute},
		{what: "both smaller", policy: "10/s;unit=tokens", other: "10/s;unit=tokens", err: throttle.ErrExceedsCapacity, after: time.Second},
		{what: "larger", policy: "1000/s;unit=tokens;algo=token_bucket", by: "0", after: 2 * time.Second},
		{what: "another unit", policy: "100/s;unit=images", by: "0", after: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := []*throttle.Limiter{parsed(t, "100/2m;unit=tokens;algo=fixed_window | guard=none"), parsed(t, "100/m;unit=tokens;algo=fixed_window | guard=none")}
			p := newPool(t, throttle.Member{Limiter: l[0]}, throttle.Member{Limiter: l[1]})
			for range 2 {
				if _, err := p.Acquire(t.Context(), throttle.Cost{"tokens": 100}); err != nil {
					t.Fatal(err)
				}
			}
			time.AfterFunc(time.Second, func() {
				change(t, l[0], c.policy)
				if c.other != "" {
					change(t, l[1], c.other)
				}
			})
			start := time.Now()
			permit, err := p.Acquire(t.Context(), throttle.Cost{"tokens": 50})
			switch took := time.Since(start); {
			case !errors.Is(err, c.err) || took > c.after:
				t.Errorf("%s: %v after %v, want %v after %v", c.what, err, took, c.err, c.after)
			case err == nil && permit.Member() != c.by:
				t.Errorf("%s: admitted by %s, want %s", c.what, permit.Member(), c.by)
			}
		})
	}
}

// spillPool returns a Pool of members of the ranks 0, 0, 1 and 2. All but the last are used up, for ten, twenty
// and four seconds.
func spillPool(t *testing.T, spill time.Duration) *throttle.Pool {
	var members []throttle.Member
	for i, text := range []string{"1/10s;algo=fixed_window | guard=none", "1/20s;algo=fixed_window | guard=none", "1/4s;algo=fixed_window | guard=none", "100/s | guard=none"} {
		l := parsed(t, text)
		if i < 3 {
			l.Allow()
		}
		members = append(members, throttle.Member{Limiter: l, Rank: []int{0, 0, 1, 2}[i]})
	}
	p := newPool(t, members...)
	p.Spill = spill
	return p
}

func TestPoolSpillsByRank(t *testing.T) {
	for _, c := range []struct {
		spill, within time.Duration
		sticky        bool
		want          string
		after         time.Duration
	}{
		{0, 0, false, "3", 0},
		{0, time.Millisecond, true, "3", 0},
		{5 * time.Second, 0, false, "2", 4 * time.Second},
		{3 * time.Second, 0, false, "3", 0},
		{5 * time.Second, time.Second, false, "3", 0},
		{15 * time.Second, 0, false, "0", 10 * time.Second},
		{15 * time.Second, 5 * time.Second, false, "2", 4 * time.Second},
		{30 * time.Second, 0, true, "1", 20 * time.Second},
		{15 * time.Second, 0, true, "0", 10 * time.Second},
		{5 * time.Second, 0, true, "2", 4 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := spillPool(t, c.spill)
			ctx, cancel := context.WithCancel(t.Context())
			if c.within > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), c.within)
			}
			defer cancel()
			for i := 0; c.sticky; i++ { // a key that prefers member 1
				ctx = throttle.WithStickyKey(ctx, fmt.Sprint(i))
				idle := newPool(t, throttle.Member{Limiter: parsed(t, "1/s")}, throttle.Member{Limiter: parsed(t, "1/s")})
				if permit, err := idle.Acquire(ctx, nil); err != nil || permit.Member() == "1" {
					break
				}
			}
			start := time.Now()
			permit, err := p.Acquire(ctx, nil)
			if err != nil || permit.Member() != c.want || time.Since(start) != c.after {
				t.Errorf("%+v: %v after %v", c, err, time.Since(start))
				if err == nil {
					t.Error(permit.Member())
				}
			}
			if permit, err = spillPool(t, c.spill).TryAcquire(ctx, nil); err != nil || permit.Member() != "3" {
				t.Errorf("%+v: TryAcquire: %v", c, err)
			}
		})
	}
}

func TestPoolBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := limiter(t, exact(throttle.Budget(2, "", throttle.Day)), nil), parsed(t, "3/m;algo=fixed_window | guard=none")
		p := newPool(t, throttle.Member{Limiter: a}, throttle.Member{Limiter: b})
		start := time.Now()
		for range 14 {
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 3*time.Minute {
			t.Errorf("a used-up budget: 14 requests in %v, want 3m", took)
		}
		p.Remove("1")
		if err := p.Wait(t.Context()); !errors.Is(err, throttle.ErrExhausted) {
			t.Errorf("%v, want ErrExhausted", err)
		}
		next := exact(throttle.Budget(2, "", throttle.Day))
		if next.Shadow = true; a.SetPolicy(t.Context(), next) == nil {
			t.Error("a member's policy got Shadow")
		}
	})
}

func TestPoolMaxQueue(t *testing.T) {
	for _, most := range [][]int{{5, 0}, {5, 8}} {
		synctest.Test(t, func(t *testing.T) {
			var members []throttle.Member
			for i := range most {
				policy := exact(per(time.Second, 10, throttle.GCRA))
				policy.MaxQueue = most[i]
				members = append(members, throttle.Member{Limiter: limiter(t, policy, nil)})
			}
			p := newPool(t, members...)
			start, full := time.Now(), 0
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range 120 {
				time.Sleep(time.Nanosecond)
				wg.Go(func() {
					if err := p.Wait(t.Context()); errors.Is(err, throttle.ErrQueueFull) {
						mu.Lock()
						full++
						mu.Unlock()
					} else if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			switch took := time.Since(start); {
			case most[1] == 0 && (full > 0 || took > 5500*time.Millisecond):
				t.Errorf("%v: %d found the queues full, the others took %v", most, full, took)
			case most[1] > 0 && full != 120-20-most[1]:
				t.Errorf("%v: %d found the queues full, want %d", most, full, 120-20-most[1])
			}
		})
	}
}

// A caller whom a member has refused, because its queue is full, its MaxWait is shorter, or the policy that it had was
// slow, goes to that member when it has room.
func TestPoolUsesAMemberThatHasRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		want time.Duration
		set  func(*throttle.Policy)
		then func(l *throttle.Limiter, p throttle.Policy) error
	}{
		{"full", sec, func(p *throttle.Policy) { p.MaxQueue = 1 }, nil},
		{"late", sec, func(p *throttle.Policy) { p.MaxWait = 500 * ms }, nil},
		{"slow", 500 * ms, func(p *throttle.Policy) { p.Tiers[0].Limit, p.Tiers[0].Window = 1, time.Hour }, func(l *throttle.Limiter, p throttle.Policy) error {
			p.Tiers = []throttle.Tier{throttle.PerSecond(10)}
			return l.SetPolicy(context.Background(), p)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := exact(throttle.PerSecond(10))
				c.set(&p)
				fast, slow := mustNew(t, p, nil), mustNew(t, exact(throttle.PerMinute(1)), nil)
				pool := newPool(t, throttle.Member{Name: "fast", Limiter: fast}, throttle.Member{Name: "slow", Limiter: slow})
				slow.Allow()
				if c.then == nil {
					if err := fast.Pause(t.Context(), sec); err != nil {
						t.Fatal(err)
					}
					go func() { _ = fast.Wait(t.Context()) }()
				} else {
					fast.Allow()
					time.AfterFunc(c.want, func() {
						if err := c.then(fast, p); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				if err := pool.Wait(ctx); err != nil || time.Since(start) > c.want+300*ms {
					t.Errorf("%v after %v, want it admitted after %v", err, time.Since(start), c.want)
				}
			})
		})
	}
}
