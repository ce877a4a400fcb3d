package fakeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// OpenAI is OpenAI's chat completions API for one model, with limits of requests and tokens a
// minute. minute may be shorter than a minute. The API is as strict as its documentation allows. It
// limits requests by the sixtieth of a minute too. A request takes max_tokens, or its characters
// divided by four if that is more, whatever the answer has. A request that is refused for its tokens
// still counts as a request. Answers have half of max_tokens.
func OpenAI(requests, tokens int64, minute time.Duration) *Server {
	rpm := &bucket{limit: requests, size: requests, window: minute}
	pace := &bucket{limit: requests, size: max(1, requests/60), window: minute}
	tpm := &bucket{limit: tokens, size: tokens, window: minute}
	return newServer(func(c *Call) Reply {
		call, n := openAICall(c)
		header := func() map[string]string {
			return map[string]string{
				"x-ratelimit-limit-requests": strconv.FormatInt(requests, 10), "x-ratelimit-limit-tokens": strconv.FormatInt(tokens, 10),
				"x-ratelimit-remaining-requests": strconv.FormatInt(rpm.tokens(c.Now), 10), "x-ratelimit-remaining-tokens": strconv.FormatInt(tpm.tokens(c.Now), 10),
				"x-ratelimit-reset-requests": rpm.wait(c.Now, requests).String(), "x-ratelimit-reset-tokens": tpm.wait(c.Now, tokens).String(),
			}
		}
		refuse := func(by string, wait time.Duration) Reply {
			h := header()
			h["retry-after-ms"] = strconv.FormatInt(int64((wait+time.Millisecond-1)/time.Millisecond), 10)
			return Reply{Status: http.StatusTooManyRequests, Refused: by, Header: h,
				Body: fmt.Sprintf(`{"error":{"message":"Rate limit reached for %s on %s per min.","type":%q,"code":"rate_limit_exceeded"}}`, call.Model, by, by)}
		}
		if rpm.tokens(c.Now) < 1 || !pace.take(c.Now, 1) {
			return refuse("requests", max(rpm.wait(c.Now, 1), pace.wait(c.Now, 1)))
		}
		if rpm.take(c.Now, 1); !tpm.take(c.Now, n) {
			return refuse("tokens", tpm.wait(c.Now, n))
		}
		h := header()
		if call.Stream {
			h["Content-Type"] = "text/event-stream"
		}
		return Reply{Header: h, Body: call.answer()}
	})
}

// A chat is the body of a chat completion request.
type chat struct {
	Model     string
	Stream    bool
	MaxTokens int64 `json:"max_tokens"`
	Messages  []struct{ Content content }
	prompt    int64 // tokens
}

// A content is the text of a message, which is a string or a list of blocks.
type content string

func (c *content) UnmarshalJSON(b []byte) error {
	if text := (*string)(c); json.Unmarshal(b, text) == nil {
		return nil
	}
	var blocks []struct{ Text string }
	err := json.Unmarshal(b, &blocks)
	for _, block := range blocks {
		*c += content(block.Text)
	}
	return err
}

func openAICall(c *Call) (call chat, tokens int64) {
	_ = json.Unmarshal(c.Body, &call)
	for _, m := range call.Messages {
		call.prompt += int64(utf8.RuneCountInString(string(m.Content))+3) / 4
	}
	return call, max(call.prompt, call.MaxTokens)
}

// answer returns the completion, as a stream if the call requests one.
func (c chat) answer() string {
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, c.prompt, c.MaxTokens/2, c.prompt+c.MaxTokens/2)
	if !c.Stream {
		return fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion","created":946684800,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"Hello!"},"finish_reason":"stop"}],"usage":%s}`, c.Model, usage)
	}
	var b strings.Builder
	for _, delta := range []string{`{"role":"assistant","content":"Hel"}`, `{"content":"lo!"}`} {
		fmt.Fprintf(&b, "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":946684800,\"model\":%q,\"choices\":[{\"index\":0,\"delta\":%s}]}\n\n", c.Model, delta)
	}
	fmt.Fprintf(&b, "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":946684800,\"model\":%q,\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", c.Model, usage)
	return b.String()
}
