package cli

import (
	"bufio"
	"context"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/host"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// TestRedisScripts runs testdata/redis, with the URL of an empty server in $REDIS.
func TestRedisScripts(t *testing.T) {
	server := redistest.Start(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/redis", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("REDIS", "redis://"+server.Addr())
			return nil
		},
	})
}

// TestExecInTurn runs commands that print the time, eight at once, while others are killed that wait.
// The times are the arrivals at a provider that allows 5 in any second: it refuses none. The guard is
// a second, so it holds as long as no command takes a second longer to start than another one.
func TestExecInTurn(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("date has no nanoseconds here")
	}
	soak.Long(t, "runs many processes")
	t.Parallel()
	for name, flags := range map[string][]string{
		"file":  {"--file", filepath.Join(t.TempDir(), "quotas.db")},
		"Redis": {"--redis", "redis://" + redistest.Start(t).Addr()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := append([]string{"exec", "--quiet", "--policy", "5/s | guard=1s", "--name", "t"}, flags...)
			const commands, killed = 25, 5
			work := make(chan bool, commands+killed)
			for i := range commands + killed {
				work <- i%6 == 5
			}
			close(work)
			var mu sync.Mutex // guards arrivals
			var arrivals []int64
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for kill := range work {
						if kill { // before its turn, or during it
							c := exec.Command("throttle", slices.Concat(flags, []string{"--", "sleep", "1000"})...)
							if err := c.Start(); err != nil {
								t.Error(err)
								return
							}
							_ = c.Process.Kill()
							_ = c.Wait()
							continue
						}
						output, err := exec.Command("throttle", slices.Concat(flags, []string{"--", "date", "+%s%N"})...).Output()
						at, parseErr := strconv.ParseInt(strings.TrimSpace(string(output)), 10, 64)
						if err != nil || parseErr != nil {
							t.Errorf("%q: %v", output, err)
							return
						}
						mu.Lock()
						arrivals = append(arrivals, at/1000)
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if len(arrivals) != commands {
				t.Errorf("%d commands ran; want %d", len(arrivals), commands)
			}
			slices.Sort(arrivals)
			provider, err := throttletest.NewCounter(throttle.PerSecond(5))
			if err != nil {
				t.Fatal(err)
			}
			for i, at := range arrivals {
				if !provider.Arrive(at, nil) {
					t.Errorf("the provider refuses request %d at %d µs: %v", i, at, arrivals)
				}
			}
		})
	}
}

// TestWait waits for a second turn, which comes when the window of the first has ended.
func TestWait(t *testing.T) {
	t.Parallel()
	path, began := filepath.Join(t.TempDir(), "quotas.db"), time.Now()
	for range 2 {
		if output, err := exec.Command("throttle", "wait", "--quiet", "--file", path, "--policy", "1/2s", "--name", "t").CombinedOutput(); err != nil || len(output) > 0 {
			t.Errorf("%s%v", output, err)
		}
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("two turns of 1/2s took %v", took)
	}
}

// TestSignalWhileWaiting ends a command that waits. It charges nothing and has the exit code of the
// signal.
func TestSignalWhileWaiting(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, store := range [][]string{{"--file", filepath.Join(t.TempDir(), "quotas.db")}, {"--redis", "redis://" + server.Addr()}} {
		flags := slices.Concat([]string{"wait", "--policy", "2/h", "--name", "t"}, store)
		if output, err := exec.Command("throttle", flags...).CombinedOutput(); err != nil {
			t.Fatalf("%s%v", output, err)
		}
		waits := exec.Command("throttle", append(flags, "--cost", "requests=2")...)
		stderr, _ := waits.StderrPipe()
		if err := waits.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(stderr).ReadString('\n'); err != nil || !strings.Contains(line, "waiting") {
			t.Errorf("%q, %v", line, err)
		}
		_ = waits.Process.Signal(syscall.SIGTERM)
		_ = waits.Wait()
		if code := waits.ProcessState.ExitCode(); code != 128+15 {
			t.Errorf("exit code %d; want 143", code)
		}
		if output, err := exec.Command("throttle", append(flags, "--max-wait", "0s")...).CombinedOutput(); err != nil {
			t.Errorf("a turn is free: %s%v", output, err)
		}
	}
}

// TestKilled kills a command that waits and one that runs. The first leaves nothing charged, and the
// second what it was charged, so others wait no longer.
func TestKilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "quotas.db")
	throttled := func(args ...string) *exec.Cmd {
		return exec.Command("throttle", slices.Concat([]string{"exec", "--file", path, "--policy", "5/h", "--name", "t"}, args)...)
	}
	kill := func(c *exec.Cmd, when string) {
		t.Helper()
		stdout, _ := c.StdoutPipe()
		stderr, _ := c.StderrPipe()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		output := bufio.NewReader(stdout)
		if when != "runs" {
			output = bufio.NewReader(stderr)
		}
		line, err := output.ReadString('\n')
		if err != nil || !strings.Contains(line, when) {
			t.Errorf("%q, %v; want %q", line, err, when)
		}
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	used := func(want int64) {
		t.Helper()
		quotas, err := host.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer quotas.Close()
		l, err := throttle.New(throttle.Policy{Name: "t", Tiers: []throttle.Tier{throttle.PerHour(5)}}, quotas)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := l.Status(context.Background()); err != nil || s.Tiers[0].Used != want {
			t.Errorf("%v, %v; want %d used", s, err, want)
		}
	}
	kill(throttled("--", "sh", "-c", "echo runs; exec sleep 1000"), "runs")
	used(1)
	if output, err := throttled("--max-wait", "0s", "--cost", "requests=4", "--", "echo", "runs").CombinedOutput(); err != nil {
		t.Errorf("%s%v", output, err)
	}
	used(5)
	kill(throttled("--", "echo"), "throttle: t: waiting for 5/h, at least ")
	used(5)
}
