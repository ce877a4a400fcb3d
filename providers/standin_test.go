package providers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/httpmem"
	"github.com/apithrottle/throttle/throttletest"
)

// Tests whose file names begin with standin play APIs as their pages and captured responses describe
// them, where a rule file of internal/fakeapi can't: limits that a request's body or response decides,
// limits of an address beside those of an account, and bans. Each stand-in names its sources. No limit
// comes from a preset.

// accountHeader names the account of a request, for the client and for the stand-in.
const accountHeader = "X-Test-Account"

// An arrived request is one that reached an API, with its body.
type arrivedRequest struct {
	*http.Request
	body []byte
}

// A pageLimit is a limit as the page of an API describes it.
type pageLimit struct {
	name string
	tier throttle.Tier
	// key returns what the limit counts by, and whether it counts the request. If nil, the limit
	// has one counter and counts all requests.
	key func(arrivedRequest) (key string, counts bool)
	// cost returns what a request costs. If nil, 1.
	cost func(arrivedRequest) int64
	// refusal returns the response to a refused request.
	refusal func(r arrivedRequest, wait time.Duration) fakeapi.Reply
}

// A pageBan shuts an API to all requests of the address. A request that arrives during a ban begins
// it anew.
type pageBan struct {
	after  int           // the refusals that are tolerated
	within time.Duration // of this length
	lasts  time.Duration
	reply  func(wait time.Duration) fakeapi.Reply
}

// A judged is what became of a request.
type judged struct {
	at      time.Time
	account string
	path    string
	refused string // the limit that refused the request, "ban", or "" if it was accepted
}

// A pageAPI is a strict stand-in of an API, which counts requests as they arrive. All requests come
// from one address. Requests take up to 25 ms to arrive, and responses as long.
type pageAPI struct {
	limits []pageLimit
	ban    *pageBan
	// hold is the time between arrival and response. If zero, up to 25 ms.
	hold time.Duration
	// answer returns the response to an accepted request, with mu held. If nil, an empty object.
	answer func(api *pageAPI, r arrivedRequest) fakeapi.Reply
	// early is true if answer is called when a request arrives, so that responses overtake each other.
	// If false, it is called when the response leaves.
	early bool

	// mu guards the fields below.
	mu       sync.Mutex
	counters map[string]*throttletest.Counter
	traps    []fakeapi.Reply
	arrivals []judged
	strikes  []time.Time
	banned   time.Time
}

// trap makes reply the response to the next request, which counts in no limit and is no arrival.
func (a *pageAPI) trap(reply fakeapi.Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.traps = append(a.traps, reply)
}

func (a *pageAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	call := arrivedRequest{Request: r}
	if r.Body != nil {
		defer r.Body.Close()
		var err error
		if call.body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	short := func() time.Duration { return rand.N(25 * time.Millisecond) }
	if err := httpmem.Sleep(r.Context(), short); err != nil {
		return nil, err // the request did not arrive
	}
	reply, accepted, release := a.arrive(call)
	hold := short
	if a.hold > 0 {
		hold = func() time.Duration { return a.hold }
	}
	if err := httpmem.Sleep(r.Context(), hold); err != nil {
		release()
		return nil, err
	}
	if accepted && !a.early {
		reply = a.reply(call)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	for name, value := range reply.Header {
		header.Set(name, value)
	}
	return httpmem.Response(r, max(reply.Status, 200), header, reply.Body, release), nil
}

// reply returns the response to an accepted request.
func (a *pageAPI) reply(r arrivedRequest) fakeapi.Reply {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answer == nil {
		return fakeapi.Reply{Body: "{}"}
	}
	return a.answer(a, r)
}

// arrive decides about a request. The function that it returns ends the request in limits of
// concurrency.
func (a *pageAPI) arrive(r arrivedRequest) (reply fakeapi.Reply, accepted bool, release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	release = func() {}
	if len(a.traps) > 0 {
		reply, a.traps = a.traps[0], a.traps[1:]
		return reply, false, release
	}
	now := time.Now()
	seen := judged{at: now, account: r.Header.Get(accountHeader), path: r.URL.Path}
	defer func() { a.arrivals = append(a.arrivals, seen) }()
	if now.Before(a.banned) {
		seen.refused = "ban"
		a.banned = now.Add(a.ban.lasts)
		return a.ban.reply(a.ban.lasts), false, release
	}
	if l, wait := a.refusing(r, now); l != nil {
		seen.refused = l.name
		a.strike(now)
		return l.refusal(r, wait), false, release
	}
	release = a.charge(r, now)
	if a.early {
		reply = a.answer(a, r)
	}
	return reply, true, release
}

// counter returns the counter of a request in a limit, or nil.
func (a *pageAPI) counter(l *pageLimit, r arrivedRequest) *throttletest.Counter {
	key := ""
	if l.key != nil {
		var counts bool
		if key, counts = l.key(r); !counts {
			return nil
		}
	}
	name := l.name + "\x00" + key
	if a.counters[name] == nil {
		c, err := throttletest.NewCounter(l.tier)
		if err != nil {
			panic(err)
		}
		if a.counters == nil {
			a.counters = map[string]*throttletest.Counter{}
		}
		a.counters[name] = c
	}
	return a.counters[name]
}

// units returns what a request costs in a limit.
func (l *pageLimit) units(r arrivedRequest) map[string]int64 {
	if l.cost == nil {
		return map[string]int64{"requests": 1}
	}
	return map[string]int64{"requests": l.cost(r)}
}

// refusing returns the first limit that refuses a request, and how long it does.
func (a *pageAPI) refusing(r arrivedRequest, now time.Time) (*pageLimit, time.Duration) {
	for i := range a.limits {
		l := &a.limits[i]
		c := a.counter(l, r)
		if c == nil {
			continue
		}
		if cost := l.units(r); c.Admits(now.UnixMicro(), cost) >= 0 {
			at, ok := c.Earliest(now.UnixMicro(), cost)
			if !ok {
				return l, time.Second
			}
			return l, time.UnixMicro(at).Sub(now)
		}
	}
	return nil, 0
}

// charge counts an accepted request in all limits.
func (a *pageAPI) charge(r arrivedRequest, now time.Time) (release func()) {
	var ends []func()
	for i := range a.limits {
		l := &a.limits[i]
		c := a.counter(l, r)
		if c == nil {
			continue
		}
		cost := l.units(r)
		c.Arrive(now.UnixMicro(), cost)
		if l.tier.Algorithm == throttle.Concurrency {
			ends = append(ends, func() { c.Release(cost) })
		}
	}
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, end := range ends {
			end()
		}
	})
}

// strike counts a refusal, and begins a ban.
func (a *pageAPI) strike(now time.Time) {
	if a.ban == nil {
		return
	}
	for len(a.strikes) > 0 && now.Sub(a.strikes[0]) >= a.ban.within {
		a.strikes = a.strikes[1:]
	}
	if a.strikes = append(a.strikes, now); len(a.strikes) > a.ban.after {
		a.banned = now.Add(a.ban.lasts)
	}
}

// counted returns a limit and its counter of a request.
func (a *pageAPI) counted(name string, r arrivedRequest) (*pageLimit, *throttletest.Counter) {
	i := slices.IndexFunc(a.limits, func(l pageLimit) bool { return l.name == name })
	return &a.limits[i], a.counter(&a.limits[i], r)
}

// left returns the units that are left in a limit of a request, and the time until there is one more.
func (a *pageAPI) left(name string, r arrivedRequest) (n int64, more time.Duration) {
	l, c := a.counted(name, r)
	now, capacity := time.Now().UnixMicro(), l.tier.Capacity()
	units := func(n int) map[string]int64 { return map[string]int64{"requests": int64(n)} }
	n = int64(sort.Search(int(capacity), func(n int) bool { return c.Admits(now, units(n+1)) >= 0 }))
	if at, ok := c.Earliest(now, units(int(min(n+1, capacity)))); ok {
		more = time.Duration(at-now) * time.Microsecond
	}
	return n, more
}

// used returns the units that are used in a limit of a request.
func (a *pageAPI) used(name string, r arrivedRequest) string {
	l, _ := a.counted(name, r)
	left, _ := a.left(name, r)
	return fmt.Sprint(l.tier.Capacity() - left)
}

// outcomes returns the accepted requests by account, and the refused ones by limit, of all that
// arrived from a time on.
func (a *pageAPI) outcomes(from time.Time) (served, refused map[string]int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	served, refused = map[string]int{}, map[string]int{}
	for _, seen := range a.arrivals {
		switch {
		case seen.at.Before(from):
		case seen.refused == "":
			served[seen.account]++
		default:
			refused[seen.refused]++
		}
	}
	return served, refused
}

// checkNoneRefused fails if the API refused a request.
func checkNoneRefused(t *testing.T, a *pageAPI) {
	t.Helper()
	served, refused := a.outcomes(time.Time{})
	if total := sum(refused); total > 0 {
		t.Errorf("%d of %d requests were refused: %v", total, total+sum(served), refused)
	}
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// possible returns how many requests of a cost a perfect client has accepted by a tier in a time
// that begins now.
func possible(t *testing.T, tier throttle.Tier, cost int64, d time.Duration) (n int) {
	t.Helper()
	perfect(t, tier, cost, func(at time.Duration) bool {
		if at < d {
			n++
		}
		return at < d
	})
	return n
}

// shortest returns the time in which a tier accepts n requests of a cost from a perfect client.
func shortest(t *testing.T, tier throttle.Tier, cost int64, n int) (d time.Duration) {
	t.Helper()
	perfect(t, tier, cost, func(at time.Duration) bool {
		d, n = at, n-1
		return n > 0
	})
	return d
}

// perfect calls next with the instants at which a tier accepts requests of a cost at the earliest,
// until it returns false. The instants are relative to now.
func perfect(t *testing.T, tier throttle.Tier, cost int64, next func(time.Duration) bool) {
	t.Helper()
	c, err := throttletest.NewCounter(tier)
	if err != nil {
		t.Fatal(err)
	}
	units := map[string]int64{"requests": cost}
	start := time.Now().UnixMicro()
	for at, ok := start, true; ok; {
		if at, ok = c.Earliest(at, units); !ok || !next(time.Duration(at-start)*time.Microsecond) {
			return
		}
		c.Arrive(at, units)
	}
}

// keepBusy sends requests from next for the duration d, as saturate does. A worker that gets
// ErrBanned tries again a second later.
func keepBusy(t *testing.T, rt http.RoundTripper, workers int, d time.Duration, next func(worker int) *http.Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				switch err := fetch(rt, next(w).WithContext(ctx)); {
				case errors.Is(err, throttle.ErrBanned):
					time.Sleep(time.Second)
				case err != nil && !errors.Is(err, context.DeadlineExceeded):
					t.Error(err)
					return
				case err != nil:
					return
				}
			}
		})
	}
	wg.Wait()
}

// fetch sends a request and reads its response.
func fetch(rt http.RoundTripper, req *http.Request) error {
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// sendAll sends n requests with some workers, and returns the time until the last response.
func sendAll(t *testing.T, rt http.RoundTripper, workers, n int, next func(i int) *http.Request) time.Duration {
	t.Helper()
	start := time.Now()
	todo := make(chan int, n)
	for i := range n {
		todo <- i
	}
	close(todo)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range todo {
				if err := fetch(rt, next(i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// checkTook fails if a workload took longer than a perfect client's time divided by share, besides
// 100 ms for its last response.
func checkTook(t *testing.T, what string, took, perfect time.Duration, share float64) {
	t.Helper()
	most := time.Duration(float64(perfect)/share) + 100*time.Millisecond
	if t.Logf("%s took %v; a perfect client takes %v", what, took, perfect); took > most {
		t.Errorf("%s took %v, want at most %v", what, took, most)
	}
}

// withBody returns a request with a body and headers, given as "Name: value".
func withBody(t *testing.T, method, url, contentType, body string, headers ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	if body == "" {
		req.Body, req.GetBody = nil, nil
	} else {
		req.Header.Set("Content-Type", contentType)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	return req
}
