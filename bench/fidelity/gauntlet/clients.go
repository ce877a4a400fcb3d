package gauntlet

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/host"
)

// An opener opens a client in one process.
type opener func(s seat) (http.RoundTripper, error)

// A seat is what a client finds in one process.
type seat struct {
	Run
	member int               // which process of the fleet it is
	life   int               // how often the process was restarted
	guard  time.Duration     // of this library's clients
	used   bool              // Policy.AssumeUsed of this library's clients
	base   http.RoundTripper // sends at once
	rdb    *redis.Client     // nil for clients that need none
	file   string            // in which one client saves its quota
}

// A client is a limiter with its settings.
type client struct {
	name  string
	open  opener
	guard func(Run) time.Duration // of this library's clients
	redis bool                    // it is a fleet

	restarts bool // while the provider goes on
	used     bool // Policy.AssumeUsed from then on
	saves    bool // its quota, and knows it then
}

var clients = []client{
	{name: "throttle", open: openThrottle, guard: bound},
	{name: "throttle-auto", open: openThrottle, guard: auto},
	{name: "throttle-default", open: openThrottle, guard: unset},
	{name: "throttle-redis", open: openThrottle, guard: bound, redis: true},
	{name: "throttle-redis-auto", open: openThrottle, guard: auto, redis: true},
	{name: "throttle-full", open: openThrottle, guard: bound, restarts: true},
	{name: "throttle-empty", open: openThrottle, guard: bound, restarts: true, used: true},
	{name: "throttle-saved", open: openThrottle, guard: bound, restarts: true, saves: true},
	{name: "throttle-spread", open: openThrottle, guard: unset},
	{name: "xtime-burst", open: chain(xtimeBurst)},
	{name: "xtime-1", open: chain(xtimeOne)},
	{name: "uber", open: chain(uber)},
	{name: "failsafe-smooth", open: chain(failsafeSmooth)},
	{name: "failsafe-bursty", open: chain(failsafeBursty)},
	{name: "redis_rate", open: chain(redisRate), redis: true},
}

// fleet is how many processes the clients over Redis are.
const fleet = 3

func (r Run) client() (client, error) {
	i := slices.IndexFunc(clients, func(c client) bool { return c.name == r.Client })
	if i < 0 {
		return client{}, fmt.Errorf("client %q is not known", r.Client)
	}
	return clients[i], nil
}

// unset leaves the default, which covers delays of up to 50 ms.
func unset(Run) time.Duration { return 0 }

// bound is the default too, but where delays are longer it is the longest of them, and
// for a provider that is near but slow it is short.
func bound(r Run) time.Duration {
	switch r.Delay {
	case "heavy":
		return longestDelay
	case "slow":
		return 20 * time.Millisecond
	}
	return 0
}

// auto has the limiter learn how late requests may be.
func auto(Run) time.Duration { return throttle.AutoGuard }

// openThrottle opens this library: the policy, and the store where there is a fleet.
func openThrottle(s seat) (http.RoundTripper, error) {
	store, err := s.store()
	if err != nil {
		return nil, err
	}
	lim, err := throttle.New(throttle.Policy{Name: s.String(), Tiers: s.declared(), Guard: s.guard, AssumeUsed: s.used}, store)
	if err != nil {
		return nil, err
	}
	t := &throttle.Transport{Base: s.base, Limiter: lim}
	if s.countsTokens() {
		t.Cost = func(req *http.Request) throttle.Cost { return throttle.Cost{tokens: cost(req)} }
	}
	return t, nil
}

// store keeps the quota of this library's clients: it is nil where that is the process.
func (s seat) store() (throttle.Store, error) {
	switch {
	case s.rdb != nil:
		return distributed.New(s.rdb, distributed.Options{}), nil
	case s.file != "":
		return host.Open(s.file)
	}
	return nil, nil
}

// declared are the tiers that this library's client is told: as the provider counts,
// but for the phase of its windows, which nobody knows. One is told nothing, and one
// only how much may go at once.
func (r Run) declared() []throttle.Tier {
	tiers := r.asDocumented()
	switch r.Client {
	case "throttle-default":
		return tiers
	case "throttle-spread":
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

// guardText is the guard as the rows of the result have it.
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
