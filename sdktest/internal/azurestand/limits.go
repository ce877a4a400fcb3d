package azurestand

import (
	"net/http"
	"strconv"
	"time"
)

// never is the wait that a refusal tells for a request of more tokens than the limit: 86,400
// seconds, as in the captures of https://github.com/vanderschaarlab/climb/issues/1 and
// https://github.com/alex-wolf-ps/dbchatprov2/issues/2 (read 2026-11-28).
const never = 24 * time.Hour

// A window counts uses over a length of time.
type window struct {
	limit  int
	length time.Duration
	fixed  bool      // the count starts again at start + k*length
	start  time.Time // of the first length, if fixed
	uses   []use     // oldest first
}

type use struct {
	at time.Time
	n  int
}

// end returns when a use no longer counts.
func (w *window) end(u use) time.Time {
	if !w.fixed {
		return u.at.Add(w.length)
	}
	return w.start.Add((u.at.Sub(w.start)/w.length + 1) * w.length)
}

// live returns the uses that count now, and forgets the others.
func (w *window) live(now time.Time) []use {
	for len(w.uses) > 0 && !w.end(w.uses[0]).After(now) {
		w.uses = w.uses[1:]
	}
	return w.uses
}

func (w *window) add(now time.Time, n int) {
	w.uses = append(w.live(now), use{now, n})
}

// left returns what is left now: negative if refused uses took more than there was.
func (w *window) left(now time.Time) int {
	left := w.limit
	for _, u := range w.live(now) {
		left -= u.n
	}
	return left
}

// wait returns the time until n more fit: 0 if they fit now.
func (w *window) wait(now time.Time, n int) time.Duration {
	if n > w.limit {
		return never
	}
	over, until := n-w.left(now), now
	for _, u := range w.uses {
		if over <= 0 {
			break
		}
		over, until = over-u.n, w.end(u)
	}
	return until.Sub(now)
}

// reset returns the time until all is left again.
func (w *window) reset(now time.Time) time.Duration {
	uses := w.live(now)
	if len(uses) == 0 {
		return 0
	}
	return w.end(uses[len(uses)-1]).Sub(now)
}

// A deployment is a Deployment with what it has counted.
type deployment struct {
	Deployment
	period, minute, tokens window // calls, calls, estimated tokens
	cache                  cache
	counts                 Counts
}

func newDeployment(d Deployment, now time.Time) *deployment {
	if d.Model == "" {
		d.Model = "gpt-4o-2024-11-20"
	}
	if d.TPM == 0 {
		d.TPM = 10_000
	}
	if d.RPM == 0 {
		d.RPM = max(1, d.TPM*6/1000)
	}
	if d.Period == 0 {
		d.Period = 10 * time.Second
	}
	if d.Unbounded == 0 {
		d.Unbounded = 16
	}
	if d.CacheIdle == 0 {
		d.CacheIdle = 5 * time.Minute
	}
	// A deployment of 600 requests a minute takes 10 in each second (the quota page). A share that
	// is no whole number is rounded down, to 1 at least; the minute's own limit holds then.
	share := max(1, int(int64(d.RPM)*int64(d.Period)/int64(time.Minute)))
	counter := func(limit int, length time.Duration) window {
		return window{limit: limit, length: length, fixed: d.Fixed, start: now}
	}
	return &deployment{
		Deployment: d,
		period:     counter(share, d.Period),
		minute:     counter(d.RPM, time.Minute),
		tokens:     counter(d.TPM, time.Minute),
		cache:      cache{idle: d.CacheIdle, seen: map[prefix]time.Time{}},
	}
}

// A refusal says what a request exceeded and how long it shall wait. The wait of an admitted request
// is 0.
type refusal struct {
	tokens bool // the limit of tokens, not of calls
	wait   time.Duration
}

// admit counts a request if it fits in all limits, and refuses it otherwise. A request is refused if
// it doesn't fit in what is left, as in the measurement, where a call of 2,061 tokens was refused
// with 1,753 left. The wait is the time until the same request would be admitted if no other came.
func (d *deployment) admit(now time.Time, cost int) refusal {
	waits := func() (calls, tokens time.Duration) {
		return max(d.period.wait(now, 1), d.minute.wait(now, 1)), d.tokens.wait(now, cost)
	}
	calls, tokens := waits()
	fits := calls == 0 && tokens == 0
	if fits || !d.ForgetRefused {
		d.period.add(now, 1)
		d.minute.add(now, 1)
		d.tokens.add(now, cost)
	}
	if fits {
		return refusal{}
	}
	r := refusal{tokens: tokens > calls}
	r.wait = max(waits())
	return r
}

// tell sets the headers that "every API call" has (the quota page). Its examples for requests are 60,
// 59 and 10: what is left is told of a minute, and the time of reset of a period. The times are bare
// seconds, and the number of tokens left may be negative, as in the capture of 2026-08-20 (left
// -27689, reset 64).
func (d *deployment) tell(h http.Header, now time.Time) {
	calls := &d.minute
	if d.PeriodHeaders {
		calls = &d.period
	}
	set := func(name string, n int) { h.Set(name, strconv.Itoa(n)) }
	set("X-Ratelimit-Limit-Requests", calls.limit)
	set("X-Ratelimit-Remaining-Requests", max(0, calls.left(now)))
	set("X-Ratelimit-Reset-Requests", seconds(d.period.reset(now)))
	set("X-Ratelimit-Limit-Tokens", d.TPM)
	set("X-Ratelimit-Remaining-Tokens", d.tokens.left(now))
	set("X-Ratelimit-Reset-Tokens", seconds(d.tokens.reset(now)))
}

// seconds rounds a wait up, so that a client that keeps it is not early.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

func milliseconds(d time.Duration) int {
	return int((d + time.Millisecond - 1) / time.Millisecond)
}
