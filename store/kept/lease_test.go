package kept_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/keptmem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store/kept"
)

const (
	ms    = time.Millisecond
	sec   = time.Second
	lease = 10 * sec // the default
)

// A process is one of a fleet.
type process struct {
	*throttle.Limiter
	client *keptmem.Client
	store  *kept.Store
}

// start starts a process of a fleet.
func (f *fleet) start(t testing.TB, p throttle.Policy, way time.Duration) *process {
	t.Helper()
	c := f.server.Client(way)
	s := kept.New(c, kept.Options{Name: "kept", Ahead: true})
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return &process{l, c, s}
}

// places returns a policy of places.
func places(limit int64, more ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: "places", Guard: 20 * ms, Tiers: append([]throttle.Tier{{Limit: limit, Algorithm: throttle.Concurrency}}, more...)}
}

// take takes a place, or ends the test.
func (p *process) take(t testing.TB) *throttle.Permit {
	t.Helper()
	got, err := p.Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// free returns how many places a fresh process gets at once, and gives them back.
func (f *fleet) free(t testing.TB, p throttle.Policy) (n int) {
	t.Helper()
	fresh := f.start(t, p, 0)
	var got []*throttle.Permit
	for range 20 {
		p, err := fresh.TryAcquire(t.Context(), nil)
		if err != nil {
			break
		}
		got = append(got, p)
	}
	for _, p := range got {
		p.Release()
	}
	_ = fresh.store.Flush(t.Context())
	return len(got)
}

// A stormOfPlaces is processes whose callers take places, and what happens to them.
type stormOfPlaces struct {
	fleet
	*testing.T
	limit   int64
	policy  throttle.Policy
	open    atomic.Int64
	most    atomic.Int64
	granted atomic.Int64
	ctx     context.Context
	callers sync.WaitGroup
}

// call takes a place again and again.
func (s *stormOfPlaces) call(p *process, r *rand.Rand) {
	for s.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(s.ctx, time.Duration(r.Int64N(int64(3*sec))))
		acquire := p.Acquire
		if r.IntN(4) == 0 {
			acquire = p.TryAcquire
		}
		got, err := acquire(ctx, nil)
		cancel()
		if err != nil {
			time.Sleep(time.Duration(r.Int64N(int64(100 * ms))))
			continue
		}
		s.granted.Add(1)
		if n := s.open.Add(1); n > s.most.Load() {
			s.most.Store(n)
		}
		time.Sleep(time.Duration(r.Int64N(int64(sec))))
		s.open.Add(-1)
		if r.IntN(3) == 0 {
			_ = got.Cancel(s.ctx)
		}
		got.Release()
	}
}

// fault is one of the things that happen to a fleet. It lasts for a random time.
func (s *stormOfPlaces) fault(r *rand.Rand, all []*process) {
	length := time.Duration(r.Int64N(int64(3 * sec)))
	switch r.IntN(7) {
	case 0:
		s.server.SetLost(true)
		time.Sleep(length)
		s.server.SetLost(false)
	case 1:
		s.server.SetAway(true)
		time.Sleep(10 * length)
		s.server.SetAway(false)
	case 2:
		s.server.Step(time.Duration(r.Int64N(int64(60*sec))) - 30*sec)
	case 3:
		s.server.Drop()
	case 4:
		p := all[r.IntN(len(all))]
		p.client.SetCut(true)
		time.Sleep(min(length, 2*sec))
		p.client.SetCut(false)
	case 5:
		tiers := places(s.limit, s.policy.Tiers[1], throttle.Tier{Limit: 1000, Window: time.Duration(1+r.IntN(2)) * sec})
		_ = all[r.IntN(len(all))].SetPolicy(s.ctx, tiers)
	}
	time.Sleep(length)
}

// However calls end, and whatever happens to the server, no more places are open than there are. Afterwards all
// are free.
func TestPlacesAreBounded(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	for seed := range uint64(soak.Times(25)) {
		synctest.Test(t, func(t *testing.T) {
			s := &stormOfPlaces{fleet: *newFleet(t), T: t, limit: 4}
			s.policy = places(s.limit, throttle.Tier{Limit: int64(1 + seed%4), Window: sec, Algorithm: throttle.TokenBucket, Burst: 6})
			ctx, cancel := context.WithTimeout(t.Context(), 90*sec)
			defer cancel()
			s.ctx = ctx
			var all []*process
			for i, way := range []time.Duration{100 * time.Microsecond, ms, 20 * ms} {
				p := s.start(t, s.policy, way)
				all = append(all, p)
				for j := range 4 {
					s.callers.Go(func() { s.call(p, rand.New(rand.NewPCG(seed, uint64(10*i+j)))) })
				}
			}
			r := rand.New(rand.NewPCG(seed, 99))
			for ctx.Err() == nil {
				s.fault(r, all)
			}
			s.callers.Wait()
			s.server.SetAway(false)
			s.server.SetLost(false)
			if most := s.most.Load(); most > s.limit {
				t.Errorf("seed %d: %d places are open, want %d at most", seed, most, s.limit)
			}
			if n := s.granted.Load(); n < 40 {
				t.Errorf("seed %d: %d requests had a place, want 40 at least", seed, n)
			}
			time.Sleep(10 * sec) // a third of a lease after a loss, and the bucket
			if n := s.free(t, s.policy); int64(n) != s.limit {
				t.Errorf("seed %d: %d places are free at last, want %d", seed, n, s.limit)
			}
		})
	}
}

// The places of a process that dies are free when its lease ends, and not before.
func TestLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		dies, lives := f.start(t, places(1), ms), f.start(t, places(1), ms)
		dies.take(t)
		time.Sleep(time.Minute) // it renews its lease
		dies.client.SetCut(true)
		died := time.Now()
		lives.take(t).Release()
		if took := time.Since(died); took < 7*sec || took > lease+time.Second {
			t.Errorf("got the place of a dead process after %v, want it 7.5s to 10s later", took)
		}
		time.Sleep(sec)
		if n := f.free(t, places(1)); n != 1 {
			t.Errorf("%d places are free, want 1", n)
		}
	})
}

// While no process can reach the server, no lease ends, for up to twelve leases, whichever process calls first.
func TestLeaseOutlastsOutage(t *testing.T) {
	for _, away := range []time.Duration{12 * sec, 60 * sec, 115 * sec} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			holds, waits := f.start(t, places(1), ms), f.start(t, places(1), ms)
			held := holds.take(t)
			time.Sleep(5 * sec)
			f.server.SetAway(true)
			var got atomic.Bool
			go func() {
				if p, err := waits.Acquire(t.Context(), nil); err == nil {
					got.Store(true)
					p.Release()
				}
			}()
			time.Sleep(away)
			f.server.SetAway(false)
			if _, err := f.start(t, places(1), 0).TryAcquire(t.Context(), nil); err == nil {
				t.Errorf("away for %v: a fresh process got a place that is held", away)
			}
			time.Sleep(30 * sec)
			if got.Load() {
				t.Errorf("away for %v: got a place that is held", away)
			}
			held.Release()
			time.Sleep(2 * sec)
			if !got.Load() {
				t.Errorf("away for %v: no place 2s after its release", away)
			}
		})
	}
}

// A process that dies during an outage keeps its places no longer than a lease of the time in which the others call.
func TestDeadDoNotOutlastRareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		dies, lives := f.start(t, places(1), ms), f.start(t, places(1), ms)
		dies.take(t)
		dies.client.SetCut(true)
		for calls := 1; ; calls++ {
			time.Sleep(20 * sec)
			if p, err := lives.TryAcquire(t.Context(), nil); err == nil {
				p.Release()
				break
			}
			if calls == 4 {
				t.Fatal("no place after four calls in 80s")
			}
		}
	})
}

// After a loss, no place is granted until each process has reported what it holds.
func TestLossKeepsPlaces(t *testing.T) {
	for name, lose := range map[string]func(s *keptmem.Server, old []byte){
		"dropped": func(s *keptmem.Server, _ []byte) { s.Drop() },
		"older":   func(s *keptmem.Server, old []byte) { s.Put(kept.Name("places"), old) },
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			a, b, c := f.start(t, places(3), ms), f.start(t, places(3), 20*ms), f.start(t, places(3), ms)
			c.take(t).Release()
			time.Sleep(sec)
			old := slices.Clone(f.server.Value(kept.Name("places")))
			held := []*throttle.Permit{a.take(t), b.take(t)}
			time.Sleep(sec)
			if _, err := c.Status(t.Context()); err != nil { // so it knows that some are held
				t.Fatal(err)
			}
			lose(f.server, old)
			lost := time.Now()
			last := c.take(t)
			if took := time.Since(lost); took < lease/3 || took > lease/3+sec {
				t.Errorf("%s: got a place after %v, want a third of a lease", name, took)
			}
			if _, err := c.TryAcquire(t.Context(), nil); err == nil {
				t.Errorf("%s: got more places than there are", name)
			}
			for _, p := range append(held, last) {
				p.Release()
			}
			time.Sleep(sec)
			if n := f.free(t, places(3)); n != 3 {
				t.Errorf("%s: %d places are free at last, want 3", name, n)
			}
		})
	}
}

// A place that was granted with a reply that was lost is free again soon, although its caller has left.
func TestLostGrantIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := f.start(t, places(1), ms)
		p.take(t).Release()
		time.Sleep(sec)
		f.server.SetLost(true)
		ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
		defer cancel()
		if _, err := p.Acquire(ctx, nil); err == nil {
			t.Fatal("got a place without a reply")
		}
		f.server.SetLost(false)
		time.Sleep(2 * sec)
		if n := f.free(t, places(1)); n != 1 {
			t.Errorf("%d places are free 2s later, want 1", n)
		}
	})
}

// A release is reported also if the server was away when its caller made it.
func TestReleaseOutlastsOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := f.start(t, places(1), ms)
		held := p.take(t)
		f.server.SetAway(true)
		held.Release()
		time.Sleep(5 * sec)
		f.server.SetAway(false)
		time.Sleep(2 * sec)
		if n := f.free(t, places(1)); n != 1 {
			t.Errorf("%d places are free 2s after the server is back, want 1", n)
		}
	})
}

// A place that becomes free goes to the process that has waited longest. If its callers have left, the next process gets it
// at once, and if it has died, after two seconds.
func TestPlacesGoInOrder(t *testing.T) {
	for name, most := range map[string]time.Duration{"in order": 50 * ms, "canceled": 50 * ms, "dead": 3 * sec, "ten dead": 3500 * ms} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				first := f.start(t, places(1), ms)
				held := first.take(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				got := make(chan int, 20)
				wait := func(ctx context.Context, i int) *process {
					p := f.start(t, places(1), ms)
					go func() {
						if permit, err := p.Acquire(ctx, nil); err == nil {
							got <- i
							time.Sleep(sec)
							permit.Release()
						}
					}()
					time.Sleep(100 * ms)
					return p
				}
				before := []*process{wait(ctx, 1)}
				if name == "ten dead" {
					for range 9 {
						before = append(before, wait(ctx, 1))
					}
				}
				wait(t.Context(), 2)
				switch name {
				case "canceled":
					cancel()
				case "dead", "ten dead":
					for _, p := range before {
						p.client.SetCut(true)
					}
				}
				time.Sleep(100 * ms)
				released := time.Now()
				held.Release()
				want := []int{1, 2}
				if name != "in order" {
					want = want[1:]
				}
				for _, who := range want {
					if next := <-got; next != who || time.Since(released) > most {
						t.Errorf("process %d got the place after %v, want %d within %v", next, time.Since(released), who, most)
					}
					released = released.Add(sec)
				}
				time.Sleep(2 * sec)
			})
		})
	}
}

// crowd lets callers of processes take places for 0.2 s to 2 s, and returns how many each process got, and which part of the
// time the places were in use.
func (f *fleet) crowd(t *testing.T, p throttle.Policy, limit int64, callers int, length time.Duration, ways ...time.Duration) (got []int, use float64) {
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	got = make([]int, len(ways))
	var mu sync.Mutex
	var used time.Duration
	var all sync.WaitGroup
	began := time.Now()
	for i, way := range ways {
		l := f.start(t, p, way)
		for j := range callers {
			r := rand.New(rand.NewPCG(uint64(i), uint64(j)))
			all.Go(func() {
				for {
					permit, err := l.Acquire(ctx, nil)
					if err != nil {
						return
					}
					takes := 200*ms + time.Duration(r.Int64N(int64(1800*ms)))
					mu.Lock()
					got[i]++
					used += min(takes, length-time.Since(began))
					mu.Unlock()
					time.Sleep(takes)
					permit.Release()
				}
			})
		}
	}
	all.Wait()
	return got, used.Seconds() / length.Seconds() / float64(limit)
}

// Processes that wait for places have equal turns, and the places are in use.
func TestPlacesAreShared(t *testing.T) {
	soak.Slow(t, "a fleet plays for minutes")
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		_, alone := f.crowd(t, places(4), 4, 24, time.Minute, 100*time.Microsecond)
		f = newFleet(t)
		got, use := f.crowd(t, places(4), 4, 8, time.Minute, 100*time.Microsecond, ms, 20*ms)
		updates, writes, _ := f.server.Count()
		t.Logf("alone %.3f in use; %v %.3f in use, %d transactions, %d written", alone, got, use, updates, writes)
		if use < 0.9*alone {
			t.Errorf("%.3f of the places are in use, want 0.9 of %.3f", use, alone)
		}
		if slices.Min(got)*100 < slices.Max(got)*65 { // the farthest polls with trips of 80 ms
			t.Errorf("by process: %v", got)
		}
	})
}

// Many processes that wait for one place ask the server a bounded number of times, and not at all at rest.
func TestWaitingIsCheap(t *testing.T) {
	soak.Long(t, "needs 200 processes")
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		held := f.start(t, places(1), ms).take(t)
		ctx, cancel := context.WithCancel(t.Context())
		for range 200 {
			p := f.start(t, places(1), ms)
			go func() {
				if got, err := p.Acquire(ctx, nil); err == nil {
					got.Release()
				}
			}()
		}
		time.Sleep(10 * sec)
		before, wrote, _ := f.server.Count()
		time.Sleep(10 * sec)
		after, writes, _ := f.server.Count()
		t.Logf("%d transactions in 10s, %d written, %d bytes", after-before, writes-wrote, len(f.server.Value(kept.Name("places"))))
		if n := after - before; n > 4000 {
			t.Errorf("%d transactions in 10s, want 4000 at most", n)
		}
		cancel()
		held.Release()
		time.Sleep(15 * sec)
		before, _, _ = f.server.Count()
		time.Sleep(time.Minute)
		if after, _, _ := f.server.Count(); after != before {
			t.Errorf("%d transactions in a minute at rest", after-before)
		}
		if n := f.free(t, places(1)); n != 1 {
			t.Errorf("%d places are free at last, want 1", n)
		}
	})
}

// A value keeps 400 processes. One too many gets an error that says so, and the others go on.
func TestManyHolders(t *testing.T) {
	soak.Long(t, "needs many processes")
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := places(10_000, throttle.PerSecond(1000), throttle.PerHour(1_000_000))
		var held []*throttle.Permit
		var failed error
		var last *process
		for failed == nil && len(held) < 2000 {
			one := f.start(t, p, 0)
			got, err := one.TryAcquire(t.Context(), nil)
			if failed = err; err == nil {
				held, last = append(held, got), one
			}
		}
		held = append(held, last.take(t)) // those that have a place go on
		size := len(f.server.Value(kept.Name("places")))
		t.Logf("%d processes, %d bytes: %v", len(held), size, failed)
		if len(held) <= 400 || size > kept.MostBytes || failed == nil || errors.Is(failed, throttle.ErrUnavailable) || !strings.Contains(failed.Error(), fmt.Sprintf("%d processes", len(held)-1)) {
			t.Errorf("%d processes in %d bytes, then %v; want 400 at least, and an error that lasts", len(held), size, failed)
		}
		if n := len(f.server.Value(kept.Name("places"))); n != size {
			t.Errorf("%d bytes after a refusal, want %d", n, size)
		}
		for _, p := range held {
			p.Release()
		}
		time.Sleep(3 * sec)
		if size := len(f.server.Value(kept.Name("places"))); size > 300 {
			t.Errorf("%d bytes at last", size)
		}
	})
}

// A permit that was released while the keeper was away is free for others soon after its return, however long the
// lease is.
func TestReleasedWhileAway(t *testing.T) {
	for _, lease := range []time.Duration{10 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			server := keptmem.New()
			open := func() *throttle.Limiter {
				s := kept.New(server.Client(time.Millisecond), kept.Options{Name: "kept", Ahead: true, Lease: lease})
				l, err := throttle.New(throttle.Policy{Name: "places", Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}}, s)
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			held, err := open().Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			other := open()
			server.SetAway(true)
			held.Release()
			time.Sleep(time.Minute)
			server.SetAway(false)
			began := time.Now()
			permit, err := other.Acquire(t.Context(), nil)
			if took := time.Since(began); err != nil || took > 10*time.Second {
				t.Errorf("a lease of %v: %v after %v, want the permit within 10 s", lease, err, took)
			}
			permit.Release()
			time.Sleep(time.Second)
			server.Close()
			time.Sleep(2 * time.Minute)
		})
	}
}
