// Package kept makes a store of anything that keeps bytes by name, has a lock for each name, and a
// clock: a file, or a table of a database. The decisions are made in this process, by a ledger of
// package algorithms. Package host and module postgres are such stores.
package kept

import (
	"context"
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
