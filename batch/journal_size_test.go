package batch

import (
	"bytes"
	"errors"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/soak"
)

// buffers is what a journal takes for any number of items.
const buffers = 1 << 20

// TestJournalTakesLittleMemory plays a job of many items, and resumes it in the same order and in another one.
func TestJournalTakesLittleMemory(t *testing.T) {
	soak.NoRace(t, "it measures memory")
	items := soak.Times(1_000_000) // ten million by "make soak"
	path := filepath.Join(t.TempDir(), "journal")
	before := heap()
	j, _ := openTimed(t, path)
	run, _ := j.enter()
	begun := time.Now()
	var last int64
	for i := range items {
		n, done, err := run.begin(strconv.Itoa(i))
		if i%1000 == 7 { // ends after a thousand others, as one at a time does
			last, n = n, last
		}
		if err = errors.Join(err, run.finish(n)); done || err != nil {
			t.Fatal(i, done, err)
		}
	}
	t.Logf("%.0f entries a second, %d bytes each", float64(items)/time.Since(begun).Seconds(), j.size/int64(items))
	checkHeap(t, "first run", before, buffers+items/4)
	if j.size > int64(28*items) {
		t.Errorf("the file has %d bytes", j.size)
	}
	left := items - int(j.Done())
	run.leave()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, backwards := range []bool{false, true} {
		checkResume(t, path, before, items, left, backwards)
	}
}

// checkResume begins all items again, of which some are left, and measures what that takes.
func checkResume(t *testing.T, path string, before uint64, items, left int, backwards bool) {
	j, took := openTimed(t, path)
	defer j.Close()
	run, _ := j.enter()
	begun := time.Now()
	for i := range items {
		if backwards {
			i = items - 1 - i
		}
		_, done, err := run.begin(strconv.Itoa(i))
		if err != nil {
			t.Fatal(err)
		}
		if !done {
			left--
		}
	}
	t.Logf("opened in %v, passed over in %v", took, time.Since(begun))
	limit := buffers + items/4
	if backwards {
		limit += 24 * items
	}
	checkHeap(t, "resume", before, limit)
	if left != 0 {
		t.Errorf("%d items too few are sent again", left)
	}
}

func openTimed(t *testing.T, path string) (*Journal, time.Duration) {
	begun := time.Now()
	j, err := OpenJournal(path, JournalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return j, time.Since(begun)
}

// heap returns how many bytes are in use after a collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func checkHeap(t *testing.T, what string, before uint64, limit int) {
	t.Helper()
	used := int(heap()) - int(before)
	t.Logf("%s: %d bytes, limit %d", what, used, limit)
	if used > limit {
		t.Errorf("%s: %d bytes, want at most %d", what, used, limit)
	}
}

func BenchmarkJournal(b *testing.B) {
	j, err := OpenJournal(filepath.Join(b.TempDir(), "journal"), JournalOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	run, _ := j.enter()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		n, _, err := run.begin(strconv.Itoa(i))
		if err = errors.Join(err, run.finish(n)); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzJournal opens frames of any bytes. A journal that is opened is opened again as the same.
func FuzzJournal(f *testing.F) {
	data, ends := written(f, true)
	id := [16]byte(data[len(magic)+1:])
	f.Add(data[headerLen:])
	f.Add(data[headerLen : ends[len(ends)/2]+3])
	f.Add(bytes.Repeat([]byte{kindStarted, 16}, 40))
	f.Fuzz(func(t *testing.T, frames []byte) {
		file := &memFile{data: append(newHeader(id), frames...)}
		j := newJournal("x", file, JournalOptions{Sync: time.Hour})
		before := bytes.Clone(file.data)
		if err := j.open(); err != nil {
			if !bytes.Equal(file.data, before) {
				t.Error("a file was changed that is not opened")
			}
			return
		}
		if !bytes.HasPrefix(before, file.data) {
			t.Error("more than the end was changed")
		}
		again := openFile(t, file, time.Hour)
		if again.size != j.size || again.Done() != j.Done() || again.has.started != j.has.started {
			t.Errorf("%+v is opened again as %+v", j.has, again.has)
		}
		failures(t, again)
		run, _ := again.enter()
		n, done, err := run.begin("key")
		if !done && err == nil {
			err = run.finish(n)
		}
		if err != nil || openFile(t, file, time.Hour).Done() < j.Done() {
			t.Error(err)
		}
	})
}

// FuzzFrame parses payloads of any bytes, as no fuzzer finds their sums.
func FuzzFrame(f *testing.F) {
	for _, kind := range []byte{kindStarted, kindDone, kindFailed, kindReordered, kindSynced} {
		f.Add(kind, []byte{1, 2, 3, 4})
		f.Add(kind, make([]byte, 33))
	}
	f.Fuzz(func(t *testing.T, kind byte, payload []byte) {
		w := frameWriter{at: 5}
		w.add(kind, payload)
		e, err := newFrameReader(offsetReader{w.buf}, 0, 5, 5+int64(len(w.buf))).next()
		if err != nil {
			return
		}
		c := contents{started: 3}
		c.add(&e)
		if len(e.starts)%hashLen != 0 || len(e.starts)+len(e.key)+len(e.reason) > len(payload) {
			t.Errorf("%+v", e)
		}
	})
}

// An offsetReader has bytes from offset 5 on.
type offsetReader struct{ data []byte }

func (r offsetReader) ReadAt(p []byte, at int64) (int, error) {
	return bytes.NewReader(r.data).ReadAt(p, at-5)
}
