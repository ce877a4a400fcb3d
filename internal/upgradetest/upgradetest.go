// Package upgradetest checks that a release goes on from the quotas that an earlier one left in a shared store.
//
// Record plays programs and writes what they left behind, and what they know about it: how much was admitted, which
// permits are open, when a pause ends. A test of a store keeps that in its testdata, with the values of the store.
// Later releases play Check on these values. To record with an earlier release, check it out, copy this package and
// the recording test to it, and run that with -record and -commit.
package upgradetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
)

// A State is what a program left in a store.
type State struct {
	Name string `json:"name"`
	// Calls describes what the program did. The times count from its start.
	Calls string `json:"calls"`
	// Tiers are those of the policies that the program used, one after the other. Each is checked.
	Tiers [][]string `json:"tiers"`
	// Outer is the tiers of the policy around it. If empty, there is none.
	Outer []string `json:"outer,omitempty"`
	// Key is the key in a Group. If empty, there is no Group.
	Key string `json:"key,omitempty"`
	// At is when the values were copied, in Unix µs.
	At int64 `json:"at"`
	// Admitted is the amount of each unit that the program was admitted: the actual cost of requests that were
	// settled, and the estimate of others.
	Admitted map[string]int64 `json:"admitted"`
	// Open is the number of requests that had not ended. If zero, all had.
	Open int64 `json:"open,omitempty"`
	// Reserved is the number of callers that had a reservation in the next window, and were then admitted. If zero, none
	// had.
	Reserved int64 `json:"reserved,omitempty"`
	// Closed is the end of a pause or ban in Unix µs. If zero, there was none.
	Closed int64 `json:"closed,omitempty"`
	// Banned reports that it is a ban.
	Banned bool `json:"banned,omitempty"`
	// Limits are those that responses named, or the rate that refusals taught, by tier. If zero, the policy's.
	Limits []int64 `json:"limits,omitempty"`
	// Values are those of the store.
	Values json.RawMessage `json:"values"`

	dump func() Values // while it is recorded
}

// limiter returns a limiter of the i-th policy.
func (s *State) limiter(t testing.TB, quotas throttle.Store, i int) (l, outer *throttle.Limiter) {
	t.Helper()
	p := policy(t, s.Name, s.Tiers[i])
	var err error
	if s.Key == "" {
		l, err = throttle.New(p, quotas)
	} else if g, bad := throttle.NewGroup(p, quotas, throttle.GroupOptions{}); bad == nil {
		l = g.For(s.Key)
	} else {
		err = bad
	}
	if err == nil && s.Outer != nil {
		if outer, err = throttle.New(policy(t, s.Name+"-outer", s.Outer), quotas); err == nil {
			l = l.Within(outer)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return l, outer
}

func policy(t testing.TB, name string, tiers []string) throttle.Policy {
	t.Helper()
	p := throttle.Policy{Name: name}
	for _, spec := range tiers {
		tier, err := algorithms.ParseTier(spec)
		if err != nil {
			t.Fatal(err)
		}
		p.Tiers = append(p.Tiers, tier)
	}
	return p
}

// Check checks the state, which the store has from its instant At on, under the i-th policy. In virtual time it checks
// also that the quota goes on: the leases of the program end, and new windows are empty.
func (s State) Check(t *testing.T, quotas throttle.Store, i int, virtual bool) {
	l, outer := s.limiter(t, quotas, i)
	if s.Closed > 0 {
		s.checkClosed(t, l)
		if !virtual {
			return
		}
		time.Sleep(time.Until(time.UnixMicro(s.Closed)) + time.Second)
		s.Admitted = maps.Clone(s.Admitted)
		pass(s.admit(t, l, 1, nil)) // goes first, and the others wait for its response
		time.Sleep(time.Second)
	}
	if s.Reserved == 0 { // which counts, too
		s.checkUsed(t, l)
	}
	admitted := s.take(t, l, s.free(t, l))
	if s.Outer != nil {
		if p := s.take(t, outer, 0); len(p) > 0 {
			t.Errorf("the outer quota has %d left, want none", len(p))
		}
	}
	if !virtual {
		return
	}
	if s.Reserved > 0 { // the earlier program admits them without another call
		window := tiers(t, l)[0].Tier.Window
		time.Sleep(time.Until(time.Now().Truncate(window).Add(window + time.Second)))
		admitted = append(admitted, s.take(t, l, tiers(t, l)[0].Tier.Limit-s.Reserved)...)
	}
	for _, p := range admitted {
		p.Release()
	}
	longest := 2 * time.Minute // in which leases end
	for _, tier := range tiers(t, l) {
		longest = max(longest, 3*tier.Tier.Window, 3*tier.Tier.Period.Longest())
	}
	for end := time.Now().Add(longest); time.Now().Before(end); time.Sleep(longest / 50) {
		if _, err := l.Status(t.Context()); err != nil { // a time in which no process asks ends no lease
			t.Fatal(err)
		}
	}
	s.Open, s.Admitted = 0, nil
	for _, p := range s.take(t, l, s.free(t, l)) {
		p.Release()
	}
}

// checkClosed checks that the quota is paused until then.
func (s *State) checkClosed(t *testing.T, l *throttle.Limiter) {
	t.Helper()
	_, err := l.TryAcquire(t.Context(), nil)
	var refused *throttle.WaitError
	if !errors.As(err, &refused) || errors.Is(err, throttle.ErrBanned) != s.Banned {
		t.Errorf("got %v during a pause, want a refusal; by a ban: %v", err, s.Banned)
		return
	}
	until := refused.Until
	if until.IsZero() {
		until = time.Now().Add(refused.Wait)
	}
	if off := until.Sub(time.UnixMicro(s.Closed)).Abs(); off > 2*time.Second {
		t.Errorf("got a pause until %v, want %v, as the program was told", until, time.UnixMicro(s.Closed))
	}
}

// tiers returns the tiers of all quotas.
func tiers(t testing.TB, l *throttle.Limiter) []throttle.TierStatus {
	t.Helper()
	status, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return status.Tiers
}

// used returns what is used of a tier.
func (s *State) used(tier throttle.Tier) int64 {
	if tier.Algorithm == throttle.Concurrency {
		return s.Open
	}
	return s.Admitted[unitOf(tier)]
}

func unitOf(tier throttle.Tier) string {
	if tier.Unit == "" {
		return algorithms.Requests
	}
	return tier.Unit
}

// checkUsed checks what is used, and the limits that hold.
func (s *State) checkUsed(t *testing.T, l *throttle.Limiter) {
	t.Helper()
	for i, tier := range tiers(t, l) {
		if got, want := tier.Used, s.used(tier.Tier); got != want && !learns(tier) {
			t.Errorf("got %d used of %v, want %d, as the program was admitted", got, tier.Tier, want)
		}
		if i < len(s.Limits) && limitOf(tier) != s.Limits[i] {
			t.Errorf("got the limit %d of %v, want %d, as the program had learned", limitOf(tier), tier.Tier, s.Limits[i])
		}
	}
}

// free returns how many requests of 1 of each unit may go at once, or -1 if only the provider knows.
func (s *State) free(t testing.TB, l *throttle.Limiter) int64 {
	free := int64(1 << 40)
	for i, tier := range tiers(t, l) {
		if learns(tier) {
			return -1
		}
		limit := max(tier.Tier.Limit, tier.Tier.Burst)
		if i < len(s.Limits) {
			limit = s.Limits[i]
		}
		free = min(free, limit-s.used(tier.Tier))
	}
	return free
}

// take takes what it can, and checks that it is as much as is free.
func (s *State) take(t *testing.T, l *throttle.Limiter, free int64) (permits []*throttle.Permit) {
	t.Helper()
	cost := throttle.Cost{}
	var all []throttle.Tier
	for _, tier := range tiers(t, l) {
		cost[unitOf(tier.Tier)] = 1
		all = append(all, tier.Tier)
	}
	for {
		p, err := l.TryAcquire(t.Context(), cost)
		var refused *throttle.WaitError
		if err != nil {
			if !errors.As(err, &refused) || errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("got %v, want a permit or a refusal", err)
			}
			break
		}
		permits = append(permits, p)
	}
	if free >= 0 && int64(len(permits)) != free {
		t.Errorf("%v: got %d admitted at once, want %d", all, len(permits), free)
	}
	return permits
}

// A Process is a store of a program that plays, and the copy of its values.
type Process struct {
	Store throttle.Store
	Dump  func() Values
}

// Values are what a store keeps, for json.Marshal.
type Values = any

// A program plays on the store of a process. It fills in what it knows.
type program struct {
	name, calls string
	tiers       [][]string
	outer       []string
	key         string
	play        func(t testing.TB, s *State, limiters []*throttle.Limiter)
	// holds reports that it needs leases, which not every store has.
	holds bool
	// teaches reports that responses teach it.
	teaches bool
}

// Options are what the store of the recorded release can do.
type Options struct {
	// Ahead reports that the store reserves times to come.
	Ahead bool
	// Holds reports that the store has leases, for permits and estimates.
	Holds bool
	// Century makes every window a hundred years, for a store whose clock is real.
	Century bool
}

// Record plays each program on a store of its own, and writes a file, if the flag -record names one. In virtual time,
// play runs in a bubble.
func Record(t *testing.T, o Options, play func(t *testing.T, f func(t *testing.T, p Process))) {
	t.Helper()
	commit, ok := Recorded()
	if !ok {
		return
	}
	var states []State
	for _, p := range programs() {
		if p.holds && !o.Holds || p.teaches && !*teaches || o.Century && !p.lasts() {
			continue
		}
		play(t, func(t *testing.T, process Process) {
			if !o.Century {
				time.Sleep(10 * time.Minute) // into windows of the clock
			}
			s := State{Name: p.name, Calls: p.calls, Tiers: p.tiers, Outer: p.outer, Key: p.key, Admitted: map[string]int64{}}
			if o.Century {
				s.Tiers = slices.Clone(s.Tiers)
				for i := range s.Tiers {
					s.Tiers[i] = centuries(s.Tiers[i])
				}
			}
			var all []*throttle.Limiter
			for i := range s.Tiers {
				l, _ := s.limiter(t, process.Store, i)
				all = append(all, l)
			}
			s.dump = process.Dump
			p.play(t, &s, all)
			if s.Values == nil {
				s.copy(t)
			}
			if !o.Ahead {
				s.Reserved = 0
			}
			states = append(states, s)
		})
	}
	Write(t, File{Commit: commit, States: states})
}

// copy copies the values of the store.
func (s *State) copy(t testing.TB) {
	t.Helper()
	values, err := json.Marshal(s.dump())
	if err != nil {
		t.Fatal(err)
	}
	s.Values, s.At = values, time.Now().UnixMicro()
}

// admit acquires permits one by one and counts them.
func (s *State) admit(t testing.TB, l *throttle.Limiter, n int, cost throttle.Cost) (permits []*throttle.Permit) {
	t.Helper()
	for range n {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		p, err := l.Acquire(ctx, cost)
		cancel()
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		permits = append(permits, p)
		s.Admitted[algorithms.Requests]++
		for unit, amount := range cost {
			s.Admitted[unit] += amount
		}
	}
	return permits
}

// pass ends requests that were not refused.
func pass(permits []*throttle.Permit) {
	for _, p := range permits {
		p.Passed()
		p.Release()
	}
}

// Replay checks the states of all files. load calls check with a store that has the values of a state.
func Replay(t *testing.T, load func(t *testing.T, s *State, check func(*testing.T, Process))) {
	for _, name := range Names(t) {
		for _, s := range States(t, name) {
			for i := range s.Tiers {
				t.Run(fmt.Sprintf("%s/%s/%d", name, s.Name, i), func(t *testing.T) {
					soak.Sample(t, 6)
					load(t, &s, func(t *testing.T, p Process) { s.Check(t, p.Store, i, true) })
				})
			}
		}
	}
}

// CheckNewer checks that every call fails at once with an error that says to upgrade, and that the store stays as it
// is: its values are of a release after this one. It runs in virtual time.
func (s State) CheckNewer(t *testing.T, p Process) {
	before, err := json.Marshal(p.Dump())
	if err != nil {
		t.Fatal(err)
	}
	l, _ := s.limiter(t, p.Store, 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, call := range map[string]func() error{
		"TryAcquire": func() error { _, err := l.TryAcquire(ctx, nil); return err },
		"Acquire":    func() error { _, err := l.Acquire(ctx, nil); return err },
		"Status":     func() error { _, err := l.Status(ctx); return err },
		"Forecast":   func() error { _, err := l.Forecast(ctx, nil); return err },
		"Explain":    func() error { _, err := l.Explain(ctx, nil); return err },
		"Pause":      func() error { return l.Pause(ctx, time.Second) },
		"Resume":     func() error { return l.Resume(ctx) },
	} {
		began := time.Now()
		err := call()
		if err == nil || !strings.Contains(err.Error(), "newer release") || !strings.Contains(err.Error(), "upgrade this") ||
			errors.Is(err, throttle.ErrUnavailable) || time.Since(began) > time.Second {
			t.Errorf("%s: got %v after %v, want an error at once that says to upgrade", name, err, time.Since(began))
		}
	}
	if err := l.SetPolicy(ctx, policy(t, s.Name, append(slices.Clone(s.Tiers[0]), "100/24h;algo=gcra"))); err == nil {
		_, err = l.TryAcquire(ctx, nil)
		if err == nil {
			t.Error("TryAcquire after SetPolicy: got a permit, want an error")
		}
	}
	l.Close()
	time.Sleep(5 * time.Minute) // for what runs in the background
	after, err := json.Marshal(p.Dump())
	if err != nil || string(after) != string(before) {
		t.Errorf("got the values changed to %s, %v, want %s", after, err, before)
	}
}
