package distributed_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/throttletest"
)

// A nestedLaw is two nested quotas of any tiers, and what a request takes of them.
type nestedLaw struct {
	inner, outer []throttle.Tier
	tokens       int64 // that a request is estimated to cost; it costs some part of them
	takes        time.Duration
}

var (
	atOnce  = func(n int64) throttle.Tier { return throttle.Tier{Limit: n, Algorithm: throttle.Concurrency} }
	guessed = func(n int64) throttle.Tier {
		return throttle.Tier{Limit: n, Window: sec, Unit: "tokens", Algorithm: throttle.SlidingLog, Estimated: true}
	}
	daily = func(n int64) throttle.Tier {
		return throttle.Tier{Limit: n, Algorithm: throttle.Calendar, Period: throttle.Day}
	}
	aSecond    = func(n int64) throttle.Tier { return per(sec, n, throttle.SlidingLog) }
	nestedLaws = map[string]nestedLaw{
		"concurrency inside":        {inner: []throttle.Tier{atOnce(4)}, outer: []throttle.Tier{aSecond(100)}, takes: 100 * ms},
		"concurrency outside":       {inner: []throttle.Tier{aSecond(100)}, outer: []throttle.Tier{atOnce(4)}, takes: 100 * ms},
		"concurrency in both":       {inner: []throttle.Tier{atOnce(4)}, outer: []throttle.Tier{atOnce(5)}, takes: 100 * ms},
		"equal concurrency in both": {inner: []throttle.Tier{atOnce(4)}, outer: []throttle.Tier{atOnce(4)}, takes: 100 * ms},
		"estimates in both":         {inner: []throttle.Tier{guessed(1000)}, outer: []throttle.Tier{guessed(1200), aSecond(100)}, tokens: 40, takes: 100 * ms},
		"budget outside":            {inner: []throttle.Tier{aSecond(40)}, outer: []throttle.Tier{throttle.Budget(100_000, "", throttle.Day), aSecond(50)}, takes: 20 * ms},
		"calendar outside":          {inner: []throttle.Tier{aSecond(40)}, outer: []throttle.Tier{daily(100_000), aSecond(50)}, takes: 20 * ms},
		"all": {
			inner:  []throttle.Tier{atOnce(6), guessed(1500), aSecond(60)},
			outer:  []throttle.Tier{atOnce(5), guessed(1200), daily(100_000), throttle.Budget(90_000, "", throttle.Week), aSecond(50)},
			tokens: 40, takes: 100 * ms,
		},
	}
)

// A judge counts requests as the provider of a quota does: it shares nothing with the script.
type judge struct {
	tiers []throttle.Tier
	most  []int64 // by tier, the most that was in flight
	open  map[string]int64
	sent  []arrival
}

type arrival struct {
	at   time.Time
	cost map[string]int64
}

func (j *judge) begin(cost throttle.Cost) {
	if j.most == nil {
		j.most, j.open = make([]int64, len(j.tiers)), make(map[string]int64)
	}
	for u, n := range cost {
		j.open[u] += n
	}
	for i, t := range j.tiers {
		if t.Algorithm == throttle.Concurrency {
			j.most[i] = max(j.most[i], j.open["requests"])
		}
	}
}

func (j *judge) end(cost throttle.Cost) {
	for u, n := range cost {
		j.open[u] -= n
	}
}

// check checks that the provider refuses none, and that no more than the limit was open at once.
func (j *judge) check(t *testing.T) {
	t.Helper()
	slices.SortFunc(j.sent, func(a, b arrival) int { return a.at.Compare(b.at) })
	for i, tier := range j.tiers {
		if tier.Algorithm == throttle.Concurrency {
			if j.most[i] > tier.Limit {
				t.Errorf("%v: %d were open at once", tier, j.most[i])
			}
			continue
		}
		tier.Estimated, tier.Budget = false, false
		counter, err := throttletest.NewCounter(tier)
		if err != nil {
			t.Fatal(err)
		}
		for k, a := range j.sent {
			if !counter.Arrive(a.at.UnixMicro(), a.cost) {
				t.Errorf("%v refuses request %d of %d", tier, k, len(j.sent))
				break
			}
		}
	}
}

// A nestedRun is processes with callers under a nestedLaw.
type nestedRun struct {
	nestedLaw
	t       *testing.T
	server  *miniredis.Miniredis
	calls   *opCalls
	mu      sync.Mutex // guards all below
	inside  judge
	outside judge
	sent    []int // by process
	errs    []error
}

// opCalls counts the calls of the script by operation.
type opCalls struct {
	mu  sync.Mutex
	ops map[string]int
}

// counts returns the calls so far by operation.
func (c *opCalls) counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.ops)
}

func (*opCalls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *opCalls) note(cmd redis.Cmder) {
	args := cmd.Args()
	if len(args) < 4 || args[0] != "fcall" && args[0] != "evalsha" && args[0] != "eval" {
		return
	}
	if n, ok := args[2].(int); ok && len(args) > 3+n {
		if op, ok := args[3+n].(string); ok {
			c.mu.Lock()
			c.ops[op]++
			c.mu.Unlock()
		}
	}
}

func (c *opCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.note(cmd)
		return next(ctx, cmd)
	}
}

func (c *opCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.note(cmd)
		}
		return next(ctx, cmds)
	}
}

// start starts a process with callers, which run until the context ends.
func (r *nestedRun) start(ctx context.Context, callers int, all *sync.WaitGroup) (rdb *redis.Client) {
	rdb = distant(r.t, r.server, func() time.Duration { return ms / 2 })
	rdb.AddHook(r.calls)
	redis := distributed.New(rdb, distributed.Options{})
	open := func(name string, tiers []throttle.Tier) *throttle.Limiter {
		return limiter(r.t, throttle.Policy{Name: name, Tiers: tiers, Guard: 50 * ms}, redis)
	}
	l := open("inner", r.inner).Within(open("outer", r.outer))
	r.mu.Lock()
	p := len(r.sent)
	r.sent = append(r.sent, 0)
	r.mu.Unlock()
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := r.send(ctx, l, p); err != nil && ctx.Err() == nil {
					r.mu.Lock()
					r.errs = append(r.errs, err)
					r.mu.Unlock()
					return
				}
			}
		})
	}
	return rdb
}

// send sends one request.
func (r *nestedRun) send(ctx context.Context, l *throttle.Limiter, p int) error {
	cost := throttle.Cost{"requests": 1}
	if r.tokens > 0 {
		cost["tokens"] = r.tokens
	}
	permit, err := l.Acquire(ctx, cost)
	if err != nil {
		return err
	}
	actual := throttle.Cost{"requests": 1}
	r.mu.Lock()
	r.sent[p]++
	if r.tokens > 0 {
		actual["tokens"] = 1 + rand.Int64N(r.tokens)
	}
	arrived := arrival{time.Now().Add(rand.N(min(r.takes/2, 50*ms))), actual}
	for _, j := range []*judge{&r.inside, &r.outside} {
		j.begin(cost)
		j.sent = append(j.sent, arrived)
	}
	r.mu.Unlock()
	time.Sleep(r.takes/2 + rand.N(r.takes))
	r.mu.Lock()
	r.inside.end(cost)
	r.outside.end(cost)
	r.mu.Unlock()
	permit.Arrived()
	if r.tokens > 0 {
		if err := permit.Settle(throttle.Cost{"tokens": actual["tokens"]}); err != nil {
			return err
		}
	}
	permit.Release()
	return nil
}

func (n nestedLaw) run(t *testing.T, play func(r *nestedRun)) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		r := &nestedRun{nestedLaw: n, t: t, server: s, calls: &opCalls{ops: make(map[string]int)}, inside: judge{tiers: n.inner}, outside: judge{tiers: n.outer}}
		play(r)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.inside.check(t)
		r.outside.check(t)
		for _, err := range r.errs {
			t.Error(err)
		}
	})
}

// all returns how many requests were sent.
func (r *nestedRun) all() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sent := range r.sent {
		n += sent
	}
	return n
}

// TestNestedLaws checks, for nested quotas of any tiers on one server, that one call charges all of
// them, that their providers refuse nothing, and that processes get equal shares.
func TestNestedLaws(t *testing.T) {
	t.Parallel()
	for name, n := range nestedLaws {
		for _, processes := range []int{3, 10} {
			t.Run(fmt.Sprintf("%s, %d processes", name, processes), func(t *testing.T) {
				soak.Sample(t, 16)
				t.Parallel()
				most := 1.1 // calls an admission
				if name == "all" {
					most = 2.1 // as of one quota with all of these tiers: a place and a time are found one after the other
				}
				n.run(t, func(r *nestedRun) {
					ctx, stop := context.WithCancel(r.t.Context())
					time.AfterFunc(time.Duration(15+2*processes)*sec, stop)
					var all sync.WaitGroup
					for range processes {
						r.start(ctx, 24/processes+2, &all)
					}
					all.Wait()
					r.t.Logf("sent %v, calls %v", r.sent, r.calls.counts())
					each := float64(r.all()) / float64(processes)
					within := 0.1
					if name == "estimates in both" { // a process takes all that a settlement makes room for
						within = 0.4
					}
					if float64(slices.Min(r.sent)) < (1-within)*each || float64(slices.Max(r.sent)) > (1+within)*each {
						r.t.Errorf("processes sent %v, want equal shares", r.sent)
					}
					asked := 0
					for op, calls := range r.calls.counts() {
						if op != "lease" && op != "bundle" && calls > 10+2*processes {
							r.t.Errorf("%d calls of %s, want only bundles", calls, op)
						}
						if op != "lease" {
							asked += calls
						}
					}
					if got := float64(asked) / float64(r.all()); got > most {
						r.t.Errorf("%.2f calls an admission", got)
					}
				})
			})
		}
	}
}

// during returns how many requests processes send in some time, and then cancels their callers.
func (r *nestedRun) during(processes int, length time.Duration) (n int) {
	before := r.all()
	ctx, stop := context.WithCancel(r.t.Context())
	var all sync.WaitGroup
	for range processes {
		r.start(ctx, 8, &all)
	}
	time.Sleep(length)
	stop()
	all.Wait()
	return r.all() - before
}

// TestNestedQuiet checks that two seconds after all callers were canceled nested quotas admit as many
// requests as if they had never come.
func TestNestedQuiet(t *testing.T) {
	t.Parallel()
	for name, n := range nestedLaws {
		t.Run(name, func(t *testing.T) {
			soak.Sample(t, 4)
			t.Parallel()
			want, got := math.MaxInt, 0
			isLess := func() bool { return float64(got) < 0.9*float64(want) }
			for i := 0; i < 4 && isLess(); i++ { // estimates that cost random parts admit more or less, with a crowd and without
				n.run(t, func(r *nestedRun) { want = min(want, r.during(2, 4*sec)) })
				n.run(t, func(r *nestedRun) {
					r.during(5, 3*sec)
					time.Sleep(2 * sec)
					got = max(got, r.during(2, 4*sec))
				})
			}
			if isLess() {
				t.Errorf("%d are sent after a crowd, want %d as without it", got, want)
			}
		})
	}
}

// TestNestedKill checks that a process that was killed costs the others only what it held, until its
// lease ends.
func TestNestedKill(t *testing.T) {
	t.Parallel()
	for name, n := range nestedLaws {
		t.Run(name, func(t *testing.T) {
			soak.Sample(t, 4)
			t.Parallel()
			var want int
			n.run(t, func(r *nestedRun) { want = r.during(2, 8*sec) })
			n.run(t, func(r *nestedRun) {
				ctx, stop := context.WithCancel(r.t.Context())
				var all, killed sync.WaitGroup
				for range 2 {
					r.start(ctx, 8, &all)
				}
				dies, kill := context.WithCancel(ctx)
				rdb := r.start(dies, 8, &killed)
				time.Sleep(3 * sec)
				rdb.Close()
				kill()
				killed.Wait()
				time.Sleep(12 * sec)
				before := r.all()
				time.Sleep(8 * sec)
				if got := r.all() - before; float64(got) < 0.9*float64(want)-40 { // a window of one more or less
					r.t.Errorf("%d are sent by the other two, want %d as without the third", got, want)
				}
				stop()
				all.Wait()
			})
		})
	}
}

// TestNestedRefusals checks that a request that a budget or a deadline refuses is charged in no quota.
func TestNestedRefusals(t *testing.T) {
	for name, n := range map[string]struct {
		inner, outer []throttle.Tier
		want         error
	}{
		"budget outside":   {[]throttle.Tier{aSecond(100), atOnce(100)}, []throttle.Tier{throttle.Budget(5, "", throttle.Day), atOnce(50)}, throttle.ErrExhausted},
		"budget inside":    {[]throttle.Tier{throttle.Budget(5, "", throttle.Day), atOnce(50)}, []throttle.Tier{aSecond(100), atOnce(100)}, throttle.ErrExhausted},
		"late outside":     {[]throttle.Tier{aSecond(100), atOnce(100)}, []throttle.Tier{per(time.Minute, 5, throttle.SlidingLog), atOnce(50)}, throttle.ErrDeadline},
		"late inside":      {[]throttle.Tier{per(time.Minute, 5, throttle.SlidingLog), atOnce(50)}, []throttle.Tier{aSecond(100), atOnce(100)}, throttle.ErrDeadline},
		"no place outside": {[]throttle.Tier{aSecond(100), atOnce(100)}, []throttle.Tier{atOnce(5)}, context.DeadlineExceeded},
		"no place inside":  {[]throttle.Tier{atOnce(5)}, []throttle.Tier{aSecond(100), atOnce(100)}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				redis := distributed.New(near(t, s), distributed.Options{})
				l := limiter(t, throttle.Policy{Name: "inner", Tiers: append(n.inner, everything), Guard: 50 * ms}, redis).
					Within(limiter(t, throttle.Policy{Name: "outer", Tiers: append(n.outer, everything), Guard: 50 * ms}, redis))
				for range 5 {
					if _, err := l.Acquire(t.Context(), nil); err != nil {
						t.Fatal(err)
					}
				}
				for range 3 {
					ctx, cancel := context.WithTimeout(t.Context(), 2*sec)
					_, err := l.Acquire(ctx, nil)
					if cancel(); !errors.Is(err, n.want) {
						t.Errorf("got %v, want %v", err, n.want)
					}
				}
				time.Sleep(sec)
				status, err := l.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, tier := range status.Tiers {
					if (tier.Tier.Algorithm == throttle.Concurrency || tier.Limit == everything.Limit) && tier.Used != 5 {
						t.Errorf("%v: %d are charged, want 5", tier.Tier, tier.Used)
					}
				}
			})
		})
	}
}

// losing loses the replies to some calls of several quotas, which the server has run.
type losing struct {
	opCalls
	left int
}

func (l *losing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if l.left > 0 && err == nil && isBundle(cmd) && slices.Contains(cmd.Args(), any("bundle")) {
			l.left--
			cmd.SetErr(errors.New("the reply is lost"))
			return cmd.Err()
		}
		return err
	}
}

// TestNestedLostReply checks that places whose grant was lost are free again with the next call, in
// all quotas.
func TestNestedLostReply(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		rdb := near(t, s)
		hook := &losing{opCalls: opCalls{ops: make(map[string]int)}, left: 3}
		rdb.AddHook(hook)
		redis := distributed.New(rdb, distributed.Options{})
		l := limiter(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{atOnce(2)}}, redis).
			Within(limiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{atOnce(3), guessed(100)}}, redis))
		p, err := l.Acquire(t.Context(), throttle.Cost{"requests": 1, "tokens": 60})
		if err != nil {
			t.Fatal(err)
		}
		if hook.left > 0 {
			t.Fatal("no reply was lost")
		}
		status, err := l.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []int64{1, 1, 60} {
			if got := status.Tiers[i].Used; got != want {
				t.Errorf("%v: %d are charged, want %d", status.Tiers[i].Tier, got, want)
			}
		}
		p.Release()
	})
}

// TestServerNested checks on a real server that one call charges nested quotas of all kinds of tiers,
// and that no more than the limits are open at once.
func TestServerNested(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	n := nestedLaw{ // all rates are so high that a slow machine does not wait for them
		inner:  []throttle.Tier{atOnce(6), guessed(100_000), aSecond(1000)},
		outer:  []throttle.Tier{atOnce(5), guessed(100_000), daily(100_000), throttle.Budget(90_000, "", throttle.Week), aSecond(1000)},
		tokens: 40, takes: 10 * ms,
	}
	r := &nestedRun{nestedLaw: n, t: t, calls: &opCalls{ops: make(map[string]int)}, inside: judge{tiers: n.inner}, outside: judge{tiers: n.outer}}
	var all sync.WaitGroup
	for p := range 3 {
		rdb := server.PatientClient()
		rdb.AddHook(r.calls)
		redis := distributed.New(rdb, distributed.Options{Timeout: slow})
		open := func(name string, tiers []throttle.Tier) *throttle.Limiter {
			return limiter(t, throttle.Policy{Name: name, Tiers: tiers, Guard: slow}, redis)
		}
		l := open("inner", n.inner).Within(open("outer", n.outer))
		r.sent = append(r.sent, 0)
		for range 4 {
			all.Go(func() {
				for range 5 {
					if err := r.send(t.Context(), l, p); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	r.inside.check(t)
	r.outside.check(t)
	if r.all() != 60 || r.calls.counts()["bundle"] == 0 || r.calls.counts()["reserve"]+r.calls.counts()["budget"] > 0 {
		t.Errorf("sent %v with calls %v, want 60 with bundles alone", r.sent, r.calls.counts())
	}
}

// answering answers every request with an empty object.
type answering struct{}

func (answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

// TestPresetsShareASlot checks that the scopes of a preset have the name of the outermost one as their
// tag, so that one call charges them on a Cluster, too.
func TestPresetsShareASlot(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		rdb := near(t, s)
		calls := &opCalls{ops: make(map[string]int)}
		rdb.AddHook(calls)
		p := providers.Discord()
		transport, err := p.Transport(distributed.New(rdb, distributed.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = answering{}
		resp, err := (&http.Client{Transport: transport}).Get("http://discord.com/api/v10/channels/1/messages")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		outermost := ""
		for _, key := range s.Keys() {
			if !strings.Contains(key, "{") {
				outermost = key
			}
		}
		for _, key := range s.Keys() {
			if key != outermost && !strings.Contains(key, "{"+outermost+"}") {
				t.Errorf("key %s is not in the slot of %s", key, outermost)
			}
		}
		if len(s.Keys()) < 2 || calls.counts()["bundle"] == 0 {
			t.Errorf("got keys %v and calls %v, want nested quotas in one call", s.Keys(), calls.counts())
		}
	})
}

// TestNestedFallback checks that nested quotas with a Fallback are charged in one call while Redis is
// there, and go on without it while it is away.
func TestNestedFallback(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		reply := breakable(s)
		rdb := near(t, s)
		calls := &opCalls{ops: make(map[string]int)}
		rdb.AddHook(calls)
		redis := distributed.New(rdb, distributed.Options{Fallback: distributed.Fallback{Workers: 1}})
		l := limiter(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{per(time.Minute, 100, throttle.SlidingLog)}}, redis).
			Within(limiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{per(time.Minute, 50, throttle.SlidingLog)}}, redis))
		wait := func(times int) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 10*sec)
			defer cancel()
			for range times {
				if err := l.Wait(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		wait(5)
		if calls.counts()["bundle"] < 5 || calls.counts()["reserve"] > 0 {
			t.Errorf("calls %v, want bundles alone", calls.counts())
		}
		reply(loading)
		wait(5)
		reply("")
		time.Sleep(20 * sec)
		before := calls.counts()["bundle"]
		wait(5)
		if calls.counts()["bundle"] < before+5 {
			t.Errorf("calls %v, want bundles again", calls.counts())
		}
		status, err := l.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, tier := range status.Tiers {
			if tier.Used != 15 {
				t.Errorf("%v: %d are charged, want 15", tier.Tier, tier.Used)
			}
		}
	})
}
