package throttle_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/leaktest"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

const (
	ms   = time.Millisecond
	sec  = time.Second
	hour = time.Hour
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func limiter(t *testing.T, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// exact returns a policy whose requests arrive when they are admitted.
func exact(tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: "api", Tiers: tiers, Guard: throttle.NoGuard}
}

func per(window time.Duration, limit int64, a throttle.Algorithm) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: window, Algorithm: a}
}

func counter(t *testing.T, tiers ...throttle.Tier) *throttletest.Counter {
	t.Helper()
	c, err := throttletest.NewCounter(tiers...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func status(t *testing.T, l *throttle.Limiter) throttle.Status {
	t.Helper()
	s, err := l.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A step is one event at one time. By default a caller arrives and waits; a later step can cancel
// its context by its name.
type step struct {
	at     time.Duration // since the start; in ascending order
	do     string        // "" for a caller, "cancel", "pause", or "allow" or "refuse" for the expected result of Allow
	caller string        // the name of the caller that arrives or is canceled
	n      int64         // requests at once. If zero, 1
	within time.Duration // the caller's timeout from now on. If zero, none
	pause  time.Duration

	end  time.Duration // when the caller returns, since the start
	err  error         // what the caller's error matches
	wait time.Duration // WaitError.Wait of that error
}

// play runs the steps under a policy in virtual time.
func play(t *testing.T, p throttle.Policy, steps []step) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		l, start := limiter(t, p, nil), time.Now()
		cancels := make(map[string]context.CancelFunc)
		var wg sync.WaitGroup
		for i, s := range steps {
			time.Sleep(s.at - time.Since(start))
			synctest.Wait()
			name := fmt.Sprintf("step %d (%s%s at %v)", i, s.do, s.caller, s.at)
			switch n := max(1, s.n); s.do {
			case "cancel":
				cancels[s.caller]()
			case "pause":
				if err := l.Pause(t.Context(), s.pause); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			case "allow", "refuse":
				if got := l.AllowN(n); got != (s.do == "allow") {
					t.Errorf("%s: AllowN(%d) = %v, want %v", name, n, got, !got)
				}
			default:
				ctx, cancel := context.WithCancel(context.Background())
				if s.within > 0 {
					ctx, cancel = context.WithTimeout(context.Background(), s.within)
				}
				cancels[s.caller] = cancel
				defer cancel()
				wg.Go(func() {
					err := l.WaitN(ctx, n)
					if end := time.Since(start); end != s.end || !errors.Is(err, s.err) {
						t.Errorf("%s: got %v at %v, want %v at %v", name, err, end, s.err, s.end)
					}
					var w *throttle.WaitError
					if errors.As(err, &w); w != nil && w.Wait != s.wait {
						t.Errorf("%s: the wait would have been %v, want %v", name, w.Wait, s.wait)
					}
				})
			}
			synctest.Wait()
		}
		wg.Wait()
	})
}

// A randomCaller is one of many callers that arrive at random times.
type randomCaller struct {
	arrives, leaves int64 // µs since the start; at leaves its context is canceled, if it still waits
	cost            int64
	end             int64 // µs since the start when it was admitted, or gone if it was canceled
}

const gone, never = -1, math.MaxInt64

// runCallers runs each caller in a goroutine and records when it is admitted. The callers must
// arrive at different times, in order.
func runCallers(t *testing.T, p throttle.Policy, callers []randomCaller) []randomCaller {
	callers = slices.Clone(callers)
	synctest.Test(t, func(t *testing.T) {
		l, start := limiter(t, p, nil), time.Now()
		since := func() int64 { return time.Since(start).Microseconds() }
		var wg sync.WaitGroup
		for i := range callers {
			c := &callers[i]
			time.Sleep(time.Duration(c.arrives-since()) * time.Microsecond)
			wg.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if c.leaves != never {
					defer time.AfterFunc(time.Duration(c.leaves-since())*time.Microsecond, cancel).Stop()
				}
				switch err := l.WaitN(ctx, c.cost); {
				case err == nil:
					c.end = since()
				case err == context.Canceled && since() == c.leaves:
					c.end = gone
				default:
					t.Errorf("caller %d: WaitN() = %v after %d µs", i, err, since())
				}
			})
			synctest.Wait()
		}
		wg.Wait()
	})
	return callers
}

// referenceRun computes the results that runCallers must have. In its one queue the first caller
// waits until the provider's own counter has room for its cost.
func referenceRun(t *testing.T, p throttle.Policy, callers []randomCaller) []randomCaller {
	callers = slices.Clone(callers)
	provider, start := counter(t, p.Tiers...), bubbleStart.UnixMicro()
	free := int64(0) // when the last caller left the head of the queue
	for i := range callers {
		c := &callers[i]
		head := max(c.arrives, free)
		c.end = gone
		if c.leaves <= head {
			continue // canceled before it was at the head
		}
		cost := map[string]int64{"requests": c.cost}
		at, ok := provider.Earliest(start+head, cost)
		if !ok {
			t.Fatalf("caller %d: the cost exceeds the capacity of the counter", i)
		}
		if free = c.leaves; at-start < c.leaves {
			provider.Arrive(at, cost)
			c.end, free = at-start, at-start
		}
	}
	return callers
}

var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // the start of every synctest bubble

// compareEnds reports the callers whose ends differ between two runs.
func compareEnds(t *testing.T, what string, got, want []randomCaller) {
	t.Helper()
	bad := 0
	for i := range got {
		if got[i].end == want[i].end {
			continue
		}
		if bad++; bad > 5 {
			t.Errorf("%s: further callers differ", what)
			return
		}
		t.Errorf("%s: caller %d is %+v, want end %d", what, i, got[i], want[i].end)
	}
}

// counters are the algorithms that admit exactly to the microsecond.
var counters = []throttle.Algorithm{
	throttle.SlidingLog, throttle.FixedWindow, throttle.AnchoredWindow, throttle.WeightedWindow,
	throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA,
}

// randomCallers returns a policy whose first tier has the algorithm, and callers that arrive about
// twice as fast as it admits. Two thirds of them have a time at which they are canceled.
func randomCallers(r *rand.Rand, a throttle.Algorithm, size int) (throttle.Policy, []randomCaller) {
	limit := 1 + r.Int64N(20)
	window := time.Duration(1_000+r.Int64N(2_000_000)) * time.Microsecond
	p := exact(per(window, limit, a))
	if r.IntN(2) == 0 {
		p.Tiers = append(p.Tiers, per(window*3, limit*2, counters[r.IntN(len(counters))]))
	}
	callers := make([]randomCaller, size)
	pace := window.Microseconds() / limit
	now := int64(0)
	for i := range callers {
		now += 1 + r.Int64N(pace)
		c := randomCaller{arrives: now, leaves: never, cost: 1}
		if r.IntN(3) > 0 {
			c.leaves = now + 1 + r.Int64N(pace*int64(size)/4)
		}
		callers[i] = c
	}
	return p, callers
}

// acquire admits a request and fails the test if that takes time.
func acquire(t *testing.T, l *throttle.Limiter, c throttle.Cost) *throttle.Permit {
	t.Helper()
	start := time.Now()
	p, err := l.Acquire(context.Background(), c)
	if err != nil || time.Since(start) > 0 {
		t.Fatalf("Acquire(%v): %v after %v, want nil at once", c, err, time.Since(start))
	}
	return p
}

// The quotas of a plain store have no forecasts.
type plain struct{ local.Store }

func (s *plain) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return plainQuota{q}, err
}

type plainQuota struct{ store.Quota }

func (plainQuota) Forecast() store.Forecast                    { return nil }
func (plainQuota) Soonest([]int64, int64) (time.Duration, int) { return 0, -1 }

// A countingForecasts store counts the forecasts that are made.
type countingForecasts struct {
	local.Store
	made atomic.Int64
}

type countingForecastsQuota struct {
	store.Quota
	s *countingForecasts
}

func (s *countingForecasts) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return countingForecastsQuota{q, s}, err
}

func (q countingForecastsQuota) Forecast() store.Forecast {
	q.s.made.Add(1)
	return q.Quota.Forecast()
}

func mustNew(t testing.TB, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func used(t testing.TB, l *throttle.Limiter) (used []int64) {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range s.Tiers {
		used = append(used, tier.Used)
	}
	return used
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// stormy makes a request whose caller may give up, and returns how many tokens it spent.
func stormy(t *testing.T, r *rand.Rand, l *throttle.Limiter) (spent int64) {
	short := func() time.Duration { return time.Duration(r.Int64N(int64(time.Second))) }
	time.Sleep(5 * short())
	ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), throttle.Class(r.IntN(3))))
	defer cancel()
	if r.IntN(2) == 0 {
		time.AfterFunc(short(), cancel)
	}
	estimate, actual := r.Int64N(60), r.Int64N(80)
	p, err := l.Acquire(ctx, throttle.Cost{"requests": r.Int64N(2), "tokens": estimate})
	if err != nil {
		return 0
	}
	time.Sleep(short() / 4)
	switch spent = estimate; r.IntN(3) {
	case 0:
		_, spent = p.Cancel(ctx), 0
	case 1:
		_, spent = p.Settle(throttle.Cost{"tokens": actual}), actual
	}
	p.Release()
	_ = p.Settle(throttle.Cost{"tokens": 1}) // too late, as is this:
	_ = p.Cancel(ctx)
	return spent
}

func groupOf(t *testing.T, p throttle.Policy, maxKeys int) *throttle.Group {
	t.Helper()
	g, err := throttle.NewGroup(p, nil, throttle.GroupOptions{MaxKeys: maxKeys})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

const (
	trURL  = "http://provider.test/v1/things"
	trTick = time.Millisecond
)

// A trBase is a RoundTripper that answers as its function says, closes the request's body as it
// must, and records when each request was sent.
type trBase struct {
	start  time.Time
	answer func(n int, r *http.Request) (*http.Response, error) // n counts from 0; if nil, 200 at once

	mu       sync.Mutex // guards all below
	sent     []time.Duration
	requests []*http.Request
}

func trNewBase(answer func(n int, r *http.Request) (*http.Response, error)) *trBase {
	return &trBase{start: time.Now(), answer: answer}
}

func (b *trBase) RoundTrip(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	n := len(b.sent)
	b.sent = append(b.sent, time.Since(b.start))
	b.requests = append(b.requests, r)
	b.mu.Unlock()
	if r.Body != nil {
		r.Body.Close()
	}
	if b.answer == nil {
		return trAnswer(200), nil
	}
	return b.answer(n, r)
}

// times returns when requests were sent, since the start.
func (b *trBase) times() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sent)
}

// trAnswer returns a response with a body and with headers in pairs.
func trAnswer(status int, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("answer"))}
}

func trLimiter(t *testing.T, p throttle.Policy) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func trTier(n int64, window time.Duration) []throttle.Tier {
	return []throttle.Tier{{Limit: n, Window: window}}
}

func trAtOnce(n int64) throttle.Policy {
	return throttle.Policy{Name: "api", Guard: throttle.NoGuard, Tiers: []throttle.Tier{{Limit: n, Algorithm: throttle.Concurrency}}}
}

// trSend sends a GET and reads and closes the body of its response.
func trSend(ctx context.Context, rt http.RoundTripper) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", trURL, nil)
	if err != nil {
		return nil, err
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp, err
}

// trExpect is like trSend and checks the status of the response.
func trExpect(t *testing.T, rt http.RoundTripper, status int) {
	t.Helper()
	resp, err := trSend(t.Context(), rt)
	if err != nil {
		t.Error(err)
	} else if resp.StatusCode != status {
		t.Errorf("status is %d, want %d", resp.StatusCode, status)
	}
}

// A trBody counts how often it is closed.
type trBody struct {
	io.Reader
	closed atomic.Int32
}

func (b *trBody) Close() error {
	b.closed.Add(1)
	return nil
}

// answering returns a base that answers with the texts, and then repeats the last one. A text has a
// status, header lines, and after an empty line a body.
func answering(texts ...string) http.RoundTripper {
	var mu sync.Mutex
	return roundTripper(func(*http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		head, body, _ := strings.Cut(texts[0], "\n\n")
		if len(texts) > 1 {
			texts = texts[1:]
		}
		lines := strings.Split(head, "\n")
		resp := trAnswer(0)
		_, _ = fmt.Sscan(lines[0], &resp.StatusCode)
		resp.Header.Set("Content-Type", "application/json")
		for _, line := range lines[1:] {
			name, value, _ := strings.Cut(line, ": ")
			resp.Header.Set(name, value)
		}
		resp.Body = io.NopCloser(strings.NewReader(body))
		return resp, nil
	})
}

func field(header string, f answers.Format) answers.Field {
	return answers.Field{Header: header, Format: f}
}

var github = &answers.Profile{Quotas: []answers.Quota{{
	Window: time.Hour, Limit: field("X-Limit", answers.Number), Remaining: field("X-Remaining", answers.Number),
	Reset: field("X-Reset", answers.Seconds),
}}}

func estimating(t *testing.T, n int64) *throttle.Limiter {
	t.Helper()
	return mustNew(t, throttle.Policy{Tiers: []throttle.Tier{
		throttle.PerMinute(100), {Limit: n, Window: time.Minute, Unit: "tokens", Algorithm: throttle.TokenBucket, Estimated: true},
	}}, nil)
}

// A length is a Meter that counts bytes.
type length int64

func (n *length) Write(p []byte) (int, error) {
	*n += length(len(p))
	return len(p), nil
}

func (n *length) Cost() throttle.Cost { return throttle.Cost{"tokens": int64(*n)} }

// cents returns a budget of n cents.
func cents(n int64, p throttle.Period) throttle.Tier { return throttle.Budget(n, "cents", p) }

// survive calls f in a goroutine that recovers a panic, as the server of net/http does.
func survive(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		f()
	}()
	<-done
}

// within returns a new Limiter inside another new one, and the outer one.
func within(t *testing.T, inner, outer throttle.Policy) (l, o *throttle.Limiter) {
	t.Helper()
	inner.Name, outer.Name = "inner", "outer"
	o = mustNew(t, outer, nil)
	return mustNew(t, inner, nil).Within(o), o
}

// An admissions records callers in the order of their admission. Callers that are admitted at the
// same time count as in order.
type admissions struct {
	mu   sync.Mutex // guards all below
	list []admission
}

type admission struct {
	at time.Time
	i  int
}

func (a *admissions) add(i int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, admission{time.Now(), i})
}

func (a *admissions) order() (order []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.SortStableFunc(a.list, func(x, y admission) int {
		return cmp.Or(x.at.Compare(y.at), cmp.Compare(x.i, y.i))
	})
	for _, c := range a.list {
		order = append(order, c.i)
	}
	return order
}

var classes = []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}

// A classCaller is one caller of a class.
type classCaller struct {
	class   throttle.Class
	arrives time.Duration // since the start
	leaves  time.Duration // when its context is canceled, if it still waits. If zero, never
	within  time.Duration // its timeout, from its arrival on. If zero, none
	end     time.Duration // when it was admitted, refused or canceled
	err     error
}

// waits returns the sorted waits of the admitted callers of a class.
func waits(callers []classCaller, c throttle.Class) (list []time.Duration) {
	for _, g := range callers {
		if g.class == c && g.err == nil {
			list = append(list, g.end-g.arrives)
		}
	}
	slices.Sort(list)
	return list
}

// away is a store that does not answer.
type away struct {
	local.Store
	fallback int
}

type awayQuota struct {
	store.Quota
	fallback int
}

func (s *away) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return awayQuota{q, s.fallback}, err
}

func (q awayQuota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	if q.fallback > 0 {
		return q.Quota.TryAcquire(ctx, r)
	}
	return store.Decision{}, store.ErrUnavailable
}

func (q awayQuota) Status(context.Context) (store.Status, error) {
	return store.Status{Shared: "Redis", Fallback: q.fallback}, store.ErrUnavailable
}

// banned returns a Limiter that its provider has banned for two hours.
func banned(t *testing.T) *throttle.Limiter {
	l := mustNew(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	_, _ = trSend(t.Context(), &throttle.Transport{Limiter: l, Base: answering("429\nRetry-After: 7200")})
	return l
}

// A path is the network between a client and a provider. It makes a connection in dial, reports it
// as net/http does, and delays requests and answers by the provider's Delay and Hold.
type path struct {
	api    *throttletest.Provider
	dial   time.Duration // if zero, no connection is reported
	reused bool          // the connection exists already

	upload func() time.Duration // how long the body takes to be written; nil for no time
	conn   net.Conn             // reported to the trace; may be nil
}

func (p path) RoundTrip(req *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil && p.dial > 0 {
		if !p.reused {
			time.Sleep(p.dial)
		}
		trace.GotConn(httptrace.GotConnInfo{Conn: p.conn, Reused: p.reused})
		if p.upload != nil {
			trace.WroteHeaders()
			time.Sleep(p.upload())
			if trace.WroteRequest != nil {
				trace.WroteRequest(httptrace.WroteRequestInfo{})
			}
		}
	}
	return p.api.RoundTrip(req)
}

// saturate sends requests with some workers for a length of time.
func saturate(t *testing.T, policy throttle.Policy, base http.RoundTripper, workers int, length time.Duration) {
	lim, err := throttle.New(policy, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &throttle.Transport{Base: base, Limiter: lim}}
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for ; workers > 0; workers-- {
		wg.Go(func() {
			for time.Now().Before(end) {
				resp, err := client.Get("http://api.test/")
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
}

// outcome returns how many requests the API has refused and accepted.
func outcome(api *throttletest.Provider) (refused, accepted float64) {
	s := api.Summary()
	return float64(s.Refused), float64(s.Accepted)
}

func uniform(from, to time.Duration) func() time.Duration {
	return func() time.Duration { return from + rand.N(to-from) }
}

// groupTiers returns the tiers of a random policy.
func groupTiers(r *rand.Rand) []throttle.Tier {
	kinds := []throttle.Algorithm{
		throttle.SlidingLog, throttle.SlidingWindow, throttle.WeightedWindow, throttle.FixedWindow, throttle.AnchoredWindow,
		throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA, throttle.Concurrency, throttle.Calendar,
	}
	tiers := make([]throttle.Tier, 1+r.IntN(3))
	for i := range tiers {
		t := throttle.Tier{Limit: 1 + r.Int64N(12), Algorithm: kinds[r.IntN(len(kinds))]}
		switch t.Algorithm {
		case throttle.Concurrency:
		case throttle.Calendar:
			t.Period, t.Budget = throttle.Day, r.IntN(3) == 0
		default:
			t.Window = []time.Duration{time.Duration(1+r.IntN(3000)) * time.Millisecond, time.Minute, time.Hour, 30 * time.Hour}[r.IntN(4)]
			if t.Algorithm == throttle.FixedWindow && r.IntN(3) == 0 {
				t.Phase = throttle.UnknownPhase
			}
			if t.Algorithm == throttle.GCRA && r.IntN(3) == 0 {
				t.Burst = 1 + r.Int64N(5)
			}
			if r.IntN(6) == 0 {
				t.PaceBurst = 1 + r.Int64N(t.Limit)
			}
		}
		if i > 0 && r.IntN(3) == 0 {
			t.Unit, t.Estimated = "tokens", t.Algorithm != throttle.Concurrency && r.IntN(2) == 0
		}
		tiers[i] = t
	}
	return tiers
}

const fast = time.Hour

// full are policies under which a request has to wait for minutes or longer, or is not admitted at all,
// once the quota is used up.
func full() map[string]throttle.Policy {
	counters := []throttle.Tier{
		{Limit: 1000, Window: time.Hour, Algorithm: throttle.SlidingLog},
		{Limit: 1000, Window: time.Hour, Algorithm: throttle.SlidingWindow},
		{Limit: 1000, Window: time.Hour, Algorithm: throttle.WeightedWindow},
		{Limit: 1000, Window: 3 * time.Hour, Algorithm: throttle.FixedWindow},
		{Limit: 1000, Window: time.Hour, Algorithm: throttle.AnchoredWindow},
		{Limit: 1000, Window: time.Hour * 1000, Algorithm: throttle.TokenBucket},
		{Limit: 1000, Window: time.Hour * 1000, Algorithm: throttle.LeakyBucket},
		{Limit: 1000, Window: time.Hour * 1000, Algorithm: throttle.GCRA},
		{Limit: 1000, Algorithm: throttle.Calendar, Period: throttle.Month},
		{Limit: 1000, Algorithm: throttle.Concurrency},
	}
	var many []throttle.Tier
	for i := range 20 {
		many = append(many, throttle.Tier{Limit: 1000, Window: time.Duration(i+1) * time.Hour})
	}
	return map[string]throttle.Policy{
		"a log":       {Tiers: []throttle.Tier{throttle.PerHour(10_000)}},
		"ten":         {Tiers: counters},
		"many tiers":  {Tiers: many},
		"a long burn": {Tiers: []throttle.Tier{{Limit: 1, Window: time.Hour, Algorithm: throttle.GCRA, Burst: 100}}},
		"a budget":    {Tiers: []throttle.Tier{throttle.PerHour(10_000), throttle.Budget(1000, "", throttle.Month)}},
	}
}

// reports returns an Observer that keeps the last report, and the reports' place.
func reports() (*throttle.Observer, **throttle.RefusalReport) {
	last := new(*throttle.RefusalReport)
	return &throttle.Observer{Answered: func(_ context.Context, i throttle.AnsweredInfo) { *last = i.Report }}, last
}

// A farStore keeps one quota that is a round trip away and reserves ahead, as a shared store does,
// with only a ledger.
type farStore struct {
	trip    time.Duration // one round trip
	horizon time.Duration // how far ahead times are reserved for callers behind the first one
	most    int           // the highest number of requests per call
	lead    time.Duration // how long before a reserved time the next call may be made

	mu       sync.Mutex // guards all below
	plan     *algorithms.Plan
	ledger   algorithms.Ledger
	last     int64 // the time of the last reservation, µs since dayOne
	until    int64 // the end of a pause, µs since dayOne
	shut     bool
	away     error // the error of every call; nil if there is none
	full     bool  // only a release makes room
	calls    int
	returned []store.Decision
	watchers map[*func(store.Change, time.Duration)]struct{}
}

func far(trip time.Duration) *farStore {
	return &farStore{trip: trip, horizon: 500 * ms, most: 64, lead: ms + 2*trip, watchers: make(map[*func(store.Change, time.Duration)]struct{})}
}

func (s *farStore) Open(_ string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	s.plan, s.ledger = plan, plan.NewLedger()
	idle, err := local.New().Open("", plan, nil)
	return &farQuota{Quota: idle, s: s}, err
}

type farQuota struct {
	store.Quota
	s *farStore
}

var dayOne = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // the start of every synctest bubble

func (q *farQuota) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	go func() {
		sent := time.Now()
		time.Sleep(q.s.trip / 2)
		now := time.Now()
		got, err := q.s.reserve(sent, now, requests)
		time.Sleep(q.s.trip / 2)
		for i, b := range got {
			if b.Reservation != nil { // the time is relative to the server's, and the reply took time
				got[i].Reservation.Start = b.Reservation.Start.Add(time.Since(now))
			}
		}
		done(got, err)
	}()
}

func (s *farStore) reserve(sent, now time.Time, requests []store.Request) (got []store.Decision, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.away != nil {
		return nil, s.away
	}
	m := algorithms.Moment{At: now.Sub(dayOne).Microseconds(), Wall: now.UnixMicro()}
	first := true
	for _, r := range requests[:min(s.most, len(requests))] {
		if s.shut && s.until > m.At {
			got = append(got, store.Decision{Verdict: store.Closed, Tier: -1, Wait: m.Until(s.until)})
			continue
		}
		at, tier := s.ledger.Earliest(m.Later(max(s.until, s.last)), algorithms.Request{Cost: r.Cost})
		b := store.Decision{Tier: tier, Wait: m.Until(at)}
		switch {
		case s.full:
			b.Wait = 500 * ms // a store that may miss the release says when to ask again
			return append(got, b), nil
		case b.Wait > r.MaxWait:
			b.Verdict = store.Late
		case !first && b.Wait > s.horizon:
			return append(got, b), nil
		default:
			first, s.last = false, at
			s.ledger.Charge(m.Later(at), algorithms.Request{Cost: r.Cost})
			start := now.Add(b.Wait)
			b.Verdict = store.Admitted
			b.Reservation = &store.Reservation{Start: start, End: sent.Add(b.Wait + 50*ms), Again: start.Add(-s.lead), At: at, Cost: r.Cost}
		}
		got = append(got, b)
	}
	return got, nil
}

func (q *farQuota) Cancel(reservations []store.Decision) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.s.returned = append(q.s.returned, reservations...)
}

func (*farQuota) Leave() {}

func (q *farQuota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.s.watchers[&changed] = struct{}{}
	return func() {
		q.s.mu.Lock()
		defer q.s.mu.Unlock()
		delete(q.s.watchers, &changed)
	}
}

func (s *farStore) tell(c store.Change, left time.Duration) {
	s.mu.Lock()
	if c != store.Freed && c != store.Lost {
		s.until, s.shut = time.Now().Add(left).Sub(dayOne).Microseconds(), c == store.Shut
	}
	var tell []func(store.Change, time.Duration)
	for w := range s.watchers {
		tell = append(tell, *w)
	}
	s.mu.Unlock()
	for _, w := range tell {
		w(c, left)
	}
}

// An arrival is one caller at a far store, and how it ended.
type arrival struct {
	at     time.Duration
	n      int64         // units
	within time.Duration // its timeout; zero for none
	cancel time.Duration // when its context is canceled; zero for never
	class  throttle.Class
	ended  time.Duration
	err    error
}

// arrive runs the callers. It fills in their ends and returns the order in which they were
// admitted.
func arrive(t *testing.T, l *throttle.Limiter, callers []arrival) (order []int) {
	t.Helper()
	start := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range callers {
		c := &callers[i]
		wg.Go(func() {
			time.Sleep(c.at + time.Duration(i)) // in order
			ctx := throttle.WithClass(context.Background(), c.class)
			if c.within > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.within)
				defer cancel()
			}
			if c.cancel > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				time.AfterFunc(c.cancel-c.at, cancel)
			}
			c.err = l.WaitN(ctx, max(1, c.n))
			mu.Lock()
			defer mu.Unlock()
			c.ended = time.Since(start).Truncate(ms)
			if c.err == nil {
				order = append(order, i)
			}
		})
	}
	wg.Wait()
	return order
}

func ends(callers []arrival) (ended []time.Duration) {
	for _, c := range callers {
		ended = append(ended, c.ended)
	}
	return ended
}

// steady returns a policy that admits one unit every 100 ms, without a burst.
func steady() throttle.Policy {
	return throttle.Policy{Name: "steady", Tiers: []throttle.Tier{{Limit: 10, Window: sec, Algorithm: throttle.GCRA, Burst: 1}}, Guard: throttle.NoGuard}
}

func (q *farQuota) Trip(context.Context) time.Duration { return q.s.trip }

func (q *farQuota) IsVoid(store.Decision) bool { return false }

const signedHeader = "X-Signed-Until"

// signed returns a request that was signed now.
func signed(valid time.Duration) *http.Request {
	r, _ := http.NewRequest("POST", trURL, nil)
	r.Header.Set(signedHeader, time.Now().Add(valid).Format(time.RFC3339Nano))
	return r
}

// A served provider answers over pipes that a net/http Transport dials.
type served struct {
	dialing, answering time.Duration

	mu    sync.Mutex
	reads []time.Time // when each request was read
}

func (s *served) transport() *http.Transport {
	return &http.Transport{MaxConnsPerHost: 1, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		select {
		case <-time.After(s.dialing):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		client, server := net.Pipe()
		go s.serve(server)
		return client, nil
	}}
}

func (s *served) serve(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		s.mu.Lock()
		s.reads = append(s.reads, time.Now())
		s.mu.Unlock()
		time.Sleep(s.answering)
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
			return
		}
	}
}

func (s *served) read() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reads)
}

// api returns a policy with the tiers.
func api(tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: "api", Tiers: tiers}
}

// A told is what an Observer receives about a request's admission.
type told struct {
	waited time.Duration
	tier   string
	err    string // the reason of a refusal; empty if the request was admitted
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func release(p *throttle.Permit, err error) error {
	p.Release()
	return err
}

// callers admits requests with as many callers each until the context ends, and returns how many.
func callers(ctx context.Context, n int, limiters ...*throttle.Limiter) []int {
	admitted := make([]int, len(limiters))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, l := range limiters {
		for range n {
			wg.Go(func() {
				for l.Wait(ctx) == nil {
					mu.Lock()
					admitted[i]++
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	return admitted
}

// refuse makes a call that is refused as late at once.
func refuse(t *testing.T, l *throttle.Limiter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), ms)
	defer cancel()
	began := time.Now()
	if err := l.Wait(ctx); !errors.Is(err, throttle.ErrDeadline) || time.Since(began) > 0 {
		t.Errorf("%v after %v, want ErrDeadline at once", err, time.Since(began))
	}
}

// stormPolicies returns policies with different units and numbers of tiers.
func stormPolicies(name string, guard time.Duration) []throttle.Policy {
	const window = 20 * ms
	requests := throttle.Tier{Limit: 40, Window: window}
	tokens := throttle.Tier{Limit: 200, Window: window, Unit: "tokens", Estimated: true, Algorithm: throttle.TokenBucket, Burst: 200}
	open := throttle.Tier{Limit: 8, Algorithm: throttle.Concurrency}
	jobs := throttle.Tier{Limit: 50, Window: window, Unit: "jobs", Algorithm: throttle.SlidingWindow}
	of := func(tiers ...throttle.Tier) throttle.Policy {
		return throttle.Policy{Name: name, Tiers: tiers, Guard: guard, Headroom: 20, MaxPause: time.Second}
	}
	return []throttle.Policy{of(requests), of(requests, tokens), of(jobs, requests, open), of(tokens, requests, jobs), of(open, requests)}
}

// stormCall calls a random method of a Limiter, with a timeout of at most 3 ms.
func stormCall(t *testing.T, r *rand.Rand, l *throttle.Limiter, base http.RoundTripper) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(3000))*time.Microsecond)
	defer cancel()
	ctx = throttle.WithClass(ctx, []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}[r.IntN(3)])
	cost := []throttle.Cost{nil, {"requests": 2}, {"tokens": int64(r.IntN(50))}, {"jobs": 1, "requests": 0}}[r.IntN(4)]
	switch r.IntN(8) {
	case 0:
		l.AllowN(int64(r.IntN(3)))
	case 1:
		_ = l.Wait(ctx)
	case 2:
		_ = l.WaitN(ctx, int64(r.IntN(4)))
	case 3:
		_, _ = l.Forecast(ctx, cost)
		_, _ = l.Status(ctx)
	case 4:
		p, _ := l.TryAcquire(ctx, cost)
		endPermit(r, p)
	case 5, 6:
		p, _ := l.Acquire(ctx, cost)
		endPermit(r, p)
	default:
		tr := &throttle.Transport{Limiter: l, Base: base, Cost: func(*http.Request) throttle.Cost { return cost }}
		if r.IntN(2) == 0 {
			tr.SendBy = func(*http.Request) time.Time { return time.Now().Add(time.Duration(r.IntN(4)) * ms) }
		}
		req, err := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
		if err != nil {
			t.Error(err)
		}
		if resp, err := tr.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}
}

// endPermit ends a permit with random methods, from two goroutines.
func endPermit(r *rand.Rand, p *throttle.Permit) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer p.Release()
	for range 2 {
		method := r.IntN(5)
		wg.Go(func() {
			switch method {
			case 0:
				_ = p.Cancel(context.Background())
			case 1:
				p.Arrived()
			case 2:
				_ = p.Settle(throttle.Cost{"tokens": 7})
			case 3:
				p.Release()
			}
		})
	}
}
