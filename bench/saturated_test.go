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

// BenchmarkRedisSaturated has a fleet ask for more than there is: three processes of
// eight callers each, one of them a millisecond away from Redis each way. For a
// minute, or 20 s with -short, 24 callers of one process do the same beside it, where
// it is first in, first out. It reports
//
//	fleet/fifo        what the fleet is admitted, to what one process is
//	wait/fifo         the longest wait, in the same way
//	least/most        the admissions of one process of the fleet to those of another
//	wasted/admission  calls of the script in which nobody was admitted
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
		// Not a deadline, which would be known and refuse who can't be in time.
		time.AfterFunc(length, cancel)
		var useful atomic.Int64
		var wg sync.WaitGroup
		one, fleet := newCrowd(b, nil), []*crowd{}
		wg.Go(func() { one.wait(ctx, 3*callers) })
		for _, rdb := range []*redis.Client{near, s.Client(), far.Client()} {
			c := newCrowd(b, &counting{distributed.New(rdb, distributed.Options{}), &useful})
			fleet = append(fleet, c)
			wg.Go(func() { c.wait(ctx, callers) })
		}
		wg.Wait()

		all, least, longest := 0, fleet[0].admitted, time.Duration(0)
		most := least
		for _, c := range fleet {
			all += c.admitted
			least, most = min(least, c.admitted), max(most, c.admitted)
			longest = max(longest, c.longest)
		}
		calls, _ := scripts(b, s)
		b.ReportMetric(float64(all)/float64(one.admitted), "fleet/fifo")
		b.ReportMetric(float64(longest)/float64(one.longest), "wait/fifo")
		b.ReportMetric(float64(least)/float64(most), "least/most")
		b.ReportMetric((calls-float64(useful.Load()))/float64(all), "wasted/admission")
	}
}

// A crowd is the callers of one process, who all want more than they get.
type crowd struct {
	b   *testing.B
	lim *throttle.Limiter

	mu       sync.Mutex // guards what follows
	admitted int
	longest  time.Duration // that one of them waited, even if in vain
}

func newCrowd(b *testing.B, s throttle.Store) *crowd {
	b.Helper()
	lim, err := throttle.New(throttle.Policy{Name: "bench", Tiers: []throttle.Tier{
		throttle.PerSecond(5),
		{Limit: 60, Window: 20 * time.Second},
	}}, s)
	if err != nil {
		b.Fatal(err)
	}
	return &crowd{b: b, lim: lim}
}

// wait has so many callers wait again and again, until the context ends.
func (c *crowd) wait(ctx context.Context, callers int) {
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				start := time.Now()
				err := c.lim.Wait(ctx)
				if err != nil && ctx.Err() == nil {
					c.b.Error(err)
					return
				}
				c.waited(time.Since(start), err == nil)
			}
		})
	}
	wg.Wait()
}

func (c *crowd) waited(d time.Duration, admitted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.longest = max(c.longest, d)
	if admitted {
		c.admitted++
	}
}

// A counting store counts the questions that admitted somebody.
type counting struct {
	throttle.Store
	useful *atomic.Int64
}

func (c *counting) Open(key string, plan *algorithms.Plan) (store.Quota, error) {
	q, err := c.Store.Open(key, plan)
	if err != nil {
		return nil, err
	}
	return &countingQuota{q, q.(store.Reserver), q.(store.Forecaster), c.useful}, nil
}

type countingQuota struct {
	store.Quota
	store.Reserver
	store.Forecaster
	useful *atomic.Int64
}

func (q *countingQuota) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	q.Reserver.Reserve(behind, requests, func(got []store.Decision, err error) {
		if slices.ContainsFunc(got, func(b store.Decision) bool { return b.Verdict == store.Admitted }) {
			q.useful.Add(1)
		}
		done(got, err)
	})
}
