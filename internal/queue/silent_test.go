package queue

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/store"
)

// TestSilentStore checks that callers of a store that does not answer are refused as Unavailable, also
// those that give up while the first call is under way, and those for which it was not made.
func TestSilentStore(t *testing.T) {
	for name, quota := range map[string]func() store.Quota{
		"reserves": func() store.Quota { return new(reserver) },
		"does not": func() store.Quota {
			return &fake{reply: func(context.Context, store.Request) (store.Decision, error) {
				time.Sleep(sec)
				return store.Decision{}, fmt.Errorf("no answer: %w", store.ErrUnavailable)
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := New(complete(Config{Quota: quota()}))
				limited, stop := context.WithTimeout(t.Context(), 300*ms)
				defer stop()
				var callers []*caller
				for i := range 20 + minBatch {
					if i%2 == 0 {
						callers = append(callers, join(q, ticket().until(time.Now().Add(300*ms))))
					} else {
						callers = append(callers, joinCtx(limited, q, ticket()))
					}
				}
				canceled := join(q, ticket())
				canceled.cancel()
				if synctest.Wait(); canceled.err != context.Canceled {
					t.Errorf("a canceled caller gets %v", canceled.err)
				}
				time.Sleep(2 * sec)
				late := 0
				for _, c := range callers {
					if !c.isRefused(Unavailable) || !errors.Is(c.err, context.DeadlineExceeded) {
						late++
					}
				}
				if late > 0 {
					t.Errorf("%d of %d callers were not told that the store is unavailable, such as: %v", late, len(callers), callers[1].err)
				}
			})
		})
	}
}

// TestStoreFallsSilent checks callers of a store that has answered before, and of one that answers all
// the time, whose callers are late because of a tier.
func TestStoreFallsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		first := join(q, ticket())
		question := quota.next(t)
		question.done(quota.at(question, 10*sec), nil)
		time.Sleep(sec)
		second := join(q, ticket().until(time.Now().Add(20*sec)))
		if time.Sleep(21 * sec); !second.isRefused(Unavailable) || first.err != nil {
			t.Errorf("got %v and %v, want nil and Unavailable", first.err, second.err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // a store that answers slowly, as one in a fallback that is dialed first
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		c := join(q, ticket().until(time.Now().Add(2*sec)))
		for range 3 {
			question := quota.next(t)
			time.Sleep(400 * ms)
			question.done([]store.Decision{{Verdict: store.Later, Tier: 0, Wait: 100 * ms}}, nil)
			time.Sleep(100 * ms)
		}
		question := quota.next(t) // under way at the deadline
		if time.Sleep(600 * ms); !c.isRefused(Late) {
			t.Errorf("got %v, want Late", c.err)
		}
		question.done(nil, nil)
	})
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{Quota: &fake{reply: func(context.Context, store.Request) (store.Decision, error) {
			time.Sleep(50 * ms)
			return store.Decision{Verdict: store.Later, Wait: 10 * sec}, nil
		}}})
		var callers []*caller
		for i := range 20 {
			callers = append(callers, join(q, ticket().until(time.Now().Add(time.Duration(300+i)*ms))))
		}
		time.Sleep(2 * sec)
		for i, c := range callers {
			if !c.isRefused(Late) {
				t.Errorf("caller %d: got %v, want Late", i, c.err)
			}
		}
	})
}
