package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
	"github.com/apithrottle/throttle/store"
)

// run runs the command in this process.
func run(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runWith(t, stdin, nil, args...)
}

// TestStatusOfPage reads the live page of a program.
func TestStatusOfPage(t *testing.T) {
	stats := observe.NewStats()
	policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(5), {Limit: 2, Algorithm: throttle.Concurrency}}, Observer: stats.Observer()}
	l, err := throttle.New(policy, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := l.Acquire(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Pause(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := stats.Watch("api", l); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/_throttle/", page.New(page.Options{Stats: stats}))
	mux.HandleFunc("/other/", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("hello")) })
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, path := range []string{"/_throttle/", "/_throttle", "/_throttle/state.json"} {
		out, talk, code := run(t, "", "status", "--json", "--page", server.URL+path)
		var r statusResult
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || talk != "" {
			t.Fatalf("%s: %q, %q, %d", path, out, talk, code)
		}
		if len(r.Quotas) != 1 || r.Quotas[0].Name != "api" || len(r.Quotas[0].Tiers) != 2 {
			t.Fatalf("%s: %+v", path, r)
		}
		q := r.Quotas[0]
		if q.Tiers[0].Used != 2 || q.Tiers[0].Remaining != 3 || q.Tiers[1].RetryAfter != nil || q.Paused < 3000 || q.Admitted == nil {
			t.Errorf("%+v", q)
		}
		if !strings.HasPrefix(q.Text, "5/h: 2 of 5 used, room for 3. 2;algo=concurrency: 2 of 2 used, one more when something is released. Paused for ") {
			t.Errorf("%q", q.Text)
		}
	}
	if out, _, _ := run(t, "", "status", "--page", server.URL+"/_throttle/", "wish"); strings.Contains(out, "api") {
		t.Errorf("%q", out)
	}
	for _, path := range []string{"/other/", "/none/"} {
		if out, talk, code := run(t, "", "status", "--page", server.URL+path); code != exitUnavailable || out != "" || talk == "" {
			t.Errorf("%s: %q, %q, %d", path, out, talk, code)
		}
	}
}

// TestStatusOfLearnedRates reads a page with a rate that is learned, and prints the tier that would keep it.
func TestStatusOfLearnedRates(t *testing.T) {
	stats := observe.NewStats()
	tier := throttle.Tier{Limit: 5, Window: time.Second, Algorithm: throttle.GCRA, Learn: throttle.Learn{Most: 1000}}
	l, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(1000), tier}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := stats.Watch("api", l); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(page.New(page.Options{Stats: stats}))
	defer server.Close()
	status := func(args ...string) string {
		t.Helper()
		out, talk, code := run(t, "", append(args, "--page", server.URL)...)
		if code != 0 || talk != "" {
			t.Fatalf("%q: %q, %q, %d", args, out, talk, code)
		}
		return strings.Join(strings.Fields(out), " ") // the text is wrapped
	}
	if out := status("status"); !strings.Contains(out, "5/s is the start: nothing is learned yet, tries up to ") || strings.Contains(out, "To fix") {
		t.Errorf("at the start:\n%s", out)
	}
	p, err := l.Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Refused(t.Context(), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // a page keeps a state for a second
	var r statusResult
	if err := json.Unmarshal([]byte(status("status", "--json")), &r); err != nil {
		t.Fatal(err)
	}
	plain, learned := r.Quotas[0].Tiers[0], r.Quotas[0].Tiers[1]
	if plain.Learned != nil || plain.Origin+plain.Fixed != "" {
		t.Errorf("a tier that does not learn: %+v", plain)
	}
	got := learned.Learned
	if got == nil || got.Rate < 2.5 || got.Rate > 4.5 || got.Refused <= got.Rate || got.Refused > 5 || got.Ago < 1 || got.Ago > 60 {
		t.Fatalf("%+v, %+v", learned, got)
	}
	if fixed, err := algorithms.ParseTier(learned.Fixed); err != nil || fixed.Burst != 5 || float64(fixed.Limit)/fixed.Window.Seconds() > got.Rate {
		t.Errorf("%v is to keep %v/s: %v", learned.Fixed, got.Rate, err)
	}
	origin := fmt.Sprintf("%s is learned: refused at %s ", tier.FormatRate(got.Rate), tier.FormatRate(got.Refused))
	if out := status("status"); !strings.Contains(out, origin) || !strings.HasSuffix(out, " To fix what is in force, replace 5/s;algo=gcra;learn=1000 by "+learned.Fixed+".") {
		t.Errorf("after a refusal:\n%s", out)
	}
	if out := status("top", "--count", "1"); !strings.Contains(out, origin) || strings.Contains(out, "To fix") {
		t.Errorf("top:\n%s", out)
	}
	lines := strings.Join(screenLines(r, nil, 72, false), "\n")
	if !strings.Contains(lines, "\n    "+origin) {
		t.Errorf("the screen has\n%s", lines)
	}
}

// TestFixedTier checks the tier that keeps a rate. It can be parsed, and is none where nothing is to keep.
func TestFixedTier(t *testing.T) {
	for _, test := range []struct {
		tier     string
		limit    int64
		followed int64
		learned  *store.Learned
		want     string
	}{
		{"5/s", 5, 0, nil, ""},
		{"5000/h;follow=15000", 5000, 0, nil, ""},
		{"5000/h;algo=fixed_window;follow=15000", 800, 800, nil, "800/h;algo=fixed_window"},
		{"2/s;algo=leaky_bucket;burst=40;follow=400", 80, 4, nil, "4/s;algo=leaky_bucket;burst=80"},
		{"5/s;algo=gcra;learn=1000", 5, 0, &store.Learned{Rate: 5, Next: 8}, ""},
		{"5/s;algo=gcra;learn=1000", 5, 0, &store.Learned{Rate: 17.9, Next: 18}, "17/s;algo=gcra;burst=5"},
		{"5/s;algo=gcra;learn=1000", 5, 0, &store.Learned{Rate: 21, Refused: 20, Next: 22}, "18/s;algo=gcra;burst=5"},
		{"5/s;unit=tokens;algo=gcra;burst=1;learn=1000", 1, 0, &store.Learned{Rate: 0.0512, Refused: 1}, "51/16m40s;unit=tokens;algo=gcra;burst=1"},
	} {
		tier, err := algorithms.ParseTier(test.tier)
		if err != nil {
			t.Fatal(err)
		}
		got := fixedTier(throttle.TierStatus{Tier: tier, Limit: test.limit, Followed: test.followed, Learned: test.learned})
		if _, err := algorithms.ParseTier(got); got != test.want || got != "" && err != nil {
			t.Errorf("%s: %q, %v, want %q", test.tier, got, err, test.want)
		}
	}
}

// TestStatusLeavesNothing reads quotas that are not in Redis. What it writes there ends by itself.
func TestStatusLeavesNothing(t *testing.T) {
	server := redistest.Start(t)
	for _, args := range [][]string{{"--explain"}, {"--key", "a"}} {
		args = append([]string{"status", "--redis", "redis://" + server.Addr(), "--policy", "5/h + 2;algo=concurrency", "w"}, args...)
		if out, talk, code := run(t, "", args...); code != 0 || !strings.Contains(out, "0 of 5 used") {
			t.Errorf("%q, %q, %d", out, talk, code)
		}
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	keys, err := rdb.Keys(context.Background(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if left := rdb.PTTL(context.Background(), key).Val(); left == -1 || left > time.Minute {
			t.Errorf("%s ends in %v", key, left)
		}
	}
}

// TestSlowRedis calls a Redis that answers, but not in time: the command tries again. One that refuses is
// away at once.
func TestSlowRedis(t *testing.T) {
	slow := fmt.Errorf("throttle: %w: %w", throttle.ErrUnavailable, context.DeadlineExceeded)
	for _, tt := range []struct {
		addr    string
		fails   int
		calls   int
		message string
	}{
		{redistest.Start(t).Addr(), 3, 4, ""},
		{redistest.Start(t).Addr(), 100, 5, "cannot be used: it is slow: it did not answer in time"},
		{"127.0.0.1:1", 100, 1, "Redis at 127.0.0.1:1 cannot be used: dial tcp 127.0.0.1:1: connect: connection refused"},
	} {
		f := place{config.Store{Redis: config.NewSecret("redis://" + tt.addr)}}
		calls := 0
		err := f.patiently(func() error {
			if calls++; calls <= tt.fails {
				return slow
			}
			return nil
		})
		if calls != tt.calls || (err == nil) != (tt.message == "") || err != nil && !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%d calls, %v; want %d, %q", calls, err, tt.calls, tt.message)
		}
		if err != nil && exitCode(err) != exitUnavailable {
			t.Errorf("%v has exit code %d", err, exitCode(err))
		}
	}
}

// TestTierStyle checks that a tier is yellow from four fifths of its limit on, however small that is.
func TestTierStyle(t *testing.T) {
	now := 0.0
	for _, tt := range []struct {
		used, limit int64
		want        string
	}{{0, 1, "32"}, {0, 4, "32"}, {3, 4, "32"}, {4, 5, "33"}, {7, 9, "32"}, {8, 9, "33"}, {799, 1000, "32"}, {800, 1000, "33"}} {
		if _, _, style := (tierResult{Used: tt.used, Limit: tt.limit, Remaining: tt.limit - tt.used, RetryAfter: &now}).texts(); style != tt.want {
			t.Errorf("%d of %d used: style %s, want %s", tt.used, tt.limit, style, tt.want)
		}
	}
}

// TestFrame draws states, some of them with hostile names, on screens of all sizes. No line is wider
// than the screen, there are no more lines than it has, and no name can control the terminal.
func TestFrame(t *testing.T) {
	long, later, now := 86400.0, 1.5, 0.0
	states := []statusResult{
		{},
		{Time: time.Unix(1e9, 0).UTC(), Quotas: []quotaResult{
			{Name: "api", Paused: 3, Waiting: 12, Tiers: []tierResult{
				{Tier: "5/s", Limit: 5, Used: 5, RetryAfter: &later}, {Tier: "10000/h", Limit: 10000, Used: 10000, RetryAfter: &long},
				{Tier: "9223372036854775807/30d;unit=tokens", Limit: 1<<63 - 1, Used: 1<<63 - 1, Remaining: 1<<63 - 1, RetryAfter: &now},
				{Tier: "2;algo=concurrency", Limit: 2, Used: 3}, {Tier: "0", Used: -1, RetryAfter: &now},
			}},
			{Name: "\x1b[2J\x1b]0;title\a\u202eevil" + strings.Repeat("ü", 200), Failure: "\r\n\x1b[31m"},
		}},
	}
	escapes := regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")
	known := regexp.MustCompile("^\x1b\\[(H|J|K|0m|1m|3[1-3]m)$")
	for _, r := range states {
		for width := 1; width < 140; width++ {
			for _, height := range []int{1, 2, 5, 24} {
				for _, err := range []error{nil, errors.New("page \x1b[2J is away")} {
					text := string(frame(r, err, width, height, width%2 == 0))
					for _, e := range escapes.FindAllString(text, -1) {
						if !known.MatchString(e) {
							t.Fatalf("%d×%d: escape %q in %q", width, height, e, text)
						}
					}
					lines := strings.Split(escapes.ReplaceAllString(text, ""), "\r\n")
					if len(lines) > height {
						t.Fatalf("%d×%d: %d lines", width, height, len(lines))
					}
					for _, line := range lines {
						if n := utf8.RuneCountInString(line); n > width || strings.ContainsAny(line, "\x1b\a\r\n\u202e") {
							t.Fatalf("%d×%d: %d columns: %q", width, height, n, line)
						}
					}
				}
			}
		}
	}
	if wide := string(frame(states[1], nil, 80, 24, false)); !strings.Contains(wide, "5/s") || !strings.Contains(wide, "paused for 3s, 12 waiting") {
		t.Errorf("%q", wide)
	}
}

// TestStatusOfPool reads a page with a pool: its members follow it, with their tiers and shares.
func TestStatusOfPool(t *testing.T) {
	stats := observe.NewStats()
	pool, err := throttle.NewPool()
	if err != nil {
		t.Fatal(err)
	}
	pool.Name, pool.Observer = "models", stats.Observer()
	for i, name := range []string{"east", "west"} {
		l, err := throttle.New(throttle.Policy{Name: "gpt", Tiers: []throttle.Tier{throttle.PerHour(3)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := pool.Add(throttle.Member{Name: name, Limiter: l, Rank: i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := stats.WatchPool("models", pool); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := pool.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(page.New(page.Options{Stats: stats}))
	defer server.Close()
	out, _, _ := run(t, "", "status", "--json", "--page", server.URL)
	var r statusResult
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Quotas) != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	for i, want := range []string{"models", "models/east", "models/west"} {
		q := r.Quotas[i]
		if q.Name != want || (len(q.Tiers) == 1) != (i > 0) || i > 0 && (q.Share == nil || *q.Share != []float64{0, 0.75, 0.25}[i]) || i == 0 && q.Share != nil {
			t.Errorf("%+v, want %s", q, want)
		}
	}
	out, _, _ = run(t, "", "status", "--page", server.URL, "models")
	for _, want := range []string{"models/east  3/h", "models/west  3/h", "models: A pool of 2 members.", "models/west: 3/h: 1 of 3 used"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	shown := strings.Join(screenLines(r, nil, 100, false), "\n")
	for _, want := range []string{" admitted in the last second\n\nmodels/east\n  75 % of the admissions in 5 minutes\n  3/h"} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not in\n%s", want, shown)
		}
	}
}

// TestStatusInDollars tests what status and top show of a budget, of a quota and of a page.
func TestStatusInDollars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := throttle.ParsePolicy("models", "$500/month")
		if err != nil {
			t.Fatal(err)
		}
		l, err := throttle.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * 24 * time.Hour)
		permit, err := l.Acquire(t.Context(), throttle.Cost{"nanodollars": 396_000_000_000})
		if err != nil {
			t.Fatal(err)
		}
		permit.Passed()
		permit.Release()
		stats := observe.NewStats()
		if err := stats.Watch("models", l); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		page.New(page.Options{Stats: stats}).ServeHTTP(w, httptest.NewRequest("GET", "/state.json", nil))
		var state page.State
		if err := json.Unmarshal(w.Body.Bytes(), &state); err != nil {
			t.Fatal(err)
		}
		for name, q := range map[string]quotaResult{
			"quota": openQuota{"models", new(place), l, nil, new(observe.Budgets)}.read(t.Context(), false),
			"page":  pageResults(state.Policies[0], state.Time)[0],
		} {
			const expected = "about $614 expected by 31 Jan, $114 more than the budget"
			r := statusResult{Quotas: []quotaResult{q}}
			for _, want := range []string{
				"models  $500/month  $396.00  $500.00  $104.00  now",
				"models: $500/month: $396.00 of $500.00 used, room for $104.00. $500/month: " + expected + ".",
			} {
				if got := strings.Join(strings.Fields(r.text()), " "); !strings.Contains(got, strings.Join(strings.Fields(want), " ")) {
					t.Errorf("%s: %s\nhas no %s", name, got, want)
				}
			}
			shown := strings.Join(screenLines(r, nil, 100, true), "\n")
			if !strings.Contains(shown, "  $396.00 of $500.00  room for $104.00\n\x1b[33m    "+expected+"\x1b[0m\n") {
				t.Errorf("%s: top shows\n%s", name, shown)
			}
		}
	})
}
