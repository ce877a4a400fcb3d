package distributed_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/upgradetest"
)

// A keyValue is a key of a server and its value, of which two kinds are empty.
type keyValue struct {
	Key    string      `json:"key"`
	String []byte      `json:"string,omitempty"`
	Hash   [][2][]byte `json:"hash,omitempty"`
	Set    []scored    `json:"set,omitempty"`
}

type scored struct {
	Name  []byte  `json:"name"`
	Score float64 `json:"score"`
}

// dump returns all keys of a server.
func dump(m *miniredis.Miniredis) (all []keyValue) {
	for _, key := range m.Keys() {
		v := keyValue{Key: key}
		switch m.Type(key) {
		case "string":
			s, _ := m.Get(key)
			v.String = []byte(s)
		case "hash":
			fields, _ := m.HKeys(key)
			for _, f := range fields {
				v.Hash = append(v.Hash, [2][]byte{[]byte(f), []byte(m.HGet(key, f))})
			}
		case "zset":
			set, _ := m.SortedSet(key)
			for name, score := range set {
				v.Set = append(v.Set, scored{[]byte(name), score})
			}
			slices.SortFunc(v.Set, func(a, b scored) int { return bytes.Compare(a.Name, b.Name) })
		}
		all = append(all, v)
	}
	return all
}

// load puts the keys into a server.
func load(m *miniredis.Miniredis, all []keyValue) {
	for _, v := range all {
		if v.String != nil {
			_ = m.Set(v.Key, string(v.String))
		}
		for _, f := range v.Hash {
			m.HSet(v.Key, string(f[0]), string(f[1]))
		}
		for _, f := range v.Set {
			_, _ = m.ZAdd(v.Key, f.Score, string(f.Name))
		}
	}
}

// TestUpgrade checks that programs go on from what earlier releases of them left in Redis: what was admitted stays
// charged, pauses hold, permits stay open, and limits that responses taught stay. Each file of testdata/upgrade is of
// one commit. To record one, see package upgradetest:
//
//	go test ./distributed -run TestUpgrade -args -record NAME -commit "HASH, DATE"
func TestUpgrade(t *testing.T) {
	upgradetest.Record(t, upgradetest.Options{Ahead: true, Holds: true}, func(t *testing.T, f func(*testing.T, upgradetest.Process)) {
		bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
			s := distributed.New(near(t, m), distributed.Options{})
			f(t, upgradetest.Process{Store: s, Dump: func() upgradetest.Values { return dump(m) }})
		})
	})
	upgradetest.Replay(t, func(t *testing.T, s *upgradetest.State, check func(*testing.T, upgradetest.Process)) {
		all := valuesOf(t, s)
		bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
			time.Sleep(time.Until(time.UnixMicro(s.At)))
			load(m, all)
			check(t, upgradetest.Process{Store: distributed.New(near(t, m), distributed.Options{}), Dump: func() upgradetest.Values { return dump(m) }})
		})
	})
}

func valuesOf(t *testing.T, s *upgradetest.State) (all []keyValue) {
	t.Helper()
	if err := json.Unmarshal(s.Values, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestNewerFormat checks that this release refuses states of the next format, with an error that says to upgrade, and
// leaves all keys of the quota as they are.
func TestNewerFormat(t *testing.T) {
	for _, s := range upgradetest.States(t, "0ac84d6f") {
		switch s.Name {
		case "sliding_log", "gcra", "nested", "concurrency", "estimates", "pause":
		default:
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			all := valuesOf(t, &s)
			for i := range all {
				if v := all[i].String; v != nil {
					all[i].String = append([]byte("thr7"), v[4:]...)
				}
			}
			bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
				time.Sleep(time.Until(time.UnixMicro(s.At)))
				load(m, all)
				s.CheckNewer(t, upgradetest.Process{Store: distributed.New(near(t, m), distributed.Options{}), Dump: func() upgradetest.Values { return dump(m) }})
			})
		})
	}
}
