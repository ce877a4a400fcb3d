// Fleet runs processes that share a quota in PostgreSQL, and a provider that refuses what exceeds it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/throttletest"
)

const (
	callers     = 8                // in each process
	nameEnv     = "FLEET_NAME"     // the name of the quota, which makes a process a worker
	providerEnv = "FLEET_PROVIDER" // the URL of the provider
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("fleet", flag.ExitOnError)
	url := f.String("postgres", "", "`URL` of a database, by default $DATABASE_URL")
	policy := throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5), {Limit: 60, Window: 20 * time.Second}}}
	f.TextVar(&policy, "policy", policy, "what the processes may send together")
	processes := f.Int("processes", 3, "how many processes send")
	length := f.Duration("for", 20*time.Second, "how long they send")
	_ = f.Parse(args) // exits after an error
	if *url = cmp.Or(*url, os.Getenv("DATABASE_URL")); *url == "" {
		return errors.New("no database: set -postgres to a URL such as postgres://user:password@localhost/name")
	}
	pool, err := pgxpool.New(ctx, *url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if policy.Name = os.Getenv(nameEnv); policy.Name != "" {
		return work(ctx, pool, policy, *length, stdout)
	}
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		return err
	}
	provider := throttletest.NewProvider(policy.Tiers...)
	defer provider.Close()
	fmt.Fprintf(stdout, "%d processes of %d callers share %s for up to %v\n", *processes, callers, policy, *length)
	name, sent := fmt.Sprintf("fleet-%08x", rand.Uint32()), make([]string, *processes) // each run has a quota of its own
	err = each(*processes, func(i int) error {
		worker := exec.CommandContext(ctx, os.Args[0], args...) // this program
		worker.Env = append(os.Environ(), providerEnv+"="+provider.URL, nameEnv+"="+name)
		worker.Stderr = os.Stderr
		out, err := worker.Output()
		sent[i] = string(out)
		return err
	})
	sum := provider.Summary()
	fmt.Fprintf(stdout, "sent %d: %s; refused %d\n", sum.Sent, strings.Join(sent, " + "), sum.Refused)
	return err
}

// work is a process of the fleet. It prints how many requests it has sent.
func work(ctx context.Context, pool *pgxpool.Pool, policy throttle.Policy, length time.Duration, stdout io.Writer) error {
	store, err := postgres.New(pool, postgres.Options{})
	if err != nil {
		return err
	}
	lim, err := throttle.New(policy, store)
	if err != nil {
		return err
	}
	client := throttle.NewClient(lim)
	until, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var sent atomic.Int64
	err = each(callers, func(int) error {
		for {
			req, _ := http.NewRequestWithContext(until, http.MethodGet, os.Getenv(providerEnv), nil)
			switch resp, err := client.Do(req); { // waits its turn
			case err == nil:
				resp.Body.Close()
				sent.Add(1)
			case errors.Is(err, context.DeadlineExceeded):
				return nil
			default:
				return err
			}
		}
	})
	fmt.Fprint(stdout, sent.Load())
	return errors.Join(err, store.Flush(ctx)) // tells the others what this process has not used
}

// each runs f n times at once.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = f(i) })
	}
	running.Wait()
	return errors.Join(errs...)
}
