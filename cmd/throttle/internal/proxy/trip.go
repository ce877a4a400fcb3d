package proxy

import (
	"context"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle"
)

// A trip is one request to an upstream, and the context of that request. Its deadline bounds the
// wait alone: it ends with the admission.
type trip struct {
	context.Context // of the client's request, canceled by stop and finish

	handler  *Handler
	route    *route
	client   *Client // nil if the proxy has no clients
	rest     string  // of the escaped path, behind the prefix
	incoming *http.Request

	cancel   context.CancelFunc
	deadline time.Time   // zero if the wait has no bound
	timer    *time.Timer // at the deadline
	admitted atomic.Bool
	stopped  atomic.Int32 // why the proxy has canceled it

	// The fields below belong to the goroutine of the request.
	waited       time.Duration
	policy, tier string
	status       int  // of the response
	page         bool // the request is for a page of the proxy
}

// Why the proxy has canceled a request.
const (
	stoppedLate     = iota + 1 // its wait has outlasted the deadline
	stoppedDraining            // the proxy ends
)

type tripKey struct{}

// tripOf returns the trip of a request's context, nil if it has none.
func tripOf(ctx context.Context) *trip {
	t, _ := ctx.Value(tripKey{}).(*trip)
	return t
}

// begin prepares the trip to be the context of its request. A maxWait below zero is no bound.
func (t *trip) begin(parent context.Context, maxWait time.Duration) {
	t.Context, t.cancel = context.WithCancel(parent)
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
	t.cancel()
}

// admit ends the deadline.
func (t *trip) admit() {
	t.admitted.Store(true)
	if t.timer != nil {
		t.timer.Stop()
	}
}

// stop cancels the request if it has not been admitted.
func (t *trip) stop(why int32) {
	if !t.admitted.Load() && t.stopped.CompareAndSwap(0, why) {
		t.cancel()
	}
}

// Value returns the trip itself for tripKey.
func (t *trip) Value(key any) any {
	if key == (tripKey{}) {
		return t
	}
	return t.Context.Value(key)
}

// Deadline returns the end of the wait.
func (t *trip) Deadline() (time.Time, bool) {
	if t.deadline.IsZero() || t.admitted.Load() {
		return t.Context.Deadline()
	}
	return t.deadline, true
}

// Err returns DeadlineExceeded if the wait has outlasted the deadline.
func (t *trip) Err() error {
	err := t.Context.Err()
	if err != nil && t.stopped.Load() == stoppedLate {
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

// describe adds to a header how long the request has waited, and for what.
func (t *trip) describe(h http.Header) {
	h["X-Throttle-Waited"] = notWaited
	if t.waited != 0 {
		h["X-Throttle-Waited"] = []string{seconds(t.waited)}
	}
	setOrDelete(h, "X-Throttle-Policy", t.policy)
	setOrDelete(h, "X-Throttle-Tier", t.tier)
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
		wish, ok := classes[asked]
		if !ok {
			return 0, 0, badRequest(http.StatusBadRequest, "class", classHeader+" must be interactive, normal or batch.")
		}
		if c == nil || !c.HasClass || rank(wish) > rank(class) {
			class = wish
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

var classes = map[string]throttle.Class{"interactive": throttle.Interactive, "normal": throttle.Normal, "batch": throttle.Batch}

// rank returns the place of a class: later ones wait longer.
func rank(c throttle.Class) int {
	switch c {
	case throttle.Interactive:
		return 0
	case throttle.Batch:
		return 2
	}
	return 1
}

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
