package integration_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
)

// A changingProvider is a provider whose tiers change. It counts each request when it arrives, by the
// definitions of the counters. A tier that was there before a change counts on, whatever its new
// limit is, if its algorithm, window and unit are the same. Any other tier counts the requests that
// were admitted since it is there.
type changingProvider struct {
	mu   sync.Mutex // guards all below
	eras []era
	all  []*sentRequest
}

// An era is the time for which tiers are in force: surely after a call of SetPolicy has returned.
type era struct {
	from, surely time.Time
	tiers        []throttle.Tier
}

// A sentRequest is a request on its way to the provider.
type sentRequest struct {
	admitted, arrived time.Time
	mu                sync.Mutex // guards all below
	released          time.Time  // the end of its response. If zero, it has not ended
	cost              throttle.Cost
}

func newSentRequest(admitted time.Time, delay time.Duration, c throttle.Cost) *sentRequest {
	cost := throttle.Cost{"requests": 1}
	maps.Copy(cost, c)
	return &sentRequest{admitted: admitted, arrived: admitted.Add(delay), cost: cost}
}

func (r *sentRequest) delay() time.Duration { return r.arrived.Sub(r.admitted) }

func (r *sentRequest) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released.IsZero() {
		r.released = time.Now()
	}
}

// settle lowers the cost to the actual one.
func (r *sentRequest) settle(unit string, actual int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cost[unit] = min(r.cost[unit], actual)
}

// change replaces the tiers, surely when the returned function is called.
func (p *changingProvider) change(tiers []throttle.Tier) (changed func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, now := len(p.eras), time.Now()
	if i == 0 {
		p.eras = append(p.eras, era{now.Add(-1), now.Add(-1), tiers}) // so that it holds from now on
		return func() {}
	}
	p.eras = append(p.eras, era{now, now.Add(100 * hour), tiers})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.eras[i].surely = time.Now()
	}
}

// now returns the tiers that are in force.
func (p *changingProvider) now() []throttle.Tier {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.eras[len(p.eras)-1].tiers
}

// wasFree reports whether no tier counted a cost at some time between two.
func (p *changingProvider) wasFree(c throttle.Cost, from, to time.Time) bool {
	cost := newSentRequest(from, 0, c).cost
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range p.eras {
		over := i+1 < len(p.eras) && !p.eras[i+1].surely.After(from)
		counts := func(t throttle.Tier) bool { return cost[unitOf(t)] > 0 }
		if !over && !e.from.After(to) && !slices.ContainsFunc(e.tiers, counts) {
			return true
		}
	}
	return false
}

func (p *changingProvider) send(r *sentRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, r)
}

// verdict returns which request the provider has refused, or "" if none.
func (p *changingProvider) verdict() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.SortStableFunc(p.all, func(a, b *sentRequest) int { return cmp.Compare(a.arrived.UnixMicro(), b.arrived.UnixMicro()) })
	type kind struct {
		algorithm     throttle.Algorithm
		window, phase time.Duration
		unit          string
	}
	kindOf := func(t throttle.Tier) kind { return kind{t.Algorithm, t.Window, t.Phase, unitOf(t)} }
	lives := make(map[kind][]era) // the eras in a row that have a tier of the kind
	for i := 0; i <= len(p.eras); i++ {
		now := make(map[kind][]throttle.Tier)
		if i < len(p.eras) {
			for _, t := range p.eras[i].tiers {
				now[kindOf(t)] = append(now[kindOf(t)], t)
			}
		}
		for k, life := range lives {
			if now[k] == nil {
				end := time.Now()
				if i < len(p.eras) {
					end = p.eras[i].from
				}
				if problem := p.judgeLife(life, end); problem != "" {
					return problem
				}
				delete(lives, k)
			}
		}
		for k, tiers := range now {
			lives[k] = append(lives[k], era{p.eras[i].from, p.eras[i].surely, tiers})
		}
	}
	return ""
}

// judgeLife judges the requests that were admitted while tiers of one kind were in force.
func (p *changingProvider) judgeLife(life []era, end time.Time) string {
	at := func(t time.Time) (i int) { // the era at an instant
		for i+1 < len(life) && !t.Before(life[i+1].from) {
			i++
		}
		return i
	}
	g := newGauge(life[0].tiers)
	now := 0
	for _, r := range p.all {
		if !r.admitted.After(life[0].surely) || !r.admitted.Before(end) {
			if life[0].tiers[0].Algorithm == throttle.AnchoredWindow && !r.arrived.Before(life[0].from) && r.admitted.Before(end) {
				return "" // a request that was admitted during the change may have opened the first window
			}
			continue
		}
		for ; now < at(r.arrived); now++ {
			g.change(life[now+1].from.UnixMicro(), life[now+1].tiers)
		}
		t, n := r.arrived.UnixMicro(), r.cost[unitOf(life[0].tiers[0])]
		g.count(t, r.admitted, r.released, n)
		if at(r.admitted) != now || !r.admitted.After(life[now].surely) || !r.arrived.Before(end) {
			continue // a request that was on its way during a change counts, and may be too much
		}
		if tier, used := g.exceeded(); tier != nil && n > 0 {
			return fmt.Sprintf("the provider refuses the request of %v, admitted at %v, that arrives at %v: %s of %v used, %d policies before%s",
				r.cost, r.admitted.Sub(bubbleStart), r.arrived.Sub(bubbleStart), used, tier, now, g.recent())
		}
	}
	return ""
}

func unitOf(t throttle.Tier) string { return cmp.Or(t.Unit, "requests") }

// A gauge counts what has arrived, as all tiers of one kind do. It lists the requests and adds them
// up.
type gauge struct {
	tiers    []throttle.Tier
	arrivals []gaugeArrival
	at       int64   // of the levels
	levels   []int64 // of buckets, in units × Window
	opened   int64   // of the anchored window
}

type gaugeArrival struct {
	at, n              int64
	admitted, released time.Time
}

func newGauge(tiers []throttle.Tier) *gauge {
	return &gauge{tiers: tiers, levels: make([]int64, len(tiers)), opened: -1 << 62}
}

// change replaces the tiers. Each bucket goes on with the lowest level.
func (g *gauge) change(at int64, tiers []throttle.Tier) {
	g.drain(at)
	g.tiers, g.levels = tiers, slices.Repeat([]int64{slices.Min(g.levels)}, len(tiers))
}

func (g *gauge) drain(at int64) {
	for i, t := range g.tiers {
		g.levels[i] = max(0, g.levels[i]-(at-g.at)*t.Limit)
	}
	g.at = at
}

// count counts n units that arrive.
func (g *gauge) count(at int64, admitted, released time.Time, n int64) {
	if n == 0 {
		return
	}
	g.drain(at)
	for i := range g.levels {
		g.levels[i] += n * g.tiers[i].Window.Microseconds()
	}
	if at >= g.opened+g.tiers[0].Window.Microseconds() {
		g.opened = at
	}
	g.arrivals = append(g.arrivals, gaugeArrival{at, n, admitted, released})
}

// exceeded returns a tier that has counted too much, after the last request, and how much.
func (g *gauge) exceeded() (*throttle.Tier, string) {
	for i, t := range g.tiers {
		if used, scale, most := g.used(i); used > most*scale {
			return &t, fmt.Sprint(float64(used) / float64(scale))
		}
	}
	return nil, ""
}

// recent describes the requests that arrived before the last one.
func (g *gauge) recent() (text string) {
	for _, a := range g.arrivals[max(0, len(g.arrivals)-8) : len(g.arrivals)-1] {
		text += fmt.Sprintf("; %d at %v, admitted at %v", a.n, time.UnixMicro(a.at).Sub(bubbleStart), a.admitted.Sub(bubbleStart))
	}
	return text
}

// used returns how much a tier counts after the last request, times a scale.
func (g *gauge) used(tier int) (used, scale, most int64) {
	if len(g.arrivals) == 0 {
		return 0, 1, 0
	}
	t, now := g.tiers[tier], g.arrivals[len(g.arrivals)-1].at
	window, phase := t.Window.Microseconds(), t.Phase.Microseconds()
	sum := func(from int64) (sum int64) {
		for _, a := range slices.Backward(g.arrivals) {
			if a.at < from {
				break
			}
			sum += a.n
		}
		return sum
	}
	switch t.Algorithm {
	case throttle.FixedWindow:
		return sum(now - (now-phase)%window), 1, t.Limit
	case throttle.WeightedWindow:
		begin := now - (now-phase)%window
		current := sum(begin)
		return current*window + (sum(begin-window)-current)*(window-(now-begin)), window, t.Limit
	case throttle.AnchoredWindow:
		return sum(g.opened), 1, t.Limit
	case throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA:
		return g.levels[tier], window, cmp.Or(t.Burst, t.Limit)
	case throttle.Concurrency:
		for _, a := range g.arrivals {
			if a.released.IsZero() || a.released.UnixMicro() > now {
				used += a.n
			}
		}
		return used, 1, t.Limit
	case throttle.Calendar:
		return sum(now - now%(24*hour).Microseconds()), 1, t.Limit
	default:
		return sum(now - window + 1), 1, t.Limit
	}
}

// TestGauge checks that a gauge whose tiers don't change decides as package throttletest does.
func TestGauge(t *testing.T) {
	refused := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 11))
		tier := randomTiers(r, false)[0]
		if tier.Validate() != nil {
			continue
		}
		tier.Unit, tier.PaceBurst = "", 0
		strict, g := counter(t, tier), newGauge([]throttle.Tier{tier})
		at := bubbleStart.UnixMicro()
		for range 60 {
			at += r.Int64N(2*max(1000, tier.Window.Microseconds())/tier.Limit) * r.Int64N(2)
			cost := throttle.Cost{"requests": 1 + r.Int64N(2)}
			g2 := *g
			g2.levels, g2.arrivals = slices.Clone(g.levels), slices.Clone(g.arrivals)
			g2.count(at, time.Time{}, time.Time{}, cost["requests"])
			over, used := g2.exceeded()
			if got := strict.Arrive(at, cost); got != (over == nil) {
				t.Fatalf("seed %d: %v at %d: accepted %v by throttletest, but the gauge counts %s", seed, tier, at, got, used)
			} else if !got {
				refused++
				continue
			}
			g = &g2
		}
	}
	if refused < 400 {
		t.Errorf("%d refused, want 400 at least", refused)
	}
}
