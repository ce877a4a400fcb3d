package proxy

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle"
)

// A trip is one request to an upstream, and the context of that request. Its deadline bounds the
// wait alone: it ends with the admission.
type trip struct {
	context.Context // of the client's request

	handler  *Handler
	table    *table
	route    *route
	client   *Client   // nil if the proxy has no clients, or does not know it
	body     *incoming // nil if the request has none
	rest     string    // of the escaped path, behind the prefix
	incoming *http.Request
	out      *http.Request // to the upstream, or to a pool
	sent     *url.URL      // of the request to the upstream
	hints    hints

	own      atomic.Pointer[ending] // of the request alone; nil if it has not waited
	deadline time.Time              // zero if the wait has no bound
	timer    *time.Timer            // at the deadline
	state    atomic.Int32           // one of the states below
	begun    atomic.Int64           // when it was admitted, as sinceStart counts; zero before

	// The fields below belong to the goroutine of the request.
	waited       time.Duration
	policy, tier string
	unusable     error  // why the quota that was asked last cannot be used; nil if it can
	member       string // of a pool, that has admitted the request
	status       int    // of the response
	page         bool   // the request is for a page of the proxy
}

// The states of a trip. The proxy cancels no request that is admitted.
const (
	waits           = iota
	admitted        // it is sent
	stoppedLate     // canceled: its wait has outlasted the deadline
	stoppedDraining // canceled: the proxy ends
)

type tripKey struct{}

// tripOf returns the trip of a request's context, nil if it has none.
func tripOf(ctx context.Context) *trip {
	t, _ := ctx.Value(tripKey{}).(*trip)
	return t
}

// An ending is a context that stop ends.
type ending struct {
	context.Context
	cancel context.CancelFunc
}

// begin prepares the trip to be the context of its request. A maxWait below zero is no bound.
func (t *trip) begin(parent context.Context, maxWait time.Duration) {
	t.Context = parent
	if maxWait >= 0 {
		t.deadline = time.Now().Add(maxWait)
		t.timer = time.AfterFunc(maxWait, func() { t.stop(stoppedLate) })
	}
}

// finish ends the context.
func (t *trip) finish() {
	if t.timer != nil {
		t.timer.Stop()
	}
	if own := t.own.Load(); own != nil {
		own.cancel()
	}
}

// canceled returns the context that stop ends. It is made when the request waits: most are admitted at
// once.
func (t *trip) canceled() *ending {
	if t.own.Load() == nil {
		ctx, cancel := context.WithCancel(t.Context)
		if !t.own.CompareAndSwap(nil, &ending{ctx, cancel}) {
			cancel()
		}
	}
	return t.own.Load()
}

// current returns the context that the request has by now.
func (t *trip) current() context.Context {
	if own := t.own.Load(); own != nil {
		return own
	}
	return t.Context
}

// Done is called before the admission by what waits for it, and afterwards by what sends the request.
func (t *trip) Done() <-chan struct{} {
	if !t.isAdmitted() {
		return t.canceled().Done()
	}
	return t.current().Done()
}

// admit ends the deadline. If the proxy has stopped the request before, admit cancels it, and nothing sends it.
func (t *trip) admit() {
	t.begun.Store(int64(sinceStart()))
	if !t.state.CompareAndSwap(waits, admitted) && !t.isAdmitted() {
		t.canceled().cancel()
	}
	if t.timer != nil {
		t.timer.Stop()
	}
}

// waitAgain makes the deadline of a request that was admitted hold again: a request waits for a pool after the
// budget of its route, and once more after a refusal.
func (t *trip) waitAgain() {
	if t.state.CompareAndSwap(admitted, waits) && t.timer != nil {
		t.timer.Reset(max(0, time.Until(t.deadline)))
	}
}

// isAdmitted reports whether the request is admitted, and does not wait again.
func (t *trip) isAdmitted() bool { return t.state.Load() == admitted }

// sinceAdmitted returns the time since the request was admitted.
func (t *trip) sinceAdmitted() time.Duration { return sinceStart() - time.Duration(t.begun.Load()) }

// stop cancels the request if it has not been admitted, and reports whether it has.
func (t *trip) stop(why int32) bool {
	if !t.state.CompareAndSwap(waits, why) {
		return false
	}
	t.canceled().cancel()
	return true
}

// drain cancels the request and the reading of its body, because the proxy ends, if it has not been admitted.
func (t *trip) drain() {
	if t.stop(stoppedDraining) && t.body != nil {
		t.body.stop()
	}
}

// Value returns the trip itself for tripKey.
func (t *trip) Value(key any) any {
	if key == (tripKey{}) {
		return t
	}
	return t.current().Value(key)
}

// Deadline returns the end of the wait.
func (t *trip) Deadline() (time.Time, bool) {
	if t.deadline.IsZero() || t.isAdmitted() {
		return t.current().Deadline()
	}
	return t.deadline, true
}

// Err returns DeadlineExceeded if the wait has outlasted the deadline.
func (t *trip) Err() error {
	err := t.current().Err()
	if err != nil && t.state.Load() == stoppedLate {
		return context.DeadlineExceeded
	}
	return err
}

// prefix returns the prefix of the trip's route, or "" if it has none.
func (t *trip) prefix() string {
	if t.route == nil {
		return ""
	}
	return t.route.Prefix
}

// upstream returns the address of the API to which the request was sent.
func (t *trip) upstream() *url.URL {
	if m := t.route.member(t.member); m != nil {
		return m.Upstream
	}
	return t.route.Upstream
}

// clientName returns the name of the trip's client, or "" if it has none.
func (t *trip) clientName() string {
	if t.client == nil {
		return ""
	}
	return t.client.Name
}

// describe adds to a header how long the request has waited, and for what.
func (t *trip) describe(h http.Header) {
	h["X-Throttle-Waited"] = notWaited
	if t.waited != 0 {
		h["X-Throttle-Waited"] = []string{seconds(t.waited)}
	}
	setOrDelete(h, "X-Throttle-Policy", t.policy)
	setOrDelete(h, "X-Throttle-Tier", t.tier)
	setOrDelete(h, "X-Throttle-Member", t.member)
}

var notWaited = []string{seconds(0)}

// setOrDelete sets a header whose name has its canonical form. An empty value deletes it.
func setOrDelete(h http.Header, name, value string) {
	if value == "" {
		delete(h, name)
		return
	}
	h[name] = []string{value}
}

// first returns the first value of a header whose name has its canonical form.
func first(h http.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// seconds returns a length of time in seconds with three decimals.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) }

// The headers with which a client asks for a class and bounds its wait.
const (
	classHeader   = "X-Throttle-Class"
	maxWaitHeader = "X-Throttle-Max-Wait"
)

// leastWait and mostWait bound what a client may ask for. A request whose deadline is now would be
// refused also if there is room.
const (
	leastWait = 100 * time.Millisecond
	mostWait  = 366 * 24 * time.Hour
)

// wishes returns the class of a request, and how long it may wait, below zero for no bound.
func (r *route) wishes(h http.Header, c *Client) (class throttle.Class, maxWait time.Duration, p *problem) {
	class, maxWait = r.Class, -1
	if c != nil && c.HasClass {
		class = c.Class
	}
	if asked := first(h, classHeader); asked != "" {
		wish := slices.IndexFunc(classes, func(c throttle.Class) bool { return c.String() == asked })
		if wish < 0 {
			return 0, 0, badRequest(http.StatusBadRequest, "class", classHeader+" must be interactive, normal or batch.")
		}
		if c == nil || !c.HasClass || wish > slices.Index(classes, class) {
			class = classes[wish]
		}
	}
	if asked := first(h, maxWaitHeader); asked != "" {
		var ok bool
		if maxWait, ok = parseWait(asked); !ok {
			return 0, 0, badRequest(http.StatusBadRequest, "max_wait", maxWaitHeader+" must be a length of time such as 5s or 1m30s, or a number of seconds.")
		}
	}
	return class, maxWait, nil
}

// classes are all classes. Later ones wait longer.
var classes = []throttle.Class{throttle.Interactive, throttle.Normal, throttle.Batch}

func parseWait(text string) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	if err != nil {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n >= 0 && n <= mostWait.Seconds()) {
			return 0, false
		}
		d = time.Duration(n * float64(time.Second))
	}
	return min(max(d, leastWait), mostWait), d >= 0
}
