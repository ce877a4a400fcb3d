package batch

import "crypto/rand"

// A book has what is done. Its methods but finish and fail are called in the order of the items.
type book interface {
	// id returns what tells the job from others, and is the same in each run.
	id() [16]byte
	// begin enters the next item of a job. It returns its number, and reports whether the item is done.
	begin(key string) (n int64, done bool, err error)
	// finish enters that an item is done, and fail that it has failed.
	finish(n int64) error
	fail(n int64, key string, reason error) error
	// leave ends the run that has opened the book.
	leave()
}

// openBook returns the book for a run of a job.
func openBook(j *Journal) (book, error) {
	if j != nil {
		return j.enter()
	}
	f := new(forgetful)
	_, _ = rand.Read(f[:]) // never fails
	return f, nil
}

// forgetful is the book of a job without a Journal: its id.
type forgetful [16]byte

func (f *forgetful) id() [16]byte                    { return *f }
func (*forgetful) begin(string) (int64, bool, error) { return 0, false, nil }
func (*forgetful) finish(int64) error                { return nil }
func (*forgetful) fail(int64, string, error) error   { return nil }
func (*forgetful) leave()                            {}
