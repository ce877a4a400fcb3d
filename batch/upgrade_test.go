package batch_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
	"github.com/apithrottle/throttle/internal/upgradetest"
)

// A recordedJournal is a file that the code of a commit wrote, and what the functions of its job saw.
type recordedJournal struct {
	// Commit is the commit, and its date.
	Commit string `json:"commit"`
	// Calls describes the runs.
	Calls string `json:"calls"`
	// Items is the number of items, of which the keys are "item 0" and so on.
	Items int `json:"items"`
	// Done has the keys whose Result returned, and Failed the errors of those that failed.
	Done   []string          `json:"done"`
	Failed map[string]string `json:"failed"`
	File   []byte            `json:"file"`
}

// TestJournalUpgrade checks that a job goes on from the journal of an earlier release: what was done is not done again,
// and all else is. Each file of testdata/upgrade is of one commit. To record one:
//
//	go test ./batch -run TestJournalUpgrade -args -record NAME -commit "HASH, DATE"
func TestJournalUpgrade(t *testing.T) {
	if commit, ok := upgradetest.Recorded(); ok {
		upgradetest.Write(t, recordJournal(t, commit))
	}
	for _, name := range upgradetest.Names(t) {
		t.Run(name, func(t *testing.T) {
			r, path := openRecorded(t, name)
			j, err := batch.OpenJournal(path, batch.JournalOptions{})
			if err != nil {
				t.Fatal(err)
			}
			failed := make(map[string]string)
			for f, err := range j.Failed() {
				if err != nil {
					t.Fatal(err)
				}
				failed[f.Key] = f.Reason
			}
			if !maps.Equal(failed, r.Failed) {
				t.Errorf("got the failures %v, want %v", failed, r.Failed)
			}
			if j.Done() != int64(len(r.Done)) {
				t.Errorf("got %d done, want %d", j.Done(), len(r.Done))
			}
			called := runAll(t, j, r.Items, nil, nil)
			for i := range r.Items {
				key := itemKey(i)
				if done := slices.Contains(r.Done, key); called[key] == done {
					t.Errorf("%s: sent: %v, done before: %v", key, called[key], done)
				}
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			j, err = batch.OpenJournal(path, batch.JournalOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			if called := runAll(t, j, r.Items, nil, nil); len(called) > 0 {
				t.Errorf("a third run sent %v, want nothing", called)
			}
		})
	}
}

// TestJournalOfNewerFormat checks that a journal of the next version is refused, with an error that says to use a newer
// program, and stays as it is.
func TestJournalOfNewerFormat(t *testing.T) {
	r, path := openRecorded(t, slices.Max(upgradetest.Names(t)))
	version := len("throttle batch journal\n")
	r.File[version]++
	sum := version + 1 + 16
	binary.LittleEndian.PutUint32(r.File[sum:], crc32.Checksum(r.File[:sum], crc32.MakeTable(crc32.Castagnoli)))
	if err := os.WriteFile(path, r.File, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := batch.OpenJournal(path, batch.JournalOptions{})
	if err == nil || !strings.Contains(err.Error(), "has version 2 of the format, and this program knows 1: use a newer one") {
		t.Errorf("got %v, want an error that says to use a newer program", err)
	}
	if after, _ := os.ReadFile(path); string(after) != string(r.File) {
		t.Error("the file was changed")
	}
}

// openRecorded writes the file of a recorded journal.
func openRecorded(t *testing.T, name string) (r recordedJournal, path string) {
	t.Helper()
	upgradetest.Read(t, name, &r)
	path = filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(path, r.File, 0o600); err != nil {
		t.Fatal(err)
	}
	return r, path
}

func itemKey(i int) string { return fmt.Sprintf("item %d", i) }

// runAll runs a job of items and returns the keys of those that were sent. If do or result are nil, they have no error.
func runAll(t *testing.T, j *batch.Journal, items int, do func(i int) error, result func(key string, i int) error) (called map[string]bool) {
	t.Helper()
	l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100_000)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	called = make(map[string]bool)
	var mu sync.Mutex
	_, err = batch.Run(t.Context(), batch.Job[string, int, int]{
		Items: all(items), Limiter: l, Journal: j, AtOnce: 1, Retries: -1, Result: result,
		Do: func(_ context.Context, i int) (int, error) {
			mu.Lock()
			called[itemKey(i)] = true
			mu.Unlock()
			if do == nil {
				return i, nil
			}
			return i, do(i)
		},
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return called
}

func all(items int) iter.Seq2[string, int] {
	return func(yield func(string, int) bool) {
		for i := range items {
			if !yield(itemKey(i), i) {
				return
			}
		}
	}
}

// recordJournal returns a journal of two runs, of which a kill ends the second one: its file is copied before a result is
// entered.
func recordJournal(t *testing.T, commit string) recordedJournal {
	path := filepath.Join(t.TempDir(), "journal")
	r := recordedJournal{
		Commit: commit, Items: 40, Failed: map[string]string{},
		Calls: "a run of 20 items, of which every seventh failed; a run of 40, in which every fifth failed, and which was killed in the Result of item 33",
	}
	j, err := batch.OpenJournal(path, batch.JournalOptions{Sync: -1})
	if err != nil {
		t.Fatal(err)
	}
	fails := func(i, every int) error {
		if i%every == every-1 {
			return fmt.Errorf("item %d: no such order", i)
		}
		return nil
	}
	var done []string
	returned := func(key string, i int) error {
		if i == 33 {
			r.Done = slices.Clone(done)
			r.File, err = os.ReadFile(path)
		}
		done = append(done, key)
		return err
	}
	runAll(t, j, 20, func(i int) error { return fails(i, 7) }, returned)
	runAll(t, j, 40, func(i int) error { return fails(i, 5) }, returned)
	for _, i := range []int{24, 29} { // items 6 and 13 were done in the second run
		r.Failed[itemKey(i)] = fails(i, 5).Error()
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return r
}
