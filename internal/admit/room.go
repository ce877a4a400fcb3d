package admit

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// A room is where callers of a Pool wait that the same members may serve. It admits nobody: it counts the
// callers, and refuses those that are late by what the members together will admit.
type room struct {
	pool    *Pool
	members []*Member
	queue   queue.Queue

	mu   sync.Mutex // guards view; a caller that holds it takes only the locks of the queue and behind
	view *view      // that the queue is configured for
}

// maxRooms is the number of rooms from which on empty ones are dropped.
const maxRooms = 64

// room returns the room of members.
func (p *Pool) room(members []*Member) *room {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(p.rooms, func(r *room) bool { return slices.Equal(r.members, members) }); i >= 0 {
		return p.rooms[i]
	}
	if len(p.rooms) >= maxRooms {
		p.rooms = slices.DeleteFunc(p.rooms, func(r *room) bool { return r.queue.Len() == 0 })
	}
	r := &room{pool: p, members: slices.Clone(members)}
	p.rooms = append(p.rooms, r)
	return r
}

// configure configures the queue for the policies in force.
func (r *room) configure() *view {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.view == nil || !r.view.isCurrent() {
		r.view = newView(r.pool, r.members)
		r.queue.Replace(queue.Config{Owner: r.view, Outlook: r.view, Aging: r.view.parts[0].revisions[0].Aging, Replanned: r.replanned})
	}
	return r.view
}

// replanned configures the queue after a change of a quota's plan.
func (r *room) replanned() {
	for _, m := range r.members {
		for p := m.Path; p != nil; p = p.outer {
			p.scope.Load().adoptSuccessor()
		}
	}
	r.configure()
}

func (c *caller) ticket(ctx context.Context, until time.Time) queue.Ticket {
	return queue.Ticket{
		Class: ClassOf(ctx), GiveUp: until, Since: c.since, Elsewhere: &c.choice,
		Renew: func(owner any) (store.Request, bool, error) {
			return store.Request{Cost: owner.(*view).costOf(&c.demand), Held: true}, false, nil
		},
	}
}

// giveUpAt returns the time at which a caller is no longer worth waiting for, zero if there is none, and what sets
// it: the SendBy of the request, or the MaxWait of the member that lets it wait longest.
func (r *room) giveUpAt(c *caller) (until time.Time, bound string) {
	until, bound = c.demand.SendBy, BoundSendBy
	longest := time.Duration(0)
	for _, m := range r.members {
		wait := m.Path.revision().MaxWait
		if wait == 0 {
			return until, bound
		}
		longest = max(longest, wait)
	}
	if last := c.since.Add(longest); until.IsZero() || last.Before(until) {
		until, bound = last, BoundMaxWait
	}
	return until, bound
}

// wait waits until a member has admitted the caller, the caller chooses anew, or it is late. What sets until is
// bound.
func (r *room) wait(ctx context.Context, c *caller, until time.Time, bound string) error {
	r.configure()
	waiting, wake := context.WithCancel(ctx)
	defer wake()
	if !c.listen(wake) {
		return nil
	}
	defer c.listen(nil)
	t := c.ticket(ctx, until)
	t.Joined = func(others int) {
		c.demand.joined(others)
		c.join(r.members)
	}
	result, err := r.queue.Wait(waiting, t)
	var refused *queue.Refusal
	if errors.As(err, &refused) {
		limits := Demand{giveUp: until, bound: bound}
		return limits.withBound(ctx, result.Owner.(*view).explain(refused))
	}
	return err
}

// listen lets wake end the wait of the caller. It reports whether the caller has to wait.
func (c *caller) listen(wake func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake = wake
	return wake == nil || !c.changed
}

// A view is the members of a room under the policies in force. The cost of a request contains its costs at all
// members, one after the other.
type view struct {
	pool  *Pool
	parts []part
	units []sharedUnit
}

// A part is one member of a view.
type part struct {
	member    *Member
	revisions []*Revision // of its scopes, the inner ones first
	from, to  int         // of its cost
	firstTier int
}

// A sharedUnit is a unit that all members count, as indexes of the cost.
type sharedUnit []int

func newView(pool *Pool, members []*Member) *view {
	v := &view{pool: pool}
	units, tiers := 0, 0
	for _, m := range members {
		part := part{member: m, from: units, firstTier: tiers}
		for p := m.Path; p != nil; p = p.outer {
			rev := p.revision()
			part.revisions = append(part.revisions, rev)
			tiers += len(rev.Plan.Tiers())
		}
		units += len(part.revisions[0].Plan.Units())
		part.to = units
		v.parts = append(v.parts, part)
	}
	for _, name := range v.parts[0].revisions[0].Plan.Units() {
		var u sharedUnit
		for _, part := range v.parts {
			if i := slices.Index(part.revisions[0].Plan.Units(), name); i >= 0 {
				u = append(u, part.from+i)
			}
		}
		if len(u) == len(v.parts) {
			v.units = append(v.units, u)
		}
	}
	return v
}

// isCurrent reports whether the members still have the same policies.
func (v *view) isCurrent() bool {
	for _, part := range v.parts {
		p := part.member.Path
		for _, rev := range part.revisions {
			if p.revision() != rev {
				return false
			}
			p = p.outer
		}
	}
	return true
}

// costOf returns the costs of a request at all members. It costs nothing at a member that cannot admit it any
// more.
func (v *view) costOf(d *Demand) (cost []int64) {
	for _, part := range v.parts {
		own, err := part.revisions[0].costOf(d)
		if err != nil {
			own = make([]int64, part.to-part.from)
		}
		cost = append(cost, own...)
	}
	return cost
}

// chain returns what the queue of the member would ask.
func (p *part) chain() chain {
	return chain{p.revisions[0].quota, p.revisions[0].Plan, p.member.Path}
}

// Watch watches the quotas of all members. A pause or a ban of one makes its times later.
func (v *view) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	var stops []func()
	for _, part := range v.parts {
		for p := part.member.Path; p != nil; p = p.outer {
			stops = append(stops, p.scope.Load().adoptSuccessor().quota.Watch(func(c store.Change, left time.Duration) {
				if c == store.Shut {
					c = store.Slowed
					v.pool.chooseAnew()
				}
				if c != store.Freed {
					v.pool.release(part.member)
				}
				changed(c, left)
			}))
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// Soonest returns the soonest time of the members.
func (v *view) Soonest(cost []int64, headroom int64) (wait time.Duration, tier int) {
	wait, tier = store.Forever, -1
	for _, p := range v.parts {
		if e, decides := p.chain().Soonest(cost[p.from:p.to], headroom); e < wait {
			wait, tier = e, p.number(decides)
		}
	}
	return wait, tier
}

// number returns the number of a tier of the member in the view.
func (p *part) number(tier int) int {
	if tier < 0 {
		return tier
	}
	return p.firstTier + tier
}

// explain returns the refusal of a caller, under the policy whose tier decides.
func (v *view) explain(r *queue.Refusal) error {
	own := *r
	_, rev, tier := v.decider(own.Tier)
	own.Tier = tier
	return rev.refusal(&own)
}

// decider returns the member and the revision whose tier decides, and its index there.
func (v *view) decider(tier int) (*Member, *Revision, int) {
	if tier >= 0 {
		for _, p := range slices.Backward(v.parts) {
			if tier >= p.firstTier {
				rev, tier := p.member.Path.decider(p.revisions[0], tier-p.firstTier)
				return p.member, rev, tier
			}
		}
	}
	return v.parts[0].member, v.parts[0].revisions[0], -1
}

// Forecast merges the forecasts of the members: each request goes to the member that admits it first.
func (v *view) Forecast() store.Forecast {
	f := &poolForecast{view: v, members: make([]memberForecast, len(v.parts))}
	for i := range v.parts {
		p := &v.parts[i]
		own := p.chain().Forecast()
		f.members[i] = memberForecast{Forecast: own, part: p, tier: -1}
	}
	return f
}

// A poolForecast combines the forecasts of the members of a view.
type poolForecast struct {
	view    *view
	members []memberForecast
}

type memberForecast struct {
	store.Forecast
	part   *part
	at     time.Duration // of its next request
	tier   int           // that decides
	peeked bool          // at is known
}

// Next is called with one cost only.
func (f *poolForecast) Next(r store.Request) (at time.Duration, tier int) {
	var first *memberForecast
	for i := range f.members {
		m := &f.members[i]
		if !m.peeked {
			own := r
			own.Cost = r.Cost[m.part.from:m.part.to]
			if rev := m.part.revisions[0]; rev.AutoGuard {
				own.Guard = m.part.member.Path.scope.Load().guard(rev)
			}
			at, tier := m.Forecast.Next(own)
			if m.at, m.peeked = at, true; tier >= 0 {
				m.tier = m.part.number(tier)
			}
		}
		if first == nil || m.at < first.at {
			first = m
		}
	}
	first.peeked = false
	return first.at, first.tier
}

// Total returns a lower bound. By then some member has admitted the share of each unit's total that it would admit
// if all of them worked at their speeds: if each of them had admitted less, they would not have admitted all.
func (f *poolForecast) Total(ahead, cost []int64, headroom int64) (at time.Duration, tier int) {
	at, tier = f.least(func(m *memberForecast) (time.Duration, int) {
		own := cost[m.part.from:m.part.to]
		return m.Total(make([]int64, len(own)), own, headroom)
	})
	for _, unit := range f.view.units {
		if e, decides := f.share(unit, ahead); e > at {
			at, tier = e, decides
		}
	}
	return at, tier
}

// share returns when some member has admitted its share of a unit's total.
func (f *poolForecast) share(unit sharedUnit, ahead []int64) (at time.Duration, tier int) {
	whole, speeds := make([]float64, len(f.members)), 0.0
	for i := range f.members {
		at, _ := f.members[i].amount(unit[i], ahead[unit[i]])
		if at <= 0 {
			return 0, -1
		}
		whole[i] = 1 / at.Seconds()
		speeds += whole[i]
	}
	i := -1
	return f.least(func(m *memberForecast) (time.Duration, int) {
		i++
		return m.amount(unit[i], int64(math.Floor(float64(ahead[unit[i]])*whole[i]/speeds)))
	})
}

// amount returns when the member has admitted an amount of one unit, whose index in the view is given.
func (m *memberForecast) amount(unit int, n int64) (at time.Duration, tier int) {
	if n <= 0 {
		return 0, -1
	}
	ahead, one := make([]int64, m.part.to-m.part.from), make([]int64, m.part.to-m.part.from)
	ahead[unit-m.part.from], one[unit-m.part.from] = n-1, 1
	return m.Total(ahead, one, 0)
}

func (f *poolForecast) least(ask func(*memberForecast) (time.Duration, int)) (at time.Duration, tier int) {
	at, tier = store.Forever, -1
	for i := range f.members {
		m := &f.members[i]
		if e, decides := ask(m); e < at {
			at, tier = e, m.part.number(decides)
		}
	}
	return at, tier
}
