package providers_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/store"
)

// The names without a pattern and the pattern * have quotas apart, whichever limits come first and
// whatever the store does about a second policy of one key.
func TestPatternOfAllNamesHasItsOwnQuota(t *testing.T) {
	for name, open := range map[string]func() throttle.Store{
		"one policy for each key": func() throttle.Store { return local.New() },
		"the last policy counts":  func() throttle.Store { return &local.Store{Replan: true} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := providers.NewModels(nil)
				p := models(m)
				p.Scopes[0].Policy.Tiers = limited(3)
				transport, err := p.Transport(open())
				if err != nil {
					t.Fatal(err)
				}
				transport.Base = accepting{}
				for i := range 4 {
					n, limits := 3, map[string][]throttle.Tier(nil)
					if i%2 == 1 {
						n, limits = 10, map[string][]throttle.Tier{"*": limited(10)}
					}
					if err := m.Set(t.Context(), limits); err != nil {
						t.Fatal(err)
					}
					time.Sleep(3 * time.Hour)
					if got := sends(t, transport, "a"); got != n {
						t.Errorf("limits %v: sent %d, want %d", limits, got, n)
					}
				}
			})
		})
	}
}

// hourly returns a bucket that gains limit in an hour and holds burst.
func hourly(limit, burst int64) []throttle.Tier {
	return []throttle.Tier{{Limit: limit, Window: time.Hour, Algorithm: throttle.TokenBucket, Burst: burst}}
}

// pacedHourly returns limit requests an hour, of which burst may go at once.
func pacedHourly(limit, burst int64) []throttle.Tier {
	return []throttle.Tier{{Limit: limit, Window: time.Hour, PaceBurst: burst}}
}

// Most bounds what goes at once, too, and the names that a wider pattern takes over.
func TestMostBoundsEveryRequest(t *testing.T) {
	for _, test := range []struct {
		name      string
		most, set map[string][]throttle.Tier
		want      int
	}{
		{"a burst by default", map[string][]throttle.Tier{"gpt-4o": hourly(50, 2)}, map[string][]throttle.Tier{"gpt-4o": hourly(90, 0)}, 2},
		{"no pace", map[string][]throttle.Tier{"gpt-4o": pacedHourly(60, 1)}, map[string][]throttle.Tier{"gpt-4o": limited(90)}, 1},
		{"a pace above the limit", map[string][]throttle.Tier{"gpt-4o": pacedHourly(60, 1)}, map[string][]throttle.Tier{"gpt-4o": pacedHourly(9_000, 150)}, 1},
		{"a wider pattern", map[string][]throttle.Tier{"gpt-4o": limited(3)}, map[string][]throttle.Tier{"gpt-*": limited(50)}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := providers.NewModels(nil)
				m.Most = test.most
				rt := over(t, models(m), accepting{})
				if err := m.Set(t.Context(), test.set); err != nil {
					t.Fatal(err)
				}
				if n := sends(t, rt, "gpt-4o"); n != test.want {
					t.Errorf("sent %d at once, want %d", n, test.want)
				}
			})
		})
	}
}

// A name in two keys has the lower limits, or is refused.
func TestNameInTwoKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, err := models(providers.NewModels(map[string][]throttle.Tier{"a": limited(2), "a|b": limited(50)})).Transport(nil)
		if err != nil {
			return
		}
		transport.Base = accepting{}
		if n := sends(t, transport, "a"); n != 2 {
			t.Errorf("sent %d, want 2", n)
		}
	})
}

// Set refuses tiers by which every request would fail: those that lack a unit of its cost.
func TestSetReportsUnitsThatAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.OpenAI(600, 10_000)
		m := providers.NewModels(nil)
		p.Scope("model").Models = m
		rt := over(t, p, accepting{})
		if m.Set(t.Context(), map[string][]throttle.Tier{"gpt-4o": {throttle.PerMinute(100)}}) != nil {
			return
		}
		resp, err := rt.RoundTrip(jsonRequest(t, "https://api.openai.com/v1/chat/completions", map[string]any{"model": "gpt-4o", "max_tokens": 50}, 1))
		if err != nil {
			t.Fatalf("Set accepts the tiers, and each request fails: %v", err)
		}
		resp.Body.Close()
	})
}

// A Transport that nobody uses any more is not kept by its Models.
func TestModelsKeepNoTransport(t *testing.T) {
	type kept struct{ store.Store }
	m := providers.NewModels(map[string][]throttle.Tier{"a": limited(5)})
	open := func() weak.Pointer[kept] {
		s := &kept{local.New()}
		if _, err := models(m).Transport(s); err != nil {
			t.Fatal(err)
		}
		return weak.Make(s)
	}
	s := open()
	runtime.GC()
	if s.Value() != nil {
		t.Error("the store of the Transport is still reachable")
	}
	runtime.KeepAlive(m)
}

// A refresh that lists the models of a group in another order, or one more, forgets no request.
func TestRefreshForgetsNothing(t *testing.T) {
	for name, second := range map[string]string{"another order": `"claude-b","claude-a"`, "one more": `"claude-a","claude-b","claude-c"`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fetch := func(models string) map[string][]throttle.Tier {
					api := oneReply(`{"data":[{"group_type":"model_group","models":[` + models + `],"limits":[{"type":"requests_per_minute","value":60}]}],"next_page":null}`)
					limits, err := providers.FetchAnthropic(t.Context(), &http.Client{Transport: api}, anthropicAdminKey, "")
					if err != nil {
						t.Fatal(err)
					}
					return limits
				}
				p := providers.Anthropic(60, 1e6, 1e6)
				family := p.Scope("family")
				family.Models, family.Policy.MaxWait = providers.NewModels(fetch(`"claude-a","claude-b"`)), time.Nanosecond
				rt := over(t, p, accepting{})
				sent := func() bool {
					resp, err := rt.RoundTrip(jsonRequest(t, "https://api.anthropic.com/v1/messages", map[string]any{"model": "claude-a", "max_tokens": 1}, 1))
					if err == nil {
						resp.Body.Close()
					}
					return err == nil
				}
				if !sent() || sent() {
					t.Fatal("one request goes at once, and no more")
				}
				if err := family.Models.Set(t.Context(), fetch(second)); err != nil {
					t.Fatal(err)
				}
				if sent() {
					t.Error("the refresh has forgotten a request of the same second")
				}
			})
		})
	}
}

// A oneReply is a server with one body of JSON.
type oneReply string

func (r oneReply) RoundTrip(req *http.Request) (*http.Response, error) {
	return new(limitsAPI).response(req, http.StatusOK, string(r)), nil
}

// Set releases requests that wait in nested quotas, whichever of them has the Models.
func TestSetReleasesNestedRequests(t *testing.T) {
	for _, outermost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := providers.NewModels(map[string][]throttle.Tier{"a": limited(5)})
			p := nested(m)
			if outermost {
				p.Scopes[0], p.Scopes[1] = p.Scopes[1], p.Scopes[0]
			}
			rt := over(t, p, accepting{})
			var sent atomic.Int64
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() { sendsOne(t, rt, "a", i, &sent) })
			}
			for _, limits := range []map[string][]throttle.Tier{{"a": limited(5)}, {"a": limited(8)}, {}, {"a": limited(12)}} {
				if err := m.Set(t.Context(), limits); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if n := sent.Load(); len(limits) > 0 && n != limits["a"][0].Limit {
					t.Errorf("outermost %v: limits %v: sent %d", outermost, limits, n)
				}
			}
			wg.Wait()
		})
	}
}

// Many calls of Set while requests of several addresses wait admit no more than the highest limit.
func TestSetDuringStorm(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, seed))
			m := providers.NewModels(map[string][]throttle.Tier{"a": limited(5)})
			p := nested(m)
			p.Scopes[0].Policy.MaxWait, p.MaxKeys = 30*time.Minute, 3
			transport, err := p.Transport(&local.Store{Replan: true})
			if err != nil {
				t.Fatal(err)
			}
			transport.Base = accepting{}
			var sent, others atomic.Int64
			var wg sync.WaitGroup
			for i := range 40 {
				d := time.Duration(r.IntN(1_000)) * time.Second
				wg.Go(func() {
					time.Sleep(d)
					sendsOne(t, transport, "a", i, &sent)
					sendsOne(t, transport, "b", i, &others)
				})
			}
			for range 30 {
				d, limits := time.Duration(r.IntN(1_000))*time.Second, map[string][]throttle.Tier{"a": limited(1 + r.Int64N(9))}
				if r.IntN(2) == 0 {
					limits["b"] = limited(7)
				}
				wg.Go(func() {
					time.Sleep(d)
					if err := m.Set(t.Context(), limits); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if n := sent.Load(); n > 9 {
				t.Errorf("seed %d: sent %d, want at most 9", seed, n)
			}
		})
	}
}

// nested returns the provider of models with an address around, and without a MaxWait.
func nested(m *providers.Models) providers.Provider {
	p := models(m)
	p.Account, p.Address = header("Account"), header("Address")
	around := counting("around", providers.PerAddress, 1_000)
	p.Scopes[0].Policy.MaxWait, around.Policy.MaxWait = 0, 0
	p.Scopes = append(p.Scopes, around)
	return p
}

// sendsOne sends a request from one of three addresses, and counts it.
func sendsOne(t *testing.T, rt http.RoundTripper, model string, i int, sent *atomic.Int64) {
	req := from(t, "", fmt.Sprint(i%3), "")
	req.Header.Set("Model", model)
	if resp, err := rt.RoundTrip(req); err == nil {
		resp.Body.Close()
		sent.Add(1)
	}
}

// A name is never that of another, longer one.
func TestShortNamesAreNotThoseOfLongNames(t *testing.T) {
	k := &keys{Store: local.New()}
	p := providers.Provider{Name: "api", Account: header("Account"), Scopes: []providers.Scope{counting("account", providers.PerAccount, 1)}}
	transport, err := p.Transport(k)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("victim", 50)
	limiter := transport.Route(from(t, long, "", ""))
	_, short, _ := strings.Cut(k.all[0], `account="`)
	short, _, _ = strings.Cut(short, `"`)
	if transport.Route(from(t, short, "", "")) == limiter {
		t.Errorf("the account %q shares the quota of an account with a long name", short)
	}
}
