package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/store"
)

// stepsAside returns a ticket whose Ask steps aside once, takes some time, steps back if it is to, and
// ends. Later it is admitted. Its calls are noted in asked.
func stepsAside(asked *[]time.Time, takes time.Duration, back bool, d store.Decision, err error) Ticket {
	t := ticket()
	t.Ask = asks(func(_ context.Context, turn Turn) (store.Decision, error) {
		if *asked = append(*asked, time.Now()); len(*asked) > 1 {
			return store.Decision{Verdict: store.Admitted}, nil
		}
		turn.StepAside()
		if time.Sleep(takes); back {
			turn.StepBack()
		}
		return d, err
	})
	return t
}

// TestAwayReply tests when a caller that has stepped aside asks again, or how it ends, by the reply of
// its Ask.
func TestAwayReply(t *testing.T) {
	broken := &Final{errors.New("broken")}
	for name, c := range map[string]struct {
		d     store.Decision
		err   error
		again time.Duration // never if it ends at once
		back  bool          // it has stepped back
	}{
		"admitted":          {store.Decision{Verdict: store.Admitted}, nil, never, false},
		"later":             {store.Decision{Verdict: store.Later, Wait: 3 * sec}, nil, 3 * sec, false},
		"unavailable":       {store.Decision{}, store.ErrUnavailable, retryStore, false},
		"moved":             {store.Decision{Verdict: store.Moved}, nil, 0, false},
		"broken":            {store.Decision{}, broken, never, false},
		"admitted, back":    {store.Decision{Verdict: store.Admitted}, nil, never, true},
		"later, back":       {store.Decision{Verdict: store.Later, Wait: 3 * sec}, nil, 0, true},
		"unavailable, back": {store.Decision{}, store.ErrUnavailable, 0, true},
		"broken, back":      {store.Decision{}, broken, never, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				replanned := 0
				q := New(complete(Config{Quota: every(sec), Replanned: func() { replanned++ }}))
				var others, asked []time.Time
				ahead := join(q, stepsAside(&others, time.Minute, false, store.Decision{Verdict: store.Admitted}, nil))
				w := join(q, stepsAside(&asked, sec, c.back, c.d, c.err))
				if ahead.ended() || w.ended() {
					t.Fatal("a caller has ended while it is away")
				}
				back := time.Now().Add(sec)
				<-w.done
				switch {
				case c.again == never && (len(asked) > 1 || !w.end.Equal(back)):
					t.Errorf("asked %d times, ended %v after the reply", len(asked), w.end.Sub(back))
				case c.again != never && (len(asked) != 2 || !asked[1].Equal(back.Add(c.again))):
					t.Errorf("asked at %v, want again %v after %v", asked, c.again, back)
				}
				if moved := c.d.Verdict == store.Moved; w.err != nil != (c.err == broken) || moved != (replanned > 0) {
					t.Errorf("got %v; Replanned was called %d times", w.err, replanned)
				}
				if <-ahead.done; ahead.err != nil || q.Len() != 0 || len(q.calls.stale) > 0 {
					t.Errorf("the caller ahead: %v; %d wait, %d are asked for", ahead.err, q.Len(), len(q.calls.stale))
				}
			})
		})
	}
}

// TestChangesCancelAsks tests that callers ask again, whether they have stepped aside or not, when their
// quota admits later than before, and go on otherwise.
func TestChangesCancelAsks(t *testing.T) {
	for change, again := range map[store.Change]bool{store.Freed: false, store.Eased: false, store.Slowed: true} {
		synctest.Test(t, func(t *testing.T) {
			quota := later(sec)
			q := New(complete(Config{Quota: quota}))
			var calls [2]int
			var callers []*caller
			for i := range calls {
				next := ticket()
				next.Ask = asks(func(ctx context.Context, turn Turn) (store.Decision, error) {
					if calls[i]++; i == 0 {
						turn.StepAside()
					}
					<-ctx.Done()
					return store.Decision{}, ctx.Err()
				})
				callers = append(callers, join(q, next))
			}
			if calls != [2]int{1, 1} {
				t.Fatalf("asked %v times", calls)
			}
			quota.notify(change, 0)
			synctest.Wait()
			if (calls[0] > 1) != again || (calls[1] > 1) != again {
				t.Errorf("change %d: asked %v times, want again: %v", change, calls, again)
			}
			for _, c := range callers {
				c.cancel()
				<-c.done
			}
		})
	}
}

// TestReplaceRefusesAway tests that Replace refuses at once a caller that is away and that the new
// configuration cannot count.
func TestReplaceRefusesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(complete(Config{Owner: 1, Quota: later(sec)}))
		away := units()
		away.Ask = asks(func(ctx context.Context, turn Turn) (store.Decision, error) {
			turn.StepAside()
			<-ctx.Done()
			return store.Decision{}, ctx.Err()
		})
		c := join(q, away)
		q.Replace(complete(Config{Owner: 0, Quota: later(sec)}))
		if !c.ended() || c.err != errNoUnits || q.Len() != 0 {
			t.Errorf("ended: %v, %v; %d callers wait", c.ended(), c.err, q.Len())
		}
		c.cancel()
	})
}

// TestReplaceBehindRefusedAway tests that a queue does not watch its former quota while the Ask of a caller
// that it has refused, and that was away, is under way.
func TestReplaceBehindRefusedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		former, next := later(sec), later(sec)
		q := New(complete(Config{Quota: former}))
		var asked []time.Time
		away := join(q, stepsAside(&asked, time.Minute, false, store.Decision{}, context.Canceled))
		q.Pause(time.Now().Add(sec), true, errors.New("refused"))
		q.Replace(complete(Config{Quota: next}))
		behind := join(q, ticket())
		if former.watched() != 0 || next.watched() != 1 || q.Len() != 1 {
			t.Errorf("%d watch the former quota, %d the next, want 0 and 1; %d callers wait", former.watched(), next.watched(), q.Len())
		}
		behind.cancel()
		<-behind.done
		if <-away.done; away.err == nil || next.watched() != 0 {
			t.Errorf("the caller that was away: %v; %d watch the quota", away.err, next.watched())
		}
	})
}
