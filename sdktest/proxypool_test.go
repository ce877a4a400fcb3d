package sdktest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A region is a strict API that keeps the keys which reach it.
type region struct {
	*throttletest.Provider
	url string

	mu   sync.Mutex
	keys map[string]int // requests, by all that may be a credential
}

// startDeployment starts an API that takes so many requests a second.
func startDeployment(t testing.TB, rate int64) *region {
	d := &region{Provider: throttletest.New(throttle.PerSecond(rate)), keys: make(map[string]int)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		d.keys[strings.Join([]string{r.Header.Get("Authorization"), r.Header.Get("Api-Key"), r.Header.Get("Cookie")}, ";")]++
		d.mu.Unlock()
		counted := httptest.NewRecorder()
		d.ServeHTTP(counted, r)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(counted.Code)
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	t.Cleanup(server.Close)
	d.url = server.URL
	return d
}

// TestProxyPool sends the requests of real clients, which know nothing of a pool, to two strict APIs behind one
// base URL. Neither refuses any, both serve some, and each receives its own key alone.
func TestProxyPool(t *testing.T) {
	t.Parallel()
	east, west := startDeployment(t, 5), startDeployment(t, 20)
	p := startProxyWith(t, fmt.Sprintf(`
routes:
  /llm:
    pool:
      - {name: east, to: %s/v1, policy: 5/s | guard=1s, set: {Api-Key: "${env:EAST_KEY}"}}
      - {name: west, to: %s, policy: 20/s | guard=1s, set: {Authorization: "Bearer ${env:WEST_KEY}"}}
`, east.url, west.url), nil, "EAST_KEY=east-canary", "WEST_KEY=west-canary")
	c := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(c.CloseIdleConnections)
	base := p.url + "/llm"
	kinds := []caller{viaCurl(t, c, base), viaPython(t, c, base), viaNode(t, c, base), viaOpenAI(c, base), viaNetHTTP(c, base)}
	const calls = 8
	var clients sync.WaitGroup
	for _, kind := range kinds {
		clients.Go(func() {
			for range calls {
				if err := kind.call(t.Context()); err != nil {
					t.Errorf("%s: %v", kind.name, err)
				}
			}
		})
	}
	clients.Wait()
	if total := east.Summary().Accepted + west.Summary().Accepted; total != int64(calls*len(kinds)) || east.Summary().Sent == 0 || west.Summary().Sent == 0 {
		t.Errorf("east counts %+v, west %+v", east.Summary(), west.Summary())
	}
	for want, d := range map[string]*region{";east-canary;": east, "Bearer west-canary;;": west} {
		if len(d.keys) != 1 || d.keys[want] == 0 || d.Summary().Refused != 0 {
			t.Errorf("the keys were %v, want %q; %+v", d.keys, want, d.Summary())
		}
	}
}
