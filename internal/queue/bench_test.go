package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A mix describes the waiters of a benchmark.
type mix struct {
	name      string
	deadlines bool  // the waiters have deadlines, which they meet
	classes   bool  // random classes; otherwise Normal
	costs     int64 // random costs up to this
}

var mixes = []mix{
	{"plain", false, false, 1},
	{"deadlines", true, false, 1},
	{"classes", true, true, 1},
	{"costs", true, true, 5},
}

// A benchQueue is a queue with waiters that have no goroutines.
type benchQueue struct {
	*Queue
	mix
	random  *rand.Rand
	waiters []*waiter
}

func newBenchQueue(b *testing.B, m mix, n int) *benchQueue {
	quota := quotaOf(b, algorithms.Tier{Limit: 1000, Window: 100 * time.Hour})
	h := &benchQueue{Queue: New(complete(Config{Quota: quota, Aging: time.Minute})), mix: m, random: rand.New(rand.NewPCG(1, 2))}
	for range 1000 {
		if d, _ := quota.TryAcquire(context.Background(), ticket().Request); d.Verdict != store.Admitted {
			b.Fatal(d)
		}
	}
	for range n {
		h.join(b)
	}
	return h
}

func (h *benchQueue) ticket() Ticket {
	t := ticket(1 + h.random.Int64N(h.costs))
	if h.deadlines {
		t.GiveUp = time.Now().Add(50 * 8766 * time.Hour)
	}
	if h.classes {
		t.Class = Class(h.random.IntN(3))
	}
	return t
}

func (h *benchQueue) join(b testing.TB) {
	t := h.ticket()
	w, do, _, err := h.enter(context.Background(), t)
	if err != nil {
		b.Fatal(err)
	}
	if do.ask {
		h.ask(context.Background(), w, do.generation)
	}
	h.waiters = append(h.waiters, w)
}

// leave cancels a random waiter.
func (h *benchQueue) leave(b testing.TB) {
	last := len(h.waiters) - 1
	i := h.random.IntN(last + 1)
	w := h.waiters[i]
	h.waiters[i], h.waiters = h.waiters[last], h.waiters[:last]
	if _, err := h.quit(w, context.Canceled); err != context.Canceled {
		b.Fatal(err)
	}
}

// refuse adds a newcomer that is late. If other waiters may be late too, the newcomer may be let
// in, and then leaves.
func (h *benchQueue) refuse(b testing.TB) {
	t := h.ticket()
	t.GiveUp = time.Now().Add(ms)
	w, _, _, err := h.enter(context.Background(), t)
	if err == nil {
		_, err = h.quit(w, context.Canceled)
	}
	if err == nil {
		b.Fatal("a newcomer was admitted")
	}
}

// freed simulates a response, after which the first waiter asks again.
func (h *benchQueue) freed(b testing.TB) {
	h.onChange(store.Freed, 0)
	w := h.Queue.waiters.first()
	if do := h.step(w); do.ask {
		h.ask(context.Background(), w, do.generation)
	}
}

// BenchmarkScaling measures each event with n waiting callers. It reports medians of batches.
func BenchmarkScaling(b *testing.B) {
	for _, m := range mixes {
		for n := 1000; n <= 1_000_000; n *= 10 {
			b.Run(fmt.Sprintf("%s/%d", m.name, n), func(b *testing.B) {
				h := newBenchQueue(b, m, n)
				runtime.GC()
				var join, leave, refuse, freed []float64
				b.ResetTimer()
				for i := 0; i < b.N; i += batch {
					join = append(join, timed(b, h.join))
					leave = append(leave, timed(b, h.leave))
					refuse = append(refuse, timed(b, h.refuse))
					freed = append(freed, timed(b, h.freed))
				}
				b.ReportMetric(median(join), "join-ns")
				b.ReportMetric(median(leave), "leave-ns")
				b.ReportMetric(median(refuse), "refuse-ns")
				b.ReportMetric(median(freed), "freed-ns")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkReplace measures for how long a new configuration stops admissions while n callers wait.
func BenchmarkReplace(b *testing.B) {
	for _, m := range mixes {
		for n := 1000; n <= 1_000_000; n *= 10 {
			b.Run(fmt.Sprintf("%s/%d", m.name, n), func(b *testing.B) {
				h := newBenchQueue(b, m, n)
				runtime.GC()
				b.ResetTimer()
				for range b.N {
					h.Replace(h.config)
				}
				b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(n), "ns/waiter")
			})
		}
	}
}

const batch = 500

// timed returns the average time of one call of a batch, in nanoseconds.
func timed(b *testing.B, do func(testing.TB)) float64 {
	began := time.Now()
	for range batch {
		do(b)
	}
	return float64(time.Since(began)) / batch
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// BenchmarkEnd measures how long n waiting callers with deadlines take to end when their context is
// canceled.
func BenchmarkEnd(b *testing.B) {
	for n := 1000; n <= 1_000_000; n *= 10 {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				quota := quotaOf(b, algorithms.Tier{Limit: 1, Window: time.Hour, Algorithm: algorithms.GCRA})
				q := New(complete(Config{Quota: quota}))
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, n)
				began := time.Now()
				for range n {
					go func() {
						_, err := q.Wait(ctx, ticket().until(began.Add(2*time.Duration(n)*time.Hour)))
						done <- err
					}()
				}
				for q.Len() < n-1 {
					time.Sleep(time.Millisecond)
				}
				b.ReportMetric(float64(time.Since(began))/float64(n), "ns/join")
				b.StartTimer()
				cancel()
				for range n {
					<-done
				}
			}
		})
	}
}
