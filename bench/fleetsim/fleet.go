package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/bench/internal/cpu"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/throttletest"
)

// A fleet is one run of a scenario.
type fleet struct {
	scenario
	seed      uint64
	server    *server
	began     time.Time
	ended     atomic.Bool // callers start no new requests
	providers []*provider // one for each key
	outer     *provider   // of the quota around all keys; nil if there is none
	members   []*member
	warmed    tally // after the warm-up
}

// A provider is strict: it counts arrivals by the definition of its tiers.
type provider struct {
	mu      sync.Mutex // guards all below
	counter *throttletest.Counter
	refused int
}

// A member is a process of the fleet with its callers.
type member struct {
	*process
	fleet    *fleet
	limiters []*throttle.Limiter // one for each key
	ctx      context.Context
	end      context.CancelFunc

	mu       sync.Mutex // guards all below
	admitted []time.Time
	arrived  []time.Duration // since the start, of requests that the provider accepted
	waiting  map[int]time.Time
	longest  time.Duration
	errors   int
	err      error // the first
}

// runVirtually runs a scenario in a bubble of its own.
func (s scenario) runVirtually(t *testing.T, seed uint64) (r result) {
	used, began := cpu.Used(), time.Now()
	synctest.Test(t, func(*testing.T) {
		// Virtual time begins at a full hour.
		time.Sleep(time.Duration(rand.New(rand.NewPCG(seed, 1)).Int64N(int64(time.Hour))))
		r = s.run(seed)
	})
	r.CPU, r.Real = cpu.Used()-used, time.Since(began)
	return r
}

// run runs a scenario. It must be called in a bubble.
func (s scenario) run(seed uint64) result {
	f := &fleet{scenario: s, seed: seed, server: newServer(s.service(), s.faults), began: time.Now()}
	f.server.seen = s.seen
	go f.server.run()
	for range max(1, s.keys) {
		f.providers = append(f.providers, newProvider(s.counted()))
	}
	if s.around != nil {
		f.outer = newProvider(s.around)
	}
	var callers sync.WaitGroup
	for i := range s.processes {
		m := f.newMember(i)
		f.members = append(f.members, m)
		callers.Go(func() { m.live(&callers) })
	}
	most := f.watch()
	r := f.result()
	r.Goroutines = most
	if s.drain > 0 { // callers use their reservations, so the other charges are lost
		f.ended.Store(true)
		over := make(chan struct{})
		go func() {
			callers.Wait()
			close(over)
		}()
		select {
		case <-over:
		case <-time.After(s.drain):
		}
		r.Charged, r.Sent = f.charged()
	}
	f.ended.Store(true)
	for _, m := range f.members {
		m.end()
	}
	callers.Wait()
	for _, m := range f.members {
		for _, l := range m.limiters {
			l.Close()
		}
	}
	time.Sleep(10 * time.Second) // canceled reservations are returned
	for _, m := range f.members {
		m.closed.Store(true)
		_ = m.rdb.Close()
	}
	time.Sleep(time.Minute) // goroutines of go-redis end by themselves
	f.server.queue <- nil
	return r
}

func newProvider(tiers []throttle.Tier) *provider {
	c, err := throttletest.NewCounter(tiers...)
	if err != nil {
		panic(err) // a mistake in the scenario
	}
	return &provider{counter: c}
}

func (f *fleet) newMember(i int) *member {
	m := &member{process: newProcess(i, f.server, f.ways[i%len(f.ways)], f.seed), fleet: f, waiting: make(map[int]time.Time)}
	ctx := context.Background()
	if f.batch != nil && f.batch(i) {
		ctx = throttle.WithClass(ctx, throttle.Batch)
	}
	m.ctx, m.end = context.WithCancel(ctx)
	var store throttle.Store = distributed.New(m.rdb, distributed.Options{})
	if f.alone {
		store = nil
	}
	open := func(p throttle.Policy) *throttle.Limiter {
		l, err := throttle.New(p, store)
		if err != nil {
			panic(err) // a mistake in the scenario
		}
		return l
	}
	for k := range f.providers {
		p := f.policy(k)
		if f.tiersOf != nil {
			p.Tiers = f.tiersOf(i)
		}
		m.limiters = append(m.limiters, open(p))
	}
	if f.around != nil {
		outer := open(throttle.Policy{Name: "around", Tiers: f.around, Guard: f.guard})
		for k, l := range m.limiters {
			m.limiters[k] = l.Within(outer)
		}
	}
	return m
}

// watch waits until the end of the run, and returns the largest number of goroutines.
func (f *fleet) watch() (most int) {
	for _, end := range []time.Duration{f.warm, f.length} {
		for left := end - time.Since(f.began); left > 0; left = end - time.Since(f.began) {
			time.Sleep(min(left, time.Second))
			most = max(most, runtime.NumGoroutine())
		}
		if end == f.warm {
			f.warmed = f.server.counted()
		}
	}
	return most
}

// live runs the callers of a process from its start to its end.
func (m *member) live(callers *sync.WaitGroup) {
	for _, f := range m.fleet.faults {
		switch {
		case !f.hits(m.index):
		case f.kind == start:
			time.Sleep(f.at)
		case f.kind == kill:
			time.AfterFunc(f.at-m.server.age(), func() {
				m.killed.Store(true)
				m.end()
			})
		}
	}
	for w := range m.fleet.waiters {
		callers.Go(func() { m.runCaller(w) })
	}
}

// runCaller sends requests one after the other.
func (m *member) runCaller(w int) {
	f := m.fleet
	random := rand.New(rand.NewPCG(f.seed, uint64(m.index)<<32|uint64(w)))
	key := (m.index*f.waiters + w) % len(f.providers)
	if f.rest > 0 {
		time.Sleep(time.Duration(random.Int64N(int64(f.rest))))
	}
	for n := 0; !f.ended.Load() && m.ctx.Err() == nil && (f.requests == 0 || n < f.requests); n++ {
		m.recordWait(w, true)
		cost := int64(1)
		if len(f.costs) > 0 {
			cost = f.costs[random.IntN(len(f.costs))]
		}
		ctx, cancel := context.WithCancel(m.ctx)
		if f.cancels > 0 && random.Float64() < f.cancels {
			time.AfterFunc(time.Duration(random.Int64N(int64(f.cancelWithin))), cancel)
		}
		permit, err := m.limiters[key].Acquire(ctx, throttle.Cost{"requests": cost})
		canceled := err != nil && ctx.Err() != nil
		cancel()
		switch waited := m.recordWait(w, false); {
		case m.ctx.Err() != nil || m.killed.Load():
			if permit != nil {
				permit.Release()
			}
			return
		case canceled:
			continue
		case err != nil:
			m.recordError(err)
			time.Sleep(100 * time.Millisecond)
			continue
		default:
			m.recordAdmission(waited)
		}
		time.Sleep(f.delay(random))
		accepted := false
		for range cost {
			if f.accepts(key) {
				accepted = true
				m.recordArrival()
			}
		}
		time.Sleep(f.delay(random))
		if accepted {
			f.providers[key].release()
		}
		permit.Arrived()
		permit.Release()
		time.Sleep(f.rest)
	}
}

// recordWait records that a caller begins to wait, or waits no longer, and then returns how long it
// has waited.
func (m *member) recordWait(w int, begins bool) (waited time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if begins {
		m.waiting[w] = time.Now()
		return 0
	}
	waited = time.Since(m.waiting[w])
	delete(m.waiting, w)
	return waited
}

func (m *member) recordAdmission(waited time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.admitted = append(m.admitted, time.Now())
	m.longest = max(m.longest, waited)
}

func (m *member) recordArrival() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrived = append(m.arrived, time.Since(m.fleet.began))
}

func (m *member) recordError(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.errors++
	if m.err == nil {
		m.err = err
	}
}

// accepts reports whether the provider accepts a request of a key. It counts the request in both
// quotas, also if one of them refuses it.
func (f *fleet) accepts(key int) bool {
	accepted := f.outer == nil || f.outer.accepts()
	return f.providers[key].accepts() && accepted
}

func (p *provider) accepts() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.counter.Arrive(time.Now().UnixMicro(), nil) {
		p.refused++
		return false
	}
	return true
}

func (p *provider) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counter.Release(nil)
}

// charged returns how many units of the last tier the first key has been charged, and how many
// requests were admitted.
func (f *fleet) charged() (charged, admitted int) {
	observer := newProcess(f.processes, f.server, constant(0), f.seed)
	defer observer.rdb.Close()
	l, err := throttle.New(f.policy(0), distributed.New(observer.rdb, distributed.Options{}))
	if err != nil {
		panic(err)
	}
	status, err := l.Status(context.Background())
	if err != nil {
		panic(fmt.Sprintf("the server does not answer after the end: %v", err))
	}
	for _, m := range f.members {
		m.mu.Lock()
		admitted += len(m.admitted)
		m.mu.Unlock()
	}
	return int(status.Tiers[len(status.Tiers)-1].Used), admitted
}
