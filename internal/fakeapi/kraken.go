package fakeapi

import (
	"net/url"
	"strings"
	"time"
)

// A falling counter rises with calls to most at the highest, and falls by one at each
// step of the clock.
type falling struct {
	most  int64
	step  time.Duration
	n     int64
	since time.Time // the last time it fell
}

func (f *falling) fits(now time.Time, n int64) bool {
	if f.since.IsZero() {
		f.since = now.Truncate(f.step)
	}
	steps := now.Sub(f.since) / f.step
	f.n, f.since = max(0, f.n-int64(steps)), f.since.Add(steps*f.step)
	return f.n+n <= f.most
}

// Kraken is Kraken's Spot REST API, for one key of the tier Starter. Its counters fall in
// steps.
func Kraken() *Server {
	key := &falling{most: 15, step: time.Second * 100 / 33}
	pairs := map[string]*falling{}
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
				pairs[pair] = &falling{most: 60, step: time.Second}
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
