package batch

import (
	"bytes"
	"cmp"
	"io"
	"slices"
)

// A failureReader finds the failed items of a journal.
type failureReader struct {
	*Journal
	size int64  // of the file
	done bitmap // of what that has
}

// all calls yield for each item whose last outcome is a failure, until it returns false.
func (r *failureReader) all(yield func(Failure) bool) error {
	failures, err := r.last()
	if err == nil && len(failures) > 0 {
		failures, err = r.notDone(failures)
	}
	if err == nil && len(failures) > 0 {
		err = r.yieldAt(failures, yield)
	}
	if err != nil {
		return r.wrap(err)
	}
	return nil
}

// A failureAt is where the failure of an item is in the file. Its offset is negative if the item is done.
type failureAt struct {
	hash hash
	at   int64
}

func byHash(a, b failureAt) int { return bytes.Compare(a.hash[:], b.hash[:]) }

// each calls f for the entries until it returns false.
func (r *failureReader) each(f func(*entry) bool) error {
	for frames := r.reader(int64(headerLen), r.size); ; {
		e, err := frames.written()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case !f(&e):
			return nil
		}
	}
}

// last returns the last failure of each item, by hash.
func (r *failureReader) last() ([]failureAt, error) {
	var all []failureAt
	err := r.each(func(e *entry) bool {
		if e.kind == kindFailed {
			all = append(all, failureAt{hashOf(string(e.key)), -e.at})
		}
		return true
	})
	slices.SortFunc(all, func(a, b failureAt) int { return cmp.Or(byHash(a, b), cmp.Compare(a.at, b.at)) })
	all = slices.CompactFunc(all, func(a, b failureAt) bool { return a.hash == b.hash })
	for i := range all {
		all[i].at = -all[i].at
	}
	return all, err
}

// notDone returns the failures whose items are not done, in the order of the file.
func (r *failureReader) notDone(failures []failureAt) ([]failureAt, error) {
	n := int64(0)
	err := r.each(func(e *entry) bool {
		for starts := e.starts; len(starts) > 0; starts = starts[hashLen:] {
			if r.done.has(n) {
				if i, ok := slices.BinarySearchFunc(failures, failureAt{hash: hash(starts)}, byHash); ok {
					failures[i].at = -1
				}
			}
			n++
		}
		return true
	})
	failures = slices.DeleteFunc(failures, func(f failureAt) bool { return f.at < 0 })
	slices.SortFunc(failures, func(a, b failureAt) int { return cmp.Compare(a.at, b.at) })
	return failures, err
}

// yieldAt calls yield for failures, until it returns false.
func (r *failureReader) yieldAt(failures []failureAt, yield func(Failure) bool) error {
	return r.each(func(e *entry) bool {
		if e.at != failures[0].at {
			return true
		}
		failures = failures[1:]
		return yield(Failure{string(e.key), string(e.reason)}) && len(failures) > 0
	})
}
