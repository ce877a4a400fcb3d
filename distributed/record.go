package distributed

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

const (
	firstRestore = 500 * time.Millisecond // the first delay before a pause is restored in Redis
	lastRestore  = 16 * time.Second       // the longest delay
	longestPause = 876_000 * time.Hour    // of a process alone: a century, which the script can represent
	restoreOnce  = 2                      // the value of the script's argument once that restores a pause

	neverRecorded = math.MaxInt64 // the epoch of a pause that Redis never had, later than any other
)

// A record is what a quota knows of the state in Redis. Its methods call nothing while they hold the
// lock: they return the news, and quota.spread passes these on.
type record struct {
	mu    sync.Mutex // guards state
	state state
}

// A state is the state of a quota in Redis, by the replies to this process.
type state struct {
	generation int64
	setbacks   int64     // how often Redis has returned to an earlier state of the generation
	written    int64     // when the latest known call wrote the state, on Redis's clock
	asOf       time.Time // when the reply came
	sent       time.Time // when its call was sent
	expires    time.Time // the generation can't change before
	epoch      int64
	until      time.Time // the end of the pause or ban
	shut       bool      // it is a ban
	level      uint8     // back-offs in a row
	pause      int64     // the epoch that the pause began with, or neverRecorded
	unrecorded bool      // Redis does not have the pause
	restoring  bool      // a goroutine or a timer restores the pause in Redis
}

// News is what others receive of a change of a record.
type news struct {
	changed bool          // the watchers receive change and left
	change  store.Change  // of pauses
	left    time.Duration // until the pause ends
	lost    bool          // Redis has lost the state
	restore bool          // a goroutine or a timer is to restore the pause in Redis
	after   time.Duration // how long after now
}

// get returns a copy of the state.
func (r *record) get() state {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// id identifies the present state of Redis. Reservations in another state are void.
func (s *state) id() int64 { return s.generation + s.setbacks }

// isPaused reports whether a pause is in force.
func (s *state) isPaused() bool { return time.Now().Before(s.until) }

// isPausedAlone reports whether a pause is in force that Redis does not have.
func (s *state) isPausedAlone() bool { return s.unrecorded && s.isPaused() }

// decision returns the decision during the pause, if one is in force.
func (s *state) decision() (store.Decision, bool) {
	left := time.Until(s.until)
	if left <= 0 {
		return store.Decision{}, false
	}
	d := store.Decision{Tier: -1, Wait: left, Epoch: s.epoch}
	if s.shut {
		d.Verdict = store.Closed
	}
	return d, true
}

// change returns the change that the pause is.
func (s *state) change() store.Change {
	if s.shut {
		return store.Shut
	}
	return store.Slowed
}

// pausedAlone returns the decision during a pause that Redis does not have.
func (r *record) pausedAlone() (store.Decision, bool) {
	s := r.get()
	d, paused := s.decision()
	return d, paused && s.unrecorded
}

// refuses returns the decision on requests that need no call: during a pause that Redis does not have,
// and during a ban that a reply has just reported, if none of the requests can wait for its end.
func (r *record) refuses(requests []store.Request) (store.Decision, bool) {
	s := r.get()
	d, paused := s.decision()
	waits := func(r store.Request) bool { return !timing.IsLate(r, d.Wait) }
	return d, paused && (s.unrecorded || s.shut && s.isFresh() && !slices.ContainsFunc(requests, waits))
}

// isFresh reports whether a reply has just come. Later a pause may have ended early.
func (s *state) isFresh() bool { return time.Since(s.asOf) <= forecastAfter }

// voids reports whether any of the decisions was made before a pause, or the end of one, that was
// recorded since, or in a state that is lost.
func (r *record) voids(got []store.Decision) bool {
	s := r.get()
	alone := s.isPausedAlone()
	return slices.ContainsFunc(got, func(d store.Decision) bool {
		return d.Verdict == store.Admitted && (alone || d.Reservation.State != inFallback && (d.Epoch != s.epoch || d.Reservation.State != s.id()))
	})
}

// reply records the header of a reply. It returns the state of the reply's reservations.
func (r *record) reply(h header, t *trip) (id int64, n news) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	overtaken := t.sent.Before(s.asOf) // by a reply that came after this call was sent
	if overtaken && (h.generation != s.generation || h.epoch < s.epoch) {
		return h.generation + s.setbacks, n
	}
	first, changed, lost := s.generation == 0, h.epoch != s.epoch, false
	switch {
	case h.generation != s.generation:
		lost = !first && t.got.Before(s.expires)
		changed = true
		s.generation, s.written, s.expires = h.generation, 0, time.Time{}
	case h.written < s.written && !overtaken: // a replica took over that had not received all writes
		s.setbacks++
		s.written = 0
		changed, lost = true, true
	}
	s.epoch, s.level, s.asOf, s.written = h.epoch, h.level, t.got, max(s.written, h.saved)
	if t.sent.After(s.sent) {
		s.sent = t.sent
	}
	if expires := t.sent.Add(time.Duration(h.ttl) * time.Millisecond); expires.After(s.expires) {
		s.expires = expires
	}
	n = s.recordPause(h, t.got, changed, first)
	n.lost = lost
	return s.id(), n
}

// recordPause records the pause or ban of a reply, or that there is none. If the state in Redis is
// from before a pause, this process keeps the pause and restores it in Redis for the others.
func (s *state) recordPause(h header, now time.Time, changed, first bool) news {
	left, paused := h.left(), now.Before(s.until)
	switch {
	case paused && h.epoch < s.pause && now.Add(left).Before(s.until):
		return s.keepPause()
	case !changed && !s.unrecorded:
		if left == 0 && paused { // the probe has its response
			s.until = now
		}
		return news{}
	case left > 0:
		s.until, s.shut, s.pause, s.unrecorded = now.Add(left), h.shut == isBan, h.epoch, false
		if h.shut == isProbe {
			s.until = now // the response may come at any time
		}
		return news{changed: true, change: s.change(), left: left}
	}
	s.unrecorded, s.shut = false, false
	if paused {
		s.until = now
	}
	return news{changed: paused || changed && !first, change: store.Eased}
}

// keepPause keeps a pause that Redis does not have.
func (s *state) keepPause() news {
	n := news{restore: !s.restoring}
	s.unrecorded, s.restoring = true, true
	return n
}

// missing records that Redis has no state.
func (r *record) missing(t *trip) news {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := &r.state; s.unrecorded || t.sent.Before(s.asOf) || !t.got.Before(s.until) {
		return news{}
	}
	return r.state.keepPause()
}

// pauseAlone pauses this process while Redis is away.
func (r *record) pauseAlone(p store.Pause) (store.Paused, news) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	length := p.Length(s.level)
	end := time.Now().Add(min(length, longestPause))
	if !end.After(s.until) || p.Once && (p.Epoch != s.epoch || s.isPausedAlone()) {
		return store.Paused{Epoch: s.epoch}, news{}
	}
	s.until, s.shut, s.pause, s.level = end, p.Close, neverRecorded, p.Next(s.level)
	n := s.keepPause()
	n.changed, n.change, n.left, n.after = true, s.change(), length, firstRestore
	return store.Paused{Applied: true, For: length, Epoch: p.Epoch}, n
}

// resume ends a pause that this process alone keeps. It returns the epoch of the last pause that Redis
// had, zero if it had none.
func (r *record) resume() (epoch int64, n news) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	if s.pause != neverRecorded {
		epoch = s.pause
	}
	if s.unrecorded {
		s.until, s.shut, s.unrecorded, s.pause = time.Time{}, false, false, 0
		n = news{changed: true, change: store.Eased}
	}
	return epoch, n
}

// passed records that a request of an epoch passed. It reports whether that ends a sequence of
// back-offs.
func (r *record) passed(epoch int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	ends := r.state.level > 0 && r.state.epoch == epoch
	if ends {
		r.state.level = 0
	}
	return ends
}

// toRestore returns the time left of a pause that Redis does not have, zero if there is none, and
// the arguments that restore it.
func (r *record) toRestore() (left time.Duration, args []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	left = time.Until(s.until)
	if s.restoring = s.unrecorded && left > 0; !s.restoring {
		return 0, nil
	}
	once, epoch := restoreOnce, s.pause
	if epoch == neverRecorded {
		once, epoch = 0, 0
	}
	return left, []any{algorithms.Micros(left) + 1, bit(s.shut), once, epoch, bit(true)}
}

// knownUntil returns until when this process knows the state, for the script, and zero if Redis need
// not have that state any more. After calls that failed, any new state counts as a loss of another
// one.
func (r *record) knownUntil(failed bool) int64 {
	s := r.get()
	if !failed && !time.Now().Before(s.expires) {
		return 0
	}
	return max(1, s.generation+s.written)
}

// Watchers are the functions that the openers of a quota have passed to Watch.
type watchers struct {
	mu  sync.Mutex // guards all
	all map[*func(store.Change, time.Duration)]struct{}
}

// add adds a function. It returns a function that removes it.
func (w *watchers) add(changed func(store.Change, time.Duration)) (remove func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[*func(store.Change, time.Duration)]struct{})
	}
	w.all[&changed] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, &changed)
	}
}

// any reports whether callers wait.
func (w *watchers) any() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.all) > 0
}

// notify calls the watchers without the lock.
func (w *watchers) notify(c store.Change, left time.Duration) {
	w.mu.Lock()
	all := slices.AppendSeq(make([]*func(store.Change, time.Duration), 0, len(w.all)), maps.Keys(w.all))
	w.mu.Unlock()
	for _, changed := range all {
		(*changed)(c, left)
	}
}
