package host_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A change of the plan keeps the charges. It applies to all quotas of the key in this process, and
// to none in another process.
func TestChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		perMinute := func(limit int64) *algorithms.Plan {
			return plan(t, 50*ms, throttle.Tier{Limit: limit, Window: time.Minute}, throttle.Tier{Limit: 1000, Window: time.Minute, Unit: "tokens"})
		}
		s := openFile(t, file(t))
		here, beside, there := open(t, s, perMinute(10)), open(t, s, perMinute(10)), open(t, openFile(t, s.Path()), perMinute(10))
		take := func(q store.Quota) store.Decision {
			t.Helper()
			b, err := q.TryAcquire(background, store.Request{Cost: []int64{1, 100}, Held: true})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		inFlight := take(here)
		for range 7 {
			take(beside)
		}
		var received []store.Change
		defer beside.Watch(func(c store.Change, _ time.Duration) { received = append(received, c) })()
		smaller := plan(t, 50*ms, throttle.Tier{Limit: 900, Window: time.Minute, Unit: "tokens"}, throttle.Tier{Limit: 9, Window: time.Minute})
		if err := here.(store.Lifecycle).Change(background, smaller); err != nil {
			t.Fatal(err)
		}
		if len(received) != 1 || received[0] != store.Replanned {
			t.Errorf("watchers received %v, want Replanned", received)
		}
		for _, q := range []store.Quota{here, beside} {
			if b := take(q); b.Verdict != store.Moved {
				t.Errorf("%+v of a quota with a successor, want Moved", b)
			}
			next, newest := q.(store.Lifecycle).Successor()
			if newest != smaller {
				t.Error("the successor does not have the new plan")
			}
			status, err := next.Status(background)
			if err != nil || status.Tiers[0].Used != 800 || status.Tiers[1].Used != 8 {
				t.Errorf("%+v, %v", status, err)
			}
		}
		here.Arrived(inFlight, []int64{1, 100}) // the request lands with its guard
		next, _ := beside.(store.Lifecycle).Successor()
		if b, err := next.TryAcquire(background, store.Request{Cost: []int64{100, 1}}); err != nil || b.Verdict != store.Admitted {
			t.Errorf("%+v, %v", b, err)
		}
		if b, err := next.TryAcquire(background, store.Request{Cost: []int64{0, 1}}); err != nil || b.Verdict != store.Later || b.Tier != 1 {
			t.Errorf("%+v, %v", b, err)
		}
		if b := take(there); b.Verdict != store.Admitted {
			t.Errorf("%+v in another process with the larger limit, want Admitted", b)
		}
		next.Close()
		here.Close()
	})
}

// The response to a probe takes effect at once for all quotas of the key in this process, and in
// other processes when they ask. Without a response the next request probes.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := openFile(t, file(t)), plan(t, 0, throttle.PerSecond(50))
		here, beside, there := open(t, s, p), open(t, s, p), open(t, openFile(t, s.Path()), p)
		take := func(q store.Quota, want store.Verdict, probe bool) store.Decision {
			t.Helper()
			b, err := q.TryAcquire(background, store.Request{Cost: one, Held: true})
			if err != nil || b.Verdict != want || b.Probe != probe {
				t.Fatalf("%+v, %v, want %v", b, err, want)
			}
			return b
		}
		if _, err := here.Pause(background, store.Pause{For: sec, Probe: true}); err != nil {
			t.Fatal(err)
		}
		take(here, store.Later, false)
		time.Sleep(sec)
		first := take(here, store.Admitted, true)
		take(beside, store.Later, false)
		take(there, store.Later, false)
		here.Unanswered(first, one)
		second := take(beside, store.Admitted, true)
		take(here, store.Later, false)
		_ = beside.Return(background, second, one)
		third := take(there, store.Admitted, true)
		take(here, store.Later, false)
		there.Arrived(third, one)
		take(there, store.Admitted, false)
		take(here, store.Admitted, false)
	})
}

// Resume ends a pause or a ban for other processes too, and their waiting callers go on.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openFile(t, file(t))
		q, there := open(t, s, plan(t, 50*ms, throttle.PerSecond(5))), openFile(t, s.Path())
		here, other := limiter(t, policy(throttle.PerSecond(5)), s), limiter(t, policy(throttle.PerSecond(5)), there)
		for _, pause := range []store.Pause{{For: time.Hour, Probe: true}, {For: time.Hour, Close: true}, {For: 1<<63 - 1}} {
			time.Sleep(time.Minute)
			if done, err := q.Pause(background, pause); err != nil || !done.Applied {
				t.Fatal(done, err)
			}
			waits := make(chan error)
			for _, l := range []*throttle.Limiter{here, other} {
				go func() { waits <- l.Wait(background) }()
			}
			time.Sleep(time.Minute)
			if err := q.Resume(background); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for range 2 {
				if err := <-waits; (err != nil) != pause.Close {
					t.Error(err)
				}
			}
			if !here.Allow() || !other.Allow() || time.Since(began) > 500*ms {
				t.Errorf("after %v: %+v", time.Since(began), pause)
			}
		}
	})
}
