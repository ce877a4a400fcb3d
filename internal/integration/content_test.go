package integration_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// Requests that create content share a limit over REST and GraphQL. It is never exceeded, and used, also
// by a fleet whose callers give up. Other requests use the rest of both APIs meanwhile. When REST's hour
// is used up, mutations go on.
func TestContentIsShared(t *testing.T) {
	for _, processes := range []int{0, 3} { // with a store; 0 is one without
		for _, hour := range []int64{5_000, 10} {
			t.Run(fmt.Sprintf("%d processes, %d in REST's hour", processes, hour), func(t *testing.T) {
				soak.Sample(t, 4)
				synctest.Test(t, func(t *testing.T) { contentIsShared(t, processes, hour) })
			})
		}
	}
}

// The limits of a minute, which are a tenth of GitHub's.
const restPoints, graphQLPoints, content = 90, 200, 8

func contentIsShared(t *testing.T, stores int, hour int64) {
	github := fakeapi.New("../../providers/testdata", "github", fmt.Sprint("points=", restPoints, "/m"), fmt.Sprint("graphqlpoints=", graphQLPoints, "/m"),
		fmt.Sprint("content=", content, "/m"), fmt.Sprint("core=", hour, "/h;algo=anchored_window"))
	github.Latency, github.Hold = fakeapi.Between(fakeapi.Delivery[0], fakeapi.Delivery[1]), fakeapi.Between(fakeapi.Service[0], fakeapi.Service[1])
	redis := redismem.New()
	t.Cleanup(redis.Close)
	var processes []*throttle.Transport
	for range max(1, stores) {
		var s throttle.Store
		if stores > 0 {
			s = distributed.New(nearClient(t, redis), distributed.Options{})
		}
		p := providers.GitHub()
		for scope, limit := range map[string]int64{"rest": restPoints, "content": content, "core": hour} {
			p.Scope(scope).Policy.Tiers[0].Limit = limit
		}
		p.Scope("graphql").Policy.Tiers[1].Limit = graphQLPoints
		transport, err := p.Transport(s)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = roundTripper(func(req *http.Request) (*http.Response, error) {
			// A request that is sent arrives. If its context ended first, it would be charged, because
			// nobody could tell whether it had arrived.
			return github.RoundTrip(req.WithContext(context.WithoutCancel(req.Context())))
		})
		processes = append(processes, transport)
	}

	const minutes = 2
	ctx, cancel := context.WithTimeout(t.Context(), minutes*time.Minute+time.Second)
	defer cancel()
	var mu sync.Mutex
	var served [4]int // by kind
	var wg sync.WaitGroup
	for w := range 32 {
		kind, transport := w/4%4, processes[w%len(processes)]
		wg.Go(func() {
			for ctx.Err() == nil {
				method, url, body := "GET", "https://api.github.com/repos/a/b/issues", ""
				switch kind {
				case 1:
					method, body = "POST", `{"title":"a"}`
				case 2:
					method, url, body = "POST", "https://api.github.com/graphql", `{"query":"{viewer{login}}"}`
				case 3:
					method, url, body = "POST", "https://api.github.com/graphql", `{"query":"mutation {a}"}`
				}
				ctx, cancel := context.WithCancel(ctx)
				if rand.N(4) == 0 {
					time.AfterFunc(rand.N(20*time.Second), cancel)
				}
				req, _ := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
				req.Header.Set("Authorization", "Bearer x")
				req.Header.Set(fakeapi.Worker, strconv.Itoa(w))
				switch resp, err := transport.RoundTrip(req); {
				case err == nil:
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					mu.Lock()
					served[kind]++
					mu.Unlock()
				case errors.Is(err, throttle.ErrDeadline): // it would be late
					<-ctx.Done()
				case !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if refused := github.Refused(); len(refused) > 0 {
		t.Errorf("refused %v", refused)
	}
	rest, graphQL, creations := served[0]+5*served[1], served[2]+5*served[3], served[1]+served[3]
	least := minutes * (content - 1)
	if hour < 100 {
		least /= 2 // mutations compete with queries for the points of GraphQL
		if n := served[0] + served[1]; n != int(hour) {
			t.Errorf("%d of the %d requests of REST's hour", n, hour)
		}
	} else if float64(rest) < 0.9*minutes*restPoints {
		t.Errorf("REST: %d of %d points", rest, minutes*restPoints)
	}
	if float64(graphQL) < 0.9*minutes*graphQLPoints {
		t.Errorf("GraphQL: %d of %d points", graphQL, minutes*graphQLPoints)
	}
	if creations < least {
		t.Errorf("%d that create content, want %d of %d at least", creations, least, minutes*content)
	}
}
