package simulate_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/simulate"
)

// TestPoolAsPlayed checks that a batch takes as long as with a throttle.Pool.
func TestPoolAsPlayed(t *testing.T) {
	for _, c := range []struct {
		count    int64
		policies []string
	}{
		{500, []string{"5/s", "20/s"}},
		{500, []string{"20/s", "5/s"}},
		{300, []string{"5/s", "20/s", "3/s + 30/m"}},
		{100, []string{"1/h", "10/s"}},
		{7, []string{"5/s", "5/s"}},
		{200, []string{"2;algo=concurrency", "5/s"}},
		{100, []string{"7/s + 20/day;budget=true", "3/s"}},
		{1, []string{"1/s", "1/s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var batches []simulate.Batch
			var members []throttle.Member
			for i, text := range c.policies {
				p, err := throttle.ParsePolicy("", text)
				if err != nil {
					t.Fatal(err)
				}
				l, err := throttle.New(p, nil)
				if err != nil {
					t.Fatal(err)
				}
				batches = append(batches, simulate.Batch{Policy: p, Count: c.count, Answers: 100 * time.Millisecond, Start: start})
				members = append(members, throttle.Member{Name: string(rune('a' + i)), Limiter: l})
			}
			played, err := simulate.PlayPool(context.Background(), batches)
			if err != nil {
				t.Fatal(err)
			}
			pool, err := throttle.NewPool(members...)
			if err != nil {
				t.Fatal(err)
			}
			for range c.count {
				permit, err := pool.Acquire(context.Background(), nil)
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(100*time.Millisecond, permit.Release)
			}
			took, sum := time.Since(start)+100*time.Millisecond, int64(0)
			for _, n := range played.Shares {
				sum += n
			}
			if diff := took - played.Length; diff.Abs() > time.Millisecond || sum != c.count || played.Refused {
				t.Errorf("%v: a pool took %v, played %+v", c.policies, took, *played)
			}
		})
	}
}

// TestPoolThatNeverAdmits checks batches that no policy, or not every one, admits.
func TestPoolThatNeverAdmits(t *testing.T) {
	play := func(count int64, cost throttle.Cost, policies ...string) (*simulate.Pooled, error) {
		var batches []simulate.Batch
		for _, text := range policies {
			p, err := throttle.ParsePolicy("", text)
			if err != nil {
				t.Fatal(err)
			}
			batches = append(batches, simulate.Batch{Policy: p, Count: count, Cost: cost, Start: time.Unix(1_800_000_000, 0).UTC()})
		}
		return simulate.PlayPool(context.Background(), batches)
	}
	if p, err := play(10, throttle.Cost{"requests": 6}, "5/s", "20/s"); err != nil || p.Shares[0] != 0 || p.Shares[1] != 10 {
		t.Errorf("one admits all: %+v, %v", p, err)
	}
	if _, err := play(10, throttle.Cost{"requests": 60}, "5/s", "20/s"); err == nil {
		t.Error("none admits any, and there is no error")
	}
	if _, err := play(10, nil, "1/876000h", "1/876000h"); err == nil {
		t.Error("the batch takes centuries, and there is no error")
	}
	if p, err := play(1000, nil, "5/h;budget=true", "7/h;budget=true"); err != nil || !p.Refused || p.Shares[0] != 5 || p.Shares[1] != 7 {
		t.Errorf("budgets: %+v, %v", p, err)
	}
	if p, err := play(0, nil, "5/s", "7/s"); err != nil || p.Length != 0 {
		t.Errorf("nothing: %+v, %v", p, err)
	}
}
