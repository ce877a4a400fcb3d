package providers_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
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

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// A refilled is a token bucket that holds a minute's limit and may be overdrawn.
type refilled struct {
	limit, left float64
	drain       float64 // tokens a second that are taken all the time
	drained     float64 // tokens that it took
	at          time.Time
}

func newRefilled(limit float64) refilled { return refilled{limit: limit, left: limit, at: time.Now()} }

func (b *refilled) take(n float64) {
	now := time.Now()
	drained := b.drain * now.Sub(b.at).Seconds()
	b.left = min(b.limit, b.left+b.limit*now.Sub(b.at).Minutes()-drained) - n
	b.drained += drained
	b.at = now
}

// A messagesAPI counts as Anthropic documents it. Uncached input is taken from its bucket when a
// request arrives, and refused if there is not enough. Output is taken as it is written, max_tokens
// plays no part, and a request is refused while the bucket is empty. A prompt that ends in a
// breakpoint is in the cache for five minutes after an answer.
type messagesAPI struct {
	// answer returns the tokens of the answer to a system prompt, and how long it takes.
	answer func(system string) (tokens int, takes time.Duration)
	fresh  float64 // tokens behind the breakpoint
	prefix float64 // tokens before it
	silent bool    // the answers lack rate headers

	mu            sync.Mutex
	input, output refilled
	cached        map[string]time.Time
	answers       int
	refused       map[string]int
}

func (api *messagesAPI) RoundTrip(req *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(req.Body)
	req.Body.Close()
	if err != nil {
		return nil, err
	}
	var body struct {
		Stream bool
		System []struct{ Text string }
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return nil, err
	}
	time.Sleep(10*time.Millisecond + rand.N(20*time.Millisecond))
	prefix := ""
	if len(body.System) > 0 {
		prefix = body.System[0].Text
	}
	read, created, header, refusal := api.receive(prefix)
	if refusal != nil {
		return refusal, nil
	}
	tokens, takes := api.answer(prefix)
	usage := fmt.Sprintf(`"input_tokens":%.0f,"cache_creation_input_tokens":%.0f,"cache_read_input_tokens":%.0f`, api.fresh, created, read)
	write := func() {
		perSecond := float64(tokens) / takes.Seconds()
		api.write(perSecond)
		time.Sleep(takes)
		api.write(-perSecond)
		api.end(prefix)
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: header, Request: req}
	if !body.Stream {
		write()
		header.Set("Content-Type", "application/json")
		resp.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"type":"message","usage":{%s,"output_tokens":%d}}`, usage, tokens)))
		return resp, nil
	}
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	out, in := io.Pipe()
	go func() {
		fmt.Fprintf(in, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{%s,\"output_tokens\":1}}}\n\n", usage)
		write()
		fmt.Fprintf(in, "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":%d}}\n\n", tokens)
		in.Close()
	}()
	resp.Body = out
	return resp, nil
}

// receive counts the input of a request, or refuses the request.
func (api *messagesAPI) receive(prefix string) (read, created float64, header http.Header, refusal *http.Response) {
	api.mu.Lock()
	defer api.mu.Unlock()
	if created = api.prefix; time.Now().Before(api.cached[prefix]) {
		read, created = api.prefix, 0
		api.cached[prefix] = time.Now().Add(5 * time.Minute)
	}
	api.input.take(0)
	api.output.take(0)
	header = http.Header{}
	refuse := func(of string, lacking, limit float64) *http.Response {
		api.refused[of]++
		header.Set("Retry-After", strconv.Itoa(int(math.Ceil(lacking/limit*60))))
		return &http.Response{StatusCode: http.StatusTooManyRequests, Header: header, Body: io.NopCloser(strings.NewReader(`{"type":"error","error":{"type":"rate_limit_error"}}`))}
	}
	switch lacking := api.fresh + created - api.input.left; {
	case lacking > 0:
		return 0, 0, nil, refuse("input", lacking, api.input.limit)
	case api.output.left < 1:
		return 0, 0, nil, refuse("output", 1-api.output.left, api.output.limit)
	}
	api.input.take(api.fresh + created)
	for name, b := range map[string]*refilled{"Input": &api.input, "Output": &api.output} {
		if api.silent {
			break
		}
		header.Set("Anthropic-Ratelimit-"+name+"-Tokens-Limit", fmt.Sprintf("%.0f", b.limit))
		header.Set("Anthropic-Ratelimit-"+name+"-Tokens-Remaining", fmt.Sprintf("%.0f", max(0, math.Round(b.left/1000)*1000)))
		header.Set("Anthropic-Ratelimit-"+name+"-Tokens-Reset", time.Now().Add(time.Duration((b.limit-b.left)/b.limit*float64(time.Minute))).UTC().Format(time.RFC3339))
	}
	return read, created, header, nil
}

// write adds tokens a second to what all answers write.
func (api *messagesAPI) write(perSecond float64) {
	api.mu.Lock()
	defer api.mu.Unlock()
	api.output.take(0)
	api.output.drain += perSecond
}

func (api *messagesAPI) end(prefix string) {
	api.mu.Lock()
	defer api.mu.Unlock()
	api.answers++
	if api.prefix > 0 {
		api.cached[prefix] = time.Now().Add(5 * time.Minute)
	}
}

// state returns the answers and the tokens that were written, and the number of refusals.
func (api *messagesAPI) state() (answers int, written float64, refused int) {
	api.mu.Lock()
	defer api.mu.Unlock()
	for _, n := range api.refused {
		refused += n
	}
	api.output.take(0)
	return api.answers, api.output.drained, refused
}

func newMessagesAPI(input, output float64, answer func(string) (int, time.Duration)) *messagesAPI {
	return &messagesAPI{answer: answer, input: newRefilled(input), output: newRefilled(output), cached: map[string]time.Time{}, refused: map[string]int{}}
}

// steady returns answers of a number of tokens, which take as long.
func steady(tokens int, takes time.Duration) func(string) (int, time.Duration) {
	return func(string) (int, time.Duration) { return tokens, takes }
}

// lognormal returns answers of random length, with that mean. The model writes 40 tokens a second.
func lognormal(mean float64) func(string) (int, time.Duration) {
	return func(string) (int, time.Duration) {
		n := max(1, math.Round(mean*math.Exp(rand.NormFloat64()-0.5)))
		return int(n), time.Duration(n / 40 * float64(time.Second))
	}
}

// goOn returns a request for an answer of at most 128,000 tokens.
func goOn(stream bool, system string) string {
	return fmt.Sprintf(`{"model":"claude-opus-4-8","max_tokens":128000,"stream":%t,"system":[{"type":"text","text":%q,"cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"Go on."}]}`, stream, system)
}

// work keeps workers busy with requests for the duration d.
func work(t *testing.T, rt http.RoundTripper, workers int, d time.Duration, body func(worker int) string) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		saturate(t, rt, workers, d, func(w int) *http.Request { return postJSON(t, "https://api.anthropic.com/v1/messages", body(w)) })
	})
	return wg.Wait
}

// max_tokens is no reason to send fewer requests: after 20 answers the limit of output tokens is
// used, and no request is refused.
func TestAnthropicOutputIsLearned(t *testing.T) {
	mixed := func(system string) (int, time.Duration) {
		if system == "long" {
			return lognormal(8_000)(system)
		}
		return lognormal(800)(system)
	}
	for _, load := range []struct {
		name   string
		answer func(string) (int, time.Duration)
		stream bool
		of     int64   // the fraction that "make test" plays; few answers of random length differ too much
		least  float64 // of the limit that is used
	}{
		{"800 tokens in 20 s", steady(800, 20*time.Second), false, 10, 0.9},
		{"800 tokens on average", lognormal(800), true, 1, 0.9},
		{"8,000 tokens on average, in 200 s", lognormal(8_000), false, 1, 0.5},
		{"both, by the system prompt", mixed, true, 1, 0.65},
	} {
		t.Run(load.name, func(t *testing.T) {
			soak.Sample(t, 4)
			synctest.Test(t, func(t *testing.T) {
				limit, workers := scaled(400_000, load.of), scaled(250, load.of)
				api := newMessagesAPI(10e6, float64(limit), load.answer)
				wait := work(t, over(t, providers.Anthropic(10_000, 10e6, limit), api), int(workers), 8*time.Minute, func(w int) string {
					return goOn(load.stream, []string{"short", "long"}[w%2])
				})
				for answers := 0; answers < 20; answers, _, _ = api.state() {
					time.Sleep(time.Second)
				}
				_, before, _ := api.state()
				time.Sleep(5 * time.Minute)
				answers, after, refused := api.state()
				used := (after - before) / 5 / float64(limit)
				t.Logf("%.3f of the limit used, %d answers, %d refused", used, answers, refused)
				if used < load.least || refused > 0 {
					t.Errorf("%.2f of the limit used, want at least %.2f; %d refused", used, load.least, refused)
				}
				wait()
			})
		})
	}
}

// When answers become ten times longer at once, few requests are refused, and the limit is used
// again afterwards. Without rate headers only refusals and settled costs tell.
func TestAnthropicOutputGrows(t *testing.T) {
	soak.Long(t, "it plays many answers")
	const of = 4
	limit, workers, few := scaled(400_000, of), scaled(250, of), scaled(20, of)
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var tokens atomic.Int64
			tokens.Store(800)
			api := newMessagesAPI(10e6, float64(limit), func(string) (int, time.Duration) { return int(tokens.Load()), 20 * time.Second })
			api.silent = silent
			wait := work(t, over(t, providers.Anthropic(10_000, 10e6, limit), api), int(workers), 16*time.Minute, func(int) string { return goOn(true, "") })
			// run returns the part of the limit that is used, and the refusals.
			run := func(minutes int64) (float64, int64) {
				_, before, refusedBefore := api.state()
				time.Sleep(time.Duration(minutes) * time.Minute)
				_, after, refused := api.state()
				return (after - before) / float64(minutes*limit), int64(refused - refusedBefore)
			}
			run(2)
			tokens.Store(8_000)
			_, first := run(5)
			used, later := run(4)
			if t.Logf("without headers %t: %d refused, %.3f of the limit used", silent, first, used); first > few || later > 0 || used < 0.85 {
				t.Errorf("without headers %t: %d and %d requests with long answers refused, %.2f of the limit used", silent, first, later, used)
			}
			tokens.Store(800)
			run(2)
			if used, refused := run(3); used < 0.9 || refused > 0 {
				t.Errorf("without headers %t: %d requests with short answers refused, %.2f of the limit used", silent, refused, used)
			}
			wait()
		})
	}
}

// A prompt that the API reads from its cache is free, so 50 workers keep their own speed, 150
// requests a minute, from the first answer on.
func TestAnthropicCachedPrefix(t *testing.T) {
	const of = 5
	workers, prefix := scaled(50, of), scaled(150_000, of)
	want := 0.8 * float64(3*10*workers)
	for _, limit := range []int64{scaled(450_000, of), scaled(2_000_000, of)} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("limit %d, stream %t", limit, stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := providers.Anthropic(10_000, limit, 1_000_000)
					p.Tokens = func(text string) int64 { return map[string]int64{"a long text": prefix, "Go on.": 500}[text] }
					api := newMessagesAPI(float64(limit), 1_000_000, steady(800, 20*time.Second))
					api.fresh, api.prefix = 500, float64(prefix)
					wait := work(t, over(t, p, api), int(workers), 11*time.Minute, func(int) string { return goOn(stream, "a long text") })
					time.Sleep(10 * time.Minute)
					answers, _, refused := api.state()
					if t.Logf("%d answers", answers); float64(answers) < want || refused > 0 {
						t.Errorf("%d answers in 10 minutes, want at least %.0f; %v refused", answers, want, api.refused)
					}
					wait()
				})
			})
		}
	}
}

// stay answers each request with the next reply.
type stay struct {
	replies []fakeapi.Reply
	hold    time.Duration
}

func (s *stay) RoundTrip(req *http.Request) (*http.Response, error) {
	r := s.replies[0]
	if len(s.replies) > 1 {
		s.replies = s.replies[1:]
	}
	time.Sleep(s.hold)
	header := http.Header{"Content-Type": {"application/json"}}
	for name, value := range r.Header {
		header.Set(name, value)
	}
	return &http.Response{StatusCode: max(r.Status, 200), Header: header, Body: io.NopCloser(strings.NewReader(r.Body)), Request: req}, nil
}

// usage returns an answer of the Messages API.
func usage(input, created, read, output int) fakeapi.Reply {
	return fakeapi.Reply{Body: fmt.Sprintf(`{"type":"message","usage":{"input_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d,"output_tokens":%d}}`, input, created, read, output)}
}

// Anthropic's cache is used from the answer to a request with the same beginning on, until its
// lifetime ends or the API reports that it read nothing.
func TestAnthropicCachedEstimate(t *testing.T) {
	const (
		tools    = `"tools":[{"name":"tool1000","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}}],`
		system   = `"system":[{"type":"text","text":"text2000","cache_control":{"type":"ephemeral"}}],`
		hour     = `"system":[{"type":"text","text":"text2000","cache_control":{"type":"ephemeral","ttl":"1h"}}],`
		question = `{"role":"user","content":"text300"}`
		marked   = `{"role":"user","content":[{"type":"text","text":"text300","cache_control":{"type":"ephemeral"}}]}`
		answer   = `{"role":"assistant","content":[{"type":"text","text":"text70"}]}`
		again    = `{"content":[{"type":"text","text":"text5","cache_control":{"type":"ephemeral"}}],"role":"user"}`
		other    = `{"role":"user","content":"text400"}`
	)
	asks := func(before string, messages ...string) string {
		return `{"model":"claude-opus-4-8","max_tokens":10,` + before + `"messages":[` + strings.Join(messages, ",") + `]}`
	}
	last := func(before string, messages ...string) string { // the keys in another order
		return `{"messages":[` + strings.Join(messages, ",") + `],` + before + `"max_tokens":10,"model":"claude-opus-4-8"}`
	}
	for _, test := range []struct {
		name   string
		first  string
		answer fakeapi.Reply
		wait   time.Duration
		then   string
		most   int64 // tokens of the second request; its keys and names count for some more
	}{
		{"the same", asks(system, question), usage(300, 2000, 0, 1), 0, asks(system, question), 300},
		{"messages first", last(system, question), usage(300, 2000, 0, 1), 0, last(system, question), 300},
		{"tools and system", asks(tools+system, question), usage(300, 3000, 0, 1), 0, asks(system+tools, other), 400},
		{"tools only", asks(tools+system, question), usage(300, 3000, 0, 1), 0, asks(tools, question), 300},
		{"the prefix was read", asks(system, question), usage(300, 0, 2000, 1), 0, asks(system, other), 400},
		{"without tools", asks(tools+system, question), usage(300, 3000, 0, 1), 0, asks(system, question), 2300},
		{"not marked", asks("", question), usage(300, 0, 0, 1), 0, asks(system, question), 2300},
		{"too short for the cache", asks(system, question), usage(2300, 0, 0, 1), 0, asks(system, question), 2300},
		{"refused", asks(system, question), fakeapi.Reply{Status: 500}, 0, asks(system, question), 2300},
		{"after 4 minutes", asks(system, question), usage(300, 2000, 0, 1), 4 * time.Minute, asks(system, question), 300},
		{"after 6 minutes", asks(system, question), usage(300, 2000, 0, 1), 6 * time.Minute, asks(system, question), 2300},
		{"after 59 minutes", asks(hour, question), usage(300, 2000, 0, 1), 59 * time.Minute, asks(hour, question), 300},
		{"after 61 minutes", asks(hour, question), usage(300, 2000, 0, 1), 61 * time.Minute, asks(hour, question), 2300},
		{"a conversation", asks(system, marked), usage(0, 2300, 0, 1), 0, asks(system, question, answer, again), 75},
		{"its messages only", asks("", marked), usage(0, 300, 0, 1), 0, asks("", marked, answer, again), 75},
		{"another beginning", asks("", marked), usage(0, 300, 0, 1), 0, asks("", other, answer, again), 475},
		{"of the whole request", asks(`"cache_control":{"type":"ephemeral"},`, question), usage(0, 300, 0, 1), 0, last(`"cache_control":{"type":"ephemeral"},`, question, answer, other), 470},
		{"another model", asks(system, question), usage(300, 2000, 0, 1), 0, strings.Replace(asks(system, question), "4-8", "4-7", 1), 2300},
		{"more than 20 blocks on", asks("", marked), usage(0, 300, 0, 1), 0, asks("", question, strings.Repeat(answer+",", 20)+again), 300 + 20*70 + 5},
		{"Haiku 3.5", strings.Replace(asks(system, question), "opus-4-8", "3-5-haiku-20241022", 1), usage(300, 2000, 0, 1), 0, strings.Replace(asks(system, question), "opus-4-8", "3-5-haiku-20241022", 1), 2300},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := providers.Anthropic(10_000, 1e6, 1e6)
				p.Tokens = func(text string) int64 {
					n, _ := strconv.ParseInt(strings.TrimLeft(text, "abcdefghijklmnopqrstuvwxyz"), 10, 64)
					return n
				}
				transport, err := p.Transport(nil)
				if err != nil {
					t.Fatal(err)
				}
				transport.Base = &stay{replies: []fakeapi.Reply{test.answer}}
				const messages = "https://api.anthropic.com/v1/messages"
				send(t, transport, postJSON(t, messages, test.first))
				time.Sleep(test.wait)
				got := transport.Cost(postJSON(t, messages, test.then))["input-tokens"]
				if keys := int64(60); got < test.most || got > test.most+keys && test.name != "more than 20 blocks on" {
					t.Errorf("%d tokens, want %d and at most %d for keys", got, test.most, keys)
				}
			})
		})
	}
}

// If the API did not read what it should have in its cache, the next request is charged in full.
func TestAnthropicCacheMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.Anthropic(10_000, 1e6, 1e6)
		api := &stay{replies: []fakeapi.Reply{usage(10, 2000, 0, 1), usage(10, 2000, 0, 1), usage(10, 2000, 0, 1)}}
		transport, err := p.Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = api
		req := func() *http.Request {
			return postJSON(t, "https://api.anthropic.com/v1/messages", goOn(false, strings.Repeat("one ", 2_000)))
		}
		for i, cached := range []bool{false, true, false, true} {
			if got := transport.Cost(req())["input-tokens"]; cached != (got < 2_000) {
				t.Errorf("request %d: %d tokens", i, got)
			}
			send(t, transport, req())
		}
	})
}

// Until its end a stream that is cut off has reported one token. It is charged its estimate, and
// teaches nothing.
func TestAnthropicStreamCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.Anthropic(10_000, 1e6, 100_000)
		transport, err := p.Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = &stay{replies: []fakeapi.Reply{{Header: map[string]string{"Content-Type": "text/event-stream"},
			Body: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n"}}}
		req := postJSON(t, "https://api.anthropic.com/v1/messages", goOn(true, ""))
		before := transport.Cost(req)["output-tokens"]
		send(t, transport, req)
		if got := transport.Cost(req)["output-tokens"]; got != before || before != 4_000 {
			t.Errorf("%d output tokens, and %d before", got, before)
		}
		for range 24 { // 25 estimates of 4,000 are the whole bucket
			send(t, transport, postJSON(t, "https://api.anthropic.com/v1/messages", goOn(true, "")))
		}
		if _, _, took := send(t, transport, postJSON(t, "https://api.anthropic.com/v1/messages", goOn(true, ""))); took < 2*time.Second {
			t.Errorf("the next request waited %v for 4,000 tokens", took)
		}
	})
}

// The estimate of output follows the answers to the same instructions, both ways, within some tens of
// answers, and never exceeds max_tokens.
func TestAnthropicOutputEstimate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := new(stay)
		transport, err := providers.Anthropic(10_000, 1e6, 1e6).Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = api
		req := func(system string, most int) *http.Request {
			return postJSON(t, "https://api.anthropic.com/v1/messages",
				fmt.Sprintf(`{"model":"claude-sonnet-4-5","max_tokens":%d,"system":%q,"messages":[]}`, most, system))
		}
		estimate := func(system string, most int) int64 { return transport.Cost(req(system, most))["output-tokens"] }
		answers := func(n int, system string, tokens int) {
			api.replies = []fakeapi.Reply{usage(1, 0, 0, tokens)}
			for range n {
				send(t, transport, req(system, 64_000))
			}
		}
		between := func(what string, got, low, high int64) {
			if got < low || got > high {
				t.Errorf("%s: %d tokens, want %d to %d", what, got, low, high)
			}
		}
		between("at first", estimate("a", 64_000), 4_000, 4_000)
		between("at first, at most 100", estimate("a", 100), 100, 100)
		answers(20, "a", 800)
		between("after 20 answers", estimate("a", 64_000), 800, 900)
		between("other instructions", estimate("b", 64_000), 800, 900)
		answers(1, "a", 8_000)
		between("after a longer one", estimate("a", 64_000), 2_500, 8_000)
		answers(15, "a", 8_000)
		between("after 16 longer ones", estimate("a", 64_000), 8_000, 12_000)
		answers(40, "a", 800)
		between("after 40 shorter ones", estimate("a", 64_000), 800, 1_600)
		answers(20, "b", 50)
		between("the other instructions", estimate("b", 64_000), 50, 60)
		between("these", estimate("a", 64_000), 800, 1_600)
		between("at most 70", estimate("a", 70), 70, 70)
		api.hold = 10 * time.Minute
		answers(20, "c", 60_000)
		between("answers of ten minutes", estimate("c", 64_000), 7_500, 9_000)
	})
}

// lengths is an API whose next answer has the tokens that next returns, and takes as many
// milliseconds. If next returns zero, there is no answer.
func lengths(next func() (tokens int)) answering {
	return func(*http.Request) *http.Response {
		tokens := next()
		if tokens == 0 {
			return nil
		}
		time.Sleep(time.Duration(tokens) * time.Millisecond)
		body := fmt.Sprintf(`{"type":"message","usage":{"input_tokens":1,"output_tokens":%d}}`, tokens)
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
	}
}

// Of requests that are sent together, those with short answers end first. They are no reason to
// expect that the others are as short.
func TestAnthropicShortAnswersEndFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, err := providers.Anthropic(10_000, 1e6, 1e6).Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		request := func() *http.Request {
			return postJSON(t, "https://api.anthropic.com/v1/messages", goOn(false, ""))
		}
		ask := func(n int) (wait func()) {
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() {
					if resp, err := transport.RoundTrip(request()); err == nil && resp != nil {
						io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				})
			}
			return wg.Wait
		}
		inTurn := func(n, tokens int) {
			transport.Base = lengths(func() int { return tokens })
			for range n {
				ask(1)()
			}
		}
		check := func(what string, low, high int64) {
			t.Helper()
			if got := transport.Cost(request())["output-tokens"]; got < low || got > high {
				t.Errorf("%s: %d tokens, want %d to %d", what, got, low, high)
			}
		}
		growing := func() answering {
			var n atomic.Int64
			return lengths(func() int { return int(40 * n.Add(1)) }) // to 4,000, and 2,020 on average
		}

		transport.Base = growing()
		wait := ask(100)
		time.Sleep(410 * time.Millisecond)
		check("after 10 of 100 answers", 3_000, 4_000)
		time.Sleep(1_600 * time.Millisecond)
		check("after 50 of 100 answers", 2_000, 3_500)
		wait()

		inTurn(60, 800)
		check("after answers of 800", 800, 900)
		transport.Base = growing()
		wait = ask(100)
		time.Sleep(410 * time.Millisecond)
		check("after 10 of the next 100 answers", 700, 900)
		wait()

		transport.Base = lengths(func() int { return 0 })
		ask(100)()
		inTurn(60, 800)
		check("after requests without an answer", 800, 900)
	})
}

// Anyone may make up kinds and prompts. What is known of the others stays, and memory is bounded.
func TestLearningIsBounded(t *testing.T) {
	soak.Long(t, "it sends requests for many models")
	synctest.Test(t, func(t *testing.T) {
		p := providers.Anthropic(1e6, 1e9, 1e9)
		p.Scope("family").Policy.Tiers[0].PaceBurst = 1e6
		transport, err := p.Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		api := &stay{replies: []fakeapi.Reply{usage(1, 100, 0, 7)}}
		transport.Base = api
		req := func(system string) *http.Request {
			return postJSON(t, "https://api.anthropic.com/v1/messages", goOn(false, system))
		}
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		flood := func(from int) {
			for i := range 3_000 {
				send(t, transport, req(strconv.Itoa(from+i)))
				if i%500 == 0 {
					send(t, transport, req("known"))
				}
			}
		}
		flood(0)
		before := heap()
		flood(3_000)
		if after := heap(); after > before+1<<20 {
			t.Errorf("%d KB more after 3,000 more kinds", (after-before)>>10)
		}
		if got := transport.Cost(req("known")); got["output-tokens"] > 8 || got["input-tokens"] > 50 {
			t.Errorf("the known kind is forgotten: %v", got)
		}
	})
}

// A response may report any number of tokens. The next request then costs no more than a request may.
func TestLearnsNoImpossibleCost(t *testing.T) {
	p := providers.Anthropic(1e6, 1e9, 1e9)
	transport, err := p.Transport(nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		req := postJSON(t, "https://api.anthropic.com/v1/messages", `{"model":"claude-opus-4-8"}`)
		transport.Settle(req)(throttle.Cost{"output-tokens": math.MaxInt64})
		if got := transport.Cost(req)["output-tokens"]; got != algorithms.MaxLimit {
			t.Errorf("got an estimate of %d output tokens, want %d", got, int64(algorithms.MaxLimit))
		}
	}
}
