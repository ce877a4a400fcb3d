//go:build linux

package host_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/host"
	"github.com/apithrottle/throttle/internal/soak"
)

func init() { stopInside = stopAndGo }

func stopAndGo(path string) {
	s, err := host.Open(path)
	must(err)
	p := exact(throttle.PerHour(fresh))
	p.Name = "api"
	l, err := throttle.New(p, s)
	must(err)
	s.SetWall(func() int64 {
		if path != "" {
			path = ""
			fmt.Println("inside")
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
		return time.Now().UnixMicro()
	})
	fmt.Println(l.Allow())
	os.Exit(0)
}

// A process that is stopped inside its transaction holds the file until it continues or ends.
// Callers in other processes wait no longer than their context or the store's timeout, and the
// error names the stopped process. When that process continues, the others do too, and no charge is
// lost.
func TestStoppedProcess(t *testing.T) {
	soak.Long(t, "stops a process for seconds")
	for _, tc := range []struct {
		name   string
		signal syscall.Signal
		used   int
	}{
		{"continued", syscall.SIGCONT, 1},
		{"killed", syscall.SIGKILL, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := file(t)
			s := openFile(t, path)
			l := limiter(t, exact(throttle.PerHour(fresh)), s)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), asStopped+"="+path)
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
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			lines := bufio.NewScanner(out)
			if !lines.Scan() || lines.Text() != "inside" {
				t.Fatal(lines.Text())
			}
			if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
				t.Fatalf("%v, %v: want a stopped process", status, err)
			}

			paused := time.Now()
			var wg sync.WaitGroup
			for what, call := range map[string]func() error{
				"Wait": func() error {
					ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
					defer cancel()
					return l.Wait(ctx)
				},
				"Acquire": func() error {
					_, err := l.TryAcquire(t.Context(), throttle.Cost{"requests": 1})
					return err
				},
				"Status": func() error {
					_, err := l.Status(context.Background())
					return err
				},
				"Pause": func() error { return l.Pause(context.Background(), 5*sec) },
				"Open": func() error {
					_, err := host.Open(path)
					return err
				},
			} {
				wg.Go(func() {
					err, want := call(), fmt.Sprintf("process %d ", cmd.Process.Pid)
					if !errors.Is(err, throttle.ErrUnavailable) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "stopped") {
						t.Errorf("%s: %v, want ErrUnavailable and a text that contains %q and \"stopped\"", what, err, want)
					}
				})
			}
			wg.Wait()
			waits := make(chan error, 1)
			go func() { waits <- l.Wait(context.Background()) }()
			if err := cmd.Process.Signal(tc.signal); err != nil {
				t.Fatal(err)
			}
			_ = in.Close()
			if err := <-waits; err != nil {
				t.Error(err)
			}
			if time.Since(paused) < 5*sec {
				t.Error("the pause was lost")
			}
			for lines.Scan() {
				if lines.Text() != "true" {
					t.Error(lines.Text())
				}
			}
			_ = cmd.Wait()
			if n, want := allowed(l, 2*fresh), fresh-1-tc.used; n != want {
				t.Errorf("%d more requests are admitted, want %d", n, want)
			}
		})
	}
}
