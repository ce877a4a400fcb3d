package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/leaktest"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

const (
	ms   = time.Millisecond
	sec  = time.Second
	hour = time.Hour
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// TestRootLinksNoThirdParty checks that the root package and those that observe it link only the
// standard library and this module.
func TestRootLinksNoThirdParty(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".", "./observe", "./page").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	const module = "github.com/apithrottle/throttle"
	packages := strings.Fields(string(out))
	for _, p := range []string{module, module + "/observe", module + "/page"} {
		if !slices.Contains(packages, p) {
			t.Fatalf("go list does not show %s:\n%s", p, out)
		}
	}
	for _, p := range packages {
		if p != module && !strings.HasPrefix(p, module+"/") {
			t.Errorf("%s is linked", p)
		}
	}
}

func limiter(t *testing.T, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// exact returns a policy whose requests arrive when they are admitted.
func exact(tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: "api", Tiers: tiers, Guard: throttle.NoGuard}
}

func per(window time.Duration, limit int64, a throttle.Algorithm) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: window, Algorithm: a}
}

func counter(t *testing.T, tiers ...throttle.Tier) *throttletest.Counter {
	t.Helper()
	c, err := throttletest.NewCounter(tiers...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func status(t *testing.T, l *throttle.Limiter) throttle.Status {
	t.Helper()
	s, err := l.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNewErrors(t *testing.T) {
	s := local.New()
	limiter(t, throttle.Policy{Name: "taken", Tiers: []throttle.Tier{throttle.PerDay(5)}}, s)
	for i, test := range []struct {
		policy throttle.Policy
		store  throttle.Store
		want   string
	}{
		{throttle.Policy{Name: "x"}, nil, `policy "x"`},
		{throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(0)}}, nil, "Limit is 0"},
		{throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}}, s, "Name"},
		{throttle.Policy{Name: "taken", Tiers: []throttle.Tier{throttle.PerDay(6)}}, s, `policy "taken"`},
	} {
		if l, err := throttle.New(test.policy, test.store); l != nil || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("step %d: %v, %v; want an error that contains %s", i, l, err, test.want)
		}
	}
}

// A step is one event at one time. By default a caller arrives and waits; a later step can cancel
// its context by its name.
type step struct {
	at     time.Duration // since the start; in ascending order
	do     string        // "" for a caller, "cancel", "pause", or "allow" or "refuse" for the expected result of Allow
	caller string        // the name of the caller that arrives or is canceled
	n      int64         // requests at once. If zero, 1
	within time.Duration // the caller's timeout from now on. If zero, none
	pause  time.Duration

	end  time.Duration // when the caller returns, since the start
	err  error         // what the caller's error matches
	wait time.Duration // WaitError.Wait of that error
}

// play runs the steps under a policy in virtual time.
func play(t *testing.T, p throttle.Policy, steps []step) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		l, start := limiter(t, p, nil), time.Now()
		cancels := make(map[string]context.CancelFunc)
		var wg sync.WaitGroup
		for i, s := range steps {
			time.Sleep(s.at - time.Since(start))
			synctest.Wait()
			name := fmt.Sprintf("step %d (%s%s at %v)", i, s.do, s.caller, s.at)
			switch n := max(1, s.n); s.do {
			case "cancel":
				cancels[s.caller]()
			case "pause":
				if err := l.Pause(t.Context(), s.pause); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			case "allow", "refuse":
				if got := l.AllowN(n); got != (s.do == "allow") {
					t.Errorf("%s: AllowN(%d) = %v, want %v", name, n, got, !got)
				}
			default:
				ctx, cancel := context.WithCancel(context.Background())
				if s.within > 0 {
					ctx, cancel = context.WithTimeout(context.Background(), s.within)
				}
				cancels[s.caller] = cancel
				defer cancel()
				wg.Go(func() {
					err := l.WaitN(ctx, n)
					if end := time.Since(start); end != s.end || !errors.Is(err, s.err) {
						t.Errorf("%s: got %v at %v, want %v at %v", name, err, end, s.err, s.end)
					}
					var w *throttle.WaitError
					if errors.As(err, &w); w != nil && w.Wait != s.wait {
						t.Errorf("%s: the wait would have been %v, want %v", name, w.Wait, s.wait)
					}
				})
			}
			synctest.Wait()
		}
		wg.Wait()
	})
}

// TestWaitSteps runs short sequences of events. A caller without an expected error is admitted.
func TestWaitSteps(t *testing.T) {
	one, five := exact(throttle.PerSecond(1)), exact(throttle.PerSecond(5))
	bucket := exact(per(sec, 10, throttle.TokenBucket))
	queue := one
	queue.MaxQueue = 2
	bounded := one
	bounded.MaxWait = 2500 * ms
	guarded := throttle.Policy{Tiers: one.Tiers}

	for _, test := range []struct {
		name   string
		policy throttle.Policy
		steps  []step
	}{
		{"a large cost at the head is not overtaken", bucket, []step{
			{caller: "a", n: 8},
			{caller: "b", n: 10, end: 800 * ms},
			{caller: "c", end: 900 * ms},
			{do: "refuse"}, // although there is room for one
			{at: 100 * ms, caller: "d", n: 5, end: 1400 * ms},
			{at: 200 * ms, caller: "e", end: 1500 * ms},
			{at: 799 * ms, do: "refuse"},
			{at: 1450 * ms, do: "refuse"},
			{at: 1600 * ms, do: "allow"},
		}},
		{"Allow with a cost", five, []step{
			{do: "refuse", n: 6},
			{do: "allow", n: 3},
			{do: "refuse", n: 3},
			{do: "allow", n: 2},
			{at: 999 * ms, do: "refuse"},
			{at: sec, do: "allow", n: 5},
		}},
		{"the head is canceled", bucket, []step{
			{do: "allow", n: 8},
			{caller: "large", n: 10, end: 100 * ms, err: context.Canceled},
			{caller: "small", n: 3, end: 100 * ms},
			{caller: "next", n: 1, end: 200 * ms},
			{at: 100 * ms, do: "cancel", caller: "large"},
		}},
		{"all but the last are canceled", one, []step{
			{do: "allow"},
			{caller: "a", end: 500 * ms, err: context.Canceled},
			{caller: "b", end: 500 * ms, err: context.Canceled},
			{caller: "c", end: 500 * ms, err: context.Canceled},
			{caller: "d", end: sec},
			{at: 500 * ms, do: "cancel", caller: "b"},
			{at: 500 * ms, do: "cancel", caller: "c"},
			{at: 500 * ms, do: "cancel", caller: "a"},
			{at: 600 * ms, caller: "e", end: 2 * sec},
		}},
		{"a cost above the limit is never admitted", five, []step{
			{caller: "at once", n: 6, err: throttle.ErrExceedsCapacity},
			{do: "allow", n: 5},
			{caller: "waits", end: sec},
			{caller: "behind another", n: 6, err: throttle.ErrExceedsCapacity},
			{caller: "with a deadline", n: 6, within: 1 * ms, err: throttle.ErrExceedsCapacity},
			{do: "pause", pause: 500 * ms},
			{caller: "paused", n: math.MaxInt64, err: throttle.ErrExceedsCapacity},
			{at: sec, do: "refuse", n: 5},
			{at: sec, do: "allow", n: 4},
		}},
		{"a deadline too early", one, []step{
			{caller: "a", within: ms},
			{caller: "b", within: 999 * ms, err: throttle.ErrDeadline, wait: sec},
			{caller: "b", within: 999 * ms, err: context.DeadlineExceeded, wait: sec},
			{caller: "c", end: sec},
			{caller: "d", within: 2500 * ms, end: 2 * sec},
			{caller: "e", within: 2500 * ms, err: throttle.ErrDeadline, wait: 3 * sec},
			{caller: "f", within: 3500 * ms, end: 3 * sec},
			{at: 100 * ms, caller: "g", within: sec, err: throttle.ErrDeadline, end: 100 * ms, wait: 3900 * ms},
			{at: 3900 * ms, caller: "h", within: 101 * ms, end: 4 * sec},
			{at: 3950 * ms, do: "refuse"},
			{at: 5 * sec, do: "allow"},
		}},
		{"a deadline that only holds once others leave", one, []step{
			{do: "allow"},
			{caller: "a", end: 100 * ms, err: context.Canceled},
			{caller: "b", end: 100 * ms, err: context.Canceled},
			{caller: "stays", end: sec},
			{caller: "c", within: 3500 * ms, err: throttle.ErrDeadline, wait: 4 * sec},
			{at: 100 * ms, do: "cancel", caller: "b"},
			{at: 100 * ms, do: "cancel", caller: "a"},
			{at: 100 * ms, caller: "d", within: 2500 * ms, end: 2 * sec},
			{at: 100 * ms, caller: "e", within: 2500 * ms, err: throttle.ErrDeadline, end: 100 * ms, wait: 2900 * ms},
		}},
		{"MaxWait", bounded, []step{
			{do: "allow"},
			{caller: "a", end: sec},
			{caller: "b", within: 2400 * ms, end: 2 * sec},
			{caller: "c", err: throttle.ErrDeadline, wait: 3 * sec},
			{caller: "d", within: hour, err: context.DeadlineExceeded, wait: 3 * sec},
			{at: 500 * ms, caller: "e", end: 3 * sec},
			{at: 600 * ms, caller: "f", within: 2 * sec, err: throttle.ErrDeadline, end: 600 * ms, wait: 3400 * ms},
			{at: 600 * ms, caller: "g", err: throttle.ErrDeadline, end: 600 * ms, wait: 3400 * ms},
		}},
		{"MaxQueue", queue, []step{
			{caller: "a"},
			{caller: "b", end: sec},
			{caller: "c", end: 500 * ms, err: context.Canceled},
			{caller: "d", err: throttle.ErrQueueFull},
			{at: 500 * ms, do: "cancel", caller: "c"},
			{at: 500 * ms, caller: "e", end: 2 * sec},
			{at: 500 * ms, caller: "f", end: 500 * ms, err: throttle.ErrQueueFull},
			{at: sec, caller: "g", end: 3 * sec},
		}},
		{"a pause makes some late", one, []step{
			{do: "allow"},
			{caller: "a", within: 20 * sec, end: 10500 * ms},
			{caller: "b", within: 5 * sec, err: throttle.ErrDeadline, end: 500 * ms, wait: 11 * sec},
			{caller: "c", end: 11500 * ms},
			{caller: "d", within: 12 * sec, err: throttle.ErrDeadline, end: 500 * ms, wait: 12 * sec},
			{caller: "e", within: 13 * sec, end: 12500 * ms},
			{at: 500 * ms, do: "pause", pause: 10 * sec},
			{at: 500 * ms, caller: "f", within: 12 * sec, err: throttle.ErrDeadline, end: 500 * ms, wait: 13 * sec},
			{at: 11 * sec, do: "refuse"},
		}},
		{"a pause makes the head late", bounded, []step{
			{do: "allow"},
			{caller: "a", err: throttle.ErrDeadline, end: 500 * ms, wait: 2100 * ms},
			{at: 400 * ms, caller: "b", end: 2600 * ms},
			{at: 500 * ms, do: "pause", pause: 2100 * ms},
		}},
		{"a shorter pause does not shorten a longer one", five, []step{
			{do: "pause", pause: 10 * sec},
			{caller: "a", end: 13 * sec},
			{at: sec, do: "pause", pause: sec},
			{at: 3 * sec, do: "refuse"},
			{at: 4 * sec, do: "pause", pause: 9 * sec},
			{at: 5 * sec, caller: "b", within: 7 * sec, err: throttle.ErrDeadline, end: 5 * sec, wait: 8 * sec},
			{at: 6 * sec, do: "pause", pause: -sec},
			{at: 10 * sec, do: "refuse"},
			{at: 13 * sec, do: "allow"},
		}},
		{"the tiers hold after a pause", five, []step{
			{do: "allow", n: 4},
			{at: 500 * ms, do: "pause", pause: 100 * ms},
			{at: 500 * ms, caller: "a", end: 600 * ms},
			{at: 500 * ms, caller: "b", end: 10700 * ms}, // without the second pause, after a second
			{at: 700 * ms, do: "pause", pause: 10 * sec},
			{at: 700 * ms, caller: "c", n: 5, end: 11700 * ms},
			{at: 701 * ms, caller: "d", end: 12700 * ms},
		}},
		{"a request is in flight for the guard interval", guarded, []step{
			{caller: "a"},
			{caller: "b", within: 1020 * ms, err: throttle.ErrDeadline, wait: 1050 * ms},
			{caller: "c", end: 1050 * ms},
			{caller: "d", within: 2110 * ms, end: 2100 * ms},
		}},
	} {
		t.Run(test.name, func(t *testing.T) { play(t, test.policy, test.steps) })
	}
}

// A randomCaller is one of many callers that arrive at random times.
type randomCaller struct {
	arrives, leaves int64 // µs since the start; at leaves its context is canceled, if it still waits
	cost            int64
	end             int64 // µs since the start when it was admitted, or gone if it was canceled
}

const gone, never = -1, math.MaxInt64

// runCallers runs each caller in a goroutine and records when it is admitted. The callers must
// arrive at different times, in order.
func runCallers(t *testing.T, p throttle.Policy, callers []randomCaller) []randomCaller {
	callers = slices.Clone(callers)
	synctest.Test(t, func(t *testing.T) {
		l, start := limiter(t, p, nil), time.Now()
		since := func() int64 { return time.Since(start).Microseconds() }
		var wg sync.WaitGroup
		for i := range callers {
			c := &callers[i]
			time.Sleep(time.Duration(c.arrives-since()) * time.Microsecond)
			wg.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if c.leaves != never {
					defer time.AfterFunc(time.Duration(c.leaves-since())*time.Microsecond, cancel).Stop()
				}
				switch err := l.WaitN(ctx, c.cost); {
				case err == nil:
					c.end = since()
				case err == context.Canceled && since() == c.leaves:
					c.end = gone
				default:
					t.Errorf("caller %d: WaitN() = %v after %d µs", i, err, since())
				}
			})
			synctest.Wait()
		}
		wg.Wait()
	})
	return callers
}

// referenceRun computes the results that runCallers must have. In its one queue the first caller
// waits until the provider's own counter has room for its cost.
func referenceRun(t *testing.T, p throttle.Policy, callers []randomCaller) []randomCaller {
	callers = slices.Clone(callers)
	provider, start := counter(t, p.Tiers...), bubbleStart.UnixMicro()
	free := int64(0) // when the last caller left the head of the queue
	for i := range callers {
		c := &callers[i]
		head := max(c.arrives, free)
		c.end = gone
		if c.leaves <= head {
			continue // canceled before it was at the head
		}
		cost := map[string]int64{"requests": c.cost}
		at, ok := provider.Earliest(start+head, cost)
		if !ok {
			t.Fatalf("caller %d: the cost exceeds the capacity of the counter", i)
		}
		if free = c.leaves; at-start < c.leaves {
			provider.Arrive(at, cost)
			c.end, free = at-start, at-start
		}
	}
	return callers
}

var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // the start of every synctest bubble

// compareEnds reports the callers whose ends differ between two runs.
func compareEnds(t *testing.T, what string, got, want []randomCaller) {
	t.Helper()
	bad := 0
	for i := range got {
		if got[i].end == want[i].end {
			continue
		}
		if bad++; bad > 5 {
			t.Errorf("%s: further callers differ", what)
			return
		}
		t.Errorf("%s: caller %d is %+v, want end %d", what, i, got[i], want[i].end)
	}
}

// counters are the algorithms that admit exactly to the microsecond.
var counters = []throttle.Algorithm{
	throttle.SlidingLog, throttle.FixedWindow, throttle.AnchoredWindow, throttle.WeightedWindow,
	throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA,
}

// randomCallers returns a policy whose first tier has the algorithm, and callers that arrive about
// twice as fast as it admits. Two thirds of them have a time at which they are canceled.
func randomCallers(r *rand.Rand, a throttle.Algorithm, size int) (throttle.Policy, []randomCaller) {
	limit := 1 + r.Int64N(20)
	window := time.Duration(1_000+r.Int64N(2_000_000)) * time.Microsecond
	p := exact(per(window, limit, a))
	if r.IntN(2) == 0 {
		p.Tiers = append(p.Tiers, per(window*3, limit*2, counters[r.IntN(len(counters))]))
	}
	callers := make([]randomCaller, size)
	pace := window.Microseconds() / limit
	now := int64(0)
	for i := range callers {
		now += 1 + r.Int64N(pace)
		c := randomCaller{arrives: now, leaves: never, cost: 1}
		if r.IntN(3) > 0 {
			c.leaves = now + 1 + r.Int64N(pace*int64(size)/4)
		}
		callers[i] = c
	}
	return p, callers
}

// TestCancelStorm cancels up to two thirds of many callers at random times. The others must be
// admitted at the same microsecond as in a run without the canceled callers.
func TestCancelStorm(t *testing.T) {
	for _, a := range counters {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			left, seeds := 0, soak.Times(6)
			for seed := range uint64(seeds) {
				p, all := randomCallers(rand.New(rand.NewPCG(seed, uint64(a))), a, 300)
				if seed%2 == 1 {
					p.Guard = 0
				}
				name := fmt.Sprintf("seed %d, %v", seed, p)
				stormy := runCallers(t, p, all)
				stayed := slices.DeleteFunc(slices.Clone(stormy), func(c randomCaller) bool { return c.end == gone })
				left += len(all) - len(stayed)
				calm := slices.Clone(stayed)
				for i := range calm {
					calm[i].leaves = never
				}
				compareEnds(t, name, stayed, runCallers(t, p, calm))
				if p.Guard == throttle.NoGuard {
					compareEnds(t, name+", by the counter", stormy, referenceRun(t, p, all))
				}
			}
			if left < 16*seeds {
				t.Errorf("%d callers were canceled, want at least %d", left, 16*seeds)
			}
		})
	}
}

// TestQueueOfMixedCosts checks that callers with different costs, some of which are canceled, are
// admitted in order of arrival, each as early as the provider's counter has room behind the callers
// before it. A large cost at the head delays all callers behind it.
func TestQueueOfMixedCosts(t *testing.T) {
	for _, a := range counters {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(soak.Times(8)) {
				r := rand.New(rand.NewPCG(seed, uint64(a)))
				p, callers := randomCallers(r, a, 200)
				for i := range callers {
					callers[i].cost = 1 + r.Int64N(p.Tiers[0].Limit)
				}
				name := fmt.Sprintf("seed %d, %v", seed, p)
				got := runCallers(t, p, callers)
				compareEnds(t, name, got, referenceRun(t, p, callers))
				last := int64(0)
				for i, c := range got {
					if c.end != gone && c.end < last {
						t.Errorf("%s: caller %d %+v overtook one admitted at %d", name, i, c, last)
					}
					last = max(last, c.end)
				}
			}
		})
	}
}

// TestCancelBeforeRoom cancels nine in ten callers with different costs before an exhausted quota
// has room. The others must be admitted as if the canceled callers had never arrived.
func TestCancelBeforeRoom(t *testing.T) {
	for _, a := range counters {
		r := rand.New(rand.NewPCG(7, uint64(a)))
		p := exact(per(sec, 10, a))
		storm := []randomCaller{{leaves: never, cost: 10}}
		calm := slices.Clone(storm)
		for i := range int64(300) {
			c := randomCaller{arrives: 1 + i, leaves: never, cost: 1 + r.Int64N(10)}
			if i%10 == 0 {
				calm = append(calm, c)
			} else {
				// A bucket gains its first token after 100 ms.
				c.leaves = 301 + r.Int64N(90_000)
			}
			storm = append(storm, c)
		}
		stayed := slices.DeleteFunc(runCallers(t, p, storm), func(c randomCaller) bool { return c.end == gone })
		if len(stayed) != len(calm) {
			t.Fatalf("%v: %d callers were admitted, want %d", a, len(stayed), len(calm))
		}
		compareEnds(t, a.String(), stayed, runCallers(t, p, calm))
	}
}

// TestContextErrors checks that a context's own error is returned as it is, and that nothing is
// charged.
func TestContextErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, exact(throttle.PerSecond(1)), nil)
		canceled, cancel := context.WithCancel(context.Background())
		cancel()
		expired, cancel := context.WithTimeout(context.Background(), 0)
		defer cancel()
		acquire := func(c throttle.Cost) func(context.Context) error {
			return func(ctx context.Context) error {
				p, err := l.Acquire(ctx, c)
				if p != nil {
					t.Errorf("Acquire(%v) returned a permit with the error %v", c, err)
				}
				return err
			}
		}
		for name, f := range map[string]func(context.Context) error{
			"Wait":         l.Wait,
			"WaitN(0)":     func(ctx context.Context) error { return l.WaitN(ctx, 0) },
			"WaitN(1)":     func(ctx context.Context) error { return l.WaitN(ctx, 1) },
			"WaitN(9)":     func(ctx context.Context) error { return l.WaitN(ctx, 9) },
			"Acquire(nil)": acquire(nil),
			"Acquire(0)":   acquire(throttle.Cost{"requests": 0}),
		} {
			if err := f(canceled); err != context.Canceled {
				t.Errorf("%s with a canceled context: error %v, want Canceled", name, err)
			}
			if err := f(expired); err != context.DeadlineExceeded {
				t.Errorf("%s with an expired context: error %v, want DeadlineExceeded", name, err)
			}
		}
		if used := status(t, l).Tiers[0].Used; used != 0 {
			t.Errorf("%d are charged, want 0", used)
		}
	})
}

// TestContextEndsWhileWaiting checks that the context's own error is returned if its end during the
// wait could not be predicted.
func TestContextEndsWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, exact(throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}), nil)
		p, err := l.Acquire(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release()
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), sec)
		defer cancel()
		if _, err := l.Acquire(ctx, nil); err != context.DeadlineExceeded || time.Since(start) != sec {
			t.Errorf("with a deadline: error %v after %v, want DeadlineExceeded after 1s", err, time.Since(start))
		}
		ctx, cancel = context.WithCancel(context.Background())
		time.AfterFunc(sec, cancel)
		if _, err := l.Acquire(ctx, nil); err != context.Canceled || time.Since(start) != 2*sec {
			t.Errorf("canceled: error %v after %v, want Canceled after 2s", err, time.Since(start))
		}
	})
}

// TestMaxWaitRunsOut checks that MaxWait also ends waits that last longer than their forecast,
// because no permit was released.
func TestMaxWaitRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := exact(throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency})
		policy.MaxWait = sec
		l := limiter(t, policy, nil)
		p, err := l.Acquire(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release()
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				joined := time.Duration(i) * 100 * ms
				time.Sleep(joined)
				_, err := l.Acquire(context.Background(), nil)
				if !errors.Is(err, throttle.ErrDeadline) || time.Since(start) != joined+sec {
					t.Errorf("caller %d: error %v after %v, want ErrDeadline after %v", i, err, time.Since(start), joined+sec)
				}
			})
		}
		wg.Wait()
	})
}

// TestZeroAndNegative calls the Limiter with counts and costs of zero and below.
func TestZeroAndNegative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, start := limiter(t, exact(throttle.PerSecond(1), throttle.Tier{Limit: 9, Window: sec, Unit: "tokens"}), nil), time.Now()
		if err := l.Pause(context.Background(), hour); err != nil {
			t.Fatal(err)
		}
		go l.Wait(t.Context()) // another caller waits meanwhile
		synctest.Wait()
		if err := l.WaitN(context.Background(), 0); err != nil {
			t.Errorf("WaitN(0): %v", err)
		}
		if !l.AllowN(0) {
			t.Error("AllowN(0) is false")
		}
		if _, err := l.TryAcquire(t.Context(), throttle.Cost{"requests": 0}); !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("TryAcquire of zero requests in a pause: error %v, want ErrDeadline", err)
		}
		if err := l.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p, err := l.TryAcquire(t.Context(), throttle.Cost{"requests": 0})
		if err != nil {
			t.Errorf("TryAcquire of zero requests: %v", err)
		}
		p.Arrived()
		p.Release()
		if err := p.Cancel(context.Background()); err != nil {
			t.Errorf("Cancel of zero requests: %v", err)
		}
		if err := l.WaitN(context.Background(), -1); err == nil || !strings.Contains(err.Error(), "-1") {
			t.Errorf("WaitN(-1): error %v, want one that names -1", err)
		}
		if l.AllowN(-1) {
			t.Error("AllowN(-1) is true")
		}
		for _, test := range []struct {
			cost  throttle.Cost
			names string
		}{
			{throttle.Cost{"tokens": -1}, `"tokens"`},
			{throttle.Cost{"requests": -1}, `"requests"`},
			{throttle.Cost{"bytes": 1}, `"bytes"`},
			{throttle.Cost{"tokens": 1, "bytes": 0}, `"bytes"`},
		} {
			p, err := l.Acquire(context.Background(), test.cost)
			var w *throttle.WaitError
			if p != nil || err == nil || !strings.Contains(err.Error(), test.names) || errors.As(err, &w) {
				t.Errorf("Acquire(%v): %v, %v: want an error that names %s", test.cost, p, err, test.names)
			}
		}
		if time.Since(start) > 0 {
			t.Errorf("the calls took %v, want 0", time.Since(start))
		}
		for i, tier := range status(t, l).Tiers {
			if want := int64(1 - i); tier.Used != want { // the waiting caller was admitted
				t.Errorf("tier %d: %d are charged, want %d", i, tier.Used, want)
			}
		}
	})
}

// TestExceedsCapacityNamesTheTier checks the error for a cost that exceeds the capacity of one of
// several tiers.
func TestExceedsCapacityNamesTheTier(t *testing.T) {
	tokens := throttle.Tier{Limit: 1000, Window: time.Minute, Algorithm: throttle.TokenBucket, Burst: 200, Unit: "tokens"}
	l := limiter(t, exact(throttle.PerSecond(5), tokens), nil)
	p, err := l.Acquire(context.Background(), throttle.Cost{"tokens": 201})
	var w *throttle.WaitError
	if p != nil || !errors.Is(err, throttle.ErrExceedsCapacity) || !errors.As(err, &w) {
		t.Fatalf("Acquire: %v, %v; want ErrExceedsCapacity", p, err)
	}
	if w.Policy != "api" || w.Tier != tokens.String() || w.Wait != 0 {
		t.Errorf("the error is %+v, want policy api, tier %v and no Wait", *w, tokens)
	}
	if want := `throttle: policy "api": cost of 201 tokens exceeds the capacity of tier ` + tokens.String(); err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	if errors.Is(err, context.DeadlineExceeded) || w.Timeout() {
		t.Error("the error matches DeadlineExceeded or is a Timeout")
	}
}

// acquire admits a request and fails the test if that takes time.
func acquire(t *testing.T, l *throttle.Limiter, c throttle.Cost) *throttle.Permit {
	t.Helper()
	start := time.Now()
	p, err := l.Acquire(context.Background(), c)
	if err != nil || time.Since(start) > 0 {
		t.Fatalf("Acquire(%v): %v after %v, want nil at once", c, err, time.Since(start))
	}
	return p
}

// TestPermitCancel checks that a cancellation within the guard interval restores the state.
func TestPermitCancel(t *testing.T) {
	for _, a := range append(counters, throttle.SlidingWindow) {
		t.Run(a.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tiers := []throttle.Tier{per(sec, 10, a), {Limit: 100, Window: time.Minute, Unit: "tokens", Algorithm: a}, {Limit: 9, Algorithm: throttle.Concurrency}}
				l := limiter(t, throttle.Policy{Tiers: tiers}, nil)
				twin := limiter(t, throttle.Policy{Tiers: tiers}, nil)
				for range 3 {
					acquire(t, l, throttle.Cost{"tokens": 5}).Arrived()
					acquire(t, twin, throttle.Cost{"tokens": 5}).Arrived()
				}
				var permits []*throttle.Permit
				for n := range int64(6) {
					time.Sleep(7 * ms)
					permits = append(permits, acquire(t, l, throttle.Cost{"tokens": 10 + n}))
				}
				rand.Shuffle(len(permits), func(i, j int) { permits[i], permits[j] = permits[j], permits[i] })
				for _, p := range permits {
					if err := p.Cancel(context.Background()); err != nil {
						t.Error(err)
					}
				}
				for _, later := range []time.Duration{0, 8 * ms, 100 * ms, 900 * ms, time.Minute} {
					time.Sleep(later)
					if got, want := status(t, l), status(t, twin); !reflect.DeepEqual(got, want) {
						t.Errorf("%v later the state is\n%+v, want\n%+v", later, got, want)
					}
				}
			})
		})
	}
}

// TestPermitCancelAfterTheGuard checks that a later cancellation frees only the place in the
// Concurrency tier, because the provider may have counted the request.
func TestPermitCancelAfterTheGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(9), {Limit: 9, Algorithm: throttle.Concurrency}}}, nil)
		p := acquire(t, l, nil)
		time.Sleep(50 * ms)
		if err := p.Cancel(context.Background()); err != nil {
			t.Error(err)
		}
		if s := status(t, l).Tiers; s[0].Used != 1 || s[1].Used != 0 {
			t.Errorf("used: %d of the hour and %d open, want 1 and 0", s[0].Used, s[1].Used)
		}
	})
}

// TestAnchoredOpenerCanceled checks that an anchored window opens with the first request that is
// sent, not with a canceled one.
func TestAnchoredOpenerCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, start := limiter(t, throttle.Policy{Tiers: []throttle.Tier{per(sec, 2, throttle.AnchoredWindow)}}, nil), time.Now()
		opener := acquire(t, l, nil)
		time.Sleep(10 * ms)
		opener.Cancel(context.Background())
		time.Sleep(10 * ms)
		acquire(t, l, nil).Arrived()
		acquire(t, l, nil).Arrived()
		if err := l.Wait(context.Background()); err != nil || time.Since(start) != 1020*ms {
			t.Errorf("the next window opens after %v, %v; want 1.02s", time.Since(start), err)
		}
	})
}

// TestPermitTwice checks that only the first call of each method of a Permit has an effect.
func TestPermitTwice(t *testing.T) {
	ctx := context.Background()
	arrived, release := (*throttle.Permit).Arrived, (*throttle.Permit).Release
	cancel := func(p *throttle.Permit) { p.Cancel(ctx) }
	type calls = []func(*throttle.Permit)
	for _, test := range []struct {
		name       string
		calls      calls
		used, open int64 // what is still charged for two permits, one of which gets the calls
	}{
		{"nothing", nil, 2, 2},
		{"arrived", calls{arrived, arrived, arrived}, 2, 2},
		{"released", calls{release, release, arrived, release}, 2, 1},
		{"canceled", calls{cancel, cancel, arrived, release}, 1, 1},
		{"canceled after it arrived", calls{arrived, cancel, cancel}, 2, 2},
		{"canceled after it was released", calls{release, cancel, release}, 2, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(9), {Limit: 9, Algorithm: throttle.Concurrency}}}, nil)
			acquire(t, l, nil)
			p := acquire(t, l, nil)
			for _, f := range test.calls {
				f(p)
			}
			if s := status(t, l).Tiers; s[0].Used != test.used || s[1].Used != test.open {
				t.Errorf("%s: %d are used and %d open, want %d and %d", test.name, s[0].Used, s[1].Used, test.used, test.open)
			}
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() { release(p); cancel(p) })
			}
			wg.Wait()
			if open := status(t, l).Tiers[1].Used; open != 1 {
				t.Errorf("%s, then released and canceled ten times: %d are open, want 1", test.name, open)
			}
		})
	}
	var none *throttle.Permit
	none.Arrived()
	none.Release()
	if err := none.Cancel(ctx); err != nil {
		t.Errorf("Cancel of a nil permit: %v", err)
	}
}

// TestConcurrencyNeedsPermit checks that a policy with Concurrency refuses calls that return no
// Permit.
func TestConcurrencyNeedsPermit(t *testing.T) {
	l := limiter(t, exact(throttle.PerSecond(5), throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}), nil)
	for name, err := range map[string]error{
		"Wait":     l.Wait(context.Background()),
		"WaitN(1)": l.WaitN(context.Background(), 1),
		"WaitN(2)": l.WaitN(context.Background(), 2),
	} {
		if !errors.Is(err, throttle.ErrNeedsPermit) {
			t.Errorf("%s: %v, want ErrNeedsPermit", name, err)
		}
	}
	if l.Allow() || l.AllowN(1) {
		t.Error("Allow or AllowN is true on a policy with Concurrency")
	}
	if used := status(t, l).Tiers[0].Used; used != 0 {
		t.Errorf("%d are charged, want 0", used)
	}
}

// TestReleaseWakes checks that waiting callers get a place when it becomes free, in order, also
// through another Limiter of the same quota.
func TestReleaseWakes(t *testing.T) {
	policy := exact(throttle.Tier{Limit: 2, Algorithm: throttle.Concurrency})
	for name, s := range map[string]throttle.Store{"one limiter": nil, "two on one store": local.New()} {
		synctest.Test(t, func(t *testing.T) {
			l, start := limiter(t, policy, s), time.Now()
			other := l
			if s != nil {
				other = limiter(t, policy, s)
			}
			first, second := acquire(t, l, nil), acquire(t, other, nil)
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() {
					time.Sleep(time.Duration(i+1) * ms)
					// No caller is refused, since a forecast takes places as free.
					ctx, cancel := context.WithTimeout(context.Background(), hour)
					defer cancel()
					p, err := other.Acquire(ctx, nil)
					want := time.Duration(i/2)*sec + sec
					if i%2 == 1 {
						want += 500 * ms
					}
					if err != nil || time.Since(start) != want {
						t.Errorf("%s: caller %d: %v after %v, want %v", name, i, err, time.Since(start), want)
					}
					time.Sleep(sec)
					p.Release()
				})
			}
			time.Sleep(sec)
			first.Release()
			time.Sleep(500 * ms)
			second.Release()
			wg.Wait()
		})
	}
}

// TestArrivedWakes checks that an early response makes room early, also for a caller of another
// Limiter and for a caller with a deadline.
func TestArrivedWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, s := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1)}, Guard: 10 * sec}, local.New()
		l, other, start := limiter(t, policy, s), limiter(t, policy, s), time.Now()
		p := acquire(t, l, nil)
		var wg sync.WaitGroup
		for i, ask := range []*throttle.Limiter{l, other} {
			wg.Go(func() {
				// Without the response the wait would be 11 s.
				ctx, cancel := context.WithTimeout(context.Background(), 1300*ms)
				defer cancel()
				err := ask.Wait(ctx)
				if err != nil && err != context.DeadlineExceeded {
					t.Errorf("caller %d: %v", i, err)
				}
				if want := map[bool]time.Duration{true: 1200 * ms, false: 1300 * ms}[err == nil]; time.Since(start) != want {
					t.Errorf("caller %d: %v after %v, want %v", i, err, time.Since(start), want)
				}
			})
		}
		time.Sleep(200 * ms)
		p.Arrived()
		wg.Wait()
		if used := status(t, l).Tiers[0].Used; used != 1 {
			t.Errorf("%d were admitted, want 1", used)
		}
	})
}

// TestOneQuotaTwoLimiters checks that Limiters with one name on one store share the quota and its
// pauses, and that each keeps its own queue in order.
func TestOneQuotaTwoLimiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, s := exact(throttle.PerSecond(5)), local.New()
		limiters := []*throttle.Limiter{limiter(t, policy, s), limiter(t, policy, s)}
		start := time.Now()
		provider := counter(t, policy.Tiers...)
		var mu sync.Mutex // guards provider
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				if err := limiters[i%2].Wait(context.Background()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if now := time.Now(); !provider.Arrive(now.UnixMicro(), nil) {
					t.Errorf("the provider refused after %v", now.Sub(start))
				}
			})
		}
		time.Sleep(2500 * ms)
		if err := limiters[0].Pause(context.Background(), 500*ms); err != nil {
			t.Error(err)
		}
		if paused := status(t, limiters[1]).Paused; paused != 500*ms {
			t.Errorf("the other Limiter is paused for %v, want 500ms", paused)
		}
		wg.Wait()
		if took := time.Since(start); took != 7*sec {
			t.Errorf("40 requests took %v, want 7s", took)
		}
		other := limiter(t, throttle.Policy{Name: "other", Tiers: policy.Tiers}, s)
		if !other.AllowN(5) {
			t.Error("two names on the store share a quota")
		}
	})
}

// TestBanned checks that a closed quota refuses all callers at once with the time at which it
// opens, and does not charge them.
func TestBanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, s := exact(throttle.PerSecond(1)), local.New()
		l, start := limiter(t, policy, s), time.Now()
		plan, err := algorithms.NewPlan(policy.Tiers, 0)
		if err != nil {
			t.Fatal(err)
		}
		quota, err := s.Open(policy.Name, plan, nil)
		if err != nil {
			t.Fatal(err)
		}
		check := func(name string, at time.Duration) {
			t.Helper()
			err := l.Wait(context.Background())
			var w *throttle.WaitError
			if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &w) || time.Since(start) != at {
				t.Errorf("%s: %v after %v, want ErrBanned after %v", name, err, time.Since(start), at)
			} else if end := start.Add(hour + 500*ms); !w.Until.Equal(end) || w.Wait != time.Until(end) {
				t.Errorf("%s: until %v, for %v; want until %v", name, w.Until, w.Wait, end)
			}
		}
		l.Allow()
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() { check(fmt.Sprintf("waiter %d", i), 500*ms) })
		}
		time.Sleep(500 * ms)
		if _, err := quota.Pause(context.Background(), store.Pause{For: hour, Close: true}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		check("a new caller", 500*ms)
		if s := status(t, l); l.Allow() || s.Closed != hour || s.Paused != 0 {
			t.Errorf("the status is %+v, want Closed for an hour and Allow false", s)
		}
		time.Sleep(hour)
		if err := l.Wait(context.Background()); err != nil {
			t.Errorf("after the ban: %v", err)
		}
	})
}

// TestStatus compares every field of Status with values computed by hand.
func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests, tokens := throttle.PerSecond(2), throttle.Tier{Limit: 100, Window: 100 * sec, Algorithm: throttle.TokenBucket, Burst: 50, Unit: "tokens"}
		open := throttle.Tier{Limit: 3, Algorithm: throttle.Concurrency}
		l := limiter(t, throttle.Policy{Name: "status", Tiers: []throttle.Tier{requests, tokens, open}}, nil)
		steps := []struct {
			name string
			do   func()
			want throttle.Status
		}{
			{"untouched", func() {}, throttle.Status{Tiers: []throttle.TierStatus{
				{Tier: requests, Limit: 2, Remaining: 2},
				{Tier: tokens, Limit: 50, Remaining: 50},
				{Tier: open, Limit: 3, Remaining: 3},
			}}},
			{"one in flight", func() { acquire(t, l, throttle.Cost{"tokens": 30}) }, throttle.Status{Tiers: []throttle.TierStatus{
				{Tier: requests, Limit: 2, Used: 1, InFlight: 1, Remaining: 1, ResetAfter: 1050 * ms},
				{Tier: tokens, Limit: 50, Used: 30, InFlight: 30, Remaining: 20, ResetAfter: 30050 * ms},
				{Tier: open, Limit: 3, Used: 1, Remaining: 2, ResetAfter: store.Forever},
			}}},
			{"a second has arrived", func() { time.Sleep(10 * ms); acquire(t, l, throttle.Cost{"tokens": 20}).Arrived() }, throttle.Status{Tiers: []throttle.TierStatus{
				{Tier: requests, Limited: true, Limit: 2, Used: 2, InFlight: 1, RetryAfter: sec, ResetAfter: 1040 * ms},
				{Tier: tokens, Limited: true, Limit: 50, Used: 50, InFlight: 30, RetryAfter: sec, ResetAfter: 50 * sec},
				{Tier: open, Limit: 3, Used: 2, Remaining: 1, ResetAfter: store.Forever},
			}}},
			{"both have landed, one waits", func() { time.Sleep(490 * ms); go l.Acquire(t.Context(), nil); synctest.Wait() }, throttle.Status{Waiting: 1, Tiers: []throttle.TierStatus{
				{Tier: requests, Limited: true, Limit: 2, Used: 2, RetryAfter: 510 * ms, ResetAfter: 550 * ms},
				{Tier: tokens, Limited: true, Limit: 50, Used: 50, RetryAfter: 510 * ms, ResetAfter: 49510 * ms},
				{Tier: open, Limit: 3, Used: 2, Remaining: 1, ResetAfter: store.Forever},
			}}},
			{"paused", func() { time.Sleep(500 * ms); l.Pause(t.Context(), 2*sec); time.Sleep(sec) }, throttle.Status{Waiting: 1, Paused: sec, Tiers: []throttle.TierStatus{
				{Tier: requests, Limit: 2, Remaining: 2},
				{Tier: tokens, Limit: 50, Used: 49, Remaining: 1, ResetAfter: 48010 * ms},
				{Tier: open, Limit: 3, Used: 2, Remaining: 1, ResetAfter: store.Forever},
			}}},
			{"all places taken", func() { time.Sleep(sec) }, throttle.Status{Tiers: []throttle.TierStatus{
				{Tier: requests, Limit: 2, Used: 1, InFlight: 1, Remaining: 1, ResetAfter: 1050 * ms},
				{Tier: tokens, Limit: 50, Used: 48, Remaining: 2, ResetAfter: 47010 * ms},
				{Tier: open, Limited: true, Limit: 3, Used: 3, RetryAfter: store.Forever, ResetAfter: store.Forever},
			}}},
		}
		for i, s := range steps {
			s.do()
			synctest.Wait()
			for tier, most := range []float64{2 / 1.05, 1, 0} {
				s.want.Tiers[tier].Policy, s.want.Tiers[tier].MaxRate = "status", most
			}
			s.want.Policy, s.want.Guard = "status", 50*ms
			if got := status(t, l); !reflect.DeepEqual(got, s.want) {
				t.Errorf("step %d (%s): the status is\n%+v, want\n%+v", i, s.name, got, s.want)
			}
		}
	})
}

// TestLongSleep checks that quota that was unused for hours does not add up: of many callers at
// once only a burst is admitted.
func TestLongSleep(t *testing.T) {
	for _, a := range append(counters, throttle.SlidingWindow) {
		for _, guard := range []time.Duration{0, throttle.NoGuard} {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, throttle.Policy{Tiers: []throttle.Tier{per(sec, 5, a), per(hour, 100, a)}, Guard: guard}, nil)
				for i, idle := range []time.Duration{0, 7 * hour, 10 * sec, 30 * 24 * hour} {
					time.Sleep(idle)
					ctx, cancel := context.WithCancel(context.Background())
					var at, inAll atomic.Int64
					start := time.Now()
					var wg sync.WaitGroup
					for range 200 {
						wg.Go(func() {
							if l.Wait(ctx) == nil {
								inAll.Add(1)
								if time.Since(start) == 0 {
									at.Add(1)
								}
							}
						})
					}
					time.Sleep(100 * ms)
					cancel()
					wg.Wait()
					if at.Load() != 5 || inAll.Load() > 6 {
						t.Errorf("%v, burst %d: %d at once and %d in 100ms, want 5", a, i, at.Load(), inAll.Load())
					}
				}
			})
		}
	}
}

// A hooked store calls a function before and after each TryAcquire.
type hooked struct {
	local.Store
	before, after func(call int64)
	calls         atomic.Int64
}

type hookedQuota struct {
	store.Quota
	s *hooked
}

func (s *hooked) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return hookedQuota{q, s}, err
}

func (q hookedQuota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	call := q.s.calls.Add(1)
	if q.s.before != nil {
		q.s.before(call)
	}
	b, err := q.Quota.TryAcquire(ctx, r)
	if q.s.after != nil {
		q.s.after(call)
	}
	return b, err
}

// The quotas of a plain store have no forecasts.
type plain struct{ local.Store }

func (s *plain) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return plainQuota{q}, err
}

type plainQuota struct{ store.Quota }

func (plainQuota) Forecast() store.Forecast                    { return nil }
func (plainQuota) Soonest([]int64, int64) (time.Duration, int) { return 0, -1 }

// TestWithoutForecast checks that order, deadlines and pauses hold without forecasts, although some
// refusals then come only when the time is over.
func TestWithoutForecast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := exact(throttle.PerSecond(1))
		policy.MaxWait = 2500 * ms
		l, start := limiter(t, policy, new(plain)), time.Now()
		l.Allow()
		var wg sync.WaitGroup
		for i, c := range []struct {
			within, end time.Duration
			err         error
		}{
			{hour, sec, nil},
			{500 * ms, 500 * ms, context.DeadlineExceeded},
			{hour, 2 * sec, nil},
			{2300 * ms, 2 * sec, throttle.ErrDeadline}, // refused when it asks at the head, in the pause
			{hour, 2 * sec, throttle.ErrDeadline},      // the same, because of MaxWait
		} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), c.within)
				defer cancel()
				if err := l.Wait(ctx); !errors.Is(err, c.err) || time.Since(start) != c.end {
					t.Errorf("caller %d: %v after %v, want %v after %v", i, err, time.Since(start), c.err, c.end)
				}
			})
			synctest.Wait()
		}
		time.Sleep(2 * sec)
		synctest.Wait()
		l.Pause(context.Background(), 1100*ms)
		wg.Wait()
	})
}

// TestWhileTheHeadAsks lets an event happen while the first caller asks the quota, before or after
// it is charged. Forecasts must count that caller exactly once.
func TestWhileTheHeadAsks(t *testing.T) {
	type callFunc func(name string, within, end time.Duration, err error)
	for _, test := range []struct {
		name          string
		nudge         bool // the first caller also asks at 1.5 s and is not admitted
		before, after func(*throttle.Limiter, callFunc)
		head          step
		next          step
	}{
		{
			name:  "a caller arrives after the head was charged",
			after: func(_ *throttle.Limiter, call callFunc) { call("newcomer", 4500*ms, 6*sec, nil) },
			head:  step{within: hour, end: 2 * sec},
			next:  step{within: 4500 * ms, end: 4 * sec},
		},
		{
			name:  "a pause comes after the head was charged",
			after: func(l *throttle.Limiter, _ callFunc) { l.Pause(context.Background(), sec) },
			head:  step{within: hour, end: 2 * sec},
			next:  step{within: 4500 * ms, end: 4 * sec},
		},
		{
			name:   "a pause comes before the head is charged",
			before: func(l *throttle.Limiter, _ callFunc) { l.Pause(context.Background(), sec) },
			head:   step{within: 2500 * ms, end: 2 * sec, err: throttle.ErrDeadline},
			next:   step{within: 4500 * ms, end: 3 * sec},
		},
		{
			name:  "two callers arrive while the head asks and is not admitted",
			nudge: true,
			after: func(_ *throttle.Limiter, call callFunc) { call("one", hour, 6*sec, nil) },
			head:  step{within: hour, end: 2 * sec},
			next:  step{within: hour, end: 4 * sec},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := new(hooked)
				l, start := limiter(t, exact(per(2*sec, 1, throttle.SlidingLog)), s), time.Now()
				var wg sync.WaitGroup
				call := func(name string, within, end time.Duration, want error) {
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), within)
						defer cancel()
						if err := l.Wait(ctx); !errors.Is(err, want) || time.Since(start) != end {
							t.Errorf("%s: %v after %v, want %v after %v", name, err, time.Since(start), want, end)
						}
					})
					synctest.Wait()
				}
				hook := func(f func(*throttle.Limiter, callFunc)) func(int64) {
					return func(n int64) {
						if n == 4 && f != nil { // call 1 is by Allow; after 2 and 3 the head waits
							f(l, call)
						}
					}
				}
				s.before, s.after = hook(test.before), hook(test.after)
				l.Allow()
				call("head", test.head.within, test.head.end, test.head.err)
				call("next", test.next.within, test.next.end, test.next.err)
				if test.nudge {
					time.Sleep(1500*ms - time.Microsecond)
					l.Pause(context.Background(), ms)
					time.Sleep(time.Microsecond)
					call("two", 6*sec, 1500*ms, throttle.ErrDeadline) // would wait for 6.5 s
					call("three", 7*sec, 8*sec, nil)
				}
				wg.Wait()
			})
		})
	}
}

// TestDeadlineOverPermits checks that the forecast for a newcomer follows the fate of the requests
// in flight.
func TestDeadlineOverPermits(t *testing.T) {
	for _, test := range []struct {
		name   string
		cancel bool // the first request is canceled after 100 ms; else it lands at the end of the guard interval
		late   time.Duration
		within time.Duration
		end    time.Duration
		wait   time.Duration // of the refusal
	}{
		{"a request is canceled", true, 100 * ms, 2300 * ms, 2100 * ms, 0},
		{"a request is canceled, but the newcomer is late", true, 100 * ms, 1900 * ms, 100 * ms, 2 * sec},
		{"a request stays in flight", false, 5 * sec, 2500 * ms, 5 * sec, 3 * sec},
		{"a request stays in flight, but the newcomer has time", false, 5 * sec, 9 * sec, 13 * sec, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, start := limiter(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}, Guard: 10 * sec}, nil), time.Now()
				first := acquire(t, l, nil)
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), hour)
						defer cancel()
						p, err := l.Acquire(ctx, nil)
						if err != nil {
							t.Error(err)
						}
						p.Arrived()
					})
				}
				time.Sleep(test.late)
				if test.cancel {
					first.Cancel(context.Background())
				}
				ctx, cancel := context.WithTimeout(context.Background(), test.within)
				defer cancel()
				_, err := l.Acquire(ctx, nil)
				var w *throttle.WaitError
				if errors.As(err, &w); (w == nil) != (test.wait == 0) || w == nil && err != nil || w != nil && w.Wait != test.wait {
					t.Errorf("the newcomer gets %v, want a refusal for %v", err, test.wait)
				}
				if took := time.Since(start); took != test.end {
					t.Errorf("the newcomer returns after %v, want %v", took, test.end)
				}
				wg.Wait()
			})
		})
	}
}

// TestStalledHead lets one call to the store take an hour. Then the queue must go on at the pace of
// the tiers.
func TestStalledHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := exact(throttle.PerSecond(5))
		l, start := limiter(t, policy, &hooked{before: func(call int64) {
			if call == 7 {
				time.Sleep(hour)
			}
		}}), time.Now()
		provider := counter(t, policy.Tiers...)
		var mu sync.Mutex // guards provider
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				if err := l.Wait(context.Background()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if !provider.Arrive(time.Now().UnixMicro(), nil) {
					t.Errorf("the provider refused after %v", time.Since(start))
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if took := time.Since(start); took != hour+4*sec {
			t.Errorf("30 requests took %v, want %v", took, hour+4*sec)
		}
	})
}

// TestTwoWindows sends requests under 5/s + 2500/15m, at the same rate as under 5/s + 10000/h, for two
// of the longer windows to a strict provider. It must refuse none, and its quota must be used up.
func TestTwoWindows(t *testing.T) {
	for _, test := range []struct {
		name  string
		guard time.Duration
		late  bool // requests are counted at a random time between admission and the guard's end
		held  bool
		least int64
	}{
		{"Wait, at once", throttle.NoGuard, false, false, 5_000},
		{"Acquire, at once", 0, false, true, 5_000},
		{"Wait, late", 0, true, false, 4_982},
		{"Acquire, late", 0, true, true, 4_982},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tiers := []throttle.Tier{throttle.PerSecond(5), {Limit: 2_500, Window: hour / 4}}
				l, start := limiter(t, throttle.Policy{Tiers: tiers, Guard: test.guard}, nil), time.Now()
				provider := counter(t, tiers...)
				ctx, cancel := context.WithDeadline(context.Background(), start.Add(hour/2-1))
				defer cancel()
				var mu sync.Mutex // guards the two below
				var accepted int64
				r := rand.New(rand.NewPCG(1, 2))
				send := func() {
					if test.late {
						mu.Lock()
						d := time.Duration(r.Int64N(int64(50*ms/time.Microsecond))) * time.Microsecond
						mu.Unlock()
						time.Sleep(d)
					}
					mu.Lock()
					defer mu.Unlock()
					if !provider.Arrive(time.Now().UnixMicro(), nil) {
						t.Errorf("the provider refused after %v", time.Since(start))
					}
					accepted++
				}
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() {
						for !t.Failed() {
							if !test.held {
								if l.Wait(ctx) != nil {
									return
								}
								send()
								continue
							}
							p, err := l.Acquire(ctx, nil)
							if err != nil {
								return
							}
							send()
							p.Release()
						}
					})
				}
				wg.Wait()
				if most := 2 * tiers[1].Limit; accepted < test.least || accepted > most {
					t.Errorf("%d were sent, want %d to %d", accepted, test.least, most)
				}
			})
		})
	}
}

// A countingForecasts store counts the forecasts that are made.
type countingForecasts struct {
	local.Store
	made atomic.Int64
}

type countingForecastsQuota struct {
	store.Quota
	s *countingForecasts
}

func (s *countingForecasts) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return countingForecastsQuota{q, s}, err
}

func (q countingForecastsQuota) Forecast() store.Forecast {
	q.s.made.Add(1)
	return q.Quota.Forecast()
}

// TestManyDeadlines checks that a thousand callers with deadlines, half of which are late, share a
// few forecasts.
func TestManyDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(countingForecasts)
		l, start := limiter(t, exact(throttle.PerSecond(5)), s), time.Now()
		var wg sync.WaitGroup
		var admitted, refused atomic.Int64
		for range 1000 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 99500*ms)
				defer cancel()
				switch err := l.Wait(ctx); {
				case err == nil:
					admitted.Add(1)
				case errors.Is(err, throttle.ErrDeadline) && time.Since(start) == 0:
					refused.Add(1)
				default:
					t.Errorf("Wait: %v after %v, want nil, or ErrDeadline at once", err, time.Since(start))
				}
			})
		}
		wg.Wait()
		if admitted.Load() != 500 || refused.Load() != 500 {
			t.Errorf("%d were admitted and %d refused, want 500 each", admitted.Load(), refused.Load())
		}
		if made := s.made.Load(); made > 3 {
			t.Errorf("%d forecasts were made, want at most 3", made)
		}
	})
}
