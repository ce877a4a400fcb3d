package admit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// A Pool admits each request in one of several Paths, its members: in the one that has room first. A caller
// that waits has a place, by its arrival, in the queue of each member that may serve it. The first member that
// admits the caller takes it out of the other queues. Therefore a pool has no order of its own beside the
// orders of its members' quotas, in which the callers of other Limiters and pools wait too.
type Pool struct {
	members atomic.Pointer[[]*Member] // by rank
	waits   *time.Duration            // see spill; set before the first members

	holders atomic.Int64 // how many callers have a caller.held

	mu      sync.Mutex // guards all below, and changes of the credits; no other lock is taken under it
	callers map[*caller]struct{}
	rooms   []*room
}

// A Member is a Path of a Pool. Its exported fields do not change.
type Member struct {
	Name         string
	Path         *Path
	Weight, Rank int
	Of           any // what the Path belongs to

	credit    atomic.Int64 // the shares of requests that it is behind, see round.next
	fullUntil atomic.Int64 // see round.isFull; zero if it had room
}

// maxMembers is the largest number of members of a Pool.
const maxMembers = 64

// Members returns the members by rank. The caller must not change them.
func (p *Pool) Members() []*Member {
	if members := p.members.Load(); members != nil {
		return *members
	}
	return nil
}

// Each returns what f returns for the members, by rank. It calls f for all of them at the same time.
func Each[T any](p *Pool, f func(*Member) T) []T {
	members := p.Members()
	results := make([]T, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { results[i] = f(m) })
	}
	wg.Wait()
	return results
}

// spill returns how long a request waits for the preferred members before others may serve it. There must be
// members.
func (p *Pool) spill() time.Duration { return *p.waits }

// Add adds members. Waiting callers may go to them at once. Each call must pass the same spill, which points to
// how long a request waits for the preferred members before others may serve it.
func (p *Pool) Add(spill *time.Duration, members ...*Member) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits == nil {
		p.waits = spill
	}
	all := slices.Clone(p.Members())
	for _, m := range members {
		if err := m.check(all); err != nil {
			return err
		}
		all = append(all, m)
	}
	if len(all) > maxMembers {
		return fmt.Errorf("throttle: pool of %d members: it must have at most %d", len(all), maxMembers)
	}
	slices.SortStableFunc(all, func(a, b *Member) int { return cmp.Compare(a.Rank, b.Rank) })
	p.change(all)
	return nil
}

// check returns an error if the member cannot join others.
func (m *Member) check(others []*Member) error {
	switch {
	case m.Name == "":
		return errors.New("throttle: pool: a member has no Name: give each member its own")
	case m.Path == nil:
		return m.errorf("Limiter is nil: set it")
	case m.Weight < 1:
		return m.errorf("Weight is %d: it must be at least 1, or 0 for 1", m.Weight)
	case m.Rank < 0:
		return m.errorf("Rank is %d: it must be at least 0", m.Rank)
	case m.Path.Policy().Shadow:
		return m.errorf("its policy has Shadow: set that to false")
	}
	for _, o := range others {
		switch {
		case o.Name == m.Name:
			return m.errorf("another member has that Name: give each its own")
		case m.Path == o.Path || m.Path.err == nil && o.Path.err == nil && m.Path.isSameQuota(o.Path):
			return m.errorf("it has the quota of member %q: one quota does not add up", o.Name)
		}
	}
	return nil
}

func (m *Member) errorf(format string, args ...any) error {
	return fmt.Errorf("throttle: pool member %q: "+format, append([]any{m.Name}, args...)...)
}

// Remove removes a member. Waiting callers leave its queue and keep their places in the others.
func (p *Pool) Remove(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.Members()
	left := slices.DeleteFunc(slices.Clone(all), func(m *Member) bool { return m.Name == name })
	if len(left) == len(all) {
		return false
	}
	p.change(left)
	return true
}

// change replaces the members. The caller holds the lock.
func (p *Pool) change(members []*Member) {
	p.members.Store(&members)
	p.rooms = nil
	go p.chooseAnew()
}

// each returns the callers that wait.
func (p *Pool) each() iter.Seq[*caller] {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Values(slices.Collect(maps.Keys(p.callers)))
}

// chooseAnew lets all callers choose anew.
func (p *Pool) chooseAnew() {
	for c := range p.each() {
		c.again()
	}
}

// Waiting returns how many callers wait.
func (p *Pool) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.callers)
}

func (p *Pool) enter(c *caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.callers == nil {
		p.callers = make(map[*caller]struct{})
	}
	p.callers[c] = struct{}{}
}

// release voids the times that a member has reserved.
func (p *Pool) release(m *Member) {
	if p.holders.Load() == 0 {
		return
	}
	for c := range p.each() {
		c.release(m)
	}
}

func (p *Pool) leave(c *caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.callers, c)
}

// isAlone reports whether one caller waits.
func (p *Pool) isAlone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.callers) == 1
}

// preferred returns how many of the members, which are in the order of their ranks, have the rank of the
// first.
func preferred(members []*Member) int {
	n := slices.IndexFunc(members, func(m *Member) bool { return m.Rank != members[0].Rank })
	if n < 0 {
		return len(members)
	}
	return n
}

// A round is a choice among members that have room. Members of a lower rank come first, and those of one rank
// take turns by their weights (smooth weighted round robin).
type round struct {
	pool    *Pool
	members []*Member
	tried   uint64 // the members that were chosen, by index
	first   int    // the index of the one that the others follow; -1 for none
	only    bool   // no others follow
	began   int64  // when the round began, see now
}

// started is the beginning of the time that rounds count, by a clock that is never set.
var started = time.Now()

// now returns when the round began, in nanoseconds.
func (r *round) now() int64 {
	if r.began == 0 {
		r.began = int64(time.Since(started))
	}
	return r.began
}

// isFull reports whether a member had no room when it was last asked, and should have none yet. It may have some
// nevertheless, so it is asked, but after the others of its rank.
func (r *round) isFull(m *Member) bool {
	until := m.fullUntil.Load()
	return until != 0 && r.now() < until
}

// mostFull is how long a member is taken for full at most: a pause may end early, and a policy change.
const mostFull = 100 * time.Millisecond

// full notes that a member has no room for a time.
func (r *round) full(m *Member, wait time.Duration) {
	if len(r.members) > 1 && wait > 0 && wait < store.Forever {
		m.fullUntil.Store(r.now() + int64(min(wait, mostFull)))
	}
}

// next returns the index of the next member to ask, or -1 after the last one.
func (r *round) next() int {
	if len(r.members) == 1 {
		if r.tried != 0 {
			return -1
		}
		r.tried = 1
		return 0
	}
	if r.first >= 0 {
		if r.tried == 0 {
			r.tried = 1 << r.first
			return r.first
		}
		if r.only {
			return -1
		}
	}
	best, rank, most, bestIsFull := -1, 0, int64(0), false
	for left := ^r.tried; left != 0; left &= left - 1 {
		i := bits.TrailingZeros64(left)
		if i >= len(r.members) || best >= 0 && r.members[i].Rank > rank {
			break
		}
		m := r.members[i]
		share, isFull := m.credit.Load()+int64(m.Weight), r.isFull(m)
		if best < 0 || bestIsFull && !isFull || bestIsFull == isFull && share > most {
			best, rank, most, bestIsFull = i, m.Rank, share, isFull
		}
	}
	if best >= 0 {
		r.tried |= 1 << best
	}
	return best
}

// took notes that a member has admitted a request.
func (r *round) took(took *Member) {
	if len(r.members) == 1 {
		return
	}
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	total := int64(0)
	for _, m := range r.members {
		if m.Rank == took.Rank {
			total += int64(m.Weight)
		}
	}
	for _, m := range r.members {
		if m.Rank == took.Rank {
			m.credit.Store(min(m.credit.Load()+int64(m.Weight), total)) // one that is full does not save up
		}
	}
	took.fullUntil.Store(0)
	took.credit.Store(max(took.credit.Load()-total, -total)) // nor does one that stands in for it owe
}

// quick returns the members that a request may go to at once.
func (p *Pool) quick(ctx context.Context, all bool) round {
	r := round{pool: p, members: p.Members(), first: -1}
	if len(r.members) <= 1 {
		return r
	}
	n, spills := preferred(r.members), all || p.spill() == 0
	if !spills {
		r.members = r.members[:n]
	}
	if key := stickyKeyOf(ctx); key != "" {
		r.first = slices.Index(r.members, stick(r.members[:n], key))
		r.only = !spills
	}
	return r
}

// AllowOne admits one request, of which nothing more is reported, if the members decide on their fast paths and
// nobody observes them. If it returns false, the request needs Admit.
func (p *Pool) AllowOne(ctx context.Context) bool {
	if members := p.Members(); len(members) == 1 && !members[0].isObserved() {
		_, ok := members[0].Path.AllowOne(ctx)
		return ok
	}
	r := p.quick(ctx, false)
	for i := r.next(); i >= 0 && !r.members[i].isObserved(); i = r.next() {
		switch done, allowed := r.members[i].Path.AllowOne(ctx); {
		case allowed:
			r.took(r.members[i])
			return true
		case !done: // it may have room nevertheless
			return false
		}
		r.full(r.members[i], time.Millisecond)
	}
	return false
}

// TryOne is AllowOne for a held request, and returns the member that has admitted it, or nil. It asks only the
// member whose turn it is: one that does not decide fast may have room nevertheless.
func (p *Pool) TryOne(ctx context.Context, a *Admission) *Member {
	r := p.quick(ctx, false)
	i := r.next()
	if i < 0 || r.members[i].isObserved() || !r.members[i].Path.TryOne(ctx, a) {
		return nil
	}
	r.took(r.members[i])
	return r.members[i]
}

// isObserved reports whether a policy's Events receive what happens to a request.
func (m *Member) isObserved() bool { return m.Path.err == nil && m.Path.revision().Events != nil }

// canAdmit returns the error of a demand that the member can never admit, or for which a ban is known.
func (m *Member) canAdmit(d *Demand) error {
	p := m.Path
	s, err := p.Enter()
	if err != nil {
		return err
	}
	defer s.Leave()
	if _, err = p.revisionFor(s, d); err != nil {
		return err
	}
	for ; p != nil && err == nil; p = p.outer {
		err = canAdmitIn(p.scope.Load(), d)
	}
	return err
}

// canAdmitIn is canAdmit for one scope.
func canAdmitIn(s *Scope, d *Demand) error {
	rev := s.current.Load()
	if !rev.foresees {
		_, err := rev.costOf(d)
		return err
	}
	rev, decision, err := s.tryDry(context.Background(), d, &dryRun)
	switch {
	case err != nil:
		return rev.explain(err)
	case decision.Verdict == store.Closed:
		return rev.refused(decision)
	}
	return nil
}

// able returns the members that can serve a demand at some time, by rank. It contains those that are banned, and
// those that would serve it too late. If all members refuse it, able returns the error that ends soonest.
func (p *Pool) able(d *Demand, refused map[*Member]error) (able []*Member, err error) {
	members, open := p.Members(), false
	able = make([]*Member, 0, len(members))
	for _, m := range members {
		failed := refused[m]
		if failed == nil {
			failed = m.canAdmit(d)
		}
		if failed == nil || hasReason(failed, queue.Late) || hasReason(failed, queue.Banned) && refused[m] == nil {
			able = append(able, m)
		}
		open = open || failed == nil
		err = betterError(err, failed)
	}
	switch {
	case len(members) == 0:
		return nil, errNoMembers
	case !open:
		return nil, err
	}
	return able, nil
}

var errNoMembers = errors.New("throttle: the pool has no members: add one")

// checkUnits returns an error for a cost that names a unit that no member counts, or a negative amount.
func (p *Pool) checkUnits(cost map[string]int64) error {
	for unit, n := range cost {
		known := unit == algorithms.Requests
		for _, m := range p.Members() {
			known = known || m.counts(unit)
		}
		if n < 0 {
			return fmt.Errorf("throttle: pool: cost of %q is %d: it must be at least 0", unit, n)
		}
		if !known && len(p.Members()) > 0 {
			return fmt.Errorf("throttle: pool: cost names the unit %q: the members count %s", unit, strings.Join(p.units(), ", "))
		}
	}
	return nil
}

// counts reports whether a scope of the member counts a unit.
func (m *Member) counts(unit string) bool {
	for p := m.Path; p != nil; p = p.outer {
		if p.err == nil && p.revision().countsUnit(unit) {
			return true
		}
	}
	return false
}

// units returns the units that the members count.
func (p *Pool) units() (units []string) {
	for _, m := range p.Members() {
		if m.Path.err == nil {
			units = append(units, m.Path.units()...)
		}
	}
	slices.Sort(units)
	return slices.Compact(units)
}

// hopeOrder orders the reasons of refusals, from those that end soonest.
var hopeOrder = [...]int{
	queue.Late: 0, queue.Unavailable: 1, queue.Full: 2, queue.Banned: 3, queue.Exhausted: 4,
	NeedsPermit: 5, ExceedsCapacity: 6, TooManyKeys: 7, queue.Closed: 8,
}

// betterError returns the error, of two members, that ends sooner. Either may be nil.
func betterError(a, b error) error {
	r, ok := a.(*Refusal)
	s, is := b.(*Refusal)
	switch {
	case a == nil || !ok && is:
		return b
	case b == nil || !is:
		return a
	case hopeOrder[r.Reason] != hopeOrder[s.Reason]:
		if hopeOrder[r.Reason] < hopeOrder[s.Reason] {
			return a
		}
		return b
	case s.Wait > 0 && (r.Wait == 0 || s.Wait < r.Wait):
		return b
	}
	return a
}

type stickyKey struct{}

// WithStickyKey returns a copy of ctx whose requests prefer one member of a Pool, by a key.
func WithStickyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, stickyKey{}, key)
}

func stickyKeyOf(ctx context.Context) string {
	key, _ := ctx.Value(stickyKey{}).(string)
	return key
}

// stick returns the member that the requests of a key prefer, by weighted rendezvous hashing: another member
// takes over only the keys that it prefers, and leaves only its own.
func stick(members []*Member, key string) *Member {
	var best *Member
	most := math.Inf(-1)
	for _, m := range members {
		h := uint64(14695981039346656037) // FNV-1a, and a finalizer that spreads similar keys
		for _, s := range [...]string{m.Name, "\x00", key} {
			for i := range len(s) {
				h = (h ^ uint64(s[i])) * 1099511628211
			}
		}
		h = (h ^ h>>33) * 0xff51afd7ed558ccd
		h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
		h ^= h >> 33
		uniform := (float64(h>>11) + 0.5) / (1 << 53)
		if score := -float64(m.Weight) / math.Log(uniform); score > most {
			best, most = m, score
		}
	}
	return best
}

// stages returns the members that may serve a request, by how long it has waited: those of each stage may
// serve it too after those of the stages before let it wait for Spill.
func (p *Pool) stages(able []*Member, key string) (stages [][]*Member) {
	n := preferred(able)
	if key != "" && n > 1 {
		stages = append(stages, []*Member{stick(able[:n], key)})
	}
	for ; n < len(able); n += preferred(able[n:]) {
		stages = append(stages, able[:n])
	}
	return append(stages, able)
}

func (m *Member) isNear() bool {
	for p := m.Path; p != nil; p = p.outer {
		if p.err != nil || !p.revision().foresees {
			return false
		}
	}
	return true
}
