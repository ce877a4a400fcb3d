package integration_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/host"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/local"
)

var onlyStore = flag.String("storm.store", "", "the only `store` of TestStormOfPolicies: local, host or redis. If empty, all")

// TestStormOfPolicies changes policies by one Limiter while callers come by others of the quota, alone
// and nested, are refused and give up, and while the quota is paused. A provider whose limits change
// at the same instants refuses none of the requests. Callers keep their order, all of them return,
// and nothing is used in the end.
//
// Over Redis the provider does not judge a quota that has had NoGuard, because a request then counts
// at its reserved time and is sent a little later.
func TestStormOfPolicies(t *testing.T) {
	playSeeds(t, 5_000, 100, func(s *storm) {
		w := &policyWorld{storm: s, kind: "local"}
		switch s.seed % 10 {
		case 1, 2:
			w.kind = "host"
		case 3:
			w.kind = "redis"
		}
		if *onlyStore != "" && *onlyStore != w.kind {
			return
		}
		defer w.open()()
		w.play()
		w.check()
	})
}

// A policyWorld is one or two quotas in a store, and their callers.
type policyWorld struct {
	*storm
	kind    string // of the store
	store   throttle.Store
	quotas  []*changingQuota
	handles []policyHandle
	callers []*policyCaller
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

// A changingQuota is a quota whose policy changes.
type changingQuota struct {
	changingProvider
	setters []*throttle.Limiter
	policy  throttle.Policy // the newest. Guarded by changingProvider.mu, as all below
	guards  []time.Duration // of the policy in force, and of those that come into force now
	noGuard bool            // a policy has had NoGuard
}

// A policyHandle is a Limiter by which callers come, and the quotas that it charges.
type policyHandle struct {
	*throttle.Limiter
	quotas []*changingQuota
}

// open makes the quotas. The returned function closes their store.
func (w *policyWorld) open() (closeStore func()) {
	w.ctx, w.cancel = context.WithCancel(context.Background())
	closeStore = func() {}
	switch w.kind {
	default:
		w.store = local.New()
	case "host":
		s, err := host.Open(filepath.Join(w.t.TempDir(), "quotas.db"))
		if err != nil {
			w.t.Fatal(err)
		}
		w.store = s
		closeStore = func() { s.Close() }
	case "redis":
		server := redismem.New()
		rdb := redismem.Dial(server, func() time.Duration { return ms / 2 })
		w.store = distributed.New(rdb, distributed.Options{})
		closeStore = func() {
			time.Sleep(6 * sec) // a subscription stays open for five seconds
			rdb.Close()
			server.Close()
			time.Sleep(time.Minute)
		}
	}
	for i := range 1 + w.IntN(2) {
		p := throttle.Policy{Name: fmt.Sprint("quota", i), Tiers: []throttle.Tier{w.newTier(w.Rand)}, Guard: w.newGuard(w.Rand)}
		q := &changingQuota{policy: p, guards: []time.Duration{p.Guard}, noGuard: p.Guard == throttle.NoGuard}
		for range 2 {
			l := mustNew(w.t, p, w.store)
			q.setters = append(q.setters, l)
			w.handles = append(w.handles, policyHandle{l, []*changingQuota{q}})
		}
		q.change(p.Tiers)()
		w.quotas = append(w.quotas, q)
	}
	if len(w.quotas) > 1 {
		inner, outer := w.handles[0], w.handles[2]
		w.handles = append(w.handles, policyHandle{inner.Within(outer.Limiter), slices.Concat(inner.quotas, outer.quotas)})
	}
	return closeStore
}

// newGuard returns a guard. Without one, a request would count at the instant of its reservation in
// Redis, which is some microseconds before it is sent.
func (w *policyWorld) newGuard(r *rand.Rand) time.Duration {
	if w.kind == "redis" {
		return pick(r, 2*ms, 5*ms, 20*ms)
	}
	return pick(r, throttle.NoGuard, 5*ms, 20*ms)
}

// newTier returns a random tier that the store supports. It has room for every cost.
func (w *policyWorld) newTier(r *rand.Rand) throttle.Tier {
	for {
		tier := randomTiers(r, w.kind != "host")[0]
		tier.PaceBurst, tier.Burst = 0, 0
		if tier.Limit = max(tier.Limit, 4); tier.Unit == "tokens" {
			tier.Limit = max(tier.Limit, 20)
		}
		if w.kind == "local" || tier.Algorithm != throttle.Calendar && (w.kind == "redis" || tier.Algorithm != throttle.Concurrency) {
			return tier
		}
	}
}

// changed returns the policy with some change.
func (w *policyWorld) changed(r *rand.Rand, p throttle.Policy) throttle.Policy {
	for {
		next := p
		next.Tiers = slices.Clone(p.Tiers)
		i := r.IntN(len(p.Tiers))
		switch r.IntN(8) {
		case 0, 1: // another limit
			next.Tiers[i].Limit = max(4, 1+next.Tiers[i].Limit*pick[int64](r, 1, 2, 4)/2)
		case 2: // another limit beside it, which continues it too
			tier := next.Tiers[i]
			tier.Limit += 1 + r.Int64N(tier.Limit)
			next.Tiers = append(next.Tiers, tier)
		case 3, 4:
			next.Tiers = slices.Insert(next.Tiers, r.IntN(len(next.Tiers)+1), w.newTier(r))
		case 5:
			next.Tiers = slices.Delete(next.Tiers, i, i+1)
		case 6:
			next.Guard = w.newGuard(r)
		default:
			r.Shuffle(len(next.Tiers), func(i, j int) { next.Tiers[i], next.Tiers[j] = next.Tiers[j], next.Tiers[i] })
		}
		for i, tier := range next.Tiers {
			if unitOf(tier) == "tokens" {
				next.Tiers[i].Limit = max(20, tier.Limit)
			}
		}
		if next.Validate() == nil && len(next.Tiers) <= 5 {
			return next
		}
	}
}

// A policyCaller makes one request.
type policyCaller struct {
	*rand.Rand
	number  int
	handle  policyHandle
	arrives time.Duration
	within  time.Duration // its timeout. If zero, none
	gone    time.Duration // when its context is canceled, after its arrival. If zero, never
	method  int
	cost    throttle.Cost

	ended    bool
	admitted time.Time // by a method that waits
}

func (w *policyWorld) play() {
	during := 1 + w.IntN(1000)
	for i := range 10 + w.IntN(30) {
		c := &policyCaller{
			Rand: w.random(), number: i, handle: pick(w.Rand, w.handles...),
			arrives: time.Duration(w.IntN(during))*ms + time.Duration(i+1)*time.Microsecond,
			within:  pick(w.Rand, 0, 0, upTo(w.Rand, 300*ms)), gone: pick(w.Rand, 0, 0, 0, upTo(w.Rand, 300*ms)),
			method: w.IntN(8),
			cost:   pick(w.Rand, nil, nil, throttle.Cost{"requests": 1 + w.Int64N(4)}, throttle.Cost{"tokens": w.Int64N(18)}, throttle.Cost{"jobs": 1}),
		}
		w.callers = append(w.callers, c)
		w.run(fmt.Sprint("caller ", i), c.arrives, func() { w.request(c); c.ended = true })
	}
	for i := range 1 + w.IntN(8) {
		r := w.random()
		w.run("change", time.Duration(w.IntN(during))*ms+time.Duration(100+i)*time.Microsecond, func() { w.change(r) })
	}
	for i := range w.IntN(3) {
		r := w.random()
		w.run("pause", time.Duration(w.IntN(during))*ms+time.Duration(200+i)*time.Microsecond, func() {
			l := pick(r, w.handles...)
			_ = l.Pause(w.ctx, upTo(r, 200*ms))
			if r.IntN(2) == 0 {
				time.Sleep(upTo(r, 100*ms))
				_ = l.Resume(w.ctx)
			}
		})
	}
}

// run runs f after some time, in a goroutine that may not panic.
func (w *policyWorld) run(name string, after time.Duration, f func()) {
	w.wg.Go(func() {
		defer func() {
			if r := recover(); r != nil {
				w.fail("%s, %s: panic: %v\n%s", w.kind, name, r, shortStack())
			}
		}()
		time.Sleep(after)
		f()
	})
}

// change sets another policy by any Limiter of a quota.
func (w *policyWorld) change(r *rand.Rand) {
	q := pick(r, w.quotas...)
	q.mu.Lock()
	next := w.changed(r, q.policy)
	q.policy, q.guards = next, append(q.guards, next.Guard)
	q.noGuard = q.noGuard || next.Guard == throttle.NoGuard
	q.mu.Unlock()
	done := q.changingProvider.change(next.Tiers)
	defer func() {
		if w.kind == "redis" {
			time.Sleep(2 * ms) // calls on their way are decided under the policy before
		}
		done()
		q.mu.Lock()
		defer q.mu.Unlock()
		q.guards = q.guards[1:]
	}()
	if err := pick(r, q.setters...).SetPolicy(w.ctx, next); err != nil {
		w.fail("%s: SetPolicy(%v): %v", w.kind, next, err)
	}
}

func (w *policyWorld) request(c *policyCaller) {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	if c.within > 0 {
		ctx, cancel = context.WithTimeout(ctx, c.within)
		defer cancel()
	}
	if c.gone > 0 {
		defer time.AfterFunc(c.gone, cancel).Stop()
	}
	n := max(1, c.cost["requests"])
	var p *throttle.Permit
	switch c.method {
	case 0:
		if c.handle.AllowN(n) {
			w.sent(c, throttle.Cost{"requests": n})
		}
		return
	case 1, 2, 3:
		if c.handle.WaitN(ctx, n) == nil {
			c.admitted = time.Now()
			w.sent(c, throttle.Cost{"requests": n})
		}
		return
	case 4:
		var err error
		if p, err = c.handle.TryAcquire(ctx, c.cost); err != nil {
			return
		}
	default:
		var err error
		if p, err = c.handle.Acquire(ctx, c.cost); err != nil {
			return
		}
		c.admitted = time.Now()
	}
	defer p.Release()
	r := w.sent(c, c.cost)
	defer r.release() // before the Permit's
	time.Sleep(r.delay() + upTo(c.Rand, 30*ms))
	switch c.IntN(6) {
	case 0:
		_ = p.Refused(w.ctx, upTo(c.Rand, 50*ms))
	case 1:
		// no response came
	case 2:
		r.settle("tokens", c.Int64N(c.cost["tokens"]+1))
		_ = p.Settle(throttle.Cost{"tokens": r.cost["tokens"]})
	default:
		p.Passed()
	}
	time.Sleep(upTo(c.Rand, 30*ms))
}

// sent tells the provider of a request that arrives within the guard.
func (w *policyWorld) sent(c *policyCaller, cost throttle.Cost) *sentRequest {
	guard := hour
	for _, q := range c.handle.quotas {
		q.mu.Lock()
		guard = min(guard, max(0, slices.Min(q.guards)))
		q.mu.Unlock()
	}
	delay := time.Duration(0)
	if guard > 0 {
		delay = time.Duration(c.Int64N(int64(guard)))
	}
	r := newSentRequest(time.Now(), delay, cost)
	for _, q := range c.handle.quotas {
		q.send(r)
	}
	return r
}

func (w *policyWorld) check() {
	all := make(chan struct{})
	go func() { w.wg.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(w.patience()):
		w.fail("%s: callers wait for ever: %s", w.kind, w.waiting())
	}
	w.cancel()
	select {
	case <-all:
	case <-time.After(hour):
		w.fail("%s: callers ignore the end of their contexts: %s", w.kind, w.waiting())
		return
	}
	if w.kind == "local" {
		time.Sleep(48 * hour) // a calendar's day
	} else {
		time.Sleep(time.Minute)
	}
	for _, q := range w.quotas {
		if problem := q.verdict(); problem != "" && !(w.kind == "redis" && q.noGuard) {
			w.fail("%s: %s", w.kind, problem)
		}
		if err := q.setters[0].Resume(context.Background()); err != nil {
			w.fail("%s: Resume: %v", w.kind, err)
		}
	}
	w.checkOrder()
	for i, h := range w.handles {
		if left := leftOver(h.Limiter); left != "" {
			w.fail("%s, handle %d: %s", w.kind, i, left)
			return
		}
	}
	for i, h := range w.handles {
		c := capacity(h.quotas)
		p, err := h.TryAcquire(context.Background(), c)
		if err != nil {
			w.fail("%s, handle %d: a request of %v is refused by an unused quota: %v", w.kind, i, c, err)
		}
		p.Arrived()
		p.Release()
		time.Sleep(48 * hour)
	}
}

// patience returns how long callers may wait: for some days of a calendar, or else for an hour.
func (w *policyWorld) patience() time.Duration {
	if w.kind == "local" {
		return 20 * 24 * hour
	}
	return hour
}

// checkOrder checks that no caller overtook another one that came by the same Limiter before it. A
// request that costs nothing in the quota waits only for a pause. It leaves out nested quotas: callers
// that wait for an outer quota don't hold up the others, so one that the outer quota admits and the
// changed inner policy then refuses may be overtaken. TestStormOfOrder has those without changes.
func (w *policyWorld) checkOrder() {
	byArrival := slices.SortedFunc(slices.Values(w.callers), func(a, b *policyCaller) int { return cmp.Compare(a.arrives, b.arrives) })
	byArrival = slices.DeleteFunc(byArrival, func(c *policyCaller) bool {
		return c.admitted.IsZero() || len(c.handle.quotas) > 1 ||
			c.handle.quotas[0].wasFree(c.cost, w.start.Add(c.arrives), c.admitted)
	})
	for i, a := range byArrival {
		for _, b := range byArrival[i+1:] {
			if a.handle.Limiter == b.handle.Limiter && b.admitted.Before(a.admitted) {
				w.fail("%s: caller %d, method %d, which came at %v, was admitted %v after caller %d, method %d, which came at %v",
					w.kind, a.number, a.method, a.arrives, a.admitted.Sub(b.admitted), b.number, b.method, b.arrives)
				return
			}
		}
	}
}

func (w *policyWorld) waiting() (text string) {
	for _, c := range w.callers {
		if !c.ended {
			text += fmt.Sprintf(" caller %d by method %d", c.number, c.method)
		}
	}
	return text
}

// capacity returns the largest cost that all tiers of the quotas admit at once.
func capacity(quotas []*changingQuota) throttle.Cost {
	c := make(throttle.Cost)
	for _, q := range quotas {
		for _, tier := range q.now() {
			if most, ok := c[unitOf(tier)]; !ok || most > tier.Capacity() {
				c[unitOf(tier)] = tier.Capacity()
			}
		}
	}
	return c
}

// TestOuterCountsInRedis checks that a request by a nested Limiter is charged in the quota around it,
// whichever units the inner policy counts.
func TestOuterCountsInRedis(t *testing.T) {
	jobs := throttle.Tier{Limit: 100, Window: sec, Unit: "jobs"}
	for name, tiers := range map[string][]throttle.Tier{
		"the same unit": {throttle.PerSecond(100)}, "another unit": {jobs}, "both": {jobs, throttle.PerSecond(100)},
		"concurrency": {{Limit: 100, Algorithm: throttle.Concurrency}}, "concurrency of another unit": {{Limit: 100, Algorithm: throttle.Concurrency, Unit: "jobs"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := redismem.New()
				rdb := redismem.Dial(server, func() time.Duration { return ms / 2 })
				defer func() {
					time.Sleep(6 * sec) // a subscription stays open for five seconds
					rdb.Close()
					server.Close()
					time.Sleep(time.Minute)
				}()
				s := distributed.New(rdb, distributed.Options{})
				outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, s)
				nested := mustNew(t, throttle.Policy{Name: "inner", Tiers: tiers}, s).Within(outer)
				ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
				defer cancel()
				admitted := 0
				for range 20 {
					p, err := nested.Acquire(ctx, throttle.Cost{"requests": 1})
					if err == nil {
						admitted++
					}
					defer p.Release()
				}
				if admitted != 5 {
					t.Errorf("%d admitted within half a second, want the 5 of the quota around", admitted)
				}
			})
		})
	}
}
