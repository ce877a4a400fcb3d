package fakeapi

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// HubSpot is HubSpot's API for one private app in a Starter account. It accepts daily requests a
// day, and the day begins at midnight in zone. Searches count in the day, and apart from the others.
func HubSpot(daily int64, zone *time.Location) *Server {
	tens, search := &rollingWindow{limit: 100, length: 10 * time.Second}, newCounters(algorithms.PerSecond(5)).of("")
	day, used := "", int64(0)
	return newServer(func(c *Call) Reply {
		if today := c.Now.In(zone).Format(time.DateOnly); today != day {
			day, used = today, 0
		}
		searches := strings.HasSuffix(c.URL.Path, "/search")
		switch {
		case used == daily:
			return hubspotRefusal("DAILY", "daily")
		case !searches && tens.left(c.Now) == 0:
			return hubspotRefusal("TEN_SECONDLY_ROLLING", "ten_secondly_rolling")
		case searches && search.Admits(c.Now.UnixMicro(), nil) >= 0:
			return hubspotRefusal("SECONDLY", "secondly")
		case searches:
			search.Arrive(c.Now.UnixMicro(), nil)
		}
		if used++; searches {
			return Reply{Body: `{"total":0,"results":[]}`}
		}
		tens.at = append(tens.at, c.Now)
		return Reply{Body: `{"results":[]}`, Header: map[string]string{
			"X-HubSpot-RateLimit-Daily": strconv.FormatInt(daily, 10), "X-HubSpot-RateLimit-Daily-Remaining": strconv.FormatInt(daily-used, 10),
			"X-HubSpot-RateLimit-Interval-Milliseconds": "10000",
			"X-HubSpot-RateLimit-Max":                   "100", "X-HubSpot-RateLimit-Remaining": strconv.FormatInt(tens.left(c.Now), 10),
		}}
	})
}

func hubspotRefusal(policy, limit string) Reply {
	return Reply{
		Status: http.StatusTooManyRequests, Refused: policy,
		Body: fmt.Sprintf(`{"status":"error","message":"You have reached your %s limit.","errorType":"RATE_LIMIT","policyName":%q}`, limit, policy),
	}
}

// A rollingWindow accepts limit requests in any interval of its length.
type rollingWindow struct {
	limit  int64
	length time.Duration
	at     []time.Time
}

func (r *rollingWindow) left(now time.Time) int64 {
	for len(r.at) > 0 && now.Sub(r.at[0]) >= r.length {
		r.at = r.at[1:]
	}
	return r.limit - int64(len(r.at))
}
