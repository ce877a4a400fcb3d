package fakeapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// CoinbaseExchange is Coinbase Exchange. Requests with a CB-ACCESS-KEY are private, except to
// /loans/assets. /fills and /loans have buckets of their own.
func CoinbaseExchange() *Server {
	tokens := func(rate, burst int64) counters {
		return newCounters(algorithms.Tier{Limit: rate, Window: time.Second, Algorithm: algorithms.TokenBucket, Burst: burst})
	}
	address, profile, fills, loans := tokens(10, 15), tokens(15, 30), tokens(10, 20), tokens(10, 10)
	return newServer(func(c *Call) Reply {
		counts := limit{"address", address.of(""), nil}
		if key := c.Header.Get("CB-ACCESS-KEY"); key != "" && c.URL.Path != "/loans/assets" {
			switch {
			case strings.HasPrefix(c.URL.Path, "/fills"):
				counts = limit{"fills", fills.of(key), nil}
			case strings.HasPrefix(c.URL.Path, "/loans"):
				counts = limit{"loans", loans.of(key), nil}
			default:
				counts = limit{"profile", profile.of(key), nil}
			}
		}
		if by, _ := charge(c.Now, counts); by != "" {
			return Reply{Status: http.StatusTooManyRequests, Refused: by, Body: `{"message":"Too many requests"}`}
		}
		return Reply{Body: `[]`}
	})
}

// CoinbaseApp is the Coinbase app's API.
func CoinbaseApp() *Server {
	keys := newCounters(algorithms.PerHour(10_000))
	return newServer(func(c *Call) Reply {
		if by, _ := charge(c.Now, limit{"key", keys.of(c.Header.Get("Authorization")), nil}); by != "" {
			return Reply{Status: http.StatusTooManyRequests, Refused: by, Body: `{"errors":[{"id":"rate_limit_exceeded","message":"Too many requests"}]}`}
		}
		return Reply{Body: `{"data":[]}`}
	})
}
