package host_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/host"
	"github.com/apithrottle/throttle/internal/upgradetest"
	"github.com/apithrottle/throttle/store/kept"
)

// TestUpgrade checks that programs go on from the files of earlier releases of them: what was admitted stays charged,
// pauses hold, permits stay open, and limits that responses taught stay. Each file of testdata/upgrade is of one commit;
// in it are compressed files of quotas. To record one, see package upgradetest:
//
//	go test ./host -run TestUpgrade -args -record NAME -commit "HASH, DATE"
func TestUpgrade(t *testing.T) {
	upgradetest.Record(t, upgradetest.Options{Holds: true}, func(t *testing.T, f func(*testing.T, upgradetest.Process)) {
		path := file(t)
		synctest.Test(t, func(t *testing.T) {
			f(t, upgradetest.Process{Store: openFile(t, path), Dump: func() upgradetest.Values { return zip(t, path) }})
			time.Sleep(5 * time.Minute)
		})
	})
	upgradetest.Replay(t, func(t *testing.T, s *upgradetest.State, check func(*testing.T, upgradetest.Process)) {
		path := unzip(t, s)
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(time.UnixMicro(s.At)))
			check(t, upgradetest.Process{Store: openFile(t, path), Dump: func() upgradetest.Values { return zip(t, path) }})
			time.Sleep(5 * time.Minute)
		})
	})
}

// zip returns a compressed file.
func zip(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	_, _ = w.Write(content)
	_ = w.Close()
	return b.Bytes()
}

// unzip writes the file of a state.
func unzip(t *testing.T, s *upgradetest.State) (path string) {
	t.Helper()
	path = file(t)
	var b, content []byte
	err := json.Unmarshal(s.Values, &b)
	if err == nil {
		var r *gzip.Reader
		if r, err = gzip.NewReader(bytes.NewReader(b)); err == nil {
			content, err = io.ReadAll(r)
		}
	}
	if err == nil {
		err = os.WriteFile(path, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestNewerFormat checks that this release refuses quotas of the next format, with an error that says to upgrade, and
// leaves the file as it is.
func TestNewerFormat(t *testing.T) {
	for _, s := range upgradetest.States(t, "0ac84d6f") {
		switch s.Name {
		case "sliding_log", "nested", "concurrency", "pause":
		default:
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			path := unzip(t, &s)
			db, err := bolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bolt.Tx) error {
				quotas := tx.Bucket([]byte("throttle"))
				newer := make(map[string][]byte)
				err := quotas.ForEach(func(k, v []byte) error {
					v = bytes.Clone(v)
					v[0] = 4
					newer[string(k)] = v
					return nil
				})
				for k, v := range newer {
					err = errors.Join(err, quotas.Put([]byte(k), v))
				}
				return err
			})
			if err = errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(time.UnixMicro(s.At)))
				s.CheckNewer(t, upgradetest.Process{Store: openFile(t, path), Dump: func() upgradetest.Values { return zip(t, path) }})
			})
		})
	}
}

// TestNewerBolt checks that a file of a later version of bbolt is refused, with an error that says to upgrade, and stays
// as it is, both when it is opened and when another process has upgraded it meanwhile.
func TestNewerBolt(t *testing.T) {
	path := file(t)
	s := openFile(t, path)
	l := limiter(t, exact(throttle.PerHour(3)), s)
	if allowed(l, 2) != 2 {
		t.Fatal("the quota was not fresh")
	}
	newer, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const version = 20 // after the header of a page and the magic number
	for _, page := range []int{0, os.Getpagesize()} {
		if newer[page+version] != 2 {
			t.Fatalf("got version %d of bbolt's format, want 2", newer[page+version])
		}
		newer[page+version]++
	}
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = host.Open(path)
	for name, err := range map[string]error{"Open": err, "Wait": l.Wait(background), "Pause": l.Pause(background, sec)} {
		if !errors.Is(err, kept.ErrNewer) || errors.Is(err, throttle.ErrUnavailable) || errors.Is(err, host.ErrDamaged) ||
			!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "was not changed") {
			t.Errorf("%s: got %v, want an error that says to upgrade", name, err)
		}
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, newer) {
		t.Errorf("the file was changed, %v", err)
	}
}
