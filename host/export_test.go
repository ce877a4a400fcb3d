package host

import (
	bolt "go.etcd.io/bbolt"

	"github.com/apithrottle/throttle/store/kept"
)

// SetWall makes the store read another clock, in Unix µs.
func (s *Store) SetWall(wall func() int64) { s.wall = wall }

// Path returns the path of the file.
func (s *Store) Path() string { return s.path }

// Keys returns the number of quotas in the file.
func (s *Store) Keys() (n int, err error) {
	err = s.updateBucket(func(quotas *bolt.Bucket) error {
		n = quotas.Stats().KeyN
		return nil
	})
	return n, err
}

// Edit changes the stored value of a key.
func (s *Store) Edit(key string, edit func(value []byte) []byte) error {
	return s.updateBucket(func(quotas *bolt.Bucket) error {
		return quotas.Put(kept.Name(key), edit(append([]byte(nil), quotas.Get(kept.Name(key))...)))
	})
}

func (s *Store) updateBucket(f func(quotas *bolt.Bucket) error) error {
	db, err := bolt.Open(s.path, 0o600, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Update(func(tx *bolt.Tx) error { return f(tx.Bucket(bucket)) })
}
