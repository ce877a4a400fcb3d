// Package pause decides during the pauses and bans of a quota, for stores that keep its ledger.
package pause

import (
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A State is the pause of a quota. Instants are µs of the quota's clock.
type State struct {
	// Until is when the longest pause or ban ends.
	Until int64
	// Banned is when the longest ban ends. A ban is a pause too.
	Banned int64
	// Epoch counts pauses and bans.
	Epoch int64
	// Probe reports that the first request after the pause is a probe.
	Probe bool
	// Probing reports that the probe is in flight. The pause then lasts until its response.
	Probing bool
}

// Refuse decides on a request during the pause.
func (s *State) Refuse(d *store.Decision, now algorithms.Moment, l *algorithms.Ledger, r store.Request) {
	if s.Banned > now.At {
		d.Verdict, d.Wait = store.Closed, now.Until(s.Banned)
		return
	}
	at, tier := l.Earliest(now, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves()})
	if s.Probing && l.Probing(tier) {
		at = now.At
	}
	switch {
	case at > s.Until:
		d.Tier = tier
	case s.Probing:
		d.Tier = store.Probing
	}
	wait(d, now, l, max(at, s.Until))
}

// DryRun decides when a request would be admitted. There is no pause.
func DryRun(d *store.Decision, now algorithms.Moment, l *algorithms.Ledger, r store.Request) {
	var at int64
	if at, d.Tier = l.Earliest(now, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves()}); d.Tier < 0 {
		d.Verdict = store.Ready
	}
	wait(d, now, l, at)
}

// Take admits a request, or decides when to ask again. There is no pause.
func Take(d *store.Decision, now algorithms.Moment, l *algorithms.Ledger, r store.Request) (admitted bool) {
	var at int64
	d.Flight, at, d.Tier = l.Take(now, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves(), Guard: algorithms.Micros(r.Guard), Held: r.Held})
	if d.Tier < 0 {
		d.Verdict, d.At, d.Crossed = store.Admitted, now.At, l.Crossings(now)
		return true
	}
	wait(d, now, l, at)
	return false
}

// wait sets the wait, and the verdict if a budget decides.
func wait(d *store.Decision, now algorithms.Moment, l *algorithms.Ledger, at int64) {
	if d.Wait = now.Until(at); l.Plan().Exhausted(d.Tier) {
		d.Verdict = store.Exhausted
	}
}

// StartProbe makes an admitted request the probe: others wait for its response. If no response to a
// held probe comes in time, another probe follows.
func (s *State) StartProbe(d *store.Decision, now algorithms.Moment, l *algorithms.Ledger, r store.Request) {
	d.Probe, s.Probing, s.Probe = true, true, r.Held
	alone := store.ProbeTime
	if r.Held {
		alone = store.ProbeTimeout + max(r.Guard, l.Plan().Guard())
	}
	s.Until = now.At + algorithms.Micros(alone)
}

// EndProbe ends the wait for the response to a probe, if the decision admitted that probe. If it was
// not answered, the next request probes.
func (s *State) EndProbe(d store.Decision, answered bool) (ended bool) {
	if ended = d.Probe && s.Probing && d.Epoch == s.Epoch; ended {
		s.Until, s.Probing, s.Probe = 0, false, !answered
	}
	return ended
}

// Apply begins a pause of p.For, and reports whether it did: a pause that ends later goes on.
func (s *State) Apply(p store.Pause, now algorithms.Moment) (applied bool) {
	end, until := min(now.At+algorithms.Micros(p.For), algorithms.Latest), s.Until
	if s.Probing {
		until = 0
	}
	longer := end > max(now.At, until) || p.Probe && p.For == 0 && until <= now.At
	if p.Once && p.Epoch != s.Epoch || !longer {
		return false
	}
	s.Probe = s.Probe || p.Probe || s.Probing && s.Until > now.At
	s.Until, s.Probing = max(end, until), false
	if p.Close {
		s.Banned = max(s.Banned, end)
	}
	s.Epoch++
	return true
}

// Change returns what watchers receive about the pause, and how long it lasts.
func (s *State) Change(now algorithms.Moment) (store.Change, time.Duration) {
	if s.Banned > now.At {
		return store.Shut, now.Until(s.Banned)
	}
	return store.Slowed, now.Until(s.Until)
}

// Status returns how long the quota is closed or paused.
func (s *State) Status(now algorithms.Moment) (closed, paused time.Duration) {
	if closed = max(0, now.Until(s.Banned)); closed == 0 {
		paused = max(0, now.Until(s.Until))
	}
	return closed, paused
}

// Opens returns the instant at which the pause ends, as forecasts use it. During a ban the quota
// refuses callers. While a probe is in flight the wait is not known.
func (s *State) Opens(now algorithms.Moment) int64 {
	if s.Banned > now.At || s.Probing {
		return 0
	}
	return s.Until
}

// Teach passes the refusal that causes a pause to the tiers that learn their rate. The quota has had a number
// of back-offs in a row, of which only the first refusal teaches. Teach reports whether the pause is void.
func Teach(l *algorithms.Ledger, now algorithms.Moment, p store.Pause, level uint8) (void bool) {
	if p.Refused == nil || level > 0 || !l.Plan().Learns() {
		return false
	}
	return l.Refused(now, p.Refused.At, p.Refused.Cost) && p.Most > 0
}
