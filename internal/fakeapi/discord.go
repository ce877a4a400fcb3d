package fakeapi

import (
	"fmt"
	"hash/crc32"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

var (
	discordMajor = regexp.MustCompile(`/(channels|guilds)/(\d+)`)
	discordID    = regexp.MustCompile(`\d+`)
)

// Discord is Discord's API for one bot. Each route accepts 5 requests in 5 seconds from the first
// of them, for each channel and guild. All routes together accept 50 requests a second.
func Discord() *Server {
	type route struct {
		left int64
		ends time.Time
	}
	routes := map[string]*route{}
	global := newCounters(algorithms.PerSecond(50)).of("")
	return newServer(func(c *Call) Reply {
		if by, wait := charge(c.Now, limit{"global", global, nil}); by != "" {
			return discordRefusal(by, wait, map[string]string{"X-RateLimit-Global": "true"})
		}
		bucket := fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(c.Method+discordID.ReplaceAllString(discordMajor.ReplaceAllString(c.URL.Path, "/$1/:major"), ":id"))))
		key := bucket + discordMajor.FindString(c.URL.Path)
		r := routes[key]
		if r == nil || !c.Now.Before(r.ends) {
			r = &route{5, c.Now.Add(5 * time.Second)}
			routes[key] = r
		}
		refused := r.left == 0
		r.left = max(0, r.left-1)
		left := r.ends.Sub(c.Now)
		ms := (left + time.Millisecond - 1) / time.Millisecond
		header := map[string]string{
			"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": strconv.FormatInt(r.left, 10), "X-RateLimit-Bucket": bucket,
			"X-RateLimit-Reset":       fmt.Sprintf("%.3f", float64(r.ends.UnixMilli())/1000),
			"X-RateLimit-Reset-After": fmt.Sprintf("%d.%03d", ms/1000, ms%1000),
		}
		if refused {
			return discordRefusal("user", left, header)
		}
		return Reply{Header: header, Body: `{"id":"1"}`}
	})
}

func discordRefusal(scope string, wait time.Duration, header map[string]string) Reply {
	header["Retry-After"], header["X-RateLimit-Scope"] = strconv.FormatInt(seconds(wait), 10), scope
	return Reply{
		Status: http.StatusTooManyRequests, Refused: scope, Header: header,
		Body: fmt.Sprintf(`{"message":"You are being rate limited.","retry_after":%.3f,"global":%t}`, wait.Seconds(), scope == "global"),
	}
}
