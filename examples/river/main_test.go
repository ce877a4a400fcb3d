package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
	"github.com/apithrottle/throttle/snooze"
	"github.com/apithrottle/throttle/throttletest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

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

// A Ping is a job of another kind, which no limit concerns.
type Ping struct {
	Inserted time.Time `json:"inserted"`
}

func (Ping) Kind() string { return "ping" }

// A bench is what the clients of a test share.
type bench struct {
	url      string
	provider *throttletest.Provider
	tries    atomic.Int64 // of calls
	pinged   atomic.Int64
	slowest  atomic.Int64 // ping, in nanoseconds
}

// start starts a client as a process has it, with a pool, a limiter and a line of its own.
func (b *bench) start(t *testing.T) *river.Client[pgx.Tx] {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	line, err := NewLine(pool, policy, slots/2)
	if err != nil {
		t.Fatal(err)
	}
	workers := river.NewWorkers()
	caller := &Caller{Line: line, Send: b.send}
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[Call]) error {
		b.tries.Add(1)
		return caller.Work(ctx, job)
	}))
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[Ping]) error {
		b.pinged.Add(1)
		b.slowest.Store(max(b.slowest.Load(), int64(time.Since(job.Args.Inserted))))
		return nil
	}))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: slog.New(slog.DiscardHandler), Workers: workers,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: slots}},
		FetchPollInterval: pollInterval,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.StopAndCancel(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return client
}

func (b *bench) send(ctx context.Context, number int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/%d", b.provider.URL, number), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// TestSnoozedCallsUseTheLimit works calls in two clients. Pings, which are inserted behind them into the same
// queue, do not wait for them.
func TestSnoozedCallsUseTheLimit(t *testing.T) {
	b := &bench{url: pgtest.Shared(t).URL(), provider: throttletest.NewProvider(policy.Tiers...)}
	defer b.provider.Close()
	client := b.start(t)
	b.start(t)
	calls := make([]river.InsertManyParams, jobs)
	for i := range calls {
		calls[i].Args = Call{i}
	}
	if _, err := client.InsertMany(t.Context(), calls); err != nil {
		t.Fatal(err)
	}
	for range pings {
		if _, err := client.Insert(t.Context(), Ping{time.Now()}, nil); err != nil {
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
	caller := &Caller{Line: &snooze.Line{Limiter: limiter}, Send: func(context.Context, int) error { return get(api.URL) }}
	err = caller.Work(t.Context(), &river.Job[Call]{JobRow: &rivertype.JobRow{Metadata: []byte("{}")}})
	if !errors.As(err, new(Refused)) {
		t.Errorf("%v, want a refusal", err)
	}
	if s, err := limiter.Status(t.Context()); err != nil || s.Paused < 20*time.Second {
		t.Errorf("the quota is paused for %v, %v; want 30 s", s.Paused, err)
	}
}

func TestProgram(t *testing.T) {
	if err := run(t.Context(), []string{"-postgres", pgtest.Shared(t).URL(), "-jobs", "60"}); err != nil {
		t.Error(err)
	}
	t.Setenv("DATABASE_URL", "")
	if err := run(t.Context(), nil); err == nil {
		t.Error("no error without a database")
	}
}
