package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// patient is a Timeout that a busy machine does not reach.
const patient = time.Minute

// openPool returns a pool that asks no connection whether it lives, so that tests can count statements.
func openPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// open returns a keeper with a pool of its own.
func open(t testing.TB, url string, o Options) *keeper {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = patient
	}
	k, err := newKeeper(openPool(t, url), o.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// migrated returns a keeper whose table exists.
func migrated(t testing.TB, url string, o Options) *keeper {
	t.Helper()
	k := open(t, url, o)
	if err := Migrate(t.Context(), k.pool, o); err != nil {
		t.Fatal(err)
	}
	return k
}

// later is when the values of tests expire.
func later() int64 { return time.Now().Add(time.Hour).UnixMicro() }

func names(s ...string) [][]byte {
	var names [][]byte
	for _, name := range s {
		names = append(names, []byte(name))
	}
	return names
}

// put returns a change that writes a value under each name.
func put(values ...string) func(kept.View) ([]kept.Write, error) {
	return func(kept.View) ([]kept.Write, error) {
		var writes []kept.Write
		for _, v := range values {
			writes = append(writes, kept.Write{Value: []byte(v), Expires: later()})
		}
		return writes, nil
	}
}

// mustPut writes a value.
func mustPut(t testing.TB, k kept.Keeper, name, value string) {
	t.Helper()
	if err := k.Update(context.Background(), names(name), put(value)); err != nil {
		t.Fatal(err)
	}
}

// get returns the value of a name, or "none".
func get(t testing.TB, k kept.Keeper, name string) string {
	t.Helper()
	var value []byte
	err := k.Update(context.Background(), names(name), func(v kept.View) ([]kept.Write, error) {
		value = v.Values[0]
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if value == nil {
		return "none"
	}
	return string(value)
}

// increment adds one to the counter in each value.
func increment(v kept.View) ([]kept.Write, error) {
	var writes []kept.Write
	for _, value := range v.Values {
		n := uint64(1)
		if value != nil {
			n += binary.BigEndian.Uint64(value)
		}
		writes = append(writes, kept.Write{Value: binary.BigEndian.AppendUint64(nil, n), Expires: later()})
	}
	return writes, nil
}

// counter returns the counter in the value of a name.
func counter(t testing.TB, k kept.Keeper, name string) int {
	t.Helper()
	value := get(t, k, name)
	if len(value) != 8 {
		t.Fatalf("the value of %q is %q", name, value)
	}
	return int(binary.BigEndian.Uint64([]byte(value)))
}

// all runs f as often at once.
func all(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// wantError fails unless an error contains a text and is, or is not, store.ErrUnavailable.
func wantError(t testing.TB, err error, text string, unavailable bool) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) || errors.Is(err, store.ErrUnavailable) != unavailable {
		t.Errorf("error %v; want one with %q, unavailable %v", err, text, unavailable)
	}
}
