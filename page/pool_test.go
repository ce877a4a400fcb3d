package page_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
)

// poolOf returns a Pool that stats observe and watch. Its members are east, west and so on, of which the
// first two have rank 0. The policies of the members have no Observer, unless joined is set.
func poolOf(t *testing.T, stats *observe.Stats, joined bool, policies ...string) (*throttle.Pool, []*throttle.Limiter) {
	t.Helper()
	var members []throttle.Member
	var limiters []*throttle.Limiter
	for i, text := range policies {
		p, err := throttle.ParsePolicy("gpt", text+" | guard=none")
		if err != nil {
			t.Fatal(err)
		}
		if joined {
			p.Observer = stats.Observer()
		}
		l, err := throttle.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		limiters = append(limiters, l)
		members = append(members, throttle.Member{Name: []string{"east", "west", "north"}[i], Limiter: l, Rank: i / 2, Weight: 3 - i})
	}
	p, err := throttle.NewPool(members...)
	if err != nil {
		t.Fatal(err)
	}
	p.Name, p.Observer = "models", stats.Observer()
	if err := stats.WatchPool("models", p); err != nil {
		t.Fatal(err)
	}
	return p, limiters
}

func acquire(t *testing.T, p *throttle.Pool, n int) {
	t.Helper()
	for range n {
		if _, err := p.Acquire(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// membersText returns the members of a policy in short.
func membersText(p page.Policy) string {
	var all []string
	for _, m := range p.Members {
		all = append(all, fmt.Sprintf("%s %d %d %s %d %.2f %d %v %v %s", m.Name, m.Rank, m.Weight, m.Condition, m.Admitted, m.Share, len(m.Tiers), m.Paused, m.Closed, m.Policy))
	}
	return strings.Join(all, "; ")
}

// TestPool checks what the state has of a Pool and its members, whoever observes the members' policies.
func TestPool(t *testing.T) {
	for _, joined := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			stats := observe.NewStats()
			h := page.New(page.Options{Stats: stats})
			p, l := poolOf(t, stats, joined, "3/h", "1/h", "9/h + 20/d")
			acquire(t, p, 5)
			if err := l[2].Pause(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			for range 2 {
				go p.Wait(ctx)
			}
			synctest.Wait()
			state := stateOf(t, h)
			cancel()
			got := state.Policies[slices.IndexFunc(state.Policies, func(p page.Policy) bool { return p.Name == "models" })]
			if want := "east 0 3 full 3 0.60 1 0 0 gpt; west 0 2 full 1 0.20 1 0 0 gpt; north 1 1 paused 1 0.20 2 60 0 gpt"; membersText(got) != want {
				t.Errorf("%s\nwant %s", membersText(got), want)
			}
			if got.Condition != page.Full || got.Waiting != 2 || got.Queued["normal"] != 2 || got.Active != 5 || !got.Counted || !got.Watched || len(got.Tiers) != 0 {
				t.Errorf("%+v", got)
			}
			for _, p := range state.Policies {
				if p.Name != "models" {
					t.Errorf("there is a card of %s: %+v", p.Name, p)
				}
			}
		})
	}
}

// TestPoolCondition checks that a Pool has the condition of its best member, and that health reports one that
// no member can serve.
func TestPoolCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := observe.NewStats()
		h := page.New(page.Options{Stats: stats})
		p, l := poolOf(t, stats, false, "10/s", "10/s")
		expect := func(what string, want page.Condition, paused, closed float64, problem string) {
			t.Helper()
			time.Sleep(time.Second)
			s := stateOf(t, h)
			if got := s.Policies[0]; got.Condition != want || got.Paused != paused || got.Closed != closed {
				t.Errorf("%s: %s, paused for %v, closed for %v; want %s, %v, %v", what, got.Condition, got.Paused, got.Closed, want, paused, closed)
			}
			if got := fmt.Sprint(s.Health.OK, s.Health.Watched, s.Health.Problems); got != problem {
				t.Errorf("%s: health is %s, want %s", what, got, problem)
			}
		}
		const fine = "true 1 []"
		ban := func(l *throttle.Limiter, d time.Duration) {
			permit, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := permit.Refused(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			permit.Release()
		}
		expect("all have room", page.Open, 0, 0, fine)
		ban(l[0], 2*time.Hour)
		expect("one is banned", page.Open, 0, 0, fine)
		if err := l[1].Pause(t.Context(), 11*time.Second); err != nil {
			t.Fatal(err)
		}
		expect("one is banned, and one is paused", page.Paused, 10, 0, fine)
		time.Sleep(10 * time.Second)
		ban(l[1], time.Hour)
		expect("all are banned", page.Banned, 0, 3599, "false 1 [{models banned 3599}]")
		p.Remove("east")
		p.Remove("west")
		expect("no members", page.Unknown, 0, 0, "false 1 [{models no_members 0}]")
		time.Sleep(5 * time.Second)
		if w := get(h, "GET", "/health"); w.Code != 503 {
			t.Errorf("status %d", w.Code)
		}
	})
}

// TestPoolUnwatched checks that a Pool that is only observed has rows of the members that have admitted.
func TestPoolUnwatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := observe.NewStats()
		p, _ := poolOf(t, stats, false, "3/h", "1/h")
		if err := stats.WatchPool("models", nil); err != nil {
			t.Fatal(err)
		}
		acquire(t, p, 4)
		got := stateOf(t, page.New(page.Options{Stats: stats})).Policies[0]
		if want := "east 0 0 unwatched 3 0.75 0 0 0 ; west 0 0 unwatched 1 0.25 0 0 0 "; membersText(got) != want || got.Condition != page.Unwatched {
			t.Errorf("%s %s\nwant %s", got.Condition, membersText(got), want)
		}
	})
}

// TestPoolWithoutJavaScript checks the table of members, in which names are text.
func TestPoolWithoutJavaScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := observe.NewStats()
		p, l := poolOf(t, stats, false, "3/h", "1/h + 7/d", "9/h")
		acquire(t, p, 4)
		if err := l[0].Pause(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := p.Add(throttle.Member{Name: "<img src=x>", Rank: 4, Limiter: watched(t, stats, throttle.Policy{Name: "other", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)}); err != nil {
			t.Fatal(err)
		}
		body := get(page.New(page.Options{Stats: stats}), "GET", "/").Body.String()
		for _, want := range []string{
			`<h2><bdi>models</bdi>: open</h2>`,
			`<tr><th scope="row"><bdi>east</bdi></th><td>0</td><td>3</td><td>paused</td><td>3</td><td>75 %</td><td><bdi>3/h</bdi>: 3 of 3</td></tr>`,
			`<tr><th scope="row"><bdi>west</bdi></th><td>0</td><td>2</td><td>full</td><td>1</td><td>25 %</td><td><bdi>1/h</bdi>: 1 of 1, <bdi>7/d</bdi>: 1 of 7</td></tr>`,
			`<tr><th scope="row"><bdi>north</bdi></th><td>1</td><td>1</td><td>open</td><td>0</td><td>0 %</td><td><bdi>9/h</bdi>: 0 of 9</td></tr>`,
			`<bdi>&lt;img src=x&gt;</bdi>`,
			`<p>0 waiting</p>`,
		} {
			if !strings.Contains(body, want) {
				t.Errorf("the page lacks %s:\n%s", want, body)
			}
		}
		if strings.Contains(body, "<img") || strings.Count(body, "<table>") != 1 {
			t.Errorf("%s", body)
		}
	})
}
