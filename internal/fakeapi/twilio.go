package fakeapi

import (
	"net/http"
	"strconv"

	"github.com/apithrottle/throttle/algorithms"
)

// Twilio is Twilio's API for an account with a limit of concurrent requests.
func Twilio(concurrent int64) *Server {
	account := newCounters(algorithms.Tier{Limit: concurrent, Algorithm: algorithms.Concurrency}).of("")
	var open int64
	return newServer(func(c *Call) Reply {
		by, _ := charge(c.Now, limit{"concurrency", account, nil})
		if by != "" {
			return Reply{Status: http.StatusTooManyRequests, Refused: by, Body: `{"code":20429,"message":"Too Many Requests","status":429}`}
		}
		open++
		return Reply{
			Header: map[string]string{"Twilio-Concurrent-Requests": strconv.FormatInt(open, 10)},
			Body:   `{"status":"queued"}`,
			Release: func() {
				open--
				account.Release(nil)
			},
		}
	})
}
