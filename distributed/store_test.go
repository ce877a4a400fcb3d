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
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/storetest"
)

// The store keeps the contract of package store, in virtual time and with a real server.
func TestServerKeepsContract(t *testing.T) {
	t.Parallel()
	t.Run("virtual", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, storetest.Config{Open: virtualStore, Lag: sec, LandsWithGuard: true, ReservedStays: true})
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := startForSeconds(t)
		storetest.Run(t, storetest.Config{
			Open: func(t testing.TB) store.Store {
				return distributed.New(server.PatientClient(), distributed.Options{Prefix: t.Name(), Timeout: 20 * sec})
			},
			RealTime:       true,
			Lag:            sec,
			LandsWithGuard: true,
			ReservedStays:  true,
		})
	})
}

// virtualStore returns a store of a server that ends with the bubble.
func virtualStore(t testing.TB) store.Store {
	s := redismem.New()
	rdb := redismem.Dial(s, func() time.Duration { return ms })
	t.Cleanup(func() {
		time.Sleep(sec) // go-redis leaks a connection that is being made when the client is closed
		_ = rdb.Close()
		s.Close()
		time.Sleep(time.Minute) // goroutines of the client end by themselves
	})
	return distributed.New(rdb, distributed.Options{})
}

// A faultyStore is a store whose quotas have a planted fault.
type faultyStore struct {
	store.Store
	reserve func(q reserver, behind *store.Reservation, requests []store.Request, done func([]store.Decision, error))
	cancel  func(q reserver, some []store.Decision)
	// reached is called at each place where a fault may be planted.
	reached func()
}

type reserver interface {
	store.Quota
	store.Reserver
}

func (s faultyStore) Open(key string, p *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, p, report)
	if err != nil {
		return nil, err
	}
	return faultyQuota{q.(reserver), s}, nil
}

// A faultyQuota implements no optional interface but Reserver.
type faultyQuota struct {
	reserver
	fault faultyStore
}

func (q faultyQuota) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	q.fault.reached()
	if q.fault.reserve == nil {
		q.reserver.Reserve(behind, requests, done)
	} else {
		q.fault.reserve(q.reserver, behind, requests, done)
	}
}

func (q faultyQuota) Cancel(some []store.Decision) {
	q.fault.reached()
	if q.fault.cancel == nil {
		q.reserver.Cancel(some)
	} else {
		q.fault.cancel(q.reserver, some)
	}
}

// A planted fault of reservations fails the parts of the suite that test it, and no other parts.
// Parts that never call a place where a fault may be planted run only with the first fault.
func TestStoreFaults(t *testing.T) {
	soak.Long(t, "it plays a suite several times, which TestServerKeepsContract plays once")
	t.Parallel()
	var mu sync.Mutex // guards reached
	reached := make(map[string]bool)
	first := true
	for name, f := range map[string]struct {
		breaks string // names of parts, separated by spaces
		fault  faultyStore
	}{
		"answers out of order": {"Reserve", faultyStore{reserve: func(q reserver, behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
			q.Reserve(behind, requests, func(got []store.Decision, err error) {
				slices.Reverse(got)
				done(got, err)
			})
		}}},
		"Cancel does nothing": {"Cancel", faultyStore{cancel: func(reserver, []store.Decision) {}}},
		"late requests are reserved": {"ReserveLate", faultyStore{reserve: func(q reserver, behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
			forever := requests[0]
			forever.WaitSpec = &store.WaitSpec{MaxWait: store.Forever}
			q.Reserve(behind, slices.Repeat([]store.Request{forever}, len(requests)), done)
		}}},
		"reservations never expire": {"Expired", faultyStore{reserve: func(q reserver, behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
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
						t.Skip("this part calls no place where a fault may be planted")
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
