package postgres_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/apithrottle/throttle/internal/upgradetest"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// A row has a name and a state in hexadecimal digits, and when it expires.
type row struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Expires string `json:"expires"`
}

func rows(t *testing.T, db *pgtest.Database, table string) (all []row) {
	t.Helper()
	text := db.Exec("SELECT coalesce(json_agg(json_build_object('name', encode(name, 'hex'), 'state', encode(state, 'hex'), 'expires', expires) ORDER BY name), '[]') FROM " + table)
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return all
}

// TestUpgrade checks that programs go on from the rows of earlier releases of them: what was admitted stays charged, pauses
// hold, and limits that responses named stay. Each file of testdata/upgrade is of one commit. Its windows are a hundred
// years, because the clock of the server is real. Package store/kept checks what happens later. To record one, see package
// upgradetest:
//
//	go -C postgres test -run TestUpgrade . -args -record NAME -commit "HASH, DATE"
func TestUpgrade(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	tables := 0
	create := func(t *testing.T) (table string, s *postgres.Store) {
		tables++
		table = fmt.Sprintf("upgrade%d", tables)
		return table, openStore(t, db, postgres.Options{Table: table})
	}
	upgradetest.Record(t, upgradetest.Options{Century: true}, func(t *testing.T, f func(*testing.T, upgradetest.Process)) {
		table, s := create(t)
		f(t, upgradetest.Process{Store: s, Dump: func() upgradetest.Values { return rows(t, db, table) }})
	})
	for _, name := range upgradetest.Names(t) {
		for _, s := range upgradetest.States(t, name) {
			for i := range s.Tiers {
				t.Run(fmt.Sprintf("%s/%s/%d", name, s.Name, i), func(t *testing.T) {
					table, quotas := create(t)
					insert(t, db, table, &s)
					s.Check(t, quotas, i, false)
				})
			}
		}
	}
}

// insert inserts the rows of a state.
func insert(t *testing.T, db *pgtest.Database, table string, s *upgradetest.State) {
	t.Helper()
	var all []row
	if err := json.Unmarshal(s.Values, &all); err != nil || len(all) == 0 {
		t.Fatalf("%d rows, %v", len(all), err)
	}
	for _, r := range all {
		for _, digits := range []string{r.Name, r.State} {
			if _, err := hex.DecodeString(digits); err != nil {
				t.Fatal(err)
			}
		}
		db.Exec(fmt.Sprintf(`INSERT INTO %s VALUES ('\x%s', '\x%s', '%s')`, table, r.Name, r.State, r.Expires))
	}
}
