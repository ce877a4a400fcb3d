package pagetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/page"
)

// hostile are names that may break out of markup, or break its layout.
var hostile = []string{
	`<img src=x onerror=alert(1)>`, `</script><script>alert(2)</script>`, `"><svg onload=alert(3)>' onfocus='alert(4)`,
	`__proto__`, `constructor`, "data: more\u2028event: state", "\u202Egnirts desrever", "\u200F\u05E2\u05D1\u05E8\u05D9\u05EA",
	strings.Repeat("W", 300), strings.Repeat("long name ", 40), "\u00a0", "",
}

// states are what the page may have to show.
var states = []struct {
	name  string
	make  func(t *testing.T, s *site)
	shows []string // texts that the page then shows
}{
	{"empty", func(*testing.T, *site) {}, nil},
	{"calm", func(_ *testing.T, s *site) {
		s.send(s.limiter("coinbase", "5/s + 10000/h"), 5)
		s.send(s.limiter("github", "5000/h"), 12)
	}, []string{"coinbase", "5/s", "10000/h", "github", "5000/h"}},
	{"busy", func(t *testing.T, s *site) {
		l := s.limiter("mail", "3/h + 1000/d")
		s.send(l, 3)
		s.queue(l, 2, throttle.Interactive)
		s.queue(l, 3, throttle.Normal)
		s.queue(l, 4, throttle.Batch)
		if err := l.WaitN(t.Context(), 2000); err == nil {
			t.Error("the capacity is not exceeded")
		}
		budget := s.limiter("model", "100000000/month;unit=usd;budget=true + 20;algo=concurrency | alert_at=50,80")
		for range 3 {
			p, err := budget.Acquire(t.Context(), throttle.Cost{"usd": 30_000_000})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Release)
		}
		if _, err := budget.Acquire(t.Context(), throttle.Cost{"usd": 30_000_000}); err == nil {
			t.Error("the budget is not used up")
		}
	}, []string{"mail", "3/h", "model", "usd"}},
	{"paused", func(t *testing.T, s *site) {
		l := s.limiter("slack", "50/m")
		s.send(l, 2)
		if err := l.Pause(t.Context(), 10*time.Minute); err != nil {
			t.Fatal(err)
		}
	}, []string{"slack"}},
	{"banned", func(_ *testing.T, s *site) { s.ban(s.limiter("stripe", "100/s")) }, []string{"stripe"}},
	{"away", func(t *testing.T, s *site) {
		server := redistest.Start(t)
		l := s.limiterIn(distributed.New(server.Client(), distributed.Options{}), "shared", "100/m")
		s.send(l, 1)
		server.Kill()
	}, []string{"shared"}},
	{"refusing", func(t *testing.T, s *site) {
		s.send(s.limiter("github", "5000/h"), 3)
		s.refuse(s.limiter("acme", "5/s + 10000/h | max_wait=10ms"), 300)
	}, []string{"Refuses", "5/s", "10000/h"}},
	{"spent", func(t *testing.T, s *site) {
		s.send(s.limiter("github", "5000/h"), 3)
		s.send(s.limiter("openai", "500/m + 40/month;budget=true"), 40)
	}, []string{"Spent until", "spent; the next period"}},
	{"money", func(t *testing.T, s *site) {
		l := s.limiter("models", "500/m + $1500/month;zone=UTC")
		for range 2 {
			p, err := l.Acquire(t.Context(), throttle.Cost{"nanodollars": 656_200_000_000})
			if err != nil {
				t.Fatal(err)
			}
			p.Passed()
			p.Release()
		}
	}, []string{"$1500/month", "$1312.40 of $1500.00 used", "$187.60 left until "}},
	{"full", func(_ *testing.T, s *site) { s.send(s.limiter("coinbase", "50/s + 40/h"), 40) }, []string{"Full until"}},
	{"fresh", func(t *testing.T, s *site) {
		notes := map[string]string{"anthropic": "Counts several quotas, such as one for each model or account. They are shown after the first request."}
		s.page = page.New(page.Options{
			Stats: s.stats, Title: "throttle proxy at 127.0.0.1:7411", Subtitle: "On web-1. Version v0.1.0. Quotas are in Redis at 10.0.0.5:6379.",
			Notes: func([]page.Policy) map[string]string { return notes },
		})
		for _, name := range []string{"acme", "airtable", "alchemy", "cloudflare", "etherscan", "github", "notion", "spotify", "twilio"} {
			s.limiter(name, "5/s + 10000/h")
		}
	}, []string{"throttle proxy at 127.0.0.1:7411", "web-1", "acme", "No request yet"}},
	{"pool", func(t *testing.T, s *site) {
		p := s.pool("models", "east", "5/s", "west", "2/h + 3;algo=concurrency", "north", "9/h")
		for range 7 {
			if _, err := p.Acquire(t.Context(), nil); err != nil {
				t.Error(err)
			}
		}
		members := p.Status(t.Context()).Members
		if err := members[2].Member.Limiter.Pause(t.Context(), 10*time.Minute); err != nil {
			t.Error(err)
		}
		s.pool("none")
	}, []string{"models", "east", "west", "rank 1", "5/s", "2/h", "Paused until", "The pool has no members"}},
	{"learned", func(t *testing.T, s *site) {
		p, err := s.limiter("hidden", "5/s;algo=gcra;learn=1000 + 5000/h;follow=15000").Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Refused(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
	}, []string{"hidden", "5/s", "/s is learned: refused at ", "tries up to"}},
	{"hostile", func(t *testing.T, s *site) {
		for i, name := range hostile {
			s.send(s.limiter(name, fmt.Sprintf("%d/h;unit=requests + 7/h;unit=<b>unit</b>%d", 100+i, i)), 1)
		}
		s.pool("pool "+hostile[0], hostile[0], "5/s", hostile[1], "5/s", hostile[2], "5/s")
	}, hostile[:3]},
}

// Every state can be read by everybody, whatever the colors and the width.
func TestStates(t *testing.T) {
	t.Parallel()
	for _, state := range states {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			needAxe(t)
			s := newSite(t)
			state.make(t, s)
			host := serve(t, s)
			w := open(t, host+"/")
			s.awaitEvents(2)
			w.until("the page shows the state", func() bool {
				shown := ungrouped(w.text())
				for _, want := range state.shows {
					if !strings.Contains(shown, want) {
						return false
					}
				}
				return true
			})
			for _, closed := range []bool{true, false} {
				what := ""
				if !closed {
					what = ", open"
					evaluate[bool](w, `document.querySelectorAll("details").forEach(d => d.open = true) || true`)
				}
				for i, width := range []int64{1280, 320} {
					for j, scheme := range []string{"light", "dark"} {
						if !closed && i != j {
							continue // two are enough
						}
						name := fmt.Sprintf("%s, %s, %d%s", state.name, scheme, width, what)
						w.look(width, "prefers-color-scheme", scheme)
						w.fits(name)
						w.passesAxe(name)
						w.picture(name)
					}
				}
			}
			w.staysUnder(host)
			if bad := s.refusals(); bad != nil {
				t.Errorf("the page requests what is not there: %v", bad)
			}
		})
	}
}

// The cards of policies that refuse come first, and say so.
func TestWorstFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.send(s.limiter("alpha", "1000/h"), 3)
	refusing := s.limiter("refusing", "1/h | max_wait=10ms")
	s.send(s.limiter("spent", "3/month;budget=true"), 3)
	w := open(t, serve(t, s))
	w.awaits("1000/h", 3, 1000)
	order := func() string {
		return evaluate[string](w, `[...document.querySelectorAll("h2 bdi")].map(e => e.innerText).join(" ")`)
	}
	w.until("the spent budget is first", func() bool { return order() == "spent alpha refusing" })
	s.refuse(refusing, 30)
	w.until("the policy that refuses is before the open one", func() bool { return order() == "spent refusing alpha" })
	w.until("the card says so", func() bool { return strings.Contains(w.text(), "Refuses") })
}

// fits checks that the page is not wider than the window.
func (w *tab) fits(what string) {
	w.t.Helper()
	type size struct {
		Window, Page float64
		Wide         []string
	}
	got := evaluate[size](w, `(() => {
		const window = document.documentElement.clientWidth
		const outer = [...document.body.querySelectorAll("*")].filter(e => e.getBoundingClientRect().right > window + 1)
		return {Window: window, Page: document.documentElement.scrollWidth, Wide: outer.slice(0, 5).map(e => e.outerHTML.slice(0, 200))}
	})()`)
	if got.Page > got.Window {
		w.t.Errorf("%s: the page is %v pixels wide, the window %v: %s", what, got.Page, got.Window, strings.Join(got.Wide, "\n"))
	}
}

// picture writes what the page looks like.
func (w *tab) picture(name string) {
	w.t.Helper()
	if *screenshots == "" {
		return
	}
	png, err := chromedp.Run(w.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.MkdirAll(*screenshots, 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, strings.ReplaceAll(name, ", ", "-")+".png"), png, 0o644); err != nil {
		w.t.Fatal(err)
	}
}
