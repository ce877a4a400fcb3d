package batch

import (
	"fmt"
	"io"
	"slices"
)

// A journalRun is a run of a job with a Journal: its book.
type journalRun struct {
	*Journal
	n, recorded int64        // the next item, and how many the file had when the run began
	starts      *startReader // of the file
	reordered   bool         // items come in another order than in the file, or did so in a run before
	finished    hashSet      // what was done before the run, or before the order changed; nil if it is not needed
}

// enter begins a run.
func (j *Journal) enter() (*journalRun, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.err != nil:
		return nil, j.err
	case j.run != nil:
		return nil, j.wrap(ErrJournalInUse)
	}
	// What the run before has started and not written is not done, and has no entries.
	j.has.started -= int64(len(j.pending) / hashLen)
	j.pending = j.pending[:0]
	j.run = &journalRun{Journal: j, recorded: j.has.started, reordered: j.has.reordered, starts: j.startReader(j.size)}
	return j.run, nil
}

// leave ends a run.
func (r *journalRun) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run = nil
}

func (r *journalRun) id() [16]byte { return r.jobID }

// begin compares the order of the items with the one in the file, until it differs or the file has no more.
func (r *journalRun) begin(key string) (n int64, done bool, err error) {
	if len(key) > maxKey {
		return 0, false, r.wrap(fmt.Errorf("a key has %d bytes, and a journal takes at most %d", len(key), maxKey))
	}
	h := hashOf(key)
	if n, done, ok, err := r.nextRecorded(h); ok || err != nil {
		return n, done, err
	}
	if r.reordered {
		if r.finished == nil {
			if r.finished, err = r.finishedHashes(); err != nil {
				return 0, false, err
			}
		}
		if r.finished.has(h) {
			return 0, true, nil
		}
	}
	n, err = r.start(r, h)
	return n, false, err
}

// nextRecorded returns the number of the next item, and whether it is done, if the file has it next.
func (r *journalRun) nextRecorded(h hash) (n int64, done, ok bool, err error) {
	if r.reordered || r.n == r.recorded {
		return 0, false, false, nil
	}
	recorded, err := r.starts.next()
	if err != nil {
		return 0, false, false, r.wrap(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if recorded == h {
		n, r.n = r.n, r.n+1
		return n, r.has.done.has(n), true, nil
	}
	r.reordered, r.has.reordered, r.renew = true, true, true
	return 0, false, false, nil
}

// snapshot returns the size of the file, and what of it is done.
func (j *Journal) snapshot() (size int64, done bitmap, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == errClosed {
		return 0, nil, j.err
	}
	return j.size, slices.Clone(j.has.done), nil
}

// finishedHashes reads the hashes of the items that are done.
func (r *journalRun) finishedHashes() (hashSet, error) {
	size, done, err := r.snapshot()
	if err != nil {
		return nil, err
	}
	set := newHashSet(done.count())
	starts := r.startReader(size)
	for n := int64(0); ; n++ {
		h, err := starts.next()
		switch {
		case err == io.EOF:
			return set, nil
		case err != nil:
			return nil, r.wrap(err)
		case done.has(n):
			set.add(h)
		}
	}
}

// A startReader reads the hashes of items from a file.
type startReader struct {
	frames *frameReader
	rest   []byte
}

func (j *Journal) startReader(size int64) *startReader {
	return &startReader{frames: j.reader(int64(headerLen), size)}
}

func (s *startReader) next() (hash, error) {
	for len(s.rest) == 0 {
		e, err := s.frames.written()
		if err != nil {
			return hash{}, err
		}
		s.rest = e.starts
	}
	h := hash(s.rest)
	s.rest = s.rest[hashLen:]
	return h, nil
}
