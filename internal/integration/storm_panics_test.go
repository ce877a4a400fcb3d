package integration_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
)

var (
	onlySeed = flag.Uint64("storm.seed", 0, "the only `seed` that the random storms play. If 0, all")
	failures = flag.Int("storm.failures", 5, "the number of failing seeds after which a random storm ends")
)

// playSeeds plays a random storm with each of full seeds, or of short ones in short mode, in virtual
// time. A seed fails with the problems that it reports, with a deadlock, or if it stands still.
func playSeeds(t *testing.T, full, short int, play func(s *storm)) {
	n := soak.Times(full)
	if testing.Short() {
		n = short
	}
	first := uint64(1)
	if *onlySeed != 0 {
		first, n = *onlySeed, 1
	}
	const shards = 4
	var mu sync.Mutex
	failed := 0
	for shard := range min(shards, n) {
		t.Run(fmt.Sprint("part", shard), func(t *testing.T) {
			t.Parallel()
			for i := shard; i < n; i += shards {
				if testing.Verbose() {
					t.Log("seed", first+uint64(i)) // a panic in another goroutine ends the program
				}
				problems := playSeed(t, first+uint64(i), play)
				mu.Lock()
				if len(problems) > 0 && failed < *failures {
					failed++
					t.Errorf("seed %d (-storm.seed=%d): %s", first+uint64(i), first+uint64(i), strings.Join(problems, "\n\t"))
				}
				end := failed >= *failures
				mu.Unlock()
				if end {
					return
				}
			}
		})
	}
}

// A goroutine that waits for a lock stops virtual time. A seed, which takes some milliseconds, stands
// still if it takes so much real time.
const standstill = 20 * time.Second

// playSeed returns the problems of a seed.
func playSeed(t *testing.T, seed uint64, play func(s *storm)) []string {
	s := &storm{Rand: rand.New(rand.NewPCG(seed, 7)), seed: seed}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				s.fail("%v", r)
			}
		}()
		synctest.Test(t, func(t *testing.T) {
			s.start, s.t = time.Now(), t
			defer func() {
				if r := recover(); r != nil {
					s.fail("panic: %v\n%s", r, shortStack())
				}
			}()
			play(s)
		})
	}()
	limit := time.NewTimer(standstill)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		s.fail("stands still: %s", waitingForLocks())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) > 4 {
		s.problems = append(s.problems[:4:4], fmt.Sprintf("and %d more", len(s.problems)-4))
	}
	return s.problems
}

var seenWaiting sync.Map // goroutines of earlier seeds that wait for a lock

// waitingForLocks returns the stacks of goroutines that wait for a lock of the limiter.
func waitingForLocks() string {
	buf := make([]byte, 1<<22)
	var stacks []string
	for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if !strings.Contains(stack, "sync.(*Mutex).Lock") || !strings.Contains(stack, "apithrottle/throttle.") {
			continue
		}
		goroutine, _, _ := strings.Cut(stack, "[")
		if _, seen := seenWaiting.LoadOrStore(goroutine, true); !seen {
			stacks = append(stacks, stack)
		}
	}
	return strings.Join(stacks[:min(2, len(stacks))], "\n")
}

// shortStack returns where in this module the goroutine panics.
func shortStack() (stack string) {
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for f, more := frames.Next(); more; f, more = frames.Next() {
		if _, name, ok := strings.Cut(f.Function, "apithrottle/throttle"); ok && !strings.HasPrefix(name, "_test") {
			stack += fmt.Sprintf("\t\t%s:%d\n", name, f.Line)
		}
	}
	return stack
}

// A storm is one seed of a random test.
type storm struct {
	*rand.Rand // for the goroutine that plays the storm
	seed       uint64
	t          *testing.T
	start      time.Time

	mu       sync.Mutex // guards all below
	problems []string
}

func (s *storm) fail(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	problem := fmt.Sprintf(format, args...)
	if at := time.Since(s.start); at < 1000*24*hour { // virtual time
		problem = fmt.Sprintf("at %v: %s", at, problem)
	}
	s.problems = append(s.problems, problem)
}

// random returns a source of random values for one goroutine.
func (s *storm) random() *rand.Rand { return rand.New(rand.NewPCG(s.seed, s.Uint64())) }

// A bug is a panic of the user's callback.
type bug struct{ callback string }

// bugs makes callbacks fail at random calls.
type bugs struct {
	mu    sync.Mutex // guards all below
	rand  *rand.Rand
	odds  map[string]int // by callback: one call in so many fails. If zero, none
	fired []string
}

var callbacks = []string{
	"Queued", "Admitted", "Refused", "Answered", "Settled", "Paused", "Alert",
	"Cost", "Settle", "settled", "Meter", "Meter.Write", "Meter.Cost", "Route", "SendBy",
}

// newBugs returns bugs in one to three of the callbacks.
func newBugs(r *rand.Rand) *bugs {
	b := &bugs{rand: rand.New(rand.NewPCG(r.Uint64(), 3)), odds: make(map[string]int)}
	for range 1 + r.IntN(3) {
		b.odds[pick(r, callbacks...)] = 1 + r.IntN(6)
	}
	return b
}

// call panics or ends the goroutine if the callback has a bug in this call.
func (b *bugs) call(callback string) {
	b.mu.Lock()
	odds := b.odds[callback]
	fails, exits := odds > 0 && b.rand.IntN(odds) == 0, b.rand.IntN(3) == 0
	if fails {
		b.fired = append(b.fired, callback)
	}
	b.mu.Unlock()
	switch {
	case fails && exits:
		runtime.Goexit()
	case fails:
		panic(bug{callback})
	}
}

// stop mends all bugs and returns which have shown up.
func (b *bugs) stop() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.odds)
	return b.fired
}

// TestStormOfPanics lets callbacks panic, or end their goroutine, while callers of all kinds use nested
// limits whose policies change, and which are paused and closed. A failed callback must be like a
// canceled caller: no other caller is refused or waits longer, nothing stays charged, and the
// provider refuses none of the requests that were sent.
func TestStormOfPanics(t *testing.T) {
	playSeeds(t, 20_000, 300, func(s *storm) {
		w := newPanicWorld(s)
		w.play()
		w.check()
	})
}

// A panicWorld is some quotas, nested in each other, and their callers.
type panicWorld struct {
	*storm
	*bugs
	quotas  []*stormQuota
	handles []stormHandle
	calls   []*stormCaller
	wg      sync.WaitGroup
	cancel  context.CancelFunc // ends the contexts of all callers
	ctx     context.Context
}

// A stormQuota is a quota, the policies that it had, and what was sent under it.
type stormQuota struct {
	*throttle.Limiter
	changingProvider
	policy     throttle.Policy // the first
	unobserved atomic.Bool     // a policy had no Observer
}

// set records that a policy comes into force, surely when the returned function is called.
func (q *stormQuota) set(p throttle.Policy) (done func()) {
	if p.Observer == nil {
		q.unobserved.Store(true)
	}
	return q.change(p.Tiers)
}

// A stormHandle is a Limiter by which callers come, and the quotas that it charges.
type stormHandle struct {
	*throttle.Limiter
	quotas []*stormQuota
}

func newPanicWorld(s *storm) *panicWorld {
	w := &panicWorld{storm: s, bugs: newBugs(s.Rand)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	store := local.New()
	for i := range 1 + w.IntN(3) {
		q := &stormQuota{policy: w.newPolicy(w.Rand, fmt.Sprint("quota", i), pick(w.Rand, 0, 5*ms, throttle.NoGuard))}
		q.Limiter = mustNew(s.t, q.policy, store)
		q.set(q.policy)()
		w.quotas = append(w.quotas, q)
		w.handles = append(w.handles, stormHandle{Limiter: q.Limiter, quotas: []*stormQuota{q}})
	}
	if w.IntN(2) == 0 {
		q := w.quotas[0]
		w.handles = append(w.handles, stormHandle{Limiter: mustNew(s.t, q.policy, store), quotas: []*stormQuota{q}})
	}
	for i := 1; i < len(w.quotas); i++ { // each inside the one before, by itself or in all of those
		inner, around := w.quotas[i], w.handles[i-1]
		if h := w.handles[len(w.handles)-1]; i > 1 && w.IntN(2) == 0 && !slices.Contains(h.quotas, inner) {
			around = h
		}
		w.handles = append(w.handles, stormHandle{Limiter: inner.Within(around.Limiter), quotas: append([]*stormQuota{inner}, around.quotas...)})
	}
	if w.IntN(3) == 0 {
		w.addGroup(store)
	}
	for i := range 5 + w.IntN(100) {
		w.calls = append(w.calls, w.newCaller(i))
	}
	return w
}

// addGroup adds a Group, of which a key is used alone and inside a quota.
func (w *panicWorld) addGroup(store throttle.Store) {
	p := w.newPolicy(w.Rand, "group", 5*ms)
	g, err := throttle.NewGroup(p, store, throttle.GroupOptions{})
	if err != nil {
		w.fail("NewGroup: %v", err)
		return
	}
	q := &stormQuota{policy: p, Limiter: g.For("key")}
	q.set(p)()
	outer := w.quotas[0]
	w.quotas = append(w.quotas, q)
	w.handles = append(w.handles, stormHandle{Limiter: q.Limiter, quotas: []*stormQuota{q}},
		stormHandle{Limiter: g.Within("key", outer.Limiter), quotas: []*stormQuota{q, outer}})
}

// newPolicy returns a random policy, whose Observer and Alert may fail.
func (w *panicWorld) newPolicy(r *rand.Rand, name string, guard time.Duration) (p throttle.Policy) {
	for ok := false; !ok; ok = p.Validate() == nil {
		p = throttle.Policy{
			Name: name, Tiers: randomTiers(r, r.IntN(2) == 0), Guard: guard,
			MaxQueue: pick(r, 0, 0, 1+r.IntN(4)), MaxWait: pick(r, 0, 0, upTo(r, sec)),
			Aging: pick(r, 0, 20*ms), Headroom: pick(r, 0, 0, 40),
			Alert: func(throttle.Alert) { w.bugs.call("Alert") },
		}
		if r.IntN(2) == 0 {
			p.AlertAt = []int{20, 50, 80}
		}
		if r.IntN(4) > 0 {
			p.Observer = w.observer()
		}
	}
	return p
}

// randomTiers returns one to three tiers of any counters. An estimated unit has room for every cost.
func randomTiers(r *rand.Rand, estimated bool) (tiers []throttle.Tier) {
	for range 1 + r.IntN(3) {
		a := throttle.Algorithm(r.IntN(int(throttle.Calendar) + 1))
		tier := throttle.Tier{Algorithm: a, Limit: 1 + r.Int64N(6), Window: pick(r, 10*ms, 60*ms, 200*ms, sec)}
		if r.IntN(4) == 0 {
			tier.PaceBurst = 1 + r.Int64N(tier.Limit)
		}
		switch r.IntN(4) {
		case 0:
			tier.Unit = "jobs"
		case 1:
			tier.Unit, tier.Limit, tier.PaceBurst = "tokens", 20*tier.Limit, 0
			tier.Estimated = estimated && a != throttle.Concurrency
		}
		switch a {
		case throttle.Concurrency:
			tier.Window, tier.PaceBurst = 0, 0
		case throttle.Calendar:
			tier.Window, tier.PaceBurst, tier.Period = 0, 0, throttle.Day
			tier.Limit, tier.Budget = tier.Limit*6, r.IntN(3) > 0
		case throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA:
			if tier.Unit != "tokens" {
				tier.Burst = r.Int64N(2*tier.Limit + 1)
			}
		case throttle.FixedWindow, throttle.WeightedWindow:
			tier.Phase = pick(r, 0, 3*ms)
		}
		tiers = append(tiers, tier)
	}
	return tiers
}

// A stormCallerKey in a context has the caller, for events.
type stormCallerKey struct{}

func (w *panicWorld) observer() *throttle.Observer {
	caller := func(ctx context.Context) *stormCaller {
		c, _ := ctx.Value(stormCallerKey{}).(*stormCaller)
		return c
	}
	return &throttle.Observer{
		Queued: func(context.Context, throttle.QueuedInfo) { w.bugs.call("Queued") },
		Admitted: func(ctx context.Context, i throttle.AdmittedInfo) {
			w.bugs.call("Admitted")
			if c := caller(ctx); c != nil {
				c.admitted++
			}
		},
		Refused: func(ctx context.Context, i throttle.RefusedInfo) {
			w.bugs.call("Refused")
			if c := caller(ctx); c != nil {
				c.refused++
			}
		},
		Answered: func(context.Context, throttle.AnsweredInfo) { w.bugs.call("Answered") },
		Settled:  func(throttle.SettledInfo) { w.bugs.call("Settled") },
		Paused:   func(throttle.PausedInfo) { w.bugs.call("Paused") },
	}
}

// A stormCaller is one call of a Limiter's method, and what becomes of the request.
type stormCaller struct {
	*rand.Rand
	number  int
	handle  *stormHandle
	arrives time.Duration // since the start
	method  int
	cost    throttle.Cost
	class   throttle.Class
	within  time.Duration // its timeout. If zero, none
	gone    time.Duration // when its context is canceled, after its arrival. If zero, never

	admitted, refused int // calls of the Observer, in the goroutine of the caller
	ended             bool
}

func (w *panicWorld) newCaller(i int) *stormCaller {
	c := &stormCaller{
		Rand: w.random(), number: i, handle: &w.handles[w.IntN(len(w.handles))],
		arrives: time.Duration(w.IntN(60))*ms + time.Duration(i)*time.Microsecond, method: w.IntN(10),
		cost:  pick(w.Rand, nil, nil, throttle.Cost{"requests": 1 + w.Int64N(3)}, throttle.Cost{"tokens": w.Int64N(18)}, throttle.Cost{"jobs": 1}),
		class: classes[w.IntN(3)], within: upTo(w.Rand, 2*sec),
	}
	switch w.IntN(4) {
	case 0:
		c.within = 0
	case 1:
		c.gone = upTo(w.Rand, 100*ms)
	}
	return c
}

func (w *panicWorld) play() {
	for _, c := range w.calls {
		w.wg.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					if _, expected := r.(bug); !expected {
						w.fail("caller %d, method %d: panic: %v\n%s", c.number, c.method, r, shortStack())
					}
				}
				c.ended = true
			}()
			time.Sleep(c.arrives)
			w.request(c)
		})
	}
	for range w.IntN(8) {
		r, at := w.random(), upTo(w.Rand, 100*ms)
		w.wg.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					if _, expected := r.(bug); !expected {
						w.fail("disturbance: panic: %v\n%s", r, shortStack())
					}
				}
			}()
			time.Sleep(at)
			w.disturb(r)
		})
	}
	time.Sleep(200 * ms)
	w.bugs.stop()
}

// disturb changes, pauses or closes something.
func (w *panicWorld) disturb(r *rand.Rand) {
	q := w.quotas[r.IntN(len(w.quotas))]
	p := w.newPolicy(r, q.policy.Name, q.policy.Guard)
	switch r.IntN(6) {
	case 0:
		_ = q.Pause(w.ctx, upTo(r, 50*ms))
	case 1:
		_ = q.Resume(w.ctx)
	case 2:
		h := &w.handles[r.IntN(len(w.handles))]
		if h.Limiter != q.Limiter && len(h.quotas) > 1 {
			h.Close()
		}
	default:
		done := q.set(p)
		if err := q.SetPolicy(w.ctx, p); err != nil {
			w.fail("SetPolicy: %v", err)
		}
		done()
	}
}

// request makes the caller's request.
func (w *panicWorld) request(c *stormCaller) {
	ctx, cancel := context.WithCancel(throttle.WithClass(context.WithValue(w.ctx, stormCallerKey{}, c), c.class))
	defer cancel()
	if c.within > 0 {
		ctx, cancel = context.WithTimeout(ctx, c.within)
		defer cancel()
	}
	if c.gone > 0 {
		defer time.AfterFunc(c.gone, cancel).Stop()
	}
	n := max(1, c.cost["requests"])
	var err error
	switch c.method {
	case 0:
		if c.handle.AllowN(n) {
			w.sent(c, throttle.Cost{"requests": n})
		}
		return
	case 1, 2:
		if err = c.handle.WaitN(ctx, n); err == nil {
			w.sent(c, throttle.Cost{"requests": n})
		}
	case 3:
		var p *throttle.Permit
		p, err = c.handle.TryAcquire(ctx, c.cost)
		defer p.Release()
		if err == nil {
			w.usePermit(c, p)
		}
		return
	case 4, 5, 6:
		var p *throttle.Permit
		p, err = c.handle.Acquire(ctx, c.cost)
		defer p.Release()
		if err == nil {
			w.usePermit(c, p)
		}
	default:
		w.roundTrip(ctx, c)
		return
	}
	if want := map[bool][2]int{true: {1, 0}, false: {0, 1}}[err == nil]; c.observed() && [2]int{c.admitted, c.refused} != want {
		w.fail("caller %d, method %d, returned %v, but the Observer counted %d admitted and %d refused", c.number, c.method, err, c.admitted, c.refused)
	}
}

// observed reports whether the innermost policy of the caller has had an Observer all the time.
func (c *stormCaller) observed() bool { return !c.handle.quotas[0].unobserved.Load() }

// sent tells the provider of a request that arrives within the guard.
func (w *panicWorld) sent(c *stormCaller, cost throttle.Cost) *sentRequest {
	guard := 50 * ms
	for _, q := range c.handle.quotas {
		switch q.policy.Guard {
		case throttle.NoGuard:
			guard = 0
		case 5 * ms:
			guard = min(guard, 5*ms)
		}
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

// usePermit sends the permit's request, and reports some of what became of it, in any order.
func (w *panicWorld) usePermit(c *stormCaller, p *throttle.Permit) {
	if c.IntN(6) == 0 {
		_ = p.Cancel(w.ctx)
		return
	}
	r := w.sent(c, c.cost)
	defer r.release() // before the Permit's
	time.Sleep(c.spread(r.delay()))
	if time.Now().Before(r.arrived) {
		return // no response came
	}
	for range c.IntN(3) {
		switch c.IntN(6) {
		case 0:
			p.Arrived()
		case 1:
			p.Passed()
		case 2:
			_ = p.Refused(w.ctx, upTo(c.Rand, 20*ms))
		case 3:
			_ = p.Settle(throttle.Cost{})
		case 4:
			r.settle("tokens", c.Int64N(c.cost["tokens"]+1))
			_ = p.Settle(throttle.Cost{"tokens": r.cost["tokens"]})
		case 5:
			p.Arrived()
			_ = p.Cancel(w.ctx) // too late
		}
		time.Sleep(c.spread(2 * ms))
	}
}

// spread returns a random length, of which half are longer than d.
func (c *stormCaller) spread(d time.Duration) time.Duration { return upTo(c.Rand, 2*d+ms) }

// roundTrip sends a request through a Transport all of whose functions may fail.
func (w *panicWorld) roundTrip(ctx context.Context, c *stormCaller) {
	tr := &throttle.Transport{
		Cost: func(*http.Request) throttle.Cost { w.bugs.call("Cost"); return c.cost },
		Base: roundTripper(func(req *http.Request) (*http.Response, error) { return w.answer(c, req) }),
	}
	if tr.Limiter = c.handle.Limiter; c.IntN(3) == 0 {
		tr.Route = func(*http.Request) *throttle.Limiter { w.bugs.call("Route"); return c.handle.Limiter }
	}
	if c.IntN(2) == 0 {
		tr.Settle = func(*http.Request) func(throttle.Cost) throttle.Cost {
			w.bugs.call("Settle")
			return func(throttle.Cost) throttle.Cost { w.bugs.call("settled"); return nil }
		}
	}
	if c.IntN(2) == 0 {
		tr.Meter = func(*http.Response) throttle.Meter { w.bugs.call("Meter"); return buggyMeter{w.bugs} }
	}
	if c.IntN(3) == 0 {
		tr.SendBy = func(*http.Request) time.Time { w.bugs.call("SendBy"); return time.Now().Add(sec) }
	}
	req, err := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
	if err != nil {
		w.fail("%v", err)
		return
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if c.IntN(3) > 0 {
		_, _ = io.Copy(io.Discard, resp.Body)
	}
}

// answer sends the request, and answers with a response, a refusal or an error.
func (w *panicWorld) answer(c *stormCaller, req *http.Request) (*http.Response, error) {
	r := w.sent(c, c.cost)
	select {
	case <-time.After(c.spread(r.delay())):
	case <-req.Context().Done():
		r.release()
		return nil, req.Context().Err()
	}
	if time.Now().Before(r.arrived) || c.IntN(5) == 0 {
		r.release()
		return nil, errors.New("broken")
	}
	status := 200
	if c.IntN(6) == 0 {
		status = 429
		r.settle("tokens", 0) // a refused request costs nothing
	}
	resp := answer(status)
	resp.Request, resp.Body = req, &releasingBody{strings.NewReader("hello"), r}
	return resp, nil
}

// A releasingBody ends its request when it is read to the end or closed.
type releasingBody struct {
	*strings.Reader
	request *sentRequest
}

func (b *releasingBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		b.request.release()
	}
	return n, err
}

func (b *releasingBody) Close() error { b.request.release(); return nil }

// A buggyMeter is a Meter whose methods may fail.
type buggyMeter struct{ *bugs }

func (m buggyMeter) Write(p []byte) (int, error) { m.call("Meter.Write"); return len(p), nil }
func (m buggyMeter) Cost() throttle.Cost         { m.call("Meter.Cost"); return nil }

// check waits until all callers have ended. Then nothing may be used, and whoever comes is admitted.
func (w *panicWorld) check() {
	all := make(chan struct{})
	go func() { w.wg.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(100 * 24 * hour):
		w.fail("callers wait for ever: %s; bugs in %v", w.waiting(), w.fired)
		w.cancel()
		select {
		case <-all:
		case <-time.After(hour):
			w.fail("callers ignore the end of their contexts: %s", w.waiting())
		}
	}
	w.cancel()
	time.Sleep(48 * hour)
	for _, q := range w.quotas {
		if problem := q.verdict(); problem != "" {
			w.fail("%s: %s; bugs in %v", q.policy.Name, problem, w.fired)
		}
		if err := q.Resume(context.Background()); err != nil {
			w.fail("Resume: %v", err)
		}
	}
	for i, h := range w.handles {
		if h.isClosed() {
			continue
		}
		if problem := leftOver(h.Limiter); problem != "" {
			w.fail("handle %d: %s; bugs in %v", i, problem, w.fired)
			return
		}
	}
	for i, h := range w.handles {
		if h.isClosed() {
			continue
		}
		p, err := h.TryAcquire(context.Background(), h.capacity())
		if err != nil {
			w.fail("handle %d: a request of %v is refused by an unused quota: %v; bugs in %v", i, h.capacity(), err, w.fired)
		}
		p.Release()
		time.Sleep(48 * hour)
	}
}

// waiting describes the callers that have not returned.
func (w *panicWorld) waiting() (text string) {
	for _, c := range w.calls {
		if !c.ended {
			text += fmt.Sprintf(" caller %d by method %d of %v", c.number, c.method, c.handle.names())
		}
	}
	return text
}

func (h *stormHandle) names() (names []string) {
	for _, q := range h.quotas {
		names = append(names, q.policy.Name)
	}
	return names
}

// isClosed reports whether the handle was closed with another one.
func (h *stormHandle) isClosed() bool {
	_, err := h.Forecast(context.Background(), nil)
	return errors.Is(err, throttle.ErrClosed)
}

// capacity returns the largest cost that all tiers admit at once.
func (h *stormHandle) capacity() throttle.Cost {
	c := make(throttle.Cost)
	for _, q := range h.quotas {
		for _, tier := range q.now() {
			if most, ok := c[unitOf(tier)]; !ok || most > tier.Capacity() {
				c[unitOf(tier)] = tier.Capacity()
			}
		}
	}
	return c
}

// leftOver returns what of a Limiter's Status is not that of an unused quota.
func leftOver(l *throttle.Limiter) string {
	s, err := l.Status(context.Background())
	if err != nil {
		return fmt.Sprint("Status: ", err)
	}
	left := s.Waiting > 0 || s.Paused > 0 || s.Closed > 0
	for _, tier := range s.Tiers {
		left = left || tier.Used != 0 || tier.InFlight != 0
	}
	if left {
		return fmt.Sprintf("something is left over: %+v", s)
	}
	return ""
}
