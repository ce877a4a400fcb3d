package batch_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
	"github.com/apithrottle/throttle/internal/soak"
)

// responds returns a Do that takes a while.
func responds(after time.Duration) func(context.Context, int) (int, error) {
	return func(ctx context.Context, n int) (int, error) {
		select {
		case <-time.After(after):
			return n, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// A timeLeft is a job whose time left is known.
type timeLeft struct {
	items    int
	response time.Duration
	set      func(t *testing.T, job *batch.Job[int, int, int])
	// during is called while the job runs. The time left is compared only after skip.
	during      func(t *testing.T, job *batch.Job[int, int, int])
	skip, every time.Duration
}

func limitedBy(tiers ...throttle.Tier) func(*testing.T, *batch.Job[int, int, int]) {
	return func(t *testing.T, job *batch.Job[int, int, int]) { job.Limiter = newLimiter(t, tiers...) }
}

func pooled(a, b []throttle.Tier) func(*testing.T, *batch.Job[int, int, int]) {
	return func(t *testing.T, job *batch.Job[int, int, int]) {
		p, err := throttle.NewPool(throttle.Member{Name: "a", Limiter: newLimiter(t, a...)}, throttle.Member{Name: "b", Limiter: newLimiter(t, b...)})
		if err != nil {
			t.Fatal(err)
		}
		job.Pool = p
	}
}

var timesLeft = map[string]timeLeft{
	"one tier":          {items: 8_000, response: 100 * time.Millisecond, set: limitedBy(throttle.PerSecond(100))},
	"slow responses":    {items: 20_000, response: 30 * time.Second, set: limitedBy(throttle.PerSecond(100))},
	"second and hour":   {items: 40_000, response: 200 * time.Millisecond, set: limitedBy(throttle.PerSecond(5), throttle.PerHour(10_000)), every: 30 * time.Second},
	"minute, few items": {items: 95, response: 200 * time.Millisecond, set: limitedBy(throttle.PerMinute(10))},
	"bucket":            {items: 12_000, response: 200 * time.Millisecond, set: limitedBy(throttle.Tier{Limit: 10, Window: time.Second, Algorithm: throttle.TokenBucket, Burst: 2_000})},
	"fixed window":      {items: 4_500, response: 200 * time.Millisecond, set: limitedBy(throttle.PerSecond(50), throttle.Tier{Limit: 1_000, Window: time.Minute, Algorithm: throttle.FixedWindow})},
	"anchored window":   {items: 4_500, response: 200 * time.Millisecond, set: limitedBy(throttle.PerSecond(50), throttle.Tier{Limit: 1_000, Window: time.Minute, Algorithm: throttle.AnchoredWindow})},
	"days":              {items: 2_500, response: 200 * time.Millisecond, set: limitedBy(throttle.PerSecond(1), throttle.Tier{Limit: 1_000, Algorithm: throttle.Calendar, Period: 1, Zone: "Europe/Berlin"}), every: time.Hour},
	"concurrency":       {items: 4_500, response: 2 * time.Second, set: limitedBy(throttle.PerSecond(50), throttle.Tier{Limit: 30, Algorithm: throttle.Concurrency})},
	"AtOnce": {items: 20_000, response: 500 * time.Millisecond, set: func(t *testing.T, job *batch.Job[int, int, int]) {
		job.Limiter, job.AtOnce = newLimiter(t, throttle.PerSecond(1_000)), 100
	}},
	"AtOnce and hour": {items: 8_000, response: 2 * time.Second, every: 20 * time.Second, set: func(t *testing.T, job *batch.Job[int, int, int]) {
		job.Limiter, job.AtOnce = newLimiter(t, throttle.PerSecond(10), throttle.PerHour(3_000)), 4
	}},
	"bursts of slow responses": {items: 95, response: 30 * time.Second, set: limitedBy(throttle.PerMinute(10))},
	"others in an hour": {items: 6_000, response: 200 * time.Millisecond, every: 20 * time.Second, set: limitedBy(throttle.PerSecond(2), throttle.PerHour(2_000)),
		during: func(t *testing.T, job *batch.Job[int, int, int]) {
			for job.Limiter.Wait(t.Context()) == nil {
				_, _ = responds(4*time.Second)(t.Context(), 0)
			}
		}},
	"pool": {every: 20 * time.Second, items: 19_000, response: 500 * time.Millisecond, set: pooled(
		[]throttle.Tier{throttle.PerSecond(10), throttle.PerHour(7_000)}, []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(3_000)},
	)},
	"three requests": {items: 3_000, response: 100 * time.Millisecond, set: func(t *testing.T, job *batch.Job[int, int, int]) {
		limitedBy(throttle.PerSecond(40))(t, job)
		do := job.Do
		job.Do = func(ctx context.Context, n int) (int, error) {
			if err := job.Limiter.WaitN(ctx, 2); err != nil {
				return 0, err
			}
			return do(ctx, n)
		}
	}},
	"costs": {items: 4_000, response: 100 * time.Millisecond, set: func(t *testing.T, job *batch.Job[int, int, int]) {
		job.Limiter = newLimiter(t, throttle.PerSecond(100), throttle.Tier{Limit: 60_000, Window: time.Minute, Unit: "tokens"})
		job.Cost = func(n int) throttle.Cost { return throttle.Cost{"tokens": int64(50 + n%100)} }
	}},
	"items": {items: 2_000, response: 100 * time.Millisecond, set: func(t *testing.T, job *batch.Job[int, int, int]) {
		job.Limiter = newLimiter(t, throttle.PerSecond(100))
		job.Items = func(yield func(int, int) bool) {
			for i := range 2_000 {
				if time.Sleep(time.Second / 7); !yield(i, i) {
					return
				}
			}
		}
	}},
	"after a pause": {items: 16_000, response: 100 * time.Millisecond, set: limitedBy(throttle.PerSecond(50)), skip: 180 * time.Second,
		during: func(t *testing.T, job *batch.Job[int, int, int]) {
			time.Sleep(150 * time.Second)
			_ = job.Limiter.Pause(t.Context(), 2*time.Minute)
			time.Sleep(30 * time.Second)
		}},
	"after another policy": {items: 16_000, response: 100 * time.Millisecond, set: limitedBy(throttle.PerSecond(50)), skip: 65 * time.Second,
		during: func(t *testing.T, job *batch.Job[int, int, int]) {
			time.Sleep(time.Minute)
			_ = job.Limiter.SetPolicy(t.Context(), throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(20)}})
			time.Sleep(5 * time.Second)
		}},
}

// TestTimeLeft compares the time left with the time that a job takes, from a tenth of it on. It is mostly within a
// tenth. Some runs are a little further off near the end of a window.
func TestTimeLeft(t *testing.T) {
	for name, c := range timesLeft {
		t.Run(name, func(t *testing.T) {
			soak.NoRace(t, "thousands of items, of which the other tests race some")
			soak.Sample(t, 5)
			synctest.Test(t, func(t *testing.T) { c.test(t) })
		})
	}
}

func (c timeLeft) test(t *testing.T) {
	job := batch.Job[int, int, int]{Items: count(c.items), Total: int64(c.items), AtOnce: 100_000, Do: responds(c.response), Every: c.every}
	c.set(t, &job)
	var all []batch.Progress
	job.Progress = func(p batch.Progress) { all = append(all, p) }
	if c.during != nil {
		go c.during(t, &job)
	}
	report, err := batch.Run(t.Context(), job)
	if err != nil || report.Done != int64(c.items) {
		t.Fatalf("%+v, %v", report, err)
	}
	for _, p := range all {
		if p.Final || p.Elapsed < max(report.Elapsed/10, c.skip) {
			continue
		}
		truth := report.Elapsed - p.Elapsed
		off := math.Abs(float64(p.TimeLeft-truth)) / float64(max(truth, report.Elapsed/10))
		if !p.TimeLeftKnown || off > 0.2 {
			t.Fatalf("after %v of %v, %d items: %v left (%v), want %v", p.Elapsed, report.Elapsed, p.Done, p.TimeLeft, p.TimeLeftKnown, truth)
		}
	}
}

// TestTimeLeftAtFirst knows the time left from the limits alone.
func TestTimeLeftAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var first *batch.Progress
		job := batch.Job[int, int, int]{Items: count(40_000), Total: 40_000, Every: 100 * time.Millisecond, Do: responds(200 * time.Millisecond)}
		job.Limiter = newLimiter(t, throttle.PerSecond(5), throttle.PerHour(10_000))
		job.Progress = func(p batch.Progress) {
			if first == nil {
				first = &p
				cancel()
			}
		}
		if _, err := batch.Run(ctx, job); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if d := first.TimeLeft - 3*time.Hour - 35*time.Minute; !first.TimeLeftKnown || d.Abs() > 10*time.Minute {
			t.Errorf("%+v", first)
		}
	})
}

// TestTimeLeftIsUnknown has jobs whose time left is not known, and the reason.
func TestTimeLeftIsUnknown(t *testing.T) {
	budget := throttle.Tier{Limit: 500, Algorithm: throttle.Calendar, Period: 1, Budget: true}
	for name, c := range map[string]struct {
		total int64
		tiers []throttle.Tier
		hint  string
	}{
		"no total": {0, []throttle.Tier{throttle.PerSecond(5)}, ""},
		"budget":   {600, []throttle.Tier{throttle.PerSecond(5), budget}, "budget 500/day is used up before the end"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all []batch.Progress
				job := batch.Job[int, int, int]{Items: count(600), Total: c.total, Do: responds(0), Limiter: newLimiter(t, c.tiers...)}
				job.Progress = func(p batch.Progress) { all = append(all, p) }
				_, err := batch.Run(t.Context(), job)
				if budgeted := c.hint != ""; errors.Is(err, throttle.ErrExhausted) != budgeted {
					t.Error(err)
				}
				for _, p := range all[:len(all)/2] {
					if p.TimeLeftKnown || p.Hint != c.hint {
						t.Fatalf("%v left, %q, want %q", p.TimeLeft, p.Hint, c.hint)
					}
				}
			})
		})
	}
}

// TestHintOfAtOnce names AtOnce if that binds, and not if its items wait for the limiter.
func TestHintOfAtOnce(t *testing.T) {
	for response, hint := range map[time.Duration]string{time.Second: "AtOnce 10 binds: raise it", time.Millisecond: ""} {
		synctest.Test(t, func(t *testing.T) {
			var last batch.Progress
			job := batch.Job[int, int, int]{Items: count(400), Total: 400, AtOnce: 10, Do: responds(response), Limiter: newLimiter(t, throttle.PerSecond(20))}
			job.Progress = func(p batch.Progress) {
				if !p.Final {
					last = p
				}
			}
			if _, err := batch.Run(t.Context(), job); err != nil || last.Hint != hint {
				t.Errorf("%v: %v, %q, want %q", response, err, last.Hint, hint)
			}
		})
	}
}
