package distributed_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// An arrivals records when requests reach a provider, in virtual time.
type arrivals struct {
	mu sync.Mutex
	at []time.Time
}

// send records a request that takes up to most to arrive.
func (a *arrivals) send(most time.Duration) {
	at := time.Now().Add(rand.N(most))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = append(a.at, at)
}

// refused returns how many requests a provider refuses that admits limit requests in any window.
func (a *arrivals) refused(limit int, window time.Duration) (n int) {
	slices.SortFunc(a.at, time.Time.Compare)
	var in []time.Time
	for _, at := range a.at {
		for len(in) > 0 && at.Sub(in[0]) >= window {
			in = in[1:]
		}
		if len(in) < limit {
			in = append(in, at)
		} else {
			n++
		}
	}
	return n
}

// However far away Redis is, processes use what the guard and the round trip leave of a window, and
// the provider refuses none of their requests.
func TestFarRedis(t *testing.T) {
	for _, test := range []struct {
		trip time.Duration
		rate int
	}{{ms, 50}, {20 * ms, 50}, {80 * ms, 5}, {80 * ms, 150}, {200 * ms, 5}, {200 * ms, 50}, {400 * ms, 5}, {400 * ms, 50}} {
		t.Run(fmt.Sprintf("%v away, %d per second", test.trip, test.rate), func(t *testing.T) {
			soak.Sample(t, 5)
			t.Parallel()
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				const processes, guard, during = 4, 50 * ms, 10 * sec
				begin := 3*sec + 15*test.trip // the first round trips open connections
				var provider arrivals
				began := time.Now()
				ctx, stop := context.WithTimeout(t.Context(), begin+during)
				defer stop()
				var wg sync.WaitGroup
				for range processes {
					l := limiter(t, throttle.Policy{Name: "far", Tiers: []throttle.Tier{throttle.PerSecond(int64(test.rate))}},
						distributed.New(distant(t, s, func() time.Duration { return test.trip }), distributed.Options{}))
					for range 2 + 2*test.rate*int(test.trip/ms)/1000/processes {
						wg.Go(func() {
							for l.Wait(ctx) == nil {
								provider.send(guard)
							}
						})
					}
				}
				wg.Wait()
				if n := provider.refused(test.rate, sec); n > 0 {
					t.Errorf("the provider refused %d of %d, want none", n, len(provider.at))
				}
				n := 0
				for _, at := range provider.at {
					if at.Sub(began) >= begin {
						n++
					}
				}
				limit := float64(test.rate) * during.Seconds() / (1 + (guard + test.trip).Seconds())
				if float64(n+test.rate) < 0.97*limit { // a burst may fall outside the measured time
					t.Errorf("got %d admitted, want %.0f", n, limit)
				}
			})
		})
	}
}

// Callers do not wait forever for a Redis that is too far away to answer in time.
func TestRedisTooFar(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		redis := distributed.New(distant(t, s, func() time.Duration { return 1200 * ms }), distributed.Options{Timeout: 10 * sec})
		l := limiter(t, throttle.Policy{Name: "far", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, redis)
		nested := l.Within(limiter(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, redis))
		for _, err := range []error{l.Wait(context.Background()), l.Wait(context.Background()), nested.Wait(context.Background())} {
			if err == nil || !strings.Contains(err.Error(), "use a Redis that is nearer") {
				t.Errorf("got %v, want an error that suggests a nearer Redis", err)
			}
		}
	})
}

// A few late answers do not end a wait, not even if they are the first ones.
func TestLateAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		rdb := near(t, s)
		var hook lateAnswers
		rdb.AddHook(&hook)
		l := limiter(t, throttle.Policy{Name: "late", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, distributed.New(rdb, distributed.Options{Timeout: 10 * sec}))
		wait := func() error { return l.Wait(t.Context()) }
		try := func() error { _, err := l.TryAcquire(t.Context(), nil); return err }
		for i, call := range []func() error{wait, wait, try} {
			hook.late.Store(3)
			if err := call(); err != nil || hook.late.Load() > 0 {
				t.Errorf("call %d: got %v with %d late answers left, want no error and none left", i, err, max(0, hook.late.Load()))
			}
		}
	})
}

// A caller that does not wait for its turn does not wait for Redis once its context has ended, whatever
// it asks. What Redis has granted by then is given back.
func TestTryAcquireEndsWithItsContext(t *testing.T) {
	t.Parallel()
	const trip, patience = 300 * ms, 40 * ms
	for name, waits := range map[string]bool{"nobody waits": false, "a caller waits": true} {
		for _, nested := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, nested: %v", name, nested), func(t *testing.T) {
				t.Parallel()
				bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
					redis := distributed.New(distant(t, s, func() time.Duration { return trip }), distributed.Options{Timeout: 10 * sec})
					l := limiter(t, throttle.Policy{Name: "slow", Tiers: []throttle.Tier{throttle.PerHour(1)}}, redis)
					if nested {
						l = l.Within(limiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerHour(1)}}, redis))
					}
					if _, err := l.Status(t.Context()); err != nil { // opens a connection
						t.Fatal(err)
					}
					all, stop := context.WithCancel(t.Context())
					defer stop()
					if waits {
						_ = l.Wait(t.Context())
						go func() { _ = l.Wait(all) }()
						time.Sleep(sec)
					}
					began := time.Now()
					late, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					if _, err := l.TryAcquire(late, nil); err != context.DeadlineExceeded || time.Since(began) != patience {
						t.Errorf("got %v after %v, want context.DeadlineExceeded after %v", err, time.Since(began), patience)
					}
					began = time.Now()
					gone, cancel := context.WithCancel(t.Context())
					time.AfterFunc(patience, cancel)
					if _, err := l.TryAcquire(gone, nil); err != context.Canceled || time.Since(began) != patience {
						t.Errorf("got %v after %v, want context.Canceled after %v", err, time.Since(began), patience)
					}
					if waits {
						return
					}
					time.Sleep(10 * trip)
					if p, err := l.TryAcquire(t.Context(), nil); err != nil {
						t.Errorf("got %v, want the quota to be unused", err)
					} else {
						p.Release()
					}
				})
			})
		}
	}
}

// A Batch request that does not wait leaves headroom in the fleet's quota.
func TestTryAcquireLeavesHeadroom(t *testing.T) {
	runInMemory(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(10)}, Headroom: 40}, func(t *testing.T, l *throttle.Limiter, _ func(time.Time)) {
		for _, step := range []struct {
			class throttle.Class
			want  int
		}{{throttle.Batch, 6}, {throttle.Normal, 4}} {
			n, err := 0, error(nil)
			for ctx := throttle.WithClass(t.Context(), step.class); ; n++ {
				if _, err = l.TryAcquire(ctx, nil); err != nil {
					break
				}
			}
			var e *throttle.WaitError
			if n != step.want || !errors.As(err, &e) || e.Err != throttle.ErrDeadline || e.Tier != "10/h" || e.Wait < 59*time.Minute {
				t.Errorf("%v: %d were admitted, then %v; want %d, then a wait of an hour for tier 10/h", step.class, n, err, step.want)
			}
		}
	})
}

// A lateAnswers makes the client receive the next few answers late.
type lateAnswers struct{ late atomic.Int32 }

func (*lateAnswers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *lateAnswers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if h.late.Add(-1) >= 0 {
			time.Sleep(1200 * ms)
		}
		return err
	}
}

func (*lateAnswers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Reservations that a caller returns because it woke up too late are free for its next requests.
func TestLateCallerIsNextAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		plan, err := algorithms.NewPlan([]algorithms.Tier{throttle.PerSecond(5)}, 50*ms)
		if err != nil {
			t.Fatal(err)
		}
		quota, err := distributed.New(near(t, s), distributed.Options{}).Open("late", plan, nil)
		if err != nil {
			t.Fatal(err)
		}
		q := quota.(store.Reserver)
		answered := make(chan []store.Decision)
		done := func(got []store.Decision, _ error) { answered <- got }
		five := slices.Repeat([]store.Request{{Cost: []int64{1}, WaitSpec: &store.WaitSpec{MaxWait: store.Forever}}}, 5)
		q.Reserve(nil, five, done)
		for range 20 {
			got := <-answered
			for _, d := range got {
				if d.Verdict != store.Admitted || d.Wait > 0 {
					t.Fatalf("got %+v, want all to be admitted at once", got)
				}
			}
			time.Sleep(time.Until(got[0].Reservation.End) + ms)
			q.Cancel(got)
			q.Reserve(nil, five, done)
		}
		<-answered
		quota.Close()
	})
}
