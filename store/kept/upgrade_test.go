package kept_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/keptmem"
	"github.com/apithrottle/throttle/internal/upgradetest"
	"github.com/apithrottle/throttle/store/kept"
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
	upgradetest.Record(t, upgradetest.Options{Ahead: true, Holds: true}, func(t *testing.T, f func(*testing.T, upgradetest.Process)) {
		synctest.Test(t, func(t *testing.T) {
			fleet := newFleet(t, time.Millisecond)
			f(t, upgradetest.Process{Store: fleet.stores[0], Dump: func() upgradetest.Values { return dump(fleet.server) }})
		})
	})
	upgradetest.Replay(t, func(t *testing.T, s *upgradetest.State, check func(*testing.T, upgradetest.Process)) {
		play(t, s.At, valuesOf(t, s), check)
	})
}

func valuesOf(t *testing.T, s *upgradetest.State) (all []namedValue) {
	t.Helper()
	if err := json.Unmarshal(s.Values, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// play calls f with a process whose keeper has values, at an instant.
func play(t *testing.T, at int64, all []namedValue, f func(*testing.T, upgradetest.Process)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fleet := newFleet(t, time.Millisecond)
		time.Sleep(time.Until(time.UnixMicro(at)))
		for _, v := range all {
			fleet.server.Put(v.Name, v.Value)
		}
		f(t, upgradetest.Process{Store: fleet.stores[0], Dump: func() upgradetest.Values { return dump(fleet.server) }})
	})
}

// TestNewerFormat checks that this release refuses values of a later one, with an error that says to upgrade, and leaves
// them as they are. A later release has another format, or policies with what this one can't read.
func TestNewerFormat(t *testing.T) {
	for _, s := range upgradetest.States(t, "0ac84d6f") {
		switch s.Name {
		case "sliding_log", "gcra", "nested", "concurrency", "estimates", "pause":
		default:
			continue
		}
		for name, change := range map[string]func(value []byte) []byte{
			"format": func(value []byte) []byte { value[0]++; return value },
			"policy": func(value []byte) []byte {
				return kept.Sign(bytes.Replace(value, []byte(";unit="), []byte(";unix="), 1))
			},
		} {
			t.Run(s.Name+"/"+name, func(t *testing.T) {
				all := valuesOf(t, &s)
				for i := range all {
					all[i].Value = change(all[i].Value)
				}
				play(t, s.At, all, func(t *testing.T, p upgradetest.Process) { s.CheckNewer(t, p) })
			})
		}
	}
}
