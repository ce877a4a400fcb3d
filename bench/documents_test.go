package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiktoken-go/tokenizer"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/throttletest"
)

// TestDocuments checks that 64 workers who send documents of any kind to a strict provider, which counts
// o200k tokens and sends no headers of its limits, are not refused, and use most of what it allows.
func TestDocuments(t *testing.T) {
	o200k, err := tokenizer.Get(tokenizer.O200kBase)
	if err != nil {
		t.Fatal(err)
	}
	const perMinute, minutes = 200_000, 5
	for _, kind := range kinds(t) {
		if kind.most > 1.3 {
			continue // other scripts and encoded data
		}
		t.Run(kind.name, func(t *testing.T) {
			text := strings.Repeat(kind.text, 1+20_000/len(kind.text))
			ids, _, err := o200k.Encode(text)
			if err != nil {
				t.Fatal(err)
			}
			body, err := json.Marshal(map[string]any{"model": "gpt-4o", "messages": []map[string]string{{"role": "user", "content": text}}, "max_tokens": 100})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				counter, err := throttletest.NewCounter(throttle.Tier{Limit: perMinute, Window: time.Minute, Algorithm: throttle.TokenBucket, Unit: "tokens"})
				if err != nil {
					t.Fatal(err)
				}
				api := &strict{counter: counter, tokens: int64(len(ids))}
				transport, err := providers.OpenAI(5_000, perMinute).Transport(nil)
				if err != nil {
					t.Fatal(err)
				}
				transport.Base = api
				ctx, cancel := context.WithTimeout(t.Context(), minutes*time.Minute)
				defer cancel()
				var workers sync.WaitGroup
				for range 64 {
					workers.Go(func() {
						for {
							req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.openai.com/v1/chat/completions", strings.NewReader(string(body)))
							if err != nil {
								t.Error(err)
								return
							}
							req.Header.Set("Content-Type", "application/json")
							resp, err := transport.RoundTrip(req)
							if err != nil {
								return
							}
							_, _ = io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
						}
					})
				}
				workers.Wait()
				most := int64(perMinute * (minutes + 1)) // the bucket is full at first
				used := api.served * api.tokens
				t.Logf("%d tokens each: %d served, %d refused, %.2f of the limit", api.tokens, api.served, api.refused, float64(used)/float64(most))
				if api.refused > 0 || used < most*60/100 {
					t.Errorf("%d refused, %d of %d tokens used", api.refused, used, most)
				}
			})
		})
	}
}

// A strict API refuses what its counter has no room for, and responds after a second.
type strict struct {
	mu              sync.Mutex
	counter         *throttletest.Counter
	tokens          int64
	served, refused int64
}

func (s *strict) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(20 * time.Millisecond)
	s.mu.Lock()
	fits := s.counter.Arrive(time.Now().UnixMicro(), map[string]int64{"tokens": s.tokens})
	s.mu.Unlock()
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: req, ProtoMajor: 1, ProtoMinor: 1}
	body := fmt.Sprintf(`{"usage":{"prompt_tokens":%d,"completion_tokens":20}}`, s.tokens)
	if fits {
		s.served++
	} else {
		s.refused++
		resp.StatusCode, body = http.StatusTooManyRequests, `{"error":{"message":"Rate limit reached for gpt-4o","type":"tokens","code":"rate_limit_exceeded"}}`
	}
	resp.Body = io.NopCloser(strings.NewReader(body))
	return resp, nil
}
