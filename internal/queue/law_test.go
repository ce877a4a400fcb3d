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

// A guest is a caller of the law tests. Its times count from the start.
type guest struct {
	class    Class
	cost     []int64
	came     time.Duration
	deadline time.Duration // never if it has none
	giveUp   bool          // the deadline is Ticket.GiveUp, and not the context's
	leaves   time.Duration // it cancels; never if it does not

	end time.Duration // how it ended
	err error
}

// A pause begins at an instant and lasts for so long; 0 ends all pauses.
type pause struct{ at, lasts time.Duration }

// A party is one run: the guests in the order of their arrival.
type party struct {
	tiers  []algorithms.Tier
	units  []string
	aging  time.Duration
	guests []guest
	pauses []pause
	noise  []time.Duration // when the quota reports that something was freed, though nothing was
	asked  int             // how often the quota was asked
}

// No two of what happens in a party fall on one instant: all windows are whole
// milliseconds, and all times are, but for microseconds of their own.
const (
	arrivals = 1   // microseconds of the i-th guest's arrival beyond this
	leavings = 200 // of its leaving
	limits   = 400 // of its deadline
	halts    = 600 // of the i-th pause
	noises   = 800 // of the i-th noise
)

func instant(r *rand.Rand, from, within time.Duration, own int) time.Duration {
	at := (from + time.Duration(r.Int64N(int64(within)))).Truncate(ms)
	if at += time.Duration(own) * time.Microsecond; at <= from {
		at += ms
	}
	return at
}

// randomParty has up to 100 guests who come about as fast as the tiers admit them, or
// faster.
func randomParty(r *rand.Rand, mixed bool) *party {
	p := &party{units: []string{algorithms.Requests}, aging: time.Duration(r.IntN(3)) * 700 * ms}
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
		p.guests = append(p.guests, p.randomGuest(r, i, span, mixed))
	}
	for i := range r.IntN(4) {
		lasts := time.Duration(r.IntN(2000)) * ms
		if r.IntN(3) == 0 {
			lasts = 0
		}
		p.pauses = append(p.pauses, pause{instant(r, 0, span, halts+i), lasts})
	}
	slices.SortFunc(p.pauses, func(a, b pause) int { return cmp.Compare(a.at, b.at) })
	for i := range r.IntN(20) {
		p.noise = append(p.noise, instant(r, 0, span, noises+i))
	}
	return p
}

func (p *party) randomGuest(r *rand.Rand, i int, span time.Duration, mixed bool) guest {
	g := guest{cost: make([]int64, len(p.units)), deadline: never, leaves: never}
	for u := range g.cost {
		g.cost[u] = 1
		if mixed {
			g.cost[u] = 1 + r.Int64N([]int64{2, 60}[u])
		}
	}
	if g.came = instant(r, 0, span, arrivals+i); p.aging > 0 {
		g.class = Class(r.IntN(3))
	}
	switch r.IntN(5) {
	case 0:
		g.leaves = instant(r, g.came, 3*sec, leavings+i)
	case 1, 2, 3:
		g.deadline, g.giveUp = instant(r, g.came, 6*sec, limits+i), r.IntN(2) == 0
	}
	return g
}

func (g *guest) admitted() bool { return g.err == nil }

// run has the guests wait in a queue for a quota in this process.
func (p *party) run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := &noisy{Quota: quotaOf(t, p.tiers...)}
		q := New(Config{Quota: quota, Aging: p.aging})
		begin := time.Now()
		var all sync.WaitGroup
		for i := range p.guests {
			g := &p.guests[i]
			all.Go(func() { g.visit(q, begin) })
		}
		for _, b := range p.pauses {
			time.AfterFunc(b.at, func() {
				if b.lasts == 0 {
					_ = quota.Resume(context.Background())
				} else if _, err := quota.Pause(context.Background(), store.Pause{For: b.lasts}); err != nil {
					t.Error(err)
				}
			})
		}
		for _, at := range p.noise {
			time.AfterFunc(at, quota.freed)
		}
		all.Wait()
		time.Sleep(time.Minute) // pauses and noise when all have gone
		p.asked = quota.asked
		if q.Len() != 0 || q.unwatch != nil || len(q.asking) > 0 {
			t.Errorf("%d wait when all have gone, %d are asked for, watched: %v", q.Len(), len(q.asking), q.unwatch != nil)
		}
	})
}

func (g *guest) visit(q *Queue, begin time.Time) {
	time.Sleep(g.came)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ticket := Ticket{Request: store.Request{Cost: g.cost}, Class: g.class}
	switch {
	case g.leaves != never:
		defer time.AfterFunc(g.leaves-g.came, cancel).Stop()
	case g.deadline != never && g.giveUp:
		ticket.GiveUp = begin.Add(g.deadline)
	case g.deadline != never:
		ctx, cancel = context.WithDeadline(ctx, begin.Add(g.deadline))
		defer cancel()
	}
	_, g.err = q.Wait(ctx, ticket)
	g.end = time.Since(begin)
}

// A noisy quota reports that something was freed when nothing was. It counts questions.
type noisy struct {
	store.Quota
	mu      sync.Mutex // guards all below
	changed func(store.Change, time.Duration)
	asked   int
}

func (n *noisy) Forecast() store.Forecast { return n.Quota.(store.Forecaster).Forecast() }

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

// model returns when each guest is admitted, by the law: whenever all counters take what
// the first guest costs, it goes, and nobody overtakes it. The first guest is the one of
// the least rank among those who are there. Gone is when a guest leaves that has not been
// admitted by then.
func (p *party) model(t *testing.T, guests []guest, gone []time.Duration, pauses []pause) []time.Duration {
	counter, err := throttletest.NewCounter(p.tiers...)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // in every bubble
	admitted := make([]time.Duration, len(guests))
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
			case b.lasts == 0:
				until = 0
			default:
				until = max(until, b.at+b.lasts)
			}
		}
		for i, g := range guests {
			switch {
			case g.came > now:
				event = min(event, g.came)
			case admitted[i] == never && gone[i] > now:
				event = min(event, gone[i])
				if head < 0 || p.rank(g) < p.rank(guests[head]) {
					head = i
				}
			}
		}
		if head >= 0 {
			cost := p.named(guests[head].cost)
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

func (p *party) rank(g guest) time.Duration {
	return g.came + p.aging*time.Duration(map[Class]int{Interactive: 0, Normal: 1, Batch: 2}[g.class])
}

func (p *party) named(cost []int64) map[string]int64 {
	named := make(map[string]int64)
	for u, n := range cost {
		named[p.units[u]] = n
	}
	return named
}

// judge compares a run with the law.
func (p *party) judge(t *testing.T, equal bool) (refusals, early int, problem error) {
	gone := make([]time.Duration, len(p.guests))
	for i, g := range p.guests {
		if gone[i] = never; !g.admitted() {
			gone[i] = g.end
		}
	}
	want := p.model(t, p.guests, gone, p.pauses)
	for i, g := range p.guests {
		if g.admitted() && g.end != want[i] {
			return 0, 0, fmt.Errorf("guest %d %+v was admitted, want at %v", i, g, want[i])
		}
		refused, err := p.judgeEnd(t, i, gone, equal)
		if err != nil {
			return 0, 0, fmt.Errorf("guest %d %+v: %w", i, g, err)
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

// judgeEnd judges how a guest ended, and when it came or a pause began, whether it should
// have ended then.
func (p *party) judgeEnd(t *testing.T, i int, gone []time.Duration, equal bool) (refused bool, err error) {
	g := p.guests[i]
	if refused = isRefusal(g.err, Late); refused {
		if g.end > g.deadline {
			return true, fmt.Errorf("refused after its deadline")
		}
		if at := p.ifItStayed(t, i, g.end, gone, equal); at <= g.deadline {
			return true, fmt.Errorf("it would have been admitted at %v", at)
		}
		if g.end == g.came {
			return true, nil
		}
	}
	switch {
	case g.admitted() || refused:
	case errors.Is(g.err, context.Canceled) && g.end == g.leaves:
		return false, nil
	case errors.Is(g.err, context.DeadlineExceeded) && g.end == g.deadline && !g.giveUp:
	default:
		return false, fmt.Errorf("it must not end so")
	}
	if equal && g.deadline != never {
		if at := p.ifItStayed(t, i, g.came, gone, true); at > g.deadline {
			return refused, fmt.Errorf("it was not refused at once, though it could not be admitted before %v", at)
		}
	}
	return refused, nil
}

// ifItStayed returns when a guest would be admitted, as far as is known at an instant: if
// nobody else comes and no other pause begins. Who is ahead then stays, until its own
// deadline if that counts.
func (p *party) ifItStayed(t *testing.T, i int, now time.Duration, gone []time.Duration, deadlines bool) time.Duration {
	var guests []guest
	var leave []time.Duration
	me := 0
	for j, g := range p.guests {
		until := never
		switch {
		case g.came > now:
			continue
		case j == i:
			me = len(guests)
		case gone[j] <= now:
			until = gone[j]
		case deadlines:
			until = g.deadline
		}
		guests, leave = append(guests, g), append(leave, until)
	}
	var pauses []pause
	for _, b := range p.pauses {
		if b.at <= now {
			pauses = append(pauses, b)
		}
	}
	return p.model(t, guests, leave, pauses)[me]
}

// TestLaws: whatever guests come, cancel, have deadlines or give up, and whatever pauses
// there are: each admission is at the earliest instant, in order, as if those who left
// had not come (L2, L4, L5); a refusal is never wrong, and comes at once if and only if
// it is known then, where all cost the same (L7).
func TestLaws(t *testing.T) {
	for name, mixed := range map[string]bool{"equal": false, "mixed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusals, early, seeds := 0, 0, soak.Times(40)
			for seed := range uint64(seeds) {
				p := randomParty(rand.New(rand.NewPCG(seed, 7)), mixed)
				p.run(t)
				n, m, problem := p.judge(t, !mixed)
				if problem != nil {
					t.Fatalf("seed %d, %+v, aging %v, pauses %v: %v", seed, p.tiers, p.aging, p.pauses, problem)
				}
				// Each guest, noise and pause gives reason for some questions.
				if most := 4 * (len(p.guests) + len(p.noise) + len(p.pauses)); p.asked > most {
					t.Fatalf("seed %d: the quota was asked %d times for %d guests, %d pauses and %d noises", seed, p.asked, len(p.guests), len(p.pauses), len(p.noise))
				}
				refusals, early = refusals+n, early+m
			}
			if early < 10*seeds/3 {
				t.Errorf("%d were refused, %d of them early: this proves little", refusals, early)
			}
		})
	}
}
