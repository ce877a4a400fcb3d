package distributed_test

import (
	"cmp"
	"context"
	"flag"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// The tests here run fleets whose messages take any time in each direction, and whose server has a
// clock of its own. A fleet must not exceed its limits, however little it knows of that clock.

// A world is a server with a clock, processes that are connected to it, and the provider. The
// provider's clock runs at the rate of the server's clock.
type world struct {
	*dice
	server *miniredis.Miniredis
	began  time.Time
	rate   float64 // of the clocks of the server and the provider
	bursts []burst // when callers send. If nil, they send again and again
	steps  []step  // by which the server's clock is set back
	sent   []event
}

// A burst is an instant at which a part of all callers asks at once. If lost, they are admitted and
// send nothing.
type burst struct {
	at   time.Time
	part float64
	lost bool
}

// A step sets a clock back at an instant.
type step struct {
	at time.Time
	by time.Duration
}

// A dice draws random values for all goroutines of a world.
type dice struct {
	mu  sync.Mutex // guards all below, and world.sent
	src *rand.Rand
}

func (d *dice) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.float()*float64(most-least))
}

func (d *dice) n(n int64) int64 { return int64(d.float() * float64(n)) }

func (d *dice) float() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.src.Float64()
}

// providerClock returns what the provider's clock shows. The server's clock differs from it by its
// steps only.
func (w *world) providerClock(at time.Time) time.Time {
	return beginning.Add(time.Duration(float64(at.Sub(w.began)) * w.rate))
}

// serverClock returns what the server's clock shows.
func (w *world) serverClock(at time.Time) time.Time {
	now := w.providerClock(at)
	for _, s := range w.steps {
		if !at.Before(s.at) {
			now = now.Add(-s.by)
		}
	}
	return now
}

// addSteps draws steps that set the server's clock back, unless p has windows that follow that
// clock.
func (w *world) addSteps(p throttle.Policy, during time.Duration) {
	if slices.ContainsFunc(p.Tiers, func(t throttle.Tier) bool { return t.Algorithm == throttle.FixedWindow }) {
		return
	}
	for range w.n(4) {
		by := time.Duration(float64(100*time.Microsecond) * math.Pow(30_000, w.float()))
		w.steps = append(w.steps, step{w.began.Add(w.between(0, during)), by})
	}
}

// process returns a client whose messages take the times that there and back return.
func (w *world) process(t *testing.T, there, back func() time.Duration) *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", // a name would be looked up
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			c, err := w.server.Dial()
			if err != nil {
				return nil, err
			}
			return twoWays(c, there, back, func() { w.server.SetTime(w.serverClock(time.Now())) }), nil
		},
		DisableIdentity: true,
		PoolSize:        256, // no caller waits for a connection
		Protocol:        2,   // connections of protocol 3 hold a lock while they wait, which stops virtual time
	})
	t.Cleanup(func() {
		time.Sleep(6 * sec) // a subscription stays open for five seconds
		rdb.Close()
	})
	return rdb
}

// send records a request that arrives at a random instant within the guard.
func (w *world) send(guard time.Duration, cost int64) {
	at := time.Now().Add(w.between(0, guard))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, event{At: w.providerClock(at).UnixMicro(), Cost: cost})
}

// delays returns a function that draws how long a message takes, and the most that nearly all of
// them take. The delay is constant, or varies by a factor of four, or has a heavy tail, or is
// longer for a while now and then.
func (d *dice) delays() (delay func() time.Duration, most time.Duration) {
	base := time.Duration(float64(100*time.Microsecond) * math.Pow(1500, d.float()))
	switch d.n(4) {
	case 0:
		return func() time.Duration { return base }, base
	case 1:
		return func() time.Duration { return d.between(base/2, 2*base) }, 2 * base
	case 2: // a heavy tail
		return func() time.Duration { return min(800*ms, time.Duration(float64(base)/math.Pow(d.float()+1e-9, 0.7))) }, min(800*ms, 8*base)
	default:
		every, lasts, more := d.between(sec, 3*sec), d.between(50*ms, 500*ms), d.between(20*ms, 400*ms)
		began := time.Now()
		return func() time.Duration {
			if time.Since(began)%every < lasts {
				return base + more
			}
			return base
		}, base + more
	}
}

func (d *dice) policy() throttle.Policy {
	kinds := []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.TokenBucket, throttle.GCRA, throttle.FixedWindow, throttle.AnchoredWindow}
	p := throttle.Policy{Name: "law", Guard: d.between(10*ms, 100*ms)}
	window := d.between(300*ms, 1500*ms).Truncate(ms)
	limit := 5 + d.n(60)
	for range 1 + d.n(2) {
		tier := per(window, limit, kinds[d.n(int64(len(kinds)))])
		if tier.Algorithm >= throttle.TokenBucket {
			tier.Burst = limit/2 + d.n(limit/2)
		}
		p.Tiers = append(p.Tiers, tier)
		window, limit = 2*window, limit+d.n(limit)
	}
	return p
}

// storms draws bursts of all sizes during a time.
func (d *dice) storms(during, window time.Duration) (all []burst) {
	for at := time.Duration(0); at < during; at += d.between(0, 2*window) {
		part := d.float()
		all = append(all, burst{time.Now().Add(at), part * part * part, d.n(3) == 0})
	}
	return all
}

var worlds = flag.Uint64("world", 0, "the seed of the first random world. If 0, a random seed")

// A provider that knows when each request arrives refuses none of a fleet's, and the fleet uses the
// limits as far as its slowest process allows. This holds however long messages take, if the
// server's clock gains or loses or is set back, and if charged requests are never sent.
func TestFleetClocks(t *testing.T) {
	t.Parallel()
	seeds := []uint64{7018, 7027, 7057} // the provider refuses a fleet here that has wrong bounds of the clock
	first, random := cmp.Or(*worlds, rand.Uint64()), soak.Times(5)
	if soak.Times(1) == 1 {
		random = 2
	}
	for i := range uint64(random) {
		seeds = append(seeds, first+i)
	}
	for _, seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { playWorld(t, seed) })
	}
}

func playWorld(t *testing.T, seed uint64) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		w := &world{dice: &dice{src: rand.New(rand.NewPCG(seed, 2))}, server: s, began: time.Now()}
		w.rate = 1 + (w.float()-0.5)*400e-6
		p := w.policy()
		const during = 6 * sec
		ctx, stop := context.WithTimeout(t.Context(), during)
		defer stop()
		end := w.providerClock(time.Now().Add(during))
		var wg sync.WaitGroup
		costs, cancelRate, lossRate := 1+w.n(2), w.float()*0.6, w.float()*0.1
		callers := p.Tiers[0].Limit
		if w.n(2) == 0 {
			callers = callers/2 + 1
			w.bursts = w.storms(during, p.Tiers[0].Window)
		}
		w.addSteps(p, during)
		slowest := time.Duration(0)
		for range 1 + w.n(5) {
			there, a := w.delays()
			back, b := w.delays()
			slowest = max(slowest, a+b)
			l := limiter(t, p, distributed.New(w.process(t, there, back), distributed.Options{}))
			for range callers + w.n(2*callers) {
				wg.Go(func() { w.caller(ctx, l, p.Guard, costs, cancelRate, lossRate) })
			}
		}
		wg.Wait()
		slices.SortFunc(w.sent, func(a, b event) int { return cmp.Compare(a.At, b.At) })
		checkBound(t, w.sent, p.Tiers...)
		used := usedShare(t, w.sent, end, p.Tiers...)
		window := p.Tiers[0].Window
		best := float64(window) / float64(window+p.Guard+slowest+15*ms)
		if used < 0.3*best && w.bursts == nil {
			t.Errorf("got %.2f of the limits used, want %.2f at least", used, 0.3*best)
		}
		t.Logf("%v, rate %.0f ppm: %d sent, %.2f used, %.2f at best", p, (w.rate-1)*1e6, len(w.sent), used, best)
	})
}

// An anchored window whose first charged request is never sent opens with the next request.
func TestFleetUnsentOpener(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		w := &world{dice: &dice{src: rand.New(rand.NewPCG(1, 2))}, server: s, began: time.Now(), rate: 1}
		p := throttle.Policy{Name: "opener", Guard: 50 * ms, Tiers: []throttle.Tier{per(sec, 10, throttle.AnchoredWindow)}}
		l := limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
		wait := func(requests int) {
			for range requests {
				if err := l.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.send(p.Guard, 1)
			}
		}
		wait(1)
		w.sent = nil
		time.Sleep(500 * ms)
		wait(9)
		time.Sleep(600 * ms)
		wait(10)
		checkBound(t, w.sent, p.Tiers...)
	})
}

// A reserved time that is returned is not lent to another request after the server's clock was set
// back. The request would be sent later by the new clock, beside requests of processes that still
// use the old one.
func TestFleetReturnsBeforeStep(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ by, cancelAt time.Duration }{
		"before a step that Redis notices":         {by: 900 * ms, cancelAt: 100 * ms},
		"after a step that Redis notices":          {by: 900 * ms, cancelAt: 600 * ms},
		"before a step that only processes notice": {by: 500 * ms, cancelAt: 100 * ms},
		"after a step that only processes notice":  {by: 500 * ms, cancelAt: 600 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				w := &world{dice: &dice{src: rand.New(rand.NewPCG(1, 2))}, server: s, began: time.Now(), rate: 1}
				w.steps = []step{{w.began.Add(500 * ms), tc.by}}
				p := throttle.Policy{Name: "canceled", Guard: 10 * ms, Tiers: []throttle.Tier{per(sec, 10, throttle.SlidingLog)}}
				process := func() *throttle.Limiter {
					soon := func() time.Duration { return ms }
					l := limiter(t, p, distributed.New(w.process(t, soon, soon), distributed.Options{}))
					return l
				}
				canceler, waiter, newcomer := process(), process(), process()
				var wg sync.WaitGroup
				send := func(ctx context.Context, l *throttle.Limiter, cost int64) {
					wg.Go(func() {
						if l.WaitN(ctx, cost) == nil {
							w.send(0, cost)
						}
					})
					time.Sleep(10 * ms)
				}
				ctx, cancel := context.WithCancel(t.Context())
				send(ctx, canceler, 3)
				send(ctx, waiter, 3)
				send(ctx, newcomer, 4)
				send(ctx, canceler, 10)       // a second later
				send(t.Context(), waiter, 10) // and another one
				time.AfterFunc(time.Until(w.began.Add(tc.cancelAt)), cancel)
				time.Sleep(time.Until(w.began.Add(720 * ms)))
				send(t.Context(), newcomer, 10)
				wg.Wait()
				slices.SortFunc(w.sent, func(a, b event) int { return cmp.Compare(a.At, b.At) })
				checkBound(t, w.sent, p.Tiers...)
				if len(w.sent) != 5 {
					t.Errorf("got %d requests sent, want 5", len(w.sent))
				}
			})
		})
	}
}

func usedShare(t *testing.T, all []event, end time.Time, tiers ...throttle.Tier) float64 {
	if len(all) == 0 {
		return 0
	}
	var sent int64
	for _, e := range all {
		sent += e.Cost
	}
	_, most := upperBound(t, all, end.UnixMicro(), tiers...)
	return float64(sent) / float64(most)
}

// caller sends requests one after the other, or at each burst. Some are canceled while they wait,
// and some are admitted and never sent.
func (w *world) caller(ctx context.Context, l *throttle.Limiter, guard time.Duration, costs int64, cancelRate, lossRate float64) {
	for i := 0; ctx.Err() == nil; i++ {
		if w.bursts != nil {
			if i == len(w.bursts) {
				return
			}
			left := time.Until(w.bursts[i].at)
			if time.Sleep(left); left < 0 || w.float() > w.bursts[i].part {
				continue
			}
			if lossRate = 0; w.bursts[i].lost {
				lossRate = 1
			}
		}
		cost := 1 + w.n(costs)
		one, cancel := ctx, context.CancelFunc(func() {})
		if w.float() < cancelRate {
			one, cancel = context.WithTimeout(ctx, time.Hour)
			time.AfterFunc(w.between(0, sec), cancel)
		}
		if w.float() < 0.1 {
			if l.AllowN(cost) && w.float() > lossRate {
				w.send(guard, cost)
			}
			time.Sleep(w.between(0, 50*ms))
		} else if l.WaitN(one, cost) != nil {
			time.Sleep(w.between(0, 50*ms)) // canceled, or refused because it would wait past the end
		} else if w.float() > lossRate {
			w.send(guard, cost)
		}
		cancel()
	}
}

// twoWays returns a cable with separate delays for each direction. It calls arrive before it
// delivers a message to the server.
func twoWays(c net.Conn, there, back func() time.Duration, arrive func()) net.Conn {
	k := &cable{Conn: c, delay: there, answers: back, arrive: arrive,
		there: make(chan message, 1024), back: make(chan message, 1024), closed: make(chan struct{}),
	}
	go k.deliver()
	go k.receive()
	return k
}
