package batch_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
	"github.com/apithrottle/throttle/internal/httpmem"
)

// openJournal opens a journal in a new file.
func openJournal(t *testing.T) *batch.Journal {
	t.Helper()
	j, err := batch.OpenJournal(filepath.Join(t.TempDir(), "journal"), batch.JournalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// TestLoopTwice ranges twice over the same results.
func TestLoopTwice(t *testing.T) {
	in(func(t *testing.T) {
		results := batch.Results(t.Context(), batch.Job[int, int, int]{
			Items: count(10), Limiter: newLimiter(t, throttle.PerSecond(10)), Do: after(0),
		})
		for range 2 {
			n := 0
			for _, err := range results {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			if n != 10 {
				t.Errorf("%d results, want 10", n)
			}
		}
	})(t)
}

// TestSlowResult checks that few results wait for a Result that is slow.
func TestSlowResult(t *testing.T) {
	for _, inOrder := range []bool{false, true} {
		in(func(t *testing.T) {
			var started, most atomic.Int64
			delivered := int64(0)
			report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
				Items: count(500), Limiter: newLimiter(t, throttle.PerSecond(1000)), AtOnce: 20, InOrder: inOrder,
				Do: func(_ context.Context, n int) (int, error) { started.Add(1); return n, nil },
				Result: func(int, int) error {
					time.Sleep(time.Second)
					most.Store(max(most.Load(), started.Load()-delivered))
					delivered++
					return nil
				},
			})
			if err != nil || report.Done != 500 || most.Load() > 60 {
				t.Errorf("in order %v: %d results waited, %+v, %v", inOrder, most.Load(), report, err)
			}
		})(t)
	}
}

// TestItemsThatWatchTheContext checks that a job whose Items return early, because the context ended, is not complete.
func TestItemsThatWatchTheContext(t *testing.T) {
	in(func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		report, err := batch.Run(ctx, batch.Job[int, int, int]{
			Items: func(yield func(int, int) bool) {
				for i := 0; ctx.Err() == nil && yield(i, i); i++ {
					select {
					case <-time.After(2 * time.Second):
					case <-ctx.Done():
					}
				}
			},
			Limiter: newLimiter(t, throttle.PerSecond(10)), Do: after(0),
		})
		if !errors.Is(err, context.DeadlineExceeded) || report.Ended {
			t.Errorf("%+v, %v, want the error of the context", report, err)
		}
	})(t)
}

// TestContextEndedBefore checks that nothing is sent if the context has ended before.
func TestContextEndedBefore(t *testing.T) {
	for range 100 {
		in(func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			report, err := batch.Run(ctx, batch.Job[int, int, int]{
				Items: count(100), Limiter: newLimiter(t, throttle.PerSecond(10)),
				Do: func(context.Context, int) (int, error) { t.Error("Do is called"); return 0, nil },
			})
			if !errors.Is(err, context.Canceled) || report.Done != 0 {
				t.Errorf("%+v, %v", report, err)
			}
		})(t)
	}
}

// TestItemsThatExit checks that a job whose Items end their goroutine is not complete.
func TestItemsThatExit(t *testing.T) {
	in(func(t *testing.T) {
		report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
			Items:   func(yield func(int, int) bool) { yield(1, 1); runtime.Goexit() },
			Limiter: newLimiter(t, throttle.PerSecond(10)), Do: after(0),
		})
		if err == nil || report.Ended {
			t.Errorf("%+v, %v, want an error", report, err)
		}
	})(t)
}

// TestAnyAtOnce checks the largest number of items at the same time.
func TestAnyAtOnce(t *testing.T) {
	in(func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		report, err := batch.Run(ctx, batch.Job[int, int, int]{
			Items: count(10), Limiter: newLimiter(t, throttle.PerSecond(10)), AtOnce: math.MaxInt, InOrder: true, Do: after(0),
			Progress: func(batch.Progress) {}, Total: math.MaxInt64, Grace: math.MaxInt64,
		})
		if err != nil || report.Done != 10 {
			t.Errorf("%+v, %v", report, err)
		}
	})(t)
}

// TestRefusedForNow checks that few items ask a limiter again and again that refuses them for now, and that this
// uses up none of their retries.
func TestRefusedForNow(t *testing.T) {
	for name, policy := range map[string]throttle.Policy{
		"MaxQueue": {MaxQueue: 3}, "MaxWait": {MaxWait: 200 * time.Millisecond},
	} {
		t.Run(name, in(func(t *testing.T) {
			policy.Name, policy.Tiers = "api", []throttle.Tier{throttle.PerSecond(10)}
			l, err := throttle.New(policy, nil)
			if err != nil {
				t.Fatal(err)
			}
			var asked, calls atomic.Int64
			report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
				Items: count(200), Limiter: l, Retries: 1, Retry: batch.AnyError,
				Cost: func(int) throttle.Cost { asked.Add(1); return nil },
				Do: func(_ context.Context, n int) (int, error) {
					if calls.Add(1)%10 == 0 {
						return 0, errors.New("try again")
					}
					return n, nil
				},
			})
			if err != nil || report.Done+report.Failed != 200 || report.Retried != calls.Load()-200 || report.Failed > 11 {
				t.Errorf("%v failed, %v retried of %d calls, %v", report.Failed, report.Retried, calls.Load(), err)
			}
			if most := int64(report.Elapsed / time.Second * 2_000); asked.Load() > most {
				t.Errorf("the limiter was asked %d times, want at most %d", asked.Load(), most)
			}
		}))
	}
}

// TestResultPanicsWithJournal checks that the Journal can be used after a panic of Result, and has what was done.
func TestResultPanicsWithJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := openJournal(t)
		job := batch.Job[int, int, int]{Items: count(100), Limiter: newLimiter(t, throttle.PerSecond(10)), Do: after(time.Second), Journal: j}
		done := int64(0)
		job.Result = func(int, int) error {
			if done == 7 {
				panic("boom")
			}
			done++
			return nil
		}
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("recovered %v", p)
				}
			}()
			_, _ = batch.Run(t.Context(), job)
		}()
		job.Result = nil
		report, err := batch.Run(t.Context(), job)
		if err != nil || report.Skipped != 7 || report.Done != 93 {
			t.Errorf("%+v, %v", report, err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestSentItemsAreNotRepeated plays items that send two requests each, while the limiter refuses the second. An item
// that was sent is sent again only where Retry allows it, and no more often than Retries.
func TestSentItemsAreNotRepeated(t *testing.T) {
	hour := throttle.Policy{MaxWait: time.Second, Tiers: []throttle.Tier{throttle.PerHour(1)}}
	for name, of := range map[string]struct {
		policy throttle.Policy
		retry  func(error) bool
		calls  int
		failed int64
	}{
		"late":          {hour, nil, 1, 1},
		"late, retried": {hour, batch.AnyError, 2, 0},
		"too large":     {throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}}, batch.AnyError, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				of.policy.Guard = throttle.NoGuard
				second, err := throttle.New(of.policy, nil)
				if err != nil {
					t.Fatal(err)
				}
				if !second.Allow() {
					t.Fatal("the limit is used")
				}
				sent := 0
				base := roundTrip(func(req *http.Request) (*http.Response, error) {
					if req.URL.Path == "/first" {
						sent++
					}
					return httpmem.Response(req, http.StatusOK, http.Header{}, "", func() {}), nil
				})
				transport := &throttle.Transport{Base: base, Route: func(req *http.Request) *throttle.Limiter {
					if req.URL.Path == "/second" {
						return second
					}
					return newLimiter(t, throttle.PerSecond(1000))
				}, Cost: func(req *http.Request) throttle.Cost {
					if name == "too large" && req.URL.Path == "/second" {
						return throttle.Cost{"requests": 2}
					}
					return nil
				}}
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				calls := 0
				report, err := batch.Run(ctx, batch.Job[int, int, int]{
					Items: count(1), Transport: transport, Retry: of.retry, Retries: 2, Grace: -1,
					Do: func(ctx context.Context, n int) (int, error) {
						calls++
						for _, path := range []string{"/first", "/second"} {
							req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://api.test"+path, nil)
							resp, err := transport.RoundTrip(req)
							if err != nil {
								return 0, err
							}
							resp.Body.Close()
						}
						return n, nil
					},
				})
				if calls != of.calls || sent != of.calls || report.Failed != of.failed || err != nil {
					t.Errorf("%d calls, %d sent, %d failed, %d left, %v; want %d and %d failed", calls, sent, report.Failed, report.Left, err, of.calls, of.failed)
				}
			})
		})
	}
}
