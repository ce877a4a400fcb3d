package otelthrottle_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/apithrottle/throttle"
)

// pool returns a Pool "models" that m observes, with the members east and west. If joined, m observes their
// policies, too.
func (m *telemetry) pool(t testing.TB, joined bool, east, west string) *throttle.Pool {
	t.Helper()
	p, err := throttle.NewPool()
	if err != nil {
		t.Fatal(err)
	}
	p.Name, p.Observer = "models", m.observer
	for i, text := range []string{east, west} {
		name := []string{"east", "west"}[i]
		policy := m.policy(t, "gpt "+name, text)
		if !joined {
			policy.Observer = nil
		}
		if err := p.Add(throttle.Member{Name: name, Rank: i, Limiter: newLimiter(t, policy)}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// seriesOf returns the series of instruments, as text.
func seriesOf(points map[string][]point, instruments ...string) (all []string) {
	for _, name := range instruments {
		for _, p := range points[name] {
			all = append(all, fmt.Sprintf("%s %s %v", name, strings.ReplaceAll(p.attributes.Encoded(attribute.DefaultEncoder()), "throttle.", ""), p.value))
		}
	}
	slices.Sort(all)
	return all
}

// TestPool checks that the series of what a member has admitted name the Pool and the member, and that
// those of refused and queued requests, and of a Limiter, have no member.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTelemetry(t)
		p := m.pool(t, true, "2/s | guard=none", "1/h | guard=none")
		for i, want := range []string{"east", "east", "west", "east"} { // the last waits for a second
			permit, err := p.Acquire(t.Context(), nil)
			if err != nil || permit.Member() != want {
				t.Fatalf("request %d: %v by %q, want %s", i, err, permit.Member(), want)
			}
			if i > 0 {
				permit.Passed()
			}
		}
		if err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), throttle.Batch))
		time.AfterFunc(100*time.Millisecond, cancel)
		if err := p.Wait(ctx); err != context.Canceled {
			t.Fatal(err)
		}
		m.limiter(t, "api", "9/s").Allow()
		_, points := m.collect(t)
		got := seriesOf(points, "throttle.requests", "throttle.request.time_in_queue", "throttle.queued_requests", "throttle.active_requests", "throttle.responses")
		want := []string{
			"throttle.active_requests member=east,policy=models 1",
			"throttle.active_requests member=west,policy=models 0",
			"throttle.queued_requests class=batch,policy=models 0",
			"throttle.queued_requests class=normal,policy=models 0",
			"throttle.request.time_in_queue class=batch,policy=models,result=canceled 1",
			"throttle.request.time_in_queue class=normal,member=east,policy=models,result=admitted,tier=2/s 1",
			"throttle.requests class=batch,policy=models,result=canceled 1",
			"throttle.requests class=normal,member=east,policy=models,result=admitted 4",
			"throttle.requests class=normal,member=west,policy=models,result=admitted 1",
			"throttle.requests class=normal,policy=api,result=admitted 1",
			"throttle.responses kind=passed,member=east,policy=models 2",
			"throttle.responses kind=passed,member=west,policy=models 1",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if spans := m.spans.Ended(); len(spans) != 2 || !slices.Contains(spans[0].Attributes(), attribute.String("throttle.member", "east")) {
			t.Errorf("spans %v", spans)
		}
	})
}

// TestPoolBalances checks that the counters of 2,000 random callers add up, and that those of queued and
// active requests end at zero, whoever observes the members' policies.
func TestPoolBalances(t *testing.T) {
	for _, joined := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(3, 9))
			m := newTelemetry(t)
			p := m.pool(t, joined, "5/s | guard=none;max_wait=3s", "7/s + 4;algo=concurrency | guard=none")
			var mu sync.Mutex
			admitted := make(map[string]float64)
			var wg sync.WaitGroup
			for i := range 2000 {
				at, within, work := random.Int64N(150), random.Int64N(5000), random.Int64N(800)
				wg.Go(func() {
					time.Sleep(time.Duration(at) * time.Second)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(within)*time.Millisecond)
					defer cancel()
					permit, err := p.Acquire(ctx, nil)
					if err != nil {
						return
					}
					mu.Lock()
					admitted[permit.Member()]++
					mu.Unlock()
					time.Sleep(time.Duration(work) * time.Millisecond)
					switch i % 3 {
					case 0:
						permit.Passed()
					case 1:
						_ = permit.Cancel(ctx)
					}
					permit.Release()
				})
			}
			wg.Wait()
			_, points := m.collect(t)
			for _, name := range []string{"throttle.queued_requests", "throttle.active_requests"} {
				for _, p := range points[name] {
					if p.value != 0 {
						t.Errorf("%s is %v at the end of %s", name, p.value, p.attributes.Encoded(attribute.DefaultEncoder()))
					}
				}
			}
			for _, member := range []string{"east", "west"} {
				requests, responses := total(points["throttle.requests"], "throttle.member", member), total(points["throttle.responses"], "throttle.member", member)
				if n := admitted[member]; n == 0 || requests != n || responses != n {
					t.Errorf("%s: %v admitted and %v ended, want %v", member, requests, responses, n)
				}
			}
			if all, ofPool := total(points["throttle.requests"], "", ""), total(points["throttle.requests"], "throttle.policy", "models"); all != 2000 || ofPool != 2000 {
				t.Errorf("%v requests, %v of the Pool, want 2,000", all, ofPool)
			}
		})
	}
}

// TestOtherMembers checks that members beyond 200 share one series.
func TestOtherMembers(t *testing.T) {
	m := newTelemetry(t)
	for i := range 300 {
		member := fmt.Sprint("member ", i)
		m.observer.Admitted(t.Context(), throttle.AdmittedInfo{Policy: "models", Member: member, Held: true})
		m.observer.Answered(t.Context(), throttle.AnsweredInfo{Policy: "models", Member: member})
	}
	_, points := m.collect(t)
	for name, want := range map[string]float64{"throttle.requests": 100, "throttle.responses": 100, "throttle.active_requests": 0} {
		if other := total(points[name], "throttle.member", "_OTHER"); len(points[name]) != 201 || other != want {
			t.Errorf("%s has %d series, %v of other members; want 201 and %v", name, len(points[name]), other, want)
		}
	}
}
