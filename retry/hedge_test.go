package retry_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/httpmem"
	"github.com/apithrottle/throttle/retry"
	"github.com/apithrottle/throttle/throttletest"
)

// A call is one request that has reached an api.
type call struct {
	at   time.Duration // since the start of the test
	path string
	body string
	ctx  context.Context
	open bool // the body of its response is neither read to the end nor closed
}

// An api is a base that answers by the lines of a script, in the order in which requests come: a time in
// milliseconds and a status or another word, with which it panics. The answer to a refused request has a Retry-After of
// 30 s. The last line repeats.
type api struct {
	start time.Time

	mu     sync.Mutex // guards all below
	script []string
	calls  []*call
}

func newAPI(script ...string) *api { return &api{start: time.Now(), script: script} }

func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	c := &call{at: time.Since(a.start), path: r.URL.Host + r.URL.Path, ctx: r.Context()}
	if r.Body != nil {
		body, _ := io.ReadAll(r.Body)
		c.body = string(body)
		r.Body.Close()
	}
	a.mu.Lock()
	a.calls = append(a.calls, c)
	line, n := a.script[0], len(a.calls)
	if len(a.script) > 1 {
		a.script = a.script[1:]
	}
	a.mu.Unlock()
	var after time.Duration
	status, panics := 200, ""
	if _, err := fmt.Sscanf(line, "%d %d", &after, &status); err != nil {
		fmt.Sscanf(line, "%d %s", &after, &panics)
	}
	err := httpmem.Sleep(r.Context(), func() time.Duration { return after * time.Millisecond })
	switch {
	case panics != "":
		panic(panics)
	case err != nil:
		return nil, err
	}
	header := http.Header{}
	if status == 429 {
		header.Set("Retry-After", "30")
	}
	c.open = true
	return httpmem.Response(r, status, header, fmt.Sprint("answer ", n), func() { a.mu.Lock(); c.open = false; a.mu.Unlock() }), nil
}

// sent returns the times of the requests in milliseconds.
func (a *api) sent() (at []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.calls {
		at = append(at, int(c.at.Milliseconds()))
	}
	return at
}

// checkEnded checks that no response of the first n requests is open and that the context of each has ended, so that
// nothing holds memory for it.
func (a *api) checkEnded(t *testing.T, n int) {
	t.Helper()
	synctest.Wait()
	for i, c := range a.calls[:n] {
		if c.open || c.ctx.Err() == nil {
			t.Errorf("request %d: the body is open: %t; error of the context: %v", i+1, c.open, c.ctx.Err())
		}
	}
}

// afterASecond returns a Hedge that hedges every request after a second.
func afterASecond() *retry.Hedge { return &retry.Hedge{After: time.Second, Share: 1} }

func newLimiter(t *testing.T, p throttle.Policy) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// used returns how many units of the only tier of a Limiter are used.
func used(t *testing.T, l *throttle.Limiter) int64 {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[0].Used
}

func wantCounts(t *testing.T, h *retry.Hedge, sent, won int64) {
	t.Helper()
	if s, w := h.Counts(); s != sent || w != won {
		t.Errorf("%d hedges were sent and %d won, want %d and %d", s, w, sent, won)
	}
}

func TestHedge(t *testing.T) {
	stream := func() io.Reader { return stream{strings.NewReader("order")} }
	order := func() io.Reader { return strings.NewReader("order") }
	for _, c := range []struct {
		name         string
		method       string
		body         func() io.Reader
		header       string
		script       []string
		sent         []int
		text         string
		took         int // ms
		hedges, wins int64
		change       func(*throttle.Transport)
	}{
		{name: "first is fast", script: []string{"900 200"}, sent: []int{0}, text: "200 answer 1", took: 900},
		{name: "hedge wins", script: []string{"5000 200", "100 200"}, sent: []int{0, 1000}, text: "200 answer 2", took: 1100, hedges: 1, wins: 1},
		{name: "first wins", script: []string{"1500 200", "5000 200"}, sent: []int{0, 1000}, text: "200 answer 1", took: 1500, hedges: 1},
		{name: "hedge is the client's error", script: []string{"5000 200", "100 404"}, sent: []int{0, 1000}, text: "404 answer 2", took: 1100, hedges: 1, wins: 1},
		{name: "hedge is refused", script: []string{"5000 200", "100 429"}, sent: []int{0, 1000}, text: "200 answer 1", took: 5000, hedges: 1},
		{name: "hedge fails", script: []string{"5000 200", "100 503"}, sent: []int{0, 1000}, text: "200 answer 1", took: 5000, hedges: 1},
		{name: "first is refused, hedge wins", script: []string{"1500 429", "1000 200"}, sent: []int{0, 1000}, text: "200 answer 2", took: 2000, hedges: 1, wins: 1},
		{name: "first fails, hedge wins", script: []string{"1500 502", "1000 200"}, sent: []int{0, 1000}, text: "200 answer 2", took: 2000, hedges: 1, wins: 1},
		{name: "first times out, hedge wins", script: []string{"9000 200", "1500 200"}, sent: []int{0, 1000}, text: "200 answer 2", took: 2500, hedges: 1, wins: 1,
			change: func(tr *throttle.Transport) { tr.AttemptTimeout = 2 * time.Second }},
		{name: "first fails before", script: []string{"500 502", "5000 200"}, sent: []int{0, 1500}, text: "200 answer 2", took: 6500},
		{name: "a retry after a refusal is not hedged", script: []string{"500 429", "5000 200"}, sent: []int{0, 30500}, text: "200 answer 2", took: 35500},
		{name: "both are refused", script: []string{"1500 429", "1000 429", "100 200"}, sent: []int{0, 1000, 32000}, text: "200 answer 3", took: 32100, hedges: 1},
		{name: "both fail", script: []string{"1500 502", "1000 503", "100 200"}, sent: []int{0, 1000, 3000}, text: "200 answer 3", took: 3100, hedges: 1},
		{name: "POST", method: "POST", body: order, script: []string{"5000 200"}, sent: []int{0}, text: "200 answer 1", took: 5000},
		{name: "POST with a key", method: "POST", body: order, header: "Idempotency-Key", script: []string{"5000 200", "100 200"}, sent: []int{0, 1000}, text: "200 answer 2", took: 1100, hedges: 1, wins: 1},
		{name: "PUT", method: "PUT", body: order, script: []string{"5000 200", "100 200"}, sent: []int{0, 1000}, text: "200 answer 2", took: 1100, hedges: 1, wins: 1},
		{name: "PUT of a stream", method: "PUT", body: stream, script: []string{"5000 200"}, sent: []int{0}, text: "200 answer 1", took: 5000},
		{name: "upgrade", header: "Upgrade", script: []string{"5000 200"}, sent: []int{0}, text: "200 answer 1", took: 5000},
		{name: "no quota", script: []string{"5000 200"}, sent: []int{0}, text: "200 answer 1", took: 5000,
			change: func(tr *throttle.Transport) {
				tr.Cost = func(*http.Request) throttle.Cost { return throttle.Cost{"requests": 600} }
			}},
		{name: "no limiter", script: []string{"5000 200", "100 200"}, sent: []int{0, 1000}, text: "200 answer 2", took: 1100, hedges: 1, wins: 1,
			change: func(tr *throttle.Transport) { tr.Limiter = nil }},
		{name: "shadow", script: []string{"5000 200", "100 200"}, sent: []int{0, 1000}, text: "200 answer 2", took: 1100, hedges: 1, wins: 1,
			change: func(tr *throttle.Transport) {
				tr.Limiter, _ = throttle.New(throttle.Policy{Shadow: true, Tiers: []throttle.Tier{throttle.PerHour(1)}}, nil)
			}},
		{name: "SendBy is over", script: []string{"5000 200"}, sent: []int{0}, text: "200 answer 1", took: 5000,
			change: func(tr *throttle.Transport) {
				by := time.Now().Add(500 * time.Millisecond)
				tr.SendBy = func(*http.Request) time.Time { return by }
			}},
	} {
		bubble(t, c.name, func(t *testing.T) {
			a, h := newAPI(c.script...), afterASecond()
			tr := &throttle.Transport{Base: a, Limiter: newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 1000, Window: time.Minute}}})}
			if c.change != nil {
				c.change(tr)
			}
			var body io.Reader
			if c.body != nil {
				body = c.body()
			}
			var header []string
			if c.header != "" {
				header = append(header, c.header)
			}
			resp, err := retry.Config{Transport: tr, Hedge: h}.Client().Do(request(t, c.method, body, header...))
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(a.start); took != time.Duration(c.took)*time.Millisecond {
				t.Errorf("took %v, want %d ms", took, c.took)
			}
			synctest.Wait() // the loser leaves while the body of the winner is open
			if _, text := finish(t, resp); fmt.Sprint(resp.StatusCode, " ", text) != c.text {
				t.Errorf("got %d %s, want %s", resp.StatusCode, text, c.text)
			}
			if got := a.sent(); !slices.Equal(got, c.sent) {
				t.Errorf("sent at %v ms, want %v", got, c.sent)
			}
			for i, sent := range a.calls {
				if c.body != nil && sent.body != "order" {
					t.Errorf("request %d had body %q", i+1, sent.body)
				}
			}
			wantCounts(t, h, c.hedges, c.wins)
			if c.hedges > 0 {
				a.checkEnded(t, 2)
			}
		})
	}
}

// The bodies of a request and of its hedge are each closed once, also if the hedge is not admitted or has none.
func TestBodiesOfHedgesAreClosed(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  int64
		err    error // of GetBody
		opened int
		text   string
	}{
		{"hedged", 1000, nil, 2, "answer 2"},
		{"not admitted", 1, nil, 2, "answer 1"},
		{"GetBody fails", 1000, errDial, 1, "answer 1"},
	} {
		bubble(t, c.name, func(t *testing.T) {
			a, b := newAPI("5000 200", "100 200"), &bodies{text: "order", err: c.err}
			tr := &throttle.Transport{Base: a, Limiter: newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: c.limit, Window: time.Minute}}})}
			req := request(t, "PUT", nil)
			req.Body, _ = b.open()
			req.GetBody = b.open
			resp, err := retry.Config{Transport: tr, Hedge: afterASecond()}.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, text := finish(t, resp); text != c.text {
				t.Errorf("got %q, want %q", text, c.text)
			}
			synctest.Wait()
			if len(b.closed) != c.opened || slices.ContainsFunc(b.closed, func(n int) bool { return n != 1 }) {
				t.Errorf("bodies were closed %v times, want %d bodies that are closed once", b.closed, c.opened)
			}
		})
	}
}

// Hedges are never more than their share of the requests, and few come at once after many fast responses.
func TestHedgesAreAShareOfTheRequests(t *testing.T) {
	for _, c := range []struct{ share, want float64 }{{0, 0.05}, {0.05, 0.05}, {0.2, 0.2}, {1, 1}, {7, 1}, {-1, 0}, {1e-12, 0}} {
		bubble(t, fmt.Sprint(c.share), func(t *testing.T) {
			a, h := newAPI("5000 200"), &retry.Hedge{After: time.Second, Share: c.share}
			client := retry.Config{Transport: &throttle.Transport{Base: a}, Hedge: h}.Client()
			for n := range 200 {
				resp, err := client.Do(request(t, "GET", nil))
				if err != nil {
					t.Fatal(err)
				}
				finish(t, resp)
				if sent, _ := h.Counts(); sent != int64(c.want*float64(n+1)+1e-9) || len(a.sent()) != n+1+int(sent) {
					t.Fatalf("%d hedges of %d requests, want a share of %v; the API has %d requests", sent, n+1, c.want, len(a.sent()))
				}
			}
		})
	}
	bubble(t, "burst", func(t *testing.T) {
		a, h := newAPI("1 200"), &retry.Hedge{After: time.Second}
		client := retry.Config{Transport: &throttle.Transport{Base: a}, Hedge: h}.Client()
		send := func() {
			resp, err := client.Do(request(t, "GET", nil))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		}
		for range 1000 {
			send()
		}
		a.script = []string{"5000 200"}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(send)
		}
		wg.Wait()
		wantCounts(t, h, 10, 0) // 50 + 5 were saved, but for 10
	})
}

// A hedge that is not admitted costs none of the budget.
func TestRefusedHedgesAreNotCounted(t *testing.T) {
	bubble(t, "budget of one", func(t *testing.T) {
		a, h := newAPI("5000 200", "5000 200", "5000 200", "100 200"), &retry.Hedge{After: time.Second, Share: 0.5}
		var refused int
		l := newLimiter(t, throttle.Policy{
			Tiers:    []throttle.Tier{{Limit: 2, Window: 8 * time.Second, Algorithm: throttle.FixedWindow}},
			Observer: &throttle.Observer{Refused: func(context.Context, throttle.RefusedInfo) { refused++ }},
		})
		client := retry.Config{Transport: &throttle.Transport{Base: a, Limiter: l}, Hedge: h}.Client()
		for range 3 { // the second has no room for its hedge; the third has, with the credit of the second
			resp, err := client.Do(request(t, "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			finish(t, resp)
		}
		if refused != 0 {
			t.Errorf("the Observer received %d refusals of hedges", refused)
		}
		if at := a.sent(); !slices.Equal(at, []int{0, 5000, 10000, 11000}) {
			t.Errorf("sent at %v ms", at)
		}
		wantCounts(t, h, 1, 1)
	})
}

// latencies sends requests one after the other to an API whose answers take 90 to 110 ms, but 3 % ten times as long, and
// returns their latencies by size.
func latencies(t *testing.T, seed uint64, h *retry.Hedge) []time.Duration {
	t.Helper()
	var all []time.Duration
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 1))
		var mu sync.Mutex
		p := throttletest.New(throttle.PerSecond(20))
		p.Hold = func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			d := 90*time.Millisecond + time.Duration(random.Int64N(int64(20*time.Millisecond)))
			if random.IntN(100) < 3 {
				d *= 10
			}
			return d
		}
		tr := &throttle.Transport{Base: p, Limiter: newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(20)}})}
		client := retry.Config{Transport: tr, Hedge: h}.Client()
		for range 2000 {
			began := time.Now()
			resp, err := client.Do(request(t, "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Since(began))
			finish(t, resp)
		}
		if s := p.Summary(); s.Refused != 0 {
			t.Errorf("the provider refused %d of %d", s.Refused, s.Sent)
		}
	})
	slices.Sort(all)
	return all
}

// Where 3 % of the answers take ten times as long, hedges of 5 % of the requests halve the 99th percentile.
func TestHedgesShortenTheTail(t *testing.T) {
	for seed := range uint64(3) {
		var h retry.Hedge
		plain, hedged := latencies(t, seed, nil), latencies(t, seed, &h)
		sent, won := h.Counts()
		n := len(plain)
		t.Logf("p50 %v → %v, p95 %v → %v, p99 %v → %v; %d hedges, %d won", plain[n/2], hedged[n/2],
			plain[n*95/100], hedged[n*95/100], plain[n*99/100], hedged[n*99/100], sent, won)
		if 2*hedged[n*99/100] > plain[n*99/100] {
			t.Errorf("seed %d: p99 is %v with hedges and %v without, want half of it at most", seed, hedged[n*99/100], plain[n*99/100])
		}
		if sent*20 > int64(n) || sent == 0 {
			t.Errorf("seed %d: %d hedges of %d requests, want some and 5 %% at most", seed, sent, n)
		}
	}
}

// Without After, no request is hedged until 100 latencies are known, and then those of the slowest 5 %.
func TestHedgesLearnWhen(t *testing.T) {
	bubble(t, "1 to 100 ms", func(t *testing.T) {
		script := slices.Repeat([]string{"1 501"}, 60) // failures don't count
		for i := range 100 {
			script = append(script, fmt.Sprint(i+1, " 200"))
		}
		a := newAPI(append(script, "1000 200", "50 200", "1000 200")...)
		h := &retry.Hedge{Share: 0.01} // one hedge
		client := retry.Config{Transport: &throttle.Transport{Base: a}, Hedge: h}.Client()
		for range 161 {
			resp, err := client.Do(request(t, "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			finish(t, resp)
		}
		if at := a.sent(); len(at) != 162 || at[161]-at[160] != 96 {
			t.Errorf("the last of %d requests were sent at %v ms, want a hedge 96 ms after the 161st", len(at), at[160:])
		}
		wantCounts(t, h, 1, 1)
	})
}
