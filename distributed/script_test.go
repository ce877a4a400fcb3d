package distributed

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/redistest"
)

func planOf(t testing.TB, guard time.Duration, specs ...string) *algorithms.Plan {
	t.Helper()
	var tiers []algorithms.Tier
	for _, spec := range specs {
		tier, err := algorithms.ParseTier(strings.TrimSpace(spec))
		if err != nil {
			t.Fatal(err)
		}
		tiers = append(tiers, tier)
	}
	plan, err := algorithms.NewPlan(tiers, guard)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

var perCall = regexp.MustCompile(`cmdstat_evalsha:.*usec_per_call=([0-9.]+)`)

// serverTime is how long the server works on a call, by its own account, in µs.
func serverTime(t testing.TB, rdb *redis.Client, calls int, call func()) float64 {
	t.Helper()
	ctx := context.Background()
	rdb.ConfigResetStat(ctx)
	for range calls {
		call()
	}
	m := perCall.FindStringSubmatch(rdb.Info(ctx, "commandstats").Val())
	if m == nil {
		t.Fatal("the server keeps no statistics")
	}
	us, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return us
}

// TestSpeed tells what a call costs the server. It judges nothing: machines differ.
func TestSpeed(t *testing.T) {
	rdb := redistest.Start(t).Client()
	ctx := context.Background()
	told, now := newSubject(t, rdb, toldScript, nil), newSubject(t, rdb, scriptSource, func(time.Time) {})
	const slots = 60
	guard := slots << 20 * time.Microsecond
	for _, c := range []struct {
		name  string
		n     int64
		guard time.Duration
		tiers []string
	}{
		{"two buckets, a burst of", 1, guard, []string{"100000/s;algo=gcra;burst=1000000", "1000000000/h;algo=gcra"}},
		{"two buckets, a burst of", 64, guard, []string{"100000/s;algo=gcra;burst=1000000", "1000000000/h;algo=gcra"}},
		{"two buckets, ahead of time", 1, 50 * time.Millisecond, []string{"1000/s;algo=gcra;burst=70", "100000/h;algo=gcra"}},
		{"two buckets, ahead of time", 64, 50 * time.Millisecond, []string{"1000/s;algo=gcra;burst=70", "100000/h;algo=gcra"}},
		{"two buckets, full burst on its way", 1, guard, []string{"1/s;algo=gcra;burst=60", "1000/h;algo=gcra"}},
		{"a log of 10000", 1, 50 * time.Millisecond, []string{"10000/h"}},
		{"a log of 10000", 64, 50 * time.Millisecond, []string{"10000/h"}},
		{"5/s and a log of 10000", 1, 50 * time.Millisecond, []string{"5/s", "10000/h"}},
		{"5/s and a log of 10000", 64, 50 * time.Millisecond, []string{"5/s", "10000/h"}},
		{"each algorithm once", 1, 50 * time.Millisecond, []string{"50/s", "50/s;algo=sliding_window", "50/s;algo=weighted_window",
			"50/s;algo=fixed_window", "50/s;algo=anchored_window", "50/s;algo=gcra"}},
		{"each algorithm once", 64, 50 * time.Millisecond, []string{"50/s", "50/s;algo=sliding_window", "50/s;algo=weighted_window",
			"50/s;algo=fixed_window", "50/s;algo=anchored_window", "50/s;algo=gcra"}},
	} {
		told.begin(planOf(t, c.guard, c.tiers...))
		now.key, now.args = told.key, told.args
		start := rdb.Time(ctx).Val().UnixMicro()
		step := c.guard.Microseconds() / slots
		for i := range int64(slots) {
			if _, err := told.answer(start-(slots-i-1)*step, step1(1)); err != nil {
				t.Fatal(err)
			}
		}
		size := rdb.StrLen(ctx, told.key).Val()
		us := serverTime(t, rdb, 300, func() {
			if _, err := now.answer(0, step1(c.n)); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("%-36s n = %2d: %6.1f µs a call, %d bytes", c.name, c.n, us, size)
	}
}

// step1 reserves n times one.
func step1(n int64) step { return step{op: "r", args: []int64{1 << 52, 0, n, -1, 1}} }

var _ = fmt.Sprint
