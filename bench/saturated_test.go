package bench

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/store"
)

// BenchmarkRedisSaturated compares a saturated fleet with a saturated process, which run side
// by side for a minute, or for 20 s with -short. The fleet is three processes of eight callers
// each. One of its processes is a millisecond away from Redis, each way. The single process
// has 24 callers, and admits them first in, first out. The benchmark reports
//
//	fleet/fifo        admissions of the fleet, divided by admissions of the single process
//	wait/fifo         longest wait in the fleet, divided by longest wait in the single process
//	least/most        admissions of the least served process of the fleet, divided by those
//	                  of the most served one
//	wasted/admission  calls of the script that admitted no caller, for each admission
func BenchmarkRedisSaturated(b *testing.B) {
	const callers = 8
	length := time.Minute
	if testing.Short() {
		length = 20 * time.Second
	}
	s := redistest.Start(b)
	near, far := s.Client(), redistest.NewProxy(b, s.Addr())
	far.SetDelay(time.Millisecond)
	for b.Loop() {
		if err := near.FlushAll(b.Context()).Err(); err != nil {
			b.Fatal(err)
		}
		reset(b, near)
		ctx, cancel := context.WithCancel(b.Context())
		// A limiter refuses waits that outlast a context's deadline. So the context is canceled.
		time.AfterFunc(length, cancel)
		var useful atomic.Int64
		var wg sync.WaitGroup
		single, fleet := newLoad(b, nil), []*load{}
		wg.Go(func() { single.wait(ctx, 3*callers) })
		for _, rdb := range []*redis.Client{near, s.Client(), far.Client()} {
			l := newLoad(b, &countingStore{distributed.New(rdb, distributed.Options{}), &useful})
			fleet = append(fleet, l)
			wg.Go(func() { l.wait(ctx, callers) })
		}
		wg.Wait()

		all, least, longest := 0, fleet[0].admitted, time.Duration(0)
		most := least
		for _, l := range fleet {
			all += l.admitted
			least, most = min(least, l.admitted), max(most, l.admitted)
			longest = max(longest, l.longest)
		}
		calls, _ := scripts(b, s)
		b.ReportMetric(float64(all)/float64(single.admitted), "fleet/fifo")
		b.ReportMetric(float64(longest)/float64(single.longest), "wait/fifo")
		b.ReportMetric(float64(least)/float64(most), "least/most")
		b.ReportMetric((calls-float64(useful.Load()))/float64(all), "wasted/admission")
	}
}

// A load is the callers of one process, which together request more than the limit.
type load struct {
	b   *testing.B
	lim *throttle.Limiter

	mu       sync.Mutex // guards all below
	admitted int
	longest  time.Duration // wait, including waits that ended without an admission
}

func newLoad(b *testing.B, s throttle.Store) *load {
	b.Helper()
	lim, err := throttle.New(throttle.Policy{Name: "bench", Tiers: []throttle.Tier{
		throttle.PerSecond(5),
		{Limit: 60, Window: 20 * time.Second},
	}}, s)
	if err != nil {
		b.Fatal(err)
	}
	return &load{b: b, lim: lim}
}

// wait starts callers that wait again and again until ctx ends.
func (l *load) wait(ctx context.Context, callers int) {
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				start := time.Now()
				err := l.lim.Wait(ctx)
				if err != nil && ctx.Err() == nil {
					l.b.Error(err)
					return
				}
				l.record(time.Since(start), err == nil)
			}
		})
	}
	wg.Wait()
}

func (l *load) record(wait time.Duration, admitted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, wait)
	if admitted {
		l.admitted++
	}
}

// A countingStore counts the calls of Reserve that admitted at least one request.
type countingStore struct {
	throttle.Store
	useful *atomic.Int64
}

func (s *countingStore) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	if err != nil {
		return nil, err
	}
	return &countingQuota{q, q.(store.Reserver), s.useful}, nil
}

type countingQuota struct {
	store.Quota
	store.Reserver
	useful *atomic.Int64
}

func (q *countingQuota) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	q.Reserver.Reserve(behind, requests, func(decisions []store.Decision, err error) {
		if slices.ContainsFunc(decisions, func(d store.Decision) bool { return d.Verdict == store.Admitted }) {
			q.useful.Add(1)
		}
		done(decisions, err)
	})
}
