package page

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	maxViewers   = 100
	tick         = time.Second
	writeTimeout = 10 * time.Second // for one event
	queuedEvents = 4                // that a viewer has not read yet; one with more is disconnected
)

// A hub sends events to viewers. It has one goroutine while there are viewers, and none otherwise.
type hub struct {
	source *source
	wake   chan struct{} // holds one: a viewer has come, or the last one has gone

	mu      sync.Mutex // guards all below
	viewers map[*viewer]bool
	serving int // requests of viewers, also of those that are disconnected
	running bool
}

// A viewer receives events. The hub closes the channel of a viewer that is too slow.
type viewer struct {
	events chan []byte
	known  bool // it has received a full state; guarded by hub.mu
}

func newHub(s *source) *hub {
	return &hub{source: s, wake: make(chan struct{}, 1), viewers: make(map[*viewer]bool)}
}

// ServeHTTP sends events until the viewer leaves or is too slow. A browser then connects again, and
// receives the full state.
func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "text/event-stream")
		return
	}
	v := h.join()
	if v == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d others watch already", maxViewers), http.StatusServiceUnavailable)
		return
	}
	defer h.leave(v)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events back
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the server's ReadTimeout would end the request
	if err := send(w, control, nil); err != nil {
		http.Error(w, "events need a ResponseWriter that supports Flush; state.json has the same", http.StatusNotImplemented)
		return
	}
	h.look()
	for {
		select {
		case event, ok := <-v.events:
			if !ok || send(w, control, event) != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// send writes an event. Its deadline replaces the server's WriteTimeout, where w supports deadlines.
func send(w http.ResponseWriter, control *http.ResponseController, event []byte) error {
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if len(event) > 0 {
		if _, err := w.Write(event); err != nil {
			return err
		}
	}
	return control.Flush()
}

// join adds a viewer, or returns nil if there are too many.
func (h *hub) join() *viewer {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.serving >= maxViewers {
		return nil
	}
	h.serving++
	v := &viewer{events: make(chan []byte, queuedEvents)}
	h.viewers[v] = true
	if !h.running {
		h.running = true
		go h.run()
	}
	return v
}

// leave removes a viewer whose request has ended.
func (h *hub) leave(v *viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serving--
	delete(h.viewers, v)
	if len(h.viewers) == 0 {
		h.look()
	}
}

// look makes the goroutine look at the viewers now.
func (h *hub) look() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run sends a state to all viewers each second, until there are none.
func (h *hub) run() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var stream stream
	for id := 1; ; id++ {
		age := maxAge // for a viewer that has come
		select {
		case <-ticker.C:
			age = 0
		case <-h.wake:
		}
		if !h.watched() {
			return
		}
		state, err := h.source.state(context.Background(), age)
		if err != nil {
			continue
		}
		full, changes := stream.next(id, state)
		h.deliver(full, changes)
	}
}

// watched reports whether there are viewers. If not, the goroutine ends.
func (h *hub) watched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = len(h.viewers) > 0
	return h.running
}

// deliver sends the changes to the viewers that know the state before, and the full state to others.
func (h *hub) deliver(full func() []byte, changes []byte) {
	var all []byte
	if changes == nil || h.hasNew() {
		all = full()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for v := range h.viewers {
		event := changes
		if !v.known || changes == nil {
			event = all
		}
		if event == nil { // it came just now, and has called look
			continue
		}
		select {
		case v.events <- event:
			v.known = true
		default: // too slow
			delete(h.viewers, v)
			close(v.events)
		}
	}
}

// hasNew reports whether a viewer has no state yet.
func (h *hub) hasNew() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for v := range h.viewers {
		if !v.known {
			return true
		}
	}
	return false
}

// A stream makes events of states.
type stream struct {
	time  time.Time
	names []string
	sent  map[string][]byte // each policy without its history, by name
}

// next returns the events for a state: the full state, and what has changed since the state before. There
// are no changes if policies have come or gone.
func (s *stream) next(id int, state *State) (full func() []byte, changes []byte) {
	sent, names := make(map[string][]byte), make([]string, 0, len(state.Policies))
	changed := *state
	changed.Policies = []Policy{}
	recent := 2 + int(state.Time.Sub(s.time)/time.Second) // and the second that had not ended
	for _, p := range state.Policies {
		history := p.History
		p.History = History{}
		sent[p.Name], names = marshal(p), append(names, p.Name)
		p.History = history.last(recent)
		if !p.History.quiet() || !bytes.Equal(sent[p.Name], s.sent[p.Name]) {
			changed.Policies = append(changed.Policies, p)
		}
	}
	if slices.Equal(names, s.names) && recent < historySeconds {
		changes = event(id, "tick", changed)
	}
	s.time, s.names, s.sent = state.Time, names, sent
	return func() []byte { return event(id, "state", *state) }, changes
}

// event returns a server-sent event.
func event(id int, name string, s State) []byte {
	return fmt.Appendf(nil, "id: %d\nevent: %s\nretry: 2000\ndata: %s\n\n", id, name, marshal(s))
}
