package postgres

import (
	"strings"
	"testing"

	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

func TestMigrateByManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	pools := []*keeper{open(t, db.URL(), Options{}), open(t, db.URL(), Options{}), open(t, db.URL(), Options{})}
	all(12, func(i int) {
		if err := Migrate(t.Context(), pools[i%3].pool, Options{Timeout: patient}); err != nil {
			t.Error(err)
		}
	})
	mustPut(t, pools[0], "a", "x")
}

func TestMigrateWaitsForNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k := migrated(t, db.URL(), Options{})
	mustPut(t, k, "a", "x")
	// A session that reads or writes the table has a lock that each ALTER TABLE would wait for.
	c, err := k.pool.Begin(t.Context())
	if err == nil {
		_, err = c.Exec(t.Context(), "LOCK TABLE throttle_quota IN SHARE ROW EXCLUSIVE MODE")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Rollback(t.Context())
	if err := Migrate(t.Context(), k.pool, Options{Timeout: patient}); err != nil {
		t.Error(err)
	}
}

func TestSchemaMayRunAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	o := Options{Table: "limits.quota"}
	sql, err := Schema(o)
	if err != nil {
		t.Fatal(err)
	}
	db.Exec("CREATE SCHEMA limits;" + sql)
	k := open(t, db.URL(), o)
	mustPut(t, k, "a", "x")
	db.Exec(sql)
	if got := get(t, k, "a"); got != "x" {
		t.Errorf("a is %q", got)
	}
	if err := Migrate(t.Context(), k.pool, o); err != nil {
		t.Error(err)
	}
}

// A table of a later version that still has the columns of this one is used and left as it is.
func TestMigrateLeavesLaterTableAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k := migrated(t, db.URL(), Options{})
	mustPut(t, k, "a", "x")
	db.Exec("ALTER TABLE throttle_quota ADD COLUMN owner text NOT NULL DEFAULT 'none'; COMMENT ON TABLE throttle_quota IS 'schema 2'")
	if err := Migrate(t.Context(), k.pool, Options{Timeout: patient}); err != nil {
		t.Error(err)
	}
	mustPut(t, k, "b", "y")
	if got := get(t, k, "a") + get(t, k, "b"); got != "xy" {
		t.Errorf("got the values %s, want xy", got)
	}
	if got := db.Exec("SELECT obj_description('throttle_quota'::regclass) || ' ' || string_agg(owner, ' ') FROM throttle_quota"); got != "schema 2 none none" {
		t.Errorf("got the table %q, want schema 2", got)
	}
}

func TestTableOfAnotherProgramIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	for table, columns := range map[string]string{
		"other": "name text PRIMARY KEY, state bytea, expires timestamptz",
		"fewer": "name bytea PRIMARY KEY, state bytea",
		"plain": "name bytea, state bytea, expires timestamptz",
	} {
		db.Exec("CREATE TABLE " + table + " (" + columns + ")")
		k := open(t, db.URL(), Options{Table: table})
		if table != "plain" {
			wantError(t, Migrate(t.Context(), k.pool, Options{Table: table}), `table "`+table+`": `, false)
		}
		wantError(t, k.Update(t.Context(), names("a"), put("x")), `table "`+table+`": `, false)
	}
}

func TestNamesAreData(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	odd := []string{"'", `"`, `\`, "a\x00b", "\xff\xfe", "'); DROP TABLE throttle_quota; --", "$1", "%s", strings.Repeat("n", 1000)}
	db.Exec(`CREATE SCHEMA "Odd "" schema"`)
	for _, table := range []string{
		"throttle_quota", `t"; DROP TABLE throttle_quota; --`, "T'1", `back\slash`, "$1", "%s {table}", "Übung", `Odd " schema.user`,
		strings.Repeat("l", mostName),
	} {
		k := migrated(t, db.URL(), Options{Table: table})
		for _, name := range odd {
			mustPut(t, k, name, name)
			if got := get(t, k, name); got != name {
				t.Errorf("table %s: %q is %q", table, name, got)
			}
		}
	}
	if got := db.Exec("SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema')"); got != "9" {
		t.Errorf("%s tables, want 9", got)
	}
}

func TestNamesOfTablesThatCannotBe(t *testing.T) {
	pool := openPool(t, "postgres://nobody@127.0.0.1:1/x")
	for _, table := range []string{"a.b.c", ".", "a.", ".b", "a\x00", "\xff", strings.Repeat("l", mostName+1)} {
		if _, err := New(pool, Options{Table: table}); err == nil {
			t.Errorf("table %q is accepted", table)
		}
		if _, err := Schema(Options{Table: table}); err == nil {
			t.Errorf("table %q has a schema", table)
		}
		if err := Migrate(t.Context(), pool, Options{Table: table}); err == nil || !strings.Contains(err.Error(), "Options.Table") {
			t.Errorf("table %q: %v", table, err)
		}
	}
}
