package host_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/host"
)

// TestExplain checks that an Explanation tells a pause by another process from one by this process.
func TestExplain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "quotas.db")
	var limiters [2]*throttle.Limiter
	for i := range limiters {
		quotas, err := host.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { quotas.Close() })
		limiters[i], err = throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(5)}}, quotas)
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := limiters[0].Acquire(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"elsewhere", "call"} {
		if err := limiters[1-i].Pause(t.Context(), time.Duration(1+i)*time.Minute); err != nil {
			t.Fatal(err)
		}
		e, err := limiters[0].Explain(t.Context(), nil)
		if err != nil || len(e.Quotas) != 1 {
			t.Fatalf("%+v, %v", e, err)
		}
		if q := e.Quotas[0]; q.Cause != want || q.Shared != "a file of this host" || q.Tiers[0].Used != 1 || e.Wait <= 0 {
			t.Errorf("%+v; want the cause %q", e, want)
		}
	}
}
