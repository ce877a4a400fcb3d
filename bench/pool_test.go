package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
)

// newPool returns a Pool of n members, each with a limiter of the policy.
func newPool(b *testing.B, n int, policy func(i int) throttle.Policy) *throttle.Pool {
	b.Helper()
	members := make([]throttle.Member, n)
	for i := range members {
		lim, err := throttle.New(policy(i), nil)
		if err != nil {
			b.Fatal(err)
		}
		members[i] = throttle.Member{Name: fmt.Sprint(i), Limiter: lim}
	}
	p, err := throttle.NewPool(members...)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

// wide is a policy whose limit is never reached, and shut is one that a single request exhausts.
func wide(int) throttle.Policy { return bucket(perSecond, time.Second) }
func shut(int) throttle.Policy { return bucket(1, 1000*time.Hour) }

// lastOpen is shut for all members but the last of 16.
func lastOpen(i int) throttle.Policy {
	if i < 15 {
		return shut(i)
	}
	return wide(i)
}

func bucket(limit int64, window time.Duration) throttle.Policy {
	return throttle.Policy{Name: "bench", Tiers: []throttle.Tier{
		{Limit: limit, Window: window, Algorithm: throttle.TokenBucket, Burst: limit},
	}}
}

func poolWait(b *testing.B, n int) {
	p, ctx := newPool(b, n, wide), context.Background()
	for b.Loop() {
		if err := p.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func limiterAcquire(b *testing.B) {
	lim, err := throttle.New(wide(0), nil)
	if err != nil {
		b.Fatal(err)
	}
	acquire(b, lim.Acquire)
}

func limiterWait(b *testing.B) {
	lim, err := throttle.New(wide(0), nil)
	if err != nil {
		b.Fatal(err)
	}
	throttleWait(b, lim)
}

func acquire(b *testing.B, acquire func(context.Context, throttle.Cost) (*throttle.Permit, error)) {
	ctx := context.Background()
	for b.Loop() {
		p, err := acquire(ctx, nil)
		if err != nil {
			b.Fatal(err)
		}
		p.Arrived()
		p.Release()
	}
}

func refused(b *testing.B, tryAcquire func(context.Context, throttle.Cost) (*throttle.Permit, error)) {
	ctx := context.Background()
	for range 16 { // exhaust all members
		if p, err := tryAcquire(ctx, nil); err == nil {
			p.Release()
		}
	}
	for b.Loop() {
		if _, err := tryAcquire(ctx, nil); err == nil {
			b.Fatal("admitted")
		}
	}
}

// BenchmarkPool/<limiter or pool of so many members>/<case> measures one call. The package comment
// describes the cases.
func BenchmarkPool(b *testing.B) {
	for _, bm := range []struct {
		name string
		run  func(*testing.B)
	}{
		{"limiter/wait", limiterWait},
		{"pool1/wait", func(b *testing.B) { poolWait(b, 1) }},
		{"pool16/wait", func(b *testing.B) { poolWait(b, 16) }},
		{"limiter/acquire", limiterAcquire},
		{"pool1/acquire", func(b *testing.B) { acquire(b, newPool(b, 1, wide).Acquire) }},
		{"pool16/acquire", func(b *testing.B) { acquire(b, newPool(b, 16, wide).Acquire) }},
		{"pool1/tryacquire", func(b *testing.B) { acquire(b, newPool(b, 1, wide).TryAcquire) }},
		{"pool16/tryacquire", func(b *testing.B) { acquire(b, newPool(b, 16, wide).TryAcquire) }},
		{"pool16/trylast", func(b *testing.B) {
			p := newPool(b, 16, lastOpen)
			for range 16 {
				if _, err := p.Acquire(context.Background(), nil); err != nil {
					b.Fatal(err)
				}
			}
			acquire(b, p.TryAcquire)
		}},
		{"limiter/refused", func(b *testing.B) {
			lim, err := throttle.New(shut(0), nil)
			if err != nil {
				b.Fatal(err)
			}
			refused(b, lim.TryAcquire)
		}},
		{"pool1/refused", func(b *testing.B) { refused(b, newPool(b, 1, shut).TryAcquire) }},
		{"pool16/refused", func(b *testing.B) { refused(b, newPool(b, 16, shut).TryAcquire) }},
		{"limiter/waitparallel", func(b *testing.B) {
			lim, err := throttle.New(wide(0), nil)
			if err != nil {
				b.Fatal(err)
			}
			twoGoroutines(b, func() bool { return lim.Wait(context.Background()) == nil })
		}},
		{"pool16/waitparallel", func(b *testing.B) {
			p := newPool(b, 16, wide)
			twoGoroutines(b, func() bool { return p.Wait(context.Background()) == nil })
		}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			bm.run(b)
		})
	}
}

// A waiting is a Limiter or a Pool.
type waiting interface {
	TryAcquire(context.Context, throttle.Cost) (*throttle.Permit, error)
	Acquire(context.Context, throttle.Cost) (*throttle.Permit, error)
}

func callersOf(b *testing.B, members int, policy func(int) throttle.Policy) waiting {
	if members > 0 {
		return newPool(b, members, policy)
	}
	lim, err := throttle.New(policy(0), nil)
	if err != nil {
		b.Fatal(err)
	}
	return lim
}

// BenchmarkPoolWaiting measures what n waiting callers need.
func BenchmarkPoolWaiting(b *testing.B) {
	for _, members := range []int{0, 1, 2, 16} {
		for _, n := range []int{1000, 10_000, 100_000} {
			for _, algorithm := range []throttle.Algorithm{throttle.GCRA, throttle.SlidingLog} {
				b.Run(fmt.Sprintf("%d/%d/%v", members, n, algorithm), func(b *testing.B) {
					for b.Loop() {
						b.StopTimer()
						manyWait(b, members, n, algorithm)
						b.StartTimer()
					}
				})
			}
		}
	}
}

func manyWait(b *testing.B, members, n int, algorithm throttle.Algorithm) {
	slow := func(int) throttle.Policy {
		return throttle.Policy{Name: "bench", Tiers: []throttle.Tier{{Limit: 10, Window: 24 * time.Hour, Algorithm: algorithm}}, Aging: time.Minute}
	}
	l := callersOf(b, members, slow)
	for range 10 * max(1, members) {
		_, _ = l.TryAcquire(context.Background(), nil)
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithTimeout(context.Background(), 1<<62)
	var done sync.WaitGroup
	began, cpu := time.Now(), cpuTime()
	classes := []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}
	for i := range n {
		done.Go(func() {
			_, _ = l.Acquire(throttle.WithClass(ctx, classes[i%3]), throttle.Cost{"requests": int64(1 + i%5)})
		})
		if i%64 == 0 { // the callers do not come all at once
			runtime.Gosched()
		}
	}
	for queued(l) < n {
		time.Sleep(time.Millisecond)
	}
	join, joinCPU := time.Since(began), cpuTime()-cpu
	time.Sleep(200 * time.Millisecond)
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/float64(n), "B/caller")
	b.ReportMetric(float64(runtime.NumGoroutine())/float64(n), "goroutines/caller")
	b.ReportMetric(float64(join)/1e3/float64(n), "join-µs")
	b.ReportMetric(float64(joinCPU)/1e3/float64(n), "join-cpu-µs")
	began, cpu = time.Now(), cpuTime()
	cancel()
	done.Wait()
	b.ReportMetric(float64(time.Since(began))/1e3/float64(n), "leave-µs")
	b.ReportMetric(float64(cpuTime()-cpu)/1e3/float64(n), "leave-cpu-µs")
}

func queued(w waiting) int {
	switch w := w.(type) {
	case *throttle.Pool:
		return w.Status(context.Background()).Waiting
	case *throttle.Limiter:
		s, _ := w.Status(context.Background())
		return s.Waiting
	}
	return 0
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkPoolSaturated measures the processor time of an admission while 1,000 callers wait.
func BenchmarkPoolSaturated(b *testing.B) {
	for _, perSecond := range []int64{1000, 10_000} {
		for _, members := range []int{0, 1, 2, 16} {
			b.Run(fmt.Sprintf("%d/%d", perSecond, members), func(b *testing.B) { saturate(b, members, perSecond) })
		}
	}
}

func saturate(b *testing.B, members int, perSecond int64) {
	n := int64(max(1, members))
	l := callersOf(b, members, func(int) throttle.Policy {
		return throttle.Policy{Name: "bench", Tiers: []throttle.Tier{{Limit: perSecond / n * 10, Window: 10 * time.Second, Algorithm: throttle.GCRA, Burst: 1}}}
	})
	ctx, cancel := context.WithCancel(context.Background())
	var admitted atomic.Int64
	var done sync.WaitGroup
	for range 1000 {
		done.Go(func() {
			for {
				p, err := l.Acquire(ctx, nil)
				if err != nil {
					return
				}
				admitted.Add(1)
				p.Arrived()
				p.Release()
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	var got int64
	var took, cpu time.Duration
	for b.Loop() {
		a, t, c := admitted.Load(), time.Now(), cpuTime()
		time.Sleep(time.Second)
		got, took, cpu = got+admitted.Load()-a, took+time.Since(t), cpu+cpuTime()-c
	}
	cancel()
	done.Wait()
	b.ReportMetric(float64(cpu)/1e3/float64(got), "cpu-µs/admission")
	b.ReportMetric(float64(got)/took.Seconds()/float64(perSecond), "of-limit")
}
