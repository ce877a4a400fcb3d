package postgres

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/postgres/internal/pgtest"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// A radio is a Listen under way.
type radio struct {
	news chan string // "begun" for nil
	done chan error
	stop context.CancelFunc
}

func listen(t testing.TB, k *keeper) *radio {
	ctx, cancel := context.WithCancel(context.Background())
	r := &radio{make(chan string, 100), make(chan error, 1), cancel}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.done <- listeningKeeper{k}.Listen(ctx, func(name []byte) {
			if name == nil {
				r.news <- "begun"
			} else {
				r.news <- string(name)
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

func (r *radio) want(t testing.TB, want string) {
	t.Helper()
	select {
	case got := <-r.news:
		if got != want {
			t.Fatalf("news %.100q, want %.100q", got, want)
		}
	case err := <-r.done:
		t.Fatalf("Listen ended: %v", err)
	case <-time.After(patient):
		t.Fatalf("no news of %.100q", want)
	}
}

func (r *radio) wantEnd(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(patient):
		t.Fatal("Listen does not end")
		return nil
	}
}

// urgent returns a change that writes an urgent value under each name.
func urgent(values ...string) func(kept.View) ([]kept.Write, error) {
	return func(v kept.View) ([]kept.Write, error) {
		writes, _ := put(values...)(v)
		for i := range writes {
			writes[i].Urgent = true
		}
		return writes, nil
	}
}

func TestUrgentWritesAreNews(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	db.Exec("CREATE SCHEMA other")
	k := migrated(t, db.URL(), Options{})
	migrated(t, db.URL(), Options{Table: "other.throttle_quota"})
	r := listen(t, k)
	r.want(t, "begun")
	// The table has two names, and another table has one of them.
	same, other := open(t, db.URL(), Options{Table: "public.throttle_quota"}), open(t, db.URL(), Options{Table: "other.throttle_quota"})
	long := strings.Repeat("l", 7000)
	for _, step := range []struct {
		by   *keeper
		name string
		news string
	}{
		{other, "a", ""}, {same, "a", "a"}, {k, "b\x00\xff'", "b\x00\xff'"}, {same, long, "begun"}, {same, "last", "last"},
	} {
		mustPut(t, step.by, step.name, "no news")
		if err := step.by.Update(t.Context(), names(step.name), urgent("x")); err != nil && step.name != long {
			t.Fatal(err)
		}
		if step.news != "" {
			r.want(t, step.news)
		}
	}
	r.stop()
	if err := r.wantEnd(t); err != context.Canceled {
		t.Errorf("Listen returned %v", err)
	}
	if n := k.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are in use", n)
	}
}

func TestListenEndsWithItsServer(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	proxy := pgtest.NewProxy(t, &s.Database)
	k := migrated(t, proxy.URL(), Options{Timeout: time.Second})
	for what, end := range map[string]func(){
		"server ends":     func() { s.Restart() },
		"connection ends": func() { proxy.Cut() },
		"server hangs":    func() { proxy.Hang(true) },
		"table is new": func() {
			s.Exec("DROP TABLE throttle_quota")
			if err := Migrate(t.Context(), k.pool, Options{Timeout: patient}); err != nil {
				t.Error(err)
			}
		},
	} {
		r := listen(t, k)
		r.want(t, "begun")
		end()
		if err := r.wantEnd(t); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
		proxy.Hang(false)
	}
}

func TestListenWithoutATable(t *testing.T) {
	t.Parallel()
	r := listen(t, open(t, pgtest.Shared(t).URL(), Options{}))
	wantError(t, r.wantEnd(t), "call Migrate", false)
}

func TestListenBehindAPoolerWarns(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	var logged bytes.Buffer
	k := migrated(t, db.PgBouncer().URL(), Options{Log: slog.New(slog.NewTextHandler(&logged, nil))})
	r := listen(t, k)
	r.want(t, "begun")
	r.stop()
	_ = r.wantEnd(t)
	if !strings.Contains(logged.String(), "set Options.PollOnly") {
		t.Errorf("log: %s", &logged)
	}
}
