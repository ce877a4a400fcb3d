// Package kept makes a store of anything that keeps bytes by name, has a lock for each name, and a
// clock: a file, or a table of a database. The decisions are made in this process, by a ledger of
// package algorithms. Package host and module postgres are such stores. Use those two, unless you
// need a store that does not exist, such as one in MySQL: it takes a [Keeper] and [New].
//
//	quotas := kept.New(keeper, kept.Options{Name: "mysql", Shared: "a table of MySQL", Ahead: true})
//	lim, err := throttle.New(policy, quotas)
//
// # A keeper
//
// A Keeper has one method, Update, which runs a transaction. It has to guarantee the following.
//
//   - The values are the last ones that any process has written. Read them after their locks are
//     granted, from the primary, and not in a snapshot that is older than the locks: a value that
//     is out of date forgets admissions. A name without a value can often not be locked. Then
//     Update begins again if another process has inserted the value meanwhile.
//   - Wall is one clock for all processes, read after the last lock was granted. If it is read
//     before, a process counts requests earlier than those that were decided before them. Databases
//     may read their clock when a statement begins, so read it by a statement of its own.
//   - Sent is before this process asked for the time, and Got is after it had the reply. From these
//     two the store knows how far the clocks differ. A wrong instant makes processes send too
//     early.
//   - The writes are made all or none, and none if change fails. The error of change is returned,
//     or wrapped.
//   - An error that may pass wraps store.ErrUnavailable. Callers then wait and try again until
//     their contexts end. They receive any other error at once.
//   - The locks end without the process. If it is stopped in the middle of a transaction, the
//     server must end the transaction within about a second. Otherwise one process stops the whole
//     fleet.
//
// A transaction may fail although it was made, if the reply to its commit is lost. The store finds
// that out from the next one. Names are 16 bytes, and values at most [MostBytes] if Ahead is set. A
// value may be deleted at its Expires, but not sooner: that is 30 days after the last request if responses
// have taught a rate or a limit.
//
// A Keeper that is a [Listener], too, tells other processes of pauses at once. Without it, a
// process with waiting callers looks every 250 to 500 ms. Package store/storetest tests the whole
// contract: see the example.
//
// # What a transaction costs
//
// If Options.Ahead is set, a process with waiting callers reserves in one transaction the times
// within a Horizon behind the first one, up to 256. The locks are held while the values travel to
// the process and back. If Ahead is not set, each admission is a transaction, which is for files on
// the same machine.
//
// Before v1.0.0 this package may change in any minor version: see docs/compatibility.md.
package kept

import (
	"context"
	"errors"
	"time"
)

// A Keeper keeps values by name for all processes that share it. It is safe for concurrent use.
type Keeper interface {
	// Update runs one transaction on the values of some names, which are sorted and differ. It locks the
	// names, calls change with their values, and writes what change returns: all of it or nothing.
	// Update may call change again, if another process was first. Only the last call counts, and
	// none does if Update fails.
	//
	// The error is the error of change, or it wraps store.ErrUnavailable if a later call may succeed.
	// After such an error the values may have been written, and another call finds that out. Update
	// blocks until its context ends at most.
	Update(ctx context.Context, names [][]byte, change func(View) ([]Write, error)) error
}

// ErrClosed is wrapped by the error of a Keeper that is closed for good. A Store then looks for no news any more.
var ErrClosed = errors.New("throttle: keeper is closed")

// A Listener is a Keeper that tells other processes of urgent writes.
type Listener interface {
	// Listen calls news with the name of each value that any process has written as Urgent. It calls
	// news with nil when it has begun to listen, because it may have missed any. It returns when the
	// context ends, or with the error that ended it before.
	Listen(ctx context.Context, news func(name []byte)) error
}

// A View is what a transaction finds.
type View struct {
	// Values are the values of the names. The caller may change them. A value is nil where there is none.
	Values [][]byte
	// Wall is what the keeper's clock showed when the transaction had its locks: Unix time in µs.
	Wall int64
	// Sent and Got are two instants of this process, between which Wall was read.
	Sent, Got time.Time
}

// A Write is what a transaction writes under one of its names.
type Write struct {
	// Value is the new value. If nil, the value stays as it is.
	Value []byte
	// Expires is when the keeper may forget the value: Unix time in µs by the keeper's clock.
	Expires int64
	// Urgent reports that other processes should learn of the value at once: a pause or its end.
	Urgent bool
}
