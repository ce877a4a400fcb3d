package batch_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
	"github.com/apithrottle/throttle/internal/httpmem"
)

// in runs a test in virtual time.
func in(f func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, f) }
}

// after returns a Do that takes d and returns the item, or the error of its context.
func after(d time.Duration) func(context.Context, int) (int, error) {
	return func(ctx context.Context, n int) (int, error) {
		return n, httpmem.Sleep(ctx, func() time.Duration { return d })
	}
}

// about reports whether n items are left if want were started: Items may have yielded one or two more.
func about(n, want int64) bool { return n >= want && n <= want+2 }

// TestEndOfTheContext ends the context when some items are in flight and others wait.
func TestEndOfTheContext(t *testing.T) {
	for name, test := range map[string]struct {
		takes, grace, elapsed time.Duration
		done, left            int64
	}{
		"items in flight return in time":    {2 * time.Second, 5 * time.Second, 4500 * time.Millisecond, 30, 18},
		"items in flight are canceled":      {time.Minute, 5 * time.Second, 7500 * time.Millisecond, 0, 48},
		"items in flight are canceled soon": {time.Minute, -1, 2500 * time.Millisecond, 0, 48},
	} {
		t.Run(name, in(func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
			defer cancel()
			begun := time.Now()
			report, err := batch.Run(ctx, batch.Job[int, int, int]{
				Items: count(1000), Limiter: newLimiter(t, throttle.PerSecond(10)), Do: after(test.takes), Grace: test.grace,
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error is %v, want that of the context", err)
			}
			if report.Done != test.done || !about(report.Left, test.left) || report.Failed != 0 || report.Ended {
				t.Errorf("got %+v, want %d done and %d left", report, test.done, test.left)
			}
			if took := time.Since(begun); took > test.elapsed+100*time.Millisecond {
				t.Errorf("Run took %v, want %v", took, test.elapsed)
			}
		}))
	}
}

// TestEndWhileTransportWaits ends the context while calls of Do wait in a Transport. They end at once.
func TestEndWhileTransportWaits(t *testing.T) {
	in(func(t *testing.T) {
		tier := throttle.PerSecond(10)
		a := newAPI(t, 100*time.Millisecond, tier)
		transport := &throttle.Transport{Limiter: newLimiter(t, tier), Base: a}
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		begun := time.Now()
		report, err := batch.Run(ctx, batch.Job[int, int, int]{Items: count(1000), Transport: transport, Do: a.send(transport), Grace: time.Hour})
		if took := time.Since(begun); took > 2700*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run took %v and returned %v", took, err)
		}
		if report.Done != 30 || !about(report.Left, 18) || report.Failed != 0 {
			t.Errorf("got %+v", report)
		}
	})(t)
}

// send returns a Do that sends a GET by a transport.
func (a *api) send(rt http.RoundTripper) func(context.Context, int) (int, error) {
	client := &http.Client{Transport: rt}
	return func(ctx context.Context, n int) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprint("http://api.test/", n), nil)
		if err != nil {
			return 0, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			return 0, &batch.RefusedError{Err: errors.New(resp.Status)}
		}
		return n, nil
	}
}

// TestRefused checks that an item is sent again after a refusal, which pauses the limiter, and that it has one key.
func TestRefused(t *testing.T) {
	in(func(t *testing.T) {
		var keys []string
		var at []time.Duration
		begun := time.Now()
		report, err := batch.Run(t.Context(), batch.Job[string, int, int]{
			Items:   func(yield func(string, int) bool) { yield("a", 1) },
			Limiter: newLimiter(t, throttle.PerSecond(10)),
			Do: func(ctx context.Context, n int) (int, error) {
				keys, at = append(keys, batch.IdempotencyKey(ctx)), append(at, time.Since(begun))
				if len(keys) < 3 {
					return 0, fmt.Errorf("sdk: %w", &batch.RefusedError{Wait: 20 * time.Second})
				}
				return n, nil
			},
		})
		if err != nil || report.Done != 1 || report.Retried != 2 {
			t.Errorf("got %+v, %v", report, err)
		}
		if want := []time.Duration{0, 20 * time.Second, 40 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("calls at %v, want %v", at, want)
		}
		if len(keys[0]) != 32 || keys[1] != keys[0] || keys[2] != keys[0] {
			t.Errorf("keys are %q, want one key of 32 digits", keys)
		}
	})(t)
}

// TestErrors plays errors of Do.
func TestErrors(t *testing.T) {
	failure := errors.New("status 500")
	for name, test := range map[string]struct {
		do    func(calls int) error
		retry func(error) bool
		calls int
		fails string
	}{
		"not retried":      {func(int) error { return failure }, nil, 1, "batch: item 7: status 500"},
		"retried":          {func(int) error { return failure }, batch.AnyError, 5, "batch: item 7: status 500"},
		"passes":           {func(n int) error { return []error{failure, failure, nil}[n] }, batch.AnyError, 3, ""},
		"always refused":   {func(int) error { return new(batch.RefusedError) }, nil, 5, "batch: item 7: batch: refused for lack of quota"},
		"panics":           {func(int) error { panic("boom") }, batch.AnyError, 1, "batch: item 7: batch: panic: boom"},
		"Retry panics":     {func(int) error { return failure }, func(error) bool { panic("boom") }, 1, "batch: item 7: batch: panic: boom"},
		"exits":            {func(int) error { runtime.Goexit(); return nil }, batch.AnyError, 1, "batch: item 7: batch: panic: <nil>"},
		"of its own limit": {func(int) error { return context.DeadlineExceeded }, nil, 1, "batch: item 7: context deadline exceeded"},
	} {
		t.Run(name, in(func(t *testing.T) {
			calls := 0
			report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
				Items: func(yield func(int, int) bool) { yield(7, 0) }, Limiter: newLimiter(t, throttle.PerSecond(10)), Retry: test.retry,
				Do: func(context.Context, int) (int, error) { calls++; return 0, test.do(calls - 1) },
			})
			if err != nil || calls != test.calls || !report.Ended {
				t.Errorf("%d calls, %+v, %v, want %d calls", calls, report, err, test.calls)
			}
			switch {
			case test.fails == "":
				if report.Done != 1 || report.Failed != 0 {
					t.Errorf("got %+v, want 1 done", report)
				}
			case report.Failed != 1 || len(report.Failures) != 1 || report.Failures[0].Error() != test.fails || report.Failures[0].Calls != test.calls:
				t.Errorf("failures are %+v, want %s after %d calls", report.Failures, test.fails, test.calls)
			}
		}))
	}
}

// TestCostPanics checks that a panic of Cost fails that item alone.
func TestCostPanics(t *testing.T) {
	in(func(t *testing.T) {
		report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
			Items: count(20), Limiter: newLimiter(t, throttle.PerSecond(10)), Do: after(0),
			Cost: func(n int) throttle.Cost { return throttle.Cost{"requests": int64(10 / (n - 10))} },
		})
		if err != nil || report.Failed < 1 || report.Done < 9 || report.Done+report.Failed != 20 {
			t.Errorf("%+v, %v", report, err)
		}
	})(t)
}

// TestTooManyFailed checks that a job ends when more items have failed than may, in all or in a row.
func TestTooManyFailed(t *testing.T) {
	for name, test := range map[string]struct {
		maxFailed, maxInARow, every int
		failed                      int64
		want                        string
	}{
		"in all":   {5, 0, 2, 6, "6 of at most 5, the last: batch: item 11: unpaid"},
		"in a row": {0, 5, 1, 6, "6 in a row, the last: batch: item 5: unpaid"},
		"default":  {0, 0, 1, 101, "101 in a row"},
		"any":      {0, -1, 1, 1000, ""},
		"few":      {0, 5, 2, 500, ""},
	} {
		t.Run(name, in(func(t *testing.T) {
			report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
				Items: count(1000), Limiter: newLimiter(t, throttle.PerSecond(1)), AtOnce: 1, // else others may fail with the last one
				MaxFailed: test.maxFailed, MaxInARow: test.maxInARow,
				Do: func(_ context.Context, n int) (int, error) {
					if (n+1)%test.every == 0 {
						return 0, errors.New("unpaid")
					}
					return 0, nil
				},
			})
			if report.Failed != test.failed || report.Ended != (test.want == "") {
				t.Errorf("got %+v, want %d failed", report, test.failed)
			}
			if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, batch.ErrTooManyFailed) || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error is %v, want %q in it", err, test.want)
			}
		}))
	}
}

// TestLimiterEndsJob checks that items are left for a later run if the limiter admits no more.
func TestLimiterEndsJob(t *testing.T) {
	for name, test := range map[string]struct {
		policy throttle.Policy
		during func(*throttle.Limiter) error // in the tenth call
		want   error
		done   int64
	}{
		"budget": {throttle.Policy{Tiers: []throttle.Tier{throttle.Budget(25, "requests", throttle.Month)}}, nil, throttle.ErrExhausted, 25},
		"ban": {throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(10)}, MaxPause: time.Minute}, func(*throttle.Limiter) error {
			return &batch.RefusedError{Wait: time.Hour}
		}, throttle.ErrBanned, 9},
		"closed": {throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(10)}}, func(l *throttle.Limiter) error {
			l.Close()
			return nil
		}, throttle.ErrClosed, 10},
	} {
		t.Run(name, in(func(t *testing.T) {
			test.policy.Name = "api"
			l, err := throttle.New(test.policy, nil)
			if err != nil {
				t.Fatal(err)
			}
			calls := 0
			report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
				Items: count(1000), Limiter: l, AtOnce: 1,
				Do: func(context.Context, int) (int, error) {
					if calls++; calls == 10 && test.during != nil {
						return 0, test.during(l)
					}
					return 0, nil
				},
			})
			if !errors.Is(err, test.want) || report.Done != test.done || !about(report.Left, 1) || report.Failed != 0 {
				t.Errorf("got %+v, %v, want %d done", report, err, test.done)
			}
		}))
	}
}

// TestBoundsOfPolicy checks that items wait for a policy that refuses those that wait too long, or too many.
func TestBoundsOfPolicy(t *testing.T) {
	for name, policy := range map[string]throttle.Policy{
		"MaxQueue": {MaxQueue: 3}, "MaxWait": {MaxWait: 200 * time.Millisecond},
	} {
		t.Run(name, in(func(t *testing.T) {
			policy.Name, policy.Tiers = "api", []throttle.Tier{throttle.PerSecond(10)}
			l, err := throttle.New(policy, nil)
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			report, err := batch.Run(t.Context(), batch.Job[int, int, int]{Items: count(200), Limiter: l, Do: after(0)})
			if took := time.Since(begun); err != nil || report.Done != 200 || took > 25*time.Second {
				t.Errorf("%+v, %v after %v", report, err, took)
			}
		}))
	}
}

// TestOrder checks the order of results, and that few wait for an earlier one.
func TestOrder(t *testing.T) {
	in(func(t *testing.T) {
		var most, started atomic.Int64
		next := 0
		_, err := batch.Run(t.Context(), batch.Job[int, int, int]{
			Items: count(2000), Limiter: newLimiter(t, throttle.PerSecond(1000)), AtOnce: 50, InOrder: true,
			Do: func(_ context.Context, n int) (int, error) {
				started.Add(1)
				time.Sleep(time.Duration(n*7919%50) * time.Millisecond)
				if n == 500 {
					time.Sleep(time.Minute)
				}
				return n, nil
			},
			Result: func(key, n int) error {
				if key != next || n != next {
					t.Errorf("result of item %d comes after %d", key, next)
				}
				next++
				most.Store(max(most.Load(), started.Load()-int64(next)))
				return nil
			},
		})
		if err != nil || next != 2000 || most.Load() > 100 {
			t.Errorf("%d results, %d at most were ahead, %v", next, most.Load(), err)
		}
	})(t)
}

// TestAtOnceBinds checks that the report names what keeps a job from the limit.
func TestAtOnceBinds(t *testing.T) {
	for want, job := range map[batch.Bound]batch.Job[int, int, int]{
		batch.ByAtOnce:  {AtOnce: 10, Do: after(time.Second)},
		batch.ByLimiter: {AtOnce: 1000, Do: after(time.Second)},
		batch.ByItems: {Do: after(time.Second), Items: func(yield func(int, int) bool) {
			for i := 0; i < 100 && yield(i, i); i++ {
				time.Sleep(time.Second)
			}
		}},
	} {
		t.Run(string(want), in(func(t *testing.T) {
			if job.Items == nil {
				job.Items = count(1000)
			}
			job.Limiter = newLimiter(t, throttle.PerSecond(100))
			report, err := batch.Run(t.Context(), job)
			if err != nil || report.Bound != want {
				t.Errorf("%+v, %v, want bound %s", report, err, want)
			}
		}))
	}
}

// TestResults checks the loop over results.
func TestResults(t *testing.T) {
	job := func(t *testing.T) batch.Job[int, int, string] {
		return batch.Job[int, int, string]{
			Items: count(100), Limiter: newLimiter(t, throttle.PerSecond(10)), InOrder: true,
			Do: func(_ context.Context, n int) (string, error) {
				if n%10 == 3 {
					return "", errors.New("bad item")
				}
				return fmt.Sprint(n), nil
			},
		}
	}
	t.Run("all", in(func(t *testing.T) {
		n, failed := 0, 0
		for result, err := range batch.Results(t.Context(), job(t)) {
			var failure *batch.ItemError
			switch {
			case errors.As(err, &failure) && failure.Key == fmt.Sprint(n):
				failed++
			case err != nil || result.Key != n || result.Value != fmt.Sprint(n):
				t.Errorf("result %d is %+v, %v", n, result, err)
			}
			n++
		}
		if n != 100 || failed != 10 {
			t.Errorf("%d results, %d failed", n, failed)
		}
	}))
	t.Run("left", in(func(t *testing.T) {
		for result := range batch.Results(t.Context(), job(t)) {
			if result.Key == 20 {
				break
			}
		}
	}))
	t.Run("left at a failed item", in(func(t *testing.T) {
		j := job(t)
		j.InOrder, j.Do = false, func(_ context.Context, n int) (string, error) {
			time.Sleep(time.Second)
			return "", errors.New("bad item")
		}
		for _, err := range batch.Results(t.Context(), j) {
			if err != nil {
				break
			}
		}
	}))
	t.Run("error of the job", in(func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var last error
		for _, err := range batch.Results(ctx, job(t)) {
			last = err
		}
		if !errors.Is(last, context.DeadlineExceeded) {
			t.Errorf("last error is %v", last)
		}
	}))
}

// TestCallbacksThatPanic checks that a panic reaches the caller of Run, and that nothing is left behind.
func TestCallbacksThatPanic(t *testing.T) {
	for name, change := range map[string]func(*batch.Job[int, int, int]){
		"Items": func(j *batch.Job[int, int, int]) {
			j.Items = func(yield func(int, int) bool) { yield(1, 1); panic("boom") }
		},
		"Result": func(j *batch.Job[int, int, int]) { j.Result = func(int, int) error { panic("boom") } },
	} {
		t.Run(name, func(t *testing.T) {
			in(func(t *testing.T) {
				job := batch.Job[int, int, int]{Items: count(100), Limiter: newLimiter(t, throttle.PerSecond(10)), Do: after(time.Second)}
				change(&job)
				defer func() {
					if p := recover(); p != "boom" {
						t.Errorf("recovered %v, want boom", p)
					}
				}()
				report, err := batch.Run(t.Context(), job)
				t.Errorf("returned %+v, %v", report, err)
			})(t)
		})
	}
}

// TestItemsThatBlock checks that Run returns although Items does not.
func TestItemsThatBlock(t *testing.T) {
	in(func(t *testing.T) {
		block := make(chan struct{})
		defer close(block)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		report, err := batch.Run(ctx, batch.Job[int, int, int]{
			Items:   func(yield func(int, int) bool) { yield(1, 1); <-block },
			Limiter: newLimiter(t, throttle.PerSecond(10)), Do: after(0),
		})
		if report.Done != 1 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%+v, %v", report, err)
		}
	})(t)
}

// TestResultFails checks that an item whose result was not saved is not done.
func TestResultFails(t *testing.T) {
	in(func(t *testing.T) {
		full := errors.New("disk is full")
		report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
			Items: count(100), Limiter: newLimiter(t, throttle.PerSecond(10)), Do: after(time.Second), InOrder: true,
			Result: func(key, _ int) error {
				if key == 20 {
					return full
				}
				return nil
			},
		})
		if !errors.Is(err, full) || report.Done != 20 || report.Left == 0 {
			t.Errorf("%+v, %v", report, err)
		}
	})(t)
}

// TestPool checks that a job uses all members of a Pool.
func TestPool(t *testing.T) {
	in(func(t *testing.T) {
		pool, err := throttle.NewPool(
			throttle.Member{Name: "a", Limiter: newLimiter(t, throttle.PerSecond(5))},
			throttle.Member{Name: "b", Limiter: newLimiter(t, throttle.PerSecond(20))},
		)
		if err != nil {
			t.Fatal(err)
		}
		var a, b atomic.Int64
		begun := time.Now()
		report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
			Items: count(1000), Pool: pool,
			Do: func(ctx context.Context, n int) (int, error) {
				if batch.Permit(ctx).Member() == "a" {
					a.Add(1)
				} else {
					b.Add(1)
				}
				return n, nil
			},
		})
		if took := time.Since(begun); err != nil || report.Done != 1000 || took > 41*time.Second || a.Load() < 195 {
			t.Errorf("%+v, %v after %v; %d and %d requests", report, err, took, a.Load(), b.Load())
		}
	})(t)
}

// TestWrongJobs checks that an error names each wrong field.
func TestWrongJobs(t *testing.T) {
	_, err := batch.Run(t.Context(), batch.Job[int, int, int]{AtOnce: -1, MaxFailed: -1, Total: -1, Every: -1})
	for _, field := range []string{"Items", "Do", "Limiter, Pool and Transport", "AtOnce", "MaxFailed", "Total", "Every"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
}

// TestDonePanics checks that a panic of Done comes out of Run.
func TestDonePanics(t *testing.T) {
	in(func(t *testing.T) {
		defer func() {
			if p := recover(); p != "done" {
				t.Errorf("Run panicked with %v", p)
			}
		}()
		_, _ = batch.Run(t.Context(), batch.Job[int, int, int]{
			Items: count(20), Limiter: newLimiter(t, throttle.PerSecond(10)), Do: after(0),
			Done: func(n int) (bool, error) {
				if n == 5 {
					panic("done")
				}
				return n%2 == 0, nil
			},
		})
		t.Error("Run has returned")
	})(t)
}
