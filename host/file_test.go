package host_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/host"
)

const (
	hour  = time.Hour
	fresh = 10 // requests that a fresh throttle.PerHour(10) admits
)

// A wall clock that steps back repeatedly releases no burst, and stops admissions for no longer
// than the window. The quota's own clock continues.
func TestClockStepsBack(t *testing.T) {
	wall := int64(1.7e15)
	path := file(t)
	newLimiter := func() *throttle.Limiter {
		s := openFile(t, path)
		s.SetWall(func() int64 { return wall })
		return limiter(t, exact(throttle.Tier{Limit: 10, Window: sec}, throttle.Tier{Limit: 1000, Window: hour, Algorithm: throttle.TokenBucket}), s)
	}
	l := newLimiter()
	for i, step := range []time.Duration{-time.Second, -hour, -1000 * hour, -ms, 0} {
		if n := allowed(l, 20); n != 10 {
			t.Errorf("step %d: %d requests are admitted at once, want 10", i, n)
		}
		wall += int64(step / time.Microsecond)
		if n := allowed(newLimiter(), 20); n != 0 {
			t.Errorf("step %d: %d requests are admitted after the clock stepped back, want none", i, n)
		}
		wall += int64(sec/time.Microsecond) - 1
		if n := allowed(l, 20); n != 0 {
			t.Errorf("step %d: %d requests are admitted before the window has passed, want none", i, n)
		}
		wall++
		l = newLimiter()
	}
}

// A step back to a time after the last admission does not make other processes wait longer, because
// a process also remembers the latest time that it has seen.
func TestClockStepsBackWhileWaiting(t *testing.T) {
	wall := int64(1.7e15)
	s := openFile(t, file(t))
	s.SetWall(func() int64 { return wall })
	l := limiter(t, exact(throttle.PerSecond(1)), s)
	for i, step := range []struct {
		wall time.Duration // since the last
		want bool
	}{{0, true}, {900 * ms, false}, {-500 * ms, false}, {99 * ms, false}, {ms, true}} {
		wall += int64(step.wall / time.Microsecond)
		if l.Allow() != step.want {
			t.Errorf("step %d: admitted %v, want %v", i, !step.want, step.want)
		}
	}
}

// Windows aligned to the clock follow it, but do not open twice.
func TestClockOfWindows(t *testing.T) {
	wall := int64(1_700_000_000_000_000)
	s := openFile(t, file(t))
	s.SetWall(func() int64 { return wall })
	l := limiter(t, exact(throttle.Tier{Limit: 5, Window: 10 * sec, Algorithm: throttle.FixedWindow}), s)
	for i, step := range []struct {
		wall time.Duration // since the last
		want int
	}{{0, 5}, {9 * sec, 0}, {sec, 5}, {-5 * sec, 0}, {5 * sec, 0}, {10 * sec, 5}} {
		wall += int64(step.wall / time.Microsecond)
		if n := allowed(l, 10); n != step.want {
			t.Errorf("step %d: %d requests are admitted, want %d", i, n, step.want)
		}
	}
}

// A budget and its alerts persist in the file for later processes.
func TestBudget(t *testing.T) {
	path := file(t)
	alerts := 0
	p := exact(throttle.Tier{Limit: 4, Algorithm: throttle.Calendar, Period: throttle.Month, Zone: "Asia/Beirut", Budget: true})
	p.AlertAt, p.Alert = []int{50}, func(throttle.Alert) { alerts++ }
	for run, want := range []error{nil, nil, throttle.ErrExhausted} {
		s := openFile(t, path)
		if err := limiter(t, p, s).WaitN(background, 2); !errors.Is(err, want) {
			t.Errorf("run %d: %v, want %v", run, err, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if alerts != 1 {
		t.Errorf("%d alerts, want 1", alerts)
	}
}

// Processes with different policies keep the charges of equal tiers, even if they alternate.
func TestTwoPolicies(t *testing.T) {
	path := file(t)
	hourly := func(n int64, a throttle.Algorithm) throttle.Tier {
		return throttle.Tier{Limit: n, Window: hour, Algorithm: a}
	}
	for i, step := range []struct {
		tiers []throttle.Tier
		want  int
	}{
		{[]throttle.Tier{hourly(10, throttle.SlidingLog)}, 10},
		{[]throttle.Tier{hourly(4, throttle.SlidingLog)}, 0},
		{[]throttle.Tier{hourly(15, throttle.SlidingLog), throttle.PerDay(50)}, 5},
		{[]throttle.Tier{hourly(4, throttle.SlidingLog)}, 0},
		{[]throttle.Tier{hourly(15, throttle.SlidingLog)}, 0},
		{[]throttle.Tier{hourly(20, throttle.FixedWindow)}, 5},
		{[]throttle.Tier{{Limit: 20, Window: hour, Unit: "tokens"}}, 0}, // the policy counts no requests, and so refuses them
	} {
		s := openFile(t, path)
		s.Sync = i%2 == 0
		l := limiter(t, exact(step.tiers...), s)
		if n := allowed(l, 100); n != step.want {
			t.Errorf("step %d: %d requests are admitted under %v, want %d", i, n, step.tiers, step.want)
		}
		if err := l.Pause(background, time.Microsecond); err != nil { // to write the file
			t.Error(err)
		}
	}
}

// A pause of one limiter applies to all. Callers that it makes late fail at once in its process,
// and in other processes when they next read the file.
func TestPause(t *testing.T) {
	for _, delay := range []time.Duration{0, 500 * ms} {
		synctest.Test(t, func(t *testing.T) {
			s := openFile(t, file(t))
			mine, other := limiter(t, policy(throttle.PerSecond(5)), s), limiter(t, policy(throttle.PerSecond(5)), s)
			if delay > 0 {
				other = limiter(t, policy(throttle.PerSecond(5)), openFile(t, s.Path()))
			}
			if allowed(mine, 10) != 5 {
				t.Fatal("the quota was not fresh")
			}
			start, late := time.Now(), make(chan error)
			for range 3 { // one at the head of the queue, and some behind it
				go func() {
					ctx, cancel := context.WithTimeout(background, 5*sec)
					defer cancel()
					late <- mine.Wait(ctx)
				}()
			}
			synctest.Wait()
			if err := other.Pause(background, 10*sec); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := <-late; !errors.Is(err, throttle.ErrDeadline) || time.Since(start) > delay {
					t.Errorf("%v after %v, want ErrDeadline after %v at most", err, time.Since(start), delay)
				}
			}
			if err := mine.Wait(background); err != nil || time.Since(start) != 10*sec {
				t.Errorf("admitted after %v, %v, want 10s", time.Since(start), err)
			}
		})
	}
}

// A refund in one process lets a caller in another process go.
func TestReturnOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, hourly := file(t), policy(throttle.PerHour(1))
		hourly.Guard = time.Minute
		mine, other := limiter(t, hourly, openFile(t, path)), limiter(t, hourly, openFile(t, path))
		permit, err := mine.Acquire(background, nil)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.AfterFunc(10*sec, func() { _ = permit.Cancel(background) })
		if err := other.Wait(background); err != nil || time.Since(start) > 11*sec {
			t.Errorf("admitted after %v, %v, want shortly after 10s", time.Since(start), err)
		}
	})
}

// While another process holds the file, callers wait for it until their context ends.
func TestFileIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := file(t)
		l := limiter(t, exact(throttle.PerHour(fresh)), openFile(t, path))
		other, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if l.Allow() {
			t.Error("Allow is true while the file is locked")
		}
		if _, err := l.Status(background); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		if _, err := host.Open(path); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		for _, timeout := range []time.Duration{50 * ms, 3 * sec} {
			start := time.Now()
			ctx, cancel := context.WithTimeout(background, timeout)
			err := l.Wait(ctx)
			if !errors.Is(err, throttle.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != timeout {
				t.Errorf("%v after %v, want ErrUnavailable and the context's error after %v", err, time.Since(start), timeout)
			}
			cancel()
		}
		time.AfterFunc(3*sec, func() { _ = other.Close() })
		start := time.Now()
		if err := l.Wait(background); err != nil || time.Since(start) > 4*sec {
			t.Errorf("admitted after %v, %v, want shortly after 3s", time.Since(start), err)
		}
		if n := allowed(l, 20); n != fresh-1 {
			t.Errorf("%d more requests are admitted, want %d: canceled callers are charged nothing", n, fresh-1)
		}
	})
}

// The quotas of a group leave the file once they equal fresh ones.
func TestGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openFile(t, file(t))
		p := exact(throttle.PerSecond(2))
		p.Name = "api"
		g, err := throttle.NewGroup(p, s, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 500 {
			if n := allowed(g.For(strconv.Itoa(i)), 3); n != 2 {
				t.Fatalf("key %d: %d requests are admitted, want 2: each key has its own quota", i, n)
			}
			time.Sleep(50 * ms)
		}
		n, err := s.Keys()
		if err != nil || n < 20 || n > 80 {
			t.Errorf("the file has %d quotas, %v; want 20 to 80: 20 are not fresh, and some fresh ones have not been dropped yet", n, err)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	s := openFile(t, file(t))
	if _, err := s.Open("", plan(t, 0, algorithms.PerSecond(1)), nil); err == nil {
		t.Error("Open accepts an empty key")
	}
	l := limiter(t, policy(throttle.PerSecond(1)), s)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := l.Wait(background); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("%v, want an error about the closed store", err)
	}
}

func TestOpenFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	notes := write("notes", strings.Repeat("something else\n", 2000))
	short := write("short", "something else")
	others := filepath.Join(dir, "others.db")
	db, err := bolt.Open(others, 0o600, nil)
	if err == nil {
		err = db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("users")); return err })
		_ = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	readOnly := filepath.Join(dir, "read-only")
	if err := os.Mkdir(readOnly, 0o500); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		notes:                                "not a quota file",
		short:                                "not a quota file",
		others:                               "not a quota file",
		dir:                                  "is a directory",
		filepath.Join(dir, "no", "such.db"):  "no such file",
		filepath.Join(notes, "quotas.db"):    "not a directory",
		filepath.Join(readOnly, "quotas.db"): "permission denied",
		write("empty", ""):                   "",
	} {
		if os.Getuid() == 0 && filepath.Dir(path) == readOnly {
			continue // root may write everywhere
		}
		before, _ := os.ReadFile(path)
		_, err := host.Open(path)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path)) {
			t.Errorf("%v, want %q of %s", err, want, path)
		}
		if after, _ := os.ReadFile(path); want != "" && string(after) != string(before) {
			t.Errorf("%s was changed", path)
		}
	}
}

// A value of a newer release is refused and not changed. Damage is detected.
func TestUnreadableValue(t *testing.T) {
	for _, test := range []struct {
		name string
		edit func(value []byte) []byte
		want string
	}{
		{"newer", func(v []byte) []byte { return append([]byte{99}, "in an unknown format"...) }, "upgrade this one"},
		{"a bit is wrong", func(v []byte) []byte { v[len(v)/2] ^= 4; return v }, host.ErrDamaged.Error()},
		{"cut off", func(v []byte) []byte { return v[:len(v)-1] }, host.ErrDamaged.Error()},
		{"empty", func(v []byte) []byte { return []byte{} }, host.ErrDamaged.Error()},
	} {
		s := openFile(t, file(t))
		l := limiter(t, exact(throttle.PerHour(fresh)), s)
		if allowed(l, 3) != 3 {
			t.Fatal("the quota was not fresh")
		}
		var value, after []byte
		if err := s.Edit("api", func(v []byte) []byte { value = test.edit(v); return value }); err != nil {
			t.Fatal(err)
		}
		if err := l.Wait(background); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
		if err := l.Pause(background, sec); err == nil {
			t.Errorf("%s: Pause succeeds", test.name)
		}
		if err := s.Edit("api", func(v []byte) []byte { after = v; return v }); err != nil || string(after) != string(value) {
			t.Errorf("%s: the value was changed: %v", test.name, err)
		}
	}
}

// If a file is damaged anywhere, either the error reports that or the damage does no harm. The
// store does not panic, and admits no more than a fresh quota.
func TestDamage(t *testing.T) {
	const keys, limit = 12, 2
	quota := func(s *host.Store, key int) *throttle.Limiter {
		p := exact(throttle.PerHour(limit))
		p.Name = strconv.Itoa(key)
		return limiter(t, p, s)
	}
	path := file(t)
	s := openFile(t, path)
	for key := range keys {
		allowed(quota(s, key), limit)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for seed := range uint64(200) {
		damaged := filepath.Join(t.TempDir(), "damaged.db")
		if err := os.WriteFile(damaged, damage(good, rand.New(rand.NewPCG(seed, 1))), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := host.Open(damaged)
		for key := 0; key < keys && err == nil; key++ {
			l := quota(s, key)
			if _, err = l.Status(background); err == nil && allowed(l, limit+1) > limit {
				t.Fatalf("seed %d: too many requests are admitted", seed)
			}
		}
		if err == nil {
			continue
		}
		found++
		if text := err.Error(); !strings.Contains(text, damaged) || !strings.Contains(text, "delete it") && !strings.Contains(text, "upgrade") {
			t.Errorf("seed %d: %v, want an error with a remedy", seed, err)
		}
		if _, err := host.Open(damaged); errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("seed %d: the file is still locked", seed)
		}
	}
	t.Logf("the damage was detected in %d of 200 files", found)
	if found < 50 {
		t.Errorf("the damage was detected in only %d of 200 files, want 50", found)
	}
}

// damage returns a copy of a file with damage that a disk or a power failure may do.
func damage(good []byte, r *rand.Rand) []byte {
	bad, page := slices.Clone(good), os.Getpagesize()
	somePage := func() int { return r.IntN(len(bad)/page) * page }
	switch to := somePage(); r.IntN(4) {
	case 0: // the file is cut off
		bad = bad[:r.IntN(len(bad))]
	case 1: // a page was not written
		clear(bad[to : to+page])
	case 2: // a page has another page's contents
		copy(bad[to:to+page], good[somePage():])
	case 3:
		for range 1 + r.IntN(20) {
			bad[r.IntN(len(bad))] = byte(r.Uint32())
		}
	}
	return bad
}
