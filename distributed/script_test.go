package distributed

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/internal/soak"
)

func planOf(t testing.TB, guard time.Duration, specs ...string) *algorithms.Plan {
	t.Helper()
	var tiers []algorithms.Tier
	for _, spec := range specs {
		tier, err := algorithms.ParseTier(strings.TrimSpace(spec))
		if err != nil {
			t.Fatal(err)
		}
		tiers = append(tiers, tier)
	}
	plan, err := algorithms.NewPlan(tiers, guard)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

var perCall = regexp.MustCompile(`cmdstat_(?:evalsha|fcall):.*usec_per_call=([0-9.]+)`)

// serverTime returns how long the server works on a call, by its own statistics, in µs.
func serverTime(t testing.TB, rdb *redis.Client, calls int, call func()) float64 {
	t.Helper()
	ctx := context.Background()
	rdb.ConfigResetStat(ctx)
	for range calls {
		call()
	}
	m := perCall.FindStringSubmatch(rdb.Info(ctx, "commandstats").Val())
	if m == nil {
		t.Fatal("the server keeps no statistics")
	}
	us, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return us
}

// TestNumbers checks that the script divides exactly, even products that no double can hold.
func TestNumbers(t *testing.T) {
	t.Parallel()
	number, err := scriptFiles.ReadFile("script/number.lua")
	if err != nil {
		t.Fatal(err)
	}
	source := string(number) + `
		max = math.max
		local q, r = mulDiv(tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]))
		return {string.format('%.0f', q), string.format('%.0f', r)}`
	t.Run("miniredis", func(t *testing.T) { checkMulDiv(t, newSubject(t, miniSubject(t).rdb, source, nil), 1_000) })
	t.Run("redis", func(t *testing.T) { checkMulDiv(t, newSubject(t, serverSubject(t).rdb, source, nil), 10_000) })
}

func checkMulDiv(t *testing.T, s *subject, times int) {
	for range times {
		upTo := func(most int64) int64 { return rand.Int64N(1 << rand.IntN(bits.Len64(uint64(most)))) }
		a, b, c := upTo(1<<52), upTo(1<<51), 1+upTo(1<<51)
		if rand.IntN(2) == 0 { // quotients just below a whole number
			c = 1 + upTo(1<<26)
			a, b = 1, c*(1+upTo(1<<52/c))-1
		}
		got, err := s.eval(nil, a, b, c).StringSlice()
		q, r := new(big.Int).QuoRem(new(big.Int).Mul(big.NewInt(a), big.NewInt(b)), big.NewInt(c), new(big.Int))
		if q.BitLen() > 53 {
			q, r = big.NewInt(1<<53), new(big.Int)
		}
		if err != nil || got[0] != q.String() || got[1] != r.String() {
			t.Fatalf("%d × %d ÷ %d: got %v, %v, want %v remainder %v", a, b, c, got, err, q, r)
		}
	}
}

// TestPartsDeclareOnce checks that no two parts of the script declare a name that other parts use.
func TestPartsDeclareOnce(t *testing.T) {
	var units [][]line
	for _, part := range scriptParts {
		units = append(units, readPart(part, "", make(map[string]string)))
	}
	outside, inside := sharedNames(units)
	declared := make(map[string]bool)
	for _, name := range slices.Concat(outside, inside) {
		if declared[name] {
			t.Errorf("got %s declared by two parts, want one", name)
		}
		declared[name] = true
	}
}

// newState returns the state of a quota after some steps.
func newState(t *testing.T, s *subject, plan *algorithms.Plan) string {
	t.Helper()
	s.begin(plan)
	count := step{op: opCount, args: slices.Repeat([]int64{5}, len(plan.Tiers()))}
	for i, st := range []step{reserveStep(3), count, {op: opPause, args: []int64{1000, 0, 0, 0, 0}}} {
		if _, err := s.answer(1_700_000_000_000_000+int64(i)*10_000, st); err != nil {
			t.Fatal(err)
		}
	}
	return s.rdb.Get(context.Background(), s.key).Val()
}

// TestForeignValues checks that a value that is not a whole state causes an error and stays
// unchanged.
func TestForeignValues(t *testing.T) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) { checkForeignValues(t, miniSubject(t), 7) })
	t.Run("redis", func(t *testing.T) { checkForeignValues(t, serverSubject(t), 1) })
}

// checkForeignValues tries invalid values, among them a state that is cut off after every step
// bytes.
func checkForeignValues(t *testing.T, s *subject, stride int) {
	ctx := context.Background()
	checkRefused := func(v, want string) {
		t.Helper()
		s.rdb.Set(ctx, s.key, v, 0)
		for _, st := range []step{reserveStep(1), {op: opStatus}, {op: opCount, args: []int64{1}}} {
			if got, err := s.answer(1_700_000_001_000_000, st); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%.60q, %v: got %v, %v, want %s", v, st, got, err, want)
			}
		}
		if now := s.rdb.Get(ctx, s.key).Val(); now != v {
			t.Errorf("%.60q: got it changed to %.60q, want it unchanged", v, now)
		}
		if s.rdb.TTL(ctx, s.key).Val() != -1 {
			t.Errorf("%.60q: got an expiry, want none", v)
		}
	}
	for _, tiers := range [][]string{{"5/s;algo=gcra"}, {"5/s", "7/m"}, {"5/s;algo=anchored_window", "9/m;algo=sliding_window"}} {
		plan := planOf(t, 50*time.Millisecond, tiers...)
		v := newState(t, s, plan)
		head := strings.IndexByte(v, '\n') + 1
		for _, foreign := range []string{"", "1", "hello", "thr", "thr1", "throttle"} {
			checkRefused(foreign, "THROTTLE foreign")
		}
		for _, corrupt := range []string{"thr1 ", "thr1 \n", "thr2 ", "thr2 \n", "thr3 ", "thr3 \n", "thr4 ", "thr4 \n", "thr5 ", "thr5 \n", v[:head-1], v[:head-2] + "\n", v[:head-1] + " 1\n" + v[head:],
			v[:head-1] + "+\n" + v[head:], v[:head-1] + "+1\n" + v[head:]} {
			checkRefused(corrupt, "THROTTLE corrupt")
		}
		checkRefused(v[:head-1]+"+0 1 77 0 1 1 1 0 9000000000000000\n"+v[head:], "THROTTLE version") // algorithm 77
		checkRefused("thr6"+v[4:], "THROTTLE corrupt")                                               // the tiers follow nothing
		checkRefused("thr7"+v[4:], "THROTTLE version")
		checkRefused("thr12 anything\n", "THROTTLE version")
		checkRefused("thr5 1 1 1 1 1 77 0 1 1 1 1\n"+v[head:], "THROTTLE version")
		checkRefused("thr5 1 1 1 2 1\n"+v[head:], "THROTTLE corrupt")
		rings := 0
		for _, tier := range plan.Tiers() {
			if tier.Algorithm == algorithms.SlidingLog {
				rings += 7 + 7*int(tier.Limit)
			}
		}
		for n := head; n < len(v)-rings/8; n += stride { // a body with rings is followed by a reserve
			checkRefused(v[:n], "THROTTLE corrupt")
		}
		if rings == 0 {
			checkRefused(v+"\x00", "THROTTLE corrupt")
		}
		if rings > 0 {
			b := []byte(v)
			b[head+rings+63+7]++ // stamps in the first ring
			checkRefused(string(b), "THROTTLE corrupt")
			b = []byte(v)
			b[head+6]-- // the capacity of the first ring
			checkRefused(string(b), "THROTTLE corrupt")
		}
		for at := 50; at < 56; at++ { // the lengths of the queues
			b := []byte(v)
			b[head+rings+at]++
			checkRefused(string(b), "THROTTLE corrupt")
		}

		s.rdb.Del(ctx, s.key)
		s.rdb.RPush(ctx, s.key, "a list")
		if _, err := s.answer(1_700_000_001_000_000, reserveStep(1)); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("a list: got error %v, want WRONGTYPE", err)
		}
		if s.rdb.Type(ctx, s.key).Val() != "list" {
			t.Error("got the list replaced, want it unchanged")
		}
	}
}

// A log takes as much memory of a server as its stamps need, up to twice that while it grows, with
// a reserve and the allocator's rounding.
func TestLogGrows(t *testing.T) {
	t.Parallel()
	s := realSubject(t)
	ctx, at := context.Background(), int64(1_700_000_000_000_000)
	s.begin(planOf(t, 50*time.Millisecond, "100/m", "10000/h"))
	for landed := int64(0); landed < 12_000; landed += 50 {
		if _, err := s.answer(at, reserveStep(50)); err != nil {
			t.Fatal(err)
		}
		at += 40e6
		bytes, err := s.rdb.MemoryUsage(ctx, s.key).Result()
		if most := 1500 + 11*min(2*(landed+50), 8_000); err != nil || bytes > most {
			t.Fatalf("with %d stamps: got %d bytes, %v, want %d at most", landed, bytes, err, most)
		}
	}
	used, err := s.answer(at, step{op: opStatus})
	if want := int64(3600 / 40 * 50); err != nil || used[len(used)-3] != want {
		t.Errorf("got %v, %v, want %d used of the last tier", used, err, want)
	}
}

// TestPolicyChange checks that a change of the limit, up or down, keeps what has been spent, in
// flight or landed, for each algorithm.
func TestPolicyChange(t *testing.T) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) { checkPolicyChange(t, miniSubject(t)) })
	t.Run("redis", func(t *testing.T) { checkPolicyChange(t, serverSubject(t)) })
}

func checkPolicyChange(t *testing.T, s *subject) {
	const at = 1_700_000_000_000_000
	used := func(plan *algorithms.Plan, at int64) []int64 {
		s.change(plan)
		got, err := s.answer(at, step{op: opStatus})
		if err != nil {
			t.Fatal(err)
		}
		var used []int64
		for i := 6; i < len(got); i += 3 {
			used = append(used, got[i])
		}
		return used
	}
	for a := algorithms.SlidingLog; a < algorithms.Concurrency; a++ {
		for _, later := range []int64{10_000, 60_000} { // still in flight, and landed
			tier := func(limit int64) algorithms.Tier {
				return algorithms.Tier{Limit: limit, Window: time.Hour, Algorithm: a}
			}
			plan := func(tiers ...algorithms.Tier) *algorithms.Plan {
				p, err := algorithms.NewPlan(tiers, 50*time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			check := func(what string, got, want []int64) {
				t.Helper()
				if !slices.Equal(got, want) {
					t.Errorf("%v after %d µs, %s: got %d used, want %d", a, later, what, got, want)
				}
			}
			s.begin(plan(tier(10)))
			if _, err := s.answer(at, reserveStep(7)); err != nil {
				t.Fatal(err)
			}
			now := at + later
			check("as it was", used(plan(tier(10)), now), []int64{7})
			check("higher", used(plan(tier(20)), now), []int64{7})
			other := algorithms.Tier{Limit: 9, Window: time.Minute, Algorithm: algorithms.GCRA}
			check("another tier before", used(plan(other, tier(20)), now), []int64{7, 7})
			tokens := algorithms.Tier{Limit: 9, Window: time.Minute, Algorithm: a, Unit: "tokens"}
			check("another unit before", used(plan(tokens, tier(20)), now), []int64{0, 7})
			check("lower", used(plan(tier(5)), now), []int64{7})
			check("as it was again", used(plan(tier(10)), now), []int64{7})
			check("gone", used(plan(other), now), []int64{7})

			s.begin(plan(tier(10)))
			if _, err := s.answer(at, reserveStep(7)); err != nil {
				t.Fatal(err)
			}
			check("lower by turns", used(plan(tier(5)), now), []int64{7})
			check("lower and landed", used(plan(tier(5)), now+60_000), []int64{7})
			check("higher by turns", used(plan(tier(10)), now+60_000), []int64{7})

			// Units that have left the window take no room.
			check("hours later", used(plan(tier(5)), now+3*3600_000_000), []int64{0})
			if _, err := s.answer(now+3*3600_000_000, reserveStep(5)); err != nil {
				t.Fatal(err)
			}
			check("hours later, used", used(plan(tier(3)), now+3*3600_000_000+60_000), []int64{5})
			check("days later", used(plan(tier(2)), now+50*3600_000_000), []int64{0})

			if a == algorithms.FixedWindow || a == algorithms.WeightedWindow {
				// 800 s after a full hour, the window of the second is one ahead.
				late, early := tier(10), tier(10)
				late.Phase, early.Phase = 1000*time.Second, 600*time.Second
				s.begin(plan(late))
				if _, err := s.answer(at, reserveStep(7)); err != nil {
					t.Fatal(err)
				}
				check("landed", used(plan(late), now), []int64{7})
				check("another phase", used(plan(early), now), []int64{7})
			}
		}
	}
}

// TestOldFormats checks that states of earlier formats can still be read. In the first, windows of
// the clock had a number less; the second had no end of a ban; in the third, the pool had no
// guards; the fourth had turns, but no line.
func TestOldFormats(t *testing.T) {
	const at = 1_700_000_000_000_000
	ctx := context.Background()
	for _, s := range []*subject{miniSubject(t), realSubject(t)} {
		plan := planOf(t, 50*time.Millisecond, "5/h;algo=fixed_window", "5/h;algo=gcra", "7/h;algo=weighted_window", "9/day")
		s.begin(plan)
		for i := range int64(3) {
			if _, err := s.answer(at+100_000*i, reserveStep(1)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.answer(at+300_000, step{op: opPause, args: []int64{1e6, 1, 0, 0, 0}}); err != nil {
			t.Fatal(err)
		}
		want, err := s.answer(at+300_000, step{op: opStatus})
		if err != nil {
			t.Fatal(err)
		}
		head, body, _ := strings.Cut(s.rdb.Get(ctx, s.key).Val(), "\n")
		body = body[:42] + "\x01" + body[43:] // the pause is a ban
		front, words := body[:55]+body[63:63+7], body[63+7:]
		first := words[:14] + words[21:35] + words[35:56] + words[63:84] + words[91:] // 3, 2, 4 and 4 numbers
		second, third, fourth := strings.Replace(head, "thr5", "thr2", 1), strings.Replace(head, "thr5", "thr3", 1), strings.Replace(head, "thr5", "thr4", 1)
		head = strings.Replace(head, "thr5", "thr1", 1)
		head = strings.Replace(head, " "+strconv.FormatInt(algorithms.Day.Longest().Microseconds(), 10)+" ", " 0 ", 1)
		for format, state := range []string{head + "\n" + front + first, second + "\n" + body[:56] + body[63:], third + "\n" + body[:52] + "\x01" + body[53:] + strings.Repeat("\x00", 14), fourth + "\n" + body + strings.Repeat("\x00", 7*8)} { // turns
			s.rdb.Set(ctx, s.key, state, time.Hour)
			got, err := s.answer(at+300_000, step{op: opStatus})
			if err != nil || !slices.Equal(got[3:], want[3:]) {
				t.Errorf("format %d: got %v, %v, want %v", format+1, got, err, want)
			}
		}
	}
}

// TestOldReadings checks that a state of the third format, whose readings had no probes, can still be read, and
// that what its readings have charged for others stays charged.
func TestOldReadings(t *testing.T) {
	const at = 1_700_000_000_000_000
	ctx := t.Context()
	for _, s := range []*subject{miniSubject(t), realSubject(t)} {
		s.begin(planOf(t, 50*time.Millisecond, "20/h;algo=sliding_window"))
		reserved, err := s.answer(at, reserveStep(3))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.answer(at+100_000, step{op: opObserve, args: []int64{0, 1, 9, reserved[0], 1, 0, 2_000_000, 1_000_000}}); err != nil {
			t.Fatal(err)
		}
		state := s.rdb.Get(ctx, s.key).Val()
		third := strings.Replace(state[:len(state)-2*7], "thr5", "thr3", 1)
		for _, state := range []string{state, third} {
			s.rdb.Set(ctx, s.key, state, time.Hour)
			if got, err := s.answer(at+200_000, step{op: opStatus}); err != nil || got[6] != 9 {
				t.Errorf("%.4s: got %v, %v, want 9 used", state, got, err)
			}
		}
	}
}

// TestLeasesChange checks that held places survive a change of the policy.
func TestLeasesChange(t *testing.T) {
	s := miniSubject(t)
	const at = 1_700_000_000_000_000
	s.begin(planOf(t, 0, "3;algo=concurrency", "5/s"))
	ask := func(st step, want ...int64) {
		t.Helper()
		if got, err := s.answer(at, st); err != nil || !slices.Equal(got[6:], want) {
			t.Errorf("%v: got %v, %v, want %v", st, got, err, want)
		}
	}
	ask(step{op: opReserve, lease: []int64{7, 1, 1e6, 1, 0, 0}, args: []int64{0, 0, 0, 0, 0, 0, 0, 2, -1, 1}}, -2, 0, -3, 0)
	s.change(planOf(t, 0, "90/m;unit=tokens;algo=gcra", "2;algo=concurrency"))
	ask(step{op: opReserve, lease: []int64{5, 1, 1e6, 1, 0, 0, 0}, args: []int64{0, 0, 0, 0, 0, 0, 0, 1, -1, 0, 1}}, 2, -1)
	ask(step{op: opReserve, lease: []int64{7, 2, 1e6, 1, 0, 0, 1}, args: []int64{0, 0, 0, 0, 0, 0, 0, 1, -1, 0, 1}}, 2, -1) // queued behind 5
	ask(step{op: opReserve, lease: []int64{5, 2, 1e6, 1, 0, 0, 0}, args: []int64{0, 0, 0, 0, 0, 0, 0, 1, -1, 0, 1}}, -4, 0)
}

// TestLeasesLive checks that the keys of leases live as long as the state, and at most twelve leases
// and two minutes longer.
func TestLeasesLive(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	s, m := miniServer(t)
	s.begin(planOf(t, 0, "10;algo=concurrency", "5/m"))
	at := int64(1_700_000_000_000_000)
	for seq := range int64(500) {
		length := []int64{1e6, 5e6, 30e6}[rand.IntN(3)]
		if _, err := s.answer(at, step{op: opReserve, lease: []int64{rand.Int64N(3), 1 + seq, length, 0, 0, 0}, args: []int64{0, 0, 0, 0, 0, 0, 0, 1, -1, 1}}); err != nil {
			t.Fatal(err)
		}
		state := m.TTL(s.key)
		for _, key := range s.keys()[1:] {
			if ttl := m.TTL(key); ttl < state || ttl > state+8*time.Minute {
				t.Fatalf("after call %d: got %s to live for %v, want as long as the state's %v or up to 8m more", seq, key, ttl, state)
			}
		}
		elapses := []time.Duration{time.Millisecond, time.Second, 9 * time.Second, 12 * time.Second}[rand.IntN(4)]
		at += elapses.Microseconds()
		m.FastForward(elapses)
	}
}

// TestManyLeases checks leases of many processes that each hold a place, in a soak more than two
// bytes can count. The places of processes that die become free.
func TestManyLeases(t *testing.T) {
	const at, most = 1_700_000_000_000_000, 512
	processes := int64(max(1000, soak.Times(2000)))
	if processes > 2000 {
		processes = 70_000
	}
	ctx := context.Background()
	s := functionSubject(t)
	s.begin(planOf(t, 0, "100000;algo=concurrency"))
	for first := range processes / 1000 {
		pipe := s.rdb.Pipeline()
		for i := range 1000 {
			pipe.FCall(ctx, "clocked", s.keys(), opReserve, s.text, 1+1000*first+int64(i), 1, 1e6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, -1, 1, int64(at))
		}
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
	}
	used := func(at int64, owner, seq int64) int64 {
		t.Helper()
		got, err := s.answer(at, step{op: opStatus, lease: []int64{owner, seq, 1e6, 0, 0, 0}})
		if err != nil {
			t.Fatal(err)
		}
		return got[6]
	}
	if n := used(at, 80_000, 1); n != processes {
		t.Errorf("got %d places used, want %d", n, processes)
	}
	size := s.rdb.MemoryUsage(ctx, s.keys()[1]).Val() + s.rdb.MemoryUsage(ctx, s.keys()[2]).Val()
	t.Logf("%d bytes for each process", size/processes)
	if n := used(at, processes-1, 2); n != processes-1 {
		t.Errorf("after one place was returned: got %d used, want %d", n, processes-1)
	}
	for i := range int64(3) { // without calls the leases would last longer
		used(at+300_000*(1+i), 80_000, 2+i)
	}
	calls := int64(0)
	for used(at+1e6, 80_000, 5+calls) > 0 {
		if calls++; calls > processes/most+1 {
			t.Fatalf("got places used after %d calls, want none", calls)
		}
	}
	if n := s.rdb.HLen(ctx, s.keys()[1]).Val(); n != 2 {
		t.Errorf("got %d fields left, want 2: the caller's and the mark", n)
	}
}

// TestExpiry checks that the key lives as long as the answer says. TestTwins checks that it loses
// nothing that matters.
func TestExpiry(t *testing.T) {
	rdb := redistest.Start(t).PatientClient()
	s := newSubject(t, rdb, scriptSource(), func(time.Time) {})
	for _, tiers := range []string{"5/s;algo=gcra", "5/s", "100/h;algo=sliding_window"} {
		s.begin(planOf(t, 50*time.Millisecond, tiers))
		for range 3 {
			got, err := s.answer(0, reserveStep(1))
			if err != nil {
				t.Fatal(err)
			}
			left := rdb.PTTL(context.Background(), s.key).Val().Milliseconds()
			if left > got[2] || left < got[2]-500 {
				t.Errorf("%s: got expiry in %d ms, want the answer's %d", tiers, left, got[2])
			}
		}
	}
}

// TestCalendarChange checks that a change of limit, zone or period keeps what was spent, until the new period
// ends.
func TestCalendarChange(t *testing.T) {
	const at = 1_700_000_000_000_000
	for _, spec := range []string{
		"9/month;zone=Europe/Berlin", "5/month;zone=Europe/London", "5/month", "5/week;zone=Europe/Berlin", "5/24h;algo=gcra", "5/24h",
	} {
		s := miniSubject(t)
		s.begin(planOf(t, 0, "5/month;zone=Europe/Berlin"))
		if _, err := s.answer(at, reserveStep(3)); err != nil {
			t.Fatal(err)
		}
		s.change(planOf(t, 0, spec))
		got, err := s.answer(at+1, step{op: opStatus})
		if err != nil || got[6] != 3 {
			t.Errorf("%s: got %v, %v, want 3 used", spec, got, err)
		}
		if strings.Contains(spec, "24h") {
			continue
		}
		s.begin(planOf(t, 0, spec))
		if _, err := s.answer(at, reserveStep(3)); err != nil {
			t.Fatal(err)
		}
		if want, err := s.answer(at+1, step{op: opStatus}); err != nil || got[8] != want[8] {
			t.Errorf("%s: got 3 used until %d, %v, want %d, the end of its period", spec, got[8], err, want[8])
		}
	}
}

// TestCalendarExpiry checks that the key of a month lives until the month ends, and two seconds
// longer at most.
func TestCalendarExpiry(t *testing.T) {
	rdb := redistest.Start(t).PatientClient()
	s := newSubject(t, rdb, scriptSource(), func(time.Time) {})
	s.begin(planOf(t, 50*time.Millisecond, "100/month;zone=Asia/Beirut"))
	now := time.Now()
	if _, err := s.answer(now.UnixMicro(), reserveStep(1)); err != nil {
		t.Fatal(err)
	}
	ends := time.UnixMicro(s.plan.PeriodStarts(now.UnixMicro())[2])
	expires := time.Now().Add(rdb.PTTL(context.Background(), s.key).Val())
	if expires.Before(ends.Add(time.Millisecond)) || expires.After(ends.Add(2*time.Second)) {
		t.Errorf("got expiry at %v, want just after the month ends at %v", expires, ends)
	}
}

// TestMemory checks how much memory a quota takes in the server, its name included.
func TestMemory(t *testing.T) {
	ctx := context.Background()
	s := realSubject(t)
	const at = 1_700_000_000_000_000
	for _, c := range []struct {
		tiers     []string
		batches   int // of 100
		mostBytes int64
	}{
		{[]string{"5/s;algo=gcra", "10000/h;algo=gcra"}, 0, 300},
		{[]string{"10000/h"}, 0, 90_000},
		{[]string{"10000/h"}, 101, 90_000},
		{[]string{"5/s", "10000/h"}, 0, 90_000},
	} {
		s.begin(planOf(t, 50*time.Millisecond, c.tiers...))
		s.key = fmt.Sprintf("%-35.35s", s.key+strings.Repeat("x", 35))
		if _, err := s.answer(at, reserveStep(1)); err != nil {
			t.Fatal(err)
		}
		for i := range c.batches {
			if _, err := s.answer(at+int64(i)*100_000, reserveStep(100)); err != nil {
				t.Fatal(err)
			}
		}
		size := s.rdb.MemoryUsage(ctx, s.key).Val()
		t.Logf("%v: %d bytes", c.tiers, size)
		if size > c.mostBytes {
			t.Errorf("%v: got %d bytes, want %d at most", c.tiers, size, c.mostBytes)
		}
	}
}

// TestMessages checks that the whole fleet gets messages about pauses, and that the first process
// in the queue gets a message about a place that is kept for it.
func TestMessages(t *testing.T) {
	ctx := context.Background()
	s := miniSubject(t)
	const at = 1_700_000_000_000_000
	s.begin(planOf(t, 0, "1;algo=concurrency"))
	sub := s.rdb.PSubscribe(ctx, s.key+"*")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	received := sub.Channel()
	messages := func() (all string) { // since the last call
		if err := s.rdb.Publish(ctx, s.key, "end").Err(); err != nil {
			t.Fatal(err)
		}
		for m := range received {
			if m.Payload == "end" {
				break
			}
			all += strings.TrimPrefix(m.Channel, s.key) + m.Payload
		}
		return all
	}
	for _, c := range []struct {
		step
		want string
	}{
		{step{op: opPause, lease: []int64{7, 1, 1e6, 1, 0, 0}, args: []int64{2000, 0, 0, 0, 0}}, "pause 2000 0 1700000000"},
		{step{op: opPause, lease: []int64{7, 2, 1e6, 1, 0, 0}, args: []int64{1000, 1, 0, 0, 0}}, ""},
		{step{op: opPause, lease: []int64{7, 3, 1e6, 1, 0, 0}, args: []int64{3000, 1, 1, 1_700_000_000, 0}}, "pause 3000 1 1700000001"},
	} {
		if _, err := s.answer(at, c.step); err != nil {
			t.Fatal(err)
		}
		if got := messages(); got != c.want {
			t.Errorf("%v: got message %q, want %q", c.step, got, c.want)
		}
	}
	// 9 takes the place, 7 is refused, 9 releases it.
	for i, st := range []step{
		{op: opReserve, lease: []int64{9, 4, 1e6, 1, 0, 0}, args: []int64{0, 0, 0, 0, 0, 0, 0, 1, -1, 1}},
		{op: opLease, lease: []int64{9, 5, 1e6, 1, 0, 0}}, // no process waits
		{op: opReserve, lease: []int64{9, 6, 1e6, 1, 0, 0}, args: []int64{0, 0, 0, 0, 0, 0, 0, 1, -1, 1}},
		{op: opReserve, lease: []int64{7, 7, 1e6, 1, 0, 0}, args: []int64{0, 0, 0, 0, 0, 0, 0, 1, -1, 1}},
		{op: opLease, lease: []int64{9, 8, 1e6, 1, 0, 0}},
	} {
		if _, err := s.answer(at+4000, st); err != nil {
			t.Fatal(err)
		}
		want := ""
		if i == 4 {
			want = ":leases:7freed 7"
		}
		if got := messages(); got != want {
			t.Errorf("step %d: got message %q, want %q", i, got, want)
		}
	}
}

// TestSpeed logs what a call costs the server and checks nothing, because machines differ. The
// state has 60 slots. The first figure is that of a script, the second that of a function.
func TestSpeed(t *testing.T) {
	if !testing.Verbose() {
		t.Skip("only logs figures: use -v")
	}
	rdb := redistest.Start(t).PatientClient()
	ctx := context.Background()
	clocked, script := newSubject(t, rdb, asScript(clockedScript), nil), newSubject(t, rdb, scriptSource(), func(time.Time) {})
	subjects := []*subject{script}
	if rdb.FunctionLoad(ctx, functionSource()).Err() == nil {
		function := *script
		function.eval = func(keys []string, args ...any) *redis.Cmd { return rdb.FCall(ctx, functionName(), keys, args...) }
		subjects = append(subjects, &function)
	}
	const slots = 60
	guard := slots << 20 * time.Microsecond
	for _, c := range []struct {
		name  string
		n     int64
		guard time.Duration
		tiers []string
	}{
		{"one bucket", 1, 50 * time.Millisecond, []string{"100000/s;algo=gcra"}},
		{"two buckets", 1, 50 * time.Millisecond, []string{"100000/s;algo=gcra", "10000000/h;algo=gcra"}},
		{"two buckets, a burst of", 1, guard, []string{"100000/s;algo=gcra", "10000000/h;algo=gcra"}},
		{"two buckets, a burst of", 64, guard, []string{"100000/s;algo=gcra", "10000000/h;algo=gcra"}},
		{"two buckets, ahead of time", 1, 50 * time.Millisecond, []string{"1000/s;algo=gcra;burst=70", "100000/h;algo=gcra"}},
		{"two buckets, ahead of time", 64, 50 * time.Millisecond, []string{"1000/s;algo=gcra;burst=70", "100000/h;algo=gcra"}},
		{"two buckets, ahead of time", 256, 50 * time.Millisecond, []string{"1000/s;algo=gcra;burst=70", "100000/h;algo=gcra"}},
		{"two buckets, full burst in flight", 1, guard, []string{"1/s;algo=gcra;burst=60", "1000/h;algo=gcra"}},
		{"a log of 10000", 1, 50 * time.Millisecond, []string{"10000/h"}},
		{"a log of 10000", 64, 50 * time.Millisecond, []string{"10000/h"}},
		{"5/s and a log of 10000", 1, 50 * time.Millisecond, []string{"5/s", "10000/h"}},
		{"5/s and a log of 10000", 64, 50 * time.Millisecond, []string{"5/s", "10000/h"}},
		{"two windows", 1, 50 * time.Millisecond, []string{"10000/s", "1000000/h"}},
		{"two windows", 64, 50 * time.Millisecond, []string{"10000/s", "1000000/h"}},
		{"a bucket and a concurrency tier", 1, 50 * time.Millisecond, []string{"100000/s;algo=gcra", "1000;algo=concurrency"}},
		{"each algorithm once", 1, 50 * time.Millisecond, []string{"50/s", "50/s;algo=sliding_window", "50/s;algo=weighted_window",
			"50/s;algo=fixed_window", "50/s;algo=anchored_window", "50/s;algo=gcra"}},
		{"each algorithm once", 64, 50 * time.Millisecond, []string{"50/s", "50/s;algo=sliding_window", "50/s;algo=weighted_window",
			"50/s;algo=fixed_window", "50/s;algo=anchored_window", "50/s;algo=gcra"}},
	} {
		clocked.begin(planOf(t, c.guard, c.tiers...))
		seq := int64(0)
		reserve := func(n int64) step {
			st := reserveStep(n)
			if clocked.plan.Concurrent() {
				seq++
				st.lease = []int64{7, seq, 3600e6, 0, 0, 0}
			}
			return st
		}
		start := rdb.Time(ctx).Val().UnixMicro()
		step := c.guard.Microseconds() / slots
		for i := range int64(slots) {
			if _, err := clocked.answer(start-(slots-i-1)*step, reserve(1)); err != nil {
				t.Fatal(err)
			}
		}
		size := rdb.StrLen(ctx, clocked.key).Val()
		state := rdb.Dump(ctx, clocked.key).Val()
		var us []float64 // of each subject
		for _, now := range subjects {
			now.key, now.plan, now.text = clocked.key, clocked.plan, clocked.text
			rdb.RestoreReplace(ctx, clocked.key, time.Minute, state)
			best := math.Inf(1)
			for range 5 {
				best = min(best, serverTime(t, rdb, 100, func() {
					if _, err := now.answer(0, reserve(c.n)); err != nil {
						t.Fatal(err)
					}
				}))
			}
			us = append(us, best)
		}
		t.Logf("%-36s n = %3d: %6.1f µs a call, %d bytes", c.name, c.n, us, size)
	}
}

// reserveStep returns a step that reserves n requests of one unit.
func reserveStep(n int64) step {
	return step{op: opReserve, args: []int64{3600_000_000, 0, 0, 0, 0, 0, 0, n, -1, 1}}
}

// TestPoolIsBounded checks that the state stays small when many reservations are returned that no bucket
// spaces, and that those at the pace of a bucket take little room.
func TestPoolIsBounded(t *testing.T) {
	soak.Long(t, "many reservations are returned")
	const at = 1_700_000_000_000_000
	for _, test := range []struct {
		tier string
		pace int64
		want int64
	}{{"1/h", 7_000_001, 250}, {"7/s;algo=gcra", 0, 700}} {
		s := miniSubject(t)
		s.begin(planOf(t, 50*time.Millisecond, test.tier))
		if _, err := s.answer(at, reserveStep(1)); err != nil {
			t.Fatal(err)
		}
		var got, step7 int64
		for i := range int64(700) {
			step7 = i * 1_000_000
			after := 10_000_000 + (step7+6)/7
			if test.pace > 0 {
				after = 10_000_000 + i*test.pace
			}
			reply, err := s.answer(at, step{op: opCancel, args: []int64{at, 0, 0, after, 1}})
			if err != nil {
				t.Fatal(err)
			}
			got += reply[len(reply)-1]
		}
		if size := s.rdb.StrLen(context.Background(), s.key).Val(); got != test.want || size > 20_000 || test.pace == 0 && size > 500 {
			t.Errorf("%s: got %d of 700 in the pool and a state of %d bytes, want %d", test.tier, got, size, test.want)
		}
	}
}

// TestPartsTakenKeepPoolBounded checks that the state stays whole when many requests take over parts of
// returned reservations.
func TestPartsTakenKeepPoolBounded(t *testing.T) {
	const at = 1_700_000_000_000_000
	s := miniSubject(t)
	s.begin(planOf(t, 50*time.Millisecond, "1000/s;algo=gcra"))
	if _, err := s.answer(at, reserveStep(1)); err != nil {
		t.Fatal(err)
	}
	for i := range int64(600) {
		if _, err := s.answer(at, step{op: opCancel, args: []int64{at, 0, 0, 10_000_000 + i*5000, 5}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(12) { // the last ones ask for times in the middle of what is left
		after := max(0, i-8) * 100_000
		got, err := s.answer(at, step{op: opReserve, args: []int64{3600_000_000, 0, 10_000_000 + after, 0, 0, 0, 0, 50, -1, 3}})
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		if first, last := got[6:][1], got[len(got)-1]; last-first != 49*5000 {
			t.Errorf("call %d: got times from %d to %d, want 50 returned ones in a row", i, first, last)
		}
	}
}

// A process whose requests are refused as too late keeps its turn, and the others keep theirs when it
// leaves.
func TestRefusedKeepTheirTurn(t *testing.T) {
	const now = 1_700_000_000_000_000
	s := miniSubject(t)
	s.begin(planOf(t, 50*time.Millisecond, "1/s;algo=gcra"))
	ask := func(turn, within int64) (at int64) {
		got, err := s.answer(now, step{op: opReserve, args: []int64{500_000, 0, 0, 0, 0, 0, 0, -1, within, 0, 12_000, turn, 1}})
		if err != nil {
			t.Fatal(err)
		}
		return got[6:][1]
	}
	ask(0, -1)
	_, second, third := ask(0, -1), ask(0, -1), ask(0, -1)
	for range 3 {
		ask(third, 0)
	}
	if _, err := s.answer(now, step{op: opLeave, args: []int64{third, 0}}); err != nil {
		t.Fatal(err)
	}
	if newcomer := ask(0, -1); newcomer <= second {
		t.Errorf("got a turn at %d for a newcomer, want one behind %d", newcomer, second)
	}
}
