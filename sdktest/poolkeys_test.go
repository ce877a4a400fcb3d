package sdktest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v2"
	"github.com/openai/openai-go/v2/option"

	"github.com/apithrottle/throttle/retry"
	"github.com/apithrottle/throttle/sdktest/internal/azurestand"
)

// The secrets of a caller, by where it sends them.
var secrets = map[string]string{
	"bearer": "canary-bearer-1", "Api-Key": "canary-header-2", "cookie": "canary-cookie-3", "query": "canary-query-4",
	"subscription": "canary-subscription-5", "organization": "canary-organization-6", "trace": "canary-token-7",
}

// withSecrets returns OpenAI's client over the pool, with secrets in all places.
func (e *estate) withSecrets() openai.Client {
	return openai.NewClient(option.WithHTTPClient(retry.NewClient(e.transport)), option.WithBaseURL("https://api.pool.example/v1/"),
		option.WithMaxRetries(0), option.WithAPIKey(secrets["bearer"]), option.WithOrganization(secrets["organization"]),
		option.WithHeader("Api-Key", secrets["Api-Key"]), option.WithHeader("Cookie", "session="+secrets["cookie"]),
		option.WithHeader("X-Auth-Token", secrets["trace"]), option.WithQuery("api-key", secrets["query"]),
		option.WithQuery("subscription-key", secrets["subscription"]))
}

// A fault is what happens to an answer on its way back.
type fault struct {
	name, location string // of a redirect
	status         int
	err            error
}

var faults = []fault{
	{name: "none"},
	{name: "refusal", status: http.StatusTooManyRequests},
	{name: "redirect to the same host", status: http.StatusTemporaryRedirect, location: "chat/completions?api-version=2024-10-21"},
	{name: "redirect to the other member", status: http.StatusTemporaryRedirect, location: "https://west.openai.azure.com/openai/deployments/chat-west/chat/completions?api-version=2024-10-21"},
	{name: "redirect to a stranger", status: http.StatusTemporaryRedirect, location: "https://stranger.example/v1/chat/completions"},
	{name: "redirect of a GET to a stranger", status: http.StatusFound, location: "https://stranger.example/login"},
	{name: "error of the server", status: http.StatusInternalServerError},
	{name: "broken connection", err: io.ErrUnexpectedEOF},
}

// The field by which a test tells the base what to do with a request.
const faultField = "X-Test-Fault"

// faulty lets a resource record each request, and returns another answer for the first attempt of each
// that has a fault. It counts the faults.
func faulty(counts map[string]int) func(*http.Request, *azurestand.Server) (*http.Response, error) {
	var mu sync.Mutex
	return func(req *http.Request, stand *azurestand.Server) (*http.Response, error) {
		id := req.Header.Get(faultField)
		mu.Lock()
		defer mu.Unlock()
		counts[id]++
		name, _, _ := strings.Cut(id, "/")
		i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
		if i <= 0 || counts[id] > 1 {
			return nil, nil
		}
		f := faults[i]
		resp, err := stand.RoundTrip(req)
		if err != nil || f.err != nil {
			return nil, errors.Join(f.err, err)
		}
		resp.StatusCode = f.status
		if f.location != "" {
			resp.Header.Set("Location", f.location)
		}
		return resp, nil
	}
}

// TestPoolKeepsKeysApart sends the caller's secrets in all places through everything that sends a
// request again. None of them leaves the pool, and the key of a member reaches that member alone.
func TestPoolKeepsKeysApart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		east, west := deployment{name: "east", rpm: 600, tpm: 1_000_000}, deployment{name: "west", rpm: 600, tpm: 1_000_000}
		e := newEstate(t, east, west)
		counts := map[string]int{}
		e.instead = faulty(counts)
		client := e.withSecrets()
		for round := range 8 {
			for _, f := range faults {
				id := fmt.Sprintf("%s/%d", f.name, round)
				options := []option.RequestOption{option.WithHeader(faultField, id)}
				if round%2 == 1 {
					options = append(options, option.WithHeader("Idempotency-Key", id))
				}
				err := ask(t.Context(), client, question("Hello", 20), options...)
				if err != nil && holdsKey(err, east, west) {
					t.Errorf("%s: the error holds a member's key: %v", id, err)
				}
				if f.name == "none" && err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
		}
		if len(e.elsewhere.Requests()) < 8 || e.counts("west").Unauthorized == 0 {
			t.Errorf("a stranger received %d requests, west %d without a key: redirects were not followed", len(e.elsewhere.Requests()), e.counts("west").Unauthorized)
		}
		for _, d := range []deployment{east, west} {
			for name, stand := range map[string]*azurestand.Server{"east": e.stands["east"], "west": e.stands["west"], "elsewhere": e.elsewhere} {
				got := slices.Compact(stand.Carriers(d.key()))
				if name == d.name && !slices.Equal(got, []string{"header Api-Key"}) || name != d.name && len(got) > 0 {
					t.Errorf("%s received the key of %s in %q", name, d.name, got)
				}
			}
		}
		for where, secret := range secrets {
			for name, stand := range map[string]*azurestand.Server{"east": e.stands["east"], "west": e.stands["west"], "elsewhere": e.elsewhere} {
				if got := stand.Carriers(secret); len(got) > 0 {
					t.Errorf("%s received the caller's %s in %q", name, where, slices.Compact(got))
				}
			}
		}
	})
}

// holdsKey reports whether an error, or the request and response that it has, shows a member's key.
func holdsKey(err error, members ...deployment) bool {
	text := err.Error()
	var answered *openai.Error
	if errors.As(err, &answered) {
		text += string(answered.DumpRequest(true)) + string(answered.DumpResponse(true)) + fmt.Sprint(answered.Response.Request.URL, answered.Response.Request.Header)
	}
	return slices.ContainsFunc(members, func(d deployment) bool { return strings.Contains(text, d.key()) })
}

// A delivery is how often the resources received one request, and what they answered.
type delivery struct {
	accepted, refused int
	bodies            []string // that differ
}

// deliveries returns those of each request, by the name in its text.
func (e *estate) deliveries() map[string]delivery {
	all := map[string]delivery{}
	for _, stand := range e.stands {
		for _, r := range stand.Requests() {
			_, rest, _ := strings.Cut(r.Body, "order-")
			id, _, _ := strings.Cut(rest, " ")
			d := all[id]
			if r.Status == http.StatusOK {
				d.accepted++
			} else {
				d.refused++
			}
			if !slices.Contains(d.bodies, r.Body) {
				d.bodies = append(d.bodies, r.Body)
			}
			all[id] = d
		}
	}
	return all
}

// order returns a request of its own name, with a body of some size.
func order(i int) openai.ChatCompletionNewParams {
	return question(fmt.Sprintf("order-%d ", i)+words(uint64(i), 100), 20)
}

// TestPoolSendsARefusedRequestToTheOther lets another client use the quota of one member up. What it
// refuses goes to the other at once and whole, and what is answered is not sent again.
func TestPoolSendsARefusedRequestToTheOther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		east, west := deployment{name: "east", rpm: 600, tpm: 20_000}, deployment{name: "west", rpm: 600, tpm: 1_000_000}
		e := newEstate(t, east, west)
		client := e.client()
		e.use(t, east, 1, 19_990)
		const orders = 20
		atOnce(t, orders, func(i int) error {
			start := time.Now()
			err := ask(t.Context(), client, order(i))
			if took := time.Since(start); took > 3*time.Second { // east is paused for almost a minute
				t.Errorf("order %d took %v", i, took)
			}
			return err
		})
		refused := e.counts("east").Refused
		t.Logf("east refused %d", refused)
		if refused == 0 || e.counts("west").Refused > 0 {
			t.Errorf("east refused %d, west %d", refused, e.counts("west").Refused)
		}
		for i := range orders {
			d := e.deliveries()[fmt.Sprint(i)]
			if d.accepted != 1 || d.refused > 1 || len(d.bodies) != 1 || !strings.Contains(d.bodies[0], strings.TrimSpace(words(uint64(i), 100))) {
				t.Errorf("order %d: accepted %d times, refused %d times, %d different bodies", i, d.accepted, d.refused, len(d.bodies))
			}
		}

		// While east is paused, nothing goes there.
		atOnce(t, orders, func(i int) error { return ask(t.Context(), client, order(orders+i)) })
		if now := e.counts("east"); now.Refused != refused {
			t.Errorf("east refused %d more during its pause", now.Refused-refused)
		}
		time.Sleep(2 * time.Minute)
		before := e.counts("east").Accepted
		atOnce(t, orders, func(i int) error { return ask(t.Context(), client, order(2*orders+i)) })
		if e.counts("east").Accepted == before {
			t.Error("east got nothing after its pause")
		}
	})
}

// TestPoolDoesNotRepeatWhatWasAccepted breaks the connection after a member has accepted a request.
// Only a request with an Idempotency-Key is sent again.
func TestPoolDoesNotRepeatWhatWasAccepted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEstate(t, deployment{name: "east", rpm: 600, tpm: 1_000_000}, deployment{name: "west", rpm: 600, tpm: 1_000_000})
		e.instead = faulty(map[string]int{})
		client := e.client()
		const orders = 20
		atOnce(t, orders, func(i int) error {
			options := []option.RequestOption{option.WithHeader(faultField, fmt.Sprintf("broken connection/%d", i))}
			idempotent := i%2 == 1
			if idempotent {
				options = append(options, option.WithHeader("Idempotency-Key", fmt.Sprint(i)))
			}
			if err := ask(t.Context(), client, order(i), options...); (err == nil) != idempotent {
				return fmt.Errorf("idempotent %v: %v", idempotent, err)
			}
			return nil
		})
		for i := range orders {
			if d := e.deliveries()[fmt.Sprint(i)]; d.accepted != 1+i%2 || d.refused > 0 || len(d.bodies) != 1 {
				t.Errorf("order %d: accepted %d times, refused %d times, %d different bodies", i, d.accepted, d.refused, len(d.bodies))
			}
		}
	})
}
