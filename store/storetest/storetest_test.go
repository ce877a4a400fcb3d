package storetest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/storetest"
)

// far is a store behind a slow line, with no optional interface. Calls that return nothing are
// on their way for a while after they have returned.
type far struct{ local.Store }

const trip = 5 * time.Millisecond

func (s *far) Open(key string, p *algorithms.Plan) (store.Quota, error) {
	q, err := s.Store.Open(key, p)
	if err != nil {
		return nil, err
	}
	return farQuota{q}, nil
}

type farQuota struct{ store.Quota }

func (q farQuota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	time.Sleep(trip)
	d, err := q.Quota.TryAcquire(ctx, r)
	time.Sleep(trip)
	return d, err
}

func (q farQuota) Arrived(d store.Decision, cost []int64) {
	time.AfterFunc(trip, func() { q.Quota.Arrived(d, cost) })
}

func (q farQuota) Unanswered(d store.Decision, cost []int64) {
	time.AfterFunc(trip, func() { q.Quota.Unanswered(d, cost) })
}

func (q farQuota) Release(d store.Decision, cost []int64) {
	time.AfterFunc(trip, func() { q.Quota.Release(d, cost) })
}

func (q farQuota) Pause(ctx context.Context, p store.Pause) (store.Paused, error) {
	time.Sleep(trip)
	return q.Quota.Pause(ctx, p)
}

// A small store of somebody else's passes.
func TestFar(t *testing.T) {
	storetest.Run(t, storetest.Config{Open: func(testing.TB) store.Store { return new(far) }, Lag: 4 * trip})
}

// whole is all that a quota of package local is.
type whole interface {
	store.Quota
	store.Changer
	store.Forecaster
	store.Observer
	store.Idler
	store.Learner
}

// faulty is a store that makes its quotas with a fault.
type faulty struct {
	local.Store
	plant func(q whole) store.Quota
	key   func(key string) string
}

func (s *faulty) Open(key string, p *algorithms.Plan) (store.Quota, error) {
	if s.key != nil {
		key = s.key(key)
	}
	q, err := s.Store.Open(key, p)
	if err != nil || s.plant == nil {
		return q, err
	}
	return s.plant(q.(whole)), nil
}

// A fault is a quota that overrides some methods.
type fault struct {
	whole
	try        func(q whole, r store.Request) store.Decision
	pause      func(q whole, p store.Pause) store.Paused
	resume     func(q whole)
	passed     func(q whole, d store.Decision)
	arrived    func(q whole, d store.Decision, cost []int64)
	unanswered func(q whole, d store.Decision, cost []int64)
	release    func(q whole, d store.Decision, cost []int64)
	giveBack   func(q whole, d store.Decision, cost []int64)
	settle     func(q whole, d store.Decision, cost, actual []int64)
	watch      func(q whole, changed func(store.Change, time.Duration)) func()
	successor  func(q whole) (store.Quota, *algorithms.Plan)
	forecast   func(q whole) store.Forecast
	observe    func(q whole, d store.Decision, cost []int64, seen []store.Observation)
	idle       func(q whole) bool
}

func (f *fault) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	if f.try == nil {
		return f.whole.TryAcquire(ctx, r)
	}
	return f.try(f.whole, r), nil
}

func (f *fault) Pause(ctx context.Context, p store.Pause) (store.Paused, error) {
	if f.pause == nil {
		return f.whole.Pause(ctx, p)
	}
	return f.pause(f.whole, p), nil
}

func (f *fault) Passed(d store.Decision) {
	if f.passed == nil {
		f.whole.Passed(d)
	} else {
		f.passed(f.whole, d)
	}
}

func (f *fault) Resume(ctx context.Context) error {
	if f.resume == nil {
		return f.whole.Resume(ctx)
	}
	f.resume(f.whole)
	return nil
}

func (f *fault) Arrived(d store.Decision, cost []int64) {
	override(f.arrived, whole.Arrived)(f.whole, d, cost)
}

func (f *fault) Unanswered(d store.Decision, cost []int64) {
	override(f.unanswered, whole.Unanswered)(f.whole, d, cost)
}

func (f *fault) Release(d store.Decision, cost []int64) {
	override(f.release, whole.Release)(f.whole, d, cost)
}

func override(f, otherwise func(whole, store.Decision, []int64)) func(whole, store.Decision, []int64) {
	if f == nil {
		return otherwise
	}
	return f
}

func (f *fault) Return(_ context.Context, d store.Decision, cost []int64) error {
	override(f.giveBack, giveBack)(f.whole, d, cost)
	return nil
}

func (f *fault) Settle(d store.Decision, cost, actual []int64, crossed func([]algorithms.Crossing)) {
	if f.settle == nil {
		f.whole.Settle(d, cost, actual, crossed)
	} else {
		f.settle(f.whole, d, cost, actual)
	}
}

func (f *fault) Watch(changed func(store.Change, time.Duration)) func() {
	if f.watch == nil {
		return f.whole.Watch(changed)
	}
	return f.watch(f.whole, changed)
}

func (f *fault) Successor() (store.Quota, *algorithms.Plan) {
	successor := whole.Successor
	if f.successor != nil {
		successor = f.successor
	}
	q, p := successor(f.whole)
	if q == store.Quota(f.whole) {
		return f, p
	}
	return q, p
}

func (f *fault) Forecast() store.Forecast {
	if f.forecast == nil {
		return f.whole.Forecast()
	}
	return f.forecast(f.whole)
}

func (f *fault) Observe(d store.Decision, cost []int64, seen []store.Observation) {
	if f.observe == nil {
		f.whole.Observe(d, cost, seen)
	} else {
		f.observe(f.whole, d, cost, seen)
	}
}

func (f *fault) Idle() bool {
	if f.idle == nil {
		return f.whole.Idle()
	}
	return f.idle(f.whole)
}

var background = context.Background()

func try(q whole, r store.Request) store.Decision {
	d, _ := q.TryAcquire(background, r)
	return d
}

func giveBack(q whole, d store.Decision, cost []int64) { _ = q.Return(background, d, cost) }

func pause(q whole, p store.Pause) store.Paused {
	done, _ := q.Pause(background, p)
	return done
}

func ignore(whole, store.Decision, []int64) {}

// lateForecast is later than what happens.
type lateForecast struct{ store.Forecast }

func (f lateForecast) Next(r store.Request) (time.Duration, int) {
	at, tier := f.Forecast.Next(r)
	return at + time.Hour, tier
}

// largeBound bounds by more than what happens.
type largeBound struct{ store.Forecast }

func (f largeBound) Total(ahead, cost []int64, headroom int64) (time.Duration, int) {
	at, tier := f.Forecast.Total(ahead, cost, headroom)
	return at + time.Hour, tier
}

// Each planted fault fails the parts that are about it, by name, and no other.
func TestFaults(t *testing.T) {
	for name, f := range map[string]struct {
		breaks string // the parts, apart by spaces
		fault  fault
	}{
		"a refusal charges one tier": {"Refusal Settle", fault{try: func(q whole, r store.Request) store.Decision {
			d := try(q, r)
			if d.Verdict == store.Later && len(r.Cost) > 1 {
				some := make([]int64, len(r.Cost))
				some[0] = r.Cost[0]
				try(q, store.Request{Cost: some, Held: true})
			}
			return d
		}}},
		"a dry run charges": {"DryRun Headroom", fault{try: func(q whole, r store.Request) store.Decision {
			dry := r.IsDryRun()
			if dry {
				r.WaitSpec = nil
			}
			d := try(q, r)
			if dry && d.Verdict == store.Admitted {
				d.Verdict = store.Ready
			}
			return d
		}}},
		"headroom is ignored": {"Headroom", fault{try: func(q whole, r store.Request) store.Decision {
			if r.Leaves() > 0 {
				r.WaitSpec = nil
			}
			return try(q, r)
		}}},
		"a budget keeps callers waiting": {"Budget", fault{try: func(q whole, r store.Request) store.Decision {
			d := try(q, r)
			if d.Verdict == store.Exhausted {
				d.Verdict = store.Later
			}
			return d
		}}},
		"a response lands nothing":   {"Arrived", fault{arrived: func(q whole, d store.Decision, cost []int64) { q.Arrived(d, make([]int64, len(cost))) }}},
		"an error lands the request": {"Unanswered ProbeHandedOn SettleUnanswered", fault{unanswered: whole.Arrived}},
		"a request is returned twice": {"Return Release", fault{giveBack: func(q whole, d store.Decision, cost []int64) {
			giveBack(q, d, cost)
			if cost[0] > 1 { // with one, what happens to Concurrent would depend on the scheduling
				giveBack(q, d, cost)
			}
		}}},
		"nothing is returned": {"Return ReturnLate Release Idle WakeReturned", fault{giveBack: func(q whole, d store.Decision, cost []int64) {
			if cost[0] == 1 {
				giveBack(q, d, cost)
			}
		}}},
		"permits are not released":         {"Release WakeReleased Idle ChangeInUse", fault{release: ignore}},
		"a settlement counts the estimate": {"Settle", fault{settle: func(q whole, d store.Decision, cost, _ []int64) { q.Settle(d, cost, cost, nil) }}},
		"a shorter pause shortens": {"PauseLongest", fault{pause: func(q whole, p store.Pause) store.Paused {
			if s, _ := q.Status(background); s.Paused > 0 && p.For > 0 && !p.Close && !p.Once && p.Most == 0 {
				_ = q.Resume(background)
			}
			return pause(q, p)
		}}},
		"a longer pause ends a ban": {"Ban Resume", fault{pause: func(q whole, p store.Pause) store.Paused {
			if s, _ := q.Status(background); s.Closed > 0 && p.For > s.Closed && !p.Close {
				_ = q.Resume(background)
			}
			return pause(q, p)
		}}},
		"no back-off is longer": {"BackOff", fault{pause: func(q whole, p store.Pause) store.Paused {
			p.For, p.Most = p.Length(0), 0
			return pause(q, p)
		}}},
		"no request passes": {"BackOff", fault{passed: func(whole, store.Decision) {}}},
		"one event pauses twice": {"Once", fault{pause: func(q whole, p store.Pause) store.Paused {
			p.Once = false
			return pause(q, p)
		}}},
		"all go after a pause": {"BackOff Probe ProbeOnce ProbeHandedOn ProbeUnheld ProbeSilent ProbeOvertaken Resume", fault{pause: func(q whole, p store.Pause) store.Paused {
			p.Probe = false
			return pause(q, p)
		}}},
		"a pause does not end": {"BackOff Resume ChangePaused Watch", fault{resume: func(whole) {}}},
		"watchers are not called": {"Watch WakeReturned WakeReleased Resume Change", fault{watch: func(whole, func(store.Change, time.Duration)) func() {
			return func() {}
		}}},
		"watchers do not stop": {"Watch", fault{watch: func(q whole, changed func(store.Change, time.Duration)) func() {
			q.Watch(changed)
			return func() {}
		}}},
		"a change of the plan forgets": {"Change ChangePaused ChangeInUse", fault{successor: func(q whole) (store.Quota, *algorithms.Plan) {
			next, p := q.Successor()
			if next != store.Quota(q) {
				next, _ = local.New().Open("", p)
			}
			return next, p
		}}},
		"an old plan goes on": {"Change", fault{try: func(q whole, r store.Request) store.Decision {
			d := try(q, r)
			if d.Verdict == store.Moved {
				next, _ := q.Successor()
				return try(next.(whole), r)
			}
			return d
		}}},
		"a forecast is too late": {"Forecast ForecastFrees", fault{forecast: func(q whole) store.Forecast { return lateForecast{q.Forecast()} }}},
		"a bound is too large":   {"Forecast", fault{forecast: func(q whole) store.Forecast { return largeBound{q.Forecast()} }}},
		"reports are ignored":    {"Observe", fault{observe: func(whole, store.Decision, []int64, []store.Observation) {}}},
		"every report is exact": {"Observe", fault{observe: func(q whole, d store.Decision, cost []int64, seen []store.Observation) {
			seen[0].Exact = true
			q.Observe(d, cost, seen)
		}}},
		"all quotas are idle": {"Idle", fault{idle: func(whole) bool { return true }}},
		"no quota is idle":    {"Idle", fault{idle: func(whole) bool { return false }}},
	} {
		t.Run(name, func(t *testing.T) {
			plant := func(q whole) store.Quota {
				planted := f.fault
				planted.whole = q
				return &planted
			}
			run(t, &faulty{plant: plant}, f.breaks)
		})
	}
	t.Run("keys are not shared", func(t *testing.T) {
		run(t, &faulty{key: func(string) string { return "" }},
			"Open Pause Probe Resume Change Close Concurrent")
	})
}

// run runs the suite on copies of a store that breaks some parts.
func run(t *testing.T, s *faulty, breaks string) {
	c := storetest.Config{
		Open:   func(testing.TB) store.Store { return &faulty{plant: s.plant, key: s.key} },
		Breaks: make(map[string]string),
	}
	for _, part := range strings.Fields(breaks) {
		c.Breaks[part] = "a fault is planted"
	}
	storetest.Run(t, c)
}

const child = "THROTTLE_STORETEST_CHILD"

// A part that is broken fails the suite by name, and so does one that is not broken any more.
func TestFails(t *testing.T) {
	if os.Getenv(child) != "" {
		run(t, &faulty{key: func(string) string { return "" }}, "Pause Probe Resume Change Close Concurrent Once")
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFails$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("the suite has passed:\n%s", out)
	}
	for _, want := range []string{"--- FAIL: TestFails/Open ", "--- FAIL: TestFails/Once ", "remove it from Breaks"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the suite does not print %q:\n%s", want, out)
		}
	}
	if n := strings.Count(string(out), "--- FAIL: TestFails/"); n != 2 {
		t.Errorf("%d parts have failed, want two:\n%s", n, out)
	}
}
