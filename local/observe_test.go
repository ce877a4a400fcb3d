package local_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
)

// Reports of a provider that counts as the caller does cost nothing, however many requests
// are in flight.
func TestTruthCostsNothing(t *testing.T) {
	for _, n := range []int{1, 10, 50, 100} {
		for _, jitter := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d workers, jitter %v", n, jitter), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					q := open(t, local.New(), "", plan(t, 50*ms, algorithms.PerMinute(100)))
					p := &api{limit: 100, window: time.Minute}
					crew{quota: q, api: p, jitter: jitter, until: time.Now().Add(20 * time.Minute)}.send(n)
					if len(p.accepted) < 1980 || p.refused > 0 {
						t.Errorf("%d sent and %d refused, want 1,980 of 2,000 and none", len(p.accepted), p.refused)
					}
				})
			})
		}
	}
}

// Where another program uses 30 % of a quota steadily, nearly all of the rest is used. As
// soon as reports cover whole windows, hardly anything is refused of requests that go evenly,
// and nothing if they take the same time. Of bursts no more are refused than requests of
// others have come unheard of.
func TestSharedWithOthers(t *testing.T) {
	for _, n := range []int{1, 10, 50, 100} {
		for _, spread := range []int64{0, 1} {
			for _, jitter := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d workers, spread %d, jitter %v", n, spread, jitter), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { shareWithOthers(t, n, spread, jitter) })
				})
			}
		}
	}
}

func shareWithOthers(t *testing.T, n int, spread int64, jitter bool) {
	tier := algorithms.PerMinute(100)
	tier.Spread = spread
	q := open(t, local.New(), "", plan(t, 50*ms, tier))
	p := &api{limit: 100, window: time.Minute}
	until := time.Now().Add(24 * time.Minute)
	var wg sync.WaitGroup
	wg.Go(func() { crew{quota: q, api: p, jitter: jitter, until: until}.send(n) })
	wg.Go(func() {
		for time.Now().Before(until) {
			p.other(1)
			time.Sleep(2 * time.Second)
		}
	})
	time.Sleep(4 * time.Minute)
	began, refusedBefore, unheardBefore := p.read()
	wg.Wait()
	accepted, refused, unheard := p.read()
	accepted, refused, unheard = accepted-began, refused-refusedBefore, unheard-unheardBefore
	if accepted < 1358 {
		t.Errorf("%d accepted, want 97 %% of 1,400", accepted)
	}
	most := unheard
	if spread > 0 {
		most = 0
	}
	if spread > 0 && jitter {
		most = 4
	}
	if refused > most {
		t.Errorf("%d refused, with %d others unheard of", refused, unheard)
	}
}
