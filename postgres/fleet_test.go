package postgres_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
	"github.com/apithrottle/throttle/throttletest"
)

// asProcess is the environment variable that makes this test binary a process of a fleet: the arguments of
// process, by line.
const asProcess = "THROTTLE_TEST_POSTGRES_PROCESS"

func TestMain(m *testing.M) {
	if arguments := os.Getenv(asProcess); arguments != "" {
		process(strings.Split(arguments, "\n"))
	}
	os.Exit(pgtest.Run(m))
}

// process is a process of a fleet until its input ends. It prints when the requests of its callers arrived at the
// provider.
func process(arguments []string) {
	url, spec := arguments[0], arguments[1]
	callers, err := strconv.Atoi(arguments[2])
	must(err)
	pool, err := pgxpool.New(context.Background(), url)
	must(err)
	s, err := postgres.New(pool, postgres.Options{})
	must(err)
	p, err := throttle.ParsePolicy("fleet", spec)
	must(err)
	l, err := throttle.New(p, s)
	must(err)
	for range callers {
		go func() {
			for {
				must(l.Wait(context.Background()))
				time.Sleep(rand.N(10 * time.Millisecond))
				_, _ = os.Stdout.WriteString(strconv.FormatInt(time.Now().UnixMicro(), 10) + "\n")
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// A fleet is some processes that share a quota.
type fleet struct {
	spec    string
	callers int      // of each process
	urls    []string // of the database, by process
}

// run runs the fleet for some time and returns when its requests arrived at the provider, in µs, by process.
func (f *fleet) run(t *testing.T, length time.Duration) [][]int64 {
	arrived := make([][]int64, len(f.urls))
	var wg sync.WaitGroup
	for i, url := range f.urls {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%s\n%d", asProcess, url, f.spec, f.callers))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(length, func() { _ = in.Close() })
		wg.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				at, err := strconv.ParseInt(lines.Text(), 10, 64)
				if err != nil {
					t.Error(err)
				}
				arrived[i] = append(arrived[i], at)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	return arrived
}

// TestFleetOfProcesses compares three processes, one of them 1 ms and one 20 ms away from the server, with one that
// has all callers. How much they are admitted depends on the machine here, and package kept asserts more
// in virtual time. That the provider refuses nothing holds on any machine.
func TestFleetOfProcesses(t *testing.T) {
	t.Parallel()
	spec, length, window := "5/s + 60/20s | guard=250ms", time.Minute, 20*time.Second
	if testing.Short() || soak.Race {
		spec, length, window = "5/s + 12/4s | guard=250ms", 12*time.Second, 4*time.Second
	}
	database := func(ways ...time.Duration) (urls []string) {
		db := pgtest.Shared(t)
		openStore(t, db, postgres.Options{})
		for _, way := range ways {
			proxy := pgtest.NewProxy(t, db)
			proxy.SetDelay(way)
			urls = append(urls, proxy.URL())
		}
		return urls
	}
	var alone, together [][]int64
	var both sync.WaitGroup
	one := fleet{spec: spec, callers: 24, urls: database(0)}
	three := fleet{spec: spec, callers: 8, urls: database(0, time.Millisecond, 20*time.Millisecond)}
	both.Go(func() { alone = one.run(t, length) })
	both.Go(func() { together = three.run(t, length) })
	both.Wait()

	tiers := []throttle.Tier{throttle.PerSecond(5), {Limit: int64(window.Seconds() * 3), Window: window}}
	counts := make([]int, len(together))
	for i, a := range together {
		counts[i] = len(a)
	}
	all := slices.Concat(together...)
	least, most := float64(slices.Min(counts)), float64(slices.Max(counts))
	share := float64(len(all)) / float64(len(alone[0]))
	t.Logf("%d alone, %v together, which is %.3f; least ÷ most is %.2f", len(alone[0]), counts, share, least/most)
	for name, arrivals := range map[string][]int64{"one process": alone[0], "three processes": all} {
		if n := refused(t, arrivals, tiers); n > 0 {
			t.Errorf("%s: the provider refuses %d of %d requests", name, n, len(arrivals))
		}
	}
	if share < 0.8 || least < most/4 {
		t.Errorf("three processes sent %v requests, one %d", counts, len(alone[0]))
	}
}

// refused returns how many requests a strict provider refuses, which counts the requests that it has accepted
// within each window before an arrival.
func refused(t testing.TB, arrivals []int64, tiers []throttle.Tier) (n int) {
	tiers = slices.Clone(tiers)
	for i := range tiers {
		tiers[i].Algorithm = throttle.SlidingLog
	}
	provider, err := throttletest.NewCounter(tiers...)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(arrivals)
	for _, at := range arrivals {
		if !provider.Arrive(at, nil) {
			n++
		}
	}
	return n
}
