package local_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

const ms = time.Millisecond

var background = context.Background()

func plan(t *testing.T, guard time.Duration, tiers ...algorithms.Tier) *algorithms.Plan {
	t.Helper()
	p, err := algorithms.NewPlan(tiers, guard)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func open(t *testing.T, s store.Store, key string, p *algorithms.Plan) store.Quota {
	t.Helper()
	q, err := s.Open(key, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

var one = []int64{1}

// tryAcquire requests n units.
func tryAcquire(t *testing.T, q store.Quota, n int64, held bool) store.Decision {
	t.Helper()
	b, err := q.TryAcquire(background, store.Request{Cost: []int64{n}, Held: held})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func used(t *testing.T, q store.Quota) int64 {
	t.Helper()
	s, err := q.Status(background)
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[0].Used
}

func TestOpen(t *testing.T) {
	five := plan(t, 0, algorithms.PerHour(5))
	var zero local.Store
	for name, s := range map[string]*local.Store{"New": local.New(), "the zero Store": &zero} {
		steps := []struct {
			key  string
			plan *algorithms.Plan
			used int64 // units used before this step charges one
			err  bool
		}{
			{"a", five, 0, false},
			{"a", five, 1, false},
			{"b", five, 0, false},
			{"a", plan(t, 0, algorithms.PerHour(5)), 2, false}, // equal
			{"a", plan(t, 0, algorithms.Tier{Limit: 5, Window: time.Hour, Unit: "requests"}), 3, false}, // equal once the defaults are written out
			{"a", plan(t, 0, algorithms.PerHour(6)), 0, true},
			{"a", plan(t, 0, algorithms.PerDay(5)), 0, true},
			{"a", plan(t, 0, algorithms.PerHour(5), algorithms.PerHour(5)), 0, true},
			{"a", plan(t, time.Second, algorithms.PerHour(5)), 0, true},
			{"b", five, 1, false},
			{"", five, 0, false},
			{"", five, 0, false}, // not shared
			{"", plan(t, 0, algorithms.PerHour(6)), 0, false},
			{"a", five, 4, false},
		}
		for i, step := range steps {
			q, err := s.Open(step.key, step.plan, nil)
			if step.err {
				if err == nil || q != nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", step.key)) {
					t.Errorf("%s, step %d: %v, %v; want an error that names the key", name, i, q, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s, step %d: %v", name, i, err)
			}
			if got := used(t, q); got != step.used {
				t.Errorf("%s, step %d: %d units are used, want %d", name, i, got, step.used)
			}
			tryAcquire(t, q, 1, false)
		}
	}
}

// TestClose tests that a key is forgotten when its last opener closes it while it equals a fresh
// one. A forgotten key accepts another plan.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := local.New()
		five, six := plan(t, 0, algorithms.PerSecond(5)), plan(t, 0, algorithms.PerSecond(6))
		checkKept := func(step string, want bool) {
			t.Helper()
			q, err := s.Open("a", six, nil)
			if err == nil {
				q.Close()
			}
			if got := err != nil; got != want {
				t.Errorf("%s: kept is %v, want %v", step, got, want)
			}
		}

		first, second := open(t, s, "a", five), open(t, s, "a", five)
		second.Close()
		checkKept("one still has it open", true)
		first.Close()
		checkKept("idle and closed", false)

		first = open(t, s, "a", five)
		tryAcquire(t, first, 1, false)
		first.Close()
		checkKept("closed while charged", true)
		first = open(t, s, "a", five)
		if n := used(t, first); n != 1 {
			t.Errorf("%d units are used after closing and opening, want 1", n)
		}
		time.Sleep(time.Second)
		first.Close()
		checkKept("closed after the window", false)

		for _, p := range []store.Pause{{For: time.Second}, {For: time.Second, Close: true}} {
			first = open(t, s, "a", five)
			first.Pause(background, p)
			first.Close()
			checkKept("closed while paused", true)
			first = open(t, s, "a", five)
			time.Sleep(time.Second)
			first.Close()
			checkKept("closed after the pause", false)
		}

		open(t, s, "", five).Close()
		open(t, s, "", six).Close()
	})
}

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, local.New(), "", plan(t, 50*ms, algorithms.PerSecond(5), algorithms.Tier{Limit: 2, Algorithm: algorithms.Concurrency}))
		idle := func(step string, want bool) {
			t.Helper()
			if got := q.(store.Lifecycle).Idle(); got != want {
				t.Errorf("%s: Idle is %v, want %v", step, got, want)
			}
		}
		idle("fresh", true)
		b := tryAcquire(t, q, 1, true)
		idle("in flight", false)
		time.Sleep(1049 * ms)
		idle("in the window", false)
		time.Sleep(ms)
		idle("still held", false)
		q.Release(b, one)
		idle("released", true)
		b = tryAcquire(t, q, 1, true)
		q.Return(background, b, one)
		idle("returned", true)
	})
}

// TestWatch tests that watchers receive all changes except the passing of time, until they stop.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := local.New(), plan(t, 50*ms, algorithms.PerSecond(5))
		q, other := open(t, s, "a", p), open(t, s, "a", p)
		var first, second []store.Change
		stopFirst := q.Watch(func(c store.Change, _ time.Duration) {
			first = append(first, c)
			used(t, q) // no lock is held, and so the watcher may call the quota
		})
		stopSecond := other.Watch(func(c store.Change, _ time.Duration) { second = append(second, c) })

		var b store.Decision
		steps := []struct {
			name     string
			do       func()
			received []store.Change
		}{
			{"acquire", func() { b = tryAcquire(t, q, 1, true) }, nil},
			{"arrived", func() { q.Arrived(b, one) }, []store.Change{store.Freed}},
			{"release", func() { other.Release(b, one) }, []store.Change{store.Freed}},
			{"return", func() { other.Return(background, tryAcquire(t, other, 1, true), one) }, []store.Change{store.Eased}},
			{"pause", func() { other.Pause(background, store.Pause{For: time.Second}) }, []store.Change{store.Slowed}},
			{"shorter pause", func() { other.Pause(background, store.Pause{For: ms}) }, nil},
			{"close", func() { q.Pause(background, store.Pause{For: 2 * time.Second, Close: true}) }, []store.Change{store.Shut}},
			{"time", func() { time.Sleep(time.Hour) }, nil},
		}
		for i, step := range steps {
			first, second = nil, nil
			step.do()
			if !slices.Equal(first, step.received) || !slices.Equal(second, step.received) {
				t.Errorf("step %d (%s): the watchers received %v and %v, want %v", i, step.name, first, second, step.received)
			}
		}

		first, second = nil, nil
		stopFirst()
		q.Pause(background, store.Pause{For: time.Second})
		stopSecond()
		q.Pause(background, store.Pause{For: time.Hour})
		if len(first) != 0 || len(second) != 1 {
			t.Errorf("after one and then the other watcher stopped, they received %v and %v", first, second)
		}
	})
}

// TestWatchRace adds and removes watchers while the quota changes.
func TestWatchRace(t *testing.T) {
	q := open(t, local.New(), "", plan(t, time.Hour, algorithms.PerHour(1000)))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				stop := q.Watch(func(store.Change, time.Duration) { q.Forecast() })
				q.Return(background, tryAcquire(t, q, 1, true), one)
				stop()
			}
		})
	}
	wg.Wait()
	if n := used(t, q); n != 0 {
		t.Errorf("%d units are used, want 0", n)
	}
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := local.New(), plan(t, 0, algorithms.PerSecond(5))
		q, other := open(t, s, "a", p), open(t, s, "a", p)
		once := func(d time.Duration, epoch int64) store.Pause { return store.Pause{For: d, Once: true, Epoch: epoch} }
		steps := []struct {
			name   string
			at     time.Duration
			pause  store.Pause
			want   store.Paused
			paused time.Duration // what Status reports after the call
			closed time.Duration
		}{
			{"the first", 0, store.Pause{For: time.Second}, store.Paused{Applied: true, For: time.Second, Epoch: 1}, time.Second, 0},
			{"shorter", 100 * ms, store.Pause{For: 899 * ms}, store.Paused{Epoch: 1}, 900 * ms, 0},
			{"as long", 100 * ms, store.Pause{For: 900 * ms}, store.Paused{Epoch: 1}, 900 * ms, 0},
			{"longer", 100 * ms, store.Pause{For: 901 * ms}, store.Paused{Applied: true, For: 901 * ms, Epoch: 2}, 901 * ms, 0},
			{"once, of an earlier epoch", 200 * ms, once(time.Hour, 1), store.Paused{Epoch: 2}, 801 * ms, 0},
			{"once, of this epoch, shorter", 200 * ms, once(ms, 2), store.Paused{Epoch: 2}, 801 * ms, 0},
			{"once, of this epoch", 200 * ms, once(2*time.Second, 2), store.Paused{Applied: true, For: 2 * time.Second, Epoch: 3}, 2 * time.Second, 0},
			{"once more, of the same epoch", 200 * ms, once(3*time.Second, 2), store.Paused{Epoch: 3}, 2 * time.Second, 0},
			{"none", 300 * ms, store.Pause{}, store.Paused{Epoch: 3}, 1900 * ms, 0},
			{"less than none", 300 * ms, store.Pause{For: -time.Hour}, store.Paused{Epoch: 3}, 1900 * ms, 0},
			{"a shorter ban", 300 * ms, store.Pause{For: time.Second, Close: true}, store.Paused{Epoch: 3}, 1900 * ms, 0},
			{"a ban", 300 * ms, store.Pause{For: 3 * time.Second, Close: true}, store.Paused{Applied: true, For: 3 * time.Second, Epoch: 4}, 0, 3 * time.Second},
			{"a pause shorter than the ban", 400 * ms, store.Pause{For: 2 * time.Second}, store.Paused{Epoch: 4}, 0, 2900 * ms},
			{"a pause longer than the ban", 400 * ms, store.Pause{For: 4 * time.Second}, store.Paused{Applied: true, For: 4 * time.Second, Epoch: 5}, 0, 2900 * ms}, // the ban remains until it ends
			{"after the ban, inside the pause", 3500 * ms, once(ms, 5), store.Paused{Epoch: 5}, 900 * ms, 0},
			{"long after", time.Hour, once(time.Nanosecond, 5), store.Paused{Applied: true, For: time.Microsecond, Epoch: 6}, time.Microsecond, 0},
		}
		start := time.Now()
		for i, step := range steps {
			time.Sleep(step.at - time.Since(start))
			got, err := q.Pause(background, step.pause)
			if err != nil || got != step.want {
				t.Errorf("step %d (%s): %+v, %v; want %+v", i, step.name, got, err, step.want)
			}
			s, err := other.Status(background)
			if err != nil || s.Paused != step.paused || s.Closed != step.closed {
				t.Errorf("step %d (%s): paused for %v, closed for %v, %v; want %v and %v", i, step.name, s.Paused, s.Closed, err, step.paused, step.closed)
			}
			b := tryAcquire(t, other, 1, true)
			verdict, wait := store.Later, step.paused
			if step.closed > 0 {
				verdict, wait = store.Closed, step.closed
			}
			if b.Verdict != verdict || b.Wait != wait || b.Tier != -1 || b.Epoch != got.Epoch {
				t.Errorf("step %d (%s): reserved %+v, want verdict %d, a wait of %v and epoch %d", i, step.name, b, verdict, wait, got.Epoch)
			}
		}
		time.Sleep(time.Microsecond)
		if b := tryAcquire(t, other, 5, true); b.Verdict != store.Admitted || b.Epoch != 6 {
			t.Errorf("after all pauses: %+v", b)
		}
	})
}

// TestTryAcquire tests that a refusal names the tier that decides and the wait, in microseconds,
// and charges nothing.
func TestTryAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, local.New(), "", plan(t, 0, algorithms.PerSecond(2), algorithms.PerMinute(3), algorithms.Tier{Limit: 4, Algorithm: algorithms.Concurrency}))
		steps := []struct {
			at   time.Duration
			n    int64
			tier int // -1 where admitted
			wait time.Duration
		}{
			{0, 1, -1, 0},
			{500 * ms, 1, -1, 0},
			{500 * ms, 1, 0, 500 * ms},
			{500 * ms, 2, 1, 59500 * ms},
			{time.Second, 1, -1, 0},
			{time.Minute, 2, 2, store.Forever},
		}
		start := time.Now()
		for i, step := range steps {
			time.Sleep(step.at - time.Since(start))
			b := tryAcquire(t, q, step.n, true)
			if admitted := b.Verdict == store.Admitted; admitted != (step.tier < 0) || b.Tier != step.tier || b.Wait != step.wait {
				t.Errorf("step %d: %+v, want tier %d and a wait of %v", i, b, step.tier, step.wait)
			}
		}
	})
}

// TestForecast tests that a forecast of a queue equals its admissions.
func TestForecast(t *testing.T) {
	all := []algorithms.Algorithm{algorithms.SlidingLog, algorithms.WeightedWindow, algorithms.FixedWindow, algorithms.AnchoredWindow,
		algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA, algorithms.SlidingWindow}
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			limit := 1 + r.Int64N(20)
			window := time.Duration(1000+r.Int64N(1_000_000)) * time.Microsecond
			tiers := []algorithms.Tier{{Limit: limit, Window: window, Algorithm: all[seed%8]}}
			if r.IntN(2) == 0 {
				tiers = append(tiers, algorithms.Tier{Limit: 2 * limit, Window: 3 * window, Algorithm: all[r.IntN(8)]})
			}
			guard := time.Duration(r.IntN(2)) * window / 4
			held := r.IntN(2) == 0 // responses come at once
			loose := guard > 0 && len(tiers) > 1 && slices.ContainsFunc(tiers, func(t algorithms.Tier) bool { return t.Algorithm == algorithms.AnchoredWindow })
			q := open(t, local.New(), "", plan(t, guard, tiers...))
			name := fmt.Sprintf("seed %d, %v, guard %v, held %v", seed, tiers, guard, held)

			request := func() store.Request { return store.Request{Cost: []int64{1 + r.Int64N(limit)}, Held: held} }
			send := func(req store.Request) (wait time.Duration) {
				b, err := q.TryAcquire(background, req)
				if err != nil {
					t.Fatal(err)
				}
				if b.Verdict == store.Admitted && held {
					q.Arrived(b, req.Cost)
				}
				return b.Wait
			}
			for range r.IntN(40) { // some history
				send(request())
				time.Sleep(time.Duration(r.Int64N(int64(window) / 10)).Truncate(time.Microsecond))
			}
			if r.IntN(4) == 0 {
				q.Pause(background, store.Pause{For: window / 2})
			}

			queue := make([]store.Request, 30)
			received := make([]time.Duration, len(queue))
			forecast, start := q.Forecast(), time.Now()
			ahead := make([]int64, 1)
			for i := range queue {
				queue[i] = request()
				earliest, _ := forecast.Total(ahead, queue[i].Cost, 0)
				received[i], _ = forecast.Next(queue[i])
				if earliest > received[i] && !loose {
					t.Errorf("%s: request %d waits %v by Next, and at least %v by Total", name, i, received[i], earliest)
				}
				for u, n := range queue[i].Cost {
					ahead[u] += n
				}
			}
			for i, req := range queue {
				for wait := send(req); wait > 0; wait = send(req) {
					time.Sleep(wait)
				}
				if took := time.Since(start); took != received[i] && !loose {
					t.Errorf("%s: request %d was admitted after %v, the forecast was %v", name, i, took, received[i])
					return
				}
			}
		})
	}
}

// TestForecastFreesPermits tests that a forecast assumes that all held requests are released and
// all requests in flight arrive at once. The quota itself does not change.
func TestForecastFreesPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, local.New(), "", plan(t, time.Minute, algorithms.PerSecond(2), algorithms.Tier{Limit: 2, Algorithm: algorithms.Concurrency}))
		tryAcquire(t, q, 2, true)
		f := q.Forecast()
		for i, want := range []time.Duration{time.Second, time.Second, 2 * time.Second} {
			if wait, _ := f.Next(store.Request{Cost: []int64{1}, Held: true}); wait != want {
				t.Errorf("request %d waits %v, want %v", i, wait, want)
			}
		}
		if b := tryAcquire(t, q, 1, true); b.Verdict != store.Later || b.Wait != store.Forever {
			t.Errorf("%+v of the quota itself, want Later and Forever", b)
		}
	})
}

// What a response has named comes too late for a quota that has other tiers, or later limits.
func TestOutdatedLimits(t *testing.T) {
	tier := algorithms.PerHour(100)
	tier.Follow.Most = 1000
	base, other := plan(t, 0, tier), plan(t, 0, algorithms.PerHour(70))
	named := func(at, limit int64) *algorithms.Plan {
		return base.Following(algorithms.Followed{At: at, Limits: []int64{limit}})
	}
	for _, key := range []string{"", "shared"} {
		q := open(t, local.New(), key, base)
		for _, c := range []struct {
			to   *algorithms.Plan
			want int64
		}{{named(5, 500), 500}, {named(4, 400), 500}, {named(6, 60), 60}, {other, 70}, {named(9, 900), 70}, {base, 100}, {named(7, 300), 300}} {
			if err := q.(store.Lifecycle).Change(background, c.to); err != nil {
				t.Fatal(err)
			}
			if _, p := q.(store.Lifecycle).Successor(); p.Tiers()[0].Limit != c.want {
				t.Errorf("key %q: the limit is %d, want %d", key, p.Tiers()[0].Limit, c.want)
			}
		}
	}
}
