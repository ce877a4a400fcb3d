package distributed_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/store"
)

func plan(t testing.TB, guard time.Duration, tiers ...throttle.Tier) *algorithms.Plan {
	t.Helper()
	p, err := algorithms.NewPlan(tiers, guard)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func quota(t testing.TB, s store.Store, key string, p *algorithms.Plan) store.Quota {
	t.Helper()
	q, err := s.Open(key, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// A Resume ends a pause, a ban and the wait for a probe in all processes. Callers that wait are
// admitted at once.
func TestFleetResume(t *testing.T) {
	for name, p := range map[string]store.Pause{
		"pause": {For: hour},
		"probe": {For: hour, Probe: true},
		"ban":   {For: hour, Close: true, Probe: true},
		"long":  {For: math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
				tier := per(sec, 50, throttle.SlidingLog)
				open := func() (*throttle.Limiter, store.Quota) {
					s := distributed.New(process(0, 5*ms), distributed.Options{})
					return limiter(t, throttle.Policy{Name: "resumed", Tiers: []throttle.Tier{tier}}, s),
						quota(t, s, "resumed", plan(t, 50*ms, tier))
				}
				here, q := open()
				there, _ := open()
				done, err := q.Pause(t.Context(), p)
				if err != nil || !done.Applied {
					t.Fatal(done, err)
				}
				status, err := here.Status(t.Context())
				if left := max(status.Paused, status.Closed); err != nil || left < p.For-sec && left < 100*365*24*hour {
					t.Fatal(status, err)
				}
				waits := make(chan error, 20)
				for i := range cap(waits) {
					go func() { waits <- []*throttle.Limiter{here, there}[i%2].Wait(t.Context()) }()
				}
				time.Sleep(10 * sec)
				if len(waits) > 0 && !p.Close {
					t.Fatalf("got %d waits ended during the pause, want none", len(waits))
				}
				if err := q.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for range cap(waits) {
					if err := <-waits; (err != nil) != p.Close {
						t.Error(err)
					}
				}
				for _, l := range []*throttle.Limiter{here, there} {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if took := time.Since(began); took > 200*ms {
					t.Errorf("got the callers admitted %v after Resume, want 200ms at most", took)
				}
			})
		})
	}
}

// A Resume that does not reach Redis returns an error, and ends the pause that the process keeps
// without Redis.
func TestResumeWithoutRedis(t *testing.T) {
	s := redistest.Start(t)
	q := quota(t, distributed.New(s.Client(), distributed.Options{Timeout: 200 * ms, Fallback: distributed.Fallback{Workers: 1}}),
		"resumed", plan(t, 0, per(hour, 50, throttle.SlidingLog)))
	s.Kill()
	if _, err := q.Pause(t.Context(), store.Pause{For: hour}); !errors.Is(err, store.ErrUnavailable) {
		t.Fatal(err)
	}
	request := store.Request{Cost: []int64{1}}
	if b, err := q.TryAcquire(t.Context(), request); err != nil || b.Verdict != store.Later || b.Wait < hour-sec {
		t.Fatalf("got %+v, %v, want Later with a wait of about an hour", b, err)
	}
	changes := make(chan store.Change, 1)
	defer q.Watch(func(c store.Change, _ time.Duration) { changes <- c })()
	if err := q.Resume(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if c := <-changes; c != store.Eased {
		t.Errorf("got change %v, want Eased", c)
	}
	if b, err := q.TryAcquire(t.Context(), request); err != nil || b.Verdict != store.Admitted {
		t.Errorf("got %+v, %v, want Admitted", b, err)
	}
}
