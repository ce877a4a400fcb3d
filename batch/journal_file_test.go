package batch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/soak"
)

// A memFile is a file in memory, and what of it is on a disk.
type memFile struct {
	mu         sync.Mutex // guards the fields below
	data, disk []byte
	syncs      int
	slow       time.Duration // how long a sync takes
	room       int           // how many bytes more can be written, if full is set
	full       error         // of writes without room
	stuck      error         // of Truncate
}

func (f *memFile) ReadAt(p []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.NewReader(f.data).ReadAt(p, at)
}

func (f *memFile) WriteAt(p []byte, at int64) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full != nil && len(p) > f.room {
		p, err = p[:f.room], f.full
	}
	if more := int(at) + len(p) - len(f.data); more > 0 {
		f.data = append(f.data, make([]byte, more)...)
	}
	f.room -= len(p)
	return copy(f.data[at:], p), err
}

func (f *memFile) Seek(int64, int) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.data)), nil
}

func (f *memFile) Truncate(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stuck == nil {
		f.data = f.data[:n:n]
	}
	return f.stuck
}

func (f *memFile) Sync() error {
	f.mu.Lock()
	f.syncs++
	synced := bytes.Clone(f.data)
	f.mu.Unlock()
	time.Sleep(f.slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disk = synced
	return nil
}

func (f *memFile) Close() error { return nil }

// fail makes a power failure: each sector is as it was on the disk or as it was written last, and so is the size.
func (f *memFile) fail(r *rand.Rand) *memFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, b := len(f.disk), len(f.data)
	left := make([]byte, min(a, b)+r.IntN(max(a, b)-min(a, b)+1))
	for at := 0; at < len(left); at += sector {
		from := [][]byte{f.disk, f.data}[r.IntN(2)]
		copy(left[at:min(at+sector, len(left))], from[min(at, len(from)):])
	}
	return &memFile{data: left, disk: bytes.Clone(left), slow: f.slow}
}

const sector = 64 // smaller than the ones of a disk, so that there are many

// openFile opens the journal in a memFile.
func openFile(t testing.TB, f *memFile, sync time.Duration) *Journal {
	t.Helper()
	j := newJournal("memory", f, JournalOptions{Sync: sync})
	if err := j.open(); err != nil {
		t.Fatal(err)
	}
	return j
}

// TestJournalAfterPowerFailure lets the power fail at random times, for what is on a disk at random. The journal has
// every item that was done longer ago than JournalOptions.Sync, and two writes to the disk.
func TestJournalAfterPowerFailure(t *testing.T) {
	for _, wait := range []time.Duration{-1, time.Second} {
		for seed := range uint64(soak.Times(200)) {
			synctest.Test(t, func(t *testing.T) { powerFailures(t, seed, wait) })
		}
	}
}

func powerFailures(t *testing.T, seed uint64, wait time.Duration) {
	r := rand.New(rand.NewPCG(seed, 1))
	f := &memFile{slow: time.Duration(r.IntN(300)) * time.Millisecond}
	finished := map[string]time.Time{}
	for range 5 {
		j := openFile(t, f, wait)
		run, _ := j.enter()
		steps := r.IntN(60)
		for i := range steps {
			key := fmt.Sprint(i)
			n, done, err := run.begin(key)
			if _, was := finished[key]; err != nil || was && !done {
				t.Fatalf("seed %d: %s was done and is lost, %v", seed, key, err)
			}
			if !done {
				if err := run.finish(n); err != nil {
					t.Fatal(err)
				}
				finished[key] = time.Now()
			}
			time.Sleep(time.Duration(1+r.IntN(200)) * time.Millisecond)
		}
		f = f.fail(r)
		if wait > 0 {
			maps.DeleteFunc(finished, func(_ string, at time.Time) bool { return time.Since(at) <= wait+2*f.slow })
		}
		j.kill()
	}
	time.Sleep(time.Second) // a sync may go on
}

// TestJournalSyncsAreShared finishes items at the same time and in one: these share the writes to the disk.
func TestJournalSyncsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &memFile{}
		j := openFile(t, f, 0)
		run, _ := j.enter()
		before := f.syncs
		for i := range 10_000 {
			n, _, _ := run.begin(fmt.Sprint(i))
			if err := run.finish(n); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if n := f.syncs - before; n < 9 || n > 11 {
			t.Errorf("%d syncs in 10 s, want one a second", n)
		}
		_ = j.Close()
		if len(f.disk) != len(f.data) {
			t.Error("Close has left entries that are not on the disk")
		}
	})
}

// TestJournalOnFullDisk lets writes fail after any number of bytes. An item is in the file if and only if finish has
// returned no error, and entries follow when there is room.
func TestJournalOnFullDisk(t *testing.T) {
	for room := range 60 {
		for _, stuck := range []error{nil, errors.New("stuck")} {
			f := &memFile{}
			j := openFile(t, f, time.Hour)
			run, _ := j.enter()
			finish := func(key string) error {
				n, _, err := run.begin(key)
				return errors.Join(err, run.finish(n))
			}
			want := int64(0)
			f.room, f.full, f.stuck = room, io.ErrShortWrite, stuck
			for i := range 5 {
				if err := finish(fmt.Sprint(i)); err == nil {
					want++
				} else if !errors.Is(err, f.full) {
					t.Fatal(err)
				}
			}
			f.full = nil
			err := finish("more")
			if (err != nil) != (stuck != nil) {
				t.Fatalf("with room again, finish returns %v", err)
			} else if err == nil {
				want++
			}
			f.stuck = nil
			if got := openFile(t, f, time.Hour).Done(); got != want {
				t.Fatalf("room for %d bytes: %d items are done, want %d", room, got, want)
			}
			j.kill()
		}
	}
}
