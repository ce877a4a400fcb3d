package kept_test

import (
	"encoding/json"
	"flag"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/keptmem"
	"github.com/apithrottle/throttle/internal/upgradetest"
)

var (
	recordTo = flag.String("record", "", "write testdata/upgrade/NAME.json with the code that is checked out")
	recordBy = flag.String("commit", "", "the commit that is checked out, and its date")
	teaches  = flag.Bool("teaches", true, "the commit has Learn and Follow")
)

// A namedValue is a value of a keeper.
type namedValue struct {
	Name  []byte `json:"name"`
	Value []byte `json:"value"`
}

func dump(s *keptmem.Server) (all []namedValue) {
	for _, name := range s.Names() {
		all = append(all, namedValue{name, s.Value(name)})
	}
	return all
}

// TestUpgrade checks that programs go on from the values that earlier releases of them left in a keeper of a fleet: what
// was admitted stays charged, pauses hold, permits stay open, and limits that responses taught stay. Each file of
// testdata/upgrade is of one commit. To record one, see package upgradetest:
//
//	go test ./store/kept -run TestUpgrade -args -record NAME -commit "HASH, DATE"
func TestUpgrade(t *testing.T) {
	if *recordTo != "" {
		upgradetest.File{Commit: *recordBy, States: upgradetest.Record(t, upgradetest.Options{Holds: true, Teaches: *teaches},
			func(t *testing.T, f func(*testing.T, upgradetest.Process)) {
				synctest.Test(t, func(t *testing.T) {
					fleet := newFleet(t, time.Millisecond)
					f(t, upgradetest.Process{Store: fleet.stores[0], Dump: func() upgradetest.Values { return dump(fleet.server) }})
				})
			},
		)}.Write(t, filepath.Join("testdata", "upgrade", *recordTo+".json"))
	}
	upgradetest.Replay(t, filepath.Join("testdata", "upgrade"), func(t *testing.T, s *upgradetest.State, check func(*testing.T, upgradetest.Process)) {
		playValues(t, s, check)
	})
}

// playValues plays on a keeper with the values of a state, at its time.
func playValues(t *testing.T, s *upgradetest.State, play func(*testing.T, upgradetest.Process)) {
	var all []namedValue
	if err := json.Unmarshal(s.Values, &all); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		fleet := newFleet(t, time.Millisecond)
		time.Sleep(time.Until(time.UnixMicro(s.At)))
		for _, v := range all {
			fleet.server.Put(v.Name, v.Value)
		}
		play(t, upgradetest.Process{Store: fleet.stores[0], Dump: func() upgradetest.Values { return dump(fleet.server) }})
	})
}
