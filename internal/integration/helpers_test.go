package integration_test

import (
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

const (
	ms   = time.Millisecond
	sec  = time.Second
	hour = time.Hour
)

var (
	// bubbleStart is the start of every synctest bubble.
	bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

	classes = []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}
)

func mustNew(t testing.TB, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustGroup(t testing.TB, p throttle.Policy) *throttle.Group {
	t.Helper()
	g, err := throttle.NewGroup(p, nil, throttle.GroupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// unguarded returns a policy whose requests arrive when they are admitted.
func unguarded(name string, tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: name, Tiers: tiers, Guard: throttle.NoGuard}
}

func counter(t *testing.T, tiers ...throttle.Tier) *throttletest.Counter {
	t.Helper()
	c, err := throttletest.NewCounter(tiers...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// upTo returns a random length of time, in nanoseconds, so that no two events coincide.
func upTo(r *rand.Rand, d time.Duration) time.Duration { return 1 + time.Duration(r.Int64N(int64(d))) }

// answer returns a response with header fields.
func answer(status int, fields ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(fields); i += 2 {
		h.Add(fields[i], fields[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("answer"))}
}

// sharedIn returns Limiters of one quota of a shared Group inside others.
func sharedIn(t testing.TB, p throttle.Policy, outer ...*throttle.Limiter) (nested []*throttle.Limiter) {
	t.Helper()
	g, err := throttle.NewGroup(p, nil, throttle.GroupOptions{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outer {
		nested = append(nested, g.Within("key", o))
	}
	return nested
}
