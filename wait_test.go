package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

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

// TestWaitAllocs checks that a call without a shadow allocates nothing, with and without an Observer.
func TestWaitAllocs(t *testing.T) {
	for _, o := range []*throttle.Observer{nil, {}} {
		l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1_000_000)}, Observer: o}, nil)
		for name, call := range map[string]func(){
			"Wait": func() { _ = l.Wait(t.Context()) }, "WaitN": func() { _ = l.WaitN(t.Context(), 1) }, "Allow": func() { l.Allow() },
		} {
			want := 0.0
			if name == "WaitN" && o != nil {
				want = 1 // the observation
			}
			if n := testing.AllocsPerRun(100, call); n > want {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
	}
}

// TestRoundTripAllocs checks that a request that learns nothing allocates nothing.
func TestRoundTripAllocs(t *testing.T) {
	resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
	tr := &throttle.Transport{
		Limiter: mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1_000_000)}}, nil),
		Base:    roundTripper(func(*http.Request) (*http.Response, error) { return resp, nil }),
	}
	req := httptest.NewRequest("GET", trURL, nil)
	if n := testing.AllocsPerRun(100, func() { _, _ = tr.RoundTrip(req) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A crowd is a quota that is used up and the callers that wait for it.
type crowd struct {
	policy   throttle.Policy
	nested   bool // in two more quotas
	inFlight bool // the responses are to come
	waiters  int
}

// refusals returns the ways in which a call is refused at once, until the test ends.
func (c crowd) refusals(t testing.TB) map[string]func() error {
	c.policy.Name, c.policy.Guard = "quota", throttle.NoGuard
	if c.inFlight {
		c.policy.Guard = 10 * time.Minute
	}
	maxWait := time.Minute
	if c.waiters > 0 { // they wait for longer
		maxWait = 0
	}
	if !c.nested {
		c.policy.MaxWait = maxWait
	}
	full := mustNew(t, c.policy, nil)
	l := full
	if c.nested {
		inner := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(1_000_000)}, MaxWait: maxWait}, nil)
		l = inner.Within(mustNew(t, throttle.Policy{Name: "middle", Tiers: []throttle.Tier{throttle.PerSecond(1_000_000)}}, nil).Within(full))
	}
	for {
		p, err := l.TryAcquire(t.Context(), nil)
		if err != nil {
			break
		}
		if !c.inFlight {
			p.Arrived()
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range c.waiters {
		wg.Go(func() { _, _ = l.Acquire(ctx, nil) })
	}
	for waitingFor(t, full) < c.waiters {
		time.Sleep(time.Millisecond)
	}
	soon, stop := context.WithTimeout(ctx, 50*time.Second)
	t.Cleanup(func() {
		stop()
		cancel()
		wg.Wait()
	})
	tr := &throttle.Transport{Limiter: l, Base: trNewBase(nil), SendBy: func(*http.Request) time.Time { return time.Now().Add(20 * time.Minute) }}
	req := httptest.NewRequest("GET", trURL, nil)
	ways := map[string]func() error{
		"deadline":   func() error { _, err := l.Acquire(soon, nil); return err },
		"TryAcquire": func() error { _, err := l.TryAcquire(t.Context(), nil); return err },
		"SendBy":     func() error { _, err := tr.RoundTrip(req); return err },
	}
	if maxWait > 0 {
		ways["MaxWait"] = func() error { _, err := l.Acquire(ctx, nil); return err }
	}
	return ways
}

func waitingFor(t testing.TB, l *throttle.Limiter) int {
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Waiting
}

// TestRefusalAllocs checks that a refusal allocates at most 1 KB for each scope, under any policy, with and without
// other callers that wait.
func TestRefusalAllocs(t *testing.T) {
	soak.Slow(t, "it counts allocations of many policies")
	soak.NoRace(t, "it empties pools at random")
	for name, p := range full() {
		for _, c := range []crowd{
			{p, false, false, 0}, {p, false, true, 0}, {p, false, true, 1}, {p, false, false, 1000},
			{p, true, false, 0}, {p, true, true, 1}, {p, true, false, 1000},
		} {
			if c.waiters > 0 && slices.ContainsFunc(p.Tiers, func(t throttle.Tier) bool { return t.Budget }) {
				continue
			}
			for way, refuse := range c.refusals(t) {
				for range 20 { // until the forecast reaches the end of the queue
					if err := refuse(); !errors.Is(err, throttle.ErrDeadline) && !errors.Is(err, throttle.ErrExhausted) {
						t.Fatalf("%s, %+v, %s: %v", name, c, way, err)
					}
				}
				const runs = 20
				var each []uint64
				for range 9 { // a batch may renew the forecast
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					for range runs {
						_ = refuse()
					}
					runtime.ReadMemStats(&after)
					each = append(each, (after.TotalAlloc-before.TotalAlloc)/runs)
				}
				slices.Sort(each)
				most := uint64(1024)
				if c.nested {
					most *= 3
				}
				if median := each[len(each)/2]; median > most {
					t.Errorf("%s, nested %v, in flight %v, %d waiters, %s: %d bytes", name, c.nested, c.inFlight, c.waiters, way, median)
				}
			}
		}
	}
}

// BenchmarkRefusal reports the median time and the memory of a refusal.
func BenchmarkRefusal(b *testing.B) {
	for name, p := range full() {
		for _, nested := range []bool{false, true} {
			for _, waiters := range []int{0, 1, 1000, 1_000_000} {
				if waiters > 0 && name == "a budget" || waiters > 1000 && name != "a log" {
					continue
				}
				b.Run(fmt.Sprintf("%s/nested=%v/%d", name, nested, waiters), func(b *testing.B) {
					for way, refuse := range (crowd{p, nested, waiters == 0, waiters}).refusals(b) {
						b.Run(way, func(b *testing.B) {
							var each []time.Duration
							b.ReportAllocs()
							for b.Loop() {
								began := time.Now()
								if err := refuse(); err == nil {
									b.Fatal("a request was admitted")
								}
								each = append(each, time.Since(began))
							}
							slices.Sort(each)
							b.ReportMetric(float64(each[len(each)/2].Nanoseconds()), "median-ns")
						})
					}
				})
			}
		}
	}
}
