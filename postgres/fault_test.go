package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

// The tests here break something between a fleet and its server, or in the server, while the fleet is at
// work. Each is a row of the table in docs/faults.md: how many requests were admitted beyond the policy, and
// when the full rate was back.

const (
	limit    = 50       // the capacity that may be admitted again after a loss
	each     = 4        // callers of a process
	callers  = 3 * each // each has one reservation at most
	lossy    = limit + callers
	promised = 2 * time.Second // until the full rate is back
	slowness = 10              // of a machine that is very busy, compared with one that keeps the promises
)

// inWindows admits fifty every two seconds and a little in steady state, the guard included. Its guard
// exceeds any delay of the scheduler.
func inWindows() throttle.Policy {
	return throttle.Policy{Name: "fleet", Guard: time.Second, Tiers: []throttle.Tier{
		{Limit: limit, Window: time.Second, Algorithm: throttle.SlidingLog}, throttle.PerHour(100_000),
	}}
}

// steady is how many requests inWindows admits in a time.
func steady(d time.Duration) int { return int(limit * d / (2100 * time.Millisecond)) }

// A crew describes a fleet.
type crew struct {
	url       func(member int) string
	options   Options
	configure func(*pgxpool.Config) // may be nil
	// expects reports that callers may receive an error. If nil, they receive none.
	expects func(error) bool
	// pooled reports that a pooler keeps connections to the server.
	pooled bool
}

// A fleet simulates three processes in one: its members share nothing but the server.
type fleet struct {
	t       *testing.T
	db      *pgtest.Database
	crew    crew
	members []*member
	end     context.CancelFunc
	working sync.WaitGroup
	lost    atomic.Int64 // how often OnLost was called
	overdue atomic.Int64 // how long after the end of its context a caller returned, at most

	mu       sync.Mutex // guards all below
	admitted []time.Time
	errs     []error // that callers got before the end, and should not
	expected int     // errors that they may get
}

type member struct {
	pool    *pgxpool.Pool
	limiter *throttle.Limiter
}

// startFleet starts a fleet, and returns when each of its members has been admitted.
func startFleet(t *testing.T, db *pgtest.Database, c crew) *fleet {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	f := &fleet{t: t, db: db, crew: c, end: cancel}
	c.options.OnLost = func(string) { f.lost.Add(1) }
	migrated(t, c.url(0), c.options) // if the table exists, no right to create one is needed
	for i := range callers / each {
		config, err := pgxpool.ParseConfig(c.url(i))
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.RuntimeParams["application_name"] = "fleet"
		config.ConnConfig.ConnectTimeout = 5 * time.Second // as the docs advise
		if c.configure != nil {
			c.configure(config)
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		s, err := New(pool, c.options)
		if err != nil {
			t.Fatal(err)
		}
		l, err := throttle.New(inWindows(), s)
		if err != nil {
			t.Fatal(err)
		}
		f.members = append(f.members, &member{pool, l})
	}
	var began [callers / each]atomic.Bool
	for i, m := range f.members {
		for range each - 1 {
			f.working.Go(func() { f.work(ctx, m, &began[i]) })
		}
		f.working.Go(func() { f.hurry(ctx, m) })
	}
	waitUntil(t, "the whole fleet is admitted", func() bool {
		return began[0].Load() && began[1].Load() && began[2].Load()
	})
	return f
}

// work is a caller that waits however long it takes.
func (f *fleet) work(ctx context.Context, m *member, began *atomic.Bool) {
	for ctx.Err() == nil {
		err := m.limiter.Wait(ctx)
		if f.record(ctx, err); err == nil {
			began.Store(true)
		}
	}
}

// hurry is a caller whose context ends soon.
func (f *fleet) hurry(ctx context.Context, m *member) {
	for ctx.Err() == nil {
		soon, cancel := context.WithTimeout(ctx, time.Second)
		err := m.limiter.Wait(soon)
		if end, _ := soon.Deadline(); ctx.Err() == nil {
			for after := int64(time.Since(end)); ; {
				most := f.overdue.Load()
				if after <= most || f.overdue.CompareAndSwap(most, after) {
					break
				}
			}
		}
		cancel()
		if errors.Is(err, store.ErrUnavailable) || errors.Is(err, throttle.ErrDeadline) || errors.Is(err, context.DeadlineExceeded) {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		f.record(ctx, err)
	}
}

// record records how a Wait has ended.
func (f *fleet) record(ctx context.Context, err error) {
	now := time.Now()
	f.mu.Lock()
	switch {
	case err == nil:
		f.admitted = append(f.admitted, now)
	case ctx.Err() != nil:
	case f.crew.expects != nil && f.crew.expects(err):
		f.expected++
	default:
		f.errs = append(f.errs, err)
	}
	f.mu.Unlock()
	if err != nil {
		time.Sleep(10 * time.Millisecond) // as a program that tries again
	}
}

// between returns how many were admitted in [from, to).
func (f *fleet) between(from, to time.Time) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, at := range f.admitted {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}

// fullRate returns when after an instant the fleet had its full rate again: then began a time in which
// four fifths of it were admitted, because a busy machine is slower. It is zero if it has not yet.
func (f *fleet) fullRate(over time.Time) time.Time {
	const during = 4200 * time.Millisecond
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.admitted
	slices.SortFunc(all, time.Time.Compare)
	first, _ := slices.BinarySearchFunc(all, over, time.Time.Compare)
	for last := first; first < len(all) && time.Since(all[first]) >= during; first++ {
		for last < len(all) && all[last].Sub(all[first]) < during {
			last++
		}
		if last-first >= steady(during)*4/5 {
			return all[first]
		}
	}
	return time.Time{}
}

// finish stops the fleet when it has its full rate again, and logs the row of the table. It checks that
// at most that many requests were admitted beyond the policy, and that the fleet leaves nothing behind.
func (f *fleet) finish(fault string, over time.Time, most int) {
	f.t.Helper()
	var back time.Time
	waitUntil(f.t, "the full rate is back", func() bool {
		time.Sleep(200 * time.Millisecond)
		back = f.fullRate(over)
		return !back.IsZero()
	})
	f.end()
	f.working.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.errs) > 0 {
		f.t.Errorf("got errors for %d callers, the first %v, want none", len(f.errs), f.errs[0])
	}
	excess := f.excess()
	f.t.Logf("| %s | %d of %d | %v | overdue %v, lost %d, %d errors |", fault, excess, len(f.admitted), back.Sub(over).Round(time.Millisecond),
		time.Duration(f.overdue.Load()).Round(time.Millisecond), f.lost.Load(), f.expected)
	if excess > most {
		f.t.Errorf("got %d admitted beyond the policy, want %d at most", excess, most)
	}
	if got := back.Sub(over); got > slowness*promised {
		f.t.Errorf("got the full rate after %v, want %v", got, promised)
	}
	if got := time.Duration(f.overdue.Load()); got > slowness*time.Second {
		f.t.Errorf("a caller returned %v after the end of its context", got)
	}
	f.checkNothingLeft()
}

// excess returns how many requests a strict provider refuses.
func (f *fleet) excess() (n int) {
	f.t.Helper()
	provider, err := throttletest.NewCounter(inWindows().Tiers...)
	if err != nil {
		f.t.Fatal(err)
	}
	slices.SortFunc(f.admitted, time.Time.Compare)
	for _, at := range f.admitted {
		if !provider.Arrive(at.UnixMicro(), nil) {
			n++
		}
	}
	return n
}

// checkNothingLeft checks that the fleet has no connection when its callers are gone.
func (f *fleet) checkNothingLeft() {
	f.t.Helper()
	for _, m := range f.members {
		waitUntil(f.t, "the store uses no connection of the pool", func() bool { return m.pool.Stat().AcquiredConns() == 0 })
		m.pool.Close()
	}
	if f.crew.pooled {
		return
	}
	waitUntil(f.t, "the server has no connection of the fleet", func() bool {
		time.Sleep(500 * time.Millisecond)
		return f.db.Exec("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fleet' AND datname = current_database()") == "0"
	})
}

// checkLost checks that each process has found the loss once.
func (f *fleet) checkLost() {
	f.t.Helper()
	waitUntil(f.t, "all processes have found the loss", func() bool { return f.lost.Load() >= int64(len(f.members)) })
}

// checkUnavailable checks that a caller of each process whose context ends gets an error with the cause.
func (f *fleet) checkUnavailable(causes ...string) {
	f.t.Helper()
	for _, m := range f.members {
		waitUntil(f.t, "a caller whose context ends gets ErrUnavailable and one of "+strings.Join(causes, ", "), func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			err := m.limiter.Wait(ctx)
			return errors.Is(err, throttle.ErrUnavailable) && errors.Is(err, context.DeadlineExceeded) &&
				slices.ContainsFunc(causes, func(c string) bool { return strings.Contains(err.Error(), c) })
		})
	}
}

// checkErrors checks that callers get the errors that the crew expects.
func (f *fleet) checkErrors() {
	f.t.Helper()
	waitUntil(f.t, "callers get the error", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.expected >= callers
	})
}

// waitUntil waits for a condition.
func waitUntil(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// to returns the URLs of a crew that uses one database.
func to(url string) func(int) string { return func(int) string { return url } }
