package cli

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// arrivals is a writer that records when lines arrive.
type arrivals struct {
	lines []string
	times []time.Time
}

func (a *arrivals) Write(p []byte) (int, error) {
	a.lines, a.times = append(a.lines, string(p)), append(a.times, time.Now())
	return len(p), nil
}

// TestLines copies lines in virtual time. A provider that counts strictly, and receives each line when it
// is written, refuses none, and the lines come as early as its limits and the guard allow.
func TestLines(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM) // starts package signal outside of the bubble
	defer signal.Stop(signals)
	var in strings.Builder
	for i := range 100 {
		in.WriteString("line " + strconv.Itoa(i) + "\n")
	}
	in.WriteString("\n\r\nthe last line")
	synctest.Test(t, func(t *testing.T) {
		var out arrivals
		began := time.Now()
		code := Main(context.Background(), System{
			Stdin: strings.NewReader(in.String()), Stdout: &out, Stderr: io.Discard,
			Getenv: func(string) string { return "" }, Environ: func() []string { return nil },
		}, []string{"lines", "5/s + 30/m", "--guard", "0s"})
		if got := strings.Join(out.lines, ""); code != 0 || got != in.String() {
			t.Errorf("exit code %d, %q", code, got)
		}
		provider, err := throttletest.NewCounter(throttle.PerSecond(5), throttle.PerMinute(30))
		if err != nil {
			t.Fatal(err)
		}
		for i, at := range out.times {
			if len(strings.TrimSpace(out.lines[i])) > 0 && !provider.Arrive(at.UnixMicro(), nil) {
				t.Errorf("the provider refuses line %d after %v", i, at.Sub(began))
			}
		}
		if took := time.Since(began); took < 182*time.Second || took > 184*time.Second {
			t.Errorf("101 lines take %v", took)
		}
	})
}

// TestLinesRefused ends with the first line that may not wait, which is not written and not charged.
func TestLinesRefused(t *testing.T) {
	out, talk, code := runWith(t, "a\nb\nc\n", nil, "lines", "2/h", "--max-wait", "0s")
	if out != "a\nb\n" || !strings.Contains(talk, `policy "lines": the wait would outlast the deadline: `) || code != exitRefused {
		t.Errorf("%q, %q, %d", out, talk, code)
	}
	out, talk, code = runWith(t, "a\nb\nc\n", nil, "lines", "2/h", "--max-wait", "1s", "--json", "--cost", "requests=2")
	if out != "a\n" || !strings.HasPrefix(talk, `{"admitted":false,`) || code != exitRefused {
		t.Errorf("%q, %q, %d", out, talk, code)
	}
	out, talk, code = runWith(t, "a\n"+strings.Repeat("x", mostLine+1), nil, "lines", "2/h")
	if out != "a\n" || talk != "throttle: line 2 has more than 16 MB\n" || code != exitFailure {
		t.Errorf("%q, %q, %d", out, talk, code)
	}
}

// TestLinesShared copies lines in a quota that wait uses, too. A line that a signal keeps from being
// written is not charged.
func TestLinesShared(t *testing.T) {
	t.Parallel()
	quota := []string{"--file", filepath.Join(t.TempDir(), "quotas.db"), "--policy", "3/h", "--name", "q"}
	if out, err := exec.Command("throttle", append([]string{"wait"}, quota...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s%v", out, err)
	}
	for _, waits := range []bool{false, true} { // for a line, or for its turn
		cmd := exec.Command("throttle", append([]string{"lines"}, quota...)...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		io.WriteString(in, "one\n")
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "one\n" || err != nil {
			t.Errorf("%q, %v", line, err)
		}
		if waits {
			io.WriteString(in, "two\n")
			if text, err := bufio.NewReader(stderr).ReadString('\n'); !strings.HasPrefix(text, "throttle: q: waiting for 3/h") || err != nil {
				t.Errorf("%q, %v", text, err)
			}
		}
		_ = cmd.Process.Signal(syscall.SIGINT)
		rest, _ := io.ReadAll(stdout)
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGINT) || len(rest) > 0 {
			t.Errorf("exit code %d, and then %q", code, rest)
		}
	}
	out, err := exec.Command("throttle", append([]string{"status"}, quota...)...).Output()
	if err != nil || !strings.Contains(string(out), "q      3/h   3     3      0 ") {
		t.Errorf("%s%v", out, err)
	}
}

// TestSignalWhileReading ends a verb that reads its input. The first signal ends it, as it ends most
// programs.
func TestSignalWhileReading(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("throttle", "replay", "-", "--policy", "5/s", "--format", "jsonl")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The reader of lines looks ahead by 64 KB.
	io.WriteString(in, strings.Repeat("no line of a log\n", 10_000))
	if text, err := bufio.NewReader(stderr).ReadString('\n'); !strings.Contains(text, "line 1: it is not a JSON object") || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	_ = cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait()
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGINT {
		t.Errorf("it ends with %v", cmd.ProcessState)
	}
}
