package distributed

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// A nest is two quotas of one plan, one inside the other.
type nest struct {
	*subject
	t            *testing.T
	inner, outer string
	began, at    int64
}

func eachNest(t *testing.T, spec string, play func(n *nest)) {
	for name, s := range map[string]*subject{"in memory": miniSubject(t), "real": realSubject(t)} {
		t.Run(name, func(t *testing.T) {
			s.begin(planOf(t, 10*time.Millisecond, spec))
			play(&nest{s, t, s.key, s.key + ":outer", 1_800_000_000_000_000, 1_800_000_000_000_000})
		})
	}
}

func (n *nest) call(keys []string, op string, args ...any) []int64 {
	n.t.Helper()
	args = append([]any{op, n.text}, args...)
	if n.set != nil {
		n.set(time.UnixMicro(n.at))
	} else {
		args = append(args, n.at)
	}
	reply, err := n.eval(keys, args...).Int64Slice()
	if err != nil {
		n.t.Fatal(err)
	}
	return reply
}

// ask reserves one request in both quotas, for a process that knows that the clock shows at least an
// instant. It returns the decision and how long until the request.
func (n *nest) ask(shows int64) (what int64, in time.Duration) {
	n.t.Helper()
	return n.askIn(shows, n.inner, n.outer)
}

// askIn is ask in any quotas of the plan, of which the first is the innermost.
func (n *nest) askIn(shows int64, keys ...string) (what int64, in time.Duration) {
	n.t.Helper()
	args := []any{0, 0, shows, 0, 0}
	for range keys[1:] {
		args = append(args, n.text, 0, shows, 0, 0)
	}
	args = append(args, 1800_000_000, 1_000_000, 0, 0, 1, -1)
	for range keys {
		args = append(args, 1)
	}
	reply := n.call(keys, opBundle, args...)
	own := reply[len(keys)*headerLen+2:]
	return own[0], microseconds(own[1] - reply[0])
}

// giveBack returns the time of a request to a quota.
func (n *nest) giveBack(key string, in time.Duration) {
	n.t.Helper()
	h := parseHeader(n.call([]string{key}, opStatus))
	if reply := n.call([]string{key}, opCancel, h.generation, h.setBack(), 0, h.now+micros(in), 1); reply[headerLen] != 1 {
		n.t.Fatalf("got %v, want one canceled", reply)
	}
}

// A round is what a call replies to a process: how many of its requests are charged, and for how many
// its next turn is, and when.
type round struct {
	charged, promised, at int64
}

// take asks for eight requests under both, of which one turn is for four at most, in the turn that the
// round before has told if there was one. It first moves on to that.
func (n *nest) take(last round, yields bool) (next round) {
	n.t.Helper()
	turn, count := int64(0), 8
	if last.promised > 0 {
		turn = last.at
		n.at = max(n.at, n.began+turn)
	}
	if yields {
		count = -8
	}
	fast := planText(planOf(n.t, 10*time.Millisecond, "100/s;algo=sliding_log"))
	reply := n.call([]string{n.inner, n.outer}, opBundle, 0, 0, 0, 100, 0, fast, 0, 0, 0, 0, 700_000, 1000, turn, last.promised, count, -1, 1, 1)
	next.promised = reply[headerLen+1]
	for own := reply[headerLen+2+headerLen:]; len(own) > 0; own = own[3:] {
		if own[0] < -1 {
			next.charged += own[2]
		}
		next.at = own[1]
	}
	return next
}

// The turns of an instant are for no more requests than are admitted there.
func TestBundlePromisesWhatFits(t *testing.T) {
	eachNest(t, "6/s;algo=sliding_log", func(n *nest) {
		var turns []round
		promised := make(map[int64]int64)
		for range 6 {
			turn := n.take(round{}, false)
			turns = append(turns, turn)
			if promised[turn.at] += turn.promised; promised[turn.at] > 6 {
				t.Errorf("in turns %+v, %d requests are promised for one instant, 6 fit", turns, promised[turn.at])
			}
		}
	})
}

// A process that has lost its turn gets another one, unless one that uses the quota alone took it: such
// processes reserve further ahead.
func TestBundleLosesTurns(t *testing.T) {
	for name, alone := range map[string]bool{"to a headroom": false, "to one alone": true} {
		t.Run(name, func(t *testing.T) {
			eachNest(t, "6/s;algo=sliding_log", func(n *nest) {
				first := n.take(round{}, false)
				turn := n.take(round{}, false)
				n.take(first, false)
				if alone {
					n.call([]string{n.inner}, opReserve, 1800_000_000, 0, 0, 0, 0, 0, 0, 4, -1, 1)
				}
				next := n.take(turn, !alone)
				if next.charged > 0 || alone != (next.promised < 0) {
					t.Errorf("in turn %+v it has %+v", turn, next)
				}
			})
		})
	}
}

// TestBundleChargesTail checks that a call of two quotas charges the tail of each, even if the caller
// knows that the clock was set back.
func TestBundleChargesTail(t *testing.T) {
	for _, back := range []int64{0, 1000} {
		eachNest(t, "1/10s;algo=sliding_log", func(n *nest) {
			for _, key := range []string{n.inner, n.outer} {
				n.call([]string{key}, opReserve, 1800_000_000, 0, 0, 0, 0, 0, 0, 4, -1, 1)
			}
			n.at += 1000
			if _, in := n.ask(1000 + back); in < 39*time.Second {
				n.t.Errorf("with a clock set back by %d µs got it ready in %v, want it behind four others", back, in)
			}
		})
	}
}

// TestBundleReservesNothingInABan checks that a call reserves nothing while one of the quotas is banned:
// its reply reports only the ban, so the caller could not return a time.
func TestBundleReservesNothingInABan(t *testing.T) {
	for _, left := range []time.Duration{time.Second, 100 * time.Millisecond} {
		eachNest(t, "1/10s;algo=sliding_log", func(n *nest) {
			for _, key := range []string{n.outer, n.inner} {
				n.call([]string{key}, opPause, micros(left), 1, 0, 0, 0)
				if what, _ := n.ask(0); what < -1 {
					n.t.Errorf("%v before the end of a ban: got a reservation, want none", left)
				}
				n.call([]string{key}, opEndPause, 1, 0, 0)
			}
		})
	}
}

// TestBundleTakesReturnedTimes checks that a request takes a time that was returned to the outer quota
// only if the inner quota has room then, or the same time was returned to it too.
func TestBundleTakesReturnedTimes(t *testing.T) {
	eachNest(t, "2/s;algo=sliding_log", func(n *nest) {
		var times []time.Duration
		for range 6 {
			what, in := n.ask(0)
			if what >= -1 {
				t.Fatalf("got %d, want a reservation", what)
			}
			times = append(times, in)
		}
		second := times[2]
		for _, first := range []string{n.outer, n.inner, n.outer} {
			n.giveBack(first, second)
			if _, in := n.ask(0); in <= times[5] {
				t.Errorf("got %v of %v, which was returned to one quota, want a later time", in, times)
			}
			if first == n.outer {
				n.giveBack(n.inner, second)
			} else {
				n.giveBack(n.outer, second)
			}
			if _, in := n.ask(0); in != second {
				t.Errorf("got %v of %v, want %v, which was returned to both quotas", in, times, second)
			}
		}
	})
}

// TestBundleTakesReturnedTimesOfAll checks that it takes none that was returned to the quotas around the
// inner one alone.
func TestBundleTakesReturnedTimesOfAll(t *testing.T) {
	eachNest(t, "2/s;algo=sliding_log", func(n *nest) {
		keys := []string{n.inner, n.inner + ":between", n.outer}
		var times []time.Duration
		for range 6 {
			_, in := n.askIn(0, keys...)
			times = append(times, in)
		}
		n.giveBack(keys[2], times[2])
		n.giveBack(keys[1], times[2])
		if what, in := n.askIn(0, keys...); what >= -1 || in <= times[5] {
			n.t.Errorf("got %d in %v of %v, want a reservation at a later time", what, in, times)
		}
		n.giveBack(keys[0], times[2])
		if what, in := n.askIn(0, keys...); what >= -1 || in != times[2] {
			n.t.Errorf("got %d in %v of %v, want %v, which was returned to all quotas", what, in, times, times[2])
		}
	})
}

// TestBundleReservesUpToSoon checks that a turn is used, and a request reserved, up to exactly the time
// behind the outermost quota that the caller names.
func TestBundleReservesUpToSoon(t *testing.T) {
	eachNest(t, "1/s;algo=sliding_log", func(n *nest) {
		n.call([]string{n.inner}, opReserve, 1800_000_000, 0, 0, 0, 0, 0, 0, 1, -1, 1)
		ask := func(soon, turn, turnCount int64) (what, at, in int64) {
			reply := n.call([]string{n.inner, n.outer}, opBundle, 0, 0, 0, 0, 0, n.text, 0, 0, 0, 0, 1800_000_000, soon, turn, turnCount, 1, -1, 1, 1)
			own := reply[2*headerLen+2:]
			return own[0], own[1], own[1] - reply[0]
		}
		what, turn, behind := ask(0, 0, 0)
		if what < -1 || behind < micros(time.Second) {
			t.Fatalf("got %d in %d µs, want a turn when the inner quota has room", what, behind)
		}
		for _, early := range []int64{1, 0} {
			if what, at, _ := ask(behind-early, turn, 1); (what < -1) != (early == 0) || at != turn {
				t.Errorf("%d µs too soon got %d at %d, want %d", early, what, at, turn)
			}
		}
	})
}

// TestTurnsOfALostState checks that nobody waits for a turn that another state gave, whose clock was
// ahead: the key may expire again before that turn comes, and so on forever.
func TestTurnsOfALostState(t *testing.T) {
	eachNest(t, "1/10s;algo=sliding_log", func(n *nest) {
		const turn = 6_000_000
		bundled := n.call([]string{n.inner, n.outer}, opBundle, 0, 0, 0, 0, 0, n.text, 0, 0, 0, 0, 1800_000_000, 10_000, turn, 1, 1, -1, 1, 1)[2*headerLen+2:]
		batch := n.call([]string{n.inner + ":batch"}, opReserve, 1800_000_000, 0, 0, 0, 0, 0, 0, -1, -1, 0, 10_000, turn, 1)[headerLen:]
		if bundled[0] >= -1 || batch[0] >= -1 {
			n.t.Errorf("got %v and %v, want both requests admitted", bundled, batch)
		}
	})
}

// bundleOf returns a bundle of two quotas of a server that is away.
func bundleOf(t *testing.T, guard time.Duration) *bundle {
	s := New(redis.NewClient(&redis.Options{Addr: "localhost:1"}), Options{})
	var quotas []store.Quota
	for _, key := range []string{"inner", "outer"} {
		q, err := s.Open(key, planOf(t, guard, "1/10s"), nil)
		if err != nil {
			t.Fatal(err)
		}
		quotas = append(quotas, q)
	}
	return quotas[0].(*quota).Bundle(quotas[1:], []int{0, 0}).(*bundle)
}

// TestBundleKeepsReservations checks that reserved requests keep their times if the reply says to ask
// one quota after the other.
func TestBundleKeepsReservations(t *testing.T) {
	b := bundleOf(t, 10*time.Millisecond)
	now := time.Now()
	head := []int64{1000, 1, 1000, 0, 0, 0, now.UnixMicro(), 0}
	reply := slices.Concat(head, []int64{0, -1}, head, []int64{1, 50_000_000, 1, -2, 1000, 1, 1, 60_000_000, 1})
	requests := make([]store.Request, 3)
	for i := range requests {
		requests[i] = store.Request{Cost: []int64{1, 1}, WaitSpec: &store.WaitSpec{MaxWait: store.Forever}}
	}
	requests[0].WaitSpec.MaxWait = time.Second
	a := newJointAttempt(b, []time.Duration{0}, requests)
	a.sent, a.got, a.calls[0].reply = now, now, reply
	got, err := a.read()
	if err != nil || len(got) != 3 || got[0].Verdict != store.Late || got[1].Verdict != store.Admitted {
		t.Errorf("got %+v, %v, want a late request and an admitted one", got, err)
	}
}

// TestBundleGuards checks that all requests of a call have the longest guard of any, which may be the
// plan's.
func TestBundleGuards(t *testing.T) {
	b := bundleOf(t, 5*time.Second)
	requests := []store.Request{{Cost: []int64{1, 1}, WaitSpec: new(store.WaitSpec)}, {Cost: []int64{1, 1}, Guard: 10 * time.Millisecond, WaitSpec: new(store.WaitSpec)}}
	a := newJointAttempt(b, []time.Duration{0}, requests)
	a.onSend(1)
	for i, p := range a.terms {
		if p.Guard < 5*time.Second {
			t.Errorf("quota %d: got a guard of %v, want 5s at least", i, p.Guard)
		}
	}
}

// TestBundleKnowsClocks checks that a reservation for now in several quotas can be used if the reply
// takes as long as those before it, however well the process knows the clock of each quota.
func TestBundleKnowsClocks(t *testing.T) {
	const took, offset = 100 * time.Millisecond, 5_000_000
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	plan, err := algorithms.NewPlan([]algorithms.Tier{{Limit: 5, Window: time.Second, Algorithm: algorithms.SlidingLog}}, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range [][2]time.Duration{{took, took}, {took, time.Millisecond}, {time.Millisecond, took}, {time.Millisecond, time.Millisecond}, {30 * time.Millisecond, 60 * time.Millisecond}} {
		for _, there := range []time.Duration{0, took / 2, took} {
			s, now := New(rdb, Options{}), time.Now()
			var quotas []store.Quota
			for i, name := range []string{"inner", "outer"} {
				q := newQuota(s, name, plan, nil, 0, nil)
				q.Clock = new(timing.Clock)
				q.Clock.Update(timing.Reading{Generation: 1, Now: offset + timing.Monotonic(now), Sent: now.Add(-known[i] / 2), Got: now.Add(known[i] / 2)})
				q.Link.Trip.Add(took)
				quotas = append(quotas, q)
			}
			b := quotas[0].(*quota).Bundle(quotas[1:], []int{0, 0}).(*bundle)
			requests := []store.Request{{Cost: []int64{1, 1}, WaitSpec: &store.WaitSpec{MaxWait: store.Forever}}}
			a := newJointAttempt(b, []time.Duration{0}, requests)
			a.onSend(1)
			a.sent, a.got = now, now.Add(took)
			at := offset + timing.Monotonic(now.Add(there))
			head := []int64{at, 1, 1000, 0, 0, 0, at, 0}
			a.calls[0].reply = append(append(append(append([]int64(nil), head...), -1, 0), head...), -2, at, 1)
			got, err := a.read()
			if err != nil || len(got) != 1 || got[0].Verdict != store.Admitted {
				t.Fatalf("got %+v, %v", got, err)
			}
			if left := got[0].Reservation.End.Sub(a.got); left < 0 {
				t.Errorf("clocks known within %v, %v on the way there: it ended %v before the reply", known, there, -left)
			}
		}
	}
}
