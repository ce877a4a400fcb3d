package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/page"
)

// A Wish is what a request to pause, to resume or to forget asks for, in JSON.
type Wish struct {
	Name   string `json:"name"`
	For    string `json:"for,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// A Paused is the response: how long a quota is paused.
type Paused struct {
	Name   string     `json:"name"`
	Paused float64    `json:"paused_seconds"`
	Until  *time.Time `json:"until,omitempty"`
	Reason string     `json:"reason,omitempty"`
	Was    *float64   `json:"was_paused_seconds,omitempty"` // of resume, if it is known
	Forgot []string   `json:"forgot,omitempty"`             // of forget: what was learned and followed
}

// Lasts records for how long the quota is paused.
func (p *Paused) Lasts(d time.Duration) {
	if p.Paused = d.Seconds(); d > 0 {
		until := time.Now().Add(d).UTC().Round(time.Second)
		p.Until = &until
	}
}

// Change pauses a quota for a length of time, resumes it, or forgets what it has learned and followed, as the
// verb says. It returns for how long the quota is paused or banned then, and what was before.
func Change(ctx context.Context, l *throttle.Limiter, verb string, length time.Duration) (done Paused, err error) {
	var was throttle.Status
	if verb != "pause" { // which holds in this process also while the store is away
		if was, err = l.Status(ctx); err != nil {
			return done, err
		}
	}
	switch verb {
	case "pause":
		err = l.Pause(ctx, length)
	case "resume":
		seconds := max(was.Paused, was.Closed).Seconds()
		done.Was = &seconds
		err = l.Resume(ctx)
	case "forget":
		done.Forgot = known(was)
		err = l.Forget(ctx)
	}
	if err != nil {
		return done, err
	}
	now, err := l.Status(ctx)
	done.Lasts(max(now.Paused, now.Closed))
	return done, err
}

// known returns what a quota itself has learned and followed, in words.
func known(s throttle.Status) (all []string) {
	for _, t := range s.Tiers {
		l := t.Learned
		learned := l != nil && (l.Refused > 0 || l.Rate != float64(t.Tier.Limit) || l.Noise > 0)
		if t.Policy == s.Policy && (learned || t.Followed > 0) {
			all = append(all, t.Origin())
		}
	}
	return all
}

// The bounds of a Wish.
const (
	mostWish    = 4 << 10 // bytes
	mostReason  = 200     // bytes
	controlTime = 5 * time.Second
)

// control changes a quota.
func (h *Handler) control(w http.ResponseWriter, r *http.Request, verb string) *problem {
	if h.opts.ControlToken == "" {
		return badRequest(http.StatusNotFound, "route", "This proxy takes no such request: its file has no observability.control_token.")
	}
	if r.Method != http.MethodPost {
		p := badRequest(http.StatusMethodNotAllowed, "method", "Use POST.")
		p.allow = http.MethodPost
		return p
	}
	if !h.mayControl(r.Header) {
		p := badRequest(http.StatusUnauthorized, "token", "The request lacks the token of observability.control_token: send it as Authorization: Bearer TOKEN.")
		p.authenticate = `Bearer realm="throttle"`
		return p
	}
	ask, err := readWish(w, r, verb)
	if err != nil {
		return badRequest(http.StatusBadRequest, "body", err.Error())
	}
	var length time.Duration
	if verb == "pause" {
		var positive bool
		if length, positive = parsePause(ask.For); !positive {
			return badRequest(http.StatusBadRequest, "for", fmt.Sprintf("for is %q: it must be a length of time above zero, such as 10m, or a number of seconds.", shortened(ask.For)))
		}
	}
	name, l, p := h.quota(ask.Name, verb)
	if p != nil {
		return p
	}
	return h.change(w, r, verb, name, l, length, ask.Reason)
}

// parsePause reads the length of a pause, and reports whether it is above zero.
func parsePause(text string) (d time.Duration, ok bool) {
	d, ok = parseWait(text)
	if exact, err := time.ParseDuration(text); err == nil && exact <= 0 {
		ok = false
	} else if n, err := strconv.ParseFloat(text, 64); err == nil && n <= 0 {
		ok = false
	}
	return d, ok
}

// mayControl reports whether a request has the token. It compares in constant time.
func (h *Handler) mayControl(header http.Header) bool {
	want := sha256.Sum256([]byte(h.opts.ControlToken))
	scheme, token, _ := strings.Cut(first(header, "Authorization"), " ")
	given := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return strings.EqualFold(scheme, "bearer") && subtle.ConstantTimeCompare(given[:], want[:]) == 1
}

// readWish reads the body of a request: JSON, or a form.
func readWish(w http.ResponseWriter, r *http.Request, verb string) (ask Wish, err error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(controlTime))
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostWish))
	if err != nil {
		return ask, fmt.Errorf("the body cannot be read within %v and %d bytes", controlTime, mostWish)
	}
	fields := `name and, to pause, for and reason, such as {"name": "github", "for": "10m", "reason": "incident"}`
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/x-www-form-urlencoded" {
		form, err := url.ParseQuery(string(body))
		for name, values := range form {
			if to := map[string]*string{"name": &ask.Name, "for": &ask.For, "reason": &ask.Reason}[name]; to != nil && len(values) == 1 {
				*to = values[0]
				continue
			}
			err = errors.Join(err, errors.New(name))
		}
		switch {
		case strings.HasPrefix(strings.TrimSpace(string(body)), "{"): // as curl -d sends it
			return ask, errors.New("the body is JSON, but its Content-Type is that of a form: send Content-Type: application/json")
		case err != nil:
			return ask, errors.New("the form is not valid: it has " + fields)
		}
	} else {
		d := json.NewDecoder(strings.NewReader(string(body)))
		d.DisallowUnknownFields()
		if err := d.Decode(&ask); err != nil || d.More() {
			return ask, errors.New("the body is neither a form nor JSON that is valid: it has " + fields)
		}
	}
	switch {
	case ask.Name == "":
		return ask, errors.New("name is missing: it is the name of a route's quota, such as github, or its prefix")
	case verb != "pause" && ask.For+ask.Reason != "":
		return ask, errors.New("for and reason belong to a pause: leave them out")
	case len(ask.Reason) > mostReason || strings.ContainsFunc(ask.Reason, unicode.IsControl):
		return ask, fmt.Errorf("reason must have at most %d bytes and no control characters", mostReason)
	}
	return ask, nil
}

// quota returns the limiter of a name, for a verb: that of a route's quota, its prefix, or "client:" and a client.
func (h *Handler) quota(name, verb string) (found string, l *throttle.Limiter, p *problem) {
	t := h.table.Load()
	for _, r := range t.routes {
		for _, m := range r.Members {
			if name == r.name()+"/"+m.Name {
				if m.Known == nil {
					return "", nil, apart("member "+name, verb, "remove the member from the file")
				}
				return name, m.Known, nil
			}
		}
		switch {
		case name != r.name() && name != r.Prefix:
		case r.Known == nil, verb == "forget" && !r.Whole: // what follows or learns has keys
			if len(r.Members) > 0 {
				return "", nil, badRequest(http.StatusConflict, "name", "The route "+r.name()+" has a pool and no quota in which all its requests count: "+verb+" its members, such as "+r.name()+"/"+r.Members[0].Name+".")
			}
			return "", nil, apart("route "+r.name(), verb, "give it a budget, which a pause then stops, or pause the API's other limits by removing the route from the file")
		default:
			return r.name(), r.Known, nil
		}
	}
	for _, c := range t.clients {
		if name == clientPrefix+c.Name && c.Quota != nil {
			return name, c.Quota, nil
		}
	}
	return "", nil, badRequest(http.StatusNotFound, "name", fmt.Sprintf("No route has the name %q: the names are %s.", shortened(name), t.names()))
}

// apart returns the problem of a change of what has no quota in which all requests count.
func apart(what, verb, fix string) *problem {
	if verb == "forget" {
		fix = "what these have learned cannot be forgotten by request"
	}
	return badRequest(http.StatusConflict, "name", "The "+what+" counts each model, account or another key apart, and has no quota in which all its requests count: "+fix+".")
}

// names lists the names that can be paused.
func (tab *table) names() string {
	all := slices.Clone(tab.watched)
	for _, r := range tab.routes {
		for _, m := range r.Members {
			all = append(all, r.name()+"/"+m.Name)
		}
	}
	slices.Sort(all)
	if len(all) > 20 {
		return strings.Join(all[:20], ", ") + " and others"
	}
	return strings.Join(all, ", ")
}

// shortened returns the beginning of a long text.
func shortened(text string) string { return text[:min(len(text), 100)] }

// change changes a quota, and responds with its state.
func (h *Handler) change(w http.ResponseWriter, r *http.Request, verb, name string, l *throttle.Limiter, length time.Duration, reason string) *problem {
	ctx, cancel := context.WithTimeout(r.Context(), controlTime)
	defer cancel()
	done, err := Change(ctx, l, verb, length)
	if err != nil {
		h.opts.Log.Warn("a quota was not changed by request", "verb", verb, "name", name)
		p := badRequest(http.StatusServiceUnavailable, "unavailable", "The store of the quotas did not answer. The change may hold in this process alone: ask again.")
		p.retryAfter = controlTime
		return p
	}
	done.Name, done.Reason = name, reason
	left := time.Duration(done.Paused * float64(time.Second))
	h.reasons.set(name, reason, left)
	h.opts.Log.Warn("a quota was changed by request", "verb", verb, "name", name, "paused", seconds(left))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(done)
	return nil
}

// reasons are why quotas were paused by request, by name.
type reasons struct {
	mu  sync.Mutex // guards all
	all map[string]pauseReason
}

type pauseReason struct {
	text  string
	until time.Time
}

// set keeps the reason of a pause that lasts for some time. Without a pause it forgets the reason.
func (r *reasons) set(name, text string, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if left <= 0 {
		delete(r.all, name)
		return
	}
	if r.all == nil {
		r.all = make(map[string]pauseReason)
	}
	r.all[name] = pauseReason{text, time.Now().Add(left)}
}

// describe adds the reasons to the notes of the policies that are paused.
func (r *reasons) describe(notes map[string]string, policies []page.Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range policies {
		why, known := r.all[p.Name]
		if !known || p.Paused <= 0 || time.Now().After(why.until) {
			continue
		}
		text := "Paused by request."
		if why.text != "" {
			text = "Paused by request: " + why.text
		}
		notes[p.Name] = strings.TrimSpace(text + " " + notes[p.Name])
	}
}
