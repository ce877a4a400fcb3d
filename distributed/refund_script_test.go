package distributed

import (
	"testing"
	"time"

	miniredis "github.com/alicebob/miniredis/v2/server"

	"github.com/apithrottle/throttle/internal/redismem"
)

// An asking calls a script at instants, in µs from a beginning.
type asking struct {
	t *testing.T
	*subject
	begin int64
}

func ask(t *testing.T, guard time.Duration, tiers ...string) asking {
	t.Helper()
	a := asking{t, miniSubject(t), 1_700_000_000_000_000}
	a.subject.begin(planOf(t, guard, tiers...))
	return a
}

func (a asking) at(after time.Duration, op string, args ...int64) []int64 {
	a.t.Helper()
	reply, err := a.answer(a.begin+after.Microseconds(), step{op: op, args: args})
	if err != nil {
		a.t.Fatal(err)
	}
	return reply
}

// reserve asks for one request of a number of units.
func (a asking) reserve(after time.Duration, n int64) []int64 {
	a.t.Helper()
	return a.at(after, opReserve, time.Hour.Microseconds(), 0, 0, 0, 0, 0, 0, n, -1, 1)
}

// refundFive takes back five requests of one unit.
func (a asking) refundFive(after time.Duration, generation int64, guard time.Duration, at int64) {
	a.t.Helper()
	args := []int64{generation, 0, guard.Microseconds()}
	for range 5 {
		args = append(args, at, 1)
	}
	a.at(after, opRefund, args...)
}

// TestRefundOfFullLog checks that a refund does not make room in a log from which counted units have pushed
// others out: five were sent, five were reserved and not sent, and five more were counted.
func TestRefundOfFullLog(t *testing.T) {
	for _, guard := range []time.Duration{0, 50 * time.Millisecond} {
		a := ask(t, guard, "10/h", "1000/s")
		generation := a.reserve(0, 5)[1]
		a.reserve(time.Second, 5)
		a.at(time.Second+2*guard, opCount, 5, 0)
		now := a.at(1200*time.Millisecond, opStatus)[0]
		a.refundFive(1200*time.Millisecond, generation, guard, now-200_000)
		if got := a.reserve(2*time.Second, 5); got[6] < -1 && got[7] <= now+1_000_000 {
			t.Errorf("guard %v: five more were admitted at once, although 10 of 10/h count", guard)
		}
	}
}

// TestRefundAfterReport checks that a refund keeps units that a report of the provider was compared with,
// also if another release has called since.
func TestRefundAfterReport(t *testing.T) {
	const guard = 50 * time.Millisecond
	for _, tier := range []string{"10/h;algo=fixed_window", "10/h", "10/h;algo=anchored_window", "10/h;algo=sliding_window"} {
		for _, changes := range []bool{false, true} {
			a := ask(t, guard, tier, "1000/s")
			sent := a.reserve(0, 1)
			generation, at := sent[1], sent[7]
			a.reserve(time.Second, 5) // not sent
			a.at(1200*time.Millisecond, opStatus)
			own := a.reserve(1300*time.Millisecond, 1)[7]
			a.at(1500*time.Millisecond, opObserve, 0, 1, 7, own, 1, 0, 0, 0) // five are of others
			if changes {
				a.change(planOf(t, guard, tier, "900/s"))
				a.at(1600*time.Millisecond, opStatus)
				a.change(planOf(t, guard, tier, "1000/s"))
			}
			a.refundFive(1700*time.Millisecond, generation, guard, at+1_000_000)
			if used := a.at(1800*time.Millisecond, opStatus)[6]; used < 7 {
				t.Errorf("%s, another release: %v: got %d used, the provider counts 7", tier, changes, used)
			}
		}
	}
}

// TestManyRefundsInOneCall checks that a call which takes back many requests, after which many others have
// landed, moves a bounded number of stamps: the server does nothing else meanwhile.
func TestManyRefundsInOneCall(t *testing.T) {
	const guard, refunds, newer = 50 * time.Millisecond, 1000, 8000
	m := redismem.New()
	defer m.Close()
	commands := 0
	redismem.Hook(m, func(*miniredis.Peer, string, ...string) bool {
		commands++
		return false
	})
	rdb := redismem.Dial(m, nil)
	defer rdb.Close()
	a := asking{t, newSubject(t, rdb, scriptSource(), m.SetTime), 1_700_000_000_000_000}
	a.subject.begin(planOf(t, guard, "10000/h;algo=sliding_log"))
	generation := a.reserve(0, 1)[1]
	for i := range time.Duration(newer / 100) {
		a.reserve(i*25*time.Millisecond, 100)
	}
	now := a.at(3*time.Second, opStatus)[0]
	args := []int64{generation, 0, guard.Microseconds()}
	for i := range int64(refunds) {
		args = append(args, now-guard.Microseconds()-i*2900, 1)
	}
	commands = 0
	a.at(3*time.Second, opRefund, args...)
	if used := a.at(3*time.Second, opStatus)[6]; commands > 2*newer || used > newer+1 || used < newer+1-refunds {
		t.Errorf("got %d commands and %d of %d used, want few commands, and some refunded", commands, used, newer+1)
	}
}
