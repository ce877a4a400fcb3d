package integration_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/soak"
)

// inProcess is the store of a member that each process has for itself.
const inProcess = -1

// A fleetMember is a member of the pools of all processes of a poolFleet.
type fleetMember struct {
	limit int64 // a second
	store int   // the index of its server, or inProcess
	rank  int
}

// A poolFleet is a number of processes, each with callers of a Pool of the same members.
type poolFleet struct {
	members   []fleetMember
	processes int
	callers   int             // of each process, which ask again and again
	rate      float64         // of the requests of all processes in a second, instead of callers
	mixed     bool            // requests cost 1 to 200 tokens, else one request
	trips     []time.Duration // round trips to the servers; half a millisecond beyond these
	spill     time.Duration
	lasts     time.Duration
	seed      uint64

	within   bool // each member lies in the quota of an account
	account  fleetMember
	deadline time.Duration // of each request; none if zero

	servers  []*miniredis.Miniredis
	gates    []*gate
	pools    []*throttle.Pool
	limiters [][]*throttle.Limiter // of the members, by process
	clients  [][]*redis.Client     // of the servers, by process
	scripts  []atomic.Int64        // calls of scripts, by server
	start    time.Time

	mu       sync.Mutex // guards all below
	admitted []fleetAdmission
	failed   []error
}

type fleetAdmission struct {
	process, member int
	cost            int64
	asked, at       time.Duration // since the start
}

// open makes the servers and the pools.
func (f *poolFleet) open(t *testing.T) {
	stores := 0
	for _, m := range f.members {
		stores = max(stores, m.store+1)
	}
	if f.within {
		stores = max(stores, f.account.store+1)
	}
	f.scripts = make([]atomic.Int64, stores)
	for i := range stores {
		s := redismem.New()
		t.Cleanup(s.Close)
		redismem.Hook(s, func(_ *server.Peer, name string, _ ...string) bool {
			if name == "EVALSHA" || name == "FCALL" {
				f.scripts[i].Add(1)
			}
			return false
		})
		f.servers, f.gates = append(f.servers, s), append(f.gates, new(gate))
	}
	for range f.processes {
		f.pools = append(f.pools, f.openProcess(t))
	}
	f.start = time.Now()
}

func (f *poolFleet) openProcess(t *testing.T) *throttle.Pool {
	var stores []throttle.Store
	var clients []*redis.Client
	for i, s := range f.servers {
		trip := 500 * time.Microsecond
		if i < len(f.trips) {
			trip = f.trips[i]
		}
		rdb := redismem.Dial(s, func() time.Duration { return trip })
		rdb.AddHook(f.gates[i])
		t.Cleanup(func() {
			time.Sleep(6 * time.Second) // a listener stays for five
			rdb.Close()
		})
		clients = append(clients, rdb)
		stores = append(stores, distributed.New(rdb, distributed.Options{}))
	}
	open := func(name string, m fleetMember) *throttle.Limiter {
		tier := throttle.PerSecond(m.limit)
		if f.mixed {
			tier.Unit = "tokens"
		}
		var store throttle.Store
		if m.store != inProcess {
			store = stores[m.store]
		}
		return mustNew(t, throttle.Policy{Name: name, Tiers: []throttle.Tier{tier}}, store)
	}
	var members []throttle.Member
	var limiters []*throttle.Limiter
	var account *throttle.Limiter
	if f.within {
		account = open("{fleet}account", f.account)
	}
	for i, m := range f.members {
		l := open(fmt.Sprint("{fleet}", i), m)
		limiters = append(limiters, l)
		if f.within {
			l = l.Within(account)
		}
		members = append(members, throttle.Member{Name: fmt.Sprint(i), Limiter: l, Rank: m.rank})
	}
	p, err := throttle.NewPool(members...)
	if err != nil {
		t.Fatal(err)
	}
	p.Spill = f.spill
	f.limiters, f.clients = append(f.limiters, limiters), append(f.clients, clients)
	return p
}

// A gate is the way of a process to a server. While it is closed, calls fail or hang.
type gate struct {
	closed atomic.Pointer[chan struct{}]
	hangs  bool
}

// close closes the gate for a time.
func (g *gate) close(lasts time.Duration, hangs bool) {
	opened := make(chan struct{})
	g.hangs = hangs
	g.closed.Store(&opened)
	time.AfterFunc(lasts, func() {
		g.closed.Store(nil)
		close(opened)
	})
}

func (g *gate) pass(ctx context.Context) error {
	switch closed := g.closed.Load(); {
	case closed == nil:
		return nil
	case g.hangs:
		select {
		case <-*closed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := g.pass(ctx); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := g.pass(ctx); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

// run lets the callers ask until the fleet has lasted long enough.
func (f *poolFleet) run(t *testing.T) {
	var wg sync.WaitGroup
	for i := range f.processes {
		if f.rate > 0 {
			wg.Go(func() { f.arrivals(t, i, &wg) })
		}
		for j := range f.callers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(f.seed<<8|uint64(i), uint64(j)))
				for time.Since(f.start) < f.lasts {
					time.Sleep(upTo(r, 100*time.Microsecond))
					f.request(t, i, r)
				}
			})
		}
	}
	wg.Wait()
}

// arrivals lets callers of a process come at random times.
func (f *poolFleet) arrivals(t *testing.T, i int, wg *sync.WaitGroup) {
	r := rand.New(rand.NewPCG(f.seed, uint64(i)))
	for time.Since(f.start) < f.lasts {
		time.Sleep(time.Duration(r.ExpFloat64() * float64(f.processes) / f.rate * 1e9))
		seed := r.Uint64()
		wg.Go(func() { f.request(t, i, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func (f *poolFleet) request(t *testing.T, i int, r *rand.Rand) {
	a, cost := fleetAdmission{process: i, cost: 1}, throttle.Cost(nil)
	if f.mixed {
		a.cost = 1 + r.Int64N(200)
		cost = throttle.Cost{"tokens": a.cost}
	}
	a.asked = time.Since(f.start)
	ctx, cancel := t.Context(), context.CancelFunc(func() {})
	if f.deadline > 0 {
		ctx, cancel = context.WithTimeout(ctx, f.deadline)
	}
	defer cancel()
	permit, err := f.pools[i].Acquire(ctx, cost)
	if err != nil {
		f.mu.Lock()
		f.failed = append(f.failed, err)
		f.mu.Unlock()
		time.Sleep(100 * ms)
		return
	}
	a.at = time.Since(f.start)
	_, _ = fmt.Sscan(permit.Member(), &a.member)
	f.mu.Lock()
	f.admitted = append(f.admitted, a)
	f.mu.Unlock()
	time.Sleep(time.Duration(r.IntN(5)) * ms)
	permit.Arrived()
	permit.Release()
}

// used returns what was admitted in a second.
func (f *poolFleet) used() float64 {
	n := int64(0)
	for _, a := range f.admitted {
		if a.at < f.lasts {
			n += a.cost
		}
	}
	return float64(n) / f.lasts.Seconds()
}

// share returns the least of what a process got, divided by the most.
func (f *poolFleet) share() float64 {
	got := make([]int64, f.processes)
	for _, a := range f.admitted {
		got[a.process] += a.cost
	}
	return float64(slices.Min(got)) / float64(slices.Max(got))
}

// calls returns how often each process calls for each member in half a second.
func (f *poolFleet) calls() float64 {
	n, members := int64(0), 0
	for i := range f.scripts {
		n += f.scripts[i].Load()
	}
	for _, m := range f.members {
		if m.store != inProcess {
			members++
		}
	}
	return float64(n) / float64(members*f.processes) / (2 * f.lasts.Seconds())
}

// overtaken returns how often a caller was admitted more than 2 ms after one of its process that came later,
// and the longest such time.
func (f *poolFleet) overtaken() (n int, by time.Duration) {
	slices.SortFunc(f.admitted, func(a, b fleetAdmission) int { return cmp.Compare(a.asked, b.asked) })
	for i := range f.processes {
		last := time.Duration(-1)
		for _, a := range slices.Backward(f.admitted) {
			if a.process != i {
				continue
			}
			if last >= 0 && a.at > last+2*ms {
				n++
				by = max(by, a.at-last)
			} else {
				last = a.at
			}
		}
	}
	return n, by
}

func (f *poolFleet) byMember() []int {
	n := make([]int, len(f.members))
	for _, a := range f.admitted {
		n[a.member]++
	}
	return n
}

// measure runs the fleet in a bubble, and reports what it used.
func (f *poolFleet) measure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f.open(t)
		f.run(t)
		f.report(t)
	})
}

func (f *poolFleet) report(t *testing.T) {
	for _, err := range f.failed {
		t.Error(err)
	}
	n, by := f.overtaken()
	t.Logf("%d processes, %d callers, trips %v, mixed %v: used %.2f/s, share %.2f, calls %.2f, by member %v, overtaken %d of %d by %v",
		f.processes, f.callers, f.trips, f.mixed, f.used(), f.share(), f.calls(), f.byMember(), n, len(f.admitted), by)
}

// admissions counts those of a member from one time to another; of any member if that is negative.
func (f *poolFleet) admissions(member int, from, to time.Duration) (n int) {
	for _, a := range f.admitted {
		if (member < 0 || a.member == member) && a.at >= from && a.at < to {
			n++
		}
	}
	return n
}

func (f *poolFleet) String() string {
	return fmt.Sprintf("%v %d processes %d callers mixed %v trips %v", f.members, f.processes, f.callers, f.mixed, f.trips)
}

// The members of a fleet's pools add up: its processes together get what they would get of one quota of the sum
// of the limits, in equal shares, in their callers' order and without more calls.
func TestPoolFleetSharesItsMembers(t *testing.T) {
	soak.Long(t, "minutes of fleets")
	const near, region = 500 * time.Microsecond, 20 * ms
	cases := []struct {
		processes, callers int
		trip               time.Duration
		mixed              bool
		used, share, calls float64 // least, least, most
	}{
		{4, 25, near, false, 0.98, 0.82, 1},
		{4, 4, near, false, 0.95, 0.8, 3.5},
		{4, 25, near, true, 0.93, 0.8, 1.5},

		{4, 25, region, false, 0.98, 0.82, 1},
		{4, 25, 4 * region, false, 0.98, 0.78, 1},
		{8, 25, near, false, 0.98, 0.8, 1},
		{20, 25, near, false, 0.97, 0.65, 1},
		{8, 4, near, false, 0.95, 0.8, 2},
		{4, 1, near, false, 0.95, 0.85, 7},
		{4, 25, region, true, 0.88, 0.8, 1.5},
		{4, 4, near, true, 0.85, 0.8, 2.5},
		{4, 1, near, true, 0.85, 0.75, 6},
	}
	if testing.Short() {
		cases = cases[:3]
	}
	for _, c := range cases {
		run := func(limits ...int64) *poolFleet {
			f := &poolFleet{processes: c.processes, callers: c.callers, mixed: c.mixed, trips: []time.Duration{c.trip}, lasts: time.Minute}
			for _, n := range limits {
				if c.mixed {
					n *= 100
				}
				f.members = append(f.members, fleetMember{limit: n})
			}
			f.measure(t)
			return f
		}
		one, pool := run(25), run(5, 20)
		if pool.used() < c.used*one.used() || pool.share() < c.share || pool.calls() > c.calls {
			t.Errorf("%v: used %.2f of what one quota admits, share %.2f, calls %.2f: want %v", pool, pool.used()/one.used(), pool.share(), pool.calls(), c)
		}
		if n, by := pool.overtaken(); n > 0 && !c.mixed && (c.callers >= 25 || n > 10) {
			t.Errorf("%v: %d callers overtaken, by up to %v", pool, n, by)
		}
	}
}

// Members far and near, and one of this process beside one of the fleet, are all used.
func TestPoolFleetUsesUnlikeStores(t *testing.T) {
	soak.Slow(t, "a fleet plays for minutes")
	for _, f := range []*poolFleet{
		{members: []fleetMember{{limit: 10}, {limit: 10, store: 1}}, trips: []time.Duration{500 * time.Microsecond, 80 * ms}},
		{members: []fleetMember{{limit: 10, store: 1}, {limit: 10}}, trips: []time.Duration{80 * ms, 20 * ms}},
		{members: []fleetMember{{limit: 5, store: inProcess}, {limit: 10}}},
	} {
		f.processes, f.callers, f.lasts = 4, 25, time.Minute
		f.measure(t)
		for i, m := range f.members {
			least := 0.85 * 60 * float64(m.limit)
			if m.store == inProcess {
				least *= float64(f.processes)
			}
			if n := f.byMember()[i]; float64(n) < least {
				t.Errorf("%v: member %d admitted %d, want %.0f", f, i, n, least)
			}
		}
		if f.share() < 0.8 {
			t.Errorf("%v: share %.2f", f, f.share())
		}
	}
}

// Of two ranks, the first is used in full, and the second only if the first does not do.
func TestPoolFleetSpills(t *testing.T) {
	soak.Long(t, "minutes of fleets")
	for _, rate := range []float64{8, 15} {
		for _, processes := range []int{1, 4} {
			f := &poolFleet{members: []fleetMember{{limit: 10}, {limit: 10, rank: 1}}, processes: processes, rate: rate, spill: sec, lasts: 2 * time.Minute}
			f.measure(t)
			switch n, most := f.byMember(), f.lasts.Seconds()*10; {
			case rate == 8 && float64(n[1]) > 0.15*float64(len(f.admitted)):
				t.Errorf("%v at %v/s: %v by rank", f, rate, n)
			case rate == 15 && float64(n[0]) < 0.93*most:
				t.Errorf("%v at %v/s: %v by rank, want %.0f of the first", f, rate, n, most)
			}
		}
	}
}

// A member that is paused costs no calls, and the others serve the callers meanwhile.
func TestPoolFleetWithAPausedMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &poolFleet{members: []fleetMember{{limit: 20}, {limit: 20, store: 1}}, processes: 4, callers: 25, lasts: time.Minute}
		f.open(t)
		var calls int64
		time.AfterFunc(10*sec, func() {
			if err := f.limiters[3][0].Pause(t.Context(), 30*sec); err != nil {
				t.Error(err)
			}
			time.Sleep(100 * ms)
			before := f.scripts[0].Load()
			time.Sleep(29*sec + 500*ms)
			calls = f.scripts[0].Load() - before
		})
		f.run(t)
		f.report(t)
		if n := f.admissions(0, 10*sec+10*ms, 40*sec); n > 0 {
			t.Errorf("the paused member admitted %d", n)
		}
		if n := f.admissions(1, 10*sec, 40*sec); n < 30*19*98/100 {
			t.Errorf("the other member admitted %d in the pause, want 570", n)
		}
		if n := f.admissions(0, 42*sec, 60*sec); n < 18*19*95/100 {
			t.Errorf("the member admitted %d after the pause, want 342", n)
		}
		if calls > 0 {
			t.Errorf("%d calls for the paused member, want none", calls)
		}
	})
}

// While the store of one member is away, the others serve the callers, and afterwards it is used again.
func TestPoolFleetWithoutAStore(t *testing.T) {
	soak.Slow(t, "a fleet plays for minutes")
	for _, hangs := range []bool{false, true} {
		for _, deadline := range []time.Duration{0, 10 * sec} {
			synctest.Test(t, func(t *testing.T) {
				f := &poolFleet{members: []fleetMember{{limit: 20}, {limit: 20, store: 1}}, processes: 4, callers: 25, lasts: 50 * sec, deadline: deadline}
				f.open(t)
				time.AfterFunc(10*sec, func() { f.gates[0].close(20*sec, hangs) })
				f.run(t)
				f.report(t)
				if n := f.admissions(1, 10*sec, 30*sec); n < 20*19*95/100 {
					t.Errorf("hangs %v: the other member admitted %d meanwhile, want 380", hangs, n)
				}
				if n := f.admissions(0, 32*sec, 50*sec); n < 18*19*75/100 {
					t.Errorf("hangs %v: the member admitted %d from 2 s after, want 342", hangs, n)
				}
			})
		}
	}
}

// A request fails for lack of a store only if no member has one.
func TestPoolFleetErrorsWithoutStores(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := &poolFleet{members: []fleetMember{{limit: 1}, {limit: 1, store: 1}}, processes: 1}
			f.open(t)
			acquire := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
				defer cancel()
				_, err := f.pools[0].Acquire(ctx, nil)
				return err
			}
			for range 2 { // use up both
				if err := acquire(); err != nil {
					t.Fatal(err)
				}
			}
			f.gates[0].close(20*sec, hangs)
			if err := acquire(); !errors.Is(err, throttle.ErrDeadline) && !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("hangs %v, one store away: got %v", hangs, err)
			}
			time.Sleep(2 * sec)
			if err := acquire(); err != nil {
				t.Errorf("hangs %v, one store away: got %v", hangs, err)
			}
			f.gates[1].close(10*sec, hangs)
			time.Sleep(sec)
			if err := acquire(); !errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("hangs %v, both stores away: got %v, want ErrUnavailable", hangs, err)
			}
			time.Sleep(30 * sec)
			if err := acquire(); err != nil {
				t.Errorf("hangs %v, stores are back: %v", hangs, err)
			}
		})
	}
}

// Members within the quota of an account keep to both, and charge each request once. After a storm of
// cancellations all quotas are as good as new.
func TestPoolFleetWithinAnAccount(t *testing.T) {
	soak.Slow(t, "a fleet plays for minutes")
	for name, account := range map[string]fleetMember{"one store": {limit: 20}, "another store": {limit: 20, store: 1}, "in process": {limit: 20, store: inProcess}} {
		if testing.Short() && account.store == 1 { // which takes longest
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &poolFleet{members: []fleetMember{{limit: 5}, {limit: 40}}, within: true, account: account, processes: 4, callers: 10, lasts: 20 * sec, deadline: 3 * sec}
				if account.store == inProcess {
					f.processes = 1
				}
				f.open(t)
				f.run(t)
				t.Logf("used %.2f/s, by member %v, share %.2f, calls %.2f, %d failed", f.used(), f.byMember(), f.share(), f.calls(), len(f.failed))
				checkFleetBound(t, f, -1, account.limit)
				for i, m := range f.members {
					checkFleetBound(t, f, i, m.limit)
				}
				least := 17.0
				if account.store == 1 { // a request asks two members, and both hold a time of the account meanwhile
					least = 9
				}
				if f.used() < least {
					t.Errorf("used %.2f/s, want 19", f.used())
				}
				time.Sleep(2 * sec) // all callers have left
				before := f.used()
				f.start = time.Now()
				f.storm(t)
				time.Sleep(2 * sec)
				f.admitted, f.failed, f.start, f.lasts = nil, nil, time.Now(), 10*sec
				f.run(t)
				t.Logf("after the storm: used %.2f/s, by member %v, share %.2f, %d failed", f.used(), f.byMember(), f.share(), len(f.failed))
				if f.used() < min(0.9*before, least) {
					t.Errorf("used %.2f/s after a storm, %.2f/s before", f.used(), before)
				}
			})
		})
	}
}

// storm lets many callers come and leave for some seconds.
func (f *poolFleet) storm(t *testing.T) {
	storms := 5 * sec
	if testing.Short() {
		storms = 2 * sec
	}
	var wg sync.WaitGroup
	for i := range f.processes {
		for j := range 50 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				for time.Since(f.start) < storms {
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(upTo(r, 500*ms), cancel)
					if permit, err := f.pools[i].Acquire(ctx, nil); err == nil {
						_ = permit.Cancel(t.Context())
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
}

// checkFleetBound checks that no second has more admissions of a member than its limit.
func checkFleetBound(t *testing.T, f *poolFleet, member int, limit int64) {
	t.Helper()
	var times []time.Duration
	for _, a := range f.admitted {
		if member < 0 || a.member == member {
			times = append(times, a.at)
		}
	}
	slices.Sort(times)
	for i := int(limit); i < len(times); i++ {
		if d := times[i] - times[i-int(limit)]; d < sec {
			t.Errorf("member %d: %d admissions in %v", member, limit+1, d)
			return
		}
	}
}

// At each member, processes that use it directly and processes that use it through a Pool get equal shares. What the
// latter get of other members does not count.
func TestPoolFleetBesideDirectUsers(t *testing.T) {
	soak.Slow(t, "a fleet plays for minutes")
	synctest.Test(t, func(t *testing.T) {
		f := &poolFleet{members: []fleetMember{{limit: 20}, {limit: 20}}, processes: 4, callers: 25, lasts: time.Minute}
		f.open(t)
		for _, i := range []int{2, 3} { // these use one member
			p, err := throttle.NewPool(throttle.Member{Name: "0", Limiter: f.limiters[i][0]})
			if err != nil {
				t.Fatal(err)
			}
			f.pools[i] = p
		}
		f.run(t)
		f.report(t)
		got := make([]int, f.processes)
		for _, a := range f.admitted {
			if a.member == 0 {
				got[a.process]++
			}
		}
		t.Log("the shared member by process:", got)
		if slices.Min(got)*2 < slices.Max(got) {
			t.Errorf("the processes got %v of the member that they share", got)
		}
	})
}

// A request is refused only if all members are banned, until the first ban ends, and without a call for a second after
// one that has reported the bans.
func TestPoolFleetBanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &poolFleet{members: []fleetMember{{limit: 20}, {limit: 20, store: 1}}, processes: 2, callers: 10, lasts: 5 * sec}
		f.open(t)
		ban := func(member int, after string) {
			client := &http.Client{Transport: &throttle.Transport{Limiter: f.limiters[1][member], Base: roundTripper(func(*http.Request) (*http.Response, error) {
				return answer(429, "Retry-After", after), nil
			})}}
			if _, err := client.Get("http://127.0.0.1/"); err != nil {
				t.Error(err)
			}
		}
		time.AfterFunc(sec, func() { ban(0, "7200") })
		f.run(t)
		f.report(t)
		if n := f.admissions(0, sec+100*ms, f.lasts); n > 0 {
			t.Errorf("the banned member admitted %d", n)
		}
		ban(1, "3600")
		time.Sleep(2 * sec)
		for i, p := range f.pools {
			calls := int64(-1) // of the first request, which asks whether the bans still hold
			for range 10 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*sec)
				err := p.Wait(ctx)
				cancel()
				var refused *throttle.WaitError
				if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &refused) || refused.Wait > time.Hour {
					t.Errorf("process %d: got %v, want ErrBanned for an hour", i, err)
				}
				time.Sleep(50 * ms)
				if now := f.scripts[0].Load() + f.scripts[1].Load(); calls < 0 {
					calls = now
				} else if now > calls {
					t.Errorf("process %d: %d calls for requests that are refused", i, now-calls)
				}
			}
		}
	})
}

// The others go on when a process dies.
func TestPoolFleetSurvivesAProcess(t *testing.T) {
	soak.Slow(t, "a fleet plays for minutes")
	synctest.Test(t, func(t *testing.T) {
		f := &poolFleet{members: []fleetMember{{limit: 10}, {limit: 20}}, processes: 4, callers: 15, lasts: 40 * sec, deadline: 20 * sec}
		f.open(t)
		time.AfterFunc(10*sec, func() { _ = f.clients[3][0].Close() })
		f.run(t)
		if n := f.admissions(-1, 12*sec, 40*sec); n < 28*57/2*9/10 {
			t.Errorf("%d admissions from 2 s after its end, want 798", n)
		}
	})
}

// Callers wait on while members change their policies, leave and come back.
func TestPoolFleetChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &poolFleet{members: []fleetMember{{limit: 10}, {limit: 10}}, processes: 4, callers: 15, lasts: 50 * sec}
		f.open(t)
		time.AfterFunc(10*sec, func() {
			for i := range f.limiters {
				p := throttle.Policy{Name: "{fleet}1", Tiers: []throttle.Tier{throttle.PerSecond(20)}}
				if err := f.limiters[i][1].SetPolicy(t.Context(), p); err != nil {
					t.Error(err)
				}
				time.Sleep(sec)
			}
		})
		time.AfterFunc(30*sec, func() {
			for i, p := range f.pools {
				p.Remove("0")
				time.AfterFunc(10*sec, func() {
					if err := p.Add(throttle.Member{Name: "0", Limiter: f.limiters[i][0]}); err != nil {
						t.Error(err)
					}
				})
			}
		})
		f.run(t)
		f.report(t)
		if n := f.admissions(1, 17*sec, 50*sec); n < 33*19*93/100 {
			t.Errorf("the faster member admitted %d, want 627", n)
		}
		if n := f.admissions(0, 31*sec+500*ms, 40*sec); n > 0 {
			t.Errorf("the member that was removed admitted %d", n)
		}
		if n := f.admissions(0, 42*sec, 50*sec); n < 8*95/10*9/10 {
			t.Errorf("the member that is back admitted %d, want 76", n)
		}
	})
}
