package host

import bolt "go.etcd.io/bbolt"

// SetWall has the store read another clock: Unix time in µs.
func (s *Store) SetWall(wall func() int64) { s.wall = wall }

// Path is that of the file.
func (s *Store) Path() string { return s.path }

// Keys is how many quotas the file has.
func (s *Store) Keys() (n int, err error) {
	err = s.inside(func(quotas *bolt.Bucket) error {
		n = quotas.Stats().KeyN
		return nil
	})
	return n, err
}

// Edit changes what is stored of a key.
func (s *Store) Edit(key string, edit func(value []byte) []byte) error {
	return s.inside(func(quotas *bolt.Bucket) error {
		return quotas.Put(name(key), edit(append([]byte(nil), quotas.Get(name(key))...)))
	})
}

func (s *Store) inside(f func(quotas *bolt.Bucket) error) error {
	db, err := bolt.Open(s.path, 0o600, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Update(func(tx *bolt.Tx) error { return f(tx.Bucket(bucket)) })
}
