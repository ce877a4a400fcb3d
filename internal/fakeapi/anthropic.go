package fakeapi

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Anthropic is Anthropic's Messages API for one family of models, with limits of requests, input
// tokens and output tokens a minute. The limits are three buckets. A request takes a token for each
// word of its messages when it is received, and the tokens of its answer when the answer ends. It is
// refused if the output bucket is empty; max_tokens plays no part. The text in system is read from
// the prompt cache, which is free. Answers have a quarter of max_tokens.
func Anthropic(requests, input, output int64) *Server {
	limits := []*bucket{
		{limit: requests, size: requests, window: time.Minute}, {limit: input, size: input, window: time.Minute}, {limit: output, size: output, window: time.Minute},
	}
	names := []string{"requests", "input-tokens", "output-tokens"}
	return newServer(func(c *Call) Reply {
		call, _ := openAICall(c) // the fields have the same names
		call.prompt = 0
		for _, m := range call.Messages {
			call.prompt += int64(len(strings.Fields(string(m.Content))))
		}
		cost := []int64{1, call.prompt, 1}
		header := map[string]string{}
		for i, l := range limits {
			if wait := l.wait(c.Now, cost[i]); wait > 0 {
				header["Retry-After"] = strconv.FormatInt(seconds(wait), 10)
				return Reply{Status: http.StatusTooManyRequests, Refused: names[i], Header: header,
					Body: `{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit of ` + names[i] + ` per minute."}}`}
			}
		}
		cost[2] = 0
		for i, l := range limits {
			l.take(c.Now, cost[i])
			left, name := l.tokens(c.Now), "anthropic-ratelimit-"+names[i]
			if i > 0 {
				left = (left + 500) / 1000 * 1000
			}
			header[name+"-limit"], header[name+"-remaining"] = strconv.FormatInt(l.size, 10), strconv.FormatInt(left, 10)
			header[name+"-reset"] = c.Now.Add(l.wait(c.Now, l.size)).UTC().Format(time.RFC3339) // when the bucket is full
		}
		used := call.MaxTokens / 4
		received := time.Now()
		release := func() { limits[2].spend(c.Now.Add(time.Since(received)), used) }
		if call.Stream {
			header["Content-Type"] = "text/event-stream"
		}
		return Reply{Header: header, Body: call.message(used), Release: release}
	})
}

// message returns the answer, as a stream if the call requests one.
func (c chat) message(output int64) string {
	const message = `{"id":"msg_1","type":"message","role":"assistant","model":%q,"content":[%s],"usage":{"input_tokens":%d,"output_tokens":%d}}`
	const text = `{"type":"text","text":"Hello!"}`
	if !c.Stream {
		return fmt.Sprintf(message, c.Model, text, c.prompt, output)
	}
	return fmt.Sprintf("event: message_start\ndata: {\"type\":\"message_start\",\"message\":"+message+"}\n\n", c.Model, "", c.prompt, 1) +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n" +
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello!\"}}\n\n" +
		"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
		fmt.Sprintf("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":%d}}\n\n", output) +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
}
