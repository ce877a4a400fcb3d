package main

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/bench/rig"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/host"
)

// An opener opens a client in one process.
type opener func(p process) (http.RoundTripper, error)

// A process is one process of a run, with what a client in it needs.
type process struct {
	Run
	index int               // in the fleet
	life  int               // number of restarts so far
	base  http.RoundTripper // sends without a limit
	rdb   *redis.Client     // if nil, the client doesn't use Redis
	file  string            // in which the client saves its quota. If empty, it saves none

	// The settings of this library's clients.
	guard      time.Duration // Policy.Guard
	assumeUsed bool          // Policy.AssumeUsed
}

// A client is a limiter with its settings.
type client struct {
	rig.Name
	open  opener
	guard func(Run) time.Duration // Policy.Guard. If nil, the client is a peer
	redis bool                    // it is a fleet over Redis

	restarts   bool // it restarts during the run, while the provider continues
	assumeUsed bool // Policy.AssumeUsed after a restart
	saves      bool // it saves its quota, and loads it after a restart
}

var clients = []client{
	{Name: name("throttle", "throttle", "counter declared"), open: openThrottle, guard: trueBound},
	{Name: name("throttle-auto", "throttle", "declared, AutoGuard"), open: openThrottle, guard: autoGuard},
	{Name: name("throttle-default", "throttle", "nothing declared"), open: openThrottle, guard: defaultGuard},
	{Name: name("throttle-redis", "throttle, Redis", "declared, 3 processes"), open: openThrottle, guard: trueBound, redis: true},
	{Name: name("throttle-redis-auto", "throttle, Redis", "AutoGuard, 3 processes"), open: openThrottle, guard: autoGuard, redis: true},
	{Name: name("throttle-restart", "default", "starts unused"), open: openThrottle, guard: trueBound, restarts: true},
	{Name: name("throttle-assumeused", "AssumeUsed", "starts used up"), open: openThrottle, guard: trueBound, restarts: true, assumeUsed: true},
	{Name: name("throttle-saved", "saved quota", "starts as it ended"), open: openThrottle, guard: trueBound, restarts: true, saves: true},
	{Name: name("throttle-paced", "throttle", "paced"), open: openThrottle, guard: defaultGuard},
	{Name: rig.Name{Key: "xtime-burst", Label: "x/time/rate", Note: "burst = limit", Apart: true}, open: chain(xtimeBurst)},
	{Name: name("xtime-1", "x/time/rate", "burst 1"), open: chain(xtimeOne)},
	{Name: name("uber", "uber ratelimit", "even spacing"), open: chain(uber)},
	{Name: name("failsafe-smooth", "failsafe-go", "smooth"), open: chain(failsafeSmooth)},
	{Name: name("failsafe-bursty", "failsafe-go", "bursty"), open: chain(failsafeBursty)},
	{Name: name("redis_rate", "redis_rate", "polled, 3 processes"), open: chain(redisRate), redis: true},
}

func name(key, label, note string) rig.Name { return rig.Name{Key: key, Label: label, Note: note} }

// fleet is the number of processes of a client over Redis.
const fleet = 3

func (r Run) client() (client, error) {
	i := slices.IndexFunc(clients, func(c client) bool { return c.Key == r.Client })
	if i < 0 {
		return client{}, fmt.Errorf("client %q is not known", r.Client)
	}
	return clients[i], nil
}

// defaultGuard returns the zero guard, which stands for the default. It covers delays of up
// to 50 ms.
func defaultGuard(Run) time.Duration { return 0 }

// trueBound returns the default guard too, except that it returns the longest delay where
// delays exceed the default, and a short guard for a provider that is near but slow.
func trueBound(r Run) time.Duration {
	switch r.Delay {
	case "heavy":
		return maxDelay
	case "slow":
		return 20 * time.Millisecond
	}
	return 0
}

// autoGuard makes the limiter estimate the guard.
func autoGuard(Run) time.Duration { return throttle.AutoGuard }

// openThrottle opens a client of this library.
func openThrottle(p process) (http.RoundTripper, error) {
	store, err := p.store()
	if err != nil {
		return nil, err
	}
	lim, err := throttle.New(throttle.Policy{Name: p.String(), Tiers: p.declared(), Guard: p.guard, AssumeUsed: p.assumeUsed}, store)
	if err != nil {
		return nil, err
	}
	t := &throttle.Transport{Base: p.base, Limiter: lim}
	if p.countsTokens() {
		t.Cost = func(req *http.Request) throttle.Cost { return throttle.Cost{tokens: cost(req)} }
	}
	return t, nil
}

// store returns the store of this library's client. It returns nil for a quota in memory.
func (p process) store() (throttle.Store, error) {
	switch {
	case p.rdb != nil:
		return distributed.New(p.rdb, distributed.Options{}), nil
	case p.file != "":
		return host.Open(p.file)
	}
	return nil, nil
}

// declared returns the tiers in the policy of this library's client. They count as the
// provider does, except for the phase of its windows, which no client gets. The tiers of
// throttle-default don't describe how the provider counts, and those of throttle-paced
// describe its burst alone.
func (r Run) declared() []throttle.Tier {
	tiers := r.asDocumented()
	switch r.Client {
	case "throttle-default":
		return tiers
	case "throttle-paced":
		tiers[0].PaceBurst = r.asCounted()[0].Burst
		return tiers
	}
	tiers = r.asCounted()
	for i := range tiers {
		if t := &tiers[i]; t.Algorithm == throttle.FixedWindow {
			t.Phase = throttle.UnknownPhase
		}
	}
	return tiers
}

// guardText returns the guard for the rows of the result.
func (c client) guardText(r Run) string {
	if c.guard == nil {
		return ""
	}
	switch d := c.guard(r); d {
	case 0:
		return "50ms" // the default
	case throttle.AutoGuard:
		return "auto"
	default:
		return d.String()
	}
}
