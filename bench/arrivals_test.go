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

// BenchmarkRedisArrivals estimates what a fleet would gain if each process reported arrived
// requests to Redis with its next call. Today each request counts as in flight for the whole
// of its guard. Three saturated processes share 5/s and 60 per 20 s for a minute, or for 10 s
// with -short. A response comes 5 to 50 ms after its request is sent. The time of a reservation
// depends on the fifth request before it. A report of that request could have made the time
// earlier only if it had reached Redis before the reservation. The benchmark reports
//
//	in-time/%   the reservations that such a report would have preceded
func BenchmarkRedisArrivals(b *testing.B) {
	const callers, limit = 8, 5
	length := time.Minute
	if testing.Short() {
		length = 10 * time.Second
	}
	s := redistest.Start(b)
	for b.Loop() {
		var all record
		ctx, cancel := context.WithCancel(b.Context())
		time.AfterFunc(length, cancel)
		var wg sync.WaitGroup
		for process := range 3 {
			recorder := &recordingStore{Store: distributed.New(s.Client(), distributed.Options{}), record: &all, process: process}
			wg.Go(func() { newLoad(b, recorder).wait(ctx, callers) })
		}
		wg.Wait()
		b.ReportMetric(100*all.inTime(limit), "in-time/%")
	}
}

// A record has the calls of a fleet's processes and their reservations.
type record struct {
	mu           sync.Mutex // guards all below
	calls        [3][]time.Time
	reservations []reservation
}

type reservation struct {
	process  int
	calledAt time.Time
	*store.Reservation
}

// inTime returns the share of the reservations that were made after the report of the
// reservation that is limit before them.
func (r *record) inTime(limit int) float64 {
	slices.SortFunc(r.reservations, func(a, b reservation) int { return cmp.Compare(a.At, b.At) })
	inTime := 0
	for i, late := range r.reservations[limit:] {
		early := r.reservations[i]
		response := early.Start.Add(5*time.Millisecond + rand.N(45*time.Millisecond))
		calls := r.calls[early.process]
		next, _ := slices.BinarySearchFunc(calls, response, time.Time.Compare)
		if next < len(calls) && !calls[next].After(late.calledAt) {
			inTime++
		}
	}
	return float64(inTime) / float64(len(r.reservations)-limit)
}

// A recordingStore records the calls and reservations of its quotas.
type recordingStore struct {
	*distributed.Store
	record  *record
	process int
}

func (s *recordingStore) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	if err != nil {
		return nil, err
	}
	return &recordingQuota{Quota: q, Reserver: q.(store.Reserver), recordingStore: s}, nil
}

type recordingQuota struct {
	store.Quota
	store.Reserver
	*recordingStore
}

func (q *recordingQuota) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	calledAt := time.Now()
	q.Reserver.Reserve(behind, requests, func(decisions []store.Decision, err error) {
		q.record.mu.Lock()
		q.record.calls[q.process] = append(q.record.calls[q.process], calledAt)
		for _, d := range decisions {
			if d.Verdict == store.Admitted {
				q.record.reservations = append(q.record.reservations, reservation{q.process, calledAt, d.Reservation})
			}
		}
		q.record.mu.Unlock()
		done(decisions, err)
	})
}
