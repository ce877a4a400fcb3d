package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
)

// stormMembers are the members of the pools that are stormed: alone, within accounts, and of a group.
func stormMembers(t *testing.T) (members []throttle.Member, all []*throttle.Limiter) {
	var group throttle.Policy
	for i, text := range []string{
		"10/s;algo=fixed_window | guard=none",
		"20/s;algo=gcra + 30;algo=concurrency",
		"20/s;algo=fixed_window | guard=none",
		"10/s;algo=anchored_window",
	} {
		p, err := throttle.ParsePolicy(fmt.Sprint("member ", i), text)
		if err != nil {
			t.Fatal(err)
		}
		group = p
		l := mustNew(t, p, nil)
		if i >= 2 {
			p.Name = fmt.Sprint("account ", i)
			p.Tiers = []throttle.Tier{{Limit: 25, Window: time.Second, Algorithm: throttle.FixedWindow}}
			outer := mustNew(t, p, nil)
			all = append(all, outer)
			l = l.Within(outer)
		}
		all = append(all, l)
		members = append(members, throttle.Member{Name: fmt.Sprint(i), Limiter: l, Rank: i % 2})
	}
	group.Name = "group"
	l := mustGroup(t, group).For("key")
	return append(members, throttle.Member{Name: "group", Limiter: l}), append(all, l)
}

// told counts what an Observer is told of one request, whose context has it.
type told struct{ queued, admitted, refused int }

type toldKey struct{}

// observer returns an Observer that counts what it is told.
func (toldKey) observer() *throttle.Observer {
	of := func(ctx context.Context) *told { return ctx.Value(toldKey{}).(*told) }
	return &throttle.Observer{
		Queued:   func(ctx context.Context, _ throttle.QueuedInfo) { of(ctx).queued++ },
		Admitted: func(ctx context.Context, _ throttle.AdmittedInfo) { of(ctx).admitted++ },
		Refused:  func(ctx context.Context, _ throttle.RefusedInfo) { of(ctx).refused++ },
	}
}

// A storm of callers that are canceled, also at the very instant of an admission, leaves the members as new.
func TestPoolIsAsNewAfterAStormOfCancellations(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			members, limiters := stormMembers(t)
			p, err := throttle.NewPool(members...)
			if err != nil {
				t.Fatal(err)
			}
			p.Spill = []time.Duration{0, 100 * time.Millisecond, time.Second}[seed%3]
			q, err := throttle.NewPool(members[1:3]...)
			if err != nil {
				t.Fatal(err)
			}
			p.Observer, q.Observer = toldKey{}.observer(), toldKey{}.observer()
			var wg sync.WaitGroup
			for i := range 120 {
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				wg.Go(func() {
					for range 10 {
						stormOne(t, r, []*throttle.Pool{p, p, q}[r.IntN(3)], limiters)
						time.Sleep(time.Duration(r.IntN(4)) * 50 * time.Millisecond)
					}
				})
			}
			wg.Go(func() { stormChanges(t, p, members) })
			wg.Wait()
			for _, p := range []*throttle.Pool{p, q} {
				if n := p.Status(t.Context()).Waiting; n != 0 {
					t.Errorf("seed %d: %d wait", seed, n)
				}
			}
			checkQuiet(t, seed, limiters)
		})
	}
}

// stormOne asks once, and may be canceled meanwhile.
func stormOne(t *testing.T, r *rand.Rand, p *throttle.Pool, limiters []*throttle.Limiter) {
	events := new(told)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), toldKey{}, events))
	defer cancel()
	switch r.IntN(4) {
	case 0:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(20))*100*time.Millisecond)
		defer cancel()
	case 1: // at an instant at which windows open
		defer time.AfterFunc(time.Until(time.Now().Truncate(100*time.Millisecond).Add(time.Duration(1+r.IntN(20))*100*time.Millisecond)), cancel).Stop()
	}
	if r.IntN(3) == 0 {
		ctx = throttle.WithStickyKey(ctx, fmt.Sprint(r.IntN(5)))
	}
	ctx = throttle.WithClass(ctx, []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}[r.IntN(3)])
	admit, direct := p.Acquire, false
	switch r.IntN(6) {
	case 0:
		direct, admit = true, limiters[r.IntN(len(limiters))].Acquire
	case 1:
		admit = p.TryAcquire
	}
	permit, err := admit(ctx, throttle.Cost{"requests": 1 + r.Int64N(3)})
	want := told{queued: min(events.queued, 1), admitted: 1}
	if err != nil {
		want.admitted, want.refused = 0, 1
	}
	if !direct && *events != want {
		t.Errorf("an observer is told %+v of a request that ended with %v", *events, err)
	}
	var refused *throttle.WaitError
	switch {
	case err == nil && r.IntN(4) == 0:
		_ = permit.Cancel(ctx)
	case err == nil:
		time.Sleep(time.Duration(r.IntN(3)) * 10 * time.Millisecond)
		permit.Arrived()
		permit.Release()
	case !errors.As(err, &refused) && ctx.Err() == nil:
		t.Error(err)
	}
}

// stormChanges changes members while callers wait.
func stormChanges(t *testing.T, p *throttle.Pool, members []throttle.Member) {
	for i := range 20 {
		time.Sleep(100 * time.Millisecond)
		m := members[i%len(members)]
		switch i % 4 {
		case 0:
			_ = m.Limiter.Pause(t.Context(), 150*time.Millisecond)
		case 1:
			_ = m.Limiter.Resume(t.Context())
		case 2:
			p.Remove(m.Name)
		default:
			_ = p.Add(members[(i-1)%len(members)])
		}
	}
}

// checkQuiet checks that members on which nobody waits, and in which nothing is in flight, have all their room.
func checkQuiet(t *testing.T, seed uint64, limiters []*throttle.Limiter) {
	time.Sleep(time.Minute)
	for _, l := range limiters {
		s, err := l.Status(t.Context())
		if err != nil || s.Waiting != 0 {
			t.Errorf("seed %d: %d wait, %v", seed, s.Waiting, err)
		}
		for _, tier := range s.Tiers {
			if tier.Remaining != tier.Tier.Limit || strings.Contains(tier.String(), "in flight") {
				t.Errorf("seed %d: %v", seed, tier)
			}
		}
	}
}
