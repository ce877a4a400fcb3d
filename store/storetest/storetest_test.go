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

// farStore is a store behind a slow connection, without optional interfaces. Calls that return
// nothing take effect some time after they have returned.
type farStore struct{ local.Store }

const trip = 5 * time.Millisecond

func (s *farStore) Open(key string, p *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, p, report)
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

// A minimal store from outside of this module passes.
func TestFar(t *testing.T) {
	storetest.Run(t, storetest.Config{Open: func(testing.TB) store.Store { return new(farStore) }, Lag: 4 * trip})
}

// localQuota has all methods of a quota of package local.
type localQuota interface {
	store.Quota
	store.Lifecycle
	store.Feedback
}

// faulty is a store whose quotas have a planted fault.
type faulty struct {
	local.Store
	plant func(q localQuota) store.Quota
	key   func(key string) string
}

func (s *faulty) Open(key string, p *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	if s.key != nil {
		key = s.key(key)
	}
	q, err := s.Store.Open(key, p, report)
	if err != nil || s.plant == nil {
		return q, err
	}
	return s.plant(q.(localQuota)), nil
}

// A fault is a quota with some methods replaced.
type fault struct {
	localQuota
	soonest    time.Duration
	try        func(q localQuota, r store.Request) store.Decision
	pause      func(q localQuota, p store.Pause) store.Paused
	resume     func(q localQuota)
	passed     func(q localQuota, d store.Decision)
	arrived    func(q localQuota, d store.Decision, cost []int64)
	unanswered func(q localQuota, d store.Decision, cost []int64)
	release    func(q localQuota, d store.Decision, cost []int64)
	giveBack   func(q localQuota, d store.Decision, cost []int64)
	settle     func(q localQuota, d store.Decision, cost, actual []int64)
	watch      func(q localQuota, changed func(store.Change, time.Duration)) func()
	successor  func(q localQuota) (store.Quota, *algorithms.Plan)
	forecast   func(q localQuota) store.Forecast
	observe    func(q localQuota, d store.Decision, cost []int64, seen []store.Observation)
	idle       func(q localQuota) bool
	forget     func(q localQuota) error
}

func (f *fault) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	if f.try == nil {
		return f.localQuota.TryAcquire(ctx, r)
	}
	return f.try(f.localQuota, r), nil
}

func (f *fault) Pause(ctx context.Context, p store.Pause) (store.Paused, error) {
	if f.pause == nil {
		return f.localQuota.Pause(ctx, p)
	}
	return f.pause(f.localQuota, p), nil
}

func (f *fault) Passed(d store.Decision) {
	if f.passed == nil {
		f.localQuota.Passed(d)
	} else {
		f.passed(f.localQuota, d)
	}
}

func (f *fault) Resume(ctx context.Context) error {
	if f.resume == nil {
		return f.localQuota.Resume(ctx)
	}
	f.resume(f.localQuota)
	return nil
}

func (f *fault) Arrived(d store.Decision, cost []int64) {
	override(f.arrived, localQuota.Arrived)(f.localQuota, d, cost)
}

func (f *fault) Unanswered(d store.Decision, cost []int64) {
	override(f.unanswered, localQuota.Unanswered)(f.localQuota, d, cost)
}

func (f *fault) Release(d store.Decision, cost []int64) {
	override(f.release, localQuota.Release)(f.localQuota, d, cost)
}

func override(f, otherwise func(localQuota, store.Decision, []int64)) func(localQuota, store.Decision, []int64) {
	if f == nil {
		return otherwise
	}
	return f
}

func (f *fault) Return(_ context.Context, d store.Decision, cost []int64) error {
	override(f.giveBack, giveBack)(f.localQuota, d, cost)
	return nil
}

func (f *fault) Settle(d store.Decision, cost, actual []int64, crossed func([]algorithms.Crossing)) {
	if f.settle == nil {
		f.localQuota.Settle(d, cost, actual, crossed)
	} else {
		f.settle(f.localQuota, d, cost, actual)
	}
}

func (f *fault) Watch(changed func(store.Change, time.Duration)) func() {
	if f.watch == nil {
		return f.localQuota.Watch(changed)
	}
	return f.watch(f.localQuota, changed)
}

func (f *fault) Successor() (store.Quota, *algorithms.Plan) {
	successor := localQuota.Successor
	if f.successor != nil {
		successor = f.successor
	}
	q, p := successor(f.localQuota)
	if q == store.Quota(f.localQuota) {
		return f, p
	}
	return q, p
}

func (f *fault) Soonest(cost []int64, headroom int64) (time.Duration, int) {
	at, tier := f.localQuota.Soonest(cost, headroom)
	return at + f.soonest, tier
}

func (f *fault) Forecast() store.Forecast {
	if f.forecast == nil {
		return f.localQuota.Forecast()
	}
	return f.forecast(f.localQuota)
}

func (f *fault) Observe(d store.Decision, cost []int64, seen []store.Observation) {
	if f.observe == nil {
		f.localQuota.Observe(d, cost, seen)
	} else {
		f.observe(f.localQuota, d, cost, seen)
	}
}

func (f *fault) Idle() bool {
	if f.idle == nil {
		return f.localQuota.Idle()
	}
	return f.idle(f.localQuota)
}

func (f *fault) Forget(ctx context.Context) error {
	if f.forget == nil {
		return f.localQuota.Forget(ctx)
	}
	return f.forget(f.localQuota)
}

var background = context.Background()

func try(q localQuota, r store.Request) store.Decision {
	d, _ := q.TryAcquire(background, r)
	return d
}

func giveBack(q localQuota, d store.Decision, cost []int64) { _ = q.Return(background, d, cost) }

func pause(q localQuota, p store.Pause) store.Paused {
	done, _ := q.Pause(background, p)
	return done
}

func ignore(localQuota, store.Decision, []int64) {}

// lateForecast is later than the admission.
type lateForecast struct{ store.Forecast }

func (f lateForecast) Next(r store.Request) (time.Duration, int) {
	at, tier := f.Forecast.Next(r)
	return at + time.Hour, tier
}

// lateBound returns bounds that are later than the admission.
type lateBound struct{ store.Forecast }

func (f lateBound) Total(ahead, cost []int64, headroom int64) (time.Duration, int) {
	at, tier := f.Forecast.Total(ahead, cost, headroom)
	return at + time.Hour, tier
}

// Each planted fault fails the named parts of the suite and no other.
func TestFaults(t *testing.T) {
	for name, f := range map[string]struct {
		// breaks names the parts, separated by spaces.
		breaks string
		fault  fault
	}{
		"a refusal charges one tier": {"Refusal Settle", fault{try: func(q localQuota, r store.Request) store.Decision {
			d := try(q, r)
			if d.Verdict == store.Later && len(r.Cost) > 1 {
				some := make([]int64, len(r.Cost))
				some[0] = r.Cost[0]
				try(q, store.Request{Cost: some, Held: true})
			}
			return d
		}}},
		"a dry run charges": {"DryRun Headroom", fault{try: func(q localQuota, r store.Request) store.Decision {
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
		"headroom is ignored": {"Headroom", fault{try: func(q localQuota, r store.Request) store.Decision {
			if r.Leaves() > 0 {
				r.WaitSpec = nil
			}
			return try(q, r)
		}}},
		"a budget keeps callers waiting": {"Budget", fault{try: func(q localQuota, r store.Request) store.Decision {
			d := try(q, r)
			if d.Verdict == store.Exhausted {
				d.Verdict = store.Later
			}
			return d
		}}},
		"a response does not land the request": {"Arrived Follow", fault{arrived: func(q localQuota, d store.Decision, cost []int64) { q.Arrived(d, make([]int64, len(cost))) }}},
		"an error lands the request":           {"Unanswered ProbeHandedOn SettleUnanswered", fault{unanswered: localQuota.Arrived}},
		"a request is returned twice": {"Return Release", fault{giveBack: func(q localQuota, d store.Decision, cost []int64) {
			giveBack(q, d, cost)
			if cost[0] > 1 { // with a cost of 1 the result of Concurrent would depend on scheduling
				giveBack(q, d, cost)
			}
		}}},
		"requests are not returned": {"Return ReturnLate Release Idle WakeReturned", fault{giveBack: func(q localQuota, d store.Decision, cost []int64) {
			if cost[0] == 1 {
				giveBack(q, d, cost)
			}
		}}},
		"permits are not released":        {"Release WakeReleased Idle ChangeInUse", fault{release: ignore}},
		"a settlement keeps the estimate": {"Settle", fault{settle: func(q localQuota, d store.Decision, cost, _ []int64) { q.Settle(d, cost, cost, nil) }}},
		"a shorter pause replaces a longer one": {"PauseLongest", fault{pause: func(q localQuota, p store.Pause) store.Paused {
			if s, _ := q.Status(background); s.Paused > 0 && p.For > 0 && !p.Close && !p.Once && p.Most == 0 {
				_ = q.Resume(background)
			}
			return pause(q, p)
		}}},
		"a longer pause ends a ban": {"Ban Resume", fault{pause: func(q localQuota, p store.Pause) store.Paused {
			if s, _ := q.Status(background); s.Closed > 0 && p.For > s.Closed && !p.Close {
				_ = q.Resume(background)
			}
			return pause(q, p)
		}}},
		"all back-offs have the same length": {"BackOff Refused Tolerated", fault{pause: func(q localQuota, p store.Pause) store.Paused {
			p.For, p.Most = p.Length(0), 0
			return pause(q, p)
		}}},
		"Passed is ignored": {"BackOff", fault{passed: func(localQuota, store.Decision) {}}},
		"one event pauses twice": {"Once", fault{pause: func(q localQuota, p store.Pause) store.Paused {
			p.Once = false
			return pause(q, p)
		}}},
		"a pause ends without a probe": {"BackOff Probe ProbeOnce ProbeHandedOn ProbeUnheld ProbeSilent ProbeOvertaken Resume", fault{pause: func(q localQuota, p store.Pause) store.Paused {
			p.Probe = false
			return pause(q, p)
		}}},
		"Resume is ignored": {"BackOff Refused Resume ChangePaused Watch", fault{resume: func(localQuota) {}}},
		"watchers are not called": {"Watch WakeReturned WakeReleased Resume Change Follow", fault{watch: func(localQuota, func(store.Change, time.Duration)) func() {
			return func() {}
		}}},
		"watchers do not stop": {"Watch", fault{watch: func(q localQuota, changed func(store.Change, time.Duration)) func() {
			q.Watch(changed)
			return func() {}
		}}},
		"a change of the plan forgets the charges": {"Change ChangePaused ChangeInUse ChangeEstimates Follow", fault{successor: func(q localQuota) (store.Quota, *algorithms.Plan) {
			next, p := q.Successor()
			if next != store.Quota(q) {
				next, _ = local.New().Open("", p, nil)
			}
			return next, p
		}}},
		"an earlier request takes from estimates": {"ChangeEstimates", fault{unanswered: func(q localQuota, d store.Decision, cost []int64) {
			if next, _ := q.Successor(); next != store.Quota(q) {
				next.Settle(d, cost, cost, nil)
				return
			}
			q.Unanswered(d, cost)
		}}},
		"a quota with a successor still decides": {"Change Follow", fault{try: func(q localQuota, r store.Request) store.Decision {
			d := try(q, r)
			if d.Verdict == store.Moved {
				next, _ := q.Successor()
				return try(next.(localQuota), r)
			}
			return d
		}}},
		"a forecast is too late": {"Forecast ForecastFrees", fault{forecast: func(q localQuota) store.Forecast { return lateForecast{q.Forecast()} }}},
		"Soonest is too late":    {"Forecast", fault{soonest: time.Hour}},
		"a bound is too late":    {"Forecast", fault{forecast: func(q localQuota) store.Forecast { return lateBound{q.Forecast()} }}},
		"reports are ignored":    {"Observe", fault{observe: func(localQuota, store.Decision, []int64, []store.Observation) {}}},
		"every report is exact": {"Observe", fault{observe: func(q localQuota, d store.Decision, cost []int64, seen []store.Observation) {
			seen[0].Exact = true
			q.Observe(d, cost, seen)
		}}},
		"refusals teach nothing": {"Refused Tolerated Forget", fault{pause: func(q localQuota, p store.Pause) store.Paused {
			p.Refused = nil
			return pause(q, p)
		}}},
		"a refusal teaches all units": {"Refused", fault{pause: func(q localQuota, p store.Pause) store.Paused {
			if p.Refused != nil {
				p.Refused.Cost[0] = 1
			}
			return pause(q, p)
		}}},
		"Forget is ignored":   {"Forget", fault{forget: func(localQuota) error { return nil }}},
		"Forget ends a pause": {"Forget", fault{forget: func(q localQuota) error { _ = q.Resume(background); return q.Forget(background) }}},
		"all quotas are idle": {"Idle", fault{idle: func(localQuota) bool { return true }}},
		"no quota is idle":    {"Idle", fault{idle: func(localQuota) bool { return false }}},
	} {
		t.Run(name, func(t *testing.T) {
			plant := func(q localQuota) store.Quota {
				planted := f.fault
				planted.localQuota = q
				return &planted
			}
			run(t, &faulty{plant: plant}, f.breaks)
		})
	}
	t.Run("keys are not shared", func(t *testing.T) {
		run(t, &faulty{key: func(string) string { return "" }},
			"Open Pause Refused Probe Resume Change Close Concurrent Forget Follow")
	})
}

// run runs the suite on a store that fails the parts that breaks names.
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

// The suite fails with the name of a part that fails, and also with the name of a part in Breaks
// that passes.
func TestFails(t *testing.T) {
	if os.Getenv(child) != "" {
		run(t, &faulty{key: func(string) string { return "" }}, "Pause Refused Probe Resume Change Close Concurrent Once Forget Follow")
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFails$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("the suite passed:\n%s", out)
	}
	for _, want := range []string{"--- FAIL: TestFails/Open ", "--- FAIL: TestFails/Once ", "remove it from Breaks"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the suite does not print %q:\n%s", want, out)
		}
	}
	if n := strings.Count(string(out), "--- FAIL: TestFails/"); n != 2 {
		t.Errorf("%d parts failed, want 2:\n%s", n, out)
	}
}
