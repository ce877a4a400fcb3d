package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// A window is a limit of the provider: so many requests in any span of that length.
type window struct {
	limit int
	spec  string // as throttle.ParsePolicy reads the length
	span  time.Duration
}

// The windows have a common rate of some 44/s in the long run, each a little less than the one before.
// The windows of ten seconds, a minute and five minutes take turns as the one that is full.
var windows = []window{
	{80, "s", time.Second},
	{500, "10s", 10 * time.Second},
	{2_700, "1m", time.Minute},
	{13_200, "5m", 5 * time.Minute},
	{200_000, "h", time.Hour},
}

// policyText returns the policy of a deployment, whose limits are the windows' times a factor.
func policyText(factor float64) string {
	text := ""
	for i, w := range windows {
		if i > 0 {
			text += " + "
		}
		text += fmt.Sprintf("%d/%s", w.scaled(factor), w.spec)
	}
	return text
}

func (w window) scaled(factor float64) int { return int(float64(w.limit) * factor) }

// A cause explains refusals: of each window as many as allow has, from at until the window has passed
// what happened then.
type cause struct {
	at    time.Time
	why   string
	allow []int
}

// slack is how long after a cause what it admitted may still arrive, a pause of the fleet included.
const slack = 30 * time.Second

// A provider is the stand-in. It counts what arrives by its own clock, in rolling windows: a request is
// refused if a window has as many accepted ones that are younger than its span.
type provider struct {
	guard time.Duration // Policy.Guard of the workers

	mu       sync.Mutex  // guards all below
	accepted []time.Time // of the longest window
	first    []int       // for each window, the index of its oldest request
	factor   float64     // of the limits
	target   float64     // of the policy that the fleet must be able to use
	causes   []cause
	excused  time.Time // until then, an outage explains unused limits
	ordered  time.Time // until then, everything is refused, and so is retry
	retry    time.Duration
	tally
}

// A tally is what the provider has counted.
type tally struct {
	sent, accepted   int
	ordered          int            // refusals that the schedule of faults has ordered
	explained        map[string]int // other refusals, by the fault that explains them
	unexplained      []string
	late             int // requests that arrived later than the guard
	lastRefusal      time.Time
	seconds, outages int
	used             float64 // sum over the seconds without an outage of the use of the fullest window
	usedBy           []int   // how often each window was the fullest
	latest           float64 // the present use
}

func newProvider(guard time.Duration) *provider {
	return &provider{guard: guard, factor: 1, target: 1, first: make([]int, len(windows)),
		tally: tally{explained: map[string]int{}, usedBy: make([]int, len(windows))}}
}

// ServeHTTP answers one request of a worker.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sent, _ := strconv.ParseInt(r.Header.Get(sentHeader), 10, 64)
	p.mu.Lock()
	now := time.Now()
	retry := p.arrive(now, time.UnixMicro(sent))
	p.mu.Unlock()
	if retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((retry+time.Second-1)/time.Second)))
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// arrive counts a request, and returns 0 if it is accepted, or else the time until it may come again.
func (p *provider) arrive(now, sent time.Time) (retry time.Duration) {
	p.tally.sent++
	if now.Sub(sent) > p.guard {
		p.tally.late++
		one := make([]int, len(windows))
		for i := range one {
			one[i] = 1
		}
		p.causes = append(p.causes, cause{now, "a request arrived later than the guard", one})
	}
	if now.Before(p.ordered) {
		p.tally.ordered++
		return p.retry
	}
	p.advance(now)
	for i, w := range windows {
		if n := len(p.accepted) - p.first[i]; n >= w.scaled(p.factor) {
			over := n - w.scaled(p.factor) // more than 0 after a limit was lowered
			retry = max(retry, p.accepted[p.first[i]+over].Add(w.span).Sub(now), time.Millisecond)
			p.judge(now, i)
		}
	}
	if retry > 0 {
		p.excused = later(p.excused, now.Add(retry+resumes))
		return retry
	}
	p.accepted = append(p.accepted, now)
	p.tally.accepted++
	return 0
}

// advance drops the requests that have left their windows.
func (p *provider) advance(now time.Time) {
	for i, w := range windows {
		for p.first[i] < len(p.accepted) && now.Sub(p.accepted[p.first[i]]) >= w.span {
			p.first[i]++
		}
	}
	if drop := slices.Min(p.first); drop > 10_000 {
		p.accepted = slices.Delete(p.accepted, 0, drop)
		for i := range p.first {
			p.first[i] -= drop
		}
	}
}

// judge looks for a cause of a refusal by a window.
func (p *provider) judge(now time.Time, i int) {
	p.tally.lastRefusal = now
	for k := range p.causes {
		c := &p.causes[k]
		if c.allow[i] > 0 && now.Sub(c.at) <= windows[i].span+slack {
			c.allow[i]--
			p.tally.explained[c.why]++
			return
		}
	}
	p.tally.unexplained = append(p.tally.unexplained, fmt.Sprintf("%s: by %d/%s", stamp(now), windows[i].scaled(p.factor), windows[i].spec))
}

// lost records that Redis has lost its state: each window may be used once more, besides reservations.
func (p *provider) lost(why string, reservations int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := cause{at: time.Now(), why: why}
	for _, w := range windows {
		c.allow = append(c.allow, w.scaled(p.factor)+reservations)
	}
	p.causes = append(p.causes, c)
}

// outage excuses unused limits until d from now.
func (p *provider) outage(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.excused = later(p.excused, time.Now().Add(d))
}

// refuse refuses everything for a while, with a Retry-After.
func (p *provider) refuse(d, retry time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ordered, p.retry = time.Now().Add(d), retry
	p.excused = later(p.excused, p.ordered.Add(retry+resumes))
}

// setLimits sets the factors of the provider's limits and of those that the fleet can use.
func (p *provider) setLimits(factor, target float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.factor, p.target = factor, target
}

// sample looks how full the fullest window is. It is called every second.
func (p *provider) sample() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.advance(now)
	p.tally.seconds++
	p.tally.latest = 0
	fullest := 0
	for i, w := range windows {
		if use := float64(len(p.accepted)-p.first[i]) / float64(w.scaled(p.target)); use > p.tally.latest {
			p.tally.latest, fullest = min(use, 1), i
		}
	}
	p.tally.usedBy[fullest]++
	if now.Before(p.excused) {
		p.tally.outages++
		return
	}
	p.tally.used += p.tally.latest
}

// snapshot returns what was counted so far.
func (p *provider) snapshot() tally {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.tally
	t.explained = map[string]int{}
	for why, n := range p.tally.explained {
		t.explained[why] = n
	}
	return t
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
