package fakeapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// Slack is Slack's Web API for one app in one workspace. minute may be shorter than a minute. No
// tier allows a burst.
func Slack(minute time.Duration) *Server {
	per := func(n int64) counters { return newCounters(algorithms.Tier{Limit: n, Window: minute}) }
	tiers := map[string]counters{"conversations.history": per(50), "conversations.replies": per(50), "users.info": per(100)}
	others, channels := per(20), newCounters(algorithms.Tier{Limit: 1, Window: minute / 60})
	return newServer(func(c *Call) Reply {
		method := path.Base(c.URL.Path)
		key, counts := method, others
		if of, ok := tiers[method]; ok {
			counts = of
		}
		if method == "chat.postMessage" {
			key, counts = "channel "+slackChannel(c), channels
		}
		if by, wait := charge(c.Now, limit{key, counts.of(key), nil}); by != "" {
			return Reply{
				Status: http.StatusTooManyRequests, Refused: by,
				Header: map[string]string{"Retry-After": strconv.FormatInt(seconds(wait), 10)},
				Body:   `{"ok":false,"error":"ratelimited"}`,
			}
		}
		return Reply{Body: `{"ok":true,"channel":"` + slackChannel(c) + `","ts":"946684800.000100","messages":[],"members":[],"response_metadata":{"next_cursor":""}}`}
	})
}

func slackChannel(c *Call) string {
	if !strings.HasPrefix(c.Header.Get("Content-Type"), "application/json") {
		form, _ := url.ParseQuery(string(c.Body))
		return form.Get("channel")
	}
	var message struct{ Channel string }
	_ = json.Unmarshal(c.Body, &message)
	return message.Channel
}
