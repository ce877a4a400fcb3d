package host_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// What responses have taught survives a restart and a day in which other quotas come, and is forgotten after a month.
func TestTaughtQuotaSurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := file(t)
		p := plan(t, 50*ms,
			throttle.Tier{Limit: 10, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 1000}},
			throttle.Tier{Limit: 5000, Window: hour, Unit: "calls", Follow: throttle.Follow{Most: 15_000}},
		)
		s := openFile(t, path)
		q, err := s.Open("taught", p, nil)
		if err != nil {
			t.Fatal(err)
		}
		d, err := q.TryAcquire(background, store.Request{Cost: []int64{1, 1}, Held: true})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * ms)
		if _, err := q.Pause(background, store.Pause{For: time.Second, Refused: &store.Refused{At: d.At, Cost: []int64{1, 0}}}); err != nil {
			t.Fatal(err)
		}
		if err := q.(store.Lifecycle).Change(background, p.Following(algorithms.Followed{At: d.At, Limits: []int64{0, 1000}})); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // until the others can learn of it
		restart := func(after time.Duration) store.Status {
			t.Helper()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after)
			s = openFile(t, path)
			for i := range 60 { // each drops up to two quotas that are idle
				q, err := s.Open(fmt.Sprint(after, i), plan(t, 0, throttle.PerSecond(1)), nil)
				if err == nil {
					_, err = q.TryAcquire(background, store.Request{Cost: []int64{1}})
				}
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
			}
			q, err := s.Open("taught", p, nil)
			if err != nil {
				t.Fatal(err)
			}
			status, err := q.Status(background)
			if err != nil {
				t.Fatal(err)
			}
			return status
		}
		status := restart(24 * time.Hour)
		if l := status.Tiers[0].Learned; l.Rate >= 9 || l.Refused < 9 || status.Tiers[1].Limit != 1000 {
			t.Errorf("after a day the quota knows %+v and limit %d", l, status.Tiers[1].Limit)
		}
		status = restart(31 * 24 * time.Hour)
		if l := status.Tiers[0].Learned; l.Rate != 10 || l.Refused != 0 || status.Tiers[1].Limit != 5000 {
			t.Errorf("after a month the quota knows %+v and limit %d", l, status.Tiers[1].Limit)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
