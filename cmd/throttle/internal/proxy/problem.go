package proxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/providers"
)

// A problem is a response of the proxy itself, of the type application/problem+json.
type problem struct {
	Type   string  `json:"type"`
	Title  string  `json:"title"`
	Status int     `json:"status"`
	Detail string  `json:"detail"`
	Policy string  `json:"policy,omitempty"`
	Tier   string  `json:"tier,omitempty"`
	Reason string  `json:"reason"`
	Wait   float64 `json:"wait_seconds,omitempty"`
	Until  string  `json:"until,omitempty"`

	Members []memberWait `json:"members,omitempty"` // of a pool

	retryAfter          time.Duration // rounded up; zero for no header
	allow, authenticate string        // headers
	trip                *trip         // nil if the request was not for an upstream
	closes              bool          // the connection closes
}

// A memberWait is what a request would wait for at a member of a pool.
type memberWait struct {
	Name   string  `json:"name"`
	Policy string  `json:"policy,omitempty"`
	Tier   string  `json:"tier,omitempty"`
	Reason string  `json:"reason,omitempty"` // of a refusal
	Wait   float64 `json:"wait_seconds,omitempty"`
	Until  string  `json:"until,omitempty"`
}

// typePrefix begins the Type of problems: the page that explains them.
const typePrefix = "https://github.com/apithrottle/throttle/blob/main/docs/proxy.md#"

// badRequest returns the problem of a request that the proxy does not send.
func badRequest(status int, reason, detail string) *problem {
	return &problem{Type: typePrefix + "requests", Title: http.StatusText(status), Status: status, Detail: detail, Reason: reason}
}

// drainRetry is when a client may try again while the proxy ends: another one begins meanwhile.
const drainRetry = 1 * time.Second

func draining() *problem {
	return &problem{
		Type: typePrefix + "refusals", Title: "The proxy ends", Status: http.StatusServiceUnavailable,
		Detail: "The proxy ends: it refuses the requests that wait.", Reason: "draining", retryAfter: drainRetry,
	}
}

// write writes the problem.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	clear(h)
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if p.trip != nil {
		p.trip.describe(h)
		setOrDelete(h, "X-Throttle-Policy", p.Policy)
		setOrDelete(h, "X-Throttle-Tier", p.Tier)
	}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(p.retryAfter.Seconds())), 10))
	}
	if p.pointless() {
		h.Set("X-Should-Retry", "false")      // for the SDKs of OpenAI and Anthropic
		h.Set("Stripe-Should-Retry", "false") // for those of Stripe
	}
	if p.closes {
		h.Set("Connection", "close")
	}
	setOrDelete(h, "Allow", p.allow)
	setOrDelete(h, "WWW-Authenticate", p.authenticate)
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // it has texts and numbers alone
	}
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}

// longRetry is the wait from which on SDKs ignore Retry-After, and try again sooner.
const longRetry = time.Minute

// pointless reports whether a retry within the next minute is refused, too.
func (p *problem) pointless() bool {
	return p.Status == http.StatusUnprocessableEntity || p.Status == http.StatusTooManyRequests && p.retryAfter >= longRetry
}

// serveFailure writes the response to a request that got none from its upstream.
func (h *Handler) serveFailure(w http.ResponseWriter, t *trip, err error) {
	if t.isAdmitted() { // else it was not sent
		t.route.counts.countFailure(t.incoming.Context().Err())
	}
	p := h.problemOf(t, err)
	if p == nil {
		t.status = statusGone
		panic(http.ErrAbortHandler)
	}
	p.trip = t
	h.answer(w, t, p)
}

// statusGone is the status in the access log of a request whose client has gone.
const statusGone = 499

// problemOf returns the problem of an error of a transport, nil if the client has gone.
func (h *Handler) problemOf(t *trip, err error) *problem {
	var refused *throttle.WaitError
	switch {
	case t.state.Load() == stoppedDraining:
		return draining()
	case t.body != nil && t.body.stop():
		return lateBody()
	case errors.As(err, &refused):
		p := refusal(refused)
		p.Members = t.memberWaits(refused.Policy)
		return p
	case t.state.Load() == stoppedLate:
		p := refusal(&throttle.WaitError{Policy: t.policy, Err: throttle.ErrDeadline, Bound: throttle.BoundContext})
		p.Members = t.memberWaits(t.policy)
		return p
	case t.incoming.Context().Err() != nil:
		return nil
	case errors.Is(err, providers.ErrNoPrice):
		return noPrice(err)
	case t.unusable != nil && !t.isAdmitted():
		return h.unusable(t)
	}
	kind, late := describe(err)
	p := &problem{Type: typePrefix + "upstream", Title: "The API cannot be reached", Status: http.StatusBadGateway, Reason: "unreachable"}
	if late {
		p.Title, p.Status, p.Reason = "The API has not answered in time", http.StatusGatewayTimeout, "timeout"
	}
	p.Detail = p.Title + ": " + kind + "."
	if now := time.Now().Unix(); t.route.logged.Swap(now) != now {
		attrs := []any{"route", t.route.Prefix, "upstream", t.upstream().Host, "status", p.Status, "error", kind}
		if t.member != "" {
			attrs = append(attrs, "member", t.member)
		}
		h.opts.Log.Warn("an upstream failed", attrs...)
	}
	return p
}

// noPrice returns the problem of a request to a model that has no price, in a budget of dollars.
func noPrice(err error) *problem {
	_, detail, _ := strings.Cut(err.Error(), providers.ErrNoPrice.Error()+": ")
	detail, _, _ = strings.Cut(detail, ": add ")
	return &problem{
		Type: typePrefix + "dollars", Title: "The model has no price", Status: http.StatusUnprocessableEntity, Reason: "no_price",
		Detail: "No price is known, and the route has a budget in dollars: " + detail + ". Add one to prices of the route, or an unknown_model there.",
	}
}

// unusable returns the problem of a request whose quota cannot be used until somebody acts, as without the table
// in PostgreSQL. The log alone has the cause, which names the store.
func (h *Handler) unusable(t *trip) *problem {
	if now := time.Now().Unix(); t.route.logged.Swap(now) != now {
		h.opts.Log.Error("a quota cannot be used", "route", t.route.Prefix, "policy", t.policy, "error", t.unusable)
	}
	return &problem{
		Type: typePrefix + "refusals", Title: "The quota cannot be used", Status: http.StatusServiceUnavailable,
		Detail: fmt.Sprintf("policy %q: the quota cannot be used: the log of the proxy has the cause", t.policy),
		Policy: t.policy, Reason: "error", retryAfter: 5 * time.Second,
	}
}

// explainTime bounds the time in which a refusal asks what the members of a pool wait for.
const explainTime = 250 * time.Millisecond

// memberWaits returns what the members of the route's pool wait for, if the policy that has refused the request
// is none of the budget or the client. One refusal asks at a time: a shared store answers once for each member.
func (t *trip) memberWaits(policy string) (all []memberWait) {
	if t.route.pool == nil || t.out == nil || strings.HasPrefix(policy, clientPrefix) || strings.HasSuffix(policy, budgetSuffix) || !t.route.waits.TryLock() {
		return nil
	}
	defer t.route.waits.Unlock()
	ctx, cancel := context.WithTimeout(t.Context, explainTime)
	defer cancel()
	for _, w := range t.route.pool.Waits(ctx, t.out) {
		m := memberWait{Name: w.Member, Policy: w.By, Tier: w.Tier, Wait: w.Wait.Seconds()}
		var e *throttle.WaitError
		if errors.As(w.Err, &e) {
			p := refusal(e)
			m = memberWait{w.Member, p.Policy, p.Tier, p.Reason, p.Wait, p.Until}
		}
		all = append(all, m)
	}
	return all
}

// refusal returns the problem of a refusal by a limiter.
func refusal(e *throttle.WaitError) *problem {
	p := &problem{
		Type: typePrefix + "refusals", Title: "Too many requests", Status: http.StatusTooManyRequests,
		Detail: strings.TrimPrefix(e.Error(), "throttle: "), Policy: e.Policy, Tier: e.Tier,
		Reason: throttle.RefusedInfo{Err: e}.Outcome(), Wait: e.Wait.Seconds(), retryAfter: max(e.Wait, time.Second),
	}
	if !e.Until.IsZero() {
		p.Until = e.Until.UTC().Format(time.RFC3339)
		p.retryAfter = max(p.retryAfter, time.Until(e.Until))
	}
	switch {
	case errors.Is(e.Err, throttle.ErrExceedsCapacity):
		p.Title, p.Status, p.retryAfter = "The limits never admit this request", http.StatusUnprocessableEntity, 0
	case errors.Is(e.Err, throttle.ErrExhausted):
		p.Title = "The budget is used up"
	case errors.Is(e.Err, throttle.ErrBanned):
		p.Title = "The API has closed the quota"
	case errors.Is(e.Err, throttle.ErrUnavailable): // the text of the error has the address of the store
		p.Title, p.Status, p.retryAfter = "The store of the quotas does not answer", http.StatusServiceUnavailable, 5*time.Second
		p.Detail = fmt.Sprintf("policy %q: the store of the quotas does not answer", e.Policy)
	case errors.Is(e.Err, throttle.ErrTooManyKeys):
		p.Title, p.Status = "Too many accounts use the route", http.StatusServiceUnavailable
		p.Detail = fmt.Sprintf("policy %q: requests of as many accounts as the route keeps are under way: raise max_keys of its key, or try again", e.Policy)
	case errors.Is(e.Err, throttle.ErrClosed):
		p.Title, p.Status = "The quota cannot be used", http.StatusServiceUnavailable
	}
	return p
}

// describe returns what went wrong on the way to an upstream, without texts that it has sent, and
// whether it took too long.
func describe(err error) (kind string, late bool) {
	var (
		dns   *net.DNSError
		cert  *tls.CertificateVerificationError
		alert tls.AlertError
		errno syscall.Errno
		op    *net.OpError
		slow  net.Error
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		return "a time limit was exceeded", true
	case errors.As(err, &dns):
		return "its name has no address", false
	case errors.As(err, &cert):
		return "its certificate is not valid: " + cert.Err.Error(), false
	case errors.As(err, &alert):
		return "it refused the TLS handshake", false
	case errors.As(err, &op) && op.Op == "dial" && errors.As(err, &errno):
		return "connect: " + errno.Error(), false
	case errors.As(err, &errno):
		return errno.Error(), false
	}
	return "the connection failed, or the response is not valid", false
}

// typeName returns the type of a value that a panic had.
func typeName(v any) string { return fmt.Sprintf("%T", v) }
