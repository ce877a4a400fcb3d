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
)

const (
	patience = time.Second            // how long others may have the file
	lookLock = 500 * time.Microsecond // between two looks whether they still do
)

// bucket is where the quotas are, all that there is in a file.
var bucket = []byte("throttle")

var errForeign = errors.New("the file is something else, or its beginning was damaged: use another path, or delete it")

// enter takes a turn at the file, for no longer than the context that it returns
// lasts. Whoever has it calls leave.
func (s *Store) enter(ctx context.Context) (limited context.Context, leave func(), err error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	select {
	case <-s.turn:
		return limited, func() { cancel(); s.turn <- struct{}{} }, nil
	case <-s.done:
		err = errClosed
	case <-limited.Done():
		err = s.busy(limited)
	}
	cancel()
	return nil, nil, err
}

// update is one transaction, for whoever has the turn: it hands what is stored under
// a name to change, nil if that is nothing, and stores what that returns, if anything.
func (s *Store) update(ctx context.Context, name []byte, change func(value []byte) ([]byte, error)) error {
	for {
		err := s.transact(name, change)
		if !errors.Is(err, bolterrors.ErrTimeout) {
			return err
		}
		// There is no lock on all systems that can be waited for until a context ends,
		// so that it is asked for again and again.
		select {
		case <-time.After(lookLock/2 + rand.N(lookLock)):
		case <-ctx.Done():
			return s.busy(ctx)
		}
	}
}

// busy is the error of who has waited for the file until a context ended.
func (s *Store) busy(ctx context.Context) error {
	return fmt.Errorf("host: %s: %s: %w: %w", s.path, holder(s.path), store.ErrUnavailable, ctx.Err())
}

// transact makes the transaction if nobody has the file. The pages of a damaged file
// make the database panic, and reading those that are missing is a fault.
func (s *Store) transact(name []byte, change func([]byte) ([]byte, error)) (err error) {
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
		Timeout:    1, // look at the lock once
		NoSync:     !s.Sync,
		NoGrowSync: !s.Sync,
		OpenFile: func(path string, flag int, mode os.FileMode) (_ *os.File, err error) {
			file, err = os.OpenFile(path, flag, mode)
			return file, err
		},
	})
	if err != nil {
		return s.opening(err)
	}
	err = apply(db, name, change, s.wall)
	_ = db.Close()
	return s.named(err)
}

func apply(db *bolt.DB, name []byte, change func([]byte) ([]byte, error), wall func() int64) error {
	tx, err := db.Begin(true)
	if err != nil {
		return err
	}
	var was, is []byte
	if quotas := tx.Bucket(bucket); quotas != nil {
		was = quotas.Get(name)
	} else if other, _ := tx.Cursor().First(); other != nil {
		err = errForeign
	}
	if err == nil {
		is, err = change(was)
	}
	if err == nil && is != nil {
		err = put(tx, name, is, was == nil, wall)
	}
	if err != nil || is == nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

func put(tx *bolt.Tx, name, value []byte, isNew bool, wall func() int64) error {
	quotas, err := tx.CreateBucketIfNotExists(bucket)
	if err == nil && isNew {
		err = sweep(quotas, wall())
	}
	if err != nil {
		return err
	}
	return quotas.Put(name, value)
}

// sweep drops two quotas, or fewer, that decide as fresh ones would, if it finds them
// from a random one on: more than come, so that the file does not grow for ever.
func sweep(quotas *bolt.Bucket, wall int64) error {
	var idle [][]byte
	c := quotas.Cursor()
	k, v := c.Seek(binary.BigEndian.AppendUint64(nil, rand.Uint64()))
	for range 2 {
		if k == nil {
			k, v = c.First()
		}
		if k != nil && isIdle(v, wall) {
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

// opening explains why the file could not be opened.
func (s *Store) opening(err error) error {
	var system syscall.Errno
	switch {
	case errors.Is(err, bolterrors.ErrTimeout), errors.As(err, &system):
	case errors.Is(err, bolterrors.ErrChecksum):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	default:
		err = fmt.Errorf("%w: %w", errForeign, err)
	}
	return s.named(err)
}

// named begins an error with the file's path, where it does not say that itself.
func (s *Store) named(err error) error {
	var path *fs.PathError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &path):
		return fmt.Errorf("host: %w", err)
	}
	return fmt.Errorf("host: %s: %w", s.path, err)
}
