package kept_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

// An arrival is a request at the provider.
type arrival struct {
	at    time.Time
	cost  map[string]int64
	state int64 // to which it is charged
}

// refusals returns how many of some arrivals a provider refuses, and describes the first.
func refusals(t testing.TB, tiers []algorithms.Tier, all []arrival) (n int, first string) {
	t.Helper()
	slices.SortStableFunc(all, func(a, b arrival) int { return a.at.Compare(b.at) })
	for _, tier := range tiers {
		tier.Estimated, tier.Budget = false, false
		c, err := throttletest.NewCounter(tier)
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range all {
			if c.Arrive(a.at.UnixMicro(), a.cost) {
				continue
			}
			if n++; first == "" {
				first = fmt.Sprintf("%v refuses %v at %v, the %d. of %d", tier, a.cost, a.at.Sub(all[0].at), i, len(all))
			}
		}
	}
	return n, first
}

var rolling = []algorithms.Algorithm{
	algorithms.SlidingLog, algorithms.SlidingWindow, algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA,
}

// aligned are those that follow the wall clock, or that a request opens.
var aligned = []algorithms.Algorithm{algorithms.FixedWindow, algorithms.WeightedWindow, algorithms.AnchoredWindow}

// randomTiers returns one to three tiers.
func randomTiers(r *rand.Rand, of ...algorithms.Algorithm) (tiers []algorithms.Tier) {
	for i := range 1 + r.IntN(3) {
		t := algorithms.Tier{
			Limit: 2 + r.Int64N(20), Window: time.Duration(1+r.IntN(60)) * 50 * time.Millisecond, Algorithm: of[r.IntN(len(of))],
		}
		switch t.Algorithm {
		case algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA:
			t.Burst = 2 + r.Int64N(20)
		case algorithms.FixedWindow, algorithms.WeightedWindow:
			t.Phase = time.Duration(r.Int64N(t.Window.Milliseconds())) * time.Millisecond
		}
		if i > 0 && r.IntN(3) == 0 {
			t.Unit, t.Limit, t.Burst = "tokens", 10*t.Limit, 10*t.Burst
		}
		tiers = append(tiers, t)
	}
	return tiers
}

// A quota is one that reserves.
type quota interface {
	store.Quota
	store.Reserver
}

// A reservingProcess reserves, cancels and sends at random, as the contract of a Reserver lets it.
type reservingProcess struct {
	quota
	plan  *algorithms.Plan
	guard time.Duration // of all requests
	rand  *rand.Rand
	least float64 // the part of the reservations that is canceled

	mu     *sync.Mutex
	sent   *[]arrival
	errors int
}

func (p *reservingProcess) requests() (requests []store.Request) {
	for range 1 + p.rand.IntN(6) {
		r := store.Request{Held: p.rand.IntN(2) == 0, WaitSpec: &store.WaitSpec{MaxWait: store.Forever}}
		if p.rand.IntN(8) == 0 {
			r.MaxWait = time.Duration(p.rand.IntN(2000)) * time.Millisecond
		}
		for _, unit := range p.plan.Units() {
			n := 1 + p.rand.Int64N(2)
			if unit == "tokens" {
				n = p.rand.Int64N(20)
			}
			r.Cost = append(r.Cost, n)
		}
		requests = append(requests, r)
	}
	return requests
}

// run reserves until an instant, and returns when all is sent.
func (p *reservingProcess) run(end time.Time) {
	type answer struct {
		got []store.Decision
		err error
	}
	var wg sync.WaitGroup
	var behind *store.Reservation
	for time.Now().Before(end) {
		requests, answers := p.requests(), make(chan answer, 1)
		p.Reserve(behind, requests, func(got []store.Decision, err error) { answers <- answer{slices.Clone(got), err} })
		a := <-answers
		if a.err != nil {
			p.errors++
			time.Sleep(time.Duration(10+p.rand.IntN(100)) * time.Millisecond)
			continue
		}
		wait := time.Millisecond
		for i, d := range a.got {
			if d.Verdict != store.Admitted {
				wait = max(wait, min(d.Wait, time.Second))
				continue
			}
			behind = d.Reservation
			wait = max(wait, time.Until(d.Reservation.Again))
			seed := rand.New(rand.NewPCG(p.rand.Uint64(), 1))
			wg.Go(func() { p.use(d, requests[i], seed) })
		}
		time.Sleep(wait)
	}
	wg.Wait()
}

// use cancels a reservation or sends its request.
func (p *reservingProcess) use(d store.Decision, request store.Request, r *rand.Rand) {
	at := d.Reservation
	if r.Float64() < p.least || at.End.Before(at.Start) {
		time.Sleep(time.Duration(r.Int64N(1 + max(0, int64(time.Until(at.Start))))))
		p.Cancel([]store.Decision{d})
		return
	}
	anywhere := func(d time.Duration) time.Duration {
		switch r.IntN(3) {
		case 0:
			return 0
		case 1:
			return d
		}
		return time.Duration(r.Int64N(int64(max(0, d)) + 1))
	}
	time.Sleep(max(0, time.Until(at.Start)) + anywhere(at.End.Sub(at.Start)))
	if p.IsVoid(d) || at.Expired(time.Now()) {
		p.Cancel([]store.Decision{d})
		return
	}
	arrives := time.Now().Add(anywhere(p.guard))
	if p.guard == 0 { // it counts at its start
		arrives = time.UnixMicro(at.At)
	}
	if time.Sleep(max(0, time.Until(arrives))); request.Held {
		if p.Arrived(d, request.Cost); r.IntN(4) > 0 {
			p.Release(d, request.Cost)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	cost := make(map[string]int64)
	for u, unit := range p.plan.Units() {
		cost[unit] = request.Cost[u]
	}
	*p.sent = append(*p.sent, arrival{arrives, cost, at.State})
}

var farAndNear = []time.Duration{100 * time.Microsecond, time.Millisecond, 20 * time.Millisecond, 80 * time.Millisecond}

// reserveAtRandom lets the processes of a fleet reserve at random, and returns what arrives.
func (f *fleet) reserveAtRandom(t testing.TB, r *rand.Rand, tiers []algorithms.Tier, guard, length time.Duration) (sent []arrival) {
	plan, err := algorithms.NewPlan(tiers, guard)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	end := time.Now().Add(length)
	for i, s := range f.stores {
		q, err := s.Open("bound", plan, nil)
		if err != nil {
			t.Fatal(err)
		}
		p := &reservingProcess{
			quota: q.(quota), plan: plan, guard: guard, rand: rand.New(rand.NewPCG(r.Uint64(), uint64(i))),
			least: []float64{0, 0.25, 0.8}[r.IntN(3)], mu: &mu, sent: &sent,
		}
		wg.Go(func() { p.run(end) })
	}
	wg.Wait()
	return sent
}

var guards = []time.Duration{0, 20 * time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond}

// A disturb disturbs a server at random until the context ends.
type disturb func(ctx context.Context, r *rand.Rand, f *fleet)

// every calls change and back in turn, after random times of up to a second.
func every(change, back func(r *rand.Rand, f *fleet)) disturb {
	return func(ctx context.Context, r *rand.Rand, f *fleet) {
		for ctx.Err() == nil {
			time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
			change(r, f)
			time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
			back(r, f)
		}
	}
}

func nothing(*rand.Rand, *fleet) {}

var disturbances = []struct {
	name    string
	aligned bool // the bound of aligned windows holds, too
	disturb disturb
}{
	{"none", true, func(context.Context, *rand.Rand, *fleet) {}},
	{"steps back", false, every(func(r *rand.Rand, f *fleet) { f.server.Step(-time.Duration(r.Int64N(int64(3 * time.Hour)))) }, nothing)},
	{"lost replies", true, every(
		func(r *rand.Rand, f *fleet) { f.server.SetLost(true) }, func(r *rand.Rand, f *fleet) { f.server.SetLost(false) },
	)},
	{"away", true, every(
		func(r *rand.Rand, f *fleet) { f.server.SetAway(true) }, func(r *rand.Rand, f *fleet) { f.server.SetAway(false) },
	)},
	{"forgets", true, every(func(r *rand.Rand, f *fleet) { f.server.Drop() }, nothing)},
}

// A request may be sent anywhere within its reservation, and arrive anywhere within its guard. The provider
// refuses none.
func TestBound(t *testing.T) {
	for _, d := range disturbances {
		t.Run(d.name, func(t *testing.T) {
			arrived := 0
			for seed := range soak.Times(100) {
				synctest.Test(t, func(t *testing.T) {
					r := rand.New(rand.NewPCG(uint64(seed), 7))
					of := rolling
					if d.aligned {
						of = slices.Concat(rolling, aligned)
					}
					tiers, guard := randomTiers(r, of...), guards[r.IntN(len(guards))]
					if guard == 0 && slices.ContainsFunc(tiers, func(t algorithms.Tier) bool { return t.Algorithm == algorithms.AnchoredWindow }) {
						return // a window may open with the next request if its first was canceled
					}
					f := newFleet(t, farAndNear[:1+r.IntN(len(farAndNear))]...)
					ctx, cancel := context.WithCancel(t.Context())
					go d.disturb(ctx, r, f)
					sent := f.reserveAtRandom(t, rand.New(rand.NewPCG(uint64(seed), 8)), tiers, guard, 12*time.Second)
					cancel()
					byState := make(map[int64][]arrival)
					for _, a := range sent {
						if d.name != "forgets" {
							a.state = 0
						}
						byState[a.state] = append(byState[a.state], a)
					}
					for _, sent := range byState {
						if n, first := refusals(t, tiers, sent); n > 0 {
							t.Errorf("seed %d: %v, guard %v, %d processes: %d of %d refused: %s", seed, tiers, guard, len(f.stores), n, len(sent), first)
						}
					}
					arrived += len(sent)
				})
			}
			if arrived < 10*soak.Times(100) {
				t.Errorf("only %d arrived", arrived)
			}
		})
	}
}
