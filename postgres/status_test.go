package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// A log that would not fit into a page is a sliding window, and Status says so.
func TestStatusNamesTheCounterOfALongLog(t *testing.T) {
	t.Parallel()
	s := openStore(t, pgtest.Shared(t), postgres.Options{Timeout: time.Minute})
	for limit, want := range map[int64]string{512: "512/h: 0 of 512", 513: "513/h;algo=sliding_window: 0 of 513"} {
		policy := throttle.Policy{Name: want, Tiers: []throttle.Tier{throttle.PerHour(limit), {Limit: limit, Window: time.Second, Algorithm: throttle.GCRA}}}
		lim, err := throttle.New(policy, s)
		if err != nil {
			t.Fatal(err)
		}
		status, err := lim.Status(t.Context())
		if err != nil || !strings.HasPrefix(status.String(), want) || status.Tiers[1].Tier != policy.Tiers[1] {
			t.Errorf("%v, %v; want %s", status, err, want)
		}
		why, err := lim.Explain(t.Context(), nil)
		if err != nil || !strings.Contains(why.String(), want[:strings.Index(want, ":")]+" has room") {
			t.Errorf("%v, %v; want %s", why, err, want)
		}
	}
}
