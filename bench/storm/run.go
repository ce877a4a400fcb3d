package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/bench/internal/cpu"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
)

// A run is one run of a scenario.
type run struct {
	scenario
	server  *redistest.Server
	admin   *redis.Client
	proxies []*redistest.Proxy // one for each of roundTrips
	network lossyNetwork
	fleet   []*process
	start   time.Time
}

// A usage has the calls and the processor time up to an instant.
type usage struct {
	at             time.Time
	calls          int
	client, server time.Duration
}

func (s scenario) run(t testing.TB) (result, error) {
	r := &run{scenario: s, server: redistest.Start(t)}
	r.admin = redis.NewClient(&redis.Options{Addr: r.server.Addr(), ReadTimeout: 10 * second}) // the server may be overloaded
	defer r.admin.Close()
	for _, roundTrip := range s.roundTrips {
		p := redistest.NewProxy(t, r.server.Addr())
		p.SetDelay(roundTrip / 2)
		r.proxies = append(r.proxies, p)
	}
	if s.real {
		return r.runWorkers()
	}
	for i := range s.processes {
		addr := r.server.Addr()
		if len(r.proxies) > 0 {
			addr = r.proxies[i%len(r.proxies)].Addr()
		}
		options := &redis.Options{Addr: addr}
		if s.disturbance == loseReplies {
			options.Dialer = r.network.dial
		}
		rdb := redis.NewClient(options)
		defer rdb.Close()
		p, err := newProcess(s, rdb)
		if err != nil {
			return result{}, err
		}
		p.first = i
		r.fleet = append(r.fleet, p)
	}
	return r.runInProcess()
}

// runInProcess runs a fleet whose processes are all in this process.
func (r *run) runInProcess() (result, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first, err := r.usage()
	if err != nil {
		return result{}, err
	}
	r.start = time.Now()
	for _, p := range r.fleet {
		go p.run(ctx, r.start)
	}
	disturbed := make(chan struct{})
	go func() {
		defer close(disturbed)
		if r.disturbance != none {
			time.Sleep(time.Until(r.start.Add(r.from)))
			r.disturb(true)
			time.Sleep(time.Until(r.start.Add(r.from + r.duration)))
			r.disturb(false)
		}
	}()
	if r.warmUp > 0 {
		time.Sleep(time.Until(r.start.Add(r.warmUp)))
		if first, err = r.usage(); err != nil {
			return result{}, err
		}
	}
	r.finish(r.length - time.Since(first.at))
	last, err := r.usage()
	if err != nil {
		return result{}, err
	}
	for _, p := range r.fleet {
		p.ended.Store(true)
	}
	r.finish(r.drain) // callers make no new requests
	<-disturbed
	cancel()
	r.finish(time.Minute)
	return r.result(first, last)
}

// finish waits until all callers have ended, for maxWait at most.
func (r *run) finish(maxWait time.Duration) {
	timeout := time.After(maxWait)
	for _, p := range r.fleet {
		select {
		case <-p.done:
		case <-timeout:
			return
		}
	}
}

// disturb begins the disturbance, or ends it if on is false.
func (r *run) disturb(on bool) {
	switch r.disturbance {
	case stopServer:
		if on {
			r.server.Stop()
		} else {
			r.server.Resume()
		}
	case addDelay:
		for i, p := range r.proxies {
			delay := r.roundTrips[i] / 2
			if on {
				delay += addedDelay
			}
			p.SetDelay(delay)
		}
	case loseReplies:
		r.network.enabled.Store(on)
	}
}

// usage returns the usage of this process and of the server.
func (r *run) usage() (usage, error) {
	text, err := r.admin.InfoMap(context.Background(), "all").Result()
	if err != nil {
		return usage{}, err
	}
	u := usage{at: time.Now(), client: cpu.Used()}
	for name, value := range text["Commandstats"] {
		var calls int
		if _, err := fmt.Sscanf(value, "calls=%d,", &calls); err != nil {
			return usage{}, fmt.Errorf("%s: %q", name, value)
		}
		switch strings.TrimPrefix(name, "cmdstat_") {
		case "evalsha", "eval", "fcall":
			u.calls += calls
		}
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		var seconds float64
		if _, err := fmt.Sscan(text["CPU"][name], &seconds); err != nil {
			return usage{}, fmt.Errorf("%s: %q", name, text["CPU"][name])
		}
		u.server += time.Duration(seconds * float64(second))
	}
	return u, nil
}

// charged returns the units that the last tier of the first key has been charged.
func (r *run) charged() (int, error) {
	l, err := throttle.New(r.policy(0), distributed.New(r.admin, distributed.Options{}))
	if err != nil {
		return 0, err
	}
	status, err := l.Status(context.Background())
	if err != nil {
		return 0, err
	}
	return int(status.Tiers[len(status.Tiers)-1].Used), nil
}

// A process is one process of a fleet.
type process struct {
	scenario scenario
	limiters []*throttle.Limiter // by key
	first    int                 // the key of the first caller
	ended    atomic.Bool         // callers make no new requests
	done     chan struct{}       // closed when all callers have ended

	mu sync.Mutex // guards observations
	observations
}

// The observations of a process are those of all its callers.
type observations struct {
	Admitted []int64       // times, in Unix microseconds
	Keys     []int         // of Admitted
	Longest  time.Duration // wait
	Errors   int
	Err      string // the first of the errors
}

func newProcess(s scenario, rdb *redis.Client) (*process, error) {
	p := &process{scenario: s, done: make(chan struct{})}
	shared := distributed.New(rdb, distributed.Options{})
	outer, err := throttle.New(throttle.Policy{Name: "outer", Tiers: s.tiers}, shared)
	if err != nil {
		return nil, err
	}
	for key := range max(1, s.keys) {
		l, err := throttle.New(s.policy(key), shared)
		if err != nil {
			return nil, err
		}
		if s.inner > 0 {
			l = l.Within(outer)
		}
		p.limiters = append(p.limiters, l)
	}
	return p, nil
}

// run starts the callers, and blocks until all have ended.
func (p *process) run(ctx context.Context, start time.Time) {
	defer close(p.done)
	var callers sync.WaitGroup
	for i := range p.scenario.waiters {
		callers.Go(func() { p.call(ctx, start, (p.first+i)%len(p.limiters)) })
	}
	callers.Wait()
}

// call sends requests, one after the other.
func (p *process) call(ctx context.Context, start time.Time, key int) {
	s, l := p.scenario, p.limiters[key]
	next := start
	if s.every > 0 {
		next = next.Add(rand.N(s.every))
	}
	for n := 0; !p.ended.Load() && (s.requests == 0 || n < s.requests); n++ {
		if s.every > 0 {
			select {
			case <-time.After(time.Until(next)):
			case <-ctx.Done():
				return
			}
			next = next.Add(s.every)
		}
		called := time.Now()
		err := l.Wait(ctx)
		p.record(key, called, time.Now(), err, ctx.Err() != nil)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			time.Sleep(100 * ms)
		}
	}
}

func (p *process) record(key int, called, now time.Time, err error, canceled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Longest = max(p.Longest, now.Sub(called))
	switch {
	case err == nil:
		p.Admitted, p.Keys = append(p.Admitted, now.UnixMicro()), append(p.Keys, key)
	case !canceled:
		if p.Errors++; p.Err == "" {
			p.Err = err.Error()
		}
	}
}
