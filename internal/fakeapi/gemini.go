package fakeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// Gemini is Google's Gemini API for one model, with limits of requests and input tokens in any
// minute. Four bytes of a prompt's text are a token. Output does not count.
func Gemini(requests, tokens int64) *Server {
	rpm := newCounters(algorithms.PerMinute(requests)).of("")
	tpm := newCounters(algorithms.Tier{Limit: tokens, Window: time.Minute, Unit: "tokens"}).of("")
	return newServer(func(c *Call) Reply {
		var call struct {
			Contents []struct{ Parts []struct{ Text string } }
		}
		_ = json.Unmarshal(c.Body, &call)
		prompt := int64(0)
		for _, content := range call.Contents {
			for _, part := range content.Parts {
				prompt += int64(len(part.Text)+3) / 4
			}
		}
		by, wait := charge(c.Now, limit{"GenerateRequestsPerMinutePerProjectPerModel", rpm, nil},
			limit{"GenerateContentPaidTierInputTokensPerModelPerMinute", tpm, map[string]int64{"tokens": prompt}})
		if by != "" {
			return Reply{Status: http.StatusTooManyRequests, Refused: by, Body: fmt.Sprintf(
				`{"error":{"code":429,"message":"You exceeded your current quota.\nPlease retry in %fs.","status":"RESOURCE_EXHAUSTED","details":[`+
					`{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":%q}]},`+
					`{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"%ds"}]}}`, wait.Seconds(), by, wait/time.Second)}
		}
		answer := func(text string) string {
			return fmt.Sprintf(`{"candidates":[{"content":{"role":"model","parts":[{"text":%q}]}}],"usageMetadata":{"promptTokenCount":%d,"candidatesTokenCount":2}}`, text, prompt)
		}
		if strings.HasSuffix(c.URL.Path, ":streamGenerateContent") {
			return Reply{Header: map[string]string{"Content-Type": "text/event-stream"}, Body: "data: " + answer("Hel") + "\r\n\r\ndata: " + answer("lo!") + "\r\n\r\n"}
		}
		return Reply{Body: answer("Hello!")}
	})
}
