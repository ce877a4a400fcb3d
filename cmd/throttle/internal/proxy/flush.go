package proxy

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// flushInterval is how long a header, or a part of a response of known length, may wait for more.
const flushInterval = 5 * time.Millisecond

// copyBody copies the body of a response to the client: streams part by part, and one of known length
// within flushInterval.
func (s *sweep) copyBody(w http.ResponseWriter, resp *http.Response) error {
	if resp.Body == http.NoBody {
		return nil
	}
	buf := buffers.Get()
	defer buffers.Put(buf)
	f := s.begin(w)
	defer f.end()
	streams := resp.ContentLength < 0 || isEventStream(resp.Header)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if err := f.write(buf[:n], streams && err == nil); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func isEventStream(h http.Header) bool {
	kind, _, _ := strings.Cut(first(h, "Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}

// A flusher writes a response. The sweep flushes what has been written within flushInterval.
type flusher struct {
	listed bool // in the sweep, whose mutex guards it

	mu      sync.Mutex          // guards all below
	w       http.ResponseWriter // nil if the response has ended
	sweep   *sweep
	pending atomic.Bool // changed with mu
}

// begin begins a response whose header was written, and not flushed.
func (s *sweep) begin(w http.ResponseWriter) *flusher {
	f := s.flushers.Get().(*flusher)
	f.mu.Lock()
	f.w, f.sweep = w, s
	f.pending.Store(true)
	f.mu.Unlock()
	s.add(f)
	return f
}

// write writes a part of the response, and flushes it if now is true.
func (f *flusher) write(p []byte, now bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.w.Write(p); err != nil {
		return err
	}
	if now {
		return f.flush()
	}
	if f.pending.CompareAndSwap(false, true) {
		f.sweep.add(f)
	}
	return nil
}

// flush flushes. A ResponseWriter that cannot is not one of net/http's server.
func (f *flusher) flush() error {
	f.pending.Store(false)
	if err := http.NewResponseController(f.w).Flush(); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// expire flushes what is pending.
func (f *flusher) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending.Load() {
		_ = f.flush() // the next write has the error, too
	}
}

// end ends the response. The server flushes the rest.
func (f *flusher) end() {
	f.mu.Lock()
	f.w = nil
	f.pending.Store(false)
	f.mu.Unlock()
	f.sweep.flushers.Put(f)
}

// A sweep flushes responses within flushInterval after they were added. A timer for each response would
// wake a thread for each, because it is earlier than all other timers.
type sweep struct {
	flushers sync.Pool

	mu     sync.Mutex // guards all below, and listed of each flusher
	timer  *time.Timer
	listed []*flusher
	spare  []*flusher // the slice of the last run
}

func (s *sweep) add(f *flusher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.listed {
		return
	}
	f.listed = true
	s.listed = append(s.listed, f)
	switch {
	case len(s.listed) > 1:
	case s.timer == nil:
		s.timer = time.AfterFunc(flushInterval, s.run)
	default:
		s.timer.Reset(flushInterval)
	}
}

// run flushes what was added. A flusher that serves another response by now is flushed early.
func (s *sweep) run() {
	s.mu.Lock()
	due := s.listed
	s.listed, s.spare = s.spare, nil
	for _, f := range due {
		f.listed = false
	}
	s.mu.Unlock()
	for i, f := range due {
		if f.pending.Load() {
			go f.expire() // a client that does not read delays no other one
		}
		due[i] = nil
	}
	s.mu.Lock()
	s.spare = due[:0]
	s.mu.Unlock()
}
