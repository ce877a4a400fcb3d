package bench

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/store"
)

// BenchmarkRedisArrivals tells what a fleet would gain if the news that a request had
// arrived went to Redis with the sender's next call, instead of each request counting
// as on its way for the whole of its guard. Three saturated processes share 5/s and 60
// per 20 s for a minute, or 10 s with -short; an answer comes 5 to 50 ms after a request
// is sent. A request is booked behind the fifth before it, so it could have been booked
// earlier only if the news of that one was there when it was booked. It reports
//
//	in-time/%   how many were booked when that news would have been there
func BenchmarkRedisArrivals(b *testing.B) {
	const callers, limit = 8, 5
	length := time.Minute
	if testing.Short() {
		length = 10 * time.Second
	}
	s := redistest.Start(b)
	for b.Loop() {
		var all ledger
		ctx, cancel := context.WithCancel(b.Context())
		time.AfterFunc(length, cancel)
		var wg sync.WaitGroup
		for process := range 3 {
			spy := &spying{Store: distributed.New(s.Client(), distributed.Options{}), ledger: &all, process: process}
			wg.Go(func() { newCrowd(b, spy).wait(ctx, callers) })
		}
		wg.Wait()
		b.ReportMetric(100*all.inTime(limit), "in-time/%")
	}
}

// A ledger is what a fleet's processes asked and were answered.
type ledger struct {
	mu       sync.Mutex // guards all below
	calls    [3][]time.Time
	bookings []booking
}

type booking struct {
	process int
	asked   time.Time
	ahead   *store.Reservation
}

// inTime is the part of the bookings that were asked for when the news of the one
// that is limit before them would have been there.
func (l *ledger) inTime(limit int) float64 {
	slices.SortFunc(l.bookings, func(a, b booking) int { return cmp.Compare(a.ahead.At, b.ahead.At) })
	known := 0
	for i, late := range l.bookings[limit:] {
		before := l.bookings[i]
		answered := before.ahead.Start.Add(5*time.Millisecond + rand.N(45*time.Millisecond))
		calls := l.calls[before.process]
		next, _ := slices.BinarySearchFunc(calls, answered, time.Time.Compare)
		if next < len(calls) && !calls[next].After(late.asked) {
			known++
		}
	}
	return float64(known) / float64(len(l.bookings)-limit)
}

// A spying store notes what is booked.
type spying struct {
	*distributed.Store
	ledger  *ledger
	process int
}

func (s *spying) Open(key string, plan *algorithms.Plan) (store.Quota, error) {
	q, err := s.Store.Open(key, plan)
	if err != nil {
		return nil, err
	}
	return &spied{Quota: q, Reserver: q.(store.Reserver), spying: s}, nil
}

type spied struct {
	store.Quota
	store.Reserver
	*spying
}

func (s *spied) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	asked := time.Now()
	s.Reserver.Reserve(behind, requests, func(got []store.Decision, err error) {
		s.ledger.mu.Lock()
		s.ledger.calls[s.process] = append(s.ledger.calls[s.process], asked)
		for _, b := range got {
			if b.Verdict == store.Admitted {
				s.ledger.bookings = append(s.ledger.bookings, booking{s.process, asked, b.Reservation})
			}
		}
		s.ledger.mu.Unlock()
		done(got, err)
	})
}
