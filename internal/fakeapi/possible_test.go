package fakeapi

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/httpmem"
)

// Stagger is the time between the starts of two workers. No two workers act at the same instant, so
// a run is always the same.
const Stagger = 37 * time.Microsecond

// Possible returns what an API accepts from start on, if each request that it would refuse waits at
// its door until it is admitted. No client can send more. Workers send the traffic in turn. Held is
// the time for which each limit made requests wait.
func Possible(a *API, workers int, start time.Time, length time.Duration) (accepted []Arrival, held map[string]time.Duration) {
	s := NewSlowServer(a)
	s.patient = true
	held = map[string]time.Duration{}
	type event struct {
		at      int64
		n       int // number of the request
		request *http.Request
		body    []byte
		answer  *answer // nil until the request is admitted
	}
	pending := make([]event, workers)
	send := func(w int, at int64, n int) {
		r := a.Traffic[w%len(a.Traffic)].Build(a, w, n)
		r.Header.Set(Worker, strconv.Itoa(w))
		e := event{at: at + s.Latency(r).Microseconds(), n: n, request: r}
		if r.Body != nil {
			e.body, _ = io.ReadAll(r.Body)
		}
		pending[w] = e
	}
	for w := range pending {
		send(w, start.Add(time.Duration(w)*Stagger).UnixMicro(), w)
	}
	for end := start.Add(length).UnixMicro(); ; {
		w := 0
		for i := range pending {
			if pending[i].at < pending[w].at {
				w = i
			}
		}
		e := &pending[w]
		if e.at > end {
			break
		}
		if e.answer != nil {
			s.settle(e.answer, e.at)
			s.end(e.answer, e.at)
			send(w, e.at, e.n+workers)
			continue
		}
		judged := s.judge(e.request, e.body, e.at)
		if judged.refused == nil {
			e.answer = judged
			e.at += s.Hold(e.request).Microseconds()
			continue
		}
		wait := max(judged.wait, time.Millisecond)
		if judged.refused.tier.Algorithm == algorithms.Concurrency {
			wait = 5 * time.Millisecond
		}
		held[judged.refused.ID] += min(wait, time.Duration(end-e.at)*time.Microsecond)
		e.at += wait.Microseconds()
	}
	for _, r := range s.seen {
		if r.Refused == nil {
			accepted = append(accepted, r)
		}
	}
	return accepted, held
}

// Arrive judges a request that arrives now, and returns the response if it is refused.
func (s *Server) Arrive(r *http.Request) (response *http.Response, body string, refused bool) {
	var sent []byte
	if r.Body != nil {
		sent, _ = io.ReadAll(r.Body)
	}
	a := s.judge(r, sent, s.now())
	if a.refused == nil {
		return nil, "", false
	}
	status, header := s.head(a)
	body = s.body(a)
	return httpmem.Response(r, status, header, body, func() {}), body, true
}

// AnswerOf returns the index of the answer to an accepted request, or -1.
func (s *Server) AnswerOf(r *http.Request) int { return s.api.answerOf(snapshot(s.api, r)) }

// Counts reports whether a limit counts a request.
func Counts(a *API, l *Limit, r *http.Request) bool {
	q := snapshot(a, r)
	if _, ok := l.fits(q); !ok {
		return false
	}
	cost, _ := q.cost(l)
	return cost > 0
}

// snapshot returns a request without consuming its body.
func snapshot(a *API, r *http.Request) *request {
	var sent []byte
	if r.GetBody != nil {
		if body, err := r.GetBody(); err == nil {
			sent, _ = io.ReadAll(body)
		}
	}
	return NewServer(a).newRequest(r, sent, time.Now().UnixMicro())
}
