package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/bench/internal/cpu"
	"github.com/apithrottle/throttle/distributed"
)

// A backend is the server of a fleet: the model of this package, or a redis-server.
type backend interface {
	connect(i int) client    // connects process i, or an observer if there are not so many
	counted() (tally, error) // what the server has done
	close(all []client)
}

// A client is a connection of a process to the server.
type client interface {
	redis() *redis.Client
	kill()
	close()
}

// A fleet is one run of a scenario.
type fleet struct {
	scenario
	seed    uint64
	server  backend
	began   time.Time
	ended   atomic.Bool // callers start no new requests
	callers sync.WaitGroup
	members []*member
}

// A member is a process of the fleet with its callers.
type member struct {
	client
	index    int
	fleet    *fleet
	limiters []*throttle.Limiter // one for each key
	ctx      context.Context
	end      context.CancelFunc
	killed   atomic.Bool

	mu      sync.Mutex // guards all below
	waiting map[int]time.Time
	observations
}

// The observations of a process are those of all its callers.
type observations struct {
	Admitted []request
	Longest  time.Duration // wait
	Errors   int
	Err      string // the first of the errors
	// Refusals is how long urgent requests took to be refused, and Floors how long a goroutine without
	// work took to start beside each of them. NotAtOnce counts those that were not refused.
	Refusals, Floors []time.Duration
	NotAtOnce        int
	// Deadlines counts other requests that were refused for lack of time.
	Deadlines int
}

// A request was admitted. Its times are since the beginning of the run.
type request struct {
	At, Arrives, Answered time.Duration
	Key                   int
	Cost                  int64
}

// play runs a scenario in a bubble of its own, or on a redis-server.
func (s scenario) play(t *testing.T, seed uint64) (r result, err error) {
	used, began := cpu.Used(), time.Now()
	if s.real {
		r, err = s.playOnServer(t, seed)
	} else {
		synctest.Test(t, func(*testing.T) {
			// Virtual time begins at a full hour.
			time.Sleep(time.Duration(rand.New(rand.NewPCG(seed, 1)).Int64N(int64(time.Hour))))
			m := &model{newServer(s.service(), s.faults), s, seed}
			m.seen = s.seen
			go m.run()
			f := &fleet{scenario: s, seed: seed, server: m, began: time.Now()}
			r, err = f.run()
		})
	}
	if r.Real = time.Since(began); !s.real {
		r.CPU = cpu.Used() - used
	}
	return r, err
}

// run starts all processes, waits for the end of the run, and ends them.
func (f *fleet) run() (r result, err error) {
	for i := range f.processes {
		m := f.newMember(i)
		f.members = append(f.members, m)
		f.callers.Go(m.live)
	}
	first, err := f.server.counted()
	if err != nil {
		return r, err
	}
	warm, most, err := f.watch()
	if err != nil {
		return r, err
	}
	last, err := f.server.counted()
	if err != nil {
		return r, err
	}
	r = f.result(first, warm, last)
	r.Goroutines = most
	if f.drain > 0 { // callers use their reservations, so the other charges are lost
		f.ended.Store(true)
		over := make(chan struct{})
		go func() {
			f.callers.Wait()
			close(over)
		}()
		select {
		case <-over:
		case <-time.After(f.drain):
		}
		if r.Charged, r.Sent, err = f.charged(); err != nil {
			return r, err
		}
	}
	f.close()
	return r, nil
}

func (f *fleet) close() {
	f.ended.Store(true)
	var clients []client
	for _, m := range f.members {
		m.end()
		clients = append(clients, m.client)
	}
	f.callers.Wait()
	for _, m := range f.members {
		for _, l := range m.limiters {
			l.Close()
		}
	}
	f.server.close(clients)
}

func (f *fleet) newMember(i int) *member {
	m := &member{client: f.server.connect(i), index: i, fleet: f, waiting: make(map[int]time.Time)}
	ctx := context.Background()
	if f.batch != nil && f.batch(i) {
		ctx = throttle.WithClass(ctx, throttle.Batch)
	}
	m.ctx, m.end = context.WithCancel(ctx)
	var store throttle.Store = distributed.New(m.redis(), distributed.Options{})
	if f.alone {
		store = nil
	}
	for k := range max(1, f.keys) {
		p := f.policy(k)
		if f.tiersOf != nil {
			p.Tiers = f.tiersOf(i)
		}
		m.limiters = append(m.limiters, open(p, store))
	}
	if f.around != nil {
		outer := open(throttle.Policy{Name: "around", Tiers: f.around, Guard: f.guard}, store)
		for k, l := range m.limiters {
			m.limiters[k] = l.Within(outer)
		}
	}
	return m
}

func open(p throttle.Policy, store throttle.Store) *throttle.Limiter {
	l, err := throttle.New(p, store)
	if err != nil {
		panic(err) // a mistake in the scenario
	}
	return l
}

// watch waits until the end of the run. It returns what the server had done after the warm-up, and
// the largest number of goroutines.
func (f *fleet) watch() (warm tally, most int, err error) {
	for _, end := range []time.Duration{f.warm, f.length} {
		for left := end - time.Since(f.began); left > 0; left = end - time.Since(f.began) {
			time.Sleep(min(left, time.Second))
			most = max(most, runtime.NumGoroutine())
		}
		if end == f.warm {
			if warm, err = f.server.counted(); err != nil {
				return warm, most, err
			}
		}
	}
	return warm, most, nil
}

// live runs the callers of a process from its start to its end.
func (m *member) live() {
	for _, f := range m.fleet.faults {
		switch {
		case !f.hits(m.index):
		case f.kind == start:
			time.Sleep(f.at)
		case f.kind == kill:
			time.AfterFunc(f.at-time.Since(m.fleet.began), func() {
				m.killed.Store(true)
				m.kill()
				m.end()
			})
		}
	}
	for w := range m.fleet.waiters {
		m.fleet.callers.Go(func() { m.runCaller(w, m.fleet.requests) })
	}
	if m.fleet.newcomers > 0 {
		m.startNewcomers()
	}
}

// urgent is the deadline of an urgent request, which the limiter must refuse at once.
const urgent = time.Millisecond

// startNewcomers starts callers with one request each, from the warm-up until the run ends.
func (m *member) startNewcomers() {
	f := m.fleet
	time.Sleep(f.warm - time.Since(f.began))
	began := time.Now()
	for n := 0; !f.ended.Load(); time.Sleep(time.Millisecond) {
		for ; n < int(time.Since(began)*time.Duration(f.newcomers)/time.Second); n++ {
			w, start := f.waiters+n, time.Now()
			if n%20 > 0 {
				f.callers.Go(func() { m.runCaller(w, 1) })
				continue
			}
			f.callers.Go(func() {
				floor := time.Since(start)
				m.locked(func() { m.Floors = append(m.Floors, floor) })
			})
			f.callers.Go(m.callUrgently)
		}
	}
}

func (m *member) callUrgently() {
	start := time.Now()
	ctx, cancel := context.WithTimeout(m.ctx, urgent)
	defer cancel()
	err := m.limiters[0].Wait(ctx)
	took := time.Since(start)
	m.locked(func() {
		m.Refusals = append(m.Refusals, took)
		if !errors.Is(err, throttle.ErrDeadline) {
			m.NotAtOnce++
		}
	})
}

// runCaller sends requests one after the other. If requests is zero, it sends them until the end.
func (m *member) runCaller(w, requests int) {
	f := m.fleet
	random := rand.New(rand.NewPCG(f.seed, uint64(m.index)<<32|uint64(w)))
	key := (m.index*f.waiters + w) % len(m.limiters)
	if f.rest > 0 {
		time.Sleep(time.Duration(random.Int64N(int64(f.rest))))
	}
	next := time.Now()
	for n := 0; !f.ended.Load() && m.ctx.Err() == nil && (requests == 0 || n < requests); n++ {
		cost := int64(1)
		if len(f.costs) > 0 {
			cost = f.costs[random.IntN(len(f.costs))]
		}
		permit, waited, canceled, err := m.acquire(w, key, cost, random)
		switch {
		case m.ctx.Err() != nil || m.killed.Load():
			if permit != nil {
				permit.Release()
			}
			return
		case errors.Is(err, throttle.ErrDeadline):
			m.locked(func() { m.Deadlines++ })
			continue
		case canceled:
			continue
		case err != nil:
			m.locked(func() {
				m.Errors++
				m.Err = cmp.Or(m.Err, err.Error())
			})
			time.Sleep(100 * time.Millisecond)
			continue
		}
		m.send(permit, waited, key, cost, random)
		if next = next.Add(f.rest); f.delay != (way{}) {
			next = time.Now().Add(f.rest)
		}
		time.Sleep(time.Until(next))
	}
}

// acquire waits for admission. It reports how long, and whether the caller canceled.
func (m *member) acquire(w, key int, cost int64, random *rand.Rand) (permit *throttle.Permit, waited time.Duration, canceled bool, err error) {
	f := m.fleet
	m.locked(func() { m.waiting[w] = time.Now() })
	ctx, cancel := f.context(m.ctx, random)
	defer cancel()
	if f.cancels > 0 && random.Float64() < f.cancels {
		time.AfterFunc(time.Duration(random.Int64N(int64(f.cancelWithin))), cancel)
	}
	permit, err = m.limiters[key].Acquire(ctx, throttle.Cost{"requests": cost})
	canceled = err != nil && ctx.Err() != nil
	m.locked(func() {
		waited = time.Since(m.waiting[w])
		delete(m.waiting, w)
	})
	return permit, waited, canceled, err
}

// context returns the context of a request.
func (f *fleet) context(ctx context.Context, random *rand.Rand) (context.Context, context.CancelFunc) {
	if f.classes {
		ctx = throttle.WithClass(ctx, throttle.Class(random.IntN(3)))
	}
	if f.deadline > 0 {
		return context.WithTimeout(ctx, f.deadline)
	}
	return context.WithCancel(ctx)
}

// send sends an admitted request. It returns when the response is in.
func (m *member) send(permit *throttle.Permit, waited time.Duration, key int, cost int64, random *rand.Rand) {
	delay, at := m.fleet.delay, time.Since(m.fleet.began)
	r := request{At: at, Key: key, Cost: cost}
	if delay == (way{}) {
		r.Arrives = at
		if m.fleet.guard != throttle.NoGuard {
			r.Arrives += uniform(0, guard).draw(random)
		}
		r.Answered = r.Arrives
	} else {
		r.Arrives = at + delay.draw(random)
		r.Answered = r.Arrives + delay.draw(random)
	}
	m.locked(func() {
		m.Admitted = append(m.Admitted, r)
		m.Longest = max(m.Longest, waited)
	})
	if delay != (way{}) {
		time.Sleep(r.Answered - at)
		permit.Arrived()
		permit.Release()
	}
}

// locked runs do with the lock.
func (m *member) locked(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
}

// observe returns the observations so far. Callers that still wait count as waiting until now.
func (m *member) observe() observations {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.observations
	for _, since := range m.waiting {
		if !m.killed.Load() {
			o.Longest = max(o.Longest, time.Since(since))
		}
	}
	return o
}

// charged returns how many units of the last tier the first key has been charged, and how many
// requests were admitted.
func (f *fleet) charged() (charged, admitted int, err error) {
	observer := f.server.connect(f.processes)
	defer observer.close()
	status, err := open(f.policy(0), distributed.New(observer.redis(), distributed.Options{})).Status(context.Background())
	if err != nil {
		return 0, 0, fmt.Errorf("the server does not answer after the end: %w", err)
	}
	for _, m := range f.members {
		admitted += len(m.observe().Admitted)
	}
	return int(status.Tiers[len(status.Tiers)-1].Used), admitted, nil
}
