// Asynq runs task handlers of a limited API on asynq. A task that the limit does not admit now is retried at
// its place in a line that all processes share, and holds no worker meanwhile.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/snooze"
	"github.com/apithrottle/throttle/throttletest"
)

// CallType is the type of tasks that send a request to the limited API. The payload is a number.
const CallType = "call"

// Snoozed is the error of a handler whose task comes back after a time. It is not a failure.
type Snoozed time.Duration

func (s Snoozed) Error() string { return "snoozed for " + time.Duration(s).String() }

// Refused is the error of a Send that the API has refused: how long it asked to wait, or zero if it did not say.
type Refused time.Duration

func (r Refused) Error() string { return "the API refuses requests for " + time.Duration(r).String() }

// A Caller handles tasks of the type CallType.
type Caller struct {
	Line  *snooze.Line
	Redis redis.UniversalClient
	Send  func(ctx context.Context, number string) error
}

// ProcessTask sends the request of a task, or snoozes the task.
func (w *Caller) ProcessTask(ctx context.Context, task *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	mark := "snoozed:" + id // asynq does not tell a handler that it has snoozed the task
	snoozed, err := w.Redis.Exists(ctx, mark).Result()
	if err != nil {
		return err
	}
	permit, again, err := w.Line.Acquire(ctx, nil, snoozed > 0)
	switch {
	case err != nil:
		return err // asynq tries again later
	case permit == nil:
		return errors.Join(Snoozed(again), w.Redis.Set(ctx, mark, 1, again+time.Hour).Err())
	}
	defer permit.Release()
	err = w.Send(ctx, string(task.Payload()))
	var refused Refused
	if errors.As(err, &refused) { // the others wait, too
		err = errors.Join(err, permit.Refused(ctx, time.Duration(refused)))
	}
	return err
}

// Config returns the configuration of a server whose handlers snooze tasks.
func Config(workers int) asynq.Config {
	return asynq.Config{
		Concurrency: workers,
		// The shortest that helps: asynq keeps the times of tasks in whole seconds.
		DelayedTaskCheckInterval: 500 * time.Millisecond,
		TaskCheckInterval:        100 * time.Millisecond,
		IsFailure:                func(err error) bool { return !errors.As(err, new(Snoozed)) },
		RetryDelayFunc: func(n int, err error, task *asynq.Task) time.Duration {
			var again Snoozed
			if errors.As(err, &again) {
				return time.Duration(again)
			}
			return asynq.DefaultRetryDelayFunc(n, err, task)
		},
	}
}

// takePlace keeps the last place of a line in a key, in microseconds. ARGV are wait and every.
var takePlace = redis.NewScript(`
	local now = redis.call('TIME')
	now = now[1] * 1000000 + now[2]
	local last = math.max(now + ARGV[1], (redis.call('GET', KEYS[1]) or 0) + ARGV[2])
	redis.call('SET', KEYS[1], string.format('%.0f', last), 'PX', string.format('%.0f', (last - now) / 1000 + 60000))
	return last - now`)

// take returns the Take of a line that processes share through Redis.
func take(rdb redis.UniversalClient, name string) func(ctx context.Context, wait, every time.Duration) (time.Duration, error) {
	return func(ctx context.Context, wait, every time.Duration) (time.Duration, error) {
		micros, err := takePlace.Run(ctx, rdb, []string{"line:" + name}, wait.Microseconds(), every.Microseconds()).Int64()
		return time.Duration(micros) * time.Microsecond, err
	}
}

// NewLine returns the line of a quota that is kept in Redis. In this process, waiting tasks at most wait in their
// workers at once, each for at most two seconds.
func NewLine(rdb redis.UniversalClient, p throttle.Policy, waiting int) (*snooze.Line, error) {
	limiter, err := throttle.New(p, distributed.New(rdb, distributed.Options{}))
	return &snooze.Line{Limiter: limiter, Resolution: time.Second, Waiting: waiting, Take: take(rdb, p.Name)}, err
}

// get sends the request of a task.
func get(url string) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch wait, _ := strconv.Atoi(resp.Header.Get("Retry-After")); {
	case resp.StatusCode == http.StatusTooManyRequests:
		return Refused(time.Duration(wait) * time.Second)
	case resp.StatusCode >= 400:
		return errors.New(resp.Status)
	}
	return nil
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "asynq:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("asynq", flag.ExitOnError)
	addr := f.String("redis", os.Getenv("REDIS_ADDR"), "`host:port` of a Redis server, by default $REDIS_ADDR")
	tasks := f.Int("tasks", 300, "how many tasks are enqueued")
	policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(20)}}
	f.TextVar(&policy, "policy", policy, "what the API allows")
	_ = f.Parse(args) // exits after an error
	if *addr == "" {
		return errors.New("no Redis server: set -redis to an address such as localhost:6379")
	}
	rdb := redis.NewClient(&redis.Options{Addr: *addr})
	defer rdb.Close()
	provider := throttletest.NewProvider(policy.Tiers...)
	defer provider.Close()
	line, err := NewLine(rdb, policy, 30)
	if err != nil {
		return err
	}
	client := asynq.NewClientFromRedisClient(rdb)
	for i := range *tasks {
		if _, err := client.EnqueueContext(ctx, asynq.NewTask(CallType, fmt.Append(nil, i))); err != nil {
			return err
		}
	}
	handlers := asynq.NewServeMux()
	handlers.Handle(CallType, &Caller{Line: line, Redis: rdb, Send: func(_ context.Context, number string) error {
		return get(provider.URL + "/" + number)
	}})
	server := asynq.NewServerFromRedisClient(rdb, Config(100))
	if err := server.Start(handlers); err != nil {
		return err
	}
	for start := time.Now(); provider.Summary().Sent < int64(*tasks); time.Sleep(time.Second) {
		sum := provider.Summary()
		fmt.Printf("%3.0fs: %d of %d sent, %d refused\n", time.Since(start).Seconds(), sum.Sent, *tasks, sum.Refused)
	}
	server.Shutdown()
	return nil
}
