package host_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/host"
)

// TestCalled checks that each transaction is told, and one that fails.
func TestCalled(t *testing.T) {
	s, err := host.Open(filepath.Join(t.TempDir(), "quotas.db"))
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan throttle.CalledInfo, 100)
	var l *throttle.Limiter
	l, err = throttle.New(throttle.Policy{
		Name: "told", Tiers: []throttle.Tier{throttle.PerHour(2)}, Guard: throttle.NoGuard,
		Observer: &throttle.Observer{Called: func(i throttle.CalledInfo) {
			if i.Requests > 0 {
				_, _ = l.Status(context.Background()) // a call of its own
			}
			told <- i
		}},
	}, s)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if got := l.Allow(); got != (i < 2) {
			t.Fatalf("Allow is %v", got)
		}
		requests := 0
		for range 2 { // the decision and the Status
			i := <-told
			if requests += i.Requests; i.Policy != "told" || i.Duration <= 0 || i.Unsent || i.Err != nil {
				t.Errorf("%+v", i)
			}
		}
		if requests != 1 {
			t.Errorf("%d requests decided, want 1", requests)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAcquire(t.Context(), nil); err == nil {
		t.Fatal("admitted by a closed store")
	}
	if i := <-told; i.Err == nil || i.Requests != 0 || i.Duration > time.Minute {
		t.Errorf("a failed call: %+v", i)
	}
	if len(told) > 0 {
		t.Errorf("%d calls more: %v", len(told), fmt.Sprint(<-told))
	}
	if i, err := l.Status(t.Context()); err == nil || errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("%v, %v", i, err)
	}
}
