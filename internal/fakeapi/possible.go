package fakeapi

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// Delivery and Service are the bounds of the times that requests take to reach an API under load, and
// that it takes to answer them.
var (
	Delivery = [2]time.Duration{20 * time.Millisecond, 200 * time.Millisecond}
	Service  = [2]time.Duration{10 * time.Millisecond, 50 * time.Millisecond}
)

// NewSlowServer returns a stand-in with the delays Delivery and Service.
func NewSlowServer(a *API) *Server {
	s := NewServer(a)
	s.Latency, s.Hold = Between(Delivery[0], Delivery[1]), Between(Service[0], Service[1])
	return s
}

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
