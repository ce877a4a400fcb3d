package distributed_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/soak"
)

// The tests here play 24 hours of virtual time in which something breaks every ten minutes. The
// stand-in of the provider counts by itself, and excuses a refusal only by a fault for which
// docs/faults.md allows it.

const (
	dayLength  = 24 * hour
	dayQuiet   = 2 * hour // without faults, at the end: the window of an hour needs the first half to forget
	dayCallers = 16       // of all processes
	dayResumes = 8 * sec  // after a fault, the longest time until the limits are used in full again
)

// A dayWindow is a limit of the provider: so many requests in any span of that length.
type dayWindow struct {
	limit int
	span  time.Duration
}

var dayWindows = []dayWindow{{10, time.Minute}, {550, hour}, {13_200, 24 * hour}}

func (w dayWindow) scaled(factor float64) int { return int(float64(w.limit) * factor) }

// dayPolicy returns a policy with the limits of the provider times a factor.
func dayPolicy(factor float64) throttle.Policy {
	p := throttle.Policy{Name: "day"}
	for _, w := range dayWindows {
		p.Tiers = append(p.Tiers, per(w.span, int64(w.scaled(factor)), throttle.SlidingLog))
	}
	return p
}

// A dayCause explains as many refusals of each window as left has, until the window has passed since.
type dayCause struct {
	at   time.Time
	left []int
}

// A dayStand is the provider. It accepts a request if each window has fewer accepted ones than its limit.
type dayStand struct {
	latency func() time.Duration

	mu                 sync.Mutex // guards all below
	accepted           []time.Time
	factor, target     float64 // of the provider's limits, and of those that the processes can use
	causes             []dayCause
	refusing           time.Time // until then, everything is refused with the Retry-After
	retry              time.Duration
	excused            time.Time // until then, unused limits are those of a fault
	ordered, explained int       // refusals
	unexplained        []string
}

func (d *dayStand) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(d.latency())
	retry := d.arrive(time.Now())
	time.Sleep(d.latency())
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
	if retry > 0 {
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Retry-After", strconv.Itoa(int((retry+sec-1)/sec)))
	}
	return resp, nil
}

// arrive counts a request and returns 0, or the time until it may come again.
func (d *dayStand) arrive(now time.Time) (retry time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Before(d.refusing) {
		d.ordered++
		return d.retry
	}
	for i, w := range dayWindows {
		n, limit := d.since(now.Add(-w.span)), w.scaled(d.factor)
		if n < limit {
			continue
		}
		retry = max(retry, d.accepted[len(d.accepted)-limit].Add(w.span).Sub(now))
		if d.excuse(now, i) {
			d.explained++
		} else {
			d.unexplained = append(d.unexplained, fmt.Sprintf("%v by %d in %v", now.Sub(d.accepted[0]), limit, w.span))
		}
	}
	if retry > 0 {
		d.excused = latest(d.excused, now.Add(retry+dayResumes))
		return retry
	}
	d.accepted = append(d.accepted, now)
	return 0
}

// since returns how many requests were accepted after an instant.
func (d *dayStand) since(at time.Time) (n int) {
	for n < len(d.accepted) && d.accepted[len(d.accepted)-1-n].After(at) {
		n++
	}
	return n
}

// excuse reports whether a cause explains a refusal by a window.
func (d *dayStand) excuse(now time.Time, window int) bool {
	for _, c := range d.causes {
		if c.left[window] > 0 && now.Sub(c.at) < dayWindows[window].span+5*time.Minute {
			c.left[window]--
			return true
		}
	}
	return false
}

// lost records that the state was lost: a capacity and the reservations may be admitted once more.
func (d *dayStand) lost() {
	c := dayCause{at: time.Now()}
	for _, w := range dayWindows {
		c.left = append(c.left, w.scaled(1.25)+dayCallers)
	}
	d.set(func() { d.causes = append(d.causes, c) })
}

func (d *dayStand) outage(length time.Duration) {
	d.set(func() { d.excused = latest(d.excused, time.Now().Add(length+dayResumes)) })
}

func (d *dayStand) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// use returns the use of the fullest window, or false during an outage.
func (d *dayStand) use() (use float64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, w := range dayWindows {
		use = max(use, float64(d.since(now.Add(-w.span)))/float64(w.scaled(d.target)))
	}
	return min(use, 1), !now.Before(d.excused)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A day is the fleet of a test, or a process with a quota of its own.
type day struct {
	t      *testing.T
	random *rand.Rand
	stand  *dayStand
	server *miniredis.Miniredis // nil for a process alone
	policy float64              // the factor of the policy that is deployed
	fleet  []*dayProcess

	away   atomic.Bool  // the server replies an error
	silent atomic.Bool  // the server answers no script
	offset atomic.Int64 // of the server's clock, in µs

	canceled, panics atomic.Int64
	mu               sync.Mutex // guards errs
	errs             []error
}

// A dayProcess is a process.
type dayProcess struct {
	limiter *throttle.Limiter
	store   *distributed.Store
	rdb     *redis.Client
	delay   atomic.Int64 // of the commands to the server
	end     context.CancelFunc
	dead    atomic.Bool // the process was killed: what its callers receive does not count
	callers sync.WaitGroup
}

// start starts a process.
func (d *day) start(callers int) *dayProcess {
	p := &dayProcess{}
	p.delay.Store(int64(ms / 2))
	var s throttle.Store
	if d.server != nil {
		p.rdb = redismem.Dial(d.server, func() time.Duration { return time.Duration(p.delay.Load()) })
		p.store = distributed.New(p.rdb, distributed.Options{})
		s = p.store
	}
	p.limiter = limiter(d.t, d.policyNow(), s)
	ctx, cancel := context.WithCancel(context.Background())
	p.end = cancel
	rt := &throttle.Transport{Base: d.stand, Limiter: p.limiter}
	for range callers {
		random := rand.New(rand.NewPCG(d.random.Uint64(), 0))
		p.callers.Go(func() {
			for ctx.Err() == nil {
				d.call(ctx, p, rt, random)
			}
		})
	}
	return p
}

const dayPanic = "a callback panics"

type dayPanics struct{}

func (d *day) policyNow() throttle.Policy {
	p := dayPolicy(d.policy)
	p.Observer = &throttle.Observer{Admitted: func(ctx context.Context, _ throttle.AdmittedInfo) {
		if ctx.Value(dayPanics{}) != nil {
			panic(dayPanic)
		}
	}}
	return p
}

// call sends a request. A few are canceled, have a deadline, or meet a callback that panics.
func (d *day) call(ctx context.Context, p *dayProcess, rt http.RoundTripper, random *rand.Rand) {
	cancel, ends := context.CancelFunc(func() {}), true
	soon := time.Duration(random.Int64N(int64(2 * time.Minute)))
	switch n := random.IntN(200); {
	case n < 8:
		ctx, cancel = context.WithTimeout(ctx, soon)
	case n < 16:
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(soon, cancel)
	case n < 17:
		ctx = context.WithValue(ctx, dayPanics{}, true)
	default:
		ends = false
	}
	defer cancel()
	defer func() {
		if r := recover(); r == dayPanic {
			d.panics.Add(1)
		} else if r != nil {
			panic(r)
		}
	}()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://provider/", nil)
	_, err := rt.RoundTrip(req)
	switch {
	case err == nil || p.dead.Load():
	case (ends || ctx.Err() != nil) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		d.canceled.Add(1)
		time.Sleep(ms) // a refusal at once must not stop the clock
	default:
		d.fail(err)
		time.Sleep(sec)
	}
}

func (d *day) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errs = append(d.errs, err)
}

// stop ends a process as planned, or kills it.
func (d *day) stop(p *dayProcess, kill bool) {
	if kill {
		p.dead.Store(true)
		_ = p.rdb.Close()
	}
	p.end()
	p.callers.Wait()
	if kill || p.rdb == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*sec)
	defer cancel()
	if err := p.store.Flush(ctx); err != nil && !errors.Is(err, throttle.ErrUnavailable) {
		d.fail(err)
	}
	_ = p.rdb.Close()
}

// newServer returns a server that can be away and whose clock can step.
func (d *day) newServer() *miniredis.Miniredis {
	s := redismem.New()
	redismem.Hook(s, func(c *server.Peer, command string, _ ...string) bool {
		// Greetings are answered, because go-redis 9.22 does not close a connection without that answer. A
		// connection of the system is closed when it is collected, one in memory never.
		if d.silent.Load() && strings.HasPrefix(command, "EVAL") {
			time.Sleep(10 * sec)
		}
		switch {
		case d.away.Load():
			c.WriteError(loading)
		case command == "TIME":
			now := time.Now().UnixMicro() + d.offset.Load()
			c.WriteStrings([]string{strconv.FormatInt(now/1e6, 10), strconv.FormatInt(now%1e6, 10)})
		default:
			return false
		}
		return true
	})
	return s
}

// seconds returns a random length of time.
func (d *day) seconds(least, most int) time.Duration {
	return time.Duration(least+d.random.IntN(most-least+1)) * sec
}

// breakFleet injects a fault into a fleet, and returns its name.
func (d *day) breakFleet() string {
	i := d.random.IntN(len(d.fleet))
	switch d.random.IntN(9) {
	case 0:
		d.stand.lost()
		d.server.FlushAll()
		return "state lost"
	case 1:
		length := d.seconds(10, 120)
		d.stand.outage(length)
		d.away.Store(true)
		time.Sleep(length)
		d.away.Store(false)
		return "server away"
	case 2:
		length := d.seconds(10, 120)
		d.stand.outage(length + 10*sec) // a trip without an answer ends later
		d.silent.Store(true)
		time.Sleep(length)
		d.silent.Store(false)
		return "no answers"
	case 3, 4:
		kill := d.random.IntN(2) == 0
		d.stop(d.fleet[i], kill)
		time.Sleep(d.seconds(0, 60))
		d.fleet[i] = d.start(dayCallers / len(d.fleet))
		return map[bool]string{true: "process killed", false: "process replaced"}[kill]
	case 5:
		d.fleet[i].delay.Store(int64(d.seconds(1, 8) / 50)) // 20 to 160 ms
		time.Sleep(d.seconds(60, 300))
		d.fleet[i].delay.Store(int64(ms / 2))
		return "process far"
	case 6:
		return d.deploy()
	case 7:
		if step := d.seconds(1, 60); d.random.IntN(2) == 0 {
			d.stand.lost() // a step forward looks like idleness
			d.offset.Add(step.Microseconds())
		} else {
			d.stand.outage(step + time.Minute) // the time of the quota stands still, and so the windows end later
			d.offset.Add(-step.Microseconds())
		}
		return "clock stepped"
	}
	return d.refuse()
}

// refuse lets the provider refuse for a while.
func (d *day) refuse() string {
	length, retry := d.seconds(1, 30), d.seconds(1, 60)
	d.stand.outage(length + retry)
	d.stand.set(func() { d.stand.refusing, d.stand.retry = time.Now().Add(length), retry })
	return "provider refuses"
}

// deploy deploys other limits, and the former ones again. The provider has the higher limits first.
func (d *day) deploy() string {
	factor := 0.8
	if d.random.IntN(2) == 0 {
		factor = 1.25
	}
	d.stand.set(func() { d.stand.factor, d.stand.target = max(1, factor), min(1, factor) })
	for _, f := range []float64{factor, 1} {
		d.policy = f
		for i, p := range d.fleet {
			if i%2 == 0 {
				if err := p.limiter.SetPolicy(d.t.Context(), d.policyNow()); err != nil {
					d.fail(err)
				}
			} else {
				d.stop(p, false)
				d.fleet[i] = d.start(dayCallers / len(d.fleet))
			}
			time.Sleep(d.seconds(1, 10))
		}
		time.Sleep(d.seconds(60, 120)) // times that were reserved under the higher limits
	}
	d.stand.set(func() { d.stand.factor, d.stand.target = 1, 1 })
	return "deployment"
}

// A daySize is what a day takes of the machine.
type daySize struct {
	heap       uint64 // bytes
	goroutines int
	state      int // bytes in Redis
}

func (d *day) size() (s daySize) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s = daySize{heap: m.HeapAlloc, goroutines: runtime.NumGoroutine()}
	if d.server != nil {
		for _, key := range d.server.Keys() {
			text, _ := d.server.Get(key)
			s.state += len(key) + len(text)
		}
	}
	return s
}

// play plays the day, and checks what it took.
func (d *day) play(breakIt func() string) {
	began := time.Now()
	d.stand = &dayStand{factor: 1, target: 1, latency: func() time.Duration { return 20 * ms }, accepted: make([]time.Time, 0, 20_000)}
	d.policy = 1
	if d.server != nil {
		for range 4 {
			d.fleet = append(d.fleet, d.start(dayCallers/4))
		}
	} else {
		d.fleet = append(d.fleet, d.start(dayCallers))
	}
	d.stand.outage(time.Minute)
	stopped := make(chan struct{})
	var samples, used float64
	go func() { // samples
		defer close(stopped)
		for time.Since(began) < dayLength {
			time.Sleep(10 * sec)
			if use, ok := d.stand.use(); ok {
				samples, used = samples+1, used+use
			}
			if d.server != nil {
				d.server.FastForward(10 * sec)
			}
		}
	}()

	faults := make(map[string]int)
	var early daySize
	for time.Since(began) < dayLength-dayQuiet {
		time.Sleep(time.Duration(min(d.random.ExpFloat64(), 3) * float64(10*time.Minute)))
		if early.heap == 0 && time.Since(began) > dayQuiet {
			early = d.size()
		}
		faults[breakIt()]++
	}
	time.Sleep(dayLength - hour - time.Since(began))
	refused, n := d.stand.explained, len(d.stand.accepted)
	<-stopped
	late := d.size()
	refused, n = d.stand.explained-refused, len(d.stand.accepted)-n
	for _, p := range d.fleet {
		d.stop(p, false)
	}

	d.t.Logf("accepted %d; faults %v; refused: ordered %d, explained %d", len(d.stand.accepted), faults, d.stand.ordered, d.stand.explained)
	d.t.Logf("used %.3f of the fullest window outside of outages, which took %.3f of the day; the last hour: %d", used/samples, 1-samples*10/dayLength.Seconds(), n)
	d.t.Logf("canceled %d, panics %d; after 2 h %+v, after 24 h %+v", d.canceled.Load(), d.panics.Load(), early, late)
	for _, text := range d.stand.unexplained {
		d.t.Error("refused without a cause, after ", text)
	}
	if len(d.errs) > 0 {
		d.t.Errorf("got %d errors, the first %v, want none", len(d.errs), d.errs[0])
	}
	if used/samples < 0.9 {
		d.t.Errorf("used %.3f of the fullest window, want 0.9", used/samples)
	}
	if n < 540 || refused > 0 {
		d.t.Errorf("the last hour: got %d accepted and %d refused, want 540 at least and none", n, refused)
	}
	if late.heap > early.heap*5/4+1<<19 || late.goroutines > early.goroutines+8 || late.state > early.state*5/4+2048 {
		d.t.Errorf("got %+v after 24 h, want about what it was after 2 h: %+v", late, early)
	}
}

// playDays plays a day with each of some seeds, one after the other, because it measures the memory.
func playDays(t *testing.T, play func(d *day)) {
	soak.Long(t, "plays 24 hours")
	soak.NoRace(t, "measures memory")
	for seed := range soak.Times(1) {
		t.Run(fmt.Sprint("seed", seed+1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { play(&day{t: t, random: rand.New(rand.NewPCG(uint64(seed+1), 0))}) })
		})
	}
}

func TestDayOfAFleet(t *testing.T) {
	playDays(t, func(d *day) {
		d.server = d.newServer()
		defer func() {
			time.Sleep(time.Minute) // subscriptions, and goroutines of clients, end by themselves
			d.server.Close()
		}()
		d.play(d.breakFleet)
	})
}

func TestDayOfAProcess(t *testing.T) {
	playDays(t, func(d *day) {
		d.play(func() string {
			if d.random.IntN(2) == 0 {
				return d.refuse()
			}
			return d.deploy()
		})
	})
}
