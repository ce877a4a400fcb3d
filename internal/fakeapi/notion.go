package fakeapi

import (
	"net/http"
	"strconv"
	"time"
)

// Notion is Notion's API for one connection, with 180 requests a minute. That is the average of 3 a
// second that Notion documented before. Minutes begin at their 17th second.
func Notion() *Server {
	budget := &window{limit: 180, length: time.Minute}
	return newServer(func(c *Call) Reply {
		at := c.Now.Add(-17 * time.Second)
		if budget.left(at) == 0 {
			wait := budget.start.Add(budget.length).Sub(at)
			return Reply{
				Status: http.StatusTooManyRequests, Refused: "connection", Header: map[string]string{"Retry-After": strconv.FormatInt(seconds(wait), 10)},
				Body: `{"object":"error","status":429,"code":"rate_limited","message":"You have been rate limited. Please try again in a few minutes."}`,
			}
		}
		budget.used++
		return Reply{Body: `{"object":"list","results":[],"has_more":false}`}
	})
}
