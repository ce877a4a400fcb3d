package kept

import (
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/pause"
	"github.com/apithrottle/throttle/store"
)

// pauseFor begins a pause, unless the refusal that causes it is tolerated. Its cost is one of a plan.
func (t *txn) pauseFor(p store.Pause, of *algorithms.Plan) (done store.Paused) {
	level := t.level
	p.For = p.Length(level)
	if done.Applied = t.begins(p, of); done.Applied {
		done.For = max(0, t.now.Until(t.pause.Until))
		t.level = p.Next(level)
	}
	done.Epoch = t.pause.Epoch
	return done
}

// begins begins a pause of p.For, and reports whether it did. A rate that decreases without a pause voids the reservations,
// which are at the old pace.
func (t *txn) begins(p store.Pause, of *algorithms.Plan) bool {
	tolerated, decreases := t.teach(p, of)
	begun := !tolerated && t.pause.Apply(p, t.now)
	if !begun && decreases {
		t.voidReserved()
	}
	if begun || decreases {
		t.changed, t.urgent = true, true
	}
	return begun
}

// teach passes the refusal that causes a pause to all ledgers, whose tiers may learn their rate. It reports whether the
// pause is void, and whether a rate decreases.
func (t *txn) teach(p store.Pause, of *algorithms.Plan) (tolerated, decreases bool) {
	if p.Refused == nil {
		return false, false
	}
	cost := t.spread(t.plan.Translate(of, p.Refused.Cost))
	for i := range t.ledgers {
		l := &t.ledgers[i].ledger
		if !l.Plan().Learns() {
			continue
		}
		own, before := p, lastRefused(l, t.now)
		own.Refused = &store.Refused{At: t.refusedAt(p, before), Cost: t.of(i, cost)}
		if void := pause.Teach(l, t.now, own, t.level); i == t.own {
			tolerated = void
		}
		decreases = decreases || lastRefused(l, t.now) != before
		t.changed, t.whole = true, nil
	}
	return tolerated, decreases
}

// refusedAt returns the instant at which the request of a refusal was admitted. If a rate has decreased before that instant, but
// the request was reserved before the decrease, it returns an instant before the decrease. Such an instant is one of the pause
// that the decrease has begun, or the request is of an earlier epoch: its process had not heard of the decrease.
func (t *txn) refusedAt(p store.Pause, last int64) int64 {
	at := p.Refused.At
	if last > 0 && at >= last && (at < min(t.pause.Until, t.now.At) || p.Once && p.Epoch < t.pause.Epoch) {
		return last - 1
	}
	return at
}

// lastRefused returns the instant at which a refusal last changed a rate, or zero.
func lastRefused(l *algorithms.Ledger, now algorithms.Moment) (at int64) {
	for _, r := range l.LearnedRates(now) {
		if r != nil {
			at = max(at, r.At)
		}
	}
	return at
}

// voidReserved makes all processes reserve anew. While a probe is in flight, no reservations are in use.
func (t *txn) voidReserved() {
	if !t.pause.Probing {
		t.pause.Epoch++
	}
}
