package host_test

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
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
	for i, want := range []throttle.PauseCause{throttle.PausedElsewhere, throttle.PausedByCall} {
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

// TestForecast checks that what is said of a wait is the whole wait, although a process that waits
// looks at the file every half second.
func TestForecast(t *testing.T) {
	quotas, err := host.Open(filepath.Join(t.TempDir(), "quotas.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer quotas.Close()
	lim, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(1)}}, quotas)
	if err != nil {
		t.Fatal(err)
	}
	if err := lim.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	const least = 50 * time.Minute
	if f, err := lim.Forecast(t.Context(), nil); err != nil || f.Wait < least {
		t.Errorf("Forecast: %v, %v", f.Wait, err)
	}
	if e, err := lim.Explain(t.Context(), nil); err != nil || e.Wait < least {
		t.Errorf("Explain: %v, %v", e, err)
	}
	var refused *throttle.WaitError
	if _, err := lim.TryAcquire(t.Context(), nil); !errors.As(err, &refused) || refused.Wait < least {
		t.Errorf("TryAcquire: %v", err)
	}
}

// TestNestedRecheck checks that callers of a nested limiter see what another process gives back.
func TestNestedRecheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "quotas.db")
	open := func() *throttle.Limiter {
		quotas, err := host.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { quotas.Close() })
		lim, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(1)}, Guard: time.Minute}, quotas)
		if err != nil {
			t.Fatal(err)
		}
		return lim
	}
	address, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, nested := open(), open().Within(address)
	held, err := other.Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	admitted := make(chan error)
	go func() {
		p, err := nested.Acquire(t.Context(), nil)
		p.Release()
		admitted <- err
	}()
	for status, err := nested.Status(t.Context()); err == nil && status.Waiting == 0; status, err = nested.Status(t.Context()) {
		runtime.Gosched()
	}
	if err := held.Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-admitted; err != nil {
		t.Error(err)
	}
}

// TestChangedByAnotherLimiter checks that a caller with a deadline waits under a policy with other units
// that another Limiter of the quota has set.
func TestChangedByAnotherLimiter(t *testing.T) {
	quotas, err := host.Open(filepath.Join(t.TempDir(), "quotas.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { quotas.Close() })
	p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(1)}}
	var limiters [2]*throttle.Limiter
	for i := range limiters {
		if limiters[i], err = throttle.New(p, quotas); err != nil {
			t.Fatal(err)
		}
	}
	if err := limiters[0].Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Tiers = []throttle.Tier{{Limit: 10, Window: time.Hour, Unit: "tokens"}, throttle.PerHour(5)}
	if err := limiters[1].SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := limiters[0].Wait(ctx); err != nil {
		t.Errorf("under %v, which another Limiter has set: %v", p.Tiers, err)
	}
}
