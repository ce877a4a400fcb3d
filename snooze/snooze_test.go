package snooze_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/snooze"
	"github.com/apithrottle/throttle/throttletest"
)

// A queue is a job queue as River and asynq are: it brings snoozed jobs back once a tick, in the order of
// their times, and gives them to the first process that has an idle worker.
type queue struct {
	t        *testing.T
	provider *throttletest.Provider
	tick     time.Duration
	work     time.Duration // how long a job takes after it has been admitted

	mu       sync.Mutex // guards the fields below
	snoozed  []*job
	ready    []*job
	left     int
	done     []*job // in the order in which they were sent
	finished chan struct{}
}

// fetching is how long a worker takes to fetch a job. Without it, one would snooze hundreds of jobs before
// another, which has fetched an earlier job at the same instant, tries that.
const fetching = 5 * time.Millisecond

type job struct {
	id    int
	tries int
	back  time.Time
	sent  time.Time
}

// newQueue returns a queue of n jobs.
func newQueue(t *testing.T, tick time.Duration, n int, tiers ...throttle.Tier) *queue {
	q := &queue{t: t, provider: throttletest.New(tiers...), tick: tick, finished: make(chan struct{})}
	q.add(n)
	return q
}

func (q *queue) add(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for range n {
		q.left++
		q.ready = append(q.ready, &job{id: q.left + len(q.done)})
	}
}

// run runs processes of some workers until all jobs are done.
func (q *queue) run(workers int, acquire ...attempt) {
	var all sync.WaitGroup
	for _, try := range acquire {
		for range workers {
			all.Go(func() {
				for {
					select {
					case <-q.finished:
						return
					default:
						q.next(try)
					}
				}
			})
		}
	}
	all.Go(func() {
		for {
			select {
			case <-q.finished:
				return
			case <-time.After(q.tick):
				q.bringBack()
			}
		}
	})
	all.Wait()
}

func (q *queue) bringBack() {
	q.mu.Lock()
	defer q.mu.Unlock()
	slices.SortStableFunc(q.snoozed, func(a, b *job) int { return a.back.Compare(b.back) })
	n := 0
	for n < len(q.snoozed) && !q.snoozed[n].back.After(time.Now()) {
		n++
	}
	q.ready = append(q.ready, q.snoozed[:n]...)
	q.snoozed = slices.Delete(q.snoozed, 0, n)
}

// next works one job, or nothing for a moment.
func (q *queue) next(try attempt) {
	q.mu.Lock()
	if len(q.ready) == 0 {
		q.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		return
	}
	j := q.ready[0]
	q.ready = q.ready[1:]
	j.tries++
	q.mu.Unlock()
	time.Sleep(fetching)
	permit, again, err := try(q.t.Context(), j)
	if err == nil && permit != nil {
		q.send(j)
		permit.Release()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case err != nil:
		q.t.Errorf("job %d: %v", j.id, err)
	case permit == nil:
		j.back = time.Now().Add(again)
		q.snoozed = append(q.snoozed, j)
		return
	default:
		q.done = append(q.done, j)
	}
	if q.left--; q.left == 0 {
		close(q.finished)
	}
}

func (q *queue) send(j *job) {
	j.sent = time.Now()
	req, err := http.NewRequestWithContext(q.t.Context(), "POST", fmt.Sprintf("http://provider/%d", j.id), nil)
	if err != nil {
		q.t.Error(err)
		return
	}
	resp, err := q.provider.RoundTrip(req)
	if err != nil {
		q.t.Error(err)
		return
	}
	resp.Body.Close()
	time.Sleep(q.work)
}

// result is what a run of a queue is judged by.
type result struct {
	goodput   float64 // requests a second, after the burst at the beginning
	meanTries float64
	mostTries int
	displaced int // the most places by which the order of sending differs from the order of jobs
	refused   int64
	done      int
}

func (q *queue) result(burst int) result {
	r := result{refused: q.provider.Summary().Refused, done: len(q.done)}
	slices.SortStableFunc(q.done, func(a, b *job) int { return cmp.Or(a.sent.Compare(b.sent), a.id-b.id) })
	var displaced []int
	for i, j := range q.done {
		r.meanTries += float64(j.tries) / float64(len(q.done))
		r.mostTries = max(r.mostTries, j.tries)
		displaced = append(displaced, max(i+1-j.id, j.id-i-1))
	}
	slices.Sort(displaced)
	r.displaced = displaced[len(displaced)*99/100]
	r.goodput = float64(len(q.done)-burst) / q.done[len(q.done)-1].sent.Sub(q.done[0].sent).Seconds()
	return r
}

// sharedLimiters returns a limiter for each process, which share a quota.
func sharedLimiters(t *testing.T, n int, p throttle.Policy) (all []*throttle.Limiter) {
	s := new(local.Store)
	for range n {
		l, err := throttle.New(p, s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// sharedTake returns a Take for several processes.
func sharedTake() func(context.Context, time.Duration, time.Duration) (time.Duration, error) {
	var mu sync.Mutex
	var last time.Time
	return func(_ context.Context, wait, every time.Duration) (time.Duration, error) {
		mu.Lock()
		defer mu.Unlock()
		at := time.Now().Add(wait)
		if behind := last.Add(every); behind.After(at) {
			at = behind
		}
		last = at
		return time.Until(at), nil
	}
}

// An attempt is what a worker does with a job before it sends its request.
type attempt func(context.Context, *job) (*throttle.Permit, time.Duration, error)

func acquireOf(l *snooze.Line) attempt {
	return func(ctx context.Context, j *job) (*throttle.Permit, time.Duration, error) {
		return l.Acquire(ctx, nil, j.tries > 1)
	}
}

// naive snoozes jobs for the Wait of their refusal.
func naive(l *throttle.Limiter) attempt {
	return func(ctx context.Context, _ *job) (*throttle.Permit, time.Duration, error) {
		permit, err := l.TryAcquire(ctx, nil)
		var refused *throttle.WaitError
		if errors.As(err, &refused) {
			return nil, refused.Wait, nil
		}
		return permit, 0, err
	}
}

const workers = 40 // in each process

// line returns a Line with the room that its documentation names.
func line(l *throttle.Limiter, tick time.Duration, limit int64, processes int) *snooze.Line {
	return &snooze.Line{Limiter: l, Resolution: tick, Waiting: int(1.5*float64(limit)*tick.Seconds())/processes + 1}
}

func TestJobsUseTheLimitInOrder(t *testing.T) {
	paced := throttle.Tier{Limit: 10, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1}
	for _, c := range []struct {
		processes, jobs int
		tick            time.Duration
		tier            throttle.Tier
	}{
		{1, 300, time.Second, throttle.PerSecond(10)},
		{2, 300, time.Second, throttle.PerSecond(10)},
		{2, 1500, 5 * time.Second, throttle.PerSecond(10)},
		{4, 2000, time.Second, throttle.PerSecond(50)},
		{1, 300, time.Second, paced},
	} {
		synctest.Test(t, func(t *testing.T) {
			name := fmt.Sprintf("%d processes, %d jobs, %v, %v", c.processes, c.jobs, c.tick, c.tier)
			q := newQueue(t, c.tick, c.jobs, c.tier)
			q.work = 50 * time.Millisecond
			perSecond := float64(c.tier.Limit) / c.tier.Window.Seconds()
			take, tries := sharedTake(), []attempt(nil)
			p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{c.tier}, Guard: throttle.NoGuard}
			for _, l := range sharedLimiters(t, c.processes, p) {
				line := line(l, c.tick, max(1, int64(perSecond)), c.processes)
				line.Take = take
				tries = append(tries, acquireOf(line))
			}
			q.run(workers, tries...)
			r := q.result(int(c.tier.Capacity()))
			if r.done != c.jobs || r.refused != 0 || r.goodput < 0.95*perSecond {
				t.Errorf("%s: %d done, %d refused, %.2f/s, want all, none, 0.95 of the limit", name, r.done, r.refused, r.goodput)
			}
			if r.meanTries > 2.5 || r.mostTries > 8 {
				t.Errorf("%s: %.2f tries a job, %d at most, want 2.5 and 8", name, r.meanTries, r.mostTries)
			}
			if most := int(3*perSecond*c.tick.Seconds()) + 2*workers*c.processes; r.displaced > most {
				t.Errorf("%s: 99 %% of the jobs were sent up to %d places from their own, want %d", name, r.displaced, most)
			}
		})
	}
}

// TestRefusedWaitAloneMakesAHerd shows what a Line is for.
func TestRefusedWaitAloneMakesAHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, time.Second, 300, throttle.PerSecond(10))
		p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(10)}, Guard: throttle.NoGuard}
		q.run(workers, naive(sharedLimiters(t, 1, p)[0]))
		if r := q.result(10); r.goodput > 7 || r.meanTries < 10 {
			t.Errorf("%.2f/s and %.1f tries a job, want less than 7 and more than 10", r.goodput, r.meanTries)
		}
	})
}

// TestPausedLineGoesOn pauses the quota, and lets another program use a part of it, while jobs are in the line.
func TestPausedLineGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, time.Second, 300, throttle.PerSecond(10))
		p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(10)}, Guard: throttle.NoGuard}
		l := sharedLimiters(t, 1, p)[0]
		go func() {
			time.Sleep(10 * time.Second)
			if err := l.Pause(t.Context(), 20*time.Second); err != nil {
				t.Error(err)
			}
		}()
		q.run(workers, acquireOf(line(l, time.Second, 10, 1)))
		r := q.result(10)
		if length := q.done[299].sent.Sub(q.done[0].sent); r.done != 300 || r.refused != 0 || length > 55*time.Second {
			t.Errorf("%d done, %d refused, in %v, want all, none, 55 s", r.done, r.refused, length)
		}
		if r.meanTries > 4 {
			t.Errorf("%.2f tries a job, want 4", r.meanTries)
		}
	})
}

// TestOtherUseMakesNoHerd lets another program use half of the limit: the line is twice too fast.
func TestOtherUseMakesNoHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, time.Second, 600, throttle.PerSecond(10))
		p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(10)}, Guard: throttle.NoGuard}
		l := sharedLimiters(t, 1, p)[0]
		var other sync.WaitGroup
		other.Go(func() {
			for {
				select {
				case <-q.finished:
					return
				case <-time.After(200 * time.Millisecond):
					l.AllowN(1)
				}
			}
		})
		q.run(workers, acquireOf(line(l, time.Second, 10, 1)))
		other.Wait()
		if r := q.result(0); r.done != 600 || r.refused != 0 || r.meanTries > 6 {
			t.Errorf("%d done, %d refused, %.2f tries a job, want all, none, 6", r.done, r.refused, r.meanTries)
		}
	})
}

// TestNewJobsDoNotOvertake adds jobs while others are in the line.
func TestNewJobsDoNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, time.Second, 200, throttle.PerSecond(10))
		p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(10)}, Guard: throttle.NoGuard}
		go func() {
			for range 10 {
				time.Sleep(time.Second)
				q.add(5)
			}
		}()
		q.run(workers, acquireOf(line(sharedLimiters(t, 1, p)[0], time.Second, 10, 1)))
		if r := q.result(10); r.done != 250 || r.displaced > 2*workers || r.goodput < 9.5 {
			t.Errorf("%d done, up to %d places from their own, %.2f/s", r.done, r.displaced, r.goodput)
		}
	})
}

func TestBudgetIsSnoozedUntilItsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		day := throttle.Tier{Limit: 2, Period: throttle.Day, Budget: true, Algorithm: throttle.Calendar}
		l := sharedLimiters(t, 1, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(10), day}})[0]
		line := &snooze.Line{Limiter: l, Waiting: 2}
		time.Sleep(20 * time.Hour)
		for i := range 5 {
			permit, again, err := line.Acquire(t.Context(), nil, true)
			switch {
			case err != nil:
				t.Fatal(err)
			case i < 2 && permit == nil:
				t.Errorf("job %d is snoozed", i)
			case i >= 2 && (again < 4*time.Hour-2*time.Second || again > 4*time.Hour+3*24*time.Hour):
				t.Errorf("job %d comes back in %v, want when the day ends", i, again)
			}
		}
	})
}

func TestErrorsThatNoWaitHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := sharedLimiters(t, 1, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(10)}})[0]
		broken := errors.New("broken")
		line := &snooze.Line{Limiter: l, Take: func(context.Context, time.Duration, time.Duration) (time.Duration, error) { return 0, broken }}
		if _, _, err := line.Acquire(t.Context(), throttle.Cost{"requests": 11}, false); !errors.Is(err, throttle.ErrExceedsCapacity) {
			t.Errorf("a cost above the limit: %v", err)
		}
		if !l.AllowN(10) {
			t.Fatal("the limit is used")
		}
		if _, _, err := line.Acquire(t.Context(), nil, false); err != broken {
			t.Errorf("Take fails: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := line.Acquire(ended, nil, true); err != context.Canceled {
			t.Errorf("the context has ended: %v", err)
		}
		l.Close()
		if _, _, err := line.Acquire(t.Context(), nil, true); !errors.Is(err, throttle.ErrClosed) {
			t.Errorf("the limiter is closed: %v", err)
		}
	})
}

// TestWaitIsBounded fills the room for jobs that wait: one more is snoozed at once, and no job waits for longer
// than twice Resolution.
// A job that can never be admitted fails at once and takes no place, whatever stands in the line: those behind it
// come back as soon as without it.
func TestJobAboveTheCapacityTakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(10)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		queue := &snooze.Line{Limiter: l}
		for range 100 {
			if _, _, err := queue.Acquire(t.Context(), nil, false); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range []int64{11, 1_000_000_000_000, -1_000_000_000} {
			if p, again, err := queue.Acquire(t.Context(), throttle.Cost{algorithms.Requests: n}, false); err == nil {
				t.Errorf("a cost of %d: %v, %v, no error; want one", n, p, again)
			}
		}
		if _, again, err := queue.Acquire(t.Context(), nil, false); err != nil || again < 7*time.Second || again > 10*time.Second {
			t.Errorf("the next job comes back after %v, %v; want the end of a line of nine seconds", again, err)
		}
	})
}

// A job that does not fit in the rest of a budget holds up no others that do, and none after the budget is raised.
func TestJobsThatFitDoNotWaitForTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, err := throttle.ParsePolicy("spending", "$10/month")
		if err != nil {
			t.Fatal(err)
		}
		l, err := throttle.New(policy, nil)
		if err != nil {
			t.Fatal(err)
		}
		queue := &snooze.Line{Limiter: l}
		buy := func(dollars int64, admitted bool) {
			t.Helper()
			p, again, err := queue.Acquire(t.Context(), throttle.Cost{throttle.Nanodollars: dollars * 1_000_000_000}, false)
			if err != nil || (p != nil) != admitted || p == nil && again < 24*time.Hour {
				t.Errorf("$%d: permit %v, again after %v, %v; want admitted %v", dollars, p, again, err, admitted)
			}
			p.Release()
		}
		buy(8, true)
		for range 3 {
			buy(5, false)
		}
		buy(1, true)
		buy(5, false)
		policy.Tiers[0].Limit *= 2
		if err := l.SetPolicy(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		buy(5, true)
	})
}

// While a budget refuses a job until the end of the month, or has done so before it was raised, jobs that the rate
// alone refuses come back when the rate has room, also in a line that processes share.
func TestJobsOfTheRateDoNotWaitForTheBudget(t *testing.T) {
	for name, take := range map[string]func(context.Context, time.Duration, time.Duration) (time.Duration, error){"alone": nil, "shared": sharedTake()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy, err := throttle.ParsePolicy("spending", "1/m + $10/month")
				if err != nil {
					t.Fatal(err)
				}
				l := sharedLimiters(t, 1, policy)[0]
				line := &snooze.Line{Limiter: l, Take: take}
				buy := func(dollars int64) (bool, time.Duration) {
					t.Helper()
					p, again, err := line.Acquire(t.Context(), throttle.Cost{throttle.Nanodollars: dollars * 1_000_000_000}, false)
					if err != nil {
						t.Fatal(err)
					}
					p.Release()
					return p != nil, again
				}
				if ok, _ := buy(8); !ok {
					t.Fatal("$8 of $10 are refused")
				}
				for range 3 {
					if ok, again := buy(5); ok || again < 24*time.Hour {
						t.Errorf("$5 of the $2 left: admitted %v, again after %v; want the end of the month", ok, again)
					}
				}
				for i := range 3 {
					if ok, again := buy(1); ok || again > time.Duration(i+1)*time.Minute {
						t.Errorf("$1, which the rate refuses: admitted %v, again after %v; want %d minutes", ok, again, i+1)
					}
				}
				policy.Tiers[1].Limit *= 2
				if err := l.SetPolicy(t.Context(), policy); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				if ok, _ := buy(5); !ok {
					t.Errorf("$5 of the $12 left are refused")
				}
				if ok, again := buy(5); ok || again > time.Minute {
					t.Errorf("$5, which the rate refuses: admitted %v, again after %v; want a minute", ok, again)
				}
			})
		})
	}
}

// Jobs that have waited for a budget go before those that are new when it is there again, also in a line that
// processes share.
func TestNewJobsDoNotOvertakeThoseOfTheBudget(t *testing.T) {
	for name, take := range map[string]func(context.Context, time.Duration, time.Duration) (time.Duration, error){"alone": nil, "shared": sharedTake()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				day := throttle.Tier{Limit: 24, Period: throttle.Day, Budget: true, Algorithm: throttle.Calendar}
				l := sharedLimiters(t, 1, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(100), day}})[0]
				line := &snooze.Line{Limiter: l, Take: take}
				var last time.Time
				for range 24 + 2000 {
					if _, again, err := line.Acquire(t.Context(), nil, false); err != nil {
						t.Fatal(err)
					} else if again > 0 {
						last = time.Now().Add(again)
					}
				}
				time.Sleep(24*time.Hour + time.Second)
				if permit, again, err := line.Acquire(t.Context(), nil, false); permit != nil || err != nil || time.Now().Add(again).Before(last) {
					t.Errorf("a new job: permit %v, back in %v, %v; want after the job before, in %v", permit, again, err, time.Until(last))
				}
			})
		})
	}
}

func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := sharedLimiters(t, 1, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerMinute(1)}})[0]
		line := &snooze.Line{Limiter: l, Waiting: 1}
		for i := range 3 {
			start := time.Now()
			permit, again, err := line.Acquire(t.Context(), nil, false)
			if err != nil || (permit != nil) != (i == 0) || time.Since(start) > 2*time.Second {
				t.Errorf("job %d: %v, %v, %v after %v", i, permit, again, err, time.Since(start))
			}
			if want := time.Duration(i) * time.Minute; i > 0 && (again < want-2*time.Second || again > want+time.Second) {
				t.Errorf("job %d comes back in %v, want a little before %v", i, again, want)
			}
		}
	})
}
