package distributed_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// TestTimesOfNearerProcesses checks that processes farther from Redis use the times of a canceled crowd,
// alone and beside a near one.
func TestTimesOfNearerProcesses(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	for _, test := range []struct {
		name  string
		trips []time.Duration // one way of each process that follows the crowd
	}{
		{"alone", []time.Duration{5 * ms}},
		{"beside a near one", []time.Duration{5 * ms, ms / 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
				open := func(trip time.Duration) *throttle.Limiter {
					p := throttle.Policy{Name: "q", Tiers: []throttle.Tier{per(sec, 50, throttle.GCRA)}, Guard: 50 * ms}
					return limiter(t, p, distributed.New(process(trip, trip), distributed.Options{}))
				}
				acquire := func(ctx context.Context, l *throttle.Limiter) (admitted int) {
					var all sync.WaitGroup
					var mu sync.Mutex
					for range 20 {
						all.Go(func() {
							for ctx.Err() == nil {
								if err := l.Wait(ctx); err != nil {
									<-ctx.Done()
									return
								}
								mu.Lock()
								admitted++
								mu.Unlock()
							}
						})
					}
					all.Wait()
					return admitted
				}
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(5*sec, cancel)
				var crowd sync.WaitGroup
				for range 100 {
					l := open(ms / 2)
					crowd.Go(func() { acquire(ctx, l) })
				}
				crowd.Wait()
				time.Sleep(2 * sec)
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(10*sec, cancel)
				admitted := make([]int, len(test.trips))
				var all sync.WaitGroup
				for i, trip := range test.trips {
					l := open(trip)
					all.Go(func() { admitted[i] = acquire(ctx, l) })
				}
				all.Wait()
				sum := 0
				for i, n := range admitted {
					sum += n
					if want := 450 / len(admitted) * 2 / 3; n < want {
						t.Errorf("got %d of %v admitted in ten seconds, want %d at least of the process with trips of %v", n, admitted, want, 2*test.trips[i])
					}
				}
				if sum < 450 {
					t.Errorf("got %d admitted in ten seconds, want 450 of 500 at least", sum)
				}
			})
		})
	}
}

// TestLentTimesEndSooner checks that a request with the returned time of a nearer process lands while
// that time is charged, and that the time is charged alike when it is returned again.
func TestLentTimesEndSooner(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		const way = 50 * ms // to the provider
		open := func(trip time.Duration) store.Quota {
			return quota(t, distributed.New(process(trip, trip), distributed.Options{}), "q", plan(t, way, per(sec, 50, throttle.GCRA)))
		}
		reserve := func(q store.Quota, n int) []store.Decision {
			answered := make(chan []store.Decision)
			r := store.Request{Cost: []int64{1}, WaitSpec: &store.WaitSpec{MaxWait: store.Forever}}
			q.(store.Reserver).Reserve(nil, slices.Repeat([]store.Request{r}, n), func(got []store.Decision, _ error) { answered <- got })
			return <-answered
		}
		nearer, farther := open(ms/2), open(5*ms)
		began := time.Now()
		if b := admit(t, open(0), store.Request{Cost: []int64{50}}); b.At != 0 || !time.Now().Equal(began) {
			t.Fatalf("got %+v after %v, want it at the beginning", b, time.Since(began))
		}
		_, _ = nearer.Status(t.Context()) // connects
		charged := make(map[int64]time.Duration)
		crowd := reserve(nearer, 20)
		for _, d := range crowd {
			charged[d.At] = d.Reservation.Guard
		}
		check := func(who string, got []store.Decision) {
			t.Helper()
			if len(got) < 10 {
				t.Fatalf("got %d times for the %s process, want 10 at least", len(got), who)
			}
			for _, d := range got {
				a, at := d.Reservation, began.Add(time.Duration(d.At)*time.Microsecond)
				if lands := a.End.Add(way).Sub(at); charged[d.At] == 0 || a.Start.Before(at) || lands > charged[d.At] || a.Guard > charged[d.At] || a.End.Sub(a.Start) < ms {
					t.Fatalf("got %+v, which lands up to %v behind its time, for the %s process, want %v at most", a, lands, who, charged[d.At])
				}
			}
		}
		nearer.(store.Reserver).Cancel(crowd)
		time.Sleep(20 * ms)
		got := reserve(farther, 15)
		check("farther", got)
		farther.(store.Reserver).Cancel(got)
		time.Sleep(20 * ms)
		check("nearer", reserve(nearer, 15))
	})
}
