package fakeapi

import (
	"net/url"
	"strings"
	"time"
)

// A decaying counter rises with calls up to a limit, and falls by one at each step of the clock.
type decaying struct {
	limit int64
	step  time.Duration
	n     int64
	since time.Time // when it last fell
}

func (f *decaying) fits(now time.Time, n int64) bool {
	if f.since.IsZero() {
		f.since = now.Truncate(f.step)
	}
	steps := now.Sub(f.since) / f.step
	f.n, f.since = max(0, f.n-int64(steps)), f.since.Add(steps*f.step)
	return f.n+n <= f.limit
}

// Kraken is Kraken's Spot REST API, for one key of the tier Starter. Its counters decay in steps.
func Kraken() *Server {
	key := &decaying{limit: 15, step: time.Second * 100 / 33}
	pairs := map[string]*decaying{}
	return newServer(func(c *Call) Reply {
		call, private := strings.CutPrefix(c.URL.Path, "/0/private/")
		form, _ := url.ParseQuery(string(c.Body))
		counter, n, message := key, int64(1), "EAPI:Rate limit exceeded"
		switch {
		case !private:
			n = 0
		case call == "Ledgers" || call == "TradesHistory":
			n = 2
		case call == "AddOrder":
			pair := form.Get("pair")
			if pairs[pair] == nil {
				pairs[pair] = &decaying{limit: 60, step: time.Second}
			}
			counter, message = pairs[pair], "EOrder:Rate limit exceeded"
		case call == "CancelOrder":
			n = 0
		}
		if n > 0 && !counter.fits(c.Now, n) {
			return Reply{Refused: message, Body: `{"error":["` + message + `"]}`}
		}
		counter.n += n
		return Reply{Body: `{"error":[],"result":{}}`}
	})
}
