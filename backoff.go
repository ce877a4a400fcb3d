package throttle

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/store"
)

// A backoff remembers the refusals in a row that named no time to wait. It is
// guarded by its room's lock.
type backoff struct {
	level int   // pauses in a row
	epoch int64 // the quota's epoch after the last of them
}

const firstPause = time.Second

// pause is how long the next one is: a second, doubled once per pause, times 1 to
// 2 at random so that fleets do not return in step; but at most the longest allowed.
func (b backoff) pause(most time.Duration) time.Duration {
	d := firstPause
	for range b.level {
		if d *= 2; d >= most {
			return most
		}
	}
	return min(most, d+time.Duration(rand.Float64()*float64(d)))
}

// refused pauses the quota for everyone after a response that refused, or closes it
// after one that bans or asks for more than a pause may last.
func (g *gate) refused(ctx context.Context, b store.Decision, r answers.Refusal) error {
	most := g.policy.maxPause()
	switch {
	case r.Known:
		_, err := g.quota.Pause(ctx, store.Pause{For: r.Delay, Close: r.Kind == answers.Banned || r.Delay > most, Probe: true})
		return err
	case r.Kind == answers.Banned:
		_, err := g.quota.Pause(ctx, store.Pause{For: most, Close: true, Probe: true})
		return err
	}
	room := g.innermost().aside()
	room.mu.Lock()
	d := room.backoff.pause(most)
	room.mu.Unlock()
	// Refusals of requests that were admitted before the last pause are one event. A
	// request that cost nothing was not admitted, so that nobody knows when it left.
	charged := b.Verdict == store.Admitted
	done, err := g.quota.Pause(ctx, store.Pause{For: d, Once: charged, Epoch: b.Epoch, Probe: true})
	if done.Applied {
		room.mu.Lock()
		room.backoff.level++
		room.backoff.epoch = done.Epoch
		room.mu.Unlock()
	}
	return err
}

// accepted ends the back-off, if the request was admitted after its last pause.
func (g *gate) accepted(b store.Decision) {
	room := g.innermost().room.Load()
	if room == nil {
		return
	}
	room.mu.Lock()
	defer room.mu.Unlock()
	if b.Epoch >= room.backoff.epoch {
		room.backoff = backoff{}
	}
}
