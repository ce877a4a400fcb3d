package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/projection"
	"github.com/apithrottle/throttle/store"
)

// A Snapshot is what Stats contains at one moment. Times are in seconds. It marshals to JSON.
type Snapshot struct {
	Time     time.Time         `json:"time"`
	Second   int64             `json:"second"`          // Time as Second.At counts it
	Policies []PolicySnapshot  `json:"policies"`        // by name
	Limiters []LimiterSnapshot `json:"limiters"`        // by name
	Pools    []PoolSnapshot    `json:"pools,omitempty"` // by name

	// WaitBounds, CallBounds and EstimateBounds are the upper bounds of the buckets of histograms.
	WaitBounds     []float64 `json:"wait_bounds"`
	CallBounds     []float64 `json:"call_bounds"`
	EstimateBounds []float64 `json:"estimate_bounds"`
}

// A PolicySnapshot has the counts of a policy or a Pool in this process.
type PolicySnapshot struct {
	Policy string `json:"policy"`

	// Members are parts of Active, Requests, Waits and Responses by the member of the Pool, in the order
	// of their names. It is nil for a policy. Requests that no Pool has admitted have an empty member.
	Members []MemberCount `json:"members,omitempty"`

	// Queued is how many requests wait, by class. Active is how many admitted requests have a Permit or
	// a Transport, and have not ended.
	Queued map[string]int64 `json:"queued"`
	Active int64            `json:"active"`

	// Requests has each result of each class that has had requests.
	Requests []RequestCount `json:"requests"`

	// Waits are of requests that were queued.
	Waits []WaitCount `json:"waits"`

	// Responses are by kind: passed, limited, banned and other refusals, lost, and unsent.
	Responses map[string]uint64 `json:"responses"`

	Pauses    []PauseCount    `json:"pauses"`
	Estimates []EstimateCount `json:"estimates"`

	// Calls are those of the shared store, with each outcome if there have been any. Decided is how many
	// requests they decided.
	Calls   []CallCount `json:"calls"`
	Decided uint64      `json:"decided"`

	// Seconds are those of the last five minutes in which something happened, the oldest first.
	Seconds []Second `json:"seconds"`
}

// A MemberCount has the counts of the requests that a member of a Pool has admitted.
type MemberCount struct {
	Member    string            `json:"member"`
	Active    int64             `json:"active"`
	Admitted  map[string]uint64 `json:"admitted"` // by class
	Recent    uint64            `json:"recent"`   // admitted in the last five minutes
	Waits     []WaitCount       `json:"waits"`
	Responses map[string]uint64 `json:"responses"` // by kind
}

// A RequestCount is a number of requests. The result is "admitted", the reason of a refusal, "canceled",
// "not_now" for a false Allow, or "error".
type RequestCount struct {
	Class  string `json:"class"`
	Result string `json:"result"`
	Count  uint64 `json:"count"`
}

// A WaitCount has the waits of requests that a tier of the policy By decided. Both are empty for refused
// requests.
type WaitCount struct {
	Class  string `json:"class"`
	Result string `json:"result"`
	By     string `json:"by"`
	Tier   string `json:"tier"`
	Histogram
}

// A PauseCount is a number of pauses, how many of them refused callers, and how long they lasted, by
// cause: "response" or "call".
type PauseCount struct {
	Cause   string  `json:"cause"`
	Count   uint64  `json:"count"`
	Closed  uint64  `json:"closed"`
	Seconds float64 `json:"seconds"`
}

// A CallCount is a number of calls of a shared store. The outcome is "ok", "timeout", "unavailable",
// "error" or "unsent". Time is how long the calls took, in seconds. It counts no calls that were unsent.
type CallCount struct {
	Outcome string    `json:"outcome"`
	Count   uint64    `json:"count"`
	Time    Histogram `json:"time"`
}

// An EstimateCount compares estimated with actual costs in a unit. The Histogram has actual / estimate,
// where an estimate of zero counts as one.
type EstimateCount struct {
	Unit      string  `json:"unit"`
	Estimated float64 `json:"estimated"`
	Actual    float64 `json:"actual"`
	Histogram
}

// A Histogram counts values. A bucket counts those up to its bound and above the bound before. The last
// bucket counts greater values.
type Histogram struct {
	Count   uint64   `json:"count"`
	Sum     float64  `json:"sum"`
	Max     float64  `json:"max"`
	Buckets []uint64 `json:"buckets"`
}

// A Second has the counts of one second. At is its beginning in Unix time, by a clock that is not set
// while the program runs. Counts of zero are left out.
type Second struct {
	At        int64             `json:"at"`
	Requests  map[string]uint64 `json:"requests"`  // by result
	Responses map[string]uint64 `json:"responses"` // by kind
	Waits     Histogram         `json:"waits"`     // that ended in the second
	Calls     map[string]uint64 `json:"calls"`     // of the shared store that ended in the second, by outcome

	// CallTime is how long these calls took in all, and CallMax the longest of them.
	CallTime float64 `json:"call_seconds"`
	CallMax  float64 `json:"call_seconds_max"`
}

// A LimiterSnapshot is the Status of a watched limiter.
type LimiterSnapshot struct {
	Name string `json:"name"`

	// Policy is the name of its policy. It is empty if Failed.
	Policy string `json:"policy"`

	// Failed reports that the Status was not known in time, or only in part. Failure is why:
	// "unavailable" if the store did not answer, or another result of a RequestCount.
	Failed  bool   `json:"failed"`
	Failure string `json:"failure,omitempty"`

	Tiers   []TierSnapshot `json:"tiers"`
	Waiting int            `json:"waiting"`
	Paused  float64        `json:"paused_seconds"`
	Closed  float64        `json:"closed_seconds"`
	Guard   float64        `json:"guard_seconds"`
}

// A PoolSnapshot is the Status of a watched Pool.
type PoolSnapshot struct {
	Name    string           `json:"name"`
	Policy  string           `json:"policy"` // the Name of the Pool, which its counts have
	Waiting int              `json:"waiting"`
	Members []MemberSnapshot `json:"members"` // by rank
}

// A MemberSnapshot is the Status of a member of a Pool, under the Name of the member. A caller of the Pool may
// be Waiting at several members at the same time.
type MemberSnapshot struct {
	LimiterSnapshot
	Rank   int `json:"rank"`
	Weight int `json:"weight"`
}

// A TierSnapshot is the state of a tier of a policy. If several tiers of the policy have the same text, the
// later ones have a number behind it.
type TierSnapshot struct {
	Policy    string `json:"policy"`
	Tier      string `json:"tier"`
	Unit      string `json:"unit"`
	Limit     int64  `json:"limit"`
	Used      int64  `json:"used"`
	Remaining int64  `json:"remaining"`

	// RetryAfter is the time until the tier admits one more unit. If negative, only a release helps.
	RetryAfter float64 `json:"retry_after_seconds"`

	// Budget reports that a tier that is used up refuses requests at once.
	Budget bool `json:"budget"`

	// PeriodStart and PeriodEnd bound the present period of a Calendar tier. They are nil for others.
	PeriodStart *time.Time `json:"period_start,omitempty"`
	PeriodEnd   *time.Time `json:"period_end,omitempty"`

	// Forecast is how much of a Budget of a Calendar will be used at PeriodEnd. It is nil for other tiers, and
	// until an hour is known.
	Forecast *Forecast `json:"forecast,omitempty"`

	// Followed is the limit, in units per window, that the tier has taken over from responses. If zero,
	// it is that of the Tier.
	Followed int64 `json:"followed,omitempty"`

	// Learned is what a tier with Learn knows of its rate. It is nil for others.
	Learned *LearnedSnapshot `json:"learned,omitempty"`

	// Origin says where the rate in force comes from, in words, if the policy does not declare it.
	Origin string `json:"origin,omitempty"`
}

// A Forecast is how much of a budget will be used at the end of its period. Stats expects it from what was used in
// each hour of the last 38 days, as far as it has seen that: a level that may have changed lately, and the factors
// of the hour and of the weekday. Of the time before Stats began, only the mean counts.
type Forecast struct {
	Total int64 `json:"total"` // in units of the tier, with what is used already

	// Rough reports that less than a week is known, so that Total is often wrong by a quarter and more.
	Rough bool `json:"rough,omitempty"`

	// Text says so in words: "$487 expected by 30 Nov". It says by how much that is more than the Limit.
	Text string `json:"text"`
}

// A LearnedSnapshot is what a tier knows of its rate. Rates are in units per window of the tier.
type LearnedSnapshot struct {
	Rate float64 `json:"rate"`

	// PerSecond is the Rate in units a second.
	PerSecond float64 `json:"per_second"`

	// Refused is a little less than the rate at which the provider last refused a request, so that the
	// rate decreased, and RefusedAt is when, in whole seconds. If zero, that has not happened since the
	// tier started, or the rate has been higher since.
	Refused   float64    `json:"refused_rate,omitempty"`
	RefusedAt *time.Time `json:"refused_at,omitempty"`

	// Next is the rate in a minute if callers use all of it and nothing is refused.
	Next float64 `json:"next_rate"`

	// Noise is the part of the requests that is refused at any rate, from 0 to 1, as far as it is known.
	Noise float64 `json:"noise"`
}

// Snapshot returns what Stats contains now. It reads the Status of the watched limiters, for at most
// Stats.Timeout. If ctx ends first, the Status of limiters may be missing.
func (s *Stats) Snapshot(ctx context.Context) Snapshot {
	limiters, pools := s.states(ctx)
	snap := Snapshot{
		Time: time.Now(), Policies: []PolicySnapshot{}, Limiters: limiters, Pools: pools,
		WaitBounds: slices.Clone(waitBounds), CallBounds: slices.Clone(callBounds), EstimateBounds: slices.Clone(estimateBounds),
	}
	now, seen := s.now(), make(map[*policyStats]bool)
	snap.Second = now
	for _, p := range *s.policies.Load() {
		if !seen[p] {
			seen[p] = true
			snap.Policies = append(snap.Policies, p.snapshot(now))
		}
	}
	slices.SortFunc(snap.Policies, func(a, b PolicySnapshot) int { return cmp.Compare(a.Policy, b.Policy) })
	return snap
}

// snapshot returns the counts of a policy.
func (p *policyStats) snapshot(now int64) PolicySnapshot {
	c, r := p.copy()
	snap := PolicySnapshot{
		Policy: p.name, Queued: make(map[string]int64),
		Requests: []RequestCount{}, Waits: []WaitCount{}, Pauses: []PauseCount{}, Estimates: []EstimateCount{},
		Calls: []CallCount{}, Decided: c.decided, Seconds: []Second{},
	}
	for class := range classes {
		name := throttle.Class(class).String()
		snap.Queued[name] = c.queued[class]
		for r, n := range c.requests[class] {
			if c.requests[class] != [results]uint64{} {
				snap.Requests = append(snap.Requests, RequestCount{name, resultNames[r], n})
			}
		}
		snap.Waits = append(snap.Waits, p.waits(class, c.members...)...)
		for r, h := range c.refusedWaits[class] {
			if h != nil {
				snap.Waits = append(snap.Waits, WaitCount{name, resultNames[r], "", "", h.export(waitBounds)})
			}
		}
	}
	p.addMembers(&snap, c.members, now)
	for i, pause := range c.pauses {
		snap.Pauses = append(snap.Pauses, PauseCount{causeNames[i], pause.n, pause.closed, pause.seconds})
	}
	for i, e := range c.estimates {
		if e != nil {
			snap.Estimates = append(snap.Estimates, EstimateCount{nameAt(c.units, i, otherName), e.estimated, e.actual, e.ratios.export(estimateBounds)})
		}
	}
	for o, n := range c.calls {
		if c.calls != [outcomes]uint64{} {
			snap.Calls = append(snap.Calls, CallCount{outcomeNames[o], n, cmp.Or(c.callTime[o], new(histogram)).export(callBounds)})
		}
	}
	for _, b := range r.since(now) {
		snap.Seconds = append(snap.Seconds, Second{
			b.second, named(resultNames[:], b.requests[:], false), named(kindNames[:], b.responses[:], false), b.waits.export(waitBounds),
			named(outcomeNames[:], b.calls[:], false), b.callTime, b.callMax,
		})
	}
	return snap
}

// waits returns the waits of admitted requests of a class, by what decided them.
func (p *policyStats) waits(class int, members ...*memberCounts) (waits []WaitCount) {
	var names []tierName
	sums := make(map[tierName]*histogram)
	for _, m := range members {
		for i, h := range m.waits[class] {
			if h == nil {
				continue
			}
			name := nameAt(m.tiers, i, p.otherTier())
			if sums[name] == nil {
				names, sums[name] = append(names, name), new(histogram)
			}
			sums[name].merge(h)
		}
	}
	for _, name := range names {
		waits = append(waits, WaitCount{throttle.Class(class).String(), resultNames[admitted], name.policy, name.tier, sums[name].export(waitBounds)})
	}
	return waits
}

// addMembers adds the counts of members to those of the policy, and as its Members if it is a Pool.
func (p *policyStats) addMembers(snap *PolicySnapshot, members []*memberCounts, now int64) {
	var responses [kinds]uint64
	isPool := false
	for _, m := range members {
		snap.Active += m.active
		for kind, n := range m.responses {
			responses[kind] += n
		}
		isPool = isPool || m.name != ""
	}
	snap.Responses = named(kindNames[:], responses[:], true)
	if !isPool {
		return
	}
	for _, m := range members {
		c := MemberCount{Member: m.name, Active: m.active, Admitted: make(map[string]uint64), Waits: []WaitCount{}, Responses: named(kindNames[:], m.responses[:], true)}
		if m.recent != nil {
			c.Recent = m.recent.since(now)
		}
		for class := range classes {
			c.Admitted[throttle.Class(class).String()] = m.admitted[class]
			c.Waits = append(c.Waits, p.waits(class, m)...)
		}
		snap.Members = append(snap.Members, c)
	}
	slices.SortFunc(snap.Members, func(a, b MemberCount) int { return cmp.Compare(a.Member, b.Member) })
}

// copy returns copies of the counts and of the ring.
func (p *policyStats) copy() (*counts, *ring) {
	r := new(ring)
	p.mu.Lock()
	defer p.mu.Unlock()
	*r = p.ring
	c := p.counts
	c.members = slices.Clone(c.members)
	cloneAll(c.members)
	for class := range classes {
		for _, m := range c.members {
			cloneAll(m.waits[class][:])
		}
		cloneAll(c.refusedWaits[class][:])
	}
	for _, m := range c.members {
		recent := []*recent{m.recent}
		cloneAll(recent)
		m.recent = recent[0]
	}
	cloneAll(c.callTime[:])
	cloneAll(c.estimates[:])
	return &c, r
}

// cloneAll replaces pointers by pointers to copies.
func cloneAll[T any](all []*T) {
	for i, p := range all {
		if p != nil {
			c := *p
			all[i] = &c
		}
	}
}

// nameAt returns the name at an index, or other beyond the names.
func nameAt[T any](names []T, i int, other T) T {
	if i < len(names) {
		return names[i]
	}
	return other
}

// named returns counts by their names, with those of zero or without.
func named[N uint32 | uint64](names []string, counts []N, zeros bool) map[string]uint64 {
	m := make(map[string]uint64)
	for i, n := range counts {
		if n > 0 || zeros {
			m[names[i]] = uint64(n)
		}
	}
	return m
}

// export returns a histogram with some bounds.
func (h *histogram) export(bounds []float64) Histogram {
	e := Histogram{Sum: h.sum, Max: h.max, Buckets: slices.Clone(h.counts[:len(bounds)+1])}
	for _, n := range e.Buckets {
		e.Count += n
	}
	return e
}

// states returns the state of the watched limiters and pools. It reads eight at a time.
func (s *Stats) states(ctx context.Context) (limiters []LimiterSnapshot, pools []PoolSnapshot) {
	s.mu.Lock()
	all := maps.Clone(s.watched)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.Timeout, time.Second))
	defer cancel()
	names := slices.Sorted(maps.Keys(all))
	limiters, pools = make([]LimiterSnapshot, len(names)), make([]PoolSnapshot, len(names))
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	for i, name := range names {
		turns <- struct{}{}
		wg.Go(func() {
			if w := all[name]; w.pool != nil {
				pools[i] = s.poolSnapshot(ctx, name, w.pool)
			} else {
				status, err := w.limiter.Status(ctx)
				limiters[i] = s.limiterSnapshot(owner{name, status.Policy, name}, status, err)
			}
			<-turns
		})
	}
	wg.Wait()
	limiters = slices.DeleteFunc(limiters, func(l LimiterSnapshot) bool { return l.Tiers == nil })
	pools = slices.DeleteFunc(pools, func(p PoolSnapshot) bool { return p.Members == nil })
	return limiters, pools
}

func (s *Stats) poolSnapshot(ctx context.Context, name string, p *throttle.Pool) PoolSnapshot {
	status := p.Status(ctx)
	snap := PoolSnapshot{Name: name, Policy: valid(cmp.Or(p.Name, "pool")), Waiting: status.Waiting, Members: []MemberSnapshot{}}
	for _, m := range status.Members {
		l := s.limiterSnapshot(owner{valid(m.Member.Name), snap.Policy, name + "\x00" + m.Member.Name}, m.Status, m.Err)
		snap.Members = append(snap.Members, MemberSnapshot{l, m.Member.Rank, m.Member.Weight})
	}
	return snap
}

// An owner is a watched limiter or a member of a Pool: its name, the policy that counts what it admits, and
// the name that its budgets have among all.
type owner struct{ name, counted, budgets string }

func (s *Stats) limiterSnapshot(of owner, status throttle.Status, err error) LimiterSnapshot {
	snap := LimiterSnapshot{
		Name: of.name, Policy: valid(status.Policy), Failed: err != nil, Failure: failureOf(err), Tiers: []TierSnapshot{}, Waiting: status.Waiting,
		Paused: status.Paused.Seconds(), Closed: status.Closed.Seconds(), Guard: status.Guard.Seconds(),
	}
	seen, budgets, now := make(map[tierName]int), make(map[tierName]int), time.Now()
	for _, t := range status.Tiers {
		name := tierName{valid(t.Policy), valid(t.Tier.String())}
		seen[name]++
		if n := seen[name]; n > 1 {
			name.tier = fmt.Sprintf("%s (%d)", name.tier, n)
		}
		retryAfter := t.RetryAfter.Seconds()
		if t.RetryAfter == store.Forever {
			retryAfter = -1
		}
		if len(snap.Tiers) < maxTiers {
			unit := valid(cmp.Or(t.Tier.Unit, "requests"))
			start, end := period(t.Tier)
			budgets[tierName{t.Policy, unit}]++
			snap.Tiers = append(snap.Tiers, TierSnapshot{
				name.policy, name.tier, unit, t.Limit, t.Used, t.Remaining, retryAfter, t.Tier.Budget, start, end,
				s.forecast(of, budgets[tierName{t.Policy, unit}], t, now), t.Followed, learnedSnapshot(t), t.Origin(),
			})
		}
	}
	return snap
}

// forecast returns the forecast of a tier, or nil if there is none.
func (s *Stats) forecast(of owner, place int, t throttle.TierStatus, now time.Time) *Forecast {
	busy := func(int64) int64 { return 0 }
	if p := (*s.policies.Load())[of.counted]; p != nil {
		busy = func(hour int64) int64 {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.busy.Of(hour)
		}
	}
	return newForecast(&s.budgets, of.budgets, place, t, now, busy)
}

// learnedSnapshot returns what a tier has learned, or nil if it does not learn.
func learnedSnapshot(t throttle.TierStatus) *LearnedSnapshot {
	l := t.Learned
	if l == nil {
		return nil
	}
	s := &LearnedSnapshot{Rate: l.Rate, PerSecond: l.Rate / t.Tier.Window.Seconds(), Refused: l.Refused, Next: l.Next, Noise: l.Noise}
	if l.Refused > 0 {
		at := time.Now().Add(-l.Ago).Truncate(time.Second).UTC()
		s.RefusedAt = &at
	}
	return s
}

// failureOf returns why the Status of a limiter is not known, or nothing if err is nil.
func failureOf(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return resultNames[unavailable]
	}
	return throttle.RefusedInfo{Err: err}.Outcome()
}

// period returns the bounds of the present period of a Calendar tier, and nil for others.
func period(t throttle.Tier) (start, end *time.Time) {
	if t.Algorithm != throttle.Calendar {
		return nil, nil
	}
	p, err := projection.PeriodOf(t, time.Now())
	if err != nil {
		return nil, nil
	}
	own, next := p.Start.UTC(), p.End.UTC()
	return &own, &next
}
