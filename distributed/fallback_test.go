package distributed_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// If there are more processes than units in the limit, each process gets one unit in a longer
// window, and the processes spread their requests over it.
func TestFallbackIsSpread(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		const processes, limit = 50, 5
		p := throttle.Policy{Name: "spread", Tiers: []throttle.Tier{per(sec, limit, throttle.SlidingLog)}}
		if err := near(t, s).Ping(t.Context()).Err(); err != nil { // starts the server
			t.Fatal(err)
		}
		breakable(s)(loading)
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var mu sync.Mutex
		var wg sync.WaitGroup
		sent := make([]int, 60) // by second
		for range processes {
			l := limiter(t, p, distributed.New(near(t, s), distributed.Options{Fallback: distributed.Fallback{Workers: processes}}))
			wg.Go(func() {
				for l.Wait(ctx) == nil {
					mu.Lock()
					sent[min(59, time.Since(began)/sec)]++
					mu.Unlock()
				}
			})
		}
		time.Sleep(time.Minute)
		cancel()
		wg.Wait()
		total := 0
		for _, n := range sent {
			total += n
			if n > 25 { // far from chance, if 50 processes choose among ten seconds
				t.Errorf("got %v sent in each second, want 25 at most", sent)
				break
			}
		}
		if total > 60*limit || total < 40*limit {
			t.Errorf("got %d sent in a minute, want %d to %d", total, 40*limit, 60*limit)
		}
	})
}

// A Group remembers what the process has sent without Redis.
func TestGroupKeepsFallback(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 4} {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			rdb := near(t, s)
			if err := rdb.Ping(t.Context()).Err(); err != nil { // starts the server
				t.Fatal(err)
			}
			breakable(s)(loading)
			g, err := throttle.NewGroup(throttle.Policy{Name: "each", Tiers: []throttle.Tier{throttle.PerHour(2)}}, distributed.New(rdb, distributed.Options{Fallback: distributed.Fallback{Workers: workers}}), throttle.GroupOptions{MaxKeys: 10})

			if err != nil {
				t.Fatal(err)
			}
			sent := 0
			for i := range 300 {
				for _, key := range []string{"one", fmt.Sprint("another ", i)} {
					if g.For(key).Allow() && key == "one" {
						sent++
					}
				}
				time.Sleep(12 * sec)
			}
			if sent > 2 {
				t.Errorf("%d workers: got %d sent in an hour, want 2 at most", workers, sent)
			}
		})
	}
}

// Refusals by the provider pause a process that sends without Redis, as often as they pause one
// with Redis.
func TestFallbackIsPaused(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		base := &refuser{}
		l := limiter(t, tenASecond, distributed.New(near(t, s), distributed.Options{Fallback: distributed.Fallback{Workers: 1}}))
		if err := l.Pause(t.Context(), sec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sec)
		reply := breakable(s)
		reply(loading)
		client := &http.Client{Transport: &throttle.Transport{Base: base, Limiter: l}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for ctx.Err() == nil {
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://provider", nil)
			if resp, err := client.Do(req); err == nil {
				resp.Body.Close()
			}
			time.Sleep(ms)
		}
		if n := base.n.Load(); n > 8 {
			t.Errorf("got %d refusals in a minute, want 8 at most", n)
		}
		reply("")
		time.Sleep(3 * time.Minute) // the process stays subscribed until the pause is over
	})
}

// A pause or a ban that a process has received also stops requests without Redis.
func TestFallbackKeepsPauses(t *testing.T) {
	for _, closes := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			q := quota(t, distributed.New(near(t, s), distributed.Options{Fallback: distributed.Fallback{Workers: 1}}), "known", plan(t, 50*ms, tenASecond.Tiers...))
			if _, err := q.Pause(t.Context(), store.Pause{For: time.Minute, Close: closes}); err != nil {
				t.Fatal(err)
			}
			reply := breakable(s)
			reply(loading)
			for range 50 {
				time.Sleep(sec)
				d, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}})
				if err != nil || d.Verdict == store.Admitted || closes != (d.Verdict == store.Closed) {
					t.Fatalf("got %+v, %v, want a refusal during the pause or ban", d, err)
				}
			}
			time.Sleep(15 * sec)
			if d, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}}); err != nil || d.Verdict != store.Admitted {
				t.Errorf("after the pause: got %+v, %v, want Admitted", d, err)
			}
			reply("")
		})
	}
}

// While Redis answers too late, what was sent without it is charged once, and not with each try.
func TestFallbackIsChargedOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var delay atomic.Int64
		delay.Store(int64(ms))
		store := distributed.New(distant(t, s, func() time.Duration { return time.Duration(delay.Load()) }), distributed.Options{Fallback: distributed.Fallback{Workers: 1}})
		l := limiter(t, throttle.Policy{Name: "once", Tiers: []throttle.Tier{throttle.PerHour(200)}}, store)
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		delay.Store(int64(2 * sec))
		sent := int64(1)
		for range 20 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			sent++
			time.Sleep(sec)
		}
		delay.Store(int64(ms))
		time.Sleep(5 * sec)
		if err := store.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		status, err := l.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if used := status.Tiers[0].Used; used < sent || used > sent+1 {
			t.Errorf("%d used, %d sent", used, sent)
		}
	})
}

// A policy that changes while Redis is away takes over what is to be charged, and the old one charges it no more.
func TestFallbackIsChargedOnceUnderNewPolicy(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		owing := distributed.New(near(t, s), distributed.Options{Fallback: distributed.Fallback{Workers: 1}})
		old := quota(t, owing, "owed", plan(t, 50*ms, throttle.PerHour(100)))
		acquire(t, old, []int64{1}, store.Admitted)
		reply := breakable(s)
		reply(loading)
		for range 20 {
			acquire(t, old, []int64{1}, store.Admitted)
		}
		if err := old.(store.Lifecycle).Change(t.Context(), plan(t, 50*ms, throttle.PerHour(101))); err != nil {
			t.Fatal(err)
		}
		acquire(t, successor(old), []int64{1}, store.Admitted)
		reply("")
		time.Sleep(sec)
		for _, q := range []store.Quota{old, successor(old)} {
			done := make(chan struct{})
			r := store.Request{Cost: []int64{1}, WaitSpec: &store.WaitSpec{MaxWait: hour}}
			q.(store.Reserver).Reserve(nil, []store.Request{r}, func([]store.Decision, error) { close(done) })
			<-done
		}
		if n := used(t, successor(old))["requests"]; n != 23 {
			t.Errorf("%d used, want 23", n)
		}
	})
}
