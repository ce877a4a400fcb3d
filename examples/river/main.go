// River runs job workers of a limited API on River. A job that the limit does not admit now is snoozed
// until its place in a line that all processes share, and holds no worker meanwhile.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/snooze"
	"github.com/apithrottle/throttle/throttletest"
)

// Call is a job that sends a request to the limited API.
type Call struct {
	Number int `json:"number"`
}

// Kind names the kind of job.
func (Call) Kind() string { return "call" }

// Refused is the error of a Send that the API has refused: how long it asked to wait, or zero if it did not say.
type Refused time.Duration

func (r Refused) Error() string { return "the API refuses requests for " + time.Duration(r).String() }

// A Caller works jobs of the kind Call.
type Caller struct {
	river.WorkerDefaults[Call]

	Line *snooze.Line
	Send func(ctx context.Context, number int) error
}

// Work sends the request of a job, or snoozes the job.
func (w *Caller) Work(ctx context.Context, job *river.Job[Call]) error {
	var past struct{ Snoozes int } // River counts them
	_ = json.Unmarshal(job.Metadata, &past)
	permit, again, err := w.Line.Acquire(ctx, nil, past.Snoozes > 0)
	switch {
	case err != nil:
		return err // River tries again later
	case permit == nil:
		return river.JobSnooze(again)
	}
	defer permit.Release()
	err = w.Send(ctx, job.Args.Number)
	var refused Refused
	if errors.As(err, &refused) { // the others wait, too
		err = errors.Join(err, permit.Refused(ctx, time.Duration(refused)))
	}
	return err
}

// pollInterval is the FetchPollInterval of clients. River notices a snoozed job that is due at its next poll, so
// the default of a second would use up all of the line's Resolution.
const pollInterval = 250 * time.Millisecond

// The last place of a line is a row of the table snooze_line.
const (
	createLine = `CREATE TABLE IF NOT EXISTS snooze_line (name text PRIMARY KEY, last timestamptz NOT NULL)`
	takePlace  = `INSERT INTO snooze_line AS line VALUES ($1, now() + $2::interval)
		ON CONFLICT (name) DO UPDATE SET last = greatest(excluded.last, line.last + $3::interval)
		RETURNING (extract(epoch FROM last - now()) * 1000000)::bigint`
)

// take returns the Take of a line that processes share through a database.
func take(pool *pgxpool.Pool, name string) func(ctx context.Context, wait, every time.Duration) (time.Duration, error) {
	return func(ctx context.Context, wait, every time.Duration) (time.Duration, error) {
		rows, err := pool.Query(ctx, takePlace, name, wait, every)
		if err != nil {
			return 0, err
		}
		micros, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
		return time.Duration(micros) * time.Microsecond, err
	}
}

// NewLine returns the line of a quota that is kept in a database. In this process, waiting jobs at most wait in their
// workers at once, each for at most two seconds.
func NewLine(pool *pgxpool.Pool, p throttle.Policy, waiting int) (*snooze.Line, error) {
	store, err := postgres.New(pool, postgres.Options{})
	if err != nil {
		return nil, err
	}
	limiter, err := throttle.New(p, store)
	return &snooze.Line{Limiter: limiter, Resolution: time.Second, Waiting: waiting, Take: take(pool, p.Name)}, err
}

// Migrate creates the tables of River, of the quota and of the line.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	err = errors.Join(err, postgres.Migrate(ctx, pool, postgres.Options{}))
	_, failed := pool.Exec(ctx, createLine)
	return errors.Join(err, failed)
}

// get sends the request of a job.
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
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("river", flag.ExitOnError)
	url := f.String("postgres", "", "`URL` of a database, by default $DATABASE_URL")
	jobs := f.Int("jobs", 300, "how many jobs are inserted")
	policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(20)}}
	f.TextVar(&policy, "policy", policy, "what the API allows")
	_ = f.Parse(args) // exits after an error
	if *url = cmp.Or(*url, os.Getenv("DATABASE_URL")); *url == "" {
		return errors.New("no database: set -postgres to a URL such as postgres://user:password@localhost/name")
	}
	pool, err := pgxpool.New(ctx, *url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := Migrate(ctx, pool); err != nil {
		return err
	}
	provider := throttletest.NewProvider(policy.Tiers...)
	defer provider.Close()
	line, err := NewLine(pool, policy, 30)
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &Caller{Line: line, Send: func(_ context.Context, number int) error {
		return get(fmt.Sprintf("%s/%d", provider.URL, number))
	}})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		FetchPollInterval: pollInterval,
	})
	if err != nil {
		return err
	}
	calls := make([]river.InsertManyParams, *jobs)
	for i := range calls {
		calls[i].Args = Call{i}
	}
	if _, err := client.InsertMany(ctx, calls); err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	for start := time.Now(); provider.Summary().Sent < int64(*jobs); time.Sleep(time.Second) {
		sum := provider.Summary()
		fmt.Printf("%3.0fs: %d sent, %d refused, %d snoozed\n", time.Since(start).Seconds(), sum.Sent, sum.Refused, int64(*jobs)-sum.Sent)
	}
	return client.Stop(ctx)
}
