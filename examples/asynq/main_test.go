package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/snooze"
	"github.com/apithrottle/throttle/throttletest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Run(m)) }

const (
	jobs      = 400
	perSecond = 20
	burst     = 2 * perSecond // with less, the guard would take a part of the rate
	pings     = 40
	slots     = 30 // workers of each client, of which half may wait
)

var policy = throttle.Policy{
	Name:  "api",
	Tiers: []throttle.Tier{{Limit: perSecond, Window: time.Second, Algorithm: throttle.TokenBucket, Burst: burst}},
	Guard: time.Second, // longer than a slow machine takes to send a request
}

// pingType is the type of other tasks, which no limit concerns. The payload is when they were enqueued.
const pingType = "ping"

// A bench is what the servers of a test share.
type bench struct {
	redis    *redistest.Server
	provider *throttletest.Provider
	tries    atomic.Int64 // of calls
	pinged   atomic.Int64
	slowest  atomic.Int64 // ping, in nanoseconds
}

// start starts a server as a process has it, with a client of Redis, a limiter and a line of its own.
func (b *bench) start(t *testing.T) {
	t.Helper()
	rdb := b.redis.Client()
	line, err := NewLine(rdb, policy, slots/2)
	if err != nil {
		t.Fatal(err)
	}
	caller, handlers := &Caller{Line: line, Redis: rdb, Send: b.send}, asynq.NewServeMux()
	handlers.HandleFunc(CallType, func(ctx context.Context, task *asynq.Task) error {
		b.tries.Add(1)
		return caller.ProcessTask(ctx, task)
	})
	handlers.HandleFunc(pingType, func(_ context.Context, task *asynq.Task) error {
		enqueued, err := time.Parse(time.RFC3339Nano, string(task.Payload()))
		b.pinged.Add(1)
		b.slowest.Store(max(b.slowest.Load(), int64(time.Since(enqueued))))
		return err
	})
	config := Config(slots)
	config.LogLevel = asynq.FatalLevel
	server := asynq.NewServerFromRedisClient(rdb, config)
	if err := server.Start(handlers); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
}

func (b *bench) send(ctx context.Context, number string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.provider.URL+"/"+number, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// TestSnoozedCallsUseTheLimit handles calls in two servers. Pings, which are enqueued behind them into the same
// queue, do not wait for them.
func TestSnoozedCallsUseTheLimit(t *testing.T) {
	b := &bench{redis: redistest.Start(t), provider: throttletest.NewProvider(policy.Tiers...)}
	defer b.provider.Close()
	client := asynq.NewClientFromRedisClient(b.redis.Client())
	for i := range jobs {
		if _, err := client.Enqueue(asynq.NewTask(CallType, fmt.Append(nil, i))); err != nil {
			t.Fatal(err)
		}
	}
	b.start(t)
	b.start(t)
	for range pings {
		if _, err := client.Enqueue(asynq.NewTask(pingType, []byte(time.Now().Format(time.RFC3339Nano)))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if sent := b.provider.Summary().Sent; b.pinged.Load() < pings/2 && sent > jobs/2 {
		t.Errorf("%d of %d pings were worked while %d calls were sent", b.pinged.Load(), pings, sent)
	}
	for end := time.Now().Add(2 * time.Minute); b.provider.Summary().Sent < jobs && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	b.judge(t)
}

// judge compares what the provider has counted with its limit.
func (b *bench) judge(t *testing.T) {
	t.Helper()
	sum, all := b.provider.Summary(), b.provider.Arrivals()
	if sum.Accepted != jobs || sum.Refused != 0 {
		t.Fatalf("%d accepted, %d refused, want %d and none", sum.Accepted, sum.Refused, jobs)
	}
	// The first ones are a burst, and the last ones are fewer than there is room for.
	const first, last = 2 * burst, jobs - perSecond
	goodput := (last - first) / all[last].At.Sub(all[first].At).Seconds()
	if goodput < 0.95*perSecond {
		t.Errorf("%.2f calls a second, want 0.95 of %d", goodput, perSecond)
	}
	tries := float64(b.tries.Load()) / jobs
	if tries > 4 {
		t.Errorf("%.2f tries a call, want 4", tries)
	}
	var displaced []int
	for i, a := range all {
		number := 0
		fmt.Sscanf(a.Path, "/%d", &number)
		displaced = append(displaced, max(i-number, number-i))
	}
	slices.Sort(displaced)
	t.Logf("%.2f calls a second, %.2f tries a call, half of the calls within %d places of their own, all within %d; the slowest ping took %v",
		goodput, tries, displaced[jobs/2], displaced[jobs-1], time.Duration(b.slowest.Load()).Round(time.Millisecond))
}

// TestRefusedCallPauses checks that a call which the API refuses fails, and that the others wait meanwhile.
func TestRefusedCallPauses(t *testing.T) {
	limiter, err := throttle.New(policy, nil)
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer api.Close()
	caller := &Caller{
		Line: &snooze.Line{Limiter: limiter}, Redis: redistest.Start(t).Client(),
		Send: func(context.Context, string) error { return get(api.URL) },
	}
	err = caller.ProcessTask(t.Context(), asynq.NewTask(CallType, nil))
	if !errors.As(err, new(Refused)) {
		t.Errorf("%v, want a refusal", err)
	}
	if s, err := limiter.Status(t.Context()); err != nil || s.Paused < 20*time.Second {
		t.Errorf("the quota is paused for %v, %v; want 30 s", s.Paused, err)
	}
}

func TestProgram(t *testing.T) {
	if err := run(t.Context(), []string{"-redis", redistest.Start(t).Addr(), "-tasks", "60"}); err != nil {
		t.Error(err)
	}
	t.Setenv("REDIS_ADDR", "")
	if err := run(t.Context(), nil); err == nil {
		t.Error("no error without a server")
	}
}
