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
	hurried   = 20   // one newcomer in so many has this deadline:
	tight     = time.Millisecond
)

// A scenario is one load.
type scenario struct {
	waiting        int
	deadline, time time.Duration
	costs, classes bool
	canceled       int
}

// A crowd are the callers of one run.
type crowd struct {
	scenario
	limiter *throttle.Limiter
	all     context.Context
	callers sync.WaitGroup
	ended   atomic.Int64
	refused atomic.Int64 // callers with time

	mu       sync.Mutex // guards all below
	random   *rand.Rand
	admitted []time.Time // by unit, while it is measured
	started  int64
	tight    []time.Duration // that a refusal took
	floor    []time.Duration // that doing nothing took
	units    int             // admitted, from the start
	strays   int             // with a deadline of 1 ms that were admitted, or let wait
}

func (s scenario) run() (result, error) {
	if s.deadline == 0 {
		s.deadline = time.Duration(s.waiting) * time.Second / limit * 10 / 9
	}
	l, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(limit)}, Guard: throttle.NoGuard}, nil)
	if err != nil {
		return result{}, err
	}
	all, stop := context.WithCancel(context.Background())
	defer stop()
	c := &crowd{scenario: s, limiter: l, all: all, random: rand.New(rand.NewPCG(1, 2))}
	began := time.Now()
	for units := 0; units < s.waiting; {
		units += c.start(false)
	}
	if err := c.settle(); err != nil {
		return result{}, err
	}
	r := result{scenario: s, filled: time.Since(began)}
	c.newcomers(&r)
	began = time.Now()
	stop()
	c.callers.Wait()
	r.ended, r.units = time.Since(began), c.units
	return r, nil
}

// settle waits until every caller of the start is in the queue or has left it.
func (c *crowd) settle() error {
	for {
		status, err := c.limiter.Status(c.all)
		if err != nil || int64(status.Waiting)+c.ended.Load() >= c.started {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// newcomers sends newcomers for a time and takes down what it did.
func (c *crowd) newcomers(r *result) {
	time.Sleep(2 * time.Second) // the first second's units have gone
	c.mu.Lock()
	c.admitted = nil
	c.mu.Unlock()
	refused, began, used := c.refused.Load(), time.Now(), cpu.Used()
	sent := 0
	for time.Since(began) < c.time {
		for ; sent < int(time.Since(began)*newcomers/time.Second); sent++ {
			c.start(sent%hurried == 0)
		}
		time.Sleep(time.Millisecond)
	}
	took := time.Since(began)
	r.refused = float64(c.refused.Load()-refused) / took.Seconds()
	r.cpu = float64(cpu.Used()-used) / float64(took)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.rate = rate(c.admitted)
	r.tight, r.floor, r.strays = c.tight, c.floor, c.strays
}

// start has a caller call, and returns what it costs.
func (c *crowd) start(hurried bool) (units int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if units = 1; c.costs {
		units = []int{1, 2, 5}[c.random.IntN(3)]
	}
	ctx, end := c.all, c.deadline
	if c.classes {
		ctx = throttle.WithClass(ctx, throttle.Class(c.random.IntN(3)))
	}
	if cancels := c.random.IntN(100) < c.canceled && !hurried; cancels {
		end = time.Duration(c.random.Int64N(int64(c.deadline)))
	}
	c.callers.Add(1)
	c.started++
	if hurried {
		began := time.Now()
		go c.idle(began)
		go c.hurry(ctx, units)
		return units
	}
	go c.call(ctx, units, end)
	return units
}

func (c *crowd) call(ctx context.Context, units int, end time.Duration) {
	defer c.callers.Done()
	defer c.ended.Add(1)
	if end < c.deadline { // it cancels
		quits, cancel := context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(end, cancel).Stop()
		ctx = quits
	}
	ctx, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	permit, err := c.limiter.Acquire(ctx, throttle.Cost{"requests": int64(units)})
	if err != nil {
		if errors.Is(err, throttle.ErrDeadline) {
			c.refused.Add(1)
		}
		return
	}
	permit.Arrived()
	permit.Release()
	c.count(units)
}

func (c *crowd) count(units int) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.units += units
	for range units {
		c.admitted = append(c.admitted, now)
	}
}

func (c *crowd) hurry(ctx context.Context, units int) {
	defer c.callers.Done()
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, tight)
	defer cancel()
	permit, err := c.limiter.Acquire(ctx, throttle.Cost{"requests": int64(units)})
	took := time.Since(began)
	if err == nil {
		permit.Arrived()
		permit.Release()
		c.count(units)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tight = append(c.tight, took)
	if !errors.Is(err, throttle.ErrDeadline) {
		c.strays++
	}
}

func (c *crowd) idle(began time.Time) {
	took := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.floor = append(c.floor, took)
}

// rate returns how many units were admitted a second, of which as many as the limit may go
// at once: how long so many took, on the average.
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

// A result is what one scenario came to.
type result struct {
	scenario
	filled, ended time.Duration
	rate, refused float64
	cpu           float64 // processors
	tight, floor  []time.Duration
	strays, units int
}

func (r result) String() string {
	return fmt.Sprintf("waiting=%d (joined in %v) costs=%v classes=%v canceled=%d%% | admitted %.0f units/s | refused by 1 ms: p50 %v p99 %v max %v (%d; floor p99 %v; %d not at once) | %.0f others refused/s | %.2f processors | all canceled: ended in %v",
		r.waiting, r.filled.Round(time.Millisecond), r.costs, r.classes, r.canceled, r.rate, percentile(r.tight, 50), percentile(r.tight, 99), percentile(r.tight, 100),
		len(r.tight), percentile(r.floor, 99), r.strays, r.refused, r.cpu, r.ended.Round(time.Millisecond))
}

func percentile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[(len(d)-1)*p/100].Round(time.Microsecond)
}
