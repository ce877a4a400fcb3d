package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/bench/internal/cpu"
)

const (
	limit     = 1000 // units a second
	newcomers = 2000 // callers a second
	urgent    = 20   // one newcomer in 20 has the deadline urgentDeadline

	urgentDeadline = time.Millisecond
)

// A scenario has the flags of the command.
type scenario struct {
	waiting        int
	deadline, time time.Duration
	costs, classes bool
	canceled       int
}

// A load is the callers of one run.
type load struct {
	scenario
	limiter *throttle.Limiter
	all     context.Context // of all callers
	callers sync.WaitGroup
	ended   atomic.Int64
	refused atomic.Int64 // callers that are not urgent

	mu         sync.Mutex // guards all below
	random     *rand.Rand
	admitted   []time.Time // by unit, during the measurement
	started    int64
	refusals   []time.Duration // how long the calls of urgent callers took
	floor      []time.Duration // how long goroutines without work took to start
	units      int             // admitted from the start
	unexpected int             // urgent callers that were admitted or not refused at once
}

func (s scenario) run() (result, error) {
	if s.deadline == 0 {
		s.deadline = time.Duration(s.waiting) * time.Second / limit * 10 / 9
	}
	limiter, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(limit)}, Guard: throttle.NoGuard}, nil)
	if err != nil {
		return result{}, err
	}
	all, stop := context.WithCancel(context.Background())
	defer stop()
	l := &load{scenario: s, limiter: limiter, all: all, random: rand.New(rand.NewPCG(1, 2))}
	start := time.Now()
	for units := 0; units < s.waiting; {
		units += l.start(false)
	}
	if err := l.waitUntilQueued(); err != nil {
		return result{}, err
	}
	r := result{scenario: s, joined: time.Since(start)}
	l.measure(&r)
	start = time.Now()
	stop()
	l.callers.Wait()
	r.ended, r.units = time.Since(start), l.units
	return r, nil
}

// waitUntilQueued waits until every caller that was started is in the queue or has left it.
func (l *load) waitUntilQueued() error {
	for {
		status, err := l.limiter.Status(l.all)
		if err != nil || int64(status.Waiting)+l.ended.Load() >= l.started {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// measure starts newcomers for the length of the measurement, and stores the results in r.
func (l *load) measure(r *result) {
	time.Sleep(2 * time.Second) // the burst of the first second is over
	l.mu.Lock()
	l.admitted = nil
	l.mu.Unlock()
	refused, start, used := l.refused.Load(), time.Now(), cpu.Used()
	started := 0
	for time.Since(start) < l.time {
		for ; started < int(time.Since(start)*newcomers/time.Second); started++ {
			l.start(started%urgent == 0)
		}
		time.Sleep(time.Millisecond)
	}
	took := time.Since(start)
	r.refused = float64(l.refused.Load()-refused) / took.Seconds()
	r.cpu = float64(cpu.Used()-used) / float64(took)
	l.mu.Lock()
	defer l.mu.Unlock()
	r.rate = rate(l.admitted)
	r.refusals, r.floor, r.unexpected = l.refusals, l.floor, l.unexpected
}

// start starts a caller, and returns the cost of its request.
func (l *load) start(isUrgent bool) (units int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if units = 1; l.costs {
		units = []int{1, 2, 5}[l.random.IntN(3)]
	}
	ctx, end := l.all, l.deadline
	if l.classes {
		ctx = throttle.WithClass(ctx, throttle.Class(l.random.IntN(3)))
	}
	if cancels := l.random.IntN(100) < l.canceled && !isUrgent; cancels {
		end = time.Duration(l.random.Int64N(int64(l.deadline)))
	}
	l.callers.Add(1)
	l.started++
	if isUrgent {
		go l.measureFloor(time.Now())
		go l.callUrgently(ctx, units)
		return units
	}
	go l.call(ctx, units, end)
	return units
}

func (l *load) call(ctx context.Context, units int, end time.Duration) {
	defer l.callers.Done()
	defer l.ended.Add(1)
	if end < l.deadline { // it cancels
		canceled, cancel := context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(end, cancel).Stop()
		ctx = canceled
	}
	ctx, cancel := context.WithTimeout(ctx, l.deadline)
	defer cancel()
	permit, err := l.limiter.Acquire(ctx, throttle.Cost{"requests": int64(units)})
	if err != nil {
		if errors.Is(err, throttle.ErrDeadline) {
			l.refused.Add(1)
		}
		return
	}
	permit.Arrived()
	permit.Release()
	l.count(units)
}

func (l *load) count(units int) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.units += units
	for range units {
		l.admitted = append(l.admitted, now)
	}
}

// callUrgently calls with a deadline that the limiter must refuse at once.
func (l *load) callUrgently(ctx context.Context, units int) {
	defer l.callers.Done()
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, urgentDeadline)
	defer cancel()
	permit, err := l.limiter.Acquire(ctx, throttle.Cost{"requests": int64(units)})
	took := time.Since(start)
	if err == nil {
		permit.Arrived()
		permit.Release()
		l.count(units)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refusals = append(l.refusals, took)
	if !errors.Is(err, throttle.ErrDeadline) {
		l.unexpected++
	}
}

func (l *load) measureFloor(start time.Time) {
	took := time.Since(start)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.floor = append(l.floor, took)
}

// rate returns how many units were admitted per second. As many units as the limit may be
// admitted at once. So rate averages how long each sequence of that many units took.
func rate(admitted []time.Time) float64 {
	slices.SortFunc(admitted, time.Time.Compare)
	n := len(admitted) - limit
	if n <= 0 {
		return 0
	}
	var took time.Duration
	for i := range n {
		took += admitted[i+limit].Sub(admitted[i])
	}
	return limit * float64(n) / took.Seconds()
}

// A result is the result of one scenario.
type result struct {
	scenario
	joined, ended     time.Duration // how long all waiting callers took to join the queue, and to end
	rate, refused     float64       // units and callers, per second
	cpu               float64       // processors
	refusals, floor   []time.Duration
	unexpected, units int
}

func (r result) String() string {
	return fmt.Sprintf("waiting=%d (joined in %v) costs=%v classes=%v canceled=%d%% | admitted %.0f units/s | deadline 1 ms: refused after p50 %v p99 %v max %v (%d; floor p99 %v; %d not at once) | %.0f others refused/s | %.2f processors | all canceled: ended in %v",
		r.waiting, r.joined.Round(time.Millisecond), r.costs, r.classes, r.canceled, r.rate, percentile(r.refusals, 50), percentile(r.refusals, 99), percentile(r.refusals, 100),
		len(r.refusals), percentile(r.floor, 99), r.unexpected, r.refused, r.cpu, r.ended.Round(time.Millisecond))
}

func percentile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[(len(d)-1)*p/100].Round(time.Microsecond)
}
