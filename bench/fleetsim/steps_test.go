package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// A counter counts the instructions that a Lua state runs with it as its context.
type counter struct {
	context.Context
	n int
}

func (c *counter) Done() <-chan struct{} {
	c.n++
	return nil
}

// TestSteps checks that with leases a call takes no more instructions with 6,000 processes than
// with 10.
func TestSteps(t *testing.T) {
	for _, limit := range []int64{1 << 20, 5} { // all processes hold a place, or nearly all are queued
		t.Run(strconv.FormatInt(limit, 10), func(t *testing.T) {
			few, many := steps(t, limit, 10), steps(t, limit, 6000)
			if t.Logf("instructions of the calls of one process: %v with 10 processes, %v with 6,000", few, many); slices.Max(many) > slices.Max(few)*5/4 {
				t.Error("got more instructions with 6,000 processes, want at most a quarter more than with 10")
			}
		})
	}
}

// steps returns how many instructions calls take when processes share a quota: a call that asks,
// one that releases a place, and calls that ask then.
func steps(t *testing.T, limit int64, processes int) (counts []int) {
	s := perSecond("steps", "", 1, 1, 1<<20)
	s.tiers = append(s.tiers, throttle.Tier{Limit: limit, Algorithm: throttle.Concurrency})
	var script, asks []string
	s.seen = func(_ int64, args []string, _ any) {
		switch {
		case args[0] == "script":
			script = args
		case args[0] == "evalsha" && asks == nil && len(args) > 6 && args[6] == "reserve":
			asks = args
		}
	}
	played(t, s.measured(0, time.Second), 1)
	synctest.Test(t, func(t *testing.T) { counts = stepsAtOnce(t, script[2], asks, processes) }) // no time passes
	return counts
}

func stepsAtOnce(t *testing.T, script string, asks []string, processes int) (counts []int) {
	const op, owner, seq, lease, held = 6, 8, 9, 10, 13
	server := newServer(service{}, nil)
	server.load("load", script)
	count := &counter{Context: context.Background()}
	call := func(what string, process, nth, holds int) {
		t.Helper()
		words := slices.Clone(asks)
		words[op], words[owner], words[seq], words[lease], words[held] = what, strconv.Itoa(process), strconv.Itoa(nth), "3600000000", strconv.Itoa(holds)
		if what == "lease" {
			words = words[:held+1]
		}
		count.n = 0
		if reply, _ := server.script("evalsha", words[1:]); fmt.Sprintf("%T", reply) != "[]interface {}" {
			t.Fatalf("%v: got %v, want a list", words, reply)
		}
		counts = append(counts, count.n)
	}
	for i := range processes {
		call("reserve", i+1, 1, 0)
	}
	counts = nil
	server.lua.State.SetContext(count)
	call("reserve", processes+1, 1, 0)
	call("lease", 1, 2, 0)
	call("reserve", 1, 3, 0)
	for i := range 6 { // one of which has a place kept for it
		call("reserve", i+2, 2, 1)
	}
	return counts
}
