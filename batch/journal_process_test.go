package batch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/leaktest"
	"github.com/apithrottle/throttle/internal/soak"
)

const childVariable = "BATCH_TEST_CHILD"

func TestMain(m *testing.M) {
	switch mode, arg, _ := strings.Cut(os.Getenv(childVariable), " "); mode {
	case "run":
		os.Exit(runChild(arg))
	case "hold":
		os.Exit(holdChild(arg))
	}
	os.Exit(leaktest.Run(m))
}

// child returns the command of this program in another mode.
func child(mode string, args ...any) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+mode+" "+strings.TrimSpace(fmt.Sprintln(args...)))
	cmd.Stderr = os.Stderr
	return cmd
}

const childItems = 4_000

// runChild runs a job whose requests and results are lines of a file.
func runChild(arg string) int {
	var folder string
	var order uint64
	if _, err := fmt.Sscan(arg, &order, &folder); err != nil {
		panic(err)
	}
	journal, err := OpenJournal(filepath.Join(folder, "journal"), JournalOptions{})
	if err != nil {
		panic(err)
	}
	lines, err := os.OpenFile(filepath.Join(folder, "lines"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	write := func(kind string, n int) error {
		_, err := fmt.Fprintln(lines, kind, n)
		return err
	}
	limiter, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1_000_000)}}, nil)
	if err != nil {
		panic(err)
	}
	report, err := Run(context.Background(), Job[int, int, int]{
		Items:   inOrder(order),
		Limiter: limiter,
		AtOnce:  20,
		Do: func(ctx context.Context, n int) (int, error) {
			err := write("sent", n)
			time.Sleep(rand.N(time.Millisecond))
			return n, err
		},
		Result:  func(_, n int) error { return write("result", n) },
		Journal: journal,
	})
	if err = errors.Join(err, journal.Close()); err != nil || report.Failed+report.Left > 0 {
		fmt.Fprintln(os.Stderr, report, err)
		return 1
	}
	return 0
}

// inOrder yields the items in one of several orders.
func inOrder(order uint64) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for i, n := range rand.New(rand.NewPCG(order, 0)).Perm(childItems) {
			if order == 0 {
				n = i
			}
			if !yield(n, n) {
				return
			}
		}
	}
}

// TestJournalOfKilledProcess kills a process at random instants, and runs its job to the end then. Each item has a
// result. Only those are sent twice that were in flight when the process was killed. In every other job, the order of
// the items changes between runs.
func TestJournalOfKilledProcess(t *testing.T) {
	kills := 15
	if !testing.Short() && !soak.Race {
		kills = soak.Times(200)
	}
	killed, twice, job := 0, 0, 0
	for ; killed < kills; job++ {
		folder := t.TempDir()
		for ended := false; !ended; {
			order := 0
			if job%2 == 1 {
				order = rand.IntN(3)
			}
			cmd := child("run", order, folder)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if killed < kills {
				defer time.AfterFunc(rand.N(100*time.Millisecond), func() { _ = cmd.Process.Kill() }).Stop()
			}
			err := cmd.Wait()
			switch ended = err == nil; {
			case cmd.ProcessState.ExitCode() > 0:
				t.Fatal(err)
			case !ended:
				killed++
			}
			mark(t, filepath.Join(folder, "lines"))
		}
		twice += checkLines(t, filepath.Join(folder, "lines"))
	}
	t.Log(job, "jobs,", killed, "kills,", twice, "items sent again")
}

// mark tells that a process has ended.
func mark(t *testing.T, path string) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, "end 0")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// checkLines checks what the processes of a job have done. It returns how many items were sent again.
func checkLines(t *testing.T, path string) (again int) {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const none = -1
	var sent, over, results [childItems]bool
	last := none // the item whose result may not be in the journal
	for line := range strings.Lines(string(data)) {
		kind, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(number)
		switch {
		case err != nil:
			t.Fatalf("line %q", line)
		case kind == "sent" && over[n]:
			t.Fatalf("item %d is sent again after its result", n)
		case kind == "sent":
			if sent[n] {
				again++
			}
			sent[n] = true
		case kind == "result":
			if last != none {
				over[last] = true
			}
			last, results[n] = n, true
		default:
			last = none
		}
	}
	for n, ok := range results {
		if !ok {
			t.Fatalf("item %d is lost", n)
		}
	}
	return again
}

// holdChild opens a journal and waits.
func holdChild(path string) int {
	if _, err := OpenJournal(path, JournalOptions{}); err != nil {
		panic(err)
	}
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// TestJournalIsOpenOnce opens a journal that is open in another process, and in this one. The lock ends with the process
// that has it.
func TestJournalIsOpenOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	cmd := child("hold", path)
	in, _ := cmd.StdinPipe()
	defer in.Close()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatal(line, err)
	}
	before, _ := os.ReadFile(path)
	_, err := OpenJournal(path, JournalOptions{})
	after, _ := os.ReadFile(path)
	if !errors.Is(err, ErrJournalInUse) || !strings.Contains(err.Error(), path) || !bytes.Equal(before, after) {
		t.Errorf("open in another process: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	j, err := OpenJournal(path, JournalOptions{})
	if err != nil {
		t.Fatalf("after the other process: %v", err)
	}
	if _, err := OpenJournal(path, JournalOptions{}); !errors.Is(err, ErrJournalInUse) {
		t.Errorf("open in this process: %v", err)
	}
	if err := errors.Join(j.Close(), j.Close()); err != nil {
		t.Error(err)
	}
	j, err = OpenJournal(path, JournalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
}

// TestJournalHasOneRun runs a job within another one with the same Journal, and then after it.
func TestJournalHasOneRun(t *testing.T) {
	limiter, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1_000)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	job := Job[int, int, int]{
		Items:   func(yield func(int, int) bool) { _ = yield(1, 1) && yield(2, 2) },
		Limiter: limiter,
		Journal: openFile(t, &memFile{}, time.Hour),
	}
	inner := job
	inner.Do = func(context.Context, int) (int, error) { return 0, nil }
	job.Do = func(ctx context.Context, n int) (int, error) {
		if _, err := Run(ctx, inner); !errors.Is(err, ErrJournalInUse) {
			t.Errorf("a second run: %v", err)
		}
		return 0, errors.New("later")
	}
	if report, err := Run(t.Context(), job); err != nil || report.Failed != 2 {
		t.Errorf("%+v, %v", report, err)
	}
	for done := range int64(2) {
		if report, err := Run(t.Context(), inner); err != nil || report.Done != 2*(1-done) || report.Skipped != 2*done {
			t.Errorf("%+v, %v", report, err)
		}
	}
	job.Journal.kill()
	if _, err := Run(t.Context(), inner); err != errClosed {
		t.Errorf("closed: %v", err)
	}
}
