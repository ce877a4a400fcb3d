package distributed

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// Releases of which some estimate a unit and some do not, side by side, never admit more than the
// larger limit, and at last nothing is in flight.
func TestReleasesEstimate(t *testing.T) {
	soak.Long(t, "many releases work side by side, and TestReleasesByTurns plays some")
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) { checkReleasesEstimate(t, miniSubject(t), soak.Times(15)) })
	t.Run("redis", func(t *testing.T) { checkReleasesEstimate(t, serverSubject(t), soak.Times(40)) })
}

const (
	estimatesGuard = 50 * time.Millisecond
	estimatesLease = 1_000_000 // µs
)

// An estimateFleet is a fleet whose processes have releases of which some estimate tokens.
type estimateFleet struct {
	*testing.T
	*rand.Rand
	subject  *subject
	provider *throttletest.Counter
	releases []*algorithms.Plan
	at       int64
	seed     uint64
	owners   int64
	members  []*estimateMember
	sent     []*estimateRequest
	admitted [2]int // by requests that are estimated, and others
}

type estimateMember struct {
	plan     *algorithms.Plan
	owner    int64
	seq      int64
	last     int64            // when it last called
	held     map[string]int64 // by unit
	settled  int64            // tokens, since the last call
	requests []*estimateRequest
}

type estimateRequest struct {
	estimated bool
	latest    int64 // when it arrives at the latest; 0 if nothing limits that
	arrived   bool
	calls     bool // it has a place
}

func checkReleasesEstimate(t *testing.T, s *subject, seeds int) {
	var all [2]int
	for seed := range uint64(seeds) {
		g := rand.New(rand.NewPCG(seed, 1))
		tier := algorithms.Tier{Limit: 1 + g.Int64N(8), Window: time.Second, Unit: "tokens", Algorithm: windowed[g.IntN(len(windowed))]}
		f := &estimateFleet{T: t, Rand: g, subject: s, at: 1_700_000_000_000_000, seed: seed}
		larger := tier
		for i := range 4 {
			own := tier
			if own.Estimated = i%2 == 1; own.Algorithm == algorithms.SlidingLog {
				own.Limit += g.Int64N(3)
				larger.Limit = max(larger.Limit, own.Limit)
			}
			tiers := []algorithms.Tier{own}
			if g.IntN(3) == 0 {
				tiers = append(tiers, algorithms.Tier{Limit: 1000, Window: time.Second})
			}
			if g.IntN(3) == 0 {
				tiers = append(tiers, algorithms.Tier{Limit: 1000, Algorithm: algorithms.Concurrency, Unit: "calls"})
			}
			g.Shuffle(len(tiers), func(i, j int) { tiers[i], tiers[j] = tiers[j], tiers[i] })
			plan, err := algorithms.NewPlan(tiers, estimatesGuard)
			if err != nil {
				t.Fatal(err)
			}
			f.releases = append(f.releases, plan)
		}
		provider, err := throttletest.NewCounter(larger)
		if err != nil {
			t.Fatal(err)
		}
		f.provider = provider
		s.begin(f.releases[1])
		for _, p := range f.releases {
			m := &estimateMember{plan: p}
			f.restart(m)
			f.members = append(f.members, m)
		}
		f.play()
		all[0], all[1] = all[0]+f.admitted[0], all[1]+f.admitted[1]
	}
	t.Logf("%d estimated requests and %d others", all[0], all[1])
	if all[0] < 10*seeds || all[1] < 10*seeds {
		t.Errorf("got %d estimated requests and %d others admitted, want 10 for each of %d seeds", all[0], all[1], seeds)
	}
}

func isEstimated(p *algorithms.Plan) bool {
	return p.Estimated(slices.Index(p.Units(), "tokens"))
}

// restart ends the process of a member, and starts another one. The requests of the old one arrive
// before its lease ends.
func (f *estimateFleet) restart(m *estimateMember) {
	for _, r := range m.requests {
		r.latest = cmp.Or(r.latest, m.last+estimatesLease-1)
	}
	f.owners++
	*m = estimateMember{plan: m.plan, owner: f.owners, held: make(map[string]int64)}
}

func (f *estimateFleet) call(m *estimateMember, op string, args ...int64) []int64 {
	f.Helper()
	f.subject.change(m.plan)
	st := step{op: op, args: args}
	if m.plan.Concurrent() || m.plan.Estimates() {
		m.seq++
		st.lease = []int64{m.owner, m.seq, estimatesLease, 0, 0}
		for _, u := range m.plan.Units() {
			st.lease = append(st.lease, m.held[u])
		}
		if m.plan.Estimates() {
			st.lease = append(st.lease, 1, m.seq)
			for _, u := range m.plan.Units() {
				n := int64(0)
				if u == "tokens" {
					n = m.settled
				}
				st.lease = append(st.lease, n)
			}
		}
		m.last, m.settled = f.at, 0
	}
	got, err := f.subject.answer(f.at, st)
	if err != nil {
		f.Fatalf("seed %d: %v: %v", f.seed, st, err)
	}
	return got[6:]
}

// admit asks for a request.
func (f *estimateFleet) admit(m *estimateMember) {
	f.Helper()
	args := []int64{0, 0, 0, 0, 0, 0, 0, 1, 0}
	for range m.plan.Units() {
		args = append(args, 1)
	}
	if got := f.call(m, opReserve, args...); got[0] > -2 {
		return
	}
	r := &estimateRequest{estimated: isEstimated(m.plan)}
	if r.estimated {
		m.held["tokens"]++
		f.admitted[0]++
	} else {
		r.latest = f.at + estimatesGuard.Microseconds()
		f.admitted[1]++
	}
	if r.calls = m.plan.Concurrent(); r.calls {
		m.held["calls"]++
	}
	m.requests, f.sent = append(m.requests, r), append(f.sent, r)
}

// end ends a request, which need not have arrived.
func (f *estimateFleet) end(m *estimateMember, i int) {
	r := m.requests[i]
	m.requests = slices.Delete(m.requests, i, i+1)
	if r.calls {
		m.held["calls"]--
	}
	if !r.estimated {
		return // it arrives before its guard has passed
	}
	m.held["tokens"]--
	if f.IntN(3) > 0 {
		f.arrive(r, f.at)
	}
	if r.arrived {
		m.settled++
	}
	r.arrived = true // if it was never sent, it does not arrive
}

// change gives a member another release.
func (f *estimateFleet) change(m *estimateMember) {
	old := m.plan
	m.plan = f.releases[f.IntN(len(f.releases))]
	leased := func(p *algorithms.Plan) bool { return p.Concurrent() || p.Estimates() }
	if !leased(old) || !leased(m.plan) {
		f.restart(m)
		return
	}
	if !isEstimated(old) || isEstimated(m.plan) {
		f.keep(m)
		return
	}
	m.held["tokens"], m.settled = 0, 0
	f.call(m, opLease)
	for _, r := range m.requests {
		r.estimated, r.latest = false, cmp.Or(r.latest, f.at+estimatesGuard.Microseconds())
	}
	f.keep(m)
}

// keep drops the places of a member whose release has none.
func (f *estimateFleet) keep(m *estimateMember) {
	if m.plan.Concurrent() {
		return
	}
	m.held["calls"] = 0
	for _, r := range m.requests {
		r.calls = false
	}
}

func (f *estimateFleet) arrive(r *estimateRequest, at int64) {
	f.Helper()
	if r.arrived {
		return
	}
	if r.arrived = true; !f.provider.Arrive(at, map[string]int64{"tokens": 1}) {
		f.Fatalf("seed %d: the provider refuses at %d, releases %v", f.seed, at, f.releases[0].Tiers())
	}
}

// elapse lets time pass, and requests arrive.
func (f *estimateFleet) elapse(length int64) {
	f.Helper()
	slices.SortStableFunc(f.sent, func(a, b *estimateRequest) int { return cmp.Compare(a.latest, b.latest) })
	f.at += length
	f.sent = slices.DeleteFunc(f.sent, func(r *estimateRequest) bool {
		if r.latest > 0 && r.latest <= f.at {
			f.arrive(r, r.latest)
		}
		return r.arrived
	})
	for _, r := range f.sent {
		if f.IntN(10) == 0 {
			f.arrive(r, f.at)
		}
	}
}

func (f *estimateFleet) play() {
	for range 300 {
		f.elapse(f.Int64N(60_000))
		m := f.members[f.IntN(len(f.members))]
		switch n := f.IntN(40); {
		case n == 0:
			f.restart(m)
		case n == 1:
			f.change(m)
		case n < 20 && len(m.requests) > 0:
			f.end(m, f.IntN(len(m.requests)))
		default:
			f.admit(m)
		}
		for _, m := range f.members { // renewals
			if m.last > 0 && f.at-m.last > 300_000 && (m.plan.Concurrent() || m.plan.Estimates()) {
				f.call(m, opLease)
			}
		}
	}
	for _, m := range f.members {
		for len(m.requests) > 0 {
			f.end(m, 0)
		}
		if m.seq > 0 {
			f.call(m, opLease)
		}
	}
	for range 3 { // in between, the server would seem to be away
		f.elapse(estimatesLease/3 + 1)
		for i := range f.members {
			f.call(f.members[(i+int(f.seed))%4], opStatus) // charges what was open when the leases ended
		}
	}
	f.elapse(3_000_000)
	for _, m := range f.members {
		got := f.call(m, opStatus)
		for i, tier := range m.plan.Tiers() {
			if got[3*i] != 0 {
				f.Fatalf("seed %d: got %d of %v used at last, want none", f.seed, got[3*i], tier)
			}
		}
	}
}
