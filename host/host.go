// Package host keeps quotas in one file, so that the processes of a host share them
// and a process that starts anew continues where the last one stopped. Without it a
// program that is restarted knows nothing of what was sent a second ago, and the
// provider refuses what it sends twice.
//
//	quotas, err := host.Open("/var/lib/myprogram/quotas.db")
//	lim, err := throttle.New(policy, quotas)
//
// # The file
//
// The file is a database (bbolt) on a local file system; on NFS and the like locks
// do not hold. Every decision is one transaction under the file's lock: it reads the
// quota, decides over all tiers, and writes what was admitted. The file is open only
// for that long, some 50 µs, or 300 µs for a log of 10,000 stamps, so that other
// processes have their turn. A process that is killed at any point, or finds the disk
// full, leaves the file as it was before the decision or as it is after.
//
// It is made for its owner alone to read and write. A key in it is a hash of the policy's
// name and the Group's key, never the key itself. Quotas that equal a fresh one are
// dropped as new ones come.
//
// What was admitted survives the process, but reaches the disk only when the
// operating system writes it there. After a power failure the file may lack the last
// half minute, which is then admitted once more, or be damaged: see [ErrDamaged].
// With Store.Sync neither happens.
//
// # Processes
//
// Those who wait in one process are served in their order; whoever asks first gets
// what is free of the others. What a process holds back or gives back is seen by
// the others when they ask, which those who wait do every half second at least.
//
// Processes should have the same policy. Where they differ, as while a new release
// replaces an old one, what was spent is kept in the tiers that have the same algorithm,
// window and unit; another tier starts with what those of its unit still count. A tier
// that the other policy lacks is forgotten whenever that one is used.
//
// A policy that changes while it is in use changes for this process alone, in the same way.
//
// Neither Concurrency nor estimates are kept: what a process holds open would stay so
// when it dies.
//
// # Clocks
//
// Time is the wall clock, made such that it never runs backwards for a quota: after
// a step back it goes on from where it was. When it steps forward, at most one burst or
// window too much passes, as nobody can tell the step from idleness.
package host

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/lineage"
	"github.com/apithrottle/throttle/store"
)

// A Store keeps quotas in a file. It is made by Open and safe for concurrent use. Its
// quotas block for as long as others have the file, a second at most: then callers
// of a limiter wait on, until their context ends with throttle.ErrUnavailable.
//
// Any other failure, such as a full disk, is the error of the call.
type Store struct {
	// Sync has every admission reach the disk before it counts, so that it survives a
	// power failure. That takes the disk two flushes, of some milliseconds each on
	// many. Set it before the first use.
	Sync bool

	path string
	wall func() int64  // Unix time, µs
	turn chan struct{} // holds one: whoever has taken it may open the file
	done chan struct{} // closed by Close

	lines   lineage.Lines
	damaged error // what was found out about the file; for whoever has the turn

	mu       sync.Mutex                       // guards all below
	watchers map[string]map[*watcher]struct{} // of those who wait, by name
	news     map[string][]func(t *turn)       // what has happened since the last turn, by name
}

// A watcher is told of what this process does to a quota.
type watcher func(store.Change, time.Duration)

// ErrDamaged says that the file was damaged, by a power failure or a disk. Whoever
// deletes it, and calls Open again, starts all quotas anew: at most one burst or window
// too much passes.
var ErrDamaged = errors.New("the file is damaged: delete it, and its quotas start anew")

var errClosed = errors.New("host: the store is closed")

// Open returns a Store on a file, which it makes if there is none. The directory
// must exist. It is an error if the file is something else, or damaged, or others have
// it for a second.
func Open(path string) (*Store, error) {
	s := &Store{
		path:     path,
		wall:     func() int64 { return time.Now().UnixMicro() },
		turn:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		watchers: make(map[string]map[*watcher]struct{}),
		news:     make(map[string][]func(t *turn)),
	}
	s.turn <- struct{}{}
	limited, leave, err := s.enter(context.Background())
	if err != nil {
		return nil, err
	}
	defer leave()
	nothing := func([]byte) ([]byte, error) { return nil, nil }
	if err := s.update(limited, name(""), nothing); err != nil {
		return nil, err
	}
	return s, nil
}

// Close waits for the transaction that is under way. Every later use of the store's
// quotas is an error.
func (s *Store) Close() error {
	select {
	case <-s.turn: // which nobody will have again
		close(s.done)
	case <-s.done:
	}
	return nil
}

// Open returns the quota of a key. It does not block. A tier of Concurrency, or
// one that is Estimated, is an error.
func (s *Store) Open(key string, plan *algorithms.Plan) (store.Quota, error) {
	if key == "" {
		return nil, errors.New("host: the key is empty: quotas are kept by name, so give the policy a Name")
	}
	if err := validate(plan); err != nil {
		return nil, err
	}
	line, version := s.lines.Open(key)
	return newQuota(s, name(key), plan, line, version), nil
}

func validate(plan *algorithms.Plan) error {
	for _, t := range plan.Tiers() {
		if t.Algorithm == algorithms.Concurrency {
			return fmt.Errorf("host: tier %q: what is open is not kept in a file: use package local or distributed", t)
		}
		if t.Estimated {
			return fmt.Errorf("host: tier %q: what is estimated would stay so in the file when its process dies: leave Estimated false, or use package local or distributed", t)
		}
	}
	return nil
}

// name is that of a key in the file: nobody who reads it learns what was passed.
func name(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:16]
}

// watch has a watcher told of what this process does to a quota.
func (s *Store) watch(name []byte, w *watcher) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers[string(name)] == nil {
		s.watchers[string(name)] = make(map[*watcher]struct{})
	}
	s.watchers[string(name)][w] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.watchers[string(name)], w); len(s.watchers[string(name)]) == 0 {
			delete(s.watchers, string(name))
		}
	}
}

// tell calls the watchers of a quota.
func (s *Store) tell(name []byte, c store.Change, left time.Duration) {
	s.mu.Lock()
	watchers := make([]*watcher, 0, len(s.watchers[string(name)]))
	for w := range s.watchers[string(name)] {
		watchers = append(watchers, w)
	}
	s.mu.Unlock()
	for _, w := range watchers {
		(*w)(c, left)
	}
}
