package providers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/httpmem"
	"github.com/apithrottle/throttle/providers"
)

// This file has the parts of stand-ins of language models' APIs: counters of tokens that are known
// at the end of an answer, and clients to compare a preset with. The rules of each API, and their
// sources, stand in the files standin_*_test.go. They were written from documentation and recorded
// responses, without the presets.

// A minutePool counts units of a minute: a bucket that refills all the time or, if sliding is set,
// the units of requests in progress and of requests that ended within the last minute.
type minutePool struct {
	limit, burst float64
	sliding      bool

	level float64 // of a bucket, at the time at
	at    time.Time
	held  float64 // of a sliding minute, by requests in progress
	log   []ended
}

type ended struct {
	at time.Time
	n  float64
}

// left returns the units that are left now. It may be below 0.
func (p *minutePool) left() float64 {
	now := time.Now()
	if !p.sliding {
		if p.at.IsZero() {
			p.level = p.burst
		} else {
			p.level = min(p.burst, p.level+now.Sub(p.at).Minutes()*p.limit)
		}
		p.at = now
		return p.level
	}
	left := p.burst - p.held
	for len(p.log) > 0 && now.Sub(p.log[0].at) >= time.Minute {
		p.log = p.log[1:]
	}
	for _, e := range p.log {
		left -= e.n
	}
	return left
}

// take charges a request that begins, and settle what it cost in the end instead.
func (p *minutePool) take(n float64) {
	p.left()
	p.level -= n
	p.held += n
}

func (p *minutePool) settle(first, last float64) {
	p.left()
	p.level += first - last
	p.held -= first
	if p.sliding {
		p.log = append(p.log, ended{time.Now(), last})
	}
}

// wait returns the time until need units are left, if no request ends until then.
func (p *minutePool) wait(need float64) time.Duration {
	missing := need - p.left()
	if !p.sliding {
		return time.Duration(math.Ceil(missing/p.limit*60_000)) * time.Millisecond
	}
	for _, e := range p.log {
		if missing -= e.n; missing <= 0 {
			return time.Until(e.at.Add(time.Minute))
		}
	}
	return time.Second // a request in progress must end
}

// A question is a request to a model, as its API reads it.
type question struct {
	*http.Request
	body   map[string]any
	model  string
	system string  // the system prompt of a chat
	input  float64 // tokens of the prompt
	cached float64 // of them read from the prompt cache
	output float64 // tokens of the answer
}

// Output is the header by which a test says how many tokens the model will write.
const Output = "X-Test-Output"

// readQuestion reads a request. Its text is made of sentences of 15 tokens and 69 bytes.
func readQuestion(r *http.Request) (*question, error) {
	q := &question{Request: r}
	text, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &q.body); err != nil {
		return nil, err
	}
	q.model, _ = q.body["model"].(string)
	if _, path, ok := strings.Cut(r.URL.Path, "/model/"); ok {
		q.model, _, _ = strings.Cut(path, "/")
	}
	for _, name := range []string{"system", "messages", "prompt", "contents"} {
		q.input += tokensIn(q.body[name])
	}
	q.system = systemOf(q.body)
	q.output, _ = strconv.ParseFloat(r.Header.Get(Output), 64)
	return q, nil
}

// number returns a number of the body, or 0.
func (q *question) number(names ...string) float64 {
	for _, name := range names {
		if n, ok := q.body[name].(float64); ok {
			return n
		}
	}
	return 0
}

// systemOf returns the system prompt of a chat, or "".
func systemOf(body map[string]any) string {
	messages, _ := body["messages"].([]any)
	for _, m := range messages {
		if m, ok := m.(map[string]any); ok && m["role"] == "system" {
			return fmt.Sprint(m["content"])
		}
	}
	return ""
}

func tokensIn(v any) (n float64) {
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			if name != "role" && name != "type" {
				n += tokensIn(x)
			}
		}
	case []any:
		for _, x := range v {
			n += tokensIn(x)
		}
	case string:
		n = math.Ceil(float64(len(v)) * 15 / 69)
	}
	return n
}

// text returns a text of a number of tokens, which is a multiple of 15.
func text(tokens int) string {
	return fakeapi.Fill(fmt.Sprintf("${words %d}", 14*(tokens/15-1)), 0, 0)
}

// A demand is what a question needs and takes of a pool: what must be left when it arrives, what it
// is charged then, and in the end.
type demand struct {
	pool              *minutePool
	need, first, last float64
}

// A reply is a response of a stand-in.
type reply struct {
	status int
	header http.Header
	body   string
}

// rules are the rules of an API. Their functions are called one at a time.
type rules struct {
	// demands returns what a question demands of the pools.
	demands func(*llm, *question) []demand
	// answer and refusal return responses. A refusal is due to a demand.
	answer  func(*llm, *question) reply
	refusal func(*llm, *question, demand) reply
	// gate returns a refusal that has nothing to do with pools, or nil. If gate is nil, there is none.
	gate func(*question) *reply
	// start and speed are the time to the first token, and the tokens a second after it.
	start time.Duration
	speed float64
}

// An llm is a stand-in of a language model's API.
type llm struct {
	rules
	latency func(*http.Request) time.Duration
	// patient is true if the API lets requests wait at its door instead of refusing them.
	patient bool
	// guard shortens the bursts of buckets: see knowing.
	guard time.Duration

	mu     sync.Mutex // guards the fields below
	pools  map[string]*minutePool
	cached map[string]bool // system prompts that were answered
	seen   []arrival
}

// An arrival is a request that an llm has answered or refused.
type arrival struct {
	at      time.Time
	refused bool
	tokens  float64 // of input and output
}

func newLLM(r rules) *llm {
	return &llm{rules: r, latency: fakeapi.Between(20*time.Millisecond, 200*time.Millisecond), pools: map[string]*minutePool{}, cached: map[string]bool{}}
}

// bucket and sliding return the pool of a name.
func (s *llm) bucket(name string, limit float64) *minutePool {
	return s.pool(name, minutePool{limit: limit, burst: limit * (1 - s.guard.Minutes())})
}

func (s *llm) sliding(name string, limit float64) *minutePool {
	return s.pool(name, minutePool{limit: limit, burst: limit, sliding: true})
}

func (s *llm) pool(name string, p minutePool) *minutePool {
	if s.pools[name] == nil {
		s.pools[name] = &p
	}
	return s.pools[name]
}

// RoundTrip answers a request in memory. The request arrives after the latency.
func (s *llm) RoundTrip(r *http.Request) (*http.Response, error) {
	q, err := readQuestion(r)
	if err != nil {
		return nil, err
	}
	if err := sleep(r.Context(), s.latency(r)); err != nil {
		return nil, err
	}
	all, refusal, err := s.admit(q)
	if err != nil {
		return nil, err
	}
	if refusal != nil {
		return httpmem.Response(r, refusal.status, refusal.header, refusal.body, func() {}), nil
	}
	err = sleep(r.Context(), s.start+time.Duration(q.output/s.speed*float64(time.Second)))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range all {
		d.pool.settle(d.first, d.last)
	}
	if err != nil {
		return nil, err
	}
	answer := s.answer(s, q)
	return httpmem.Response(r, 200, answer.header, answer.body, func() {}), nil
}

// admit charges a question that has arrived, or refuses it.
func (s *llm) admit(q *question) (all []demand, refusal *reply, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		if refusal = s.gate(q); refusal != nil {
			s.seen = append(s.seen, arrival{time.Now(), true, 0})
			return nil, refusal, nil
		}
	}
	for {
		all = s.demands(s, q)
		short := shortOf(all)
		if short == nil {
			break
		}
		if !s.patient {
			s.seen = append(s.seen, arrival{time.Now(), true, 0})
			r := s.refusal(s, q, *short)
			return nil, &r, nil
		}
		wait := max(short.pool.wait(short.need), time.Millisecond)
		s.mu.Unlock()
		err = sleep(q.Context(), wait)
		s.mu.Lock()
		if err != nil {
			return nil, nil, err
		}
	}
	for _, d := range all {
		d.pool.take(d.first)
	}
	s.seen = append(s.seen, arrival{time.Now(), false, q.input + q.output})
	return all, nil, nil
}

// shortOf returns a demand that its pool can't meet, or nil.
func shortOf(all []demand) *demand {
	for i := range all {
		if all[i].pool.left() < all[i].need {
			return &all[i]
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	return httpmem.Sleep(ctx, func() time.Duration { return d })
}

// A knowing client has the rules of an API, counters of its own, and the length of each answer. It
// sends a request when the API will accept it, whenever within the latency it arrives. The API
// counts a request later than the client, and a full bucket gains nothing until then, so the
// client's buckets hold less by what they gain in the time of guard.
type knowing struct {
	api   *llm
	rules *llm
	turn  chan struct{} // holds a value while a request waits
}

func newKnowing(api *llm) *knowing {
	k := &knowing{api: api, rules: newLLM(api.rules), turn: make(chan struct{}, 1)}
	k.rules.guard = 5 * time.Second
	return k
}

func (k *knowing) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	copied := r.Clone(r.Context())
	copied.Body = body
	q, err := readQuestion(copied)
	if err != nil {
		return nil, err
	}
	all, err := k.wait(q)
	if err != nil {
		return nil, err
	}
	resp, err := k.api.RoundTrip(r)
	k.rules.mu.Lock()
	defer k.rules.mu.Unlock()
	for _, d := range all {
		d.pool.settle(max(d.first, d.last), d.last)
	}
	if err == nil && resp.StatusCode == http.StatusOK {
		k.rules.answer(k.rules, q) // the API may remember the question
	}
	return resp, err
}

// wait blocks until a question can be sent, and charges it.
func (k *knowing) wait(q *question) ([]demand, error) {
	if k.rules.gate != nil && k.rules.gate(q) != nil {
		return nil, nil
	}
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-q.Context().Done():
		return nil, q.Context().Err()
	}
	for {
		k.rules.mu.Lock()
		all := k.rules.demands(k.rules, q)
		short := shortOf(all)
		if short == nil {
			for _, d := range all {
				d.pool.take(max(d.first, d.last))
			}
			k.rules.mu.Unlock()
			return all, nil
		}
		k.rules.mu.Unlock()
		if err := sleep(q.Context(), 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// A load is a number of workers that send requests for a time, each one after the answer to the one
// before. It is measured after the first minute, when bursts are spent and answers are known.
type load struct {
	workers int
	length  time.Duration
	next    func(t *testing.T, worker, n int) *http.Request
}

// An outcome is what a stand-in saw of a load.
type outcome struct {
	served, refused int     // after the first minute
	tokens          float64 // of the requests served
	early           int     // refused in the first minute
}

// play runs a load against an API through a client.
func (l load) play(t *testing.T, api *llm, client http.RoundTripper) (o outcome) {
	t.Helper()
	start, sent := time.Now(), make([]int, l.workers)
	saturate(t, client, l.workers, l.length, func(w int) *http.Request {
		sent[w]++
		r := l.next(t, w, sent[w])
		r.Header.Set(fakeapi.Worker, strconv.Itoa(w))
		return r
	})
	for _, a := range api.seen {
		late := a.at.Sub(start) >= time.Minute
		switch {
		case a.refused && late:
			o.refused++
		case a.refused:
			o.early++
		case late:
			o.served++
			o.tokens += a.tokens
		}
	}
	return o
}

// A contest compares a preset with what is possible at an API, and with a client that knows its
// rules.
type contest struct {
	api    func() rules
	preset func() providers.Provider
	load   load
	share  float64 // of what is possible
	early  bool    // requests may be refused in the first minute
}

func (c contest) run(t *testing.T) {
	possible := c.play(t, func(t *testing.T, api *llm) http.RoundTripper {
		api.patient = true
		return api
	})
	for name, client := range map[string]func(*testing.T, *llm) http.RoundTripper{
		"a client that knows the rules": func(t *testing.T, api *llm) http.RoundTripper { return newKnowing(api) },
		"the preset":                    func(t *testing.T, api *llm) http.RoundTripper { return over(t, c.preset(), api) },
	} {
		t.Run(name, func(t *testing.T) {
			o := c.play(t, client)
			share := o.tokens / possible.tokens
			t.Logf("after the first minute %.0f of %.0f possible tokens in %d of %d answers: %.2f; %d refused, and %d in the first minute",
				o.tokens, possible.tokens, o.served, possible.served, share, o.refused, o.early)
			if o.refused > 0 || o.early > 0 && !c.early {
				t.Errorf("%d requests refused, and %d in the first minute", o.refused, o.early)
			}
			if share < c.share {
				t.Errorf("%.2f of the possible tokens, want at least %.2f", share, c.share)
			}
		})
	}
}

func (c contest) play(t *testing.T, client func(*testing.T, *llm) http.RoundTripper) (o outcome) {
	synctest.Test(t, func(t *testing.T) {
		api := newLLM(c.api())
		o = c.load.play(t, api, client(t, api))
	})
	return o
}

// jsonRequest returns a POST request of JSON whose answer will have a number of tokens.
func jsonRequest(t *testing.T, url string, body map[string]any, output int) *http.Request {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(Output, strconv.Itoa(output))
	return r
}

// drawn returns the n-th number of a worker from low to high. It does not depend on the order in
// which workers run.
func drawn(worker, n, low, high int) int {
	random := rand.New(rand.NewPCG(uint64(worker), uint64(n)))
	return low + random.IntN(high-low+1)
}

// messagesOf returns the messages of a chat with one question.
func messagesOf(tokens int) []any {
	return []any{map[string]any{"role": "user", "content": text(tokens)}}
}

// whole returns a count of tokens for a header, not below 0.
func whole(n float64) string { return strconv.FormatInt(int64(max(0, n)), 10) }

// seconds returns a wait in whole seconds, rounded up.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// jsonHeader returns the headers of a JSON response. Pairs are names and values.
func jsonHeader(pairs ...string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}
