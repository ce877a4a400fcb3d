package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// process returns the limiter of a process that has its own pool. The table must exist.
func process(t *testing.T, db *pgtest.Database, p throttle.Policy, o Options) *throttle.Limiter {
	t.Helper()
	s, err := New(openPool(t, db.URL()+"&application_name=fleet"), o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A caller that sleeps until its time is far away learns of a pause that makes it late.
func TestPauseReachesSleepers(t *testing.T) {
	t.Parallel()
	const reach = 600 * time.Millisecond
	for _, test := range []struct {
		name    string
		options Options
		cut     bool
	}{
		{"by LISTEN", Options{}, false},
		{"by LISTEN that is cut", Options{}, true},
		{"by polls", Options{PollOnly: true}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			soak.Long(t, "takes seconds of real time")
			db := pgtest.Shared(t)
			migrated(t, db.URL(), Options{})
			p := throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{{Limit: 1, Window: time.Minute, Algorithm: throttle.SlidingLog}}}
			first, sleeper := process(t, db, p, test.options), process(t, db, p, test.options)
			if err := first.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- sleeper.Wait(ctx) }()
			time.Sleep(time.Second)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for test.cut {
					db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fleet' AND datname = current_database() AND query LIKE 'LISTEN%'")
					select {
					case <-stop:
						return
					case <-time.After(100 * time.Millisecond):
					}
				}
			}()
			time.Sleep(time.Second)
			if err := first.Pause(t.Context(), time.Hour); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			err := <-done
			took := time.Since(began)
			close(stop)
			<-stopped
			t.Logf("| a pause %s | %v |", test.name, took.Round(time.Millisecond))
			if !errors.Is(err, throttle.ErrDeadline) || took > slowness*reach {
				t.Errorf("got %v after %v, want ErrDeadline after %v", err, took, reach)
			}
			if err := first.Resume(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A process that knows a pause and has no callers restores it.
func TestPauseIsRestored(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(t *testing.T, db *pgtest.Database, k *keeper){
		"after TRUNCATE": func(_ *testing.T, db *pgtest.Database, _ *keeper) { db.Exec("TRUNCATE throttle_quota") },
		"after DROP TABLE and Migrate": func(t *testing.T, db *pgtest.Database, k *keeper) {
			db.Exec("DROP TABLE throttle_quota")
			time.Sleep(3 * time.Second) // all processes have found out
			if err := Migrate(t.Context(), k.pool, Options{Timeout: patient}); err != nil {
				t.Fatal(err)
			}
		},
		"that began while the table was missing": func(t *testing.T, db *pgtest.Database, k *keeper) {
			if err := Migrate(t.Context(), k.pool, Options{Timeout: patient}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			soak.Long(t, "takes seconds of real time")
			db := pgtest.Shared(t)
			k := migrated(t, db.URL(), Options{})
			p := throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{throttle.PerSecond(50)}}
			knows, new := process(t, db, p, Options{}), process(t, db, p, Options{})
			missing := strings.Contains(what, "missing")
			if missing {
				db.Exec("DROP TABLE throttle_quota")
			}
			if err := knows.Pause(t.Context(), time.Hour); missing == (err == nil) {
				t.Fatal(err)
			}
			lose(t, db, k)
			began := time.Now()
			_ = new.Allow() // which writes a state without the pause, if it is the first
			waitUntil(t, "another process is paused", func() bool {
				time.Sleep(50 * time.Millisecond)
				s, err := new.Status(t.Context())
				return err == nil && s.Paused > 0
			})
			took := time.Since(began)
			t.Logf("| a pause is restored %s | %v |", what, took.Round(time.Millisecond))
			if took > slowness*promised {
				t.Errorf("restored after %v, want %v", took, promised)
			}
			if err := knows.Resume(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNewerStateIsLeftAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	migrated(t, db.URL(), Options{})
	l := process(t, db, throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{throttle.PerSecond(50)}}, Options{Timeout: patient})
	if err := l.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec("UPDATE throttle_quota SET state = set_byte(state, 0, get_byte(state, 0) + 1)") // the next format
	newer := db.Exec("SELECT state FROM throttle_quota")
	began := time.Now()
	for what, err := range map[string]error{"Wait": l.Wait(t.Context()), "Pause": l.Pause(t.Context(), time.Second), "Resume": l.Resume(t.Context())} {
		if wantError(t, err, "newer release", false); time.Since(began) > patient/2 {
			t.Errorf("%s: %v after %v", what, err, time.Since(began))
		}
	}
	if l.Allow() {
		t.Error("Allow admits")
	}
	if got := db.Exec("SELECT state FROM throttle_quota"); got != newer {
		t.Errorf("the state is %s", got)
	}
}

func TestPolicyThatCannotBeKept(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	migrated(t, db.URL(), Options{})
	p := throttle.Policy{Name: "fleet"}
	for i := range 100 {
		p.Tiers = append(p.Tiers, throttle.Tier{Limit: mostStamps, Window: time.Hour + time.Duration(i)*time.Second, Algorithm: throttle.SlidingLog})
	}
	l := process(t, db, p, Options{Timeout: patient})
	var err error
	for i := 0; err == nil && i < mostStamps; i++ {
		err = l.Wait(t.Context())
	}
	wantError(t, err, "16384 at most", false)
}

func TestNamesOfPoliciesAreData(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k := migrated(t, db.URL(), Options{})
	s, err := New(k.pool, Options{Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	odd := []string{
		"'", `"`, `\`, "a\x00b", "\xff\xfe", "'); DROP TABLE throttle_quota; --", "$1", "%s", "\u202e", " ", "a ", "A",
		strings.Repeat("n", 1<<20), strings.Repeat("n", 1<<20) + "'",
	}
	p := throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}}
	for _, name := range odd {
		p.Name = name
		l, err := throttle.New(p, s)
		if err == nil {
			err = l.Wait(t.Context())
		}
		if refused := strings.Contains(name, "\x00"); refused != (err != nil) {
			t.Errorf("%.20q: %v", name, err)
		}
	}
	p.Name = "group"
	g, err := throttle.NewGroup(p, s, throttle.GroupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range odd {
		if err := g.For(key).Wait(t.Context()); err != nil {
			t.Errorf("key %.20q: %v", key, err)
		}
	}
	if got, want := db.Exec("SELECT count(*) FROM throttle_quota"), fmt.Sprint(2*len(odd)-1); got != want {
		t.Errorf("%s rows, want %s, one for each name", got, want)
	}
	if got := db.Exec("SELECT max(length(name)) FROM throttle_quota"); got != "16" {
		t.Errorf("names of %s bytes", got)
	}
}
