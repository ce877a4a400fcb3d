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

// A run is one scenario while it is played.
type run struct {
	scenario
	server  *redistest.Server
	admin   *redis.Client
	proxies []*redistest.Proxy // by trip
	wire    wire
	members []*member
	began   time.Time
}

// A usage is what was used so far.
type usage struct {
	at             time.Time
	calls          int
	client, server time.Duration
}

func (s scenario) run(t testing.TB) (result, error) {
	r := &run{scenario: s, server: redistest.Start(t)}
	r.admin = redis.NewClient(&redis.Options{Addr: r.server.Addr(), ReadTimeout: 10 * second}) // a crowd may keep it waiting
	defer r.admin.Close()
	for _, trip := range s.trips {
		p := redistest.NewProxy(t, r.server.Addr())
		p.SetDelay(trip / 2)
		r.proxies = append(r.proxies, p)
	}
	if s.real {
		return r.hire()
	}
	for i := range s.processes {
		addr := r.server.Addr()
		if len(r.proxies) > 0 {
			addr = r.proxies[i%len(r.proxies)].Addr()
		}
		options := &redis.Options{Addr: addr}
		if s.disturbance == loses {
			options.Dialer = r.wire.dial
		}
		rdb := redis.NewClient(options)
		defer rdb.Close()
		m, err := newMember(s, rdb)
		if err != nil {
			return result{}, err
		}
		r.members = append(r.members, m)
	}
	return r.play()
}

// play plays the fleet that is in this process.
func (r *run) play() (result, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first, err := r.usage()
	if err != nil {
		return result{}, err
	}
	r.began = time.Now()
	for _, m := range r.members {
		go m.work(ctx, r.began)
	}
	disturbed := make(chan struct{})
	go func() {
		defer close(disturbed)
		if r.disturbance != none {
			time.Sleep(time.Until(r.began.Add(r.from)))
			r.disturb(true)
			time.Sleep(time.Until(r.began.Add(r.from + r.lasts)))
			r.disturb(false)
		}
	}()
	if r.warm > 0 {
		time.Sleep(time.Until(r.began.Add(r.warm)))
		if first, err = r.usage(); err != nil {
			return result{}, err
		}
	}
	r.finish(r.length - time.Since(first.at))
	last, err := r.usage()
	if err != nil {
		return result{}, err
	}
	for _, m := range r.members {
		m.ended.Store(true)
	}
	r.finish(r.drain) // nobody asks again
	<-disturbed
	cancel()
	r.finish(time.Minute)
	return r.result(first, last)
}

// finish waits until all callers have ended, or for so long.
func (r *run) finish(most time.Duration) {
	timeout := time.After(most)
	for _, m := range r.members {
		select {
		case <-m.done:
		case <-timeout:
			return
		}
	}
}

func (r *run) disturb(on bool) {
	switch r.disturbance {
	case stop:
		if on {
			r.server.Stop()
		} else {
			r.server.Resume()
		}
	case slow:
		for i, p := range r.proxies {
			delay := r.trips[i] / 2
			if on {
				delay += addedDelay
			}
			p.SetDelay(delay)
		}
	case loses:
		r.wire.loses.Store(on)
	}
}

// usage returns what is used so far, by this process and by the server.
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

// charged returns how many units of its last tier the first key has been charged.
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

// A member is one process of a fleet.
type member struct {
	scenario scenario
	limiters []*throttle.Limiter // by key
	ended    atomic.Bool         // nobody asks again
	done     chan struct{}       // closed when all callers have ended

	mu sync.Mutex // guards seen
	seen
}

// A seen is what the callers of a process saw.
type seen struct {
	At      []int64       // when they were admitted, in µs
	Longest time.Duration // wait
	Errors  int
	Err     string // the first of them
}

func newMember(s scenario, rdb *redis.Client) (*member, error) {
	m := &member{scenario: s, done: make(chan struct{})}
	shared := distributed.New(rdb, distributed.Options{})
	for key := range max(1, s.keys) {
		l, err := throttle.New(s.policy(key), shared)
		if err != nil {
			return nil, err
		}
		m.limiters = append(m.limiters, l)
	}
	return m, nil
}

func (m *member) work(ctx context.Context, began time.Time) {
	defer close(m.done)
	var callers sync.WaitGroup
	for i := range m.scenario.waiters {
		callers.Go(func() { m.call(ctx, began, m.limiters[i%len(m.limiters)]) })
	}
	callers.Wait()
}

// call sends requests, one after the other.
func (m *member) call(ctx context.Context, began time.Time, l *throttle.Limiter) {
	s := m.scenario
	next := began
	if s.every > 0 {
		next = next.Add(rand.N(s.every))
	}
	for n := 0; !m.ended.Load() && (s.requests == 0 || n < s.requests); n++ {
		if s.every > 0 {
			select {
			case <-time.After(time.Until(next)):
			case <-ctx.Done():
				return
			}
			next = next.Add(s.every)
		}
		asked := time.Now()
		err := l.Wait(ctx)
		m.see(asked, time.Now(), err, ctx.Err() != nil)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			time.Sleep(100 * ms)
		}
	}
}

func (m *member) see(asked, now time.Time, err error, over bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Longest = max(m.Longest, now.Sub(asked))
	switch {
	case err == nil:
		m.At = append(m.At, now.UnixMicro())
	case !over:
		if m.Errors++; m.Err == "" {
			m.Err = err.Error()
		}
	}
}
