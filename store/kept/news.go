package kept

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/store"
)

// News tells the quotas of a store what other processes have written as urgent, while callers wait or a pause is
// in force. If the keeper is a Listener it listens. Otherwise, and while it can't listen, it looks now and then.
// Quotas that reserve nothing ahead look themselves.
type news struct {
	store *Store

	mu sync.Mutex // guards all below
	// wanted are the quotas that want news, by name.
	wanted map[string]*quota
	// runs reports that a goroutine listens.
	runs bool
	// listens reports that news come without looking.
	listens bool
}

// linger is how long the store listens on after the last quota that wanted news.
const linger = 2 * time.Second

// want begins to tell a quota news, until no callers wait and no pause is in force.
func (n *news) want(q *quota) {
	if !n.store.options.Ahead {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.wanted == nil {
		n.wanted = make(map[string]*quota)
	}
	if n.wanted[string(q.name)] != nil {
		return
	}
	n.wanted[string(q.name)] = q
	if !n.runs {
		n.runs = true
		go n.run()
	}
}

// run tells news until no quota wants them.
func (n *news) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go n.listen(ctx, done)
	unwanted := time.Time{}
	for {
		time.Sleep(store.RecheckInterval/2 + rand.N(store.RecheckInterval/2))
		look, any := n.review()
		switch now := time.Now(); {
		case any:
			unwanted = time.Time{}
		case unwanted.IsZero():
			unwanted = now
		case now.Sub(unwanted) >= linger && n.stop():
			cancel()
			<-done
			return
		}
		for _, q := range look {
			err := q.transact(ctx, nil)
			isFinal := err != nil && !errors.Is(err, store.ErrUnavailable) // only an operator helps
			if errors.Is(err, ErrClosed) || isFinal && (q.pausedFor() <= 0 || q.isClosed()) {
				n.forget(q)
			}
		}
	}
}

// stop reports whether the goroutine must end.
func (n *news) stop() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs = len(n.wanted) > 0
	return !n.runs
}

// mustLook reports whether a transaction is due because there may be news: during a pause, which another process
// may end, and before the start of a reservation.
func (e *entry) mustLook() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if now.Sub(e.seen) < store.RecheckInterval/2 {
		return false
	}
	soon := now.Add(store.RecheckInterval)
	return now.Before(e.paused) || slices.ContainsFunc(e.due, func(d span) bool { return d.first.Before(soon) && !d.last.Before(now) })
}

// A span has the starts of the first and the last reservation of a trip.
type span struct{ first, last time.Time }

// expect notes the starts of new reservations.
func (e *entry) expect(of span) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.due = append(slices.DeleteFunc(e.due, func(d span) bool { return d.last.Before(now) }), of)
}

// wantsNews reports whether callers wait, or a pause is in force.
func (e *entry) wantsNews() bool { return e.isWatched() || e.pausedFor() > 0 }

// review drops the quotas that want no news any more. It returns those that must look.
func (n *news) review() (look []*quota, any bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, q := range n.wanted {
		if !q.wantsNews() {
			delete(n.wanted, name)
		}
	}
	for _, q := range n.wanted {
		if !n.listens && q.mustLook() || q.isAlone() {
			look = append(look, q)
		}
	}
	return look, len(n.wanted) > 0
}

func (n *news) forget(q *quota) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.wanted, string(q.name))
}

// listen listens until the context ends, again and again.
func (n *news) listen(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	l, ok := n.store.keeper.(Listener)
	if !ok {
		return
	}
	select { // many processes may begin to wait at once
	case <-time.After(rand.N(store.RecheckInterval)):
	case <-ctx.Done():
	}
	for again := 100 * time.Millisecond; ctx.Err() == nil; again = min(2*again, 5*time.Second) {
		began := time.Now()
		_ = l.Listen(ctx, func(name []byte) { n.tell(ctx, name) })
		if time.Since(began) > 5*time.Second { // it has listened
			again = 100 * time.Millisecond
		}
		n.setListens(false)
		select {
		case <-time.After(again/2 + rand.N(again)):
		case <-ctx.Done():
		}
	}
}

func (n *news) setListens(yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listens = yes
}

// tell makes the quota of a name look, or all of them if the name is nil.
func (n *news) tell(ctx context.Context, name []byte) {
	n.mu.Lock()
	n.listens = true
	var look []*quota
	for of, q := range n.wanted {
		if (name == nil || of == string(name)) && q.wantsNews() {
			look = append(look, q)
		}
	}
	n.mu.Unlock()
	for _, q := range look {
		go func() { _ = q.transact(ctx, nil) }()
	}
}
