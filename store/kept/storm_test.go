package kept_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store/kept"
)

// A nestedStorm is a fleet with an outer quota and inner ones, whose callers come, are canceled and send at random.
type nestedStorm struct {
	*fleet
	rand         *rand.Rand
	outer, inner []algorithms.Tier
	guard        time.Duration

	mu   sync.Mutex
	sent map[string][]arrival // by quota
}

// call is one caller of a process.
func (s *nestedStorm) call(ctx context.Context, r *rand.Rand, key string, l *throttle.Limiter, nested bool) {
	cost := throttle.Cost{"requests": 1 + r.Int64N(2)}
	if r.IntN(2) == 0 {
		cost["tokens"] = r.Int64N(20)
	}
	ctx, cancel := context.WithTimeout(throttle.WithClass(ctx, throttle.Class(r.IntN(3))), time.Duration(1+r.IntN(8000))*time.Millisecond)
	defer cancel()
	if r.IntN(3) == 0 {
		time.AfterFunc(time.Duration(r.IntN(1000))*time.Millisecond, cancel)
	}
	p, err := l.Acquire(ctx, cost)
	if err != nil {
		time.Sleep(10 * time.Millisecond)
		return
	}
	if r.IntN(6) == 0 { // not sent
		_ = p.Cancel(context.WithoutCancel(ctx))
		return
	}
	at := time.Now().Add(time.Duration(r.Int64N(int64(s.guard) + 1)))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[key] = append(s.sent[key], arrival{at: at, cost: cost})
	if nested {
		s.sent["outer"] = append(s.sent["outer"], arrival{at: at, cost: cost})
	}
	time.AfterFunc(time.Until(at), func() { p.Arrived(); p.Release() })
}

// run lets callers come for some time.
func (s *nestedStorm) run(t testing.TB, length time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var wg sync.WaitGroup
	for _, st := range s.stores {
		outer, err := throttle.New(throttle.Policy{Name: "outer", Guard: s.guard, Aging: time.Second, Headroom: s.rand.IntN(30), Tiers: s.outer}, st)
		if err != nil {
			t.Fatal(err)
		}
		g, err := throttle.NewGroup(throttle.Policy{Name: "inner", Guard: s.guard, Aging: time.Second, Tiers: s.inner}, st, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range 12 {
			r := rand.New(rand.NewPCG(s.rand.Uint64(), 1))
			wg.Go(func() {
				for ctx.Err() == nil {
					key := []string{"a", "b"}[r.IntN(2)]
					switch r.IntN(4) {
					case 0:
						s.call(ctx, r, "outer", outer, false)
					case 1:
						s.call(ctx, r, key, g.For(key), false)
					default:
						s.call(ctx, r, key, g.Within(key, outer), true)
					}
				}
			})
		}
	}
	wg.Wait()
}

// However callers come and go, in quotas alone and nested ones, no provider refuses a request. Afterwards the quotas contain
// what was sent and nothing else.
func TestBoundOfNestedQuotas(t *testing.T) {
	arrived := 0
	for seed := range uint64(soak.Times(40)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 11))
			s := &nestedStorm{
				fleet: newFleet(t, farAndNear[:1+r.IntN(len(farAndNear))]...), rand: r, sent: make(map[string][]arrival),
				outer: randomTiers(r, rolling...), inner: randomTiers(r, slices.Concat(rolling, aligned)...), guard: guards[1+r.IntN(len(guards)-1)],
			}
			ctx, cancel := context.WithCancel(t.Context())
			d := disturbances[[]int{0, 2, 3}[r.IntN(3)]]
			if seed%2 > 0 {
				go d.disturb(ctx, rand.New(rand.NewPCG(seed, 12)), s.fleet)
			}
			s.run(t, 12*time.Second)
			cancel()
			for key, tiers := range map[string][]algorithms.Tier{"outer": s.outer, "a": s.inner, "b": s.inner} {
				arrived += len(s.sent[key])
				if n, first := refusals(t, tiers, s.sent[key]); n > 0 {
					t.Errorf("seed %d: %s %v, guard %v, %d processes: %d of %d refused: %s", seed, key, tiers, s.guard, len(s.stores), n, len(s.sent[key]), first)
				}
			}
		})
	}
	if arrived < 50*soak.Times(40) {
		t.Errorf("only %d arrived", arrived)
	}
}

// A storm that is canceled while the keeper is away leaves nothing behind when it is back.
func TestStormOfOutageLeavesNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, farAndNear[:3]...)
		policy := throttle.Policy{Name: "outage", Tiers: []throttle.Tier{{Limit: 1, Window: 8 * time.Second}}}
		all := f.limiters(t, policy)
		if err := all[0].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() { _ = all[i%2*2].Wait(ctx) })
		}
		time.Sleep(time.Second)
		f.server.SetAway(true)
		time.Sleep(time.Second)
		cancel()
		wg.Wait()
		time.Sleep(2 * time.Second)
		f.server.SetAway(false)
		time.Sleep(2 * time.Second)
		if err := all[1].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 9*time.Second {
			t.Errorf("the next request is sent after %v, want 8s", took)
		}
	})
}

// A process that dies while its callers wait loses a turn of the quota at most.
func TestDeadProcessLosesATurn(t *testing.T) {
	for _, tier := range []throttle.Tier{
		throttle.PerSecond(20), {Limit: 20, Window: time.Second, Burst: 4, Algorithm: throttle.TokenBucket}, {Limit: 2, Window: 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, time.Millisecond, 5*time.Millisecond)
			dies := &mortal{Keeper: f.server.Client(time.Millisecond)}
			dead := kept.New(dies, kept.Options{Name: "kept", Ahead: true})
			policy := throttle.Policy{Name: "dead", Tiers: []throttle.Tier{tier}}
			all := f.limiters(t, policy)
			l, err := throttle.New(policy, dead)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute+20*time.Second)
			defer cancel()
			short, die := context.WithCancel(ctx)
			admitted, wait := ask(ctx, all, 10)
			_, waitDead := ask(short, []*throttle.Limiter{l}, 10)
			time.Sleep(20 * time.Second)
			dies.die()
			died := time.Now()
			die()
			waitDead()
			wait()
			n := admitted.between(died, died.Add(time.Minute))
			// The share of the dead for a turn, and one request that is on its way.
			want := int(0.93*60*float64(tier.Limit)/tier.Window.Seconds()) - int(tier.Limit) - 1
			if n < want {
				t.Errorf("%v: %d within a minute after another process died, want %d", tier, n, want)
			}
		})
	}
}
