package sdktest

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v2"
	"github.com/openai/openai-go/v2/option"
)

// Each event reaches the client before the upstream writes the next one. A stream that says nothing
// for a while goes on.
func TestProxyStream(t *testing.T) {
	t.Parallel()
	idle := 3 * time.Second
	if *full {
		idle = 31 * time.Second
	}
	for name, contentType := range map[string]string{"events": "text/event-stream", "JSON lines": "application/x-ndjson", "text": "text/plain"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t)
			p := startProxy(t, fmt.Sprintf("routes: {/api: {to: %s, policy: 1000/s}}", up.URL))
			opened := make(chan *http.Response, 1)
			go func() {
				resp, err := p.open(t.Context(), "POST", "/api/stream", `{"stream":true}`)
				if err != nil {
					t.Error(err)
				}
				opened <- resp
			}()
			e := up.next(t)
			if e.body != `{"stream":true}` {
				t.Errorf("the upstream received the body %q", e.body)
			}
			e.header("Content-Type", contentType)
			wrote := e.write("data: 0\n\n")
			resp := receive(t, "the response", opened)
			if resp == nil {
				t.FailNow()
			}
			defer resp.Body.Close()
			type line struct {
				text string
				at   time.Time
			}
			lines := make(chan line)
			go func() {
				defer close(lines)
				for s := bufio.NewScanner(resp.Body); s.Scan(); {
					if s.Text() != "" {
						lines <- line{s.Text(), time.Now()}
					}
				}
			}()
			var latencies []time.Duration
			for i := range 101 {
				got := receive(t, "an event that the upstream has written", lines)
				if got.text != fmt.Sprint("data: ", i) {
					t.Fatalf("event %d is %q", i, got.text)
				}
				latencies = append(latencies, got.at.Sub(wrote))
				switch i {
				case 50:
					<-time.After(idle)
				case 100:
					e.end()
					if got, more := <-lines; more {
						t.Errorf("received %q after the end", got.text)
					}
					continue
				}
				wrote = e.write(fmt.Sprintf("data: %d\n\n", i+1))
			}
			first := latencies[0]
			slices.Sort(latencies)
			t.Logf("the first event took %v; of 101 the median took %v, and the longest %v", first, latencies[50], latencies[100])
			if *full && first > 50*time.Millisecond {
				t.Errorf("the first event took %v, want at most 50 ms", first)
			}
		})
	}
}

// What a stream reports as usage counts when it ends, instead of the estimate.
func TestProxyStreamSettles(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := startProxy(t, fmt.Sprintf(`
routes:
  /openai: {to: %s/v1, preset: openai-compatible, any_host: true, with: {host: api.mistral.ai, tokens: 5000}}
`, up.URL))
	client := openai.NewClient(option.WithBaseURL(p.url+"/openai"), option.WithAPIKey("key"), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Transport: lone}))
	ask := func(header ...option.RequestOption) <-chan error {
		done := make(chan error, 1)
		go func() {
			stream := client.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{
				Model:         "gpt-4o",
				Messages:      []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say hello.")},
				MaxTokens:     openai.Int(8000),
				StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
			}, header...)
			defer stream.Close()
			for stream.Next() {
			}
			done <- stream.Err()
		}()
		return done
	}
	soon := option.WithHeader("X-Throttle-Max-Wait", "5s") // 3,000 tokens take 36 seconds

	first := ask()
	e := up.next(t)
	if e.URL.Path != "/v1/chat/completions" || e.Header.Get("Authorization") != "Bearer key" || e.Header.Get("X-Throttle-Max-Wait") != "" {
		t.Errorf("the upstream received %s with %v", e.URL.Path, e.Header)
	}
	e.header("Content-Type", "text/event-stream")
	e.write(`data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hello!"}}]}` + "\n\n")
	if err := <-ask(soon); err == nil || !strings.Contains(err.Error(), "429") {
		t.Errorf("%v for a request while a stream is expected to use 4,000 of 5,000 tokens, want 429", err)
	}
	e.write(`data: {"id":"1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21}}` + "\n\ndata: [DONE]\n\n")
	e.end()
	if err := <-first; err != nil {
		t.Error(err)
	}
	third := ask(soon)
	select {
	case e := <-up.arrived:
		e.header("Content-Type", "text/event-stream")
		e.answer("data: [DONE]\n\n")
		if err := <-third; err != nil {
			t.Error(err)
		}
	case err := <-third:
		t.Errorf("%v after the stream has reported that it used 21 tokens, want no refusal", err)
	}
	up.none(t)
}

// A stream whose upstream breaks off ends as broken at the client.
func TestProxyStreamBreaks(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := startProxy(t, fmt.Sprintf("routes: {/api: {to: %s, policy: 1000/s}}", up.URL))
	broken := make(chan error, 1)
	go func() {
		_, _, _, err := p.do(context.Background(), "GET", "/api/stream", "")
		broken <- err
	}()
	e := up.next(t)
	e.write("data: 1\n\n")
	e.steps <- func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	if err := receive(t, "the end of the response", broken); err == nil {
		t.Error("the client took a broken response for a whole one")
	}
}
