// Package host keeps quotas in one file. The processes of a host share them, and a process that
// starts continues where the last one stopped. Without it, a restarted program does not know what
// it sent a second ago, and the provider refuses what it sends again.
//
//	quotas, err := host.Open("/var/lib/myprogram/quotas.db")
//	lim, err := throttle.New(policy, quotas)
//
// # The file
//
// The file is a bbolt database on a local file system. Locks do not hold on NFS and similar file
// systems. Each decision is one transaction under the file's lock. It reads the quota, decides over
// all tiers, and writes the admission. The file is open only for that time, some 50 µs, or 300 µs
// for a log of 10,000 stamps, and other processes get their turn. If a process is killed at any
// point, or the disk is full, the file is left either as it was before the decision or as it is
// after.
//
// Only its owner may read and write the file. A key in it is a hash of the policy's name and the
// Group's key, never the key itself. Adding new quotas drops quotas that equal a fresh one.
//
// Admissions survive the process, but reach the disk only when the operating system writes them.
// After a power failure the file may lack the last half minute of admissions, which are then
// admitted once more, or it may be damaged: see [ErrDamaged]. With Store.Sync neither happens.
//
// # Processes
//
// Callers that wait in one process are served in their order. Among processes, free capacity goes
// to the first that asks. A process sees the pauses and refunds of other processes when it asks.
// With waiting callers it asks at least every half second.
//
// Processes may have different policies, for example while a new release replaces an old one. Each request then
// counts under the policies of all processes that have decided within the last minute. A new policy
// starts with the charges of the last one: tiers with the same algorithm, window and unit keep them, and
// any other tier starts with what the tiers of its unit still count.
//
// A policy that changes while it is in use changes for this process alone, in the same way. Limits that responses
// name and rates that refusals teach hold for all processes. They survive restarts, and are forgotten after 30
// days without a request.
//
// A process holds its units of a Concurrency tier, and its estimates, by a lease of 10 seconds, which
// it renews. What a process held that died is free, and its estimates are charged, when its lease ends. A time in which no
// process asks, because the machine sleeps or none has work, counts as a third of a lease at most for that.
//
// # Clocks
//
// Time is the wall clock, adjusted such that it never runs backward for a quota. After a step back
// it continues from where it was. After a step forward, at most one burst or window too much
// passes, because the step looks like idleness.
package host

import (
	"context"
	"errors"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// A Store keeps quotas in a file. Create it with Open. It is safe for concurrent use. Its quotas
// block while other processes hold the file, at most for a second. Callers of a limiter then
// continue to wait until their context ends, with throttle.ErrUnavailable.
//
// Any other failure, such as a full disk, is returned by the call that meets it.
type Store struct {
	// Sync makes every admission reach the disk before it counts, to survive a power failure. That
	// takes two flushes of the disk, on many disks some milliseconds each. Set it before the first
	// use. If zero, the operating system decides when to write.
	Sync bool

	quotas *kept.Store
	path   string
	// wall returns Unix time in µs.
	wall func() int64
	// token holds one value. A goroutine that has received it may open the file.
	token chan struct{}
	// done is closed by Close.
	done chan struct{}

	// damaged is the error of a damaged file. The holder of the token may use it.
	damaged error
}

// ErrDamaged reports that a power failure or a disk damaged the file. To start all quotas anew,
// delete the file and call Open again. At most one burst or window too much passes.
var ErrDamaged = errors.New("throttle: file is damaged: delete it to start its quotas anew")

var errClosed = errors.New("host: store is closed")

// Open returns a Store on a file, which it creates if there is none. The directory must exist. Open
// fails if the file has other contents or is damaged, or if other processes hold it for a second.
func Open(path string) (*Store, error) {
	s := &Store{
		path:  path,
		wall:  func() int64 { return time.Now().UnixMicro() },
		token: make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
	s.quotas = kept.New(keeper{s}, kept.Options{Name: "host", Shared: "a file of this host", Busy: s.busyError, Wall: func() int64 { return s.wall() }})
	s.token <- struct{}{}
	noChange := func(kept.View) ([]kept.Write, error) { return nil, nil }
	if err := (keeper{s}).Update(context.Background(), [][]byte{kept.Name("")}, noChange); err != nil {
		return nil, err
	}
	return s, nil
}

// Close waits for the current transaction. Later uses of the store's quotas fail.
func (s *Store) Close() error {
	select {
	case <-s.token: // and never put back
		close(s.done)
	case <-s.done:
	}
	return nil
}

// Open returns the quota of a key. It does not block.
func (s *Store) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	return s.quotas.Open(key, plan, report)
}
