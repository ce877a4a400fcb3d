package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
)

// A namer is a provider whose responses name a limit. It counts units from the last call of its reset on.
type namer struct {
	latency time.Duration
	names   func(n int64) []string // headers of the n-th response since the reset; if nil, the limit

	mu                   sync.Mutex // guards all below
	limit, sent, refused int64
}

func (n *namer) RoundTrip(req *http.Request) (*http.Response, error) {
	n.mu.Lock()
	n.sent++
	limit, sent := n.limit, n.sent
	resp := trAnswer(200)
	if sent > limit {
		resp, n.refused = trAnswer(429), n.refused+1
	}
	n.mu.Unlock()
	resp.Header.Set("X-RateLimit-Limit", fmt.Sprint(limit))
	resp.Header.Set("X-RateLimit-Remaining", fmt.Sprint(max(0, limit-sent)))
	if n.names != nil {
		resp.Header = make(http.Header)
		for h := n.names(sent); len(h) > 0; h = h[2:] {
			resp.Header.Set(h[0], h[1])
		}
	}
	time.Sleep(n.latency)
	resp.Request = req
	return resp, nil
}

// set begins a new window with a limit.
func (n *namer) set(limit int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limit, n.sent = limit, 0
}

// change changes the limit within the window.
func (n *namer) change(limit int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limit = limit
}

var namesLimit = &answers.Profile{Quotas: []answers.Quota{{
	Limit: answers.Field{Header: "X-RateLimit-Limit"}, Remaining: answers.Field{Header: "X-RateLimit-Remaining"},
}}}

// following returns a Limiter and a Transport that sends to a namer.
func following(t *testing.T, p throttle.Policy, s throttle.Store) (*throttle.Limiter, *throttle.Transport, *namer) {
	t.Helper()
	l, api := mustNew(t, p, s), new(namer)
	return l, &throttle.Transport{Limiter: l, Base: api, Profile: namesLimit}, api
}

// sendAll sends requests one after another until one would have to wait, or most are sent. It returns how many were.
func sendAll(t *testing.T, tr *throttle.Transport, most int) (sent int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
	defer cancel()
	for sent < most {
		_, err := trSend(ctx, tr)
		if errors.Is(err, throttle.ErrDeadline) {
			return sent
		} else if err != nil {
			t.Fatal(err)
		}
		sent++
	}
	return sent
}

// limitOf returns the present limit of the first tier.
func limitOf(t *testing.T, l *throttle.Limiter) int64 {
	t.Helper()
	return status(t, l).Tiers[0].Limit
}

func follows(tier throttle.Tier, least, most int64) throttle.Tier {
	tier.Follow = throttle.Follow{Least: least, Most: most}
	return tier
}

// followers are tiers of 50 that follow from 5 to 150.
func followers() map[string]throttle.Tier {
	const limit, window = 50, hour
	own := map[string]throttle.Tier{
		"fixed":    per(window, limit, throttle.FixedWindow),
		"log":      per(window, limit, throttle.SlidingLog),
		"sliding":  per(window, limit, throttle.SlidingWindow),
		"anchored": per(window, limit, throttle.AnchoredWindow),
		"weighted": per(window, limit, throttle.WeightedWindow),
		"calendar": {Limit: limit, Algorithm: throttle.Calendar, Period: throttle.Day},
		"token":    per(window, limit, throttle.TokenBucket),
		"leaky":    per(window, limit, throttle.LeakyBucket),
		"gcra":     per(window, limit, throttle.GCRA),
		"burst":    {Limit: limit / 2, Window: window / 2, Algorithm: throttle.TokenBucket, Burst: limit},
		"paced":    {Limit: limit, Window: window, Algorithm: throttle.FixedWindow, PaceBurst: limit},
		"unknown":  {Limit: limit, Window: window, Algorithm: throttle.FixedWindow, Phase: throttle.UnknownPhase},
	}
	for name, tier := range own {
		own[name] = follows(tier, 5, 150)
	}
	return own
}

// A tier that follows uses a higher limit in full after two responses, and nothing beyond a lower one after one.
func TestFollowUsesWhatResponsesName(t *testing.T) {
	for name, tier := range followers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, tr, api := following(t, exact(tier), nil)
				api.set(150)
				for i, want := range []int64{50, 150, 150} {
					if n := sendAll(t, tr, 1); n != 1 || limitOf(t, l) != want {
						t.Errorf("after response %d: %d sent, the limit is %d, want %d", i+1, n, limitOf(t, l), want)
					}
				}
				n := 3 + sendAll(t, tr, 200)
				if name == "paced" && n == 50 { // at once, and the others with time
					time.Sleep(20 * time.Minute)
					n += sendAll(t, tr, 200)
					time.Sleep(20 * time.Minute)
					n += sendAll(t, tr, 200)
				}
				if n != 150 {
					t.Errorf("%d requests were admitted, want 150", n)
				}
				time.Sleep(48 * hour)
				api.set(10)
				if n := sendAll(t, tr, 200); n != 10 || api.refused > 0 {
					t.Errorf("%d requests were admitted and %d refused, want 10 and none", n, api.refused)
				}
				time.Sleep(48 * hour)
				api.set(10)
				if n := sendAll(t, tr, 200); n != 10 || api.refused > 0 {
					t.Errorf("%d requests were admitted and %d refused, want 10 and none", n, api.refused)
				}
			})
		})
	}
}

// A tier that falls below its use admits nothing until less is used.
func TestFollowFallsBelowItsUse(t *testing.T) {
	for name, tier := range followers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(10 * time.Minute) // into a window of the clock
				l, tr, api := following(t, exact(tier), nil)
				api.set(50)
				sendAll(t, tr, 19)
				api.change(5)
				if n := sendAll(t, tr, 1); n != 1 || limitOf(t, l) != 5 {
					t.Fatalf("%d sent, the limit is %d, want 1 and 5", n, limitOf(t, l))
				}
				api.change(50) // what it counts is checked here
				f, err := l.Forecast(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if f.Wait < 40*time.Minute {
					t.Errorf("20 of 5 are used, and the next waits %v", f.Wait)
				}
				time.Sleep(f.Wait - time.Microsecond)
				if l.Allow() {
					t.Error("a request is admitted while more than the limit is used")
				}
				time.Sleep(time.Microsecond + time.Minute)
				if !l.Allow() {
					t.Errorf("not admitted after the wait: %v", status(t, l))
				}
			})
		})
	}
}

// A log that becomes too long for its stamps keeps what it has counted, and so does the way back.
func TestFollowPastTheLongestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, tr, api := following(t, exact(follows(throttle.PerHour(5000), 0, 15000)), nil)
		api.set(15000)
		if n := sendAll(t, tr, 20000); n != 15000 || api.refused > 0 {
			t.Errorf("%d admitted, %d refused, want 15000 and none", n, api.refused)
		}
		time.Sleep(hour)
		api.set(12000)
		if n := sendAll(t, tr, 11000); n != 11000 {
			t.Errorf("%d admitted, want 11000", n)
		}
		time.Sleep(10 * time.Minute)
		api.change(1000)
		if n := sendAll(t, tr, 20); n != 1 || limitOf(t, l) != 1000 {
			t.Errorf("%d admitted, want 1; %v", n, status(t, l))
		}
		time.Sleep(49 * time.Minute)
		if l.Allow() {
			t.Error("admitted while 11,001 of 1,000 are used")
		}
		time.Sleep(2 * time.Minute)
		api.set(1000)
		api.sent = 1
		if n := sendAll(t, tr, 2000); n != 999 || api.refused > 1 { // the first was beyond the limit
			t.Errorf("%d admitted, %d refused, want 999 and none", n, api.refused)
		}
	})
}

// Requests in flight when a limit falls are the only ones that the provider may refuse.
func TestFollowRefusesNothingSentAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{follows(per(hour, 5000, throttle.FixedWindow), 0, 15000)}}
		_, tr, api := following(t, p, nil)
		const workers, latency = 20, 50 * ms
		api.latency = latency
		run := func(length time.Duration, each func(*http.Response)) {
			ctx, cancel := context.WithTimeout(t.Context(), length)
			defer cancel()
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for {
						resp, err := trSend(ctx, tr)
						if err != nil {
							return
						}
						each(resp)
					}
				})
			}
			wg.Wait()
		}
		api.set(15000)
		changed := time.Now().Add(sec + ms)
		time.AfterFunc(sec+ms, func() { api.change(300) })
		run(50*time.Minute, func(resp *http.Response) {
			if resp.StatusCode == 429 && time.Since(changed) > 2*latency {
				t.Errorf("refused %v after the limit has changed", time.Since(changed))
			}
		})
		if api.refused > workers {
			t.Errorf("%d are refused, and %d were in flight", api.refused, workers)
		}
		time.Sleep(11 * time.Minute)
		api.set(15000)
		run(50*time.Minute, func(*http.Response) {})
		if api.sent < 15000-workers || api.sent > 15000 {
			t.Errorf("%d sent, want 15000", api.sent)
		}
		time.Sleep(11 * time.Minute)
		api.set(15000)
		run(50*time.Minute, func(*http.Response) {})
		if api.sent != 15000 {
			t.Errorf("%d sent, want 15000", api.sent)
		}
	})
}

// Headers that lie move a tier between its bounds only.
func TestFollowWithinBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	lies := []string{"0", "1", "-5", "9223372036854775807", "18446744073709551616", "1e9", "100000000000", "60", "61", "\x00", "5000;w=1", ""}
	for name, tier := range followers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, tr, api := following(t, exact(tier), nil)
				api.names = func(int64) []string {
					lie := pick(r, lies...)
					if r.IntN(2) == 0 {
						lie = fmt.Sprint(r.Int64N(math.MaxInt64))
					}
					return []string{"X-RateLimit-Limit", lie, "X-RateLimit-Remaining", pick(r, lies...), "X-RateLimit-Reset", pick(r, lies...)}
				}
				api.limit = math.MaxInt64
				for range 100 {
					sendAll(t, tr, 1)
					if limit := limitOf(t, l); limit < 5 || limit > 150 {
						t.Fatalf("the limit is %d", limit)
					}
					time.Sleep(10 * time.Minute)
				}
			})
		})
	}
}

// Responses that name limits in turn never raise a tier, which has the lower one.
func TestFollowDoesNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, tr, api := following(t, exact(follows(per(hour, 60, throttle.FixedWindow), 0, 1000)), nil)
		api.limit = 1000
		api.names = func(n int64) []string { return []string{"X-RateLimit-Limit", fmt.Sprint(61 - n%2)} }
		for range 50 {
			sendAll(t, tr, 1)
			if limit := limitOf(t, l); limit != 60 {
				t.Fatalf("the limit is %d, want 60", limit)
			}
		}
	})
}

// twoWindows names a limit per minute and one per hour.
var twoWindows = &answers.Profile{Quotas: []answers.Quota{
	{Limit: answers.Field{Header: "Minute-Limit"}, Window: time.Minute},
	{Limit: answers.Field{Header: "Hour-Limit"}, Window: time.Hour},
	{Limit: answers.Field{Header: "Hour-Limit-Again"}, Window: time.Hour},
}}

func limits(t *testing.T, l *throttle.Limiter) string {
	t.Helper()
	var all []string
	for _, tier := range status(t, l).Tiers {
		all = append(all, fmt.Sprint(tier.Limit))
	}
	return strings.Join(all, " ")
}

// Of several tiers each follows the limit of its own window, and those that do not follow stay.
func TestFollowSeveralTiers(t *testing.T) {
	minute, hourly := per(time.Minute, 10, throttle.FixedWindow), per(hour, 100, throttle.FixedWindow)
	for name, c := range map[string]struct {
		tiers []throttle.Tier
		want  string
	}{
		"both":       {[]throttle.Tier{follows(minute, 0, 1000), follows(hourly, 0, 10000)}, "20 500"},
		"first":      {[]throttle.Tier{follows(minute, 0, 1000), hourly}, "20 100"},
		"second":     {[]throttle.Tier{minute, follows(hourly, 0, 10000)}, "10 500"},
		"other unit": {[]throttle.Tier{minute, follows(throttle.Tier{Limit: 100, Window: hour, Unit: "tokens"}, 0, 10000)}, "10 100"},
		"paced":      {[]throttle.Tier{follows(throttle.Tier{Limit: 10, Window: time.Minute, Algorithm: throttle.FixedWindow, PaceBurst: 2}, 0, 1000), follows(hourly, 0, 10000)}, "20 500"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, tr, api := following(t, exact(c.tiers...), nil)
				tr.Profile = twoWindows
				api.limit = 1000
				api.names = func(int64) []string { return []string{"Minute-Limit", "20", "Hour-Limit", "500"} }
				for range 3 {
					sendAll(t, tr, 1)
				}
				if got := limits(t, l); got != c.want {
					t.Errorf("the limits are %s, want %s", got, c.want)
				}
			})
		})
	}
}

// A limit without a window is that of the only tier of its unit that follows.
func TestFollowWithoutAWindow(t *testing.T) {
	minute, hourly, day := per(time.Minute, 10, throttle.FixedWindow), per(hour, 100, throttle.FixedWindow), per(24*hour, 1000, throttle.FixedWindow)
	for _, c := range []struct {
		tiers []throttle.Tier
		want  string
	}{
		{[]throttle.Tier{minute, follows(hourly, 0, 10000), day}, "10 500 1000"},
		{[]throttle.Tier{follows(minute, 0, 1000), hourly}, "500 100"},
		{[]throttle.Tier{follows(minute, 0, 1000), follows(hourly, 0, 1000)}, "10 100"},
		{[]throttle.Tier{follows(minute, 0, 1000), follows(hourly, 0, 1000), follows(day, 0, 10000)}, "10 100 1000"},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, tr, api := following(t, exact(c.tiers...), nil)
			api.set(500)
			sendAll(t, tr, 3)
			if got := limits(t, l); got != c.want {
				t.Errorf("the limits are %s, want %s", got, c.want)
			}
		})
	}
}

// A Burst below the Limit is the caller's own, and stays.
func TestFollowKeepsASmallBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := follows(throttle.Tier{Limit: 5000, Window: hour, Algorithm: throttle.GCRA, Burst: 10}, 0, 15000)
		l, tr, api := following(t, exact(tier), nil)
		api.set(15000)
		sendAll(t, tr, 3)
		time.Sleep(time.Minute)
		if n := sendAll(t, tr, 100); n != 10 {
			t.Errorf("%d at once, want 10", n)
		}
		start := time.Now()
		for range 100 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 24*sec {
			t.Errorf("100 requests took %v, want 24s at 15,000 an hour", took)
		}
		time.Sleep(time.Minute)
		api.set(8) // below the lowest
		sendAll(t, tr, 1)
		if got := status(t, l).Tiers[0]; got.Followed != 500 || got.Limit != 10 {
			t.Errorf("%d an hour and %d at once, want 500 and 10", got.Followed, got.Limit)
		}
	})
}

// One response does not agree with itself.
func TestFollowNeedsTwoResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, tr, api := following(t, exact(follows(per(hour, 100, throttle.FixedWindow), 0, 10000)), nil)
		tr.Profile = twoWindows
		api.limit = 1000
		api.names = func(int64) []string { return []string{"Hour-Limit", "500", "Hour-Limit-Again", "500"} }
		for i, want := range []int64{100, 500} {
			if sendAll(t, tr, 1); limitOf(t, l) != want {
				t.Errorf("after response %d the limit is %d, want %d", i+1, limitOf(t, l), want)
			}
		}
	})
}

// The responses to old requests, which overtake each other, do not bring an old limit back.
func TestFollowIgnoresOldResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, tr, _ := following(t, exact(follows(per(hour, 100, throttle.FixedWindow), 0, 10000)), nil)
		var wg sync.WaitGroup
		send := func(limit int64, latency time.Duration) {
			wg.Go(func() {
				own := *tr
				own.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
					time.Sleep(latency)
					resp := trAnswer(200, "X-RateLimit-Limit", fmt.Sprint(limit))
					resp.Request = r
					return resp, nil
				})
				if _, err := trSend(t.Context(), &own); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(ms)
		}
		send(500, 10*sec)
		send(500, 12*sec)
		send(60, sec)
		send(100, 9*sec) // sent before the limit fell, and slow
		send(100, 8*sec)
		send(60, sec) // confirms what the tier has
		send(30, 30*sec)
		time.Sleep(20 * sec)
		if got := limitOf(t, l); got != 60 {
			t.Errorf("the limit is %d, want 60", got)
		}
		wg.Wait()
		if got := limitOf(t, l); got != 30 {
			t.Errorf("the limit is %d, want 30", got)
		}
	})
}

// A higher limit admits waiting callers at once, and a lower one refuses those whose cost exceeds it.
func TestFollowConcernsWaitingCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, tr, api := following(t, exact(follows(per(hour, 10, throttle.FixedWindow), 2, 100)), nil)
		api.set(10)
		if !l.AllowN(6) {
			t.Fatal("not admitted")
		}
		start, ended := time.Now(), make(map[int64]string)
		var mu sync.Mutex
		var wg sync.WaitGroup
		wait := func(n int64) {
			wg.Go(func() {
				err := l.WaitN(t.Context(), n)
				mu.Lock()
				defer mu.Unlock()
				ended[n] = fmt.Sprintf("%v after %v", errors.Is(err, throttle.ErrExceedsCapacity), time.Since(start))
				if err == nil {
					ended[n] = fmt.Sprintf("admitted after %v", time.Since(start))
				}
			})
			synctest.Wait()
		}
		slow := func(limit int64, after time.Duration) {
			wg.Go(func() {
				own := *tr
				own.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
					time.Sleep(after)
					resp := trAnswer(200, "X-RateLimit-Limit", fmt.Sprint(limit))
					resp.Request = r
					return resp, nil
				})
				if _, err := trSend(t.Context(), &own); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		slow(5, sec)    // 7 used
		slow(20, 2*sec) // 8 used
		slow(20, 3*sec) // 9 used
		wait(7)
		wait(4)
		time.Sleep(4 * sec)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if ended[7] != "true after 1s" || ended[4] != "admitted after 3s" {
			t.Error(ended)
		}
		wg.Wait()
	})
}

// A cost between two limits follows the limit in force.
func TestFollowOfACost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, tr, api := following(t, exact(follows(per(hour, 10, throttle.FixedWindow), 0, 100)), nil)
		if err := l.WaitN(t.Context(), 50); !errors.Is(err, throttle.ErrExceedsCapacity) {
			t.Errorf("%v, want ErrExceedsCapacity", err)
		}
		api.set(60)
		sendAll(t, tr, 2)
		if err := l.WaitN(t.Context(), 50); err != nil {
			t.Error(err)
		}
		api.change(20)
		sendAll(t, tr, 1)
		if err := l.WaitN(t.Context(), 50); !errors.Is(err, throttle.ErrExceedsCapacity) {
			t.Errorf("%v, want ErrExceedsCapacity", err)
		}
	})
}

// What others use counts from the very response that names a limit, also while the tier has another one.
func TestFollowCountsWhatTheResponseReports(t *testing.T) {
	for _, limit := range []int64{4, 20, 100, 500, 5000} {
		synctest.Test(t, func(t *testing.T) {
			l, tr, api := following(t, exact(follows(per(hour, 100, throttle.FixedWindow), 0, 1000)), nil)
			api.limit = math.MaxInt64
			api.names = func(n int64) []string {
				return []string{"X-RateLimit-Limit", fmt.Sprint(limit), "X-RateLimit-Remaining", fmt.Sprint(max(0, 4-n))}
			}
			for _, want := range []int64{3, 2, 1, 0} {
				if n := sendAll(t, tr, 1); n != 1 || status(t, l).Tiers[0].Remaining != want {
					t.Errorf("%d sent, want 1 and then %d of %d: %v", n, want, limit, status(t, l))
				}
			}
		})
	}
}

// SetPolicy holds, whatever responses to requests under the old policy name.
func TestFollowAndSetPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exact(follows(per(hour, 100, throttle.FixedWindow), 0, 1000))
		l, tr, api := following(t, p, nil)
		set := func(p throttle.Policy) {
			t.Helper()
			if err := l.SetPolicy(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		check := func(what string, want int64) {
			t.Helper()
			if got := limitOf(t, l); got != want {
				t.Errorf("%s: the limit is %d, want %d", what, got, want)
			}
		}
		api.set(500)
		sendAll(t, tr, 2)
		check("followed", 500)
		set(p)
		check("the same policy", 500)
		p.MaxWait = time.Minute
		set(p)
		check("the same tiers", 500)
		fixed := exact(per(hour, 100, throttle.FixedWindow))
		set(fixed)
		sendAll(t, tr, 2)
		check("a policy that does not follow", 100)
		set(p)
		check("one that follows again", 100)
		sendAll(t, tr, 2)
		check("after two responses", 500)
		api.latency = sec
		time.AfterFunc(ms, func() { set(exact(follows(per(hour, 70, throttle.FixedWindow), 0, 1000))) })
		ctx := t.Context()
		if _, err := trSend(ctx, tr); err != nil {
			t.Error(err)
		}
		check("a response to a request under the old policy", 70)
		if s := status(t, l).Tiers[0]; s.Used != 7 {
			t.Errorf("%d used, want 7", s.Used)
		}
	})
}

// SetPolicy and responses at the same moment: SetPolicy holds.
func TestFollowNeverUndoesSetPolicy(t *testing.T) {
	p := exact(follows(per(hour, 1000, throttle.FixedWindow), 0, 2000))
	other := exact(per(hour, 3000, throttle.FixedWindow))
	for range 200 {
		l, tr, api := following(t, p, nil)
		api.set(1500)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for j := range 4 {
					api.change(1500 + int64(100*(i+j)%400))
					if _, err := trSend(t.Context(), tr); err != nil {
						t.Error(err)
					}
				}
			})
		}
		if err := l.SetPolicy(t.Context(), other); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if got := limitOf(t, l); got != 3000 {
			t.Fatalf("the limit is %d, want 3000", got)
		}
	}
}

// A Limiter of the same policy shares what another one has taken over. One of another policy is an error.
func TestFollowInASharedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := local.New()
		p := exact(follows(per(hour, 100, throttle.FixedWindow), 0, 1000))
		first, tr, api := following(t, p, s)
		api.set(500)
		sendAll(t, tr, 2)
		second := mustNew(t, p, s)
		if got := limitOf(t, second); got != 500 || status(t, second).Tiers[0].Used != 2 {
			t.Errorf("the limit is %d, want 500: %v", got, status(t, second))
		}
		if _, err := throttle.New(exact(per(hour, 500, throttle.FixedWindow)), s); err == nil {
			t.Error("a Limiter of another policy joins")
		}
		tr.Limiter = second
		api.change(40)
		sendAll(t, tr, 1)
		if got := limitOf(t, first); got != 40 {
			t.Errorf("the limit is %d, want 40", got)
		}
		first.Close()
		second.Close()
		third := mustNew(t, p, s)
		if got := status(t, third).Tiers[0]; got.Used != 3 || got.Limit != 40 {
			t.Errorf("after closing: %v", got)
		}
	})
}

// A canceled request that was admitted before a limit changed leaves no trace.
func TestFollowKeepsRequestsInFlight(t *testing.T) {
	for name, tier := range followers() {
		if name == "unknown" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := exact(tier)
				p.Guard = time.Minute
				l, tr, api := following(t, p, nil)
				api.set(150)
				var permits []*throttle.Permit
				for range 10 {
					permits = append(permits, acquire(t, l, nil))
				}
				sendAll(t, tr, 2)
				if got := limitOf(t, l); got != 150 {
					t.Fatalf("the limit is %d, want 150", got)
				}
				for _, permit := range permits[:6] {
					if err := permit.Cancel(t.Context()); err != nil {
						t.Error(err)
					}
				}
				for _, permit := range permits[6:] {
					permit.Arrived()
					permit.Release()
				}
				if s := status(t, l).Tiers[0]; s.Used != 6 || s.InFlight != 0 {
					t.Errorf("%d used and %d in flight, want 6 and none", s.Used, s.InFlight)
				}
			})
		})
	}
}

// The keys of a Group follow each for itself, also while the Group parks them.
func TestFollowInAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, exact(follows(per(hour, 100, throttle.FixedWindow), 0, 1000)), 0)
		api := new(namer)
		api.set(500)
		tr := &throttle.Transport{Limiter: g.For("a"), Base: api, Profile: namesLimit}
		sendAll(t, tr, 2)
		for i := range 100 {
			g.For(fmt.Sprint(i)).Allow()
		}
		if got := limitOf(t, g.For("a")); got != 500 {
			t.Errorf("the limit is %d, want 500", got)
		}
		if got := limitOf(t, g.For("1")); got != 100 {
			t.Errorf("the limit of another key is %d, want 100", got)
		}
		time.Sleep(2 * hour)
		for i := range 100 {
			g.For(fmt.Sprint("later", i)).Allow()
		}
		if got := limitOf(t, g.For("a")); got != 500 {
			t.Errorf("after an idle hour the limit is %d, want 500", got)
		}
	})
}

// Forget gives a tier its own limit back, and waiting callers go on under it.
func TestForgetFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, tr, api := following(t, exact(follows(per(hour, 10, throttle.FixedWindow), 2, 100)), nil)
		api.set(4)
		sendAll(t, tr, 4)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := l.Wait(t.Context()); err != nil || time.Since(start) != sec {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		})
		time.Sleep(sec)
		if err := l.Forget(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if got := limitOf(t, l); got != 10 {
			t.Errorf("the limit is %d, want 10", got)
		}
	})
}

// A policy that ignores reports follows nothing, nor does a shadow change what is sent.
func TestFollowNothing(t *testing.T) {
	ignoring := exact(follows(per(hour, 10, throttle.FixedWindow), 0, 100))
	ignoring.IgnoreReports = true
	shadow := exact(follows(per(hour, 10, throttle.FixedWindow), 0, 100))
	shadow.Shadow = true
	for _, p := range []throttle.Policy{ignoring, shadow} {
		synctest.Test(t, func(t *testing.T) {
			l, tr, api := following(t, p, nil)
			api.set(100)
			sendAll(t, tr, 5)
			if got := limitOf(t, l); got != 10 {
				t.Errorf("the limit is %d, want 10", got)
			}
		})
	}
}

// A followed quota is quick again: the next requests go on credit.
func TestFollowedQuotaIsQuick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{follows(throttle.PerHour(5000), 0, 9000)}}
		l, tr, api := following(t, p, nil)
		tr.Profile = &answers.Profile{Quotas: []answers.Quota{{Limit: answers.Field{Header: "X-RateLimit-Limit"}}}}
		api.set(9000)
		sendAll(t, tr, 3)
		if got := limitOf(t, l); got != 9000 {
			t.Fatalf("the limit is %d, want 9000", got)
		}
		l.Allow()
		if n := testing.AllocsPerRun(100, func() { l.Allow() }); n > 0 {
			t.Errorf("Allow allocates %v times", n)
		}
	})
}

// Inside others, each quota follows what is named for it.
func TestFollowWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := throttle.Policy{Name: "inner", Guard: throttle.NoGuard, Tiers: []throttle.Tier{follows(per(time.Minute, 10, throttle.FixedWindow), 0, 1000)}}
		outer := throttle.Policy{Name: "outer", Guard: throttle.NoGuard, Tiers: []throttle.Tier{follows(per(hour, 100, throttle.FixedWindow), 0, 1000)}}
		l, _ := within(t, inner, outer)
		api := &namer{limit: 1000}
		api.names = func(int64) []string { return []string{"Minute-Limit", "20", "Hour-Limit", "500"} }
		tr := &throttle.Transport{Limiter: l, Base: api, Profile: twoWindows}
		sendAll(t, tr, 2)
		if got := limits(t, l); got != "20 500" {
			t.Errorf("the limits are %s, want 20 500", got)
		}
		if n := 2 + sendAll(t, tr, 100); n != 20 {
			t.Errorf("%d sent, want 20", n)
		}
	})
}

// Beside concurrency, estimates and budgets, what is open, estimated and spent stays so.
func TestFollowBesideOtherTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exact(follows(per(hour, 100, throttle.FixedWindow), 0, 1000),
			throttle.Tier{Limit: 3, Algorithm: throttle.Concurrency},
			throttle.Tier{Limit: 1000, Window: hour, Unit: "tokens", Estimated: true},
			cents(500, throttle.Day))
		alerts := 0
		p.Alert = func(throttle.Alert) { alerts++ }
		p.AlertAt = []int{50}
		l, tr, api := following(t, p, nil)
		api.set(500)
		open := acquire(t, l, throttle.Cost{"tokens": 400, "cents": 260})
		sendAll(t, tr, 2)
		if got := used(t, l); fmt.Sprint(got) != "[3 1 400 260]" || alerts != 1 {
			t.Errorf("used %v, %d alerts, want [3 1 400 260] and one", got, alerts)
		}
		if err := open.Settle(throttle.Cost{"tokens": 150}); err != nil {
			t.Error(err)
		}
		open.Release()
		if got := used(t, l); fmt.Sprint(got) != "[3 0 150 260]" || alerts != 1 {
			t.Errorf("used %v, %d alerts, want [3 0 150 260] and one", got, alerts)
		}
		if got := limits(t, l); got != "500 3 1000 500" {
			t.Error(got)
		}
	})
}

// slowly sends a request whose response names a limit after some time.
func slowly(t *testing.T, tr *throttle.Transport, limit int64, after time.Duration) {
	t.Helper()
	own := *tr
	own.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
		time.Sleep(after)
		resp := trAnswer(200, "X-RateLimit-Limit", fmt.Sprint(limit))
		resp.Request = r
		return resp, nil
	})
	if _, err := trSend(t.Context(), &own); err != nil {
		t.Error(err)
	}
}

// Callers that wait inside another quota, or in a Pool, go at once when the limit rises.
func TestFollowWakesCallersElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, outer := exact(per(hour, 1000, throttle.FixedWindow)), exact(follows(per(hour, 4, throttle.FixedWindow), 0, 100))
		inner.Name, outer.Name = "inner", "outer"
		l, o := within(t, inner, outer)
		member := exact(follows(per(hour, 4, throttle.FixedWindow), 0, 100))
		member.Name = "member"
		m := mustNew(t, member, nil)
		pool, err := throttle.NewPool(throttle.Member{Name: "m", Limiter: m})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for _, of := range []*throttle.Limiter{o, m} {
			for _, after := range []time.Duration{sec, 2 * sec} {
				wg.Go(func() { slowly(t, &throttle.Transport{Limiter: of, Profile: namesLimit}, 20, after) })
				synctest.Wait()
			}
		}
		for range 5 {
			wg.Go(func() {
				if err := l.Wait(t.Context()); err != nil || time.Since(start) > 2*sec {
					t.Errorf("inside another: %v after %v", err, time.Since(start))
				}
			})
			wg.Go(func() {
				if p, err := pool.Acquire(t.Context(), nil); err != nil || time.Since(start) > 2*sec {
					t.Errorf("in a Pool: %v after %v", err, time.Since(start))
				} else {
					p.Release()
				}
			})
		}
		wg.Wait()
	})
}

// A quota that starts used up, one whose Batch requests leave headroom, and a client that retries follow as others do.
func TestFollowBesideOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exact(follows(per(time.Minute, 10, throttle.FixedWindow), 0, 100))
		p.AssumeUsed, p.Headroom, p.Aging = true, 20, hour
		l, tr, api := following(t, p, nil)
		if l.Allow() {
			t.Error("admitted, and the use before is not known")
		}
		time.Sleep(time.Minute)
		api.set(50)
		sendAll(t, tr, 2)
		n := 2
		for {
			permit, err := l.TryAcquire(throttle.WithClass(t.Context(), throttle.Batch), nil)
			if err != nil {
				break
			}
			permit.Release()
			n++
		}
		if n != 40 {
			t.Errorf("with headroom %d of 50 were admitted, want 40", n)
		}
		if n += sendAll(t, tr, 100); n != 50 {
			t.Errorf("%d of 50 were admitted", n)
		}
	})
}

// Through a storm of limits, policies and cancellations, the quota stays within its bounds, and is quiet again afterwards.
func TestStormOfNamedLimits(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			names := []string{"fixed", "log", "sliding", "anchored", "weighted", "token", "gcra", "burst"}
			tier := followers()[names[seed]]
			tier.Window /= 3600
			p := exact(tier, throttle.Tier{Limit: 12, Algorithm: throttle.Concurrency}, throttle.Tier{Limit: 5000, Window: sec, Unit: "tokens", Estimated: true})
			p.Guard = 50 * ms
			s := local.New()
			limiters := []*throttle.Limiter{mustNew(t, p, s), mustNew(t, p, s)}
			var wg sync.WaitGroup
			for w := range 16 {
				r := rand.New(rand.NewPCG(seed, uint64(w)))
				wg.Go(func() { stormOfLimits(t, r, limiters[w%2], p) })
			}
			wg.Wait()
			for _, l := range limiters {
				if err := l.SetPolicy(t.Context(), p); err != nil {
					t.Error(err)
				}
			}
			if err := limiters[0].Forget(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * sec)
			for i, tier := range status(t, limiters[1]).Tiers {
				if tier.Used != 0 || tier.InFlight != 0 {
					t.Errorf("seed %d, tier %d: %v", seed, i, tier)
				}
			}
			if got := limitOf(t, limiters[1]); got != 50 {
				t.Errorf("seed %d: the limit is %d, want 50", seed, got)
			}
		})
	}
}

// stormOfLimits makes calls whose responses name limits.
func stormOfLimits(t *testing.T, r *rand.Rand, l *throttle.Limiter, p throttle.Policy) {
	tr := &throttle.Transport{Limiter: l, Profile: namesLimit, Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": r.Int64N(100)} },
		Base: roundTripper(func(req *http.Request) (*http.Response, error) {
			if r.IntN(10) == 0 {
				return nil, errors.New("lost")
			}
			time.Sleep(time.Duration(r.IntN(100)) * ms)
			return trAnswer(200, "X-RateLimit-Limit", fmt.Sprint(r.IntN(300)), "X-RateLimit-Remaining", fmt.Sprint(r.IntN(300))), req.Context().Err()
		})}
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(300))*ms)
		switch r.IntN(12) {
		case 0:
			p.MaxWait = time.Duration(1+r.IntN(3)) * sec
			_ = l.SetPolicy(ctx, p)
		case 1:
			_ = l.Forget(ctx)
		case 2, 3:
			if permit, err := l.Acquire(ctx, throttle.Cost{"tokens": r.Int64N(50)}); err == nil {
				endPermit(r, permit)
			}
		default:
			_, _ = trSend(ctx, tr)
		}
		cancel()
		if limit := limitOf(t, l); limit < 5 || limit > 150 {
			t.Errorf("the limit is %d", limit)
		}
	}
}

// A response that names a limit without a window is about the tier of its unit that follows, if one does, also
// in a quota around the request's own.
func TestFollowFindsTheTierThatFollows(t *testing.T) {
	follows := throttle.Tier{Limit: 5000, Window: time.Hour, Algorithm: throttle.FixedWindow, Follow: throttle.Follow{Most: 15000}}
	for _, c := range []struct {
		name         string
		inner, outer []throttle.Tier
		want         string
	}{
		{"one of two", []throttle.Tier{throttle.PerMinute(900), follows}, nil, "900 6000"},
		{"around", []throttle.Tier{throttle.PerMinute(900)}, []throttle.Tier{follows}, "900 6000"},
		{"two that follow, of which one may take over the limit", []throttle.Tier{follows, {Limit: 100_000, Window: 24 * time.Hour, Follow: throttle.Follow{Most: 1_000_000}}}, nil, "6000 100000"},
		{"another with this limit", []throttle.Tier{{Limit: 6000, Window: 24 * time.Hour}, follows}, nil, "6000 5000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.New(throttle.Policy{Name: "inner", Tiers: c.inner}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if c.outer != nil {
					outer, err := throttle.New(throttle.Policy{Name: "outer", Tiers: c.outer}, nil)
					if err != nil {
						t.Fatal(err)
					}
					l = l.Within(outer)
				}
				client := &http.Client{Transport: &throttle.Transport{Limiter: l, Base: &namer{limit: 6000}, Profile: namesLimit}}
				for range 2 {
					resp, err := client.Get("http://api.test/")
					if err != nil {
						t.Fatal(err)
					}
					resp.Body.Close()
				}
				if got := limits(t, l); got != c.want {
					t.Errorf("the limits are %s, want %s", got, c.want)
				}
			})
		})
	}
}

// saying is a provider whose responses have the same headers.
type saying struct{ limit, left, reset string }

func (s *saying) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: 200, Header: make(http.Header), Body: http.NoBody, Request: req}
	resp.Header.Set("X-RateLimit-Limit", s.limit)
	resp.Header.Set("X-RateLimit-Remaining", s.left)
	resp.Header.Set("X-RateLimit-Reset", s.reset)
	return resp, nil
}

// What is left counts in the limit that the tier takes over, and not in one that its bounds exclude. The
// response that changes the limit counts, too.
func TestFollowCountsWhatIsLeft(t *testing.T) {
	profile := &answers.Profile{Quotas: []answers.Quota{{
		Limit: answers.Field{Header: "X-RateLimit-Limit"}, Remaining: answers.Field{Header: "X-RateLimit-Remaining"},
		Reset: answers.Field{Header: "X-RateLimit-Reset", Format: answers.Seconds},
	}}}
	for _, c := range []struct {
		name        string
		says        saying
		limit, used int64
	}{
		{"above the most", saying{"1000000", "999000", "60"}, 1500, 2},
		{"below the least", saying{"10", "3", "60"}, 500, 497},
		{"lower", saying{"700", "100", "60"}, 700, 600},
		{"nothing left", saying{"700", "0", "60"}, 700, 700},
		{"higher", saying{"1200", "200", "60"}, 1200, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tier := throttle.Tier{Limit: 1000, Window: time.Minute, Follow: throttle.Follow{Least: 500, Most: 1500}}
				l, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{tier}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				client := &http.Client{Transport: &throttle.Transport{Limiter: l, Base: &c.says, Profile: profile}}
				for range 2 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond) // the second may have to wait
					req, _ := http.NewRequestWithContext(ctx, "GET", "http://api.test/", nil)
					if resp, err := client.Do(req); err == nil {
						resp.Body.Close()
					}
					cancel()
				}
				s, err := l.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				// The second response reports what the first did, and may be to a request on top of it.
				if got := s.Tiers[0]; got.Limit != c.limit || got.Used < c.used || got.Used > c.used+1 {
					t.Errorf("%d of %d are used, want %d or one more of %d", got.Used, got.Limit, c.used, c.limit)
				}
			})
		})
	}
}

// A refusal that names a lower limit lowers it before it pauses: other processes may reserve the request that goes
// first once the pause begins.
func TestFollowBeforeAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{follows(throttle.Tier{Limit: 100, Window: time.Hour}, 10, 1000)}}
		p.Observer = &throttle.Observer{
			Changed: func(throttle.ChangedInfo) { events = append(events, "changed") },
			Paused:  func(throttle.PausedInfo) { events = append(events, "paused") },
		}
		_, tr, api := following(t, p, nil)
		api.set(100)
		sendAll(t, tr, 50)
		api.change(20)
		sendAll(t, tr, 1)
		if got := strings.Join(events, ", "); got != "changed, paused" {
			t.Errorf("got the events %q, want changed and then paused", got)
		}
	})
}
