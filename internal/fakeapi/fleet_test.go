package fakeapi_test

import (
	"context"
	"io"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/soak"
)

// Four processes on one Redis are never refused, and use most of what one client may. The share of monday
// is small, because its header doesn't tell processes apart.
func TestFleetsSaturateTheirAPIs(t *testing.T) {
	soak.Long(t, "it plays minutes of four processes on a Redis")
	for rules, floor := range map[string]float64{"xero": 0.75, "pipedrive": 0.65, "asana": 0.9, "monday": 0.05} {
		t.Run(rules, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testFleet(t, rules, floor) }) })
	}
}

func testFleet(t *testing.T, rules string, floor float64) {
	s := saturations[slices.IndexFunc(saturations, func(s saturation) bool { return s.rules == rules })]
	a, start := load(t, rules), time.Now()
	api, redis := fakeapi.NewSlowServer(a), redismem.New()
	defer redis.Close()
	ctx, cancel := context.WithTimeout(t.Context(), s.length)
	defer cancel()
	var workers sync.WaitGroup
	for process := range 4 {
		client := redismem.Dial(redis, func() time.Duration { return 500 * time.Microsecond })
		defer client.Close()
		transport, err := s.preset().Transport(distributed.New(client, distributed.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = api
		for w := range 16 {
			workers.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					r := a.Traffic[w%len(a.Traffic)].Build(a, process*16+w, n).WithContext(ctx)
					r.Header.Set(fakeapi.Worker, strconv.Itoa(process*16+w))
					if resp, err := transport.RoundTrip(r); err != nil {
						time.Sleep(time.Second) // it would be late
					} else {
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
					}
				}
			})
		}
	}
	workers.Wait()
	time.Sleep(6 * time.Second) // a listener stays for five
	possible, _ := fakeapi.Possible(a, 64, start, s.length)
	if n := api.Served(); len(api.Refused()) > 0 || float64(n) < floor*float64(len(possible)) {
		t.Errorf("%d of %d served, want at least %v of them; refused %v", n, len(possible), floor, api.Refused())
	}
}
