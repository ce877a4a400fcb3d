// Command soakhour plays a fleet for an hour of real time while its parts break. Real processes with
// many callers each saturate a stand-in of a provider, and share its limits through a redis-server of
// their own. The parent kills, stops and empties the server, kills and replaces processes, moves them
// away from Redis, and deploys other limits, on a schedule that a seed decides. The stand-in counts by
// itself. The program prints a line each minute, and exits with 1 if one of these does not hold:
//
//   - The provider refuses no more than docs/faults.md allows: after a loss of the state one capacity of
//     each window and the reservations, and one for each request that arrives later than Policy.Guard.
//   - Outside of outages the fullest window is used by 0.85 on average.
//   - The memory and the goroutines of a process do not grow.
//   - No caller receives an unexpected error.
//   - In the end, long after the last fault, the limits are used in full and nothing is refused.
//
// It needs a redis-server.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/redistest"
)

var (
	length  = flag.Duration("for", time.Hour, "how long it takes, a minute at least")
	seed    = flag.Uint64("seed", 1, "the seed of the faults")
	every   = flag.Duration("every", 20*time.Second, "the mean time between faults")
	path    = flag.String("redis", "", "the redis-server. If empty, that of the PATH")
	workers = flag.Int("workers", 6, "the number of processes, 3 at least")
	callers = flag.Int("callers", 16, "the number of callers of each process")
)

// guard covers what a busy machine delays a request by. It costs little of the windows that decide.
const guard = 300 * time.Millisecond

var started = time.Now()

// stamp formats an instant as the time since the start.
func stamp(t time.Time) string {
	d := t.Sub(started).Round(time.Second)
	return fmt.Sprintf("%02d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

// Package redistest requires a test, so the program runs as one.
func main() {
	if text := os.Getenv(workerEnv); text != "" {
		os.Exit(runWorker(text))
	}
	testing.Init()
	flag.Parse()
	if *length < time.Minute || *workers <= lasting || *callers < 1 {
		fmt.Fprintln(os.Stderr, "soakhour: -for must be 1m or more, -workers 3 or more, and -callers 1 or more")
		os.Exit(2)
	}
	if *path != "" {
		_ = os.Setenv("THROTTLE_REDIS_SERVER", *path)
	}
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "soak", F: soak}}, nil, nil)
}

func soak(t *testing.T) {
	// A server that is killed has written all that it has answered, because it writes its log before
	// its replies.
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no", "--maxmemory-policy", "noeviction")
	stand := newProvider(guard)
	web := httptest.NewServer(http.Handler(stand))
	defer web.Close()
	f := startFleet(t, server.Addr(), *workers, job{Provider: web.URL, Callers: *callers, Guard: guard}, policyText(1))
	f.callers = (*workers + 1) * *callers
	defer f.stop()
	b, err := newBreaker(*seed, server, f, stand)
	if err != nil {
		t.Fatal(err)
	}

	quiet := *length / 8
	faulty, cancel := context.WithTimeout(t.Context(), *length-quiet)
	defer cancel()
	w := &watch{fleet: f, stand: stand, breaker: b, length: *length, quiet: quiet}
	watching := make(chan struct{})
	go func() { w.run(); close(watching) }()
	stand.outage(resumes) // the first workers start
	b.run(faulty, *every)
	fmt.Printf("%s  the last fault is over\n", stamp(time.Now()))
	<-watching
	f.stop()
	for _, failure := range w.verdict() {
		t.Error(failure)
	}
}
