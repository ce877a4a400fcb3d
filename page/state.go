package page

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/observe"
)

// A State is what the page shows, and the body of state.json. Times that end in seconds are relative to
// Time.
type State struct {
	Title    string    `json:"title"`
	Subtitle string    `json:"subtitle,omitempty"`
	Note     string    `json:"note,omitempty"` // about the whole, from Options.Notes
	Time     time.Time `json:"time"`
	Second   int64     `json:"second"` // Time as a History counts it, which may differ if the clock was set
	Health   Health    `json:"health"`
	Policies []Policy  `json:"policies"` // by name
}

// A Health is whether requests can be sent, and the body of health.
type Health struct {
	// OK reports that there is no problem. Watched is how many limiters and pools were asked.
	OK      bool `json:"ok"`
	Watched int  `json:"watched"`

	// Store is what keeps the quotas, from Options.Store.
	Store string `json:"store,omitempty"`

	Problems []Problem `json:"problems"`
}

// A Problem is why a watched limiter or Pool admits nothing. A pause and a spent budget are none.
type Problem struct {
	// Policy is the name of the limiter or the Pool. It is empty for the store itself; see
	// Options.Check.
	Policy string `json:"policy"`

	// Problem is "banned", or why the state of the limiter is not known, as observe.LimiterSnapshot
	// has it: "unavailable" if the store did not answer in time, for instance. It is "no_members" for a
	// Pool without any. A problem of some members is none of the Pool.
	Problem string `json:"problem"`

	// Seconds is the time until the ban ends.
	Seconds float64 `json:"seconds,omitempty"`
}

// A Policy is the state of a policy, of a limiter watched by Stats.Watch, or of both. The counts of a
// policy are shown with the limiter of its name, or with the only watched limiter that has it. A Pool, which
// Stats.WatchPool watches, is shown as a policy of its name, too.
type Policy struct {
	Name string `json:"name"`

	// Condition is what callers meet, and the worst of what holds.
	Condition Condition `json:"condition"`

	// Note is what the program says about the policy, from Options.Notes.
	Note string `json:"note,omitempty"`

	// Watched reports that a limiter is watched. Without one there are counts only. Failure is why
	// the limiter's state is not known; see Problem.
	Watched bool   `json:"watched"`
	Failure string `json:"failure,omitempty"`

	Tiers []Tier `json:"tiers"`

	// Members are the members of a Pool by rank, and nil for others. The times until a pause and a ban end
	// are then those of the member whose pause ends first, if all are paused.
	Members []Member `json:"members,omitempty"`

	// Counted reports that the policy has had requests and that Stats is its Observer. Queued is how many
	// requests wait, by class. Active is how many admitted requests have a Permit or a Transport,
	// and have not ended. Waiting is what the limiter or the Pool itself reports.
	Counted bool             `json:"counted"`
	Queued  map[string]int64 `json:"queued,omitempty"`
	Active  int64            `json:"active"`
	Waiting int              `json:"waiting"`

	// LongestWait is the longest wait that ended in the last minute.
	LongestWait float64 `json:"longest_wait_seconds"`

	// Store has the calls of a shared store. It is nil if there were none in the last minute.
	Store *Calls `json:"store,omitempty"`

	Paused float64 `json:"paused_seconds"`
	Closed float64 `json:"closed_seconds"`
	Guard  float64 `json:"guard_seconds"`

	// Decided has the tiers that decided how long requests waited since the program started, the one
	// that cost most time first.
	Decided []Decided `json:"decided"`

	History History `json:"history"`
}

// A Member is the state of a member of a Pool.
type Member struct {
	Name   string `json:"name"`
	Policy string `json:"policy"` // the name of its policy
	Rank   int    `json:"rank"`
	Weight int    `json:"weight"` // 0 if the Pool is not watched

	Condition Condition `json:"condition"` // what callers of the member alone meet
	Failure   string    `json:"failure,omitempty"`
	Tiers     []Tier    `json:"tiers"`

	Paused float64 `json:"paused_seconds"`
	Closed float64 `json:"closed_seconds"`
	Guard  float64 `json:"guard_seconds"`

	// Admitted is how many requests it has admitted in the last five minutes. Share is which part that is of
	// all that the Pool has admitted.
	Admitted uint64  `json:"admitted"`
	Share    float64 `json:"share"`
}

// A Condition is what callers of a policy meet.
type Condition string

// The conditions, the worst one first.
const (
	Unknown   Condition = "unknown"   // the state is not known: see Policy.Failure
	Banned    Condition = "banned"    // the provider has closed the quota
	Spent     Condition = "spent"     // a budget is used up
	Paused    Condition = "paused"    // nothing is admitted for now
	Refusing  Condition = "refusing"  // requests were refused in the last minute
	Limited   Condition = "limited"   // the provider refused requests in the last minute
	Full      Condition = "full"      // a tier admits nothing for at least a second, or until a request ends
	Open      Condition = "open"      // none of the others
	Unwatched Condition = "unwatched" // no limiter is watched, and nothing was refused
)

// conditions are all of them, the worst one first.
var conditions = []Condition{Unknown, Banned, Spent, Paused, Refusing, Limited, Full, Open, Unwatched}

// condition returns the worst of what holds.
func (p *Policy) condition() Condition {
	own, recent := conditionOf(p.Failure, p.Closed, p.Paused, p.Tiers), p.History.last(60)
	if p.Watched && len(p.Members) > 0 {
		own = bestOf(p.Members)
	}
	switch {
	case own != Full && own != Open:
		return own
	case happened(recent.Refused):
		return Refusing
	case happened(recent.Limited):
		return Limited
	case !p.Watched:
		return Unwatched
	}
	return own
}

// conditionOf returns the condition of a quota, whatever its callers have met.
func conditionOf(failure string, closed, paused float64, tiers []Tier) Condition {
	spent := func(t Tier) bool { return t.Budget && t.Remaining <= 0 }
	full := func(t Tier) bool { return t.RetryAfter < 0 || t.RetryAfter >= 1 }
	switch {
	case failure != "":
		return Unknown
	case closed > 0:
		return Banned
	case slices.ContainsFunc(tiers, spent):
		return Spent
	case paused > 0:
		return Paused
	case slices.ContainsFunc(tiers, full):
		return Full
	}
	return Open
}

// bestOf returns the best condition of members, which callers of their Pool meet.
func bestOf(members []Member) Condition {
	return slices.MaxFunc(members, func(a, b Member) int { return cmp.Compare(a.Condition.place(), b.Condition.place()) }).Condition
}

// place returns the index of the condition among all.
func (c Condition) place() int { return slices.Index(conditions, c) }

// byCondition returns policies with the worst ones first. What changes by the second changes no place.
func byCondition(policies []Policy) []Policy {
	place := func(p Policy) int { return min(p.Condition.place(), Full.place()) }
	return slices.SortedStableFunc(slices.Values(policies), func(a, b Policy) int { return cmp.Compare(place(a), place(b)) })
}

// A Tier is the state of a tier.
type Tier struct {
	observe.TierSnapshot

	// Projection is when a budget will be spent. It is nil for other tiers, and if it is not known.
	Projection *Projection `json:"projection,omitempty"`
}

// A Projection is when a budget will be spent if as much is spent as in the time before.
type Projection struct {
	// SpentAt is when the budget will be spent. If nil, it lasts until the end of the period.
	SpentAt *time.Time `json:"spent_at"`

	// Over is the time in which the rate was measured.
	Over float64 `json:"over_seconds"`
}

// Decided is how long requests have waited because of one tier. The Tier is empty for waits that no tier
// decided, and Causes are then what they may have been for: "pause", "store" for replies of a shared
// store, or "callers" for others ahead.
type Decided struct {
	Policy  string  `json:"policy"`
	Tier    string  `json:"tier"`
	Waits   uint64  `json:"waits"`
	Seconds float64 `json:"seconds"`
	Share   float64 `json:"share"` // of the Seconds of all

	Causes []string `json:"causes,omitempty"`
}

// Calls are the calls of a shared store that ended in the last minute. Failed is how many of them failed,
// or were not made because the store is away. The times are of those that were made.
type Calls struct {
	Count  uint64  `json:"count"`
	Failed uint64  `json:"failed"`
	Mean   float64 `json:"mean_seconds"`
	Max    float64 `json:"max_seconds"`
}

// A History has the counts of consecutive seconds, the last of which has not ended.
type History struct {
	Start    int64    `json:"start"` // the first second, in Unix time
	Admitted []uint64 `json:"admitted"`
	Refused  []uint64 `json:"refused"` // by the limiter; requests whose context was canceled are none
	Limited  []uint64 `json:"limited"` // responses that refused for lack of quota, such as 429s
}

const (
	historySeconds = 300
	maxAge         = time.Second     // of the state that a request receives
	healthAge      = 5 * time.Second // of the state that a probe of the health receives
)

// last returns the history of the last n seconds.
func (h History) last(n int) History {
	skip := max(0, len(h.Admitted)-n)
	return History{h.Start + int64(skip), h.Admitted[skip:], h.Refused[skip:], h.Limited[skip:]}
}

// quiet reports whether nothing happened.
func (h History) quiet() bool {
	return !happened(h.Admitted) && !happened(h.Refused) && !happened(h.Limited)
}

// happened reports whether any of the counts is not zero.
func happened(counts []uint64) bool {
	return slices.ContainsFunc(counts, func(n uint64) bool { return n > 0 })
}

// A source makes states, one at a time, and keeps the latest.
type source struct {
	stats *observe.Stats
	opts  Options

	mu      sync.Mutex // guards all below
	latest  *State
	madeAt  time.Time
	making  chan struct{}           // closed when the state is made that somebody makes; nil if nobody does
	budgets map[budgetKey]*spending // only touched by the one who makes a state
	names   map[string]string       // policies by limiter; likewise
}

// state returns a state that is no older than age. A caller whose context ends receives its error. The
// state itself is made without the context, because others may wait for it.
func (s *source) state(ctx context.Context, age time.Duration) (*State, error) {
	for {
		s.mu.Lock()
		if s.latest != nil && time.Since(s.madeAt) < age {
			defer s.mu.Unlock()
			return s.latest, nil
		}
		making := s.making
		if making == nil {
			s.making = make(chan struct{})
			s.mu.Unlock()
			return s.renew(), nil
		}
		s.mu.Unlock()
		select {
		case <-making:
			age = max(age, maxAge) // what was made while we waited is new enough
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// renew makes a state. The caller has set s.making.
func (s *source) renew() (made *State) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if made != nil {
			s.latest, s.madeAt = made, time.Now()
		}
		close(s.making)
		s.making = nil
	}()
	return s.read(s.stats.Snapshot(context.Background()))
}

// read returns the state of a snapshot.
func (s *source) read(snap observe.Snapshot) *State {
	state := &State{
		Title: s.opts.Title, Subtitle: s.opts.Subtitle, Time: snap.Time.UTC(), Second: snap.Second, Policies: []Policy{},
		Health: Health{Watched: len(snap.Limiters) + len(snap.Pools), Store: s.opts.Store, Problems: []Problem{}},
	}
	limiterOf := s.limiterOf(snap)
	counts := make(map[string]observe.PolicySnapshot) // by the name they are shown under
	for _, p := range snap.Policies {
		counts[cmp.Or(limiterOf[p.Policy], p.Policy)] = p
	}
	show := func(p Policy) {
		state.Health.add(p)
		if c, ok := counts[p.Name]; ok {
			p.count(c, snap.Second)
			delete(counts, p.Name)
		}
		state.Policies = append(state.Policies, p)
	}
	for _, l := range snap.Limiters {
		p := newPolicy(l.Name, snap.Second)
		s.watch(&p, l, snap.Time)
		show(p)
	}
	for _, pool := range snap.Pools {
		p := newPolicy(pool.Name, snap.Second)
		s.watchPool(&p, pool, snap.Time)
		show(p)
	}
	for name, c := range counts {
		p := newPolicy(name, snap.Second)
		if p.count(c, snap.Second); !p.Counted { // the quota of an outer policy, which only calls its store
			continue
		}
		state.Policies = append(state.Policies, p)
	}
	s.describe(state)
	if state.Health.Watched == 0 {
		state.Health.check(s.opts.Check, cmp.Or(s.stats.Timeout, time.Second))
	}
	state.Health.OK = len(state.Health.Problems) == 0
	s.forget(snap.Time)
	return state
}

// describe sorts the policies, and adds their conditions and notes, and the policies that have only notes.
func (s *source) describe(state *State) {
	var notes map[string]string
	if s.opts.Notes != nil {
		notes = s.opts.Notes(state.Policies)
	}
	state.Note = notes[""]
	for name := range notes {
		if name != "" && !slices.ContainsFunc(state.Policies, func(p Policy) bool { return p.Name == name }) {
			state.Policies = append(state.Policies, newPolicy(name, state.Second))
		}
	}
	slices.SortFunc(state.Policies, func(a, b Policy) int { return cmp.Compare(a.Name, b.Name) })
	for i := range state.Policies {
		p := &state.Policies[i]
		p.Condition, p.Note = p.condition(), notes[p.Name]
	}
}

// limiterOf returns the limiter or Pool that is shown with each policy's counts: the one of the same name, or
// the only one of the policy.
func (s *source) limiterOf(snap observe.Snapshot) map[string]string {
	names := make(map[string]string) // of policies, by limiter; while a store is away, as before
	for _, l := range snap.Limiters {
		names[l.Name] = l.Policy
		if l.Failed {
			names[l.Name] = s.names[l.Name]
		}
	}
	for _, p := range snap.Pools {
		names[p.Name] = p.Policy
	}
	s.names = names
	of := make(map[string]string)
	for limiter, policy := range names {
		switch _, several := of[policy]; {
		case policy == "": // it was never known
		case several:
			of[policy] = ""
		default:
			of[policy] = limiter
		}
	}
	for limiter := range names {
		of[limiter] = limiter
	}
	return of
}

func newPolicy(name string, second int64) Policy {
	return Policy{Name: name, Tiers: []Tier{}, Decided: []Decided{}, History: History{
		second - historySeconds + 1, make([]uint64, historySeconds), make([]uint64, historySeconds), make([]uint64, historySeconds),
	}}
}

// watch adds the state of a limiter.
func (s *source) watch(p *Policy, l observe.LimiterSnapshot, now time.Time) {
	p.Watched, p.Failure, p.Waiting = true, l.Failure, l.Waiting
	p.Paused, p.Closed, p.Guard = l.Paused, l.Closed, l.Guard
	p.Tiers = s.tiers(l.Name, l, now)
}

// tiers returns the tiers of a limiter. The name identifies it among all.
func (s *source) tiers(name string, l observe.LimiterSnapshot, now time.Time) []Tier {
	tiers := []Tier{}
	for _, t := range l.Tiers {
		tiers = append(tiers, Tier{t, s.project(name, t, now)})
	}
	return tiers
}

// watchPool adds the state of a Pool. While all members are paused, so is the Pool, until the first may admit.
func (s *source) watchPool(p *Policy, pool observe.PoolSnapshot, now time.Time) {
	p.Watched, p.Waiting = true, pool.Waiting
	for _, l := range pool.Members {
		m := Member{
			Name: l.Name, Policy: l.Policy, Rank: l.Rank, Weight: l.Weight, Failure: l.Failure,
			Tiers: s.tiers(pool.Name+"\x00"+l.Name, l.LimiterSnapshot, now), Paused: l.Paused, Closed: l.Closed, Guard: l.Guard,
		}
		m.Condition = conditionOf(m.Failure, m.Closed, m.Paused, m.Tiers)
		p.Members = append(p.Members, m)
	}
	if len(p.Members) == 0 {
		p.Failure = "no_members"
		return
	}
	best := bestOf(p.Members)
	for _, m := range p.Members {
		switch {
		case m.Condition != best:
		case best == Unknown:
			p.Failure = m.Failure
		case best == Banned && (p.Closed == 0 || m.Closed < p.Closed):
			p.Closed = m.Closed
		case best == Paused && (p.Paused == 0 || m.Paused < p.Paused):
			p.Paused = m.Paused
		}
	}
}

// count adds the counts of a policy.
func (p *Policy) count(c observe.PolicySnapshot, second int64) {
	waits := slices.ContainsFunc(slices.Collect(maps.Values(c.Queued)), func(n int64) bool { return n > 0 })
	p.Counted, p.Queued, p.Active = waits || len(c.Requests) > 0, c.Queued, c.Active
	for _, b := range c.Seconds {
		i := b.At - p.History.Start
		if i < 0 || i >= historySeconds {
			continue
		}
		for result, n := range b.Requests {
			switch result {
			case "admitted":
				p.History.Admitted[i] += n
			case "canceled":
			default:
				p.History.Refused[i] += n
			}
		}
		p.History.Limited[i] = b.Responses["limited"] + b.Responses["banned"]
		if b.At > second-60 {
			p.LongestWait = max(p.LongestWait, b.Waits.Max)
		}
	}
	p.countMembers(c.Members)
	p.Store = calls(c.Seconds, second-60)
	p.Decided = decided(c)
}

// countMembers adds the admissions of members, and the members of a Pool that is not watched.
func (p *Policy) countMembers(counts []observe.MemberCount) {
	total := uint64(0)
	for _, c := range counts {
		total += c.Recent
		i := slices.IndexFunc(p.Members, func(m Member) bool { return m.Name == c.Member })
		if i < 0 && !p.Watched && c.Member != "" {
			i = len(p.Members)
			p.Members = append(p.Members, Member{Name: c.Member, Condition: Unwatched, Tiers: []Tier{}})
		}
		if i >= 0 {
			p.Members[i].Admitted = c.Recent
		}
	}
	for i := range p.Members {
		p.Members[i].Share = float64(p.Members[i].Admitted) / float64(max(1, total))
	}
}

// calls returns the calls of a shared store that ended after a second, or nil if there were none.
func calls(seconds []observe.Second, after int64) *Calls {
	var c Calls
	var took float64
	var unsent uint64
	for _, b := range seconds {
		if b.At <= after {
			continue
		}
		for outcome, n := range b.Calls {
			c.Count += n
			if outcome != "ok" {
				c.Failed += n
			}
		}
		unsent += b.Calls["unsent"]
		took += b.CallTime
		c.Max = max(c.Max, b.CallMax)
	}
	if c.Count == 0 {
		return nil
	}
	c.Mean = took / float64(max(1, c.Count-unsent))
	return &c
}

// decided returns which tiers decided the waits of admitted requests.
func decided(c observe.PolicySnapshot) []Decided {
	type key struct{ policy, tier string }
	sums, total := make(map[key]Decided), 0.0
	for _, w := range c.Waits {
		if w.Result == "admitted" {
			d := sums[key{w.By, w.Tier}]
			sums[key{w.By, w.Tier}] = Decided{Policy: w.By, Tier: w.Tier, Waits: d.Waits + w.Count, Seconds: d.Seconds + w.Sum}
			total += w.Sum
		}
	}
	all := slices.SortedFunc(maps.Values(sums), func(a, b Decided) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Tier, b.Tier))
	})
	for i := range all {
		all[i].Share = all[i].Seconds / max(total, math.SmallestNonzeroFloat64)
		if all[i].Tier == "" {
			all[i].Causes = causes(c)
		}
	}
	if all == nil {
		return []Decided{}
	}
	return all
}

// causes returns what requests may have waited for if no tier decided.
func causes(c observe.PolicySnapshot) (all []string) {
	if slices.ContainsFunc(c.Pauses, func(p observe.PauseCount) bool { return p.Count > 0 }) {
		all = append(all, "pause")
	}
	if len(c.Calls) > 0 {
		all = append(all, "store")
	}
	if all == nil {
		all = append(all, "callers")
	}
	return all
}

// check adds the problem of the store, if it has one.
func (h *Health) check(check func(context.Context) error, timeout time.Duration) {
	if check == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if check(ctx) != nil {
		h.Problems = append(h.Problems, Problem{Problem: "unavailable"})
	}
}

// add adds the problem of a policy, if it has one.
func (h *Health) add(p Policy) {
	switch {
	case p.Failure != "":
		h.Problems = append(h.Problems, Problem{Policy: p.Name, Problem: p.Failure})
	case p.Closed > 0:
		h.Problems = append(h.Problems, Problem{Policy: p.Name, Problem: "banned", Seconds: p.Closed})
	}
}

// A budgetKey names a budget of a watched limiter.
type budgetKey struct{ limiter, policy, tier string }

// A spending is what was spent of a budget in its present period, at most once a minute.
type spending struct {
	start   time.Time // of the period
	samples []sample
}

type sample struct {
	at   time.Time
	used int64
}

const (
	sampleEvery = time.Minute
	sampleFor   = time.Hour
)

// project returns when a budget will be spent, at the rate since the latest sample that is an hour old.
// If there is none, the rate is since the oldest sample, or since the start of the period if that sample
// is younger than a minute.
func (s *source) project(limiter string, t observe.TierSnapshot, now time.Time) *Projection {
	if !t.Budget || t.PeriodStart == nil || t.Remaining <= 0 {
		return nil
	}
	key := budgetKey{limiter, t.Policy, t.Tier}
	b := s.budgets[key]
	if b == nil || !b.start.Equal(*t.PeriodStart) {
		b = &spending{start: *t.PeriodStart}
		s.budgets[key] = b
	}
	if n := len(b.samples); n == 0 || now.Sub(b.samples[n-1].at) >= sampleEvery {
		b.samples = append(b.samples, sample{now, t.Used})
	}
	for len(b.samples) > 1 && now.Sub(b.samples[1].at) >= sampleFor {
		b.samples = b.samples[1:]
	}
	from := b.samples[0]
	if now.Sub(from.at) < sampleEvery {
		from = sample{b.start, 0}
	}
	over := now.Sub(from.at)
	if over < sampleEvery {
		return nil
	}
	p := &Projection{Over: over.Seconds()}
	left := float64(t.Remaining) / float64(max(0, t.Used-from.used)) * over.Seconds()
	if left < t.PeriodEnd.Sub(now).Seconds() {
		at := now.Add(time.Duration(left * float64(time.Second))).UTC()
		p.SpentAt = &at
	}
	return p
}

// forget drops budgets that were not seen for an hour.
func (s *source) forget(now time.Time) {
	maps.DeleteFunc(s.budgets, func(_ budgetKey, b *spending) bool {
		return now.Sub(b.samples[len(b.samples)-1].at) > sampleFor
	})
}
