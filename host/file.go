package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

const (
	// lockTimeout is the longest wait for other processes that hold the file.
	lockTimeout = time.Second
	// lockPoll is the average time between two tries to lock the file.
	lockPoll = 500 * time.Microsecond
)

// bucket contains the quotas. A file has no other bucket.
var bucket = []byte("throttle")

var errForeign = errors.New("not a quota file, or its beginning is damaged: use another path, or delete it")

// enter waits for the turn to open the file. The turn lasts no longer than the returned context.
// The caller calls leave when it is done.
func (s *Store) enter(ctx context.Context) (limited context.Context, leave func(), err error) {
	limited, cancel := context.WithTimeout(ctx, lockTimeout)
	select {
	case <-s.token:
		return limited, func() { cancel(); s.token <- struct{}{} }, nil
	case <-s.done:
		err = errClosed
	case <-limited.Done():
		err = s.busyError(limited)
	}
	cancel()
	return nil, nil, err
}

// A keeper is a Store as a kept.Keeper.
type keeper struct{ *Store }

// Update runs one transaction.
func (s keeper) Update(ctx context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	limited, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for {
		err := s.transact(names, change)
		if !errors.Is(err, bolterrors.ErrTimeout) {
			return err
		}
		// Not all systems have a lock that can be waited for until a context ends. So poll.
		select {
		case <-time.After(lockPoll/2 + rand.N(lockPoll)):
		case <-limited.Done():
			return s.busyError(limited)
		}
	}
}

// busyError is the error of a caller whose context ended while it waited for the file.
func (s *Store) busyError(ctx context.Context) error {
	return fmt.Errorf("host: %s: %s: %w: %w", s.path, holder(s.path), store.ErrUnavailable, ctx.Err())
}

// transact runs the transaction if the file is not locked. bbolt panics on the pages of a damaged
// file, and reading missing pages is a fault.
func (s *Store) transact(names [][]byte, change func(kept.View) ([]kept.Write, error)) (err error) {
	if s.damaged != nil {
		return s.damaged
	}
	var file *os.File
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			release(file) // closing the database would wait for the transaction
			err = fmt.Errorf("host: %s: %w: %v", s.path, ErrDamaged, p)
			s.damaged = err
		}
	}()
	db, err := bolt.Open(s.path, 0o600, &bolt.Options{
		Timeout:    1, // try the lock once
		NoSync:     !s.Sync,
		NoGrowSync: !s.Sync,
		OpenFile: func(path string, flag int, mode os.FileMode) (_ *os.File, err error) {
			file, err = os.OpenFile(path, flag, mode)
			return file, err
		},
	})
	if err != nil {
		return s.openError(err)
	}
	err = apply(db, names, change, s.wall())
	_ = db.Close()
	if errors.Is(err, kept.ErrUnsound) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return s.addPath(err)
}

func apply(db *bolt.DB, names [][]byte, change func(kept.View) ([]kept.Write, error), wall int64) error {
	tx, err := db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	now := time.Now()
	v := kept.View{Values: make([][]byte, len(names)), Wall: wall, Sent: now, Got: now}
	if quotas := tx.Bucket(bucket); quotas != nil {
		for i, name := range names {
			v.Values[i] = quotas.Get(name)
		}
	} else if other, _ := tx.Cursor().First(); other != nil {
		return errForeign
	}
	writes, err := change(v)
	if err != nil {
		return err
	}
	changed := false
	for i, w := range writes {
		if w.Value == nil {
			continue
		}
		changed = true
		if err := put(tx, names[i], w.Value, v.Values[i] == nil, wall); err != nil {
			return err
		}
	}
	if !changed {
		return nil
	}
	return tx.Commit()
}

func put(tx *bolt.Tx, name, value []byte, isNew bool, wall int64) error {
	quotas, err := tx.CreateBucketIfNotExists(bucket)
	if err == nil && isNew {
		err = sweep(quotas, wall)
	}
	if err != nil {
		return err
	}
	return quotas.Put(name, value)
}

// sweep drops up to two quotas that decide as fresh ones would. It starts at a random quota. Each
// new quota drops more than one on average, which bounds the file's size.
func sweep(quotas *bolt.Bucket, wall int64) error {
	var idle [][]byte
	c := quotas.Cursor()
	k, v := c.Seek(binary.BigEndian.AppendUint64(nil, rand.Uint64()))
	for range 2 {
		if k == nil {
			k, v = c.First()
		}
		if k != nil && kept.IsIdle(v, wall) {
			idle = append(idle, k)
		}
		k, v = c.Next()
	}
	for _, k := range idle {
		if err := quotas.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// openError explains why the file could not be opened.
func (s *Store) openError(err error) error {
	var system syscall.Errno
	switch {
	case errors.Is(err, bolterrors.ErrTimeout), errors.As(err, &system):
	case errors.Is(err, bolterrors.ErrChecksum):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	case errors.Is(err, bolterrors.ErrVersionMismatch):
		err = fmt.Errorf("%w; the file has a later format of bbolt and was not changed: %w", kept.ErrNewer, err)
	default:
		err = fmt.Errorf("%w: %w", errForeign, err)
	}
	return s.addPath(err)
}

// addPath adds the file's path to an error that does not contain it.
func (s *Store) addPath(err error) error {
	var path *fs.PathError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &path):
		return fmt.Errorf("host: %w", err)
	}
	return fmt.Errorf("host: %s: %w", s.path, err)
}
