package throttle_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

// within returns a new Limiter inside another new one, and the outer one.
func within(t *testing.T, inner, outer throttle.Policy) (l, o *throttle.Limiter) {
	t.Helper()
	inner.Name, outer.Name = "inner", "outer"
	o = mustNew(t, outer, nil)
	return mustNew(t, inner, nil).Within(o), o
}

// TestWithinRefusedChargesNothing checks that a refused request is charged in no scope, for every
// method that asks.
func TestWithinRefusedChargesNothing(t *testing.T) {
	const most = 400
	for name, ask := range map[string]func(context.Context, *throttle.Limiter) bool{
		"Allow": func(_ context.Context, l *throttle.Limiter) bool { return l.Allow() },
		"Wait":  func(ctx context.Context, l *throttle.Limiter) bool { return l.Wait(ctx) == nil },
		"WaitN": func(ctx context.Context, l *throttle.Limiter) bool { return l.WaitN(ctx, 2) == nil },
		"Acquire": func(ctx context.Context, l *throttle.Limiter) bool {
			p, err := l.Acquire(ctx, nil)
			p.Release()
			return err == nil
		},
	} {
		for guard, g := range map[string]time.Duration{"none": throttle.NoGuard, "default": 0, "auto": throttle.AutoGuard} {
			t.Run(name+", guard "+guard, func(t *testing.T) {
				l, _ := within(t,
					throttle.Policy{Guard: g, Tiers: []throttle.Tier{throttle.PerDay(most)}},
					throttle.Policy{Guard: g, Tiers: []throttle.Tier{throttle.PerDay(1_000_000)}})
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				var admitted atomic.Int64
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						for range most * 3 / 4 {
							if ask(ctx, l) {
								admitted.Add(1)
							}
						}
					})
				}
				wg.Wait()
				n := admitted.Load()
				if name == "WaitN" {
					n *= 2
				}
				if got := used(t, l); n != most || !slices.Equal(got, []int64{n, n}) {
					t.Errorf("%d admitted and %v charged, want %d each", n, got, most)
				}
			})
		}
	}
}

// TestWithinRefusedAtOnce checks that a request that no wait in an outer scope admits is refused at
// once, even if it would also have to wait in the inner scope.
func TestWithinRefusedAtOnce(t *testing.T) {
	budget := throttle.Budget(3, "cents", throttle.Month)
	for _, tt := range []struct {
		name  string
		outer throttle.Tier
		spend throttle.Cost // of the outer scope before
		cost  throttle.Cost
		want  error
	}{
		{"never", throttle.PerMinute(5), nil, throttle.Cost{"requests": 6}, throttle.ErrExceedsCapacity},
		{"exhausted", budget, throttle.Cost{"cents": 1}, throttle.Cost{"cents": 3}, throttle.ErrExhausted},
		{"deadline", throttle.PerHour(1), throttle.Cost{"requests": 1}, nil, throttle.ErrDeadline},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{tt.outer}}, nil)
				inner := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerMinute(10)}}, nil)
				l := inner.Within(outer)
				if tt.spend != nil {
					acquire(t, outer, tt.spend).Arrived()
				}
				acquire(t, inner, throttle.Cost{"requests": 10}).Arrived()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				began := time.Now()
				_, err := l.Acquire(ctx, tt.cost)
				var e *throttle.WaitError
				if !errors.Is(err, tt.want) || !errors.As(err, &e) || e.Policy != "outer" || e.Tier != tt.outer.String() {
					t.Errorf("error is %v, want %v of policy outer and tier %v", err, tt.want, tt.outer)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("the error came after %v, want at once", took)
				}
			})
		})
	}
}

// An interrupting store calls back once while it decides. The call then ends with its context.
type interrupting struct {
	throttle.Store
	interrupt func()
}

func (s *interrupting) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return interruptingQuota{q, s}, err
}

type interruptingQuota struct {
	store.Quota
	of *interrupting
}

func (q interruptingQuota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	if f := q.of.interrupt; f != nil {
		q.of.interrupt = nil
		f()
		return store.Decision{}, ctx.Err()
	}
	return q.Quota.TryAcquire(ctx, r)
}

// TestWithinOwnError checks that a caller whose context ends while it is called back to the inner queue
// gets the error of its own context.
func TestWithinOwnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := &interrupting{Store: local.New()}
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{{Limit: 1, Window: 30 * time.Second}}}, s)
		l := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, nil).Within(outer)
		if !outer.Allow() {
			t.Fatal("the outer quota does not admit a first request")
		}
		time.AfterFunc(time.Second, func() {
			s.interrupt = func() {
				if err := l.SetPolicy(t.Context(), throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(2)}}); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
			}
		})
		if err := l.Wait(ctx); err != context.DeadlineExceeded {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// TestWithinItself checks that a chain in which a quota lies inside itself refuses every call. It
// could admit nothing.
func TestWithinItself(t *testing.T) {
	policy := func(name string) throttle.Policy {
		return throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(1)}}
	}
	a, b, c := mustNew(t, policy("a"), nil), mustNew(t, policy("b"), nil), mustNew(t, policy("c"), nil)
	g, err := throttle.NewGroup(policy("g"), nil, throttle.GroupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]*throttle.Limiter{
		"a in a":               a.Within(a),
		"a in b in a":          a.Within(b.Within(a)),
		"(a in b) in a":        a.Within(b).Within(a),
		"(a in b) in (c in b)": a.Within(b).Within(c.Within(b)),
		"a key in itself":      g.Within("k", g.For("k")),
		"a key in a in itself": g.Within("k", a.Within(g.For("k"))),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := l.Wait(ctx)
		if err == nil || errors.Is(err, throttle.ErrDeadline) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "Within") {
			t.Errorf("%s: error is %v, want one that names Within", name, err)
		}
		if l.Allow() {
			t.Errorf("%s: Allow is true", name)
		}
		cancel()
	}
	if got := used(t, a.Within(b).Within(c)); !slices.Equal(got, []int64{0, 0, 0}) {
		t.Errorf("%v charged, want nothing", got)
	}
}

// A freshStore returns another Quota of a key for each opener, as a store that adds something to the
// quotas of another may do. It cannot be compared.
type freshStore struct {
	throttle.Store
	_ []int
}

type freshQuota struct{ store.Quota }

func (s freshStore) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return &freshQuota{q}, err
}

// TestWithinItselfOfOneStore checks that two Limiters are known as one quota by their store and the
// name in it, also after a change of the policy, and that Limiters of other quotas are not.
func TestWithinItselfOfOneStore(t *testing.T) {
	policy := func(name string) throttle.Policy {
		return throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(1)}}
	}
	group := func(name string, s throttle.Store) *throttle.Group {
		g, err := throttle.NewGroup(policy(name), s, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	one, other := local.New(), local.New()
	wrapped := &freshStore{Store: local.New()}
	a, again := mustNew(t, policy("a"), one), mustNew(t, policy("a"), one)
	changed := mustNew(t, policy("changed"), one)
	later := policy("changed")
	later.Tiers = []throttle.Tier{throttle.PerMinute(1)}
	stale := mustNew(t, policy("changed"), one)
	if err := changed.SetPolicy(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	g, h := group("g", one), group("g", one)
	uncomparable := freshStore{Store: local.New()}
	for name, tt := range map[string]struct {
		l    *throttle.Limiter
		same bool
	}{
		"New twice":                       {a.Within(again), true},
		"New twice, in another":           {a.Within(mustNew(t, policy("b"), one).Within(again)), true},
		"New twice, before SetPolicy":     {changed.Within(stale), true},
		"New twice, after SetPolicy":      {stale.Within(changed), true},
		"two groups":                      {g.For("k").Within(h.For("k")), true},
		"two groups, Group.Within":        {g.Within("k", h.For("k")), true},
		"a store that wraps another":      {mustNew(t, policy("w"), wrapped).Within(mustNew(t, policy("w"), wrapped)), true},
		"two names":                       {a.Within(mustNew(t, policy("b"), one)), false},
		"two stores":                      {a.Within(mustNew(t, policy("a"), other)), false},
		"an empty key and New":            {g.For("").Within(mustNew(t, policy("g"), one)), false},
		"two keys":                        {g.For("k").Within(h.For("l")), false},
		"two groups without a store":      {group("g", nil).For("k").Within(group("g", nil).For("k")), false},
		"New twice without a store":       {mustNew(t, policy("a"), nil).Within(mustNew(t, policy("a"), nil)), false},
		"a store that cannot be compared": {mustNew(t, policy("u"), uncomparable).Within(mustNew(t, policy("v"), uncomparable)), false},
	} {
		p, err := tt.l.TryAcquire(t.Context(), nil)
		if refused := err != nil && strings.Contains(err.Error(), "the quota would lie inside itself"); refused != tt.same {
			t.Errorf("%s: error is %v", name, err)
		}
		if err == nil {
			_ = p.Cancel(t.Context())
		}
	}
	if got := used(t, a); !slices.Equal(got, []int64{0}) {
		t.Errorf("%v charged, want nothing", got)
	}
}

// TestWithinKeepsItsAge checks that a Batch request keeps its age in the outer queue when requests
// of other classes take its place there: it ages from its first arrival.
func TestWithinKeepsItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const aging = 10 * time.Second
		l, outer := within(t,
			throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1000)}, Aging: aging},
			throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}, Aging: aging})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		began := time.Now()
		for range 3 { // keep Normal requests in the outer queue
			wg.Go(func() {
				for outer.Wait(ctx) == nil {
				}
			})
		}
		synctest.Wait()
		done := make(chan time.Duration, 1)
		wg.Go(func() {
			if l.Wait(throttle.WithClass(ctx, throttle.Batch)) == nil {
				done <- time.Since(began)
			}
		})
		for range 3 {
			time.Sleep(4 * time.Second)
			wg.Go(func() { _ = l.Wait(throttle.WithClass(ctx, throttle.Interactive)) }) // takes its place
		}
		if got := <-done; got > 17*time.Second {
			t.Errorf("admitted after %v, want at most 17s: %v and some seconds for the requests ahead", got, aging)
		}
	})
}

// A tappedContext calls a function at the n-th call of its methods.
type tappedContext struct {
	context.Context
	calls *atomic.Int32
	tap   func()
}

func (c tappedContext) count() {
	if c.calls.Add(-1) == 0 {
		c.tap()
	}
}

func (c tappedContext) Deadline() (time.Time, bool) { c.count(); return c.Context.Deadline() }
func (c tappedContext) Done() <-chan struct{}       { c.count(); return c.Context.Done() }
func (c tappedContext) Value(key any) any           { c.count(); return c.Context.Value(key) }

// TestWithinInteractivePassesBatch checks that an Interactive request overtakes a Batch request in
// the outer queue, whenever it arrives, also at the moment when the Batch request enters that
// queue.
func TestWithinInteractivePassesBatch(t *testing.T) {
	for i := range 200 {
		synctest.Test(t, func(t *testing.T) { interactivePassesBatch(t, int32(1+i%20)) })
	}
}

// interactivePassesBatch lets an Interactive request arrive at the n-th call of a method of the
// Batch request's context.
func interactivePassesBatch(t *testing.T, n int32) {
	l, outer := within(t,
		throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1000)}, Aging: time.Hour},
		throttle.Policy{Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}, Aging: time.Hour})
	held := acquire(t, outer, nil)
	var mu sync.Mutex
	var order []throttle.Class
	var wg sync.WaitGroup
	send := func(ctx context.Context, c throttle.Class) {
		wg.Go(func() {
			p, err := l.Acquire(throttle.WithClass(ctx, c), nil)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, c)
			mu.Unlock()
			p.Release()
		})
	}
	arrive := sync.OnceFunc(func() { send(t.Context(), throttle.Interactive) })
	ctx := tappedContext{t.Context(), new(atomic.Int32), func() {
		arrive()
		for range 100 { // it may arrive now or later; both are right
			runtime.Gosched()
		}
	}}
	ctx.calls.Store(n)
	send(ctx, throttle.Batch)
	synctest.Wait()
	arrive()
	synctest.Wait()
	if got := status(t, l).Waiting; got != 2 {
		t.Fatalf("call %d: %d callers wait, want 2", n, got)
	}
	held.Release()
	wg.Wait()
	if !slices.Equal(order, []throttle.Class{throttle.Interactive, throttle.Batch}) {
		t.Errorf("call %d: the order was %v, want interactive, batch", n, order)
	}
}

// An admissions records callers in the order of their admission. Callers that are admitted at the
// same time count as in order.
type admissions struct {
	mu   sync.Mutex // guards all below
	list []admission
}

type admission struct {
	at time.Time
	i  int
}

func (a *admissions) add(i int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, admission{time.Now(), i})
}

func (a *admissions) order() (order []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.SortStableFunc(a.list, func(x, y admission) int {
		return cmp.Or(x.at.Compare(y.at), cmp.Compare(x.i, y.i))
	})
	for _, c := range a.list {
		order = append(order, c.i)
	}
	return order
}

// TestWithinThreeStorm runs callers through three nested scopes and cancels some at random times.
// The strict provider must refuse nothing, the other callers must be admitted in order, and nothing
// may stay charged.
func TestWithinThreeStorm(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { threeStorm(t, rand.New(rand.NewPCG(3, seed)), seed) })
	}
}

func threeStorm(t *testing.T, rnd *rand.Rand, seed uint64) {
	algorithms := []throttle.Algorithm{throttle.SlidingLog, throttle.FixedWindow, throttle.TokenBucket, throttle.SlidingWindow, throttle.AnchoredWindow, throttle.GCRA}
	var tiers [3]throttle.Tier
	var l *throttle.Limiter
	for i := len(tiers) - 1; i >= 0; i-- {
		tiers[i] = per(time.Duration(1+rnd.IntN(3))*time.Second, 2+rnd.Int64N(6), algorithms[rnd.IntN(len(algorithms))])
		one := mustNew(t, throttle.Policy{Name: fmt.Sprint(i), Tiers: tiers[i : i+1], Guard: throttle.NoGuard}, nil)
		if l == nil {
			l = one
		} else {
			l = one.Within(l)
		}
	}
	api := throttletest.New(tiers[:]...)
	var mu sync.Mutex
	var admitted admissions
	var gone []int
	var wg sync.WaitGroup
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		stays := rnd.IntN(2) == 0
		if !stays {
			time.AfterFunc(time.Duration(rnd.Int64N(int64(20*time.Second))), cancel)
		}
		wg.Go(func() {
			defer cancel()
			err := l.Wait(ctx)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				gone = append(gone, i)
				return
			}
			admitted.add(i)
			_, _ = trSend(context.Background(), api)
		})
		synctest.Wait()
		if rnd.IntN(4) == 0 {
			time.Sleep(time.Duration(rnd.Int64N(int64(500 * time.Millisecond))))
		}
	}
	wg.Wait()
	if order := admitted.order(); !slices.IsSorted(order) || len(order)+len(gone) != 60 {
		t.Errorf("seed %d, %v: admitted %v, canceled %v; want 60 in all, the admitted in order", seed, tiers, order, gone)
	}
	if s := api.Summary(); s.Refused != 0 {
		t.Errorf("seed %d, %v: the provider refused %d of %d, want 0", seed, tiers, s.Refused, s.Sent)
	}
	time.Sleep(time.Minute)
	if got := used(t, l); !slices.Equal(got, []int64{0, 0, 0}) || status(t, l).Waiting != 0 {
		t.Errorf("seed %d: %v are still used, want 0", seed, got)
	}
}
