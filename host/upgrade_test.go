package host_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/upgradetest"
)

var (
	recordTo = flag.String("record", "", "write testdata/upgrade/NAME.json with the code that is checked out")
	recordBy = flag.String("commit", "", "the commit that is checked out, and its date")
	holds    = flag.Bool("holds", true, "the commit has leases")
	teaches  = flag.Bool("teaches", true, "the commit has Learn and Follow")
)

// TestUpgrade checks that programs go on from the files of earlier releases of them: what was admitted stays charged,
// pauses hold, permits stay open, and limits that responses taught stay. Each file of testdata/upgrade is of one commit;
// in it are compressed files of quotas. To record one, see package upgradetest:
//
//	go test ./host -run TestUpgrade -args -record NAME -commit "HASH, DATE"
func TestUpgrade(t *testing.T) {
	if *recordTo != "" {
		upgradetest.File{Commit: *recordBy, States: upgradetest.Record(t, upgradetest.Options{Holds: *holds, Teaches: *teaches},
			func(t *testing.T, f func(*testing.T, upgradetest.Process)) {
				path := file(t)
				synctest.Test(t, func(t *testing.T) {
					f(t, upgradetest.Process{Store: openFile(t, path), Dump: func() upgradetest.Values { return zip(t, path) }})
					time.Sleep(5 * time.Minute)
				})
			},
		)}.Write(t, filepath.Join("testdata", "upgrade", *recordTo+".json"))
	}
	upgradetest.Replay(t, filepath.Join("testdata", "upgrade"), func(t *testing.T, s *upgradetest.State, check func(*testing.T, upgradetest.Process)) {
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
