// Package observe counts and logs what happens to requests, with the standard library alone.
//
//	stats := observe.NewStats()
//	policy.Observer = throttle.JoinObservers(stats.Observer(), observe.Log(slog.Default(), observe.LogOptions{}))
//	http.Handle("/metrics", stats.Metrics())
//
// [Log] writes refusals, pauses, long waits and failed calls of a shared store to a slog.Logger. [Stats] counts events, and returns
// them as a [Snapshot] and as metrics for Prometheus. Neither has a goroutine
// or a timer, and the memory of both is bounded. Both show names of policies, tiers, units and classes.
// They never show keys of a Group, URLs, costs or texts of errors.
package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/projection"
)

const (
	maxPolicies = 200
	maxTiers    = 32  // and units
	maxMembers  = 200 // of a Pool, which has at most 64 at a time
	otherName   = "_OTHER"
)

// Stats counts the events of policies. A Pool counts as a policy of its name, and what its members admit
// is counted by member, too. Stats counts 200 policies apart, 32 units and 200 members of each, and 32 tiers
// of each policy or member; the rest counts as "_OTHER". A policy takes about 100 KB, a member about 10 KB, and
// a watched budget about 8 KB.
// An event allocates nothing, except the first of its kind. Stats is safe for concurrent use. NewStats
// makes one.
type Stats struct {
	// Timeout is how long a snapshot waits for the watched limiters. If zero, 1 s.
	Timeout time.Duration

	start    time.Time
	policies atomic.Pointer[map[string]*policyStats] // replaced to add a policy

	mu      sync.Mutex // guards watched, and the replacement of policies
	watched map[string]watched

	budgets projection.Meters // of the watched limiters
}

// A watched is what is part of each snapshot: one of both.
type watched struct {
	limiter *throttle.Limiter
	pool    *throttle.Pool
}

// NewStats returns Stats without counts.
func NewStats() *Stats {
	s := &Stats{start: time.Now(), watched: make(map[string]watched)}
	s.policies.Store(&map[string]*policyStats{})
	return s
}

// Observer returns an Observer that counts events. It may be the Observer of several policies and Pools.
func (s *Stats) Observer() *throttle.Observer {
	return &throttle.Observer{
		Queued: s.queued, Admitted: s.admitted, Refused: s.refused,
		Answered: s.answered, Settled: s.settled, Paused: s.paused, Called: s.called,
	}
}

// Watch adds a limiter whose Status is part of each snapshot from now on. The name stands for it in
// snapshots and metrics, and is usually the name of its policy. A limiter or Pool of the same name is
// replaced, and removed if l is nil. Watch returns an error if 200 others are watched.
func (s *Stats) Watch(name string, l *throttle.Limiter) error {
	return s.watch("limiter", name, watched{limiter: l})
}

// WatchPool is like Watch for a Pool, with the Status of each member. The name is usually that of the Pool.
func (s *Stats) WatchPool(name string, p *throttle.Pool) error {
	return s.watch("pool", name, watched{pool: p})
}

func (s *Stats) watch(what, name string, w watched) error {
	name = valid(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if w == (watched{}) {
		delete(s.watched, name)
		return nil
	}
	if _, known := s.watched[name]; !known && len(s.watched) >= maxPolicies {
		return fmt.Errorf("observe: %s %q is not watched: %d others are", what, name, maxPolicies)
	}
	s.watched[name] = w
	return nil
}

// valid returns the name as UTF-8.
func valid(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// policy returns the counts of a policy.
func (s *Stats) policy(name string) *policyStats {
	known := *s.policies.Load()
	if p := known[name]; p != nil {
		return p
	}
	if p := known[otherName]; p != nil && len(known) >= maxPolicies {
		return p
	}
	return s.newPolicy(name)
}

// newPolicy adds the counts of a policy, or returns those of all others.
func (s *Stats) newPolicy(name string) *policyStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := *s.policies.Load()
	shown := valid(name)
	if known[name] == nil && len(known) >= maxPolicies {
		name, shown = otherName, otherName
	}
	if p := known[name]; p != nil {
		return p
	}
	p := known[shown] // the name may have been invalid
	if p == nil {
		p = &policyStats{name: shown}
	}
	next := maps.Clone(known)
	next[name], next[shown] = p, p
	s.policies.Store(&next)
	return p
}

// now returns the time as Unix time in seconds, by a clock that is never set.
func (s *Stats) now() int64 {
	return max(1, s.start.Unix()+int64((time.Duration(s.start.Nanosecond())+time.Since(s.start))/time.Second))
}

// A result is what became of a request.
type result uint8

const (
	admitted result = iota
	canceled
	deadline
	exceedsCapacity
	exhausted
	queueFull
	banned
	unavailable
	needsPermit
	closed
	tooManyKeys
	notNow
	failed
	results
)

var resultNames = [results]string{
	"admitted", "canceled", "deadline", "exceeds_capacity", "exhausted", "queue_full", "banned", "unavailable",
	"needs_permit", "closed", "too_many_keys", "not_now", "error",
}

// resultOf returns the result of a refused request.
func resultOf(i throttle.RefusedInfo) result {
	if r := slices.Index(resultNames[:], i.Outcome()); r >= 0 {
		return result(r)
	}
	return failed
}

const classes = 3

// classIndex returns the index of a class. A class that does not exist is Normal.
func classIndex(c throttle.Class) int {
	if c >= classes {
		return int(throttle.Normal)
	}
	return int(c)
}

// The kinds of responses are those of package answers and two more.
const (
	lost = 4 + iota
	unsent
	kinds
)

var kindNames = [kinds]string{"passed", "limited", "banned", "other", "lost", "unsent"}

// kindOf returns the index of the kind of a response.
func kindOf(a throttle.AnsweredInfo) int {
	switch {
	case a.Unsent:
		return unsent
	case a.Lost:
		return lost
	}
	return int(min(a.Kind, lost-1))
}

var causeNames = [...]string{string(throttle.PausedByResponse), string(throttle.PausedByCall), "other"}

// causeOf returns the index of the cause of a pause.
func causeOf(cause throttle.PauseCause) int {
	switch cause {
	case throttle.PausedByResponse:
		return 0
	case throttle.PausedByCall:
		return 1
	}
	return 2
}

// An outcome is what became of a call of a shared store.
type outcome uint8

const (
	callOK outcome = iota
	callTimeout
	callUnavailable
	callFailed
	callUnsent
	outcomes
)

var outcomeNames = [outcomes]string{"ok", "timeout", "unavailable", "error", "unsent"}

// outcomeOf returns the outcome of a call.
func outcomeOf(i throttle.CalledInfo) outcome {
	if o := slices.Index(outcomeNames[:], i.Outcome()); o >= 0 {
		return outcome(o)
	}
	return callFailed
}

// policyStats are the counts of one policy.
type policyStats struct {
	name string

	mu sync.Mutex // guards all below
	counts
	ring ring
	busy projection.Hours // what was admitted
}

// counts are the counts of a policy since the beginning.
type counts struct {
	queued   [classes]int64
	requests [classes][results]uint64
	pauses   [len(causeNames)]pauseCount

	members      []*memberCounts // what they admit; requests without a Pool have the member ""
	refusedWaits [classes][results]*histogram

	calls    [outcomes]uint64     // of the shared store
	callTime [outcomes]*histogram // of calls that were made
	decided  uint64               // requests, by these calls

	units     []string // that were settled
	estimates [maxTiers + 1]*estimateCount
}

// memberCounts are the counts of what is known by the member of a Pool.
type memberCounts struct {
	name      string
	active    int64
	admitted  [classes]uint64
	responses [kinds]uint64
	recent    *recent // admissions; nil without a name

	tiers []tierName // that have decided waits
	waits [classes][maxTiers + 1]*histogram
}

// member returns the counts of a member, or those of all others.
func (c *counts) member(name string) *memberCounts {
	name = valid(name)
	for _, m := range c.members {
		if m.name == name {
			return m
		}
	}
	if len(c.members) >= maxMembers && name != "" && name != otherName {
		return c.member(otherName)
	}
	m := &memberCounts{name: name}
	if name != "" {
		m.recent = new(recent)
	}
	c.members = append(c.members, m)
	return m
}

type pauseCount struct {
	n, closed uint64
	seconds   float64
}

type estimateCount struct {
	estimated, actual float64
	ratios            histogram
}

// A tierName names a tier of a policy.
type tierName struct{ policy, tier string }

// otherTier is the name of the tiers that are not counted apart.
func (p *policyStats) otherTier() tierName { return tierName{p.name, otherName} }

// index returns the index of a name in a list, which grows until it has maxTiers names. The index of
// further names, and of the name other, is maxTiers.
func index[T comparable](names *[]T, name, other T) int {
	for i, n := range *names {
		if n == name {
			return i
		}
	}
	if len(*names) < maxTiers && name != other {
		*names = append(*names, name)
		return len(*names) - 1
	}
	return maxTiers
}

// made returns what p points to. If p is nil, it makes one.
func made[T any](p **T) *T {
	if *p == nil {
		*p = new(T)
	}
	return *p
}

func (s *Stats) queued(_ context.Context, i throttle.QueuedInfo) {
	p := s.policy(i.Policy)
	p.mu.Lock()
	p.counts.queued[classIndex(i.Class)]++
	p.mu.Unlock()
}

func (s *Stats) admitted(_ context.Context, i throttle.AdmittedInfo) {
	p, now, class := s.policy(i.Policy), s.now(), classIndex(i.Class)
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.member(i.Member)
	m.admitted[class]++
	p.busy.Add(now/3600, 1)
	if m.recent != nil {
		m.recent.add(now)
	}
	if i.Held {
		m.active++
	}
	b := p.ended(now, class, admitted, i.Queued)
	if i.Queued {
		tier := index(&m.tiers, tierName{valid(i.By), valid(i.Tier)}, p.otherTier())
		b.waited(made(&m.waits[class][tier]), i.Waited)
	}
}

func (s *Stats) refused(_ context.Context, i throttle.RefusedInfo) {
	p, now, class, r := s.policy(i.Policy), s.now(), classIndex(i.Class), resultOf(i)
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.ended(now, class, r, i.Queued)
	if i.Queued {
		b.waited(made(&p.refusedWaits[class][r]), i.Waited)
	}
}

// ended counts a request that was admitted or refused. It returns the bucket of its second.
func (p *policyStats) ended(now int64, class int, r result, queued bool) *bucket {
	p.requests[class][r]++
	if queued && p.counts.queued[class] > 0 {
		p.counts.queued[class]--
	}
	b := p.ring.at(now)
	b.requests[r]++
	return b
}

func (s *Stats) answered(_ context.Context, i throttle.AnsweredInfo) {
	p, now, kind := s.policy(i.Policy), s.now(), kindOf(i)
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.member(i.Member)
	m.responses[kind]++
	if m.active > 0 {
		m.active--
	}
	p.ring.at(now).responses[kind]++
}

func (s *Stats) settled(i throttle.SettledInfo) {
	p, unit := s.policy(i.Policy), valid(i.Unit)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := made(&p.estimates[index(&p.units, unit, otherName)])
	e.estimated += float64(i.Estimated)
	e.actual += float64(i.Actual)
	e.ratios.add(estimateBounds, float64(i.Actual)/float64(max(1, i.Estimated)))
}

func (s *Stats) paused(i throttle.PausedInfo) {
	p := s.policy(i.Policy)
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.pauses[causeOf(i.Cause)]
	c.n++
	c.seconds += i.For.Seconds()
	if i.Closed {
		c.closed++
	}
}

func (s *Stats) called(i throttle.CalledInfo) {
	p, now, o := s.policy(i.Policy), s.now(), outcomeOf(i)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[o]++
	p.decided += uint64(max(0, i.Requests))
	b := p.ring.at(now)
	b.calls[o]++
	if !i.Unsent {
		seconds := max(0, i.Duration).Seconds()
		made(&p.callTime[o]).add(callBounds, seconds)
		b.callTime += seconds
		b.callMax = max(b.callMax, seconds)
	}
}
