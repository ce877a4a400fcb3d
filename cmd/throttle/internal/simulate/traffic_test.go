package simulate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/simulate"
	"github.com/apithrottle/throttle/internal/soak"
)

// A fate is what became of a request.
type fate struct {
	fate simulate.Fate
	wait time.Duration
}

// feed feeds a trace to a Limiter, in virtual time.
func feed(t *testing.T, p throttle.Policy, trace []simulate.Arrival, units []string) (all []fate) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = make([]fate, len(trace))
		var callers sync.WaitGroup
		for i, a := range trace {
			time.Sleep(time.Until(time.Unix(0, a.At)))
			synctest.Wait()
			callers.Go(func() {
				cost := throttle.Cost{}
				for u, unit := range units {
					cost[unit] = a.Cost[u]
				}
				permit, err := l.Acquire(context.Background(), cost)
				all[i] = fate{simulate.Admitted, time.Since(time.Unix(0, a.At))}
				switch {
				case errors.Is(err, throttle.ErrDeadline):
					all[i].fate = simulate.Late
				case errors.Is(err, throttle.ErrQueueFull):
					all[i].fate = simulate.Full
				case errors.Is(err, throttle.ErrExhausted):
					all[i].fate = simulate.Exhausted
				case errors.Is(err, throttle.ErrExceedsCapacity):
					all[i].fate = simulate.TooLarge
				case err != nil:
					t.Error(err)
				default:
					time.Sleep(a.Answers)
					permit.Passed()
					permit.Release()
				}
			})
			synctest.Wait()
		}
		callers.Wait()
	})
	return all
}

// replay feeds a trace to a Traffic.
func replay(t *testing.T, p throttle.Policy, trace []simulate.Arrival, units []string) (all []fate, traffic *simulate.Traffic) {
	number := make(map[int64]int, len(trace))
	for i, a := range trace {
		number[a.At] = i
	}
	all = make([]fate, len(trace))
	traffic, err := simulate.NewTraffic(p, nil, epoch, units, func(arrived int64, f simulate.Fate, wait time.Duration) { all[number[arrived]] = fate{f, wait} })
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range trace {
		if err := traffic.Arrive(a); err != nil {
			t.Fatal(err)
		}
	}
	return all, traffic
}

// randomTrace returns arrivals in bursts and lulls, with responses that take different times. No two
// events are at the same instant but by accident.
func randomTrace(r *rand.Rand, mean time.Duration, units int) (trace []simulate.Arrival) {
	at := epoch.UnixNano()
	for range 50 + r.IntN(400) {
		switch r.IntN(10) {
		case 0:
			at += 1 + r.Int64N(int64(20*mean))
		case 1, 2, 3:
			at += 1 + r.Int64N(int64(mean))
		default:
			at += 1 + r.Int64N(int64(mean)/10)
		}
		a := simulate.Arrival{At: at, Answers: time.Duration(r.Int64N(int64(2*time.Second)) / int64(1+r.IntN(30)))}
		for range units {
			a.Cost = append(a.Cost, r.Int64N(300))
		}
		trace = append(trace, a)
	}
	return trace
}

// TestTrafficLikeALimiter compares what becomes of each request of random traces with what a Limiter
// does, to the microsecond.
func TestTrafficLikeALimiter(t *testing.T) {
	for seed := range uint64(soak.Times(200)) {
		r := rand.New(rand.NewPCG(seed, 17))
		b := randomBatch(r)
		var units []string
		if b.Cost["tokens"] > 0 {
			units = []string{"tokens"}
		}
		trace := randomTrace(r, 2*time.Second, len(units))
		if r.IntN(4) == 0 {
			b.Policy.MaxQueue = 1 + r.IntN(20)
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			want := feed(t, b.Policy, trace, units)
			got, traffic := replay(t, b.Policy, trace, units)
			counts := map[simulate.Fate]int64{}
			for i := range want {
				counts[want[i].fate]++
				if off := (got[i].wait - want[i].wait).Abs(); got[i].fate != want[i].fate || off > time.Microsecond {
					t.Fatalf("%v: request %d of %d, %v: %v, with a Limiter %v", b.Policy, i, len(want), trace[i], got[i], want[i])
				}
			}
			for f, n := range traffic.Fates {
				if n != counts[simulate.Fate(f)] {
					t.Errorf("%v: %d requests have the fate %d, with a Limiter %d", b.Policy, n, f, counts[simulate.Fate(f)])
				}
			}
		})
	}
}

// TestTrafficMaxWait compares how many requests are refused because they would wait for too long. A
// Traffic knows how long each waits. A Limiter knows it at the end of the wait only, if a late response
// is the reason, and may have counted that request for those behind it until then.
func TestTrafficMaxWait(t *testing.T) {
	for seed := range uint64(soak.Times(200)) {
		r := rand.New(rand.NewPCG(seed, 18))
		b := randomBatch(r)
		delete(b.Cost, "tokens")
		trace := randomTrace(r, 2*time.Second, 0)
		b.Policy.MaxWait = time.Duration(1+r.IntN(20000)) * time.Millisecond
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			want := feed(t, b.Policy, trace, nil)
			got, traffic := replay(t, b.Policy, trace, nil)
			late := int64(0)
			for i := range want {
				if want[i].fate == simulate.Late {
					late++
				}
				if got[i].fate == simulate.Admitted && got[i].wait > b.Policy.MaxWait {
					t.Errorf("request %d waits for %v", i, got[i].wait)
				}
			}
			if off := traffic.Fates[simulate.Late] - late; off < -2-late/10 || off > 1 {
				t.Errorf("%v: %d requests are late, with a Limiter %d", b.Policy, traffic.Fates[simulate.Late], late)
			}
		})
	}
}
