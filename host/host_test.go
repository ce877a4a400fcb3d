package host_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/host"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

var _ throttle.Store = (*host.Store)(nil)

const (
	ms  = time.Millisecond
	sec = time.Second
)

var background = context.Background()

func file(t testing.TB) string { return filepath.Join(t.TempDir(), "quotas.db") }

func openFile(t testing.TB, path string) *host.Store {
	t.Helper()
	s, err := host.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func limiter(t testing.TB, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	if p.Name == "" {
		p.Name = "api"
	}
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func policy(tiers ...throttle.Tier) throttle.Policy { return throttle.Policy{Tiers: tiers} }

// exact returns a policy without a guard.
func exact(tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Tiers: tiers, Guard: throttle.NoGuard}
}

func plan(t testing.TB, guard time.Duration, tiers ...algorithms.Tier) *algorithms.Plan {
	t.Helper()
	p, err := algorithms.NewPlan(tiers, guard)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func open(t testing.TB, s throttle.Store, p *algorithms.Plan) store.Quota {
	t.Helper()
	q, err := s.Open("api", p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// TestHeadroom tests that a batch job in one process leaves headroom for other classes in another
// process.
func TestHeadroom(t *testing.T) {
	path := file(t)
	synctest.Test(t, func(t *testing.T) {
		p := exact(throttle.PerHour(50))
		p.Headroom = 20
		for _, step := range []struct {
			class throttle.Class
			most  int
		}{{throttle.Batch, 40}, {throttle.Interactive, 10}} {
			l, n := limiter(t, p, openFile(t, path)), 0
			for ; n < 60; n++ {
				ctx, cancel := context.WithTimeout(throttle.WithClass(background, step.class), sec)
				err := l.Wait(ctx)
				cancel()
				if err != nil {
					break
				}
			}
			if n != step.most {
				t.Errorf("%v has %d at once, want %d", step.class, n, step.most)
			}
		}
	})
}

// allowed returns how many of n requests are admitted now.
func allowed(l *throttle.Limiter, n int) (yes int) {
	for range n {
		if l.Allow() {
			yes++
		}
	}
	return yes
}

// A program that is restarted repeatedly in the middle of a burst is never refused, and uses as
// much of the limit as without restarts.
func TestRestart(t *testing.T) {
	for _, restarts := range []int{0, 20} {
		synctest.Test(t, func(t *testing.T) {
			path, tiers := file(t), []throttle.Tier{throttle.PerSecond(5), {Limit: 40, Window: 10 * sec}}
			api := throttletest.New(tiers...)
			api.Delay = func() time.Duration { return rand.N(45 * ms) }
			run := 60 * sec / time.Duration(restarts+1)
			end := time.Now().Add(run)
			for range restarts + 1 {
				s := openFile(t, path)
				client := http.Client{Transport: &throttle.Transport{Base: api, Limiter: limiter(t, policy(tiers...), s)}}
				for time.Now().Before(end) {
					response, err := client.Get("http://api.test/")
					if err != nil {
						t.Fatal(err)
					}
					_ = response.Body.Close()
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				end = end.Add(run)
			}
			sum := api.Summary()
			if sum.Refused > 0 || sum.Accepted < 238 {
				t.Errorf("%d restarts: the provider refused %d and accepted %d, want 0 and nearly 240", restarts, sum.Refused, sum.Accepted)
			}
		})
	}
}

// The store decides as package local does, for random calls.
func TestTwin(t *testing.T) {
	tiers := [][]algorithms.Tier{
		{algorithms.PerSecond(5), {Limit: 60, Window: 20 * sec, Algorithm: algorithms.SlidingWindow}},
		{{Limit: 10, Window: sec, Algorithm: algorithms.TokenBucket}, {Limit: 20, Window: 3 * sec, Algorithm: algorithms.FixedWindow}},
		{{Limit: 9, Window: sec, Algorithm: algorithms.AnchoredWindow}, {Limit: 30, Window: 4 * sec, Algorithm: algorithms.WeightedWindow}},
		{{Limit: 9, Window: sec, Algorithm: algorithms.FixedWindow, Phase: algorithms.UnknownPhase}, {Limit: 30, Window: 4 * sec, PaceBurst: 2}},
	}
	for i, tiers := range tiers {
		synctest.Test(t, func(t *testing.T) {
			p := plan(t, time.Duration(i%2)*50*ms, tiers...)
			g := &pair{T: t, tiers: tiers, rand: rand.New(rand.NewPCG(uint64(i), 1)), plan: p, file: openFile(t, file(t)), twin: open(t, local.New(), p)}
			g.quota = open(t, g.file, p)
			for step := range 1500 {
				g.what = fmt.Sprintf("plan %d, step %d", i, step)
				g.step()
				time.Sleep(g.random(60 * ms))
			}
		})
	}
}

// A pair is a quota in a file and a quota in memory that must behave alike.
type pair struct {
	*testing.T
	what        string
	rand        *rand.Rand
	tiers       []algorithms.Tier
	plan        *algorithms.Plan
	file        *host.Store
	twin, quota store.Quota
	held        []held
}

// A held decision contains the quotas that made it.
type held struct {
	store.Decision
	twin, quota store.Quota
}

var one = []int64{1}

func (g *pair) random(below time.Duration) time.Duration {
	return time.Duration(g.rand.Int64N(int64(below))).Truncate(time.Microsecond)
}

func (g *pair) step() {
	switch what := g.rand.IntN(22); {
	case what < 12:
		g.reserve(store.Request{Cost: one, Held: g.rand.IntN(2) == 0})
	case what < 16 && len(g.held) > 0:
		d := g.next()
		d.twin.Arrived(d.Decision, one)
		d.quota.Arrived(d.Decision, one)
	case what == 16 && len(g.held) > 0:
		d := g.next()
		d.twin.Unanswered(d.Decision, one)
		d.quota.Unanswered(d.Decision, one)
	case what == 17 && len(g.held) > 0:
		d := g.next()
		g.same(nil, d.twin.Return(background, d.Decision, one), d.quota.Return(background, d.Decision, one))
	case what == 17:
		from := time.Now().Add(g.random(sec))
		g.twin.(store.Feedback).Align(0, from, from.Add(10*ms))
		g.quota.(store.Feedback).Align(0, from, from.Add(10*ms))
	case what == 18 && g.rand.IntN(4) == 0:
		pause := store.Pause{For: g.random(sec) * time.Duration(g.rand.IntN(2)), Close: g.rand.IntN(2) == 0, Probe: g.rand.IntN(2) == 0}
		pause.Once, pause.Epoch = g.rand.IntN(4) == 0, g.rand.Int64N(20)
		want, _ := g.twin.Pause(background, pause)
		got, err := g.quota.Pause(background, pause)
		g.same(err, got, want)
	case what == 19 && g.rand.IntN(10) == 0:
		g.same(nil, g.twin.Resume(background), g.quota.Resume(background))
	case what == 20 && g.rand.IntN(30) == 0 && g.tiers[0].Phase != algorithms.UnknownPhase: // such a tier takes a window to change
		g.change()
	case what == 21:
		want, _ := g.twin.Status(background)
		got, err := g.quota.Status(background)
		g.same(err, got, want)
		g.quota = open(g, g.file, g.plan) // as another process would, since the file now contains all changes
	}
}

func (g *pair) next() held {
	d := g.held[0]
	g.held = g.held[1:]
	return d
}

// change changes all limits of both quotas.
func (g *pair) change() {
	var tiers []algorithms.Tier
	for _, t := range g.tiers {
		t.Limit, t.Burst = 5+g.rand.Int64N(40), 0
		tiers = append(tiers, t)
	}
	g.plan = plan(g, g.plan.Guard(), tiers...)
	quota := g.quota
	g.same(nil, g.twin.(store.Lifecycle).Change(background, g.plan), quota.(store.Lifecycle).Change(background, g.plan))
	if b, err := quota.TryAcquire(background, store.Request{Cost: one}); err != nil || b.Verdict != store.Moved {
		g.Fatalf("%s: %+v, %v of a quota with a successor, want Moved", g.what, b, err)
	}
	g.twin, _ = g.twin.(store.Lifecycle).Successor()
	g.quota, _ = g.quota.(store.Lifecycle).Successor()
	want, _ := g.twin.Status(background)
	got, err := quota.Status(background)
	g.same(err, got, want)
}

func (g *pair) reserve(r store.Request) {
	want, _ := g.twin.TryAcquire(background, r)
	got, err := g.quota.TryAcquire(background, r)
	if got.Verdict == store.Late {
		got.Verdict = store.Later // package local does not return Late
	}
	want.Recheck = want.Verdict == store.Later // package local calls the watchers
	g.same(err, got, want)
	if got.Verdict == store.Admitted && r.Held {
		g.held = append(g.held, held{got, g.twin, g.quota})
	}
}

func (g *pair) same(err error, got, want any) {
	g.Helper()
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		g.Fatalf("%s: %+v, %v, want %+v", g.what, got, err, want)
	}
}
