package bench

import (
	"context"
	"errors"
	"math"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"
)

// The limits are too large for callers on one machine to reach.
const (
	perSecond = 1_000_000_000
	perHour   = 1_000_000_000_000
)

var errRefused = errors.New("a request was refused, although no limit was reached")

// BenchmarkLocal/<library>/<case> measures one call. The package comment describes the cases.
// A case has no benchmark of a library that doesn't support it.
func BenchmarkLocal(b *testing.B) {
	for _, bm := range []struct {
		name string
		run  func(*testing.B)
	}{
		// Ordered by case, not by library: compared benchmarks run side by side.
		{"throttle/wait1", throttleWait1},
		{"xtime/wait1", xtimeWait1},
		{"uber/wait1", uberWait1},
		{"failsafe/wait1", failsafeWait1},
		{"floor/wait1", floorAllow1}, // the floor never waits

		{"throttle/wait2", throttleWait2},
		{"xtime/wait2", xtimeWait2},
		{"uber/wait2", uberWait2},
		{"failsafe/wait2", failsafeWait2},
		{"floor/wait2", floorWait2},

		{"throttle/wait2window", throttleWait2Window},
		{"throttle/wait2observed", throttleWait2Observed},
		{"throttle/wait2stats", throttleWait2Stats},

		{"throttle/roundtrip2", throttleRoundTrip2},
		{"xtime/roundtrip2", xtimeRoundTrip2},
		{"uber/roundtrip2", uberRoundTrip2},
		{"failsafe/roundtrip2", failsafeRoundTrip2},
		{"floor/roundtrip2", floorRoundTrip2},

		{"throttle/roundtrip2cancel", throttleRoundTrip2Cancel},
		{"xtime/roundtrip2cancel", xtimeRoundTrip2Cancel},
		{"floor/roundtrip2cancel", floorRoundTrip2Cancel},

		{"throttle/allow1", throttleAllow1},
		{"xtime/allow1", xtimeAllow1},
		{"failsafe/allow1", failsafeAllow1},
		{"floor/allow1", floorAllow1},

		{"throttle/allow1parallel", throttleAllow1Parallel},
		{"xtime/allow1parallel", xtimeAllow1Parallel},
		{"failsafe/allow1parallel", failsafeAllow1Parallel},
		{"floor/allow1parallel", floorAllow1Parallel},

		{"throttle/allow2parallel", throttleAllow2Parallel},
		{"xtime/allow2parallel", xtimeAllow2Parallel},
		{"failsafe/allow2parallel", failsafeAllow2Parallel},
		{"floor/allow2parallel", floorAllow2Parallel},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			bm.run(b)
		})
	}
}

// throttle

func newThrottle(b *testing.B, algorithm throttle.Algorithm, tiers int) *throttle.Limiter {
	b.Helper()
	lim, err := throttle.New(throttle.Policy{Name: "bench", Tiers: []throttle.Tier{
		{Limit: perSecond, Window: time.Second, Algorithm: algorithm},
		{Limit: perHour, Window: time.Hour, Algorithm: algorithm},
	}[:tiers]}, nil)
	if err != nil {
		b.Fatal(err)
	}
	return lim
}

func throttleAllow1(b *testing.B) {
	lim := newThrottle(b, throttle.GCRA, 1)
	for b.Loop() {
		if !lim.Allow() {
			b.Fatal(errRefused)
		}
	}
}

func throttleAllow1Parallel(b *testing.B) {
	twoGoroutines(b, newThrottle(b, throttle.GCRA, 1).Allow)
}

func throttleAllow2Parallel(b *testing.B) {
	twoGoroutines(b, newThrottle(b, throttle.GCRA, 2).Allow)
}

func throttleWait1(b *testing.B) { throttleWait(b, newThrottle(b, throttle.GCRA, 1)) }

func throttleWait2(b *testing.B) { throttleWait(b, newThrottle(b, throttle.GCRA, 2)) }

// throttleWait2Window waits on two tiers of the default algorithm, SlidingLog. Limits of this
// size are counted in sliding windows.
func throttleWait2Window(b *testing.B) { throttleWait(b, newThrottle(b, throttle.SlidingLog, 2)) }

// throttleWait2Observed waits on two tiers with an Observer that does nothing.
func throttleWait2Observed(b *testing.B) {
	throttleWaitObserved(b, &throttle.Observer{Admitted: func(context.Context, throttle.AdmittedInfo) {}})
}

// throttleWait2Stats waits on two tiers with an Observer that counts.
func throttleWait2Stats(b *testing.B) { throttleWaitObserved(b, observe.NewStats().Observer()) }

func throttleWaitObserved(b *testing.B, o *throttle.Observer) {
	lim, err := throttle.New(throttle.Policy{Name: "bench", Tiers: []throttle.Tier{
		{Limit: perSecond, Window: time.Second, Algorithm: throttle.GCRA},
		{Limit: perHour, Window: time.Hour, Algorithm: throttle.GCRA},
	}, Observer: o}, nil)
	if err != nil {
		b.Fatal(err)
	}
	throttleWait(b, lim)
}

func throttleWait(b *testing.B, lim *throttle.Limiter) {
	ctx := context.Background()
	for b.Loop() {
		if err := lim.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func throttleRoundTrip2(b *testing.B) { roundTrip(b, throttleTransport(b)) }

func throttleRoundTrip2Cancel(b *testing.B) { roundTripCancel(b, throttleTransport(b)) }

func throttleTransport(b *testing.B) http.RoundTripper {
	return &throttle.Transport{Base: newBase(), Limiter: newThrottle(b, throttle.GCRA, 2)}
}

// golang.org/x/time/rate

func newXtime() (second, hour *rate.Limiter) {
	return rate.NewLimiter(perSecond, math.MaxInt32), rate.NewLimiter(perHour/3600, math.MaxInt32)
}

func xtimeAllow1(b *testing.B) {
	lim, _ := newXtime()
	for b.Loop() {
		if !lim.Allow() {
			b.Fatal(errRefused)
		}
	}
}

func xtimeAllow1Parallel(b *testing.B) {
	lim, _ := newXtime()
	twoGoroutines(b, lim.Allow)
}

func xtimeAllow2Parallel(b *testing.B) {
	second, hour := newXtime()
	twoGoroutines(b, func() bool { return second.Allow() && hour.Allow() })
}

func xtimeWait1(b *testing.B) {
	ctx := context.Background()
	lim, _ := newXtime()
	for b.Loop() {
		if err := lim.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func xtimeWait2(b *testing.B) {
	ctx := context.Background()
	second, hour := newXtime()
	for b.Loop() {
		if err := second.Wait(ctx); err != nil {
			b.Fatal(err)
		}
		if err := hour.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func xtimeRoundTrip2(b *testing.B) { roundTrip(b, xtimeTransport()) }

func xtimeRoundTrip2Cancel(b *testing.B) { roundTripCancel(b, xtimeTransport()) }

func xtimeTransport() http.RoundTripper {
	second, hour := newXtime()
	return &waiter{newBase(), func(ctx context.Context) error {
		if err := second.Wait(ctx); err != nil {
			return err
		}
		return hour.Wait(ctx)
	}}
}

// go.uber.org/ratelimit, in which every call may wait

func newUber() (second, hour ratelimit.Limiter) {
	return ratelimit.New(perSecond), ratelimit.New(perHour / 3600)
}

func uberWait1(b *testing.B) {
	lim, _ := newUber()
	for b.Loop() {
		lim.Take()
	}
}

func uberWait2(b *testing.B) {
	second, hour := newUber()
	for b.Loop() {
		second.Take()
		hour.Take()
	}
}

func uberRoundTrip2(b *testing.B) {
	second, hour := newUber()
	roundTrip(b, &waiter{newBase(), func(context.Context) error {
		second.Take()
		hour.Take()
		return nil
	}})
}

// github.com/failsafe-go/failsafe-go

func newFailsafe() (second, hour ratelimiter.RateLimiter[any]) {
	return ratelimiter.NewBursty[any](perSecond, time.Second), ratelimiter.NewBursty[any](math.MaxInt32, time.Second)
}

func failsafeAllow1(b *testing.B) {
	lim, _ := newFailsafe()
	for b.Loop() {
		if !lim.TryAcquirePermit() {
			b.Fatal(errRefused)
		}
	}
}

func failsafeAllow1Parallel(b *testing.B) {
	lim, _ := newFailsafe()
	twoGoroutines(b, lim.TryAcquirePermit)
}

func failsafeAllow2Parallel(b *testing.B) {
	second, hour := newFailsafe()
	twoGoroutines(b, func() bool { return second.TryAcquirePermit() && hour.TryAcquirePermit() })
}

func failsafeWait1(b *testing.B) {
	ctx := context.Background()
	lim, _ := newFailsafe()
	for b.Loop() {
		if err := lim.AcquirePermit(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func failsafeWait2(b *testing.B) {
	ctx := context.Background()
	second, hour := newFailsafe()
	for b.Loop() {
		if err := second.AcquirePermit(ctx); err != nil {
			b.Fatal(err)
		}
		if err := hour.AcquirePermit(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func failsafeRoundTrip2(b *testing.B) {
	second, hour := newFailsafe()
	roundTrip(b, &waiter{newBase(), func(ctx context.Context) error {
		if err := second.AcquirePermit(ctx); err != nil {
			return err
		}
		return hour.AcquirePermit(ctx)
	}})
}

// The floor.

func floorAllow1(b *testing.B) { floorAllow(b, newFloor(1)) }

func floorWait2(b *testing.B) { floorAllow(b, newFloor(2)) }

func floorAllow(b *testing.B, f *floor) {
	for b.Loop() {
		if !f.allow() {
			b.Fatal(errRefused)
		}
	}
}

func floorAllow1Parallel(b *testing.B) { twoGoroutines(b, newFloor(1).allow) }

func floorAllow2Parallel(b *testing.B) { twoGoroutines(b, newFloor(2).allow) }

func floorRoundTrip2(b *testing.B) { roundTrip(b, floorTransport()) }

func floorRoundTrip2Cancel(b *testing.B) { roundTripCancel(b, floorTransport()) }

func floorTransport() http.RoundTripper {
	f := newFloor(2)
	return &waiter{newBase(), func(context.Context) error {
		if !f.allow() {
			return errRefused
		}
		return nil
	}}
}

// The functions below are shared by all cases.

// twoGoroutines calls allow from exactly two goroutines, on two processors. RunParallel starts
// a goroutine for each processor, which would otherwise be all of the machine's.
func twoGoroutines(b *testing.B, allow func() bool) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	b.SetParallelism(1)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if !allow() {
				b.Error(errRefused)
				return
			}
		}
	})
}

func roundTrip(b *testing.B, rt http.RoundTripper) { roundTrips(b, context.Background(), rt) }

// roundTripCancel sends requests with a context that can end, as http.Client does under a Timeout.
func roundTripCancel(b *testing.B, rt http.RoundTripper) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	roundTrips(b, ctx, rt)
}

func roundTrips(b *testing.B, ctx context.Context, rt http.RoundTripper) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example/", nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		resp, err := rt.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}

// A base responds immediately, always with the same response.
type base struct{ resp http.Response }

func newBase() *base {
	return &base{http.Response{
		Status: "200 OK", StatusCode: http.StatusOK,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{},
	}}
}

func (t *base) RoundTrip(req *http.Request) (*http.Response, error) {
	t.resp.Body = http.NoBody // resets the body, which the last caller may have wrapped
	t.resp.Request = req
	return &t.resp, nil
}

// A waiter is the RoundTripper that users write for a limiter without one.
type waiter struct {
	base http.RoundTripper
	wait func(context.Context) error
}

func (t *waiter) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := t.wait(req.Context()); err != nil {
		return nil, err
	}
	return t.base.RoundTrip(req)
}
