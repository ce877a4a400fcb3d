package sdktest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/google/go-github/v74/github"
	"github.com/openai/openai-go/v2"
	"github.com/openai/openai-go/v2/option"
	"github.com/slack-go/slack"
	"github.com/stripe/stripe-go/v82"
	"google.golang.org/genai"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/throttletest"
)

// A caller makes calls through a proxy, as programs do that know nothing of it but its address.
type caller struct {
	name string
	call func(ctx context.Context) error
}

// viaNetHTTP, viaCommand and the other functions return a caller whose base URL is in the proxy.
func viaNetHTTP(c *http.Client, base string) caller {
	return caller{"net/http", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, "GET", base+"/orders", nil)
		if err != nil {
			return err
		}
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("answered %d, %s", resp.StatusCode, body)
		}
		return err
	}}
}

// viaCommand returns a caller that runs a program for each call, or one of net/http if the program
// is not installed.
func viaCommand(t testing.TB, c *http.Client, base, program string, args ...string) caller {
	path, err := exec.LookPath(program)
	if err != nil {
		t.Logf("%v: net/http takes its place", err)
		return viaNetHTTP(c, base)
	}
	return caller{program, func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, path, append(args, base+"/orders")...)
		cmd.Env = append(os.Environ(), "NO_PROXY=*", "no_proxy=*")
		output, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, output)
		}
		return err
	}}
}

func viaCurl(t testing.TB, c *http.Client, base string) caller {
	return viaCommand(t, c, base, "curl", "-sS", "--fail", "-o", os.DevNull)
}

func viaPython(t testing.TB, c *http.Client, base string) caller {
	return viaCommand(t, c, base, "python3", "-c", "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()")
}

func viaNode(t testing.TB, c *http.Client, base string) caller {
	return viaCommand(t, c, base, "node", "-e",
		"fetch(process.argv[1]).then(async r => { await r.text(); if (!r.ok) throw r.status }).catch(e => { console.error(e); process.exit(1) })")
}

func viaOpenAI(c *http.Client, base string) caller {
	client := openai.NewClient(option.WithBaseURL(base), option.WithHTTPClient(c), option.WithAPIKey("key"), option.WithMaxRetries(0))
	return caller{"openai-go", func(ctx context.Context) error {
		_, err := client.Chat.Completions.New(ctx, hello)
		return err
	}}
}

func viaAnthropic(c *http.Client, base string) caller {
	client := anthropic.NewClient(anthropicoption.WithBaseURL(base), anthropicoption.WithHTTPClient(c), anthropicoption.WithAPIKey("key"), anthropicoption.WithMaxRetries(0))
	return caller{"anthropic-sdk-go", func(ctx context.Context) error {
		_, err := client.Messages.New(ctx, quaternion)
		return err
	}}
}

// viaStripe has no prefix in its base URL: stripe-go takes only responses to paths that begin with /v1 or
// /v2.
func viaStripe(c *http.Client, base string) caller {
	client := stripe.NewClient("key", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL: stripe.String(base), HTTPClient: c, MaxNetworkRetries: stripe.Int64(0), LeveledLogger: &stripe.LeveledLogger{},
	})))
	return caller{"stripe-go", func(ctx context.Context) error {
		_, err := client.V1Customers.Retrieve(ctx, "cus_1", nil)
		return err
	}}
}

func viaGitHub(t testing.TB, c *http.Client, base string) caller {
	client := github.NewClient(c).WithAuthToken("key")
	u, err := url.Parse(base + "/")
	if err != nil {
		t.Fatal(err)
	}
	client.BaseURL = u
	return caller{"go-github", func(ctx context.Context) error {
		_, _, err := client.Users.Get(ctx, "octocat")
		return err
	}}
}

func viaSlack(c *http.Client, base string) caller {
	client := slack.New("key", slack.OptionAPIURL(base+"/"), slack.OptionHTTPClient(c))
	return caller{"slack-go", func(ctx context.Context) error {
		_, err := client.AuthTestContext(ctx)
		return err
	}}
}

func viaGemini(t testing.TB, c *http.Client, base string) caller {
	client, err := genai.NewClient(t.Context(), &genai.ClientConfig{
		APIKey: "key", Backend: genai.BackendGeminiAPI, HTTPClient: c, HTTPOptions: genai.HTTPOptions{BaseURL: base},
	})
	if err != nil {
		t.Fatal(err)
	}
	return caller{"genai", func(ctx context.Context) error {
		_, err := client.Models.GenerateContent(ctx, "gemini-2.5-flash", genai.Text("Say hello."), nil)
		return err
	}}
}

// The base URL of each SDK is the proxy and the prefix of a route. Requests then reach the paths that
// the SDK calls at the API, with the SDK's key.
func TestProxyBaseURLs(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := startProxy(t, fmt.Sprintf(`
routes:
  /openai: {to: %[1]s/v1, preset: openai, any_host: true, with: {requests: 60000, tokens: 10000000}}
  /anthropic: {to: %[1]s, preset: anthropic, any_host: true, with: {requests: 60000, input: 1000000, output: 1000000}}
  /v1: {to: %[1]s/v1, preset: stripe, any_host: true}
  /github: {to: %[1]s, preset: github, any_host: true}
  /slack: {to: %[1]s/api, preset: slack, any_host: true}
  /gemini: {to: %[1]s, preset: gemini, any_host: true, with: {requests: 60000, input_tokens: 1000000}}
  /: {to: %[1]s, policy: 1000/s, name: root}
`, up.URL))
	c := &http.Client{Transport: lone}
	for _, test := range []struct {
		caller
		path, header, key string
	}{
		{viaOpenAI(c, p.url+"/openai"), "/v1/chat/completions", "Authorization", "Bearer key"},
		{viaAnthropic(c, p.url+"/anthropic"), "/v1/messages", "X-Api-Key", "key"},
		{viaStripe(c, p.url), "/v1/customers/cus_1", "Authorization", "Bearer key"},
		{viaGitHub(t, c, p.url+"/github"), "/users/octocat", "Authorization", "Bearer key"},
		{viaSlack(c, p.url+"/slack"), "/api/auth.test", "", ""},
		{viaGemini(t, c, p.url+"/gemini"), "/v1beta/models/gemini-2.5-flash:generateContent", "X-Goog-Api-Key", "key"},
		{viaCurl(t, c, p.url), "/orders", "", ""},
		{viaPython(t, c, p.url), "/orders", "", ""},
		{viaNode(t, c, p.url), "/orders", "", ""},
	} {
		done := make(chan error, 1)
		go func() { done <- test.call(t.Context()) }()
		select {
		case e := <-up.arrived:
			if e.URL.Path != test.path || e.Header.Get(test.header) != test.key {
				t.Errorf("%s: the upstream received %s with %v, want %s with %s: %s", test.name, e.RequestURI, e.Header, test.path, test.header, test.key)
			}
			e.header("Content-Type", "application/json")
			e.answer(`{"ok":true}`)
			if err := <-done; err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
		case err := <-done:
			t.Errorf("%s: %v, and nothing reached the upstream", test.name, err)
		}
	}
}

// callers returns 64 callers, the same kinds at each of the proxies.
func callers(t testing.TB, proxies []*proxy) (all []caller) {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(c.CloseIdleConnections)
	for i := range 64 {
		base := proxies[i%len(proxies)].url
		switch (i / len(proxies)) % 8 {
		case 0:
			all = append(all, viaCurl(t, c, base+"/acme"))
		case 1:
			all = append(all, viaPython(t, c, base+"/acme"))
		case 2:
			all = append(all, viaNode(t, c, base+"/acme"))
		case 3:
			all = append(all, viaOpenAI(c, base+"/openai"))
		case 4:
			all = append(all, viaStripe(c, base))
		case 5:
			all = append(all, viaGitHub(t, c, base+"/github"))
		case 6:
			all = append(all, viaSlack(c, base+"/slack"))
		case 7:
			all = append(all, viaNetHTTP(c, base+"/acme"))
		}
	}
	return all
}

// upperBound returns how many requests a perfect client gets from an API between from and to, if it
// sends from start on as soon as the API allows it. bench/fidelity measures by the same bound.
func upperBound(t testing.TB, start, from, to time.Time, tiers ...throttle.Tier) (n int64) {
	counter, err := throttletest.NewCounter(tiers...)
	if err != nil {
		t.Fatal(err)
	}
	for now := start.UnixMicro(); ; {
		at, ok := counter.Earliest(now, nil)
		if now = at; !ok || now >= to.UnixMicro() {
			return n
		}
		counter.Arrive(now, nil)
		if now >= from.UnixMicro() {
			n++
		}
	}
}

var apiTiers = []throttle.Tier{throttle.PerSecond(5), {Limit: 60, Window: 20 * time.Second}}

// 64 clients in several languages share one quota through a proxy, or through three of them and
// Redis. The API refuses none of their requests, and they get what it allows.
//
// In its short form, each client makes one call, and each call must succeed: 64 are more than the
// API allows in 20 seconds. That holds at any speed of the machine. The guard is longer than it
// stalls. In full length the clients call until the time is over, and must get 0.95 of what a perfect
// client gets, as in bench/fidelity: after two of the longest window. The guard is 500 ms there,
// because dozens of processes that start at once may stall a proxy for longer than the default.
func TestProxyClients(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"one proxy": 1, "three proxies and Redis": 3} {
		t.Run(name, func(t *testing.T) {
			if !*full {
				t.Parallel()
			}
			store, options := "", " | guard=5s"
			if n > 1 {
				store, options = fmt.Sprintf("store: {redis: 'redis://%s/0'}\n", redistest.Start(t).Addr()), " | guard=1s"
			}
			if *full {
				options = " | guard=500ms"
			}
			api := throttletest.NewProvider(apiTiers...)
			defer api.Close()
			config := store + "routes:\n"
			for _, prefix := range []string{"/acme", "/openai", "/v1", "/github", "/slack"} {
				config += fmt.Sprintf("  %s: {to: %s%s, name: shared, policy: 5/s + 60/20s%s}\n", prefix, api.URL, prefix, options)
			}
			var proxies []*proxy
			for range n {
				proxies = append(proxies, startProxy(t, config))
			}
			ctx, cancel := context.WithCancel(t.Context())
			if *full {
				ctx, cancel = context.WithTimeout(t.Context(), 100*time.Second)
			}
			defer cancel()
			var calls, answers atomic.Int64
			var wg sync.WaitGroup
			for _, c := range callers(t, proxies) {
				wg.Go(func() {
					for again := true; again && ctx.Err() == nil; again = *full {
						calls.Add(1)
						switch err := c.call(ctx); {
						case err == nil:
							answers.Add(1)
						case ctx.Err() == nil:
							t.Errorf("%s: %v", c.name, err)
							return
						}
					}
				})
			}
			wg.Wait()

			s, arrivals := api.Summary(), api.Arrivals()
			if s.Refused > 0 || s.Accepted == 0 {
				t.Errorf("the API refused %d of %d requests", s.Refused, s.Sent)
			}
			for i, a := range arrivals {
				if !a.Accepted {
					from := arrivals[max(0, i-int(apiTiers[a.Tier].Limit))]
					t.Logf("refused by %v %v after the start; the %d requests before it arrived in the last %v",
						apiTiers[a.Tier], a.At.Sub(arrivals[0].At), apiTiers[a.Tier].Limit, a.At.Sub(from.At))
				}
			}
			start, end := arrivals[0].At, arrivals[len(arrivals)-1].At
			from, to, atLeast := start, end, 0.0
			if *full {
				from, to, atLeast = start.Add(40*time.Second), start.Add(99*time.Second), 0.95
			} else if s.Accepted != calls.Load() || answers.Load() != calls.Load() {
				t.Errorf("of %d calls the API received %d, and %d were answered", calls.Load(), s.Accepted, answers.Load())
			}
			got := int64(0)
			for _, a := range arrivals {
				if !a.At.Before(from) && a.At.Before(to) {
					got++
				}
			}
			most := upperBound(t, start, from, to, apiTiers...)
			used := float64(got) / float64(most)
			t.Logf("%d calls, %d refused; from %v to %v: %d of %d that a perfect client gets, %.3f",
				calls.Load(), s.Refused, from.Sub(start), to.Sub(start), got, most, used)
			if used < atLeast {
				t.Errorf("used %.3f of the quota, want at least %v", used, atLeast)
			}
			for _, a := range arrivals {
				if strings.Contains(a.Path, "//") {
					t.Errorf("the API received the path %s", a.Path)
				}
			}
		})
	}
}
