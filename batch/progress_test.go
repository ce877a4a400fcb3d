package batch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
)

// TestProgress receives the state each Every and once at the end.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []batch.Progress
		job := batch.Job[int, int, int]{Items: count(1_001), Total: 1_001, Every: 10 * time.Second, Do: responds(0)}
		job.Limiter = newLimiter(t, throttle.Tier{Limit: 10, Window: time.Second, Algorithm: throttle.TokenBucket, Burst: 1})
		job.Limiter.SetPolicy(t.Context(), throttle.Policy{Name: "api", Guard: throttle.NoGuard, Tiers: []throttle.Tier{throttle.PerSecond(10)}})
		job.Progress = func(p batch.Progress) { all = append(all, p) }
		report, err := batch.Run(t.Context(), job)
		if err != nil || report.Done != 1_001 {
			t.Fatal(report, err)
		}
		for i, p := range all[:len(all)-1] {
			if p.Elapsed != time.Duration(i+1)*10*time.Second || p.Final || p.Rate < 9 || p.Rate > 11 || p.Total != 1_001 {
				t.Errorf("%d: %+v", i, p)
			}
		}
		if last := all[len(all)-1]; !last.Final || last.Done != 1_001 || last.Rate != 1_001/last.Elapsed.Seconds() || last.Started != 0 {
			t.Errorf("%+v", last)
		}
	})
}

// TestProgressPanics passes a panic of Progress on to the caller of Run, also if that is the last call.
func TestProgressPanics(t *testing.T) {
	for _, final := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			job := batch.Job[int, int, int]{Items: count(100), Do: responds(time.Second), Limiter: newLimiter(t, throttle.PerSecond(5))}
			job.Progress = func(p batch.Progress) {
				if p.Final == final {
					panic("no ink")
				}
			}
			begun := time.Now()
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, "Progress panicked: no ink") || !strings.Contains(got, "progress_test.go") {
					t.Error(got)
				}
				if took := time.Since(begun); !final && took > 3*time.Second {
					t.Errorf("ended after %v", took)
				}
			}()
			report, err := batch.Run(t.Context(), job)
			t.Errorf("%v, %v", report, err)
		})
	}
}

// TestLog logs the start, each minute and the end, with attributes.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
		defer cancel()
		job := batch.Job[int, int, int]{Items: count(1_000), Total: 1_000, Limiter: newLimiter(t, throttle.PerSecond(5)), Log: slog.New(slog.NewJSONHandler(&out, nil))}
		job.Do = func(ctx context.Context, n int) (int, error) {
			if n == 7 {
				return 0, errors.New("bad")
			}
			return n, nil
		}
		if _, err := batch.Run(ctx, job); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		var messages []string
		for d := json.NewDecoder(&out); d.More(); {
			var r map[string]any
			if err := d.Decode(&r); err != nil {
				t.Fatal(err)
			}
			messages = append(messages, fmt.Sprint(r["msg"]))
			switch r["msg"] {
			case "batch goes on":
				if r["failed"] != 1.0 || r["total"] != 1000.0 || r["bound"] != "limiter" || r["rate"].(float64) < 4 || r["time_left"] == nil {
					t.Error(r)
				}
			case "batch ends":
				if r["err"] != "context deadline exceeded" || r["done"].(float64) < 700 || r["elapsed"] == nil {
					t.Error(r)
				}
			}
		}
		if got := strings.Join(messages, ", "); got != "batch starts, item failed, batch goes on, batch goes on, batch ends" {
			t.Error(got)
		}
	})
}
