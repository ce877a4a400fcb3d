package kept

import (
	"fmt"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// A subject is a plan of benchmarks and goldens.
type subject struct {
	name, tiers string
	guard       time.Duration
}

var subjects = []subject{
	{"gcra", "1000/s;algo=gcra;burst=100", 50 * time.Millisecond},
	{"bucket", "1000/s;algo=token_bucket", 50 * time.Millisecond},
	{"window", "1000/s;algo=sliding_window", 50 * time.Millisecond},
	{"log512", "512/s", 50 * time.Millisecond},
	{"weighted", "1000/s;algo=weighted_window", 50 * time.Millisecond},
	{"calendar", "1000000/day", 50 * time.Millisecond},
	{"fixed", "1000/s;algo=fixed_window", 50 * time.Millisecond},
	{"anchored", "1000/s;algo=anchored_window", 50 * time.Millisecond},
	{"places", "1000/s;algo=gcra 100;unit=places;algo=concurrency", 50 * time.Millisecond},
	{"estimates", "1000/s;algo=gcra 1000000/min;unit=tokens;algo=gcra;estimated=true", 50 * time.Millisecond},
}

const start = 1_800_000_000_000_000 // the keeper's clock in µs

// quota returns the quota of the subject, in a store without a keeper.
func (s subject) quota(t testing.TB) *quota {
	p, err := parsePlan(fmt.Sprint(s.guard.Microseconds()) + " " + s.tiers)
	if err != nil {
		t.Fatal(err)
	}
	q, err := New(nil, Options{Name: "kept", Ahead: true}).Open(s.name, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.(*reserving).quota
}

// part begins a transaction on a value.
func (s subject) part(t testing.TB, q *quota, value []byte, wall int64) *part {
	x, err := begin(value, View{Wall: wall}, q)
	if err != nil {
		t.Fatal(err)
	}
	return &part{txn: x, lease: q.lease, leaseEnds: x.now.At + 10_000_000, terms: timing.Terms{Good: 16 * time.Millisecond, Reply: 4 * time.Millisecond, Guard: s.guard + 16*time.Millisecond}, headroom: -1}
}

func requests(p *algorithms.Plan, n int) (requests []store.Request) {
	spec := &store.WaitSpec{MaxWait: time.Hour}
	for range n {
		cost := make([]int64, len(p.Units()))
		for u := range cost {
			cost[u] = 1
		}
		requests = append(requests, store.Request{Cost: cost, WaitSpec: spec})
	}
	return requests
}

// value returns a value with a second of use, a number of bookings and a number of owners.
func (s subject) value(t testing.TB, q *quota, booked, owners int) []byte {
	var value []byte
	for i := range int64(20) {
		p := s.part(t, q, value, start+i*50_000)
		c := claim{parts: []*part{p}, requests: requests(q.plan, 40), reply: 4 * time.Millisecond, horizon: time.Second}
		c.decide()
		value = p.finish().Value
	}
	p := s.part(t, q, value, start+1_000_000)
	at := p.frontier().At
	for i := range booked {
		p.book = append(p.book, booking{at: at + int64(i+1)*1000 + int64(i/8%4), guard: 66_000 + int64(i/8%3)*4_000, cost: requests(q.plan, 1)[0].Cost})
	}
	for range owners {
		p.ownerOf(newLease(q.plan)).expires = p.leaseEnds
	}
	p.changed = true
	return p.finish().Value
}

func BenchmarkDecide(b *testing.B) {
	for _, s := range subjects {
		for _, booked := range []int{0, 64, 500, 4000} {
			for _, n := range []int{1, 64, 256} {
				b.Run(fmt.Sprintf("%s/booked=%d/requests=%d", s.name, booked, n), func(b *testing.B) {
					q := s.quota(b)
					value, of := s.value(b, q, booked, 0), requests(q.plan, n)
					b.ReportMetric(float64(len(value)), "B")
					b.ReportAllocs()
					for b.Loop() {
						p := s.part(b, q, value, start+1_000_100)
						c := claim{parts: []*part{p}, requests: of, reply: 4 * time.Millisecond, horizon: time.Second}
						c.decide()
						p.crossings()
						p.finish()
					}
				})
			}
		}
	}
}
