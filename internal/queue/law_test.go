package queue

import (
	"cmp"
	"context"
	"errors"
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

const never = store.Forever

// A client is a caller of the law tests. Its times count from the start of the run.
type client struct {
	class    Class
	cost     []int64
	joinedAt time.Duration
	deadline time.Duration // never if there is none
	giveUp   bool          // the deadline is Ticket.GiveUp, and not the context's
	leaves   time.Duration // when it cancels; never if it does not

	end time.Duration // when and how its wait ended
	err error
}

// A pause begins at an instant and takes some time. A length of 0 ends all pauses.
type pause struct{ at, length time.Duration }

// A workload is one run, with its clients in the order of their arrival.
type workload struct {
	tiers   []algorithms.Tier
	units   []string
	aging   time.Duration
	clients []client
	pauses  []pause
	noise   []time.Duration // when the quota reports Freed without a cause
	asked   int             // how often the queue asked the quota
}

// No two events of a workload fall on one instant. All windows and times are whole milliseconds,
// and each event has its own additional microseconds.
const (
	arrivalOffset  = 1   // microseconds of the i-th client's arrival, beyond this offset
	leaveOffset    = 200 // of its cancellation
	deadlineOffset = 400 // of its deadline
	pauseOffset    = 600 // of the i-th pause
	noiseOffset    = 800 // of the i-th noise
)

func instant(r *rand.Rand, from, within time.Duration, own int) time.Duration {
	at := (from + time.Duration(r.Int64N(int64(within)))).Truncate(ms)
	if at += time.Duration(own) * time.Microsecond; at <= from {
		at += ms
	}
	return at
}

// randomWorkload has up to 100 clients that arrive about as fast as the tiers admit them, or
// faster.
func randomWorkload(r *rand.Rand, mixed bool) *workload {
	p := &workload{units: []string{algorithms.Requests}, aging: time.Duration(r.IntN(3)) * 700 * ms}
	for range 1 + r.IntN(2) {
		a := []algorithms.Algorithm{algorithms.SlidingLog, algorithms.GCRA, algorithms.TokenBucket, algorithms.FixedWindow}[r.IntN(4)]
		limit := []int64{2, 5, 10}[r.IntN(3)]
		p.tiers = append(p.tiers, algorithms.Tier{Limit: limit, Window: time.Duration(limit) * time.Duration(50+r.IntN(100)) * ms, Algorithm: a})
	}
	if mixed && r.IntN(2) == 0 {
		p.units = append(p.units, "tokens")
		p.tiers = append(p.tiers, algorithms.Tier{Limit: 100, Window: sec, Algorithm: algorithms.SlidingLog, Unit: "tokens"})
	}
	span := time.Duration(1+r.IntN(10)) * sec
	for i := range 20 + r.IntN(80) {
		p.clients = append(p.clients, p.randomClient(r, i, span, mixed))
	}
	for i := range r.IntN(4) {
		length := time.Duration(r.IntN(2000)) * ms
		if r.IntN(3) == 0 {
			length = 0
		}
		p.pauses = append(p.pauses, pause{instant(r, 0, span, pauseOffset+i), length})
	}
	slices.SortFunc(p.pauses, func(a, b pause) int { return cmp.Compare(a.at, b.at) })
	for i := range r.IntN(20) {
		p.noise = append(p.noise, instant(r, 0, span, noiseOffset+i))
	}
	return p
}

func (p *workload) randomClient(r *rand.Rand, i int, span time.Duration, mixed bool) client {
	g := client{cost: make([]int64, len(p.units)), deadline: never, leaves: never}
	for u := range g.cost {
		g.cost[u] = 1
		if mixed {
			g.cost[u] = 1 + r.Int64N([]int64{2, 60}[u])
		}
	}
	if g.joinedAt = instant(r, 0, span, arrivalOffset+i); p.aging > 0 {
		g.class = Class(r.IntN(3))
	}
	switch r.IntN(5) {
	case 0:
		g.leaves = instant(r, g.joinedAt, 3*sec, leaveOffset+i)
	case 1, 2, 3:
		g.deadline, g.giveUp = instant(r, g.joinedAt, 6*sec, deadlineOffset+i), r.IntN(2) == 0
	}
	return g
}

func (g *client) admitted() bool { return g.err == nil }

// run lets the clients wait in a queue for a quota of package local.
func (p *workload) run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := &noisy{Quota: quotaOf(t, p.tiers...)}
		q := New(complete(Config{Quota: quota, Aging: p.aging}))
		begin := time.Now()
		var all sync.WaitGroup
		for i := range p.clients {
			g := &p.clients[i]
			all.Go(func() { g.call(q, begin) })
		}
		for _, b := range p.pauses {
			time.AfterFunc(b.at, func() {
				if b.length == 0 {
					_ = quota.Resume(context.Background())
				} else if _, err := quota.Pause(context.Background(), store.Pause{For: b.length}); err != nil {
					t.Error(err)
				}
			})
		}
		for _, at := range p.noise {
			time.AfterFunc(at, quota.freed)
		}
		all.Wait()
		time.Sleep(time.Minute) // pauses and noise after the last client
		p.asked = quota.asked
		if q.Len() != 0 || q.unwatch != nil || len(q.calls.asking) > 0 {
			t.Errorf("after the run %d callers wait, the queue asks for %d, watched: %v", q.Len(), len(q.calls.asking), q.unwatch != nil)
		}
	})
}

func (g *client) call(q *Queue, begin time.Time) {
	time.Sleep(g.joinedAt)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ticket := Ticket{Request: store.Request{Cost: g.cost}, Class: g.class}
	switch {
	case g.leaves != never:
		defer time.AfterFunc(g.leaves-g.joinedAt, cancel).Stop()
	case g.deadline != never && g.giveUp:
		ticket.GiveUp = begin.Add(g.deadline)
	case g.deadline != never:
		ctx, cancel = context.WithDeadline(ctx, begin.Add(g.deadline))
		defer cancel()
	}
	_, g.err = q.Wait(ctx, ticket)
	g.end = time.Since(begin)
}

// A noisy quota reports Freed without a cause, and counts calls.
type noisy struct {
	store.Quota
	mu      sync.Mutex // guards all below
	changed func(store.Change, time.Duration)
	asked   int
}

func (n *noisy) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	n.mu.Lock()
	n.asked++
	n.mu.Unlock()
	return n.Quota.TryAcquire(ctx, r)
}

func (n *noisy) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = changed
	return n.Quota.Watch(changed)
}

func (n *noisy) freed() {
	n.mu.Lock()
	changed := n.changed
	n.mu.Unlock()
	if changed != nil {
		changed(store.Freed, 0)
	}
}

// model returns when each client must be admitted. Whenever all counters accept the cost of the
// first client, it is admitted, and no other client overtakes it. The first client is the present
// one of the lowest rank. leftAt is when a client leaves if it has not been admitted by then.
func (p *workload) model(t *testing.T, clients []client, leftAt []time.Duration, pauses []pause) []time.Duration {
	counter, err := throttletest.NewCounter(p.tiers...)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // the start time of every bubble
	admitted := make([]time.Duration, len(clients))
	for i := range admitted {
		admitted[i] = never
	}
	for now := time.Duration(0); ; {
		head, event := -1, never
		var until time.Duration
		for _, b := range pauses {
			switch {
			case b.at > now:
				event = min(event, b.at)
			case b.length == 0:
				until = 0
			default:
				until = max(until, b.at+b.length)
			}
		}
		for i, g := range clients {
			switch {
			case g.joinedAt > now:
				event = min(event, g.joinedAt)
			case admitted[i] == never && leftAt[i] > now:
				event = min(event, leftAt[i])
				if head < 0 || p.rank(g) < p.rank(clients[head]) {
					head = i
				}
			}
		}
		if head >= 0 {
			cost := p.named(clients[head].cost)
			micros, ok := counter.Earliest(begin.Add(max(now, until)).UnixMicro(), cost)
			if at := time.UnixMicro(micros).Sub(begin); ok && at < event {
				counter.Arrive(micros, cost)
				admitted[head], now = at, at
				continue
			}
		}
		if event == never {
			return admitted
		}
		now = event
	}
}

func (p *workload) rank(g client) time.Duration {
	return g.joinedAt + p.aging*time.Duration(map[Class]int{Interactive: 0, Normal: 1, Batch: 2}[g.class])
}

func (p *workload) named(cost []int64) map[string]int64 {
	named := make(map[string]int64)
	for u, n := range cost {
		named[p.units[u]] = n
	}
	return named
}

// check compares a run with the model.
func (p *workload) check(t *testing.T, equalCosts bool) (refusals, early int, problem error) {
	leftAt := make([]time.Duration, len(p.clients))
	for i, g := range p.clients {
		if leftAt[i] = never; !g.admitted() {
			leftAt[i] = g.end
		}
	}
	want := p.model(t, p.clients, leftAt, p.pauses)
	for i, g := range p.clients {
		if g.admitted() && g.end != want[i] {
			return 0, 0, fmt.Errorf("client %d %+v was admitted, want at %v", i, g, want[i])
		}
		refused, err := p.checkEnd(t, i, leftAt, equalCosts)
		if err != nil {
			return 0, 0, fmt.Errorf("client %d %+v: %w", i, g, err)
		}
		if refused {
			refusals++
			if g.end < g.deadline {
				early++
			}
		}
	}
	return refusals, early, nil
}

// checkEnd checks how a client's wait ended. It also checks whether the queue should have refused
// the client when it joined.
func (p *workload) checkEnd(t *testing.T, i int, leftAt []time.Duration, equalCosts bool) (refused bool, err error) {
	g := p.clients[i]
	if refused = isRefusal(g.err, Late); refused {
		if g.end > g.deadline {
			return true, fmt.Errorf("refused after its deadline")
		}
		if at := p.ifItStayed(t, i, g.end, leftAt, equalCosts); at <= g.deadline {
			return true, fmt.Errorf("refused, though it would have been admitted at %v", at)
		}
		if g.end == g.joinedAt {
			return true, nil
		}
	}
	switch {
	case g.admitted() || refused:
	case errors.Is(g.err, context.Canceled) && g.end == g.leaves:
		return false, nil
	case errors.Is(g.err, context.DeadlineExceeded) && g.end == g.deadline && !g.giveUp:
	default:
		return false, fmt.Errorf("it ended in a wrong way")
	}
	if equalCosts && g.deadline != never {
		if at := p.ifItStayed(t, i, g.joinedAt, leftAt, true); at > g.deadline {
			return refused, fmt.Errorf("it was not refused at once, though the earliest admission is at %v", at)
		}
	}
	return refused, nil
}

// ifItStayed returns when a client would be admitted, as far as is known at an instant: if no other
// client arrives and no other pause begins. Clients ahead stay, or with deadlines leave at theirs.
func (p *workload) ifItStayed(t *testing.T, i int, now time.Duration, leftAt []time.Duration, deadlines bool) time.Duration {
	var clients []client
	var leave []time.Duration
	me := 0
	for j, g := range p.clients {
		until := never
		switch {
		case g.joinedAt > now:
			continue
		case j == i:
			me = len(clients)
		case leftAt[j] <= now:
			until = leftAt[j]
		case deadlines:
			until = g.deadline
		}
		clients, leave = append(clients, g), append(leave, until)
	}
	var pauses []pause
	for _, b := range p.pauses {
		if b.at <= now {
			pauses = append(pauses, b)
		}
	}
	return p.model(t, clients, leave, pauses)[me]
}

// TestLaws tests random arrivals, cancellations, deadlines and pauses. Each admission is at the
// earliest instant, in order, as if canceled clients had not come (L2, L4, L5). A refusal is never
// wrong. If all costs are equal, the queue refuses a client at once if and only if it is then known
// to be late (L7).
func TestLaws(t *testing.T) {
	for name, mixed := range map[string]bool{"equal": false, "mixed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusals, early, seeds := 0, 0, soak.Times(40)
			for seed := range uint64(seeds) {
				p := randomWorkload(rand.New(rand.NewPCG(seed, 7)), mixed)
				p.run(t)
				n, m, problem := p.check(t, !mixed)
				if problem != nil {
					t.Fatalf("seed %d, %+v, aging %v, pauses %v: %v", seed, p.tiers, p.aging, p.pauses, problem)
				}
				// Each client, noise and pause may cause a few calls.
				if maxAsked := 4 * (len(p.clients) + len(p.noise) + len(p.pauses)); p.asked > maxAsked {
					t.Fatalf("seed %d: the quota was asked %d times for %d clients, %d pauses and %d noises", seed, p.asked, len(p.clients), len(p.pauses), len(p.noise))
				}
				refusals, early = refusals+n, early+m
			}
			if early < seeds {
				t.Errorf("%d clients were refused, %d of them early: too few for a test", refusals, early)
			}
		})
	}
}
