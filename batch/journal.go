package batch

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"os"
	"sync"
	"time"
)

const defaultSync = time.Second

// ErrJournalInUse is the error of a Journal that another run has open.
var ErrJournalInUse = errors.New("in use by another run: wait until that has ended, or use another file")

// A Journal is a file that has what a job has done, so that a later run of the job goes on after the program was
// stopped or killed at any instant. It has the failed items, too; see Failed.
//
// What was entered is in the file before the next result is passed on, so that the end of the process loses none
// of it. A power failure loses at most what JournalOptions.Sync allows: those items are sent again.
//
// A job whose items come in the same order in each run takes an eighth of a byte of memory for each item. Once
// items have come in another order, because some were inserted or removed, a run takes another 23 bytes for each
// item that is done. In the file, an item takes 24 to 28 bytes.
//
// An item is known by its key. If several items of a run have the same key, each is sent once; later runs may
// leave all of them out when one is done.
//
// The file has hashes of the keys. Of failed items, it has the keys as they are, and the first 300 bytes of the
// errors, without the queries of URLs and without credentials. Keys must be at most 64 KiB long. A file that is
// damaged, by something else than the end of the process or a power failure, is not opened.
type Journal struct {
	path  string
	jobID [16]byte
	seed  uint32 // of sums
	wait  time.Duration

	mu      sync.Mutex // guards the fields below, and writes, which must have the order of the numbers
	file    file
	err     error // of all later calls
	has     contents
	run     *journalRun // nil if there is none
	pending []byte      // hashes that are not written
	renew   bool        // a frame is to tell that the items are reordered
	buf     []byte

	size, synced int64     // of the file, and what of that is on the disk
	told         int64     // what of synced is in the file
	changed      sync.Cond // syncing has become false
	syncing      bool
	timer        *time.Timer // of the next sync; nil if there is none
}

// A file is an *os.File.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Seeker
	io.Closer
	Sync() error
	Truncate(size int64) error
}

// JournalOptions are settings of a Journal.
type JournalOptions struct {
	// Sync is how long an entry may wait until it is on the disk, where a power failure does not lose it. If
	// negative, an item is on the disk before the next result is passed on, which costs a write to the disk for
	// each item. If zero, a second.
	Sync time.Duration
}

// OpenJournal opens the journal in a file, or creates it, for its owner alone. It reads the whole file, which
// takes a second or so for 10,000,000 items. The Journal must be closed. Its error is ErrJournalInUse if it is
// open, here or in another process. The end of a process, however it comes, closes the Journal. The locks that this
// needs are those of Linux, macOS, BSD and Windows; elsewhere, the error is errors.ErrUnsupported.
func OpenJournal(path string, o JournalOptions) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, openError(path, err)
	}
	j := newJournal(path, f, o)
	if err = checkAndLock(f); err == nil {
		err = j.open()
	}
	if err == nil {
		err = syncFolder(path)
	}
	if err != nil {
		_ = f.Close()
		return nil, j.wrap(err)
	}
	return j, nil
}

func newJournal(path string, f file, o JournalOptions) *Journal {
	j := &Journal{path: path, wait: cmp.Or(o.Sync, defaultSync), file: f}
	j.changed.L = &j.mu
	return j
}

// openError returns the error of a file that could not be opened, with what to do.
func openError(path string, err error) error {
	info, _ := os.Stat(path)
	switch {
	case info != nil && info.IsDir():
		return fmt.Errorf("batch: journal %s: is a directory: give the path of a file in it", path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("batch: journal %s: %w: this user must be able to read and write the file", path, err)
	}
	return fmt.Errorf("batch: journal %s: %w", path, err)
}

// checkAndLock locks a file that can be a journal.
func checkAndLock(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("is no regular file: give the path of one")
	}
	err = lock(f)
	if err != nil && err != ErrJournalInUse {
		err = fmt.Errorf("can't be locked against a second run: %w: use a file on a local disk", err)
	}
	return err
}

func (j *Journal) wrap(err error) error { return fmt.Errorf("batch: journal %s: %w", j.path, err) }

// Done returns how many items are done, in all runs.
func (j *Journal) Done() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.has.done.count()
}

// Close closes the file, after everything in it is on the disk. Call it when Run has returned.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == errClosed {
		return nil
	}
	if j.timer != nil {
		j.timer.Stop()
	}
	err := j.sync(j.size)
	if err == nil && j.size > j.told { // a later damage of the file is then known to be none by a power failure
		if err = j.write(func(*frameWriter) {}); err == nil {
			err = j.sync(j.size)
		}
	}
	j.err = errClosed
	return errors.Join(err, j.file.Close())
}

var errClosed = errors.New("batch: the journal is closed")

// finish and fail enter outcomes.
func (j *Journal) finish(n int64) error {
	return j.enterOutcome(func(w *frameWriter) {
		starts := j.putStarts(w, maxStarts)
		w.add(kindDone, j.back(n), starts)
	}, func() { j.has.done.add(n) })
}

func (j *Journal) fail(n int64, key string, reason error) error {
	return j.enterOutcome(func(w *frameWriter) {
		j.putStarts(w, 0)
		length := binary.AppendUvarint(nil, uint64(len(key)))
		w.add(kindFailed, j.back(n), length, []byte(key), []byte(reasonOf(reason)))
	}, func() {})
}

// back returns how entries refer to an item: by the number of items that have started since.
func (j *Journal) back(n int64) []byte { return binary.AppendUvarint(nil, uint64(j.has.started-1-n)) }

// enterOutcome writes an entry, and calls written if that succeeds.
func (j *Journal) enterOutcome(put func(*frameWriter), written func()) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.write(put); err != nil {
		return err
	}
	written()
	switch {
	case j.wait < 0:
		return j.sync(j.size)
	case j.timer == nil:
		j.timer = time.AfterFunc(j.wait, j.syncNow)
	}
	return nil
}

// start enters that an item of a run has started, and returns its number. It is written with a later entry.
func (j *Journal) start(r *journalRun, h hash) (n int64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.err != nil:
		return 0, j.err
	case j.run != r:
		return 0, errOver
	}
	n = j.has.started
	j.has.started++
	j.pending = append(j.pending, h[:]...)
	if len(j.pending) >= maxStarts*hashLen {
		err = j.write(func(w *frameWriter) { j.putStarts(w, 0) })
	}
	return n, err
}

// putStarts writes the pending hashes, except for at most some of them, which it returns.
func (j *Journal) putStarts(w *frameWriter, rest int) []byte {
	starts := j.pending
	for len(starts) > rest*hashLen {
		n := min(len(starts), maxStarts*hashLen)
		w.add(kindStarted, starts[:n])
		starts = starts[n:]
	}
	return starts
}

// write writes the frames that put adds, which must include the pending hashes if there is any. If it fails, the
// file is as before.
func (j *Journal) write(put func(*frameWriter)) error {
	if j.err != nil {
		return j.err
	}
	w := frameWriter{seed: j.seed, at: j.size, buf: j.buf[:0]}
	if j.synced > j.told {
		w.add(kindSynced, binary.AppendUvarint(nil, uint64(j.size-j.synced)))
	}
	if j.renew {
		w.add(kindReordered)
	}
	put(&w)
	j.buf = w.buf
	n, err := j.file.WriteAt(w.buf, j.size)
	if err == nil && n < len(w.buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		err = j.wrap(err)
		if cut := j.file.Truncate(j.size); cut != nil {
			j.err = err // else frames could follow half of one
		}
		return err
	}
	j.size += int64(n)
	j.told, j.renew, j.pending = j.synced, false, j.pending[:0]
	return nil
}

// syncNow syncs what was written until now.
func (j *Journal) syncNow() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.timer = nil
	_ = j.sync(j.size) // the next entry returns the error
}

// sync returns when the file is on the disk up to an offset. Calls at the same time share a sync.
func (j *Journal) sync(to int64) error {
	for j.synced < to && j.err == nil {
		if j.syncing {
			j.changed.Wait()
			continue
		}
		j.syncing = true
		size := j.size
		j.mu.Unlock()
		err := j.file.Sync()
		j.mu.Lock()
		j.syncing = false
		j.changed.Broadcast()
		if err != nil {
			j.err = j.wrap(err) // a second sync may succeed although the first has lost what it should write
			return j.err
		}
		j.synced = size
	}
	return j.err
}

// Failed yields the items whose last outcome is a failure, in the order of these. Items that fail during the
// iteration may be missing. It reads the file three times and takes 24 bytes for each failure. If that fails, the
// error comes last, with an empty Failure.
func (j *Journal) Failed() iter.Seq2[Failure, error] {
	return func(yield func(Failure, error) bool) {
		size, done, err := j.snapshot()
		if err == nil {
			err = (&failureReader{j, size, done}).all(func(f Failure) bool { return yield(f, nil) })
		}
		if err != nil {
			yield(Failure{}, err)
		}
	}
}

// A Failure is the last outcome of an item that a Journal has.
type Failure struct {
	Key string
	// Reason is the text of the error, without what a Journal leaves out.
	Reason string
}

// seedOf returns what the sums of the frames of a job begin with.
func seedOf(id [16]byte) uint32 { return crc32.Checksum(id[:], castagnoli) }
