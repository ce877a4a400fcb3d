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

// The tests here are about fleets whose messages take any time, there and back, and whose server
// has a clock of its own: what is sent is in time, whatever the fleet knows of that clock.

// A world is a server with a clock, processes on wires to it, and the provider, which has
// the server's clock.
type world struct {
	*dice
	server *miniredis.Miniredis
	began  time.Time
	rate   float64 // of the server's clock
	bursts []burst // when callers send; nil if again and again
	steps  []step  // back, of the server's clock
	sent   []event
}

// A burst is when some part of all callers send at once, or do not after all.
type burst struct {
	at   time.Time
	part float64
	lost bool
}

// A step is how far a clock is set back at an instant.
type step struct {
	at  time.Time
	far time.Duration
}

// Dice draw, for all goroutines of a world.
type dice struct {
	mu  sync.Mutex // guards all below, and what else a world has
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

// clock is what the clock of the provider shows, and that of the server but for its steps.
func (w *world) clock(at time.Time) time.Time {
	return beginning.Add(time.Duration(float64(at.Sub(w.began)) * w.rate))
}

// stepped is what the clock of the server shows.
func (w *world) stepped(at time.Time) time.Time {
	shows := w.clock(at)
	for _, s := range w.steps {
		if !at.Before(s.at) {
			shows = shows.Add(-s.far)
		}
	}
	return shows
}

// set has the server's clock be set back now and then, unless windows of that clock matter.
func (w *world) set(p throttle.Policy, during time.Duration) {
	if slices.ContainsFunc(p.Tiers, func(t throttle.Tier) bool { return t.Algorithm == throttle.FixedWindow }) {
		return
	}
	for range w.n(4) {
		far := time.Duration(float64(100*time.Microsecond) * math.Pow(30_000, w.float()))
		w.steps = append(w.steps, step{w.began.Add(w.between(0, during)), far})
	}
}

// process returns a client whose messages take some time there, and back.
func (w *world) process(t *testing.T, there, back func() time.Duration) *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", // a name would be looked up
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			c, err := w.server.Dial()
			if err != nil {
				return nil, err
			}
			return twoWays(c, there, back, func() { w.server.SetTime(w.stepped(time.Now())) }), nil
		},
		DisableIdentity: true,
		PoolSize:        256, // nobody waits for a connection
		Protocol:        2,   // a connection of 3 takes a lock while it waits, and virtual time stands still
	})
	t.Cleanup(func() {
		time.Sleep(6 * sec) // a listener lingers for five
		rdb.Close()
	})
	return rdb
}

// send is a request that arrives within the guard, any time.
func (w *world) send(guard time.Duration, cost int64) {
	at := time.Now().Add(w.between(0, guard))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, event{At: w.clock(at).UnixMicro(), Cost: cost})
}

// delays returns how long messages take: about the same, now and then for far longer, or for
// longer at times; and how long nearly all of them take at most.
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

// storms are the bursts of some time, small ones and large ones.
func (d *dice) storms(during, window time.Duration) (all []burst) {
	for at := time.Duration(0); at < during; at += d.between(0, 2*window) {
		part := d.float()
		all = append(all, burst{time.Now().Add(at), part * part * part, d.n(3) == 0})
	}
	return all
}

var worlds = flag.Uint64("world", 0, "the seed of the first random world; 0: another one each time")

// Nothing that a fleet sends is refused by a provider that knows when it arrives, and the
// limits are used as far as the slowest process allows, however long messages take, if the
// server's clock gains or loses or is set back, and if what was charged is never sent.
func TestFleetClocks(t *testing.T) {
	t.Parallel()
	seeds := []uint64{7018, 7027, 7057} // where a fleet is refused that knows the clock wrongly
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
		end := w.clock(time.Now().Add(during))
		var wg sync.WaitGroup
		costs, gives, loses := 1+w.n(2), w.float()*0.6, w.float()*0.1
		crowd := p.Tiers[0].Limit
		if w.n(2) == 0 {
			crowd = crowd/2 + 1
			w.bursts = w.storms(during, p.Tiers[0].Window)
		}
		w.set(p, during)
		slowest := time.Duration(0)
		for range 1 + w.n(5) {
			there, a := w.delays()
			back, b := w.delays()
			slowest = max(slowest, a+b)
			l := limiter(t, p, distributed.New(w.process(t, there, back), distributed.Options{}))
			for range crowd + w.n(2*crowd) {
				wg.Go(func() { w.caller(ctx, l, p.Guard, costs, gives, loses) })
			}
		}
		wg.Wait()
		slices.SortFunc(w.sent, func(a, b event) int { return cmp.Compare(a.At, b.At) })
		checkBound(t, w.sent, p.Tiers...)
		used := usedPart(t, w.sent, end, p.Tiers...)
		window := p.Tiers[0].Window
		best := float64(window) / float64(window+p.Guard+slowest+15*ms)
		if used < 0.3*best && w.bursts == nil {
			t.Errorf("%.2f of the limits is used, want %.2f at least", used, 0.3*best)
		}
		t.Logf("%v, rate %.0f ppm: %d sent, %.2f used, %.2f at best", p, (w.rate-1)*1e6, len(w.sent), used, best)
	})
}

// A window that a request was charged to and never sent opens with the next one.
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

// A time that was reserved before the server's clock was set back is not lent after it: it would be
// later then, and beside those of others who know the clock as it was.
func TestFleetGivesBackBeforeStep(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ far, gives time.Duration }{
		"before a step that Redis sees":      {far: 900 * ms, gives: 100 * ms},
		"after a step that Redis sees":       {far: 900 * ms, gives: 600 * ms},
		"before one that only processes see": {far: 500 * ms, gives: 100 * ms},
		"after one that only processes see":  {far: 500 * ms, gives: 600 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				w := &world{dice: &dice{src: rand.New(rand.NewPCG(1, 2))}, server: s, began: time.Now(), rate: 1}
				w.steps = []step{{w.began.Add(500 * ms), tc.far}}
				p := throttle.Policy{Name: "gives", Guard: 10 * ms, Tiers: []throttle.Tier{per(sec, 10, throttle.SlidingLog)}}
				process := func() *throttle.Limiter {
					soon := func() time.Duration { return ms }
					l := limiter(t, p, distributed.New(w.process(t, soon, soon), distributed.Options{}))
					return l
				}
				gives, waits, comes := process(), process(), process()
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
				send(ctx, gives, 3)
				send(ctx, waits, 3)
				send(ctx, comes, 4)
				send(ctx, gives, 10)         // a second later
				send(t.Context(), waits, 10) // and another one
				time.AfterFunc(time.Until(w.began.Add(tc.gives)), cancel)
				time.Sleep(time.Until(w.began.Add(720 * ms)))
				send(t.Context(), comes, 10)
				wg.Wait()
				slices.SortFunc(w.sent, func(a, b event) int { return cmp.Compare(a.At, b.At) })
				checkBound(t, w.sent, p.Tiers...)
				if len(w.sent) != 5 {
					t.Errorf("%d were sent, want 5", len(w.sent))
				}
			})
		})
	}
}

func usedPart(t *testing.T, all []event, end time.Time, tiers ...throttle.Tier) float64 {
	if len(all) == 0 {
		return 0
	}
	var sent int64
	for _, e := range all {
		sent += e.Cost
	}
	_, most := atBest(t, all, end.UnixMicro(), tiers...)
	return float64(sent) / float64(most)
}

// caller sends again and again, and now and then gives up, or does not send after all.
func (w *world) caller(ctx context.Context, l *throttle.Limiter, guard time.Duration, costs int64, gives, loses float64) {
	for i := 0; ctx.Err() == nil; i++ {
		if w.bursts != nil {
			if i == len(w.bursts) {
				return
			}
			left := time.Until(w.bursts[i].at)
			if time.Sleep(left); left < 0 || w.float() > w.bursts[i].part {
				continue
			}
			if loses = 0; w.bursts[i].lost {
				loses = 1
			}
		}
		cost := 1 + w.n(costs)
		one, cancel := ctx, context.CancelFunc(func() {})
		if w.float() < gives {
			one, cancel = context.WithTimeout(ctx, time.Hour)
			time.AfterFunc(w.between(0, sec), cancel)
		}
		if w.float() < 0.1 {
			if l.AllowN(cost) && w.float() > loses {
				w.send(guard, cost)
			}
			time.Sleep(w.between(0, 50*ms))
		} else if l.WaitN(one, cost) != nil {
			time.Sleep(w.between(0, 50*ms)) // it has given up, or would wait until after the end
		} else if w.float() > loses {
			w.send(guard, cost)
		}
		cancel()
	}
}

// twoWays makes a cable whose ways take different times, and calls arrive before a message does.
func twoWays(c net.Conn, there, back func() time.Duration, arrive func()) net.Conn {
	k := &cable{Conn: c, delay: there, answers: back, arrive: arrive,
		there: make(chan message, 1024), back: make(chan message, 1024), closed: make(chan struct{}),
	}
	go k.deliver()
	go k.receive()
	return k
}
