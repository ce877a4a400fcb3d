package algorithms_test

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

func newPlan(t *testing.T, guard time.Duration, tiers ...algorithms.Tier) *algorithms.Plan {
	t.Helper()
	p, err := algorithms.NewPlan(tiers, guard)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What a plan takes over is within the bounds of each tier. A bucket refills in the same time.
func TestFollowing(t *testing.T) {
	for _, c := range []struct {
		tier  string
		limit int64
		want  string
	}{
		{"5000/h;follow=15000", 15000, "15000/h;follow=15000"},
		{"5000/h;follow=15000", 16000, "15000/h;follow=15000"},
		{"5000/h;follow=15000", 1, "500/h;follow=15000"},
		{"5000/h;follow=4000..15000", 1, "4000/h;follow=4000..15000"},
		{"5000/h;follow=15000", 0, "5000/h;follow=15000"},
		{"5000/h", 15000, "5000/h"},
		{"100/min;algo=fixed_window;pace_burst=20;follow=1000", 10, "10/m;algo=fixed_window;pace_burst=10;follow=1000"},
		{"100/min;algo=fixed_window;pace_burst=20;follow=1000", 900, "900/m;algo=fixed_window;pace_burst=20;follow=1000"},
		{"2/s;algo=leaky_bucket;burst=40;follow=800", 400, "20/s;algo=leaky_bucket;burst=400;follow=800"},
		{"2/s;algo=leaky_bucket;burst=40;follow=800", 4, "1/s;algo=leaky_bucket;burst=4;follow=800"},
		{"60/min;algo=gcra;burst=5;follow=600", 120, "120/m;algo=gcra;burst=5;follow=600"},
		{"60/min;algo=gcra;burst=50;follow=600", 20, "20/m;algo=gcra;burst=20;follow=600"},
		{"60/min;algo=token_bucket;follow=600", 120, "120/m;algo=token_bucket;follow=600"},
	} {
		tier, err := algorithms.ParseTier(c.tier)
		if err != nil {
			t.Fatal(err)
		}
		base := newPlan(t, 0, tier)
		if got := base.Following(algorithms.Followed{Limits: []int64{c.limit}}); got.Given()[0].String() != c.want || got.Base() != base {
			t.Errorf("%s after %d: %v, want %s", c.tier, c.limit, got.Given()[0], c.want)
		}
	}
}

// A plan with limits that responses have named replaces one of the same tiers and no later limits.
func TestReplaces(t *testing.T) {
	tier := algorithms.PerHour(5000)
	tier.Follow.Most = 15000
	base, other := newPlan(t, time.Second, tier), newPlan(t, time.Second, tier)
	named := func(p *algorithms.Plan, at int64) *algorithms.Plan {
		return p.Following(algorithms.Followed{At: at, Limits: []int64{6000 + at}})
	}
	for _, c := range []struct {
		name      string
		next, old *algorithms.Plan
		want      bool
	}{
		{"the first limit", named(base, 5), base, true},
		{"a later one", named(named(base, 5), 7), named(base, 5), true},
		{"an older one", named(base, 5), named(base, 7), false},
		{"other tiers", other, named(base, 7), true},
		{"the same tiers", base, named(base, 7), true},
		{"a limit of other tiers", named(base, 9), other, false},
		{"a limit of other tiers that have followed", named(base, 9), named(other, 3), false},
	} {
		if got := c.next.Replaces(c.old); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
