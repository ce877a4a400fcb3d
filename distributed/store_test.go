package distributed_test

import (
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/storetest"
)

// The store keeps the contract of package store, in virtual time and with a real server.
func TestStore(t *testing.T) {
	t.Parallel()
	t.Run("virtual", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, storetest.Config{Open: virtualStore, Lag: sec, LandsWithGuard: true, ReservedStays: true})
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		storetest.Run(t, storetest.Config{
			Open: func(t testing.TB) store.Store {
				return distributed.New(server.Client(), distributed.Options{Prefix: t.Name(), Timeout: 20 * sec})
			},
			RealTime:       true,
			Lag:            sec,
			LandsWithGuard: true,
			ReservedStays:  true,
		})
	})
}

// virtualStore is a store of a server that ends with the bubble.
func virtualStore(t testing.TB) store.Store {
	s := redismem.New()
	rdb := redismem.Dial(s, func() time.Duration { return ms })
	t.Cleanup(func() {
		time.Sleep(sec) // go-redis leaks a connection that is being made when the client is closed
		_ = rdb.Close()
		s.Close()
		time.Sleep(time.Minute) // what the client runs ends by itself
	})
	return distributed.New(rdb, distributed.Options{})
}

// planted is a store whose quotas have a fault.
type planted struct {
	store.Store
	reserve func(q reserver, behind *store.Reservation, requests []store.Request, done func([]store.Decision, error))
	cancel  func(q reserver, some []store.Decision)
	reached func() // called when the place is come to where a fault may be
}

type reserver interface {
	store.Quota
	store.Reserver
}

func (s planted) Open(key string, p *algorithms.Plan) (store.Quota, error) {
	q, err := s.Store.Open(key, p)
	if err != nil {
		return nil, err
	}
	return plantedQuota{q.(reserver), s}, nil
}

// A plantedQuota has no interface but Reserver.
type plantedQuota struct {
	reserver
	fault planted
}

func (q plantedQuota) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	q.fault.reached()
	if q.fault.reserve == nil {
		q.reserver.Reserve(behind, requests, done)
	} else {
		q.fault.reserve(q.reserver, behind, requests, done)
	}
}

func (q plantedQuota) Cancel(some []store.Decision) {
	q.fault.reached()
	if q.fault.cancel == nil {
		q.reserver.Cancel(some)
	} else {
		q.fault.cancel(q.reserver, some)
	}
}

// A fault of reservations fails the parts of the suite that are about it, and no other. Each
// passes where another fault is planted. Parts that have not come to where the faults are with
// the first of them run with none of the others.
func TestStoreFaults(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // guards reached
	reached := make(map[string]bool)
	first := true
	for name, f := range map[string]struct {
		breaks string // the parts, apart by spaces
		fault  planted
	}{
		"answers out of order": {"Reserve", planted{reserve: func(q reserver, behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
			q.Reserve(behind, requests, func(got []store.Decision, err error) {
				slices.Reverse(got)
				done(got, err)
			})
		}}},
		"nothing is canceled": {"Cancel", planted{cancel: func(reserver, []store.Decision) {}}},
		"what is late is reserved": {"ReserveLate", planted{reserve: func(q reserver, behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
			forever := requests[0]
			forever.WaitSpec = &store.WaitSpec{MaxWait: store.Forever}
			q.Reserve(behind, slices.Repeat([]store.Request{forever}, len(requests)), done)
		}}},
		"a reservation is good for ever": {"Expired", planted{reserve: func(q reserver, behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
			q.Reserve(behind, requests, func(got []store.Decision, err error) {
				for _, d := range got {
					if d.Reservation != nil {
						d.Reservation.End = d.Reservation.End.Add(hour)
					}
				}
				done(got, err)
			})
		}}},
	} {
		all := first
		first = false
		t.Run(name, func(t *testing.T) {
			if !all {
				t.Parallel()
			}
			c := storetest.Config{
				Open: func(t testing.TB) store.Store {
					part := path.Base(t.Name())
					mu.Lock()
					defer mu.Unlock()
					if isPart := strings.Count(t.Name(), "/") > 1; isPart && !all && !reached[part] {
						t.Skip("no fault is where this part comes to")
					}
					s := f.fault
					s.reached = func() {
						mu.Lock()
						defer mu.Unlock()
						reached[part] = true
					}
					s.Store = virtualStore(t)
					return s
				},
				Lag:            sec,
				LandsWithGuard: true,
				ReservedStays:  true,
				Breaks:         make(map[string]string),
			}
			for _, part := range strings.Fields(f.breaks) {
				c.Breaks[part] = "a fault is planted"
			}
			storetest.Run(t, c)
		})
	}
}
