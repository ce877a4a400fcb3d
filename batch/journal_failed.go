package batch

import (
	"bytes"
	"cmp"
	"io"
	"slices"
)

// failed calls yield for each item whose last outcome is a failure, until it returns false.
func (j *Journal) failed(yield func(Failure) bool) error {
	size, done, err := j.snapshot()
	if err != nil {
		return err
	}
	last, err := j.lastFailures(size)
	if err == nil && len(last) > 0 {
		last, err = j.notDone(last, size, done)
	}
	if err == nil && len(last) > 0 {
		err = j.yieldAt(last, size, yield)
	}
	if err != nil {
		return j.wrap(err)
	}
	return nil
}

// A failureAt is where the failure of an item is in the file. Its offset is negative if the item is done.
type failureAt struct {
	hash hash
	at   int64
}

func byHash(a, b failureAt) int { return bytes.Compare(a.hash[:], b.hash[:]) }

// each calls f for the entries up to an offset, until it returns false.
func (j *Journal) each(size int64, f func(*entry) bool) error {
	for r := j.reader(int64(headerLen), size); ; {
		e, err := r.written()
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

// lastFailures returns the last failure of each item, by hash.
func (j *Journal) lastFailures(size int64) ([]failureAt, error) {
	var all []failureAt
	err := j.each(size, func(e *entry) bool {
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
func (j *Journal) notDone(failures []failureAt, size int64, done bitmap) ([]failureAt, error) {
	n := int64(0)
	err := j.each(size, func(e *entry) bool {
		for starts := e.starts; len(starts) > 0; starts = starts[hashLen:] {
			if done.has(n) {
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
func (j *Journal) yieldAt(failures []failureAt, size int64, yield func(Failure) bool) error {
	return j.each(size, func(e *entry) bool {
		if e.at != failures[0].at {
			return true
		}
		failures = failures[1:]
		return yield(Failure{string(e.key), string(e.reason)}) && len(failures) > 0
	})
}
