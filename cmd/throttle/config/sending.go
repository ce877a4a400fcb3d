package config

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/credentials"
	"github.com/apithrottle/throttle/internal/jsonpath"
	"github.com/apithrottle/throttle/retry"
)

// A Pool sends the requests of a route to the members of its pool. It is the Base of the route's transport,
// which counts the budget of the route and the limits of clients.
//
// A request goes to the member that admits it first, with the credentials of that member in the place of the
// caller's. If the member refuses it, or cannot be reached, it is sent again through the pool as package retry
// does; see there. A member that cannot be reached pauses for a second.
type Pool struct {
	// Base sends the requests. If nil, http.DefaultTransport.
	Base http.RoundTripper

	table *table
}

// A table has the members of a pool as one file describes them.
type table struct {
	name    string
	spill   time.Duration
	sticky  Sticky
	base    *url.URL  // the address that callers know
	members []*sender // in the order of the file
	headers []string  // that any member sets
	queries map[string]bool
	timeout time.Duration
	retries int
	settles bool // a member has a Settle

	observer *throttle.Observer
	newest   *atomic.Pointer[table] // of all tables of the pool, which outlive a reload

	mu    sync.Mutex                // guards all below
	pools map[string]*throttle.Pool // by the limiters of the members
}

// A sender is a member with its quotas.
type sender struct {
	*Member
	transport *throttle.Transport
	preset    *presetQuotas     // nil for a policy
	limiter   *throttle.Limiter // of every request; nil if it depends on the request
	uncounted *throttle.Limiter // of requests that the preset does not count
}

// uncounted is the policy of requests that a preset does not count.
const uncounted = "1000000000/s"

// newTable returns the table of a route's pool after another one, or nil. Change makes waiting requests
// know of the members. Call it when nothing can fail any more.
func newTable(r *Route, quotas map[string]*quotas, observer *throttle.Observer, was *table) (t *table, change func(), err error) {
	t = &table{
		name: r.Name, spill: r.Spill, sticky: r.Sticky, base: r.upstream, timeout: r.Timeout, observer: observer,
		queries: make(map[string]bool), pools: make(map[string]*throttle.Pool), newest: new(atomic.Pointer[table]),
	}
	for _, m := range r.Pool {
		q := quotas[m.Name]
		s := &sender{Member: m, transport: q.transport, preset: q.preset, limiter: q.limits.limiter}
		p, err := throttle.ParsePolicy("", uncounted)
		if err != nil {
			return nil, nil, err
		}
		if s.uncounted, err = throttle.New(p, nil); err != nil {
			return nil, nil, err
		}
		t.members, t.settles = append(t.members, s), t.settles || s.transport.Settle != nil
		t.headers = slices.AppendSeq(t.headers, maps.Keys(m.Set))
		for name := range m.Query {
			t.queries[name] = true
		}
	}
	t.retries = max(4, len(t.members))
	if t.isFixed() {
		if _, err := (&passage{table: t}).pool(); err != nil {
			return nil, nil, err
		}
	}
	if was == nil {
		t.newest.Store(t)
		return t, func() {}, nil
	}
	t.newest = was.newest
	return t, func() { was.becomes(t) }, nil
}

// becomes lets the requests that wait in the pools of a table know of the members of the next one. Later
// requests share these pools if the members that stay are the same.
func (t *table) becomes(next *table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.newest.Store(next) // before a request is admitted by a new member
	same := next.isFixed() && t.spill == next.spill && t.name == next.name && t.observer == next.observer
	var stay, removed []string
	for _, m := range t.members {
		now := next.member(m.Name)
		if now == nil {
			removed = append(removed, m.Name)
			continue
		}
		stay = append(stay, m.Name)
		same = same && m.limiter == now.limiter && m.Rank == now.Rank && m.Weight == now.Weight
	}
	if len(stay) == 0 {
		return
	}
	for key, pool := range t.pools {
		if same && pool.Add(next.added(t)...) == nil {
			next.pools[key] = pool
		}
		for _, name := range removed {
			pool.Remove(name)
		}
	}
}

// isFixed reports whether the limiters of all members are those of every request.
func (t *table) isFixed() bool {
	return !slices.ContainsFunc(t.members, func(s *sender) bool { return s.limiter == nil })
}

// whole returns the pool of all requests, or nil if there are several.
func (t *table) whole() *throttle.Pool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pools[""]
}

// added returns the members that an earlier table does not have.
func (t *table) added(before *table) (all []throttle.Member) {
	for _, m := range t.members {
		if before.member(m.Name) == nil {
			all = append(all, m.in(m.limiter))
		}
	}
	return all
}

// in returns the member of a pool with one of its limiters.
func (s *sender) in(l *throttle.Limiter) throttle.Member {
	return throttle.Member{Name: s.Name, Limiter: l, Rank: s.Rank, Weight: s.Weight}
}

// member returns the member of a name, or nil.
func (t *table) member(name string) *sender {
	if i := slices.IndexFunc(t.members, func(s *sender) bool { return s.Name == name }); i >= 0 {
		return t.members[i]
	}
	return nil
}

// around returns the transport of the route, which counts its budget, or nil, and whose Base is the pool.
func (t *table) around(budget *throttle.Limiter) *throttle.Transport {
	around := &throttle.Transport{Base: &Pool{table: t}, Route: func(*http.Request) *throttle.Limiter { return budget }}
	for _, m := range t.members {
		if m.transport.Profile != nil && around.Profile == nil {
			around.Profile = m.transport.Profile // which reports costs, of the first preset
		}
	}
	around.Cost = func(req *http.Request) throttle.Cost { return t.newPassage(req).most((*passage).presetCostAt) }
	return around
}

// RoundTrip sends a request to a member. It closes the request's body on every path. If the limits admit no
// further attempt, the response or error is that of the last one that was sent.
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) {
	anonymous, key := p.table.anonymous(req)
	way := p.table.newPassage(anonymous)
	pool, err := way.pool()
	if err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	t := &throttle.Transport{
		Base: reaching{cmp.Or(p.Base, http.DefaultTransport), way}, Pool: pool, AttemptTimeout: p.table.timeout,
		Cost: func(*http.Request) throttle.Cost { return way.most((*passage).costAt) }, Rewrite: way.rewrite,
		ProfileFor: func(*http.Request) *answers.Profile { return way.to.transport.Profile },
		StickyKey:  func(*http.Request) string { return key },
	}
	if p.table.settles {
		t.Settle = way.settle
	}
	resp, err := retry.Config{Transport: t, Max: p.table.retries}.Client().Transport.RoundTrip(anonymous)
	if resp != nil && resp.Request == anonymous {
		resp.Request = req
	}
	if _, refused := err.(*throttle.WaitError); !refused {
		if several, ok := err.(interface{ Unwrap() []error }); ok {
			err = several.Unwrap()[0] // of an attempt, before the refusal of the next
		}
	}
	return resp, err
}

// CloseIdleConnections closes those of the Base.
func (p *Pool) CloseIdleConnections() {
	if c, ok := p.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Headers returns the names of the headers that members set, and Parameters those of the query. A request
// that comes with one loses it.
func (p *Pool) Headers() []string { return slices.Clone(p.table.headers) }

// Parameters returns the names of the parameters of the query that members set.
func (p *Pool) Parameters() []string { return slices.Sorted(maps.Keys(p.table.queries)) }

// A Wait is what a request would wait for at a member.
type Wait struct {
	Member string
	throttle.Explanation
}

// Waits returns what a request would wait for at each member, one after the other.
func (p *Pool) Waits(ctx context.Context, req *http.Request) (all []Wait) {
	passage := p.table.newPassage(req)
	if passage.err != nil {
		return nil
	}
	for i, m := range p.table.members {
		e, err := passage.limiter(i).Explain(ctx, passage.costAt(i))
		if ctx.Err() != nil {
			return all
		}
		if err != nil {
			e.Err = err
		}
		all = append(all, Wait{m.Name, e})
	}
	return all
}

// anonymous returns a copy of a request without what identifies the caller, and the value of its Sticky.
func (t *table) anonymous(req *http.Request) (anonymous *http.Request, key string) {
	key = t.sticky.of(req)
	anonymous = req.Clone(req.Context())
	credentials.Remove(anonymous)
	for _, name := range t.headers {
		anonymous.Header.Del(name)
	}
	if len(t.queries) > 0 && anonymous.URL.RawQuery != "" {
		kept := slices.DeleteFunc(strings.Split(anonymous.URL.RawQuery, "&"), func(pair string) bool {
			name, _, _ := strings.Cut(pair, "=")
			name, err := url.QueryUnescape(name)
			return err != nil || t.queries[name]
		})
		anonymous.URL.RawQuery = strings.Join(kept, "&")
	}
	return anonymous, key
}

// of returns the value of a request that chooses a member, or "".
func (s Sticky) of(req *http.Request) string {
	switch {
	case s.Header != "":
		return Key{Header: s.Header}.of(req)
	case s.Body == "" || req.GetBody == nil:
		return ""
	}
	body, err := req.GetBody()
	if err != nil {
		return ""
	}
	defer body.Close()
	scanner := jsonpath.Scanner{Queries: []jsonpath.Query{{Path: s.Body}}}
	text, err := io.ReadAll(io.LimitReader(body, mostBody))
	if err != nil {
		return ""
	}
	scanner.Scan(text)
	value, _ := scanner.Find(s.Body, "")
	return string(bytes.Clone(value))
}

// A passage is one request to a pool. Its attempts are made one after the other.
type passage struct {
	table *table
	views []*http.Request // as each member would receive it, but for the credentials
	err   error           // if it is below no address of the pool
	to    *sender         // the last member that has admitted it
}

func (t *table) newPassage(req *http.Request) *passage {
	p := &passage{table: t}
	rest, ok := strings.CutPrefix(req.URL.EscapedPath(), t.base.EscapedPath())
	if !ok || rest != "" && rest[0] != '/' {
		p.err = fmt.Errorf("config: the path of the request is not below the address of the first member of the pool %s", t.name)
		return p
	}
	for _, m := range t.members {
		view := new(http.Request)
		*view = *req
		m.direct(view, rest)
		p.views = append(p.views, view)
	}
	return p
}

// direct makes a request one to the member's address, whose path is followed by an escaped rest.
func (m *Member) direct(req *http.Request, rest string) {
	to := m.route.upstream
	u := &url.URL{Scheme: to.Scheme, Host: to.Host, RawQuery: req.URL.RawQuery, ForceQuery: req.URL.ForceQuery}
	escaped := cmp.Or(to.EscapedPath()+rest, "/")
	if path, err := url.PathUnescape(escaped); err == nil {
		if u.Path = path; escaped != path {
			u.RawPath = escaped
		}
	}
	req.URL, req.Host = u, to.Host
}

// identify adds the credentials of the member to a request.
func (m *Member) identify(req *http.Request) {
	for name, value := range m.Set {
		req.Header.Set(name, value.Reveal())
	}
	values := make(url.Values)
	for name, value := range m.Query {
		values.Set(name, value.Reveal())
	}
	if own := values.Encode(); own != "" {
		req.URL.RawQuery = strings.TrimPrefix(req.URL.RawQuery+"&"+own, "&")
	}
}

// rewrite directs a request to the member that has admitted it. A member that was added while the request
// waited is one of the newest table.
func (p *passage) rewrite(req *http.Request, member string) error {
	if p.to = p.table.newest.Load().member(member); p.to == nil {
		p.to = p.table.member(member)
	}
	if p.to == nil {
		return errors.New("the member is gone")
	}
	rest, _ := strings.CutPrefix(req.URL.EscapedPath(), p.table.base.EscapedPath())
	p.to.direct(req, rest)
	p.to.identify(req)
	return nil
}

// limiter returns the limiter of the request at the i-th member.
func (p *passage) limiter(i int) *throttle.Limiter {
	m := p.table.members[i]
	if m.limiter != nil {
		return m.limiter
	}
	return cmp.Or(m.transport.Route(p.views[i]), m.uncounted)
}

// mostPools is how many combinations of limiters a table keeps pools of.
const mostPools = 1_000

// pool returns the pool of the request's limiters. A preset may have one for each model, for example.
func (p *passage) pool() (*throttle.Pool, error) {
	t := p.table
	if p.err != nil {
		return nil, p.err
	}
	var key strings.Builder
	members := make([]throttle.Member, len(t.members))
	for i, m := range t.members {
		l := p.limiter(i)
		if members[i] = m.in(l); m.limiter == nil {
			fmt.Fprintf(&key, "%p ", l)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if pool := t.pools[key.String()]; pool != nil {
		return pool, nil
	}
	pool, err := throttle.NewPool(members...)
	if err != nil {
		return nil, err
	}
	pool.Name, pool.Spill, pool.Observer = t.name, t.spill, t.observer
	if len(t.pools) >= mostPools { // those who wait keep their places in the queues of the members
		clear(t.pools)
	}
	t.pools[key.String()] = pool
	return pool, nil
}

// costAt returns what the request costs at the i-th member, or nil for one request.
func (p *passage) costAt(i int) throttle.Cost {
	m := p.table.members[i]
	if m.transport.Cost == nil || m.limiter == nil && p.limiter(i) == m.uncounted {
		return nil
	}
	return m.transport.Cost(p.views[i])
}

// presetCostAt is costAt without what the route adds.
func (p *passage) presetCostAt(i int) throttle.Cost {
	m := p.table.members[i]
	if m.preset == nil || m.preset.transport.Cost == nil || p.limiter(i) == m.uncounted {
		return nil
	}
	return m.preset.transport.Cost(p.views[i])
}

// most returns in each unit the most of what the request costs at any member: each member counts its own
// units. If nil, it is one request.
func (p *passage) most(costAt func(p *passage, i int) throttle.Cost) (cost throttle.Cost) {
	for i := range p.views {
		for unit, n := range costAt(p, i) {
			if cost == nil {
				cost = throttle.Cost{}
			}
			cost[cmp.Or(unit, algorithms.Requests)] = max(cost[cmp.Or(unit, algorithms.Requests)], n)
		}
	}
	return cost
}

// settle returns the function that learns from what a response of the member reports.
func (p *passage) settle(*http.Request) func(throttle.Cost) throttle.Cost {
	if p.to.transport.Settle == nil {
		return nil
	}
	for i, m := range p.table.members {
		if m.Name == p.to.Name {
			return p.to.transport.Settle(p.views[i])
		}
	}
	return nil
}

// unreachable is how long a member pauses that cannot be reached. It is longer than the wait of package retry
// before another attempt, which thus goes to another member.
const unreachable = 5 * time.Second

// A reaching is the Base of a passage. It pauses a member that cannot be reached.
type reaching struct {
	base    http.RoundTripper
	passage *passage
}

func (r reaching) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.base.RoundTrip(req)
	var failed *net.OpError
	if errors.As(err, &failed) && failed.Op == "dial" && req.Context().Err() == nil {
		if l := r.passage.limiterOf(r.passage.to); l != nil {
			_ = l.Pause(req.Context(), unreachable) // or the next request fails, too
		}
	}
	return resp, err
}

// CloseIdleConnections closes those of the base.
func (r reaching) CloseIdleConnections() {
	if c, ok := r.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// limiterOf returns the limiter of the request at a member, or nil if it is not known.
func (p *passage) limiterOf(m *sender) *throttle.Limiter {
	if i := slices.Index(p.table.members, m); i >= 0 {
		return p.limiter(i)
	}
	return m.limiter
}
