package throttle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// acquireTimed returns a permit of one request and how long it waited.
func acquireTimed(t *testing.T, l *throttle.Limiter) (*throttle.Permit, time.Duration) {
	t.Helper()
	start := time.Now()
	p, err := l.Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p, time.Since(start)
}

// A refusal that a Permit reports pauses the quota as one that a Transport sees: for the time that it
// names, and then for one request alone until that passes.
func TestPermitRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := acquireTimed(t, l)
		if err := p.Refused(t.Context(), 7*time.Second); err != nil {
			t.Fatal(err)
		}
		p.Release()
		probe, took := acquireTimed(t, l)
		if took != 7*time.Second {
			t.Errorf("waited %v", took)
		}
		time.AfterFunc(3*time.Second, probe.Passed)
		if _, took := acquireTimed(t, l); took != 3*time.Second {
			t.Errorf("the second request waited %v for the first", took)
		}

		// A permit reports once.
		if err := probe.Refused(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if _, took := acquireTimed(t, l); took != 0 {
			t.Errorf("waited %v", took)
		}
	})
}

// Refusals that name no time back off, until a request passes.
func TestPermitBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := acquireTimed(t, l)
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, time.Second} {
			if i == 3 {
				p.Passed()
				p, _ = acquireTimed(t, l)
			}
			if err := p.Refused(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			var took time.Duration
			if p, took = acquireTimed(t, l); took < want || took > 2*want {
				t.Errorf("pause %d: %v, want %v to %v", i+1, took, want, 2*want)
			}
		}
	})
}

func TestPermitRefusedForLong(t *testing.T) {
	l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := acquireTimed(t, l)
	if err := p.Refused(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), nil); !errors.Is(err, throttle.ErrBanned) {
		t.Errorf("%v, want ErrBanned", err)
	}
	var none *throttle.Permit
	none.Passed()
	if err := none.Refused(context.Background(), time.Hour); err != nil {
		t.Error(err)
	}
}
