//go:build darwin || linux

package batch

import (
	"context"
	"errors"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/apithrottle/throttle"
)

// TestJournalOnLimitedFile runs a job while the system lets no file be longer than some kilobytes. The job ends with the
// error, and what it has reported as done is in the file.
func TestJournalOnLimitedFile(t *testing.T) {
	limiter, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1_000_000)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "journal")
	const items = 3_000
	run := func() (Report, error) {
		journal, err := OpenJournal(path, JournalOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer journal.Close()
		return Run(t.Context(), Job[int, int, int]{
			Items: func(yield func(int, int) bool) {
				for i := 0; i < items && yield(i, i); i++ {
				}
			},
			Limiter: limiter,
			AtOnce:  10,
			Do:      func(_ context.Context, n int) (int, error) { return n, nil },
			Journal: journal,
		})
	}
	restore := limitFiles(t, 20_000)
	first, err := run()
	restore()
	if !errors.Is(err, syscall.EFBIG) || first.Done == 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := run()
	if err != nil || second.Skipped != first.Done || second.Done != items-first.Done {
		t.Errorf("first %+v, then %+v, %v", first, second, err)
	}
}

// limitFiles sets the largest size of a file in this process.
func limitFiles(t *testing.T, bytes uint64) (restore func()) {
	signal.Ignore(syscall.SIGXFSZ)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	limited := old
	limited.Cur = min(old.Cur, bytes)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limited); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
			t.Error(err)
		}
		signal.Reset(syscall.SIGXFSZ)
	}
}
