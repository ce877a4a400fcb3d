package batch_test

import (
	"cmp"
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
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
	// during is called while the job runs. The time left is compared only after it has returned.
	during      func(t *testing.T, job *batch.Job[int, int, int])
	skip, every time.Duration
	within      float64 // if zero, 0.1
}

func limitedBy(tiers ...throttle.Tier) func(*testing.T, *batch.Job[int, int, int]) {
	return func(t *testing.T, job *batch.Job[int, int, int]) { job.Limiter = newLimiter(t, tiers...) }
}

var timesLeft = map[string]timeLeft{
	"one tier":          {items: 20_000, response: 100 * time.Millisecond, set: limitedBy(throttle.PerSecond(100))},
	"slow responses":    {items: 20_000, response: 30 * time.Second, set: limitedBy(throttle.PerSecond(100))},
	"second and hour":   {items: 40_000, response: 200 * time.Millisecond, set: limitedBy(throttle.PerSecond(5), throttle.PerHour(10_000)), every: 10 * time.Second},
	"minute, few items": {items: 95, response: 200 * time.Millisecond, set: limitedBy(throttle.PerMinute(10))},
	"bucket":            {items: 30_000, response: 200 * time.Millisecond, set: limitedBy(throttle.Tier{Limit: 10, Window: time.Second, Algorithm: throttle.TokenBucket, Burst: 5_000})},
	"fixed window":      {items: 4_500, response: 200 * time.Millisecond, set: limitedBy(throttle.PerSecond(50), throttle.Tier{Limit: 1_000, Window: time.Minute, Algorithm: throttle.FixedWindow})},
	"anchored window":   {items: 4_500, response: 200 * time.Millisecond, set: limitedBy(throttle.PerSecond(50), throttle.Tier{Limit: 1_000, Window: time.Minute, Algorithm: throttle.AnchoredWindow})},
	"days":              {items: 4_500, response: 200 * time.Millisecond, set: limitedBy(throttle.PerSecond(1), throttle.Tier{Limit: 1_000, Algorithm: throttle.Calendar, Period: 1, Zone: "Europe/Berlin"}), every: 10 * time.Minute},
	"concurrency":       {items: 4_500, response: 2 * time.Second, set: limitedBy(throttle.PerSecond(50), throttle.Tier{Limit: 30, Algorithm: throttle.Concurrency})},
	"AtOnce": {items: 20_000, response: 500 * time.Millisecond, set: func(t *testing.T, job *batch.Job[int, int, int]) {
		job.Limiter, job.AtOnce = newLimiter(t, throttle.PerSecond(1_000)), 100
	}},
	"pool": {within: 0.15, every: 5 * time.Second, items: 20_000, response: 500 * time.Millisecond, set: func(t *testing.T, job *batch.Job[int, int, int]) {
		var err error
		if job.Pool, err = throttle.NewPool(
			throttle.Member{Name: "a", Limiter: newLimiter(t, throttle.PerSecond(10), throttle.PerHour(10_000))},
			throttle.Member{Name: "b", Limiter: newLimiter(t, throttle.PerSecond(30), throttle.PerMinute(100))},
		); err != nil {
			t.Fatal(err)
		}
	}},
	"three requests": {items: 3_850, response: 100 * time.Millisecond, set: func(t *testing.T, job *batch.Job[int, int, int]) {
		limitedBy(throttle.PerSecond(40), throttle.PerMinute(1_000))(t, job)
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
	"after a pause": {items: 20_000, response: 100 * time.Millisecond, set: limitedBy(throttle.PerSecond(50)), skip: 180 * time.Second,
		during: func(t *testing.T, job *batch.Job[int, int, int]) {
			time.Sleep(150 * time.Second)
			_ = job.Limiter.Pause(t.Context(), 2*time.Minute)
			time.Sleep(30 * time.Second)
		}},
	"after another policy": {items: 20_000, response: 100 * time.Millisecond, set: limitedBy(throttle.PerSecond(50)), skip: 65 * time.Second,
		during: func(t *testing.T, job *batch.Job[int, int, int]) {
			time.Sleep(time.Minute)
			_ = job.Limiter.SetPolicy(t.Context(), throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(20)}})
			time.Sleep(5 * time.Second)
		}},
}

// TestTimeLeft compares the time left with the time that a job takes, from a tenth of it on.
func TestTimeLeft(t *testing.T) {
	for name, c := range timesLeft {
		t.Run(name, func(t *testing.T) {
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
	worst, at := 0.0, batch.Progress{}
	for i, p := range all {
		truth := report.Elapsed - p.Elapsed
		off := math.Abs(float64(p.TimeLeft-truth)) / float64(max(truth, report.Elapsed/10))
		if i == 1 || i == len(all)/20 {
			t.Log(p.Elapsed, p.TimeLeft, truth, p.Hint, p.Rate)
		}
		if p.Final || p.Elapsed < max(report.Elapsed/10, c.skip) {
			continue
		}
		if off > worst {
			worst, at = off, p
		}
		if !p.TimeLeftKnown || off > cmp.Or(c.within, 0.1) {
			t.Errorf("after %v of %v, %d items: %v left (%v), want %v", p.Elapsed, report.Elapsed, p.Done, p.TimeLeft, p.TimeLeftKnown, truth)
			if t.Failed() {
				break
			}
		}
	}
	t.Logf("%v: off by %.3f at %v: %v left", report.Elapsed, worst, at.Elapsed, at.TimeLeft)
}
