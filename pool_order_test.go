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
)

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
		_, before := p.Status(t.Context())
		canceled, cancel := context.WithCancel(t.Context())
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		go func() { time.Sleep(0); cancel() }()
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
		if waiting, after := p.Status(t.Context()); waiting != 0 || fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("%d wait, %v, before %v", waiting, after, before)
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
				if n, _ := p.Status(t.Context()); n == 0 && within != time.Minute {
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
		if n, _ := p.Status(t.Context()); n != 0 || slow.Allow() {
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
			time.Sleep(1)
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
				if n, _ := p.Status(t.Context()); n != 0 {
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
