package throttle_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// buy asks for n cents.
func buy(l *throttle.Limiter, n int64) (*throttle.Permit, error) {
	return l.Acquire(context.Background(), throttle.Cost{"cents": n})
}

// TestBudgetRefusesAtOnce checks that a request that exceeds what is left of a budget is refused at
// once and charged in no tier.
func TestBudgetRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		day := cents(10, throttle.Day)
		l := limiter(t, exact(day, throttle.PerSecond(5)), nil)
		begin := time.Now() // a midnight of UTC
		if _, err := buy(l, 8); err != nil {
			t.Fatal(err)
		}
		_, err := buy(l, 3)
		var e *throttle.WaitError
		if !errors.As(err, &e) || !errors.Is(err, throttle.ErrExhausted) || errors.Is(err, context.DeadlineExceeded) ||
			e.Tier != day.String() || e.Wait != 24*hour || !e.Until.Equal(begin.Add(24*hour)) {
			t.Errorf("error %v, %+v; want ErrExhausted of tier %v until the next midnight", err, e, day)
		}
		if _, err := buy(l, 11); !errors.Is(err, throttle.ErrExceedsCapacity) {
			t.Errorf("more than the budget: %v, want ErrExceedsCapacity", err)
		}
		if got := status(t, l); time.Since(begin) != 0 || got.Tiers[0].Used != 8 || got.Tiers[1].Used != 1 {
			t.Errorf("status after %v: %+v, want 8 and 1 used at once", time.Since(begin), got)
		}
		if _, err := buy(l, 2); err != nil {
			t.Errorf("exactly what is left: %v", err)
		}
		time.Sleep(24 * hour)
		if _, err := buy(l, 10); err != nil {
			t.Errorf("the next day: %v", err)
		}
	})
}

// TestBudgetWhilePaused checks that a budget also refuses at once during a pause.
func TestBudgetWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, exact(throttle.Budget(1, "", throttle.Day)), nil)
		if !l.Allow() {
			t.Fatal("a new budget refuses")
		}
		begin := time.Now()
		if err := l.Pause(context.Background(), hour); err != nil {
			t.Fatal(err)
		}
		if err := l.Wait(context.Background()); !errors.Is(err, throttle.ErrExhausted) || time.Since(begin) != 0 {
			t.Errorf("error %v after %v, want ErrExhausted at once", err, time.Since(begin))
		}
	})
}

func TestBudgetAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, exact(throttle.Budget(3, "", throttle.Month)), nil)
		if !l.AllowN(2) || l.AllowN(2) || !l.Allow() || l.Allow() {
			t.Error("AllowN(2), AllowN(2), Allow, Allow of a budget of 3 must be true, false, true, false")
		}
		if err := l.Wait(context.Background()); !errors.Is(err, throttle.ErrExhausted) {
			t.Errorf("Wait: %v, want ErrExhausted", err)
		}
	})
}

// TestBudgetRefusesTheQueue checks that all waiting callers are refused when the first one is,
// instead of one by one.
func TestBudgetRefusesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, exact(throttle.PerSecond(1), throttle.Budget(3, "", throttle.Month)), nil)
		begin := time.Now()
		var admitted, refused []time.Duration
		var mu sync.Mutex
		var callers sync.WaitGroup
		for range 1000 {
			callers.Go(func() {
				err := l.Wait(context.Background())
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					admitted = append(admitted, time.Since(begin))
				case errors.Is(err, throttle.ErrExhausted):
					refused = append(refused, time.Since(begin))
				default:
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if !slices.Equal(admitted, []time.Duration{0, sec, 2 * sec}) || len(refused) != 997 || refused[996] != 2*sec {
			t.Errorf("admitted after %v and %d refused; want 3 after 0, 1 and 2 s and 997 refused by 2 s", admitted, len(refused))
		}
	})
}

// TestBudgetInTheForecast checks that a caller that the budget will refuse delays no caller behind
// it, in the forecast either.
func TestBudgetInTheForecast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, exact(throttle.PerSecond(1), cents(10, throttle.Month)), nil)
		begin := time.Now()
		var came [4]time.Duration
		var errs [4]error
		var callers sync.WaitGroup
		for i, n := range []int64{4, 6, 5, 0} {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 5*sec)
				defer cancel()
				if i < 3 {
					ctx = context.Background()
				}
				_, errs[i] = l.Acquire(ctx, throttle.Cost{"cents": n})
				came[i] = time.Since(begin)
			})
			synctest.Wait()
		}
		callers.Wait()
		if want := [4]time.Duration{0, sec, sec, 2 * sec}; came != want || !errors.Is(errs[2], throttle.ErrExhausted) || errs[3] != nil {
			t.Errorf("after %v: %v, want %v and the third exhausted", came, errs, want)
		}
	})
}

// TestBudgetRefund checks that a canceled request is refunded to the budget.
func TestBudgetRefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, throttle.Policy{Tiers: []throttle.Tier{cents(10, throttle.Day)}, Guard: sec}, nil)
		p, err := buy(l, 10)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := buy(l, 1); !errors.Is(err, throttle.ErrExhausted) {
			t.Errorf("while all is in flight: %v, want ErrExhausted", err)
		}
		if err := p.Cancel(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, err := buy(l, 10); err != nil {
			t.Errorf("after the refund: %v", err)
		}
	})
}

// TestBudgetOfAThousand checks that a thousand concurrent callers never overspend the budget, and
// leave less than the cost of one request.
func TestBudgetOfAThousand(t *testing.T) {
	const limit, cost = 100_000_000, 370_000
	l := limiter(t, throttle.Policy{Tiers: []throttle.Tier{throttle.Budget(limit, "usd", throttle.Month)}}, nil)
	var spent atomic.Int64
	var callers sync.WaitGroup
	for range 1000 {
		callers.Go(func() {
			switch _, err := l.Acquire(context.Background(), throttle.Cost{"usd": cost}); {
			case err == nil:
				spent.Add(cost)
			case !errors.Is(err, throttle.ErrExhausted):
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if n := spent.Load(); n > limit || n <= limit-cost {
		t.Errorf("spent %d at %d each, want at most %d and less than %d left", n, cost, limit, cost)
	}
}

func TestAlerts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var alerts []throttle.Alert
		p := exact(cents(200, throttle.Day), throttle.Tier{Limit: 200, Unit: "cents", Algorithm: throttle.Calendar, Period: throttle.Month})
		p.AlertAt = []int{50, 80, 100}
		p.Alert = func(a throttle.Alert) { alerts = append(alerts, a) }
		l := limiter(t, p, nil)
		midnight := time.Now().Add(24 * hour)
		check := func(cost int64, used int64, percents ...int) {
			t.Helper()
			alerts = nil
			if _, err := buy(l, cost); err != nil {
				t.Fatal(err)
			}
			for i, percent := range percents {
				want := throttle.Alert{Policy: "api", Tier: p.Tiers[0].String(), Percent: percent, Used: used, Limit: 200, Until: midnight}
				if i >= len(alerts) || !alerts[i].Until.Equal(midnight) {
					t.Fatalf("with %d used: alerts %+v, want %+v", used, alerts, want)
				}
				if alerts[i].Until = midnight; alerts[i] != want {
					t.Errorf("with %d used: alerts %+v, want %+v", used, alerts[i], want)
				}
			}
			if len(alerts) != len(percents) {
				t.Errorf("with %d used: alerts %+v, want %v", used, alerts, percents)
			}
		}
		check(99, 99)
		check(1, 100, 50)
		check(1, 101)
		if l.AllowN(3) { // no tier counts requests
			t.Error("AllowN(3) = true, although no tier counts requests")
		}
		check(99, 200, 80, 100)
	})
}

// TestAlertOfAWaiter checks that Alert is called when a waiting request is admitted, and that it
// may use the Limiter.
func TestAlertOfAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begin := time.Now()
		p := exact(throttle.PerSecond(1), throttle.Budget(2, "", throttle.Day))
		p.AlertAt = []int{100}
		var l *throttle.Limiter
		p.Alert = func(throttle.Alert) {
			at = append(at, time.Since(begin))
			l.Status(context.Background()) // no lock is held
		}
		l = limiter(t, p, nil)
		for range 2 {
			if err := l.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(at, []time.Duration{sec}) {
			t.Errorf("Alert was called after %v, want 1s", at)
		}
	})
}

// TestPolicyOfABudgetAsJSON checks that a policy survives JSON, except for its Alert.
func TestPolicyOfABudgetAsJSON(t *testing.T) {
	p := throttle.Policy{Name: "llm", Tiers: []throttle.Tier{cents(5, throttle.Day)}, AlertAt: []int{50}}
	alerting := p
	alerting.Alert = func(throttle.Alert) {}
	data, err := json.Marshal(alerting)
	if err != nil {
		t.Fatal(err)
	}
	var again throttle.Policy
	if err := json.Unmarshal(data, &again); err != nil || !reflect.DeepEqual(again, p) {
		t.Errorf("%s is read as %+v, %v; want %+v", data, again, err, p)
	}
}

func TestAlertAtValidate(t *testing.T) {
	for spec, want := range map[string]string{
		"5/day;budget=true | alert_at=0":                 "AlertAt is [0]: it must be at most 8 percentages from 1 to 100, ascending",
		"5/day;budget=true | alert_at=101":               "AlertAt is [101]",
		"5/day;budget=true | alert_at=80,50":             "AlertAt is [80 50]",
		"5/day;budget=true | alert_at=50,50":             "AlertAt is [50 50]",
		"5/day;budget=true | alert_at=1,2,3,4,5,6,7,8,9": "AlertAt is [1 2 3 4 5 6 7 8 9]",
		"5/day;budget=true | alert_at=half":              `option "alert_at": "half" is not a whole number`,
		"5/day | alert_at=50":                            "AlertAt is set: no tier is a budget over the calendar",
		"5/s;budget=true | alert_at=50":                  "AlertAt is set: no tier is a budget over the calendar",
	} {
		if _, err := throttle.ParsePolicy("p", spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v\nwant one that contains %q", spec, err, want)
		}
	}
}
