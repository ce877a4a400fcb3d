package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// poolOf returns a Pool "models" with the members east and west, whose policies have a name and an Observer.
func poolOf(t testing.TB, o, ofMembers *throttle.Observer, east, west string) *throttle.Pool {
	t.Helper()
	pool, err := throttle.NewPool()
	if err != nil {
		t.Fatal(err)
	}
	pool.Name, pool.Observer = "models", o
	for i, text := range []string{east, west} {
		name := []string{"east", "west"}[i]
		p, err := throttle.ParsePolicy("gpt "+name, text)
		if err != nil {
			t.Fatal(err)
		}
		p.Observer = ofMembers
		if err := pool.Add(throttle.Member{Name: name, Limiter: limiter(t, p), Rank: i, Weight: 2 - i}); err != nil {
			t.Fatal(err)
		}
	}
	return pool
}

// TestPoolConservation compares the counts of a Pool with those of 3,000 random callers: each request is
// counted once, under the Pool, also where the policies of the members have the same Observer.
func TestPoolConservation(t *testing.T) {
	for _, joined := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, 16))
			stats := NewStats()
			o := stats.Observer()
			var ofMembers *throttle.Observer
			if joined {
				ofMembers = o
			}
			pool := poolOf(t, o, ofMembers, "5/s + 100;unit=points;algo=concurrency | guard=none;max_wait=4s", "9/s;algo=gcra + 6;algo=concurrency | guard=none")
			own := ownCounts{requests: make(map[string]int), responses: make(map[string]int)}
			var wg sync.WaitGroup
			for i := range 3000 {
				at, work, end := time.Duration(random.Int64N(int64(200*time.Second))), time.Duration(random.Int64N(int64(time.Second))), random.IntN(4)
				within := time.Duration(random.Int64N(int64(6 * time.Second)))
				wg.Go(func() {
					time.Sleep(at)
					ctx, cancel := context.WithTimeout(t.Context(), within)
					defer cancel()
					acquire := pool.Acquire
					if i%7 == 0 {
						acquire = pool.TryAcquire
					}
					var cost throttle.Cost
					if i%11 == 0 {
						cost = throttle.Cost{"points": 60}
					}
					p, err := acquire(ctx, cost)
					own.called(throttle.Normal, err)
					if err != nil {
						return
					}
					own.add(own.requests, p.Member())
					time.Sleep(work)
					kind := [...]string{"passed", "unsent", "limited", "lost"}[end]
					own.add(own.responses, p.Member()+" "+kind)
					switch kind {
					case "passed":
						p.Passed()
					case "unsent":
						_ = p.Cancel(t.Context())
					case "limited":
						_ = p.Refused(t.Context(), time.Millisecond)
					}
					p.Release()
				})
			}
			most := 0
			for range 100 {
				time.Sleep(2*time.Second + 7*time.Millisecond)
				synctest.Wait()
				waiting := pool.Status(t.Context()).Waiting
				most = max(most, waiting)
				if queued := countsOf(stats, "models").Queued["normal"]; queued != int64(waiting) {
					t.Errorf("%d queued, %d wait", queued, waiting)
				}
			}
			wg.Wait()
			time.Sleep(time.Minute)
			p := countsOf(stats, "models")
			requests, responses := nonzero(p)
			for _, m := range p.Members {
				requests[m.Member] = int(m.Admitted["normal"])
				for kind, n := range m.Responses {
					if n > 0 {
						responses[m.Member+" "+kind] = int(n)
						responses[kind] -= int(n)
					}
				}
				if m.Active != 0 || m.Admitted["normal"] == 0 {
					t.Errorf("%+v", m)
				}
			}
			for _, kind := range kindNames { // those of the Pool are the sum
				if responses[kind] == 0 {
					delete(responses, kind)
				}
			}
			if !reflect.DeepEqual(requests, own.requests) || !reflect.DeepEqual(responses, own.responses) {
				t.Errorf("counted\n%v %v, want\n%v %v", requests, responses, own.requests, own.responses)
			}
			if p.Active != 0 || p.Queued["normal"] != 0 || most == 0 {
				t.Errorf("%d active and %v queued at the end, at most %d", p.Active, p.Queued, most)
			}
			checkRing(t, p)
			for _, p := range stats.Snapshot(t.Context()).Policies {
				if p.Policy != "models" && (len(p.Requests) > 0 || len(p.Waits) > 0 || !joined) {
					t.Errorf("policy %s has counts: %+v", p.Policy, p)
				}
			}
		})
	}
}

// countsOf returns the counts of a policy.
func countsOf(stats *Stats, policy string) (p PolicySnapshot) {
	for _, p = range stats.Snapshot(context.Background()).Policies {
		if p.Policy == policy {
			return p
		}
	}
	return PolicySnapshot{}
}

// The Observers of the members' policies receive nothing about the requests of a Pool without an Observer.
func TestPoolWithoutObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		pool := poolOf(t, nil, stats.Observer(), "2/s | guard=none", "2/s | guard=none")
		for i := range 9 {
			p, err := pool.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				_ = p.Cancel(t.Context())
			}
			p.Release()
			if err := pool.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range stats.Snapshot(t.Context()).Policies {
			if requests, responses := nonzero(p); len(requests)+len(responses) > 0 || p.Active != 0 {
				t.Errorf("%s: %v %v, %d active", p.Policy, requests, responses, p.Active)
			}
		}
	})
}

// usePool has three requests admitted by the member east, the last after a second, and one by west, and lets
// a request be refused.
func usePool(t testing.TB, pool *throttle.Pool, members []throttle.MemberStatus) {
	t.Helper()
	acquire := func(member string) *throttle.Permit {
		p, err := pool.Acquire(t.Context(), nil)
		if err != nil || p.Member() != member {
			t.Fatalf("%v by %q, want %s", err, p.Member(), member)
		}
		return p
	}
	first := acquire("east")
	acquire("east").Passed()
	acquire("west").Passed()
	acquire("east")
	if err := first.Refused(t.Context(), 90*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := members[1].Member.Limiter.Pause(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := pool.Acquire(ctx, nil); err == nil {
		t.Fatal("admitted")
	}
}

// TestPoolMetrics checks the series of a Pool: what is known by the member has its label, and the rest and
// other policies have none.
func TestPoolMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		pool := poolOf(t, stats.Observer(), nil, "2/s | guard=none", "1/h | guard=none")
		if err := stats.WatchPool("models", pool); err != nil {
			t.Fatal(err)
		}
		members := pool.Status(t.Context()).Members
		usePool(t, pool, members)
		stats.Observer().Admitted(t.Context(), throttle.AdmittedInfo{Policy: "api", Held: true})
		w := httptest.NewRecorder()
		stats.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		var got strings.Builder
		for line := range strings.Lines(w.Body.String()) {
			if !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0\n") && !strings.Contains(line, "_bucket") {
				got.WriteString(line)
			}
		}
		want := `throttle_requests_total{policy="api",class="normal",result="admitted"} 1
throttle_requests_total{policy="models",class="normal",result="admitted",member="east"} 3
throttle_requests_total{policy="models",class="normal",result="admitted",member="west"} 1
throttle_requests_total{policy="models",class="normal",result="deadline"} 1
throttle_request_time_in_queue_seconds_sum{policy="models",class="normal",result="admitted",tier="2/s",tier_policy="gpt east",member="east"} 1
throttle_request_time_in_queue_seconds_count{policy="models",class="normal",result="admitted",tier="2/s",tier_policy="gpt east",member="east"} 1
throttle_active_requests{policy="api"} 1
throttle_active_requests{policy="models",member="east"} 1
throttle_responses_total{policy="models",kind="passed",member="east"} 1
throttle_responses_total{policy="models",kind="limited",member="east"} 1
throttle_responses_total{policy="models",kind="passed",member="west"} 1
throttle_tier_usage{policy="models",tier="2/s",unit="requests",tier_policy="gpt east",member="east"} 1
throttle_tier_usage{policy="models",tier="1/h",unit="requests",tier_policy="gpt west",member="west"} 1
throttle_tier_limit{policy="models",tier="2/s",unit="requests",tier_policy="gpt east",member="east"} 2
throttle_tier_limit{policy="models",tier="1/h",unit="requests",tier_policy="gpt west",member="west"} 1
throttle_tier_utilization_ratio{policy="models",tier="2/s",unit="requests",tier_policy="gpt east",member="east"} 0.5
throttle_tier_utilization_ratio{policy="models",tier="1/h",unit="requests",tier_policy="gpt west",member="west"} 1
`
		if got.String() != want {
			t.Errorf("%s\nwant\n%s", &got, want)
		}
	})
}

// TestPoolSnapshot checks the state of a watched Pool, and that its totals are what they are for a policy, so
// that readers that do not know of members read them.
func TestPoolSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		pool := poolOf(t, stats.Observer(), nil, "2/s | guard=none", "1/h | guard=none")
		if err := stats.WatchPool("gone", pool); err != nil {
			t.Fatal(err)
		}
		if err := stats.WatchPool("gone", nil); err != nil {
			t.Fatal(err)
		}
		if err := stats.WatchPool("shown", pool); err != nil {
			t.Fatal(err)
		}
		members := pool.Status(t.Context()).Members
		usePool(t, pool, members)
		snap := stats.Snapshot(t.Context())
		state := fmt.Sprintf("%+v", snap.Pools)
		for _, want := range []string{
			"[{Name:shown Policy:models Waiting:0 Members:[{LimiterSnapshot:{Name:east Policy:gpt east Failed:false", "Paused:90 Closed:0 Guard:0} Rank:0 Weight:2}",
			"{LimiterSnapshot:{Name:west Policy:gpt west Failed:false", "Paused:3600 Closed:0 Guard:0} Rank:1 Weight:1}]}]",
		} {
			if !strings.Contains(state, want) {
				t.Errorf("%s\nlacks %s", state, want)
			}
		}
		p := snap.Policies[0]
		if requests, responses := nonzero(p); !reflect.DeepEqual(requests, map[string]int{"normal admitted": 4, "normal deadline": 1}) ||
			!reflect.DeepEqual(responses, map[string]int{"passed": 2, "limited": 1}) || len(p.Waits) != 1 || p.Waits[0].Count != 1 || p.Active != 1 {
			t.Errorf("%v %v %+v, %d active", requests, responses, p.Waits, p.Active)
		}
		if len(p.Members) != 2 || p.Members[0].Recent != 3 || p.Members[1].Recent != 1 || len(snap.Limiters) != 0 {
			t.Errorf("%+v %+v", p.Members, snap.Limiters)
		}
		time.Sleep(6 * time.Minute)
		if m := stats.Snapshot(t.Context()).Policies[0].Members[0]; m.Recent != 0 || m.Admitted["normal"] != 3 {
			t.Errorf("later %+v", m)
		}
		stats.Observer().Admitted(t.Context(), throttle.AdmittedInfo{Policy: "api"})
		for _, p := range stats.Snapshot(t.Context()).Policies {
			if body, err := json.Marshal(p); err != nil || bytes.Contains(body, []byte(`"members"`)) != (p.Policy == "models") {
				t.Errorf("%v %s", err, body)
			}
		}
	})
}

// TestPoolBounds checks that a great number of members takes bounded memory, and that the requests of
// those that are not counted apart balance.
func TestPoolBounds(t *testing.T) {
	stats := NewStats()
	o := stats.Observer()
	for i := range 1000 {
		name := fmt.Sprintf("member %d", i)
		o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: "models", Member: name, Held: true, Queued: true, By: "gpt", Tier: name})
		o.Answered(t.Context(), throttle.AnsweredInfo{Policy: "models", Member: name, Kind: answers.Passed})
	}
	o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: "models", Held: true}) // of a Limiter of that name
	p := countsOf(stats, "models")
	if len(p.Members) != maxMembers+2 || p.Members[0].Member != "" || p.Members[1].Member != otherName || p.Active != 1 {
		t.Fatalf("%d members, %d active", len(p.Members), p.Active)
	}
	if m := p.Members[1]; m.Admitted["normal"] != 1000-maxMembers || m.Active != 0 || len(m.Waits) != maxTiers+1 {
		t.Errorf("%+v", m)
	}
	if m := p.Members[0]; m.Admitted["normal"] != 1 || m.Active != 1 {
		t.Errorf("%+v", m)
	}
}

// TestPoolLog checks that lines about the requests of a Pool name it and the member, where that is known.
func TestPoolLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		pool := poolOf(t, Log(newLogger(&text, slog.LevelInfo), LogOptions{}), nil, "2/s | guard=none", "1/h | guard=none")
		members := pool.Status(t.Context()).Members
		usePool(t, pool, members)
		want := `level=INFO msg="throttle: request waited" policy=models member=east class=normal result=admitted waited=1s tier=2/s by="gpt east"
level=WARN msg="throttle: provider refused" policy=models member=east status=0 tier=2/s by="gpt east" used=1 limit=2
level=WARN msg="throttle: request refused" policy=models class=normal reason=deadline waited=0s by="gpt east" wait=1m30s ahead=0
`
		if text.String() != want {
			t.Errorf("%s\nwant\n%s", &text, want)
		}
	})
}
