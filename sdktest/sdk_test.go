package sdktest

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-github/v74/github"
	"github.com/openai/openai-go/v2"
	"github.com/openai/openai-go/v2/option"
	"github.com/slack-go/slack"
	"github.com/stripe/stripe-go/v82"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// serve starts a fake API. It returns its URL and a client that keeps to the provider's limits.
func serve(t *testing.T, p providers.Provider, api *fakeapi.Server) (url string, client *http.Client) {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	p.Hosts = nil // the fake API has another host
	client, err := p.Client(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return server.URL, client
}

// calls makes n calls, eight at a time. It fails if a call fails or is refused.
func calls(t *testing.T, api *fakeapi.Server, n int, call func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < n; i += 8 {
				if err := call(i); err != nil {
					t.Errorf("call %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if refused := api.Refused(); len(refused) > 0 || api.Served() != n {
		t.Errorf("%d of %d served, refused %v", api.Served(), n, refused)
	}
}

// sendElsewhere sends n requests without the limiter, like another program with the same quota.
func sendElsewhere(t *testing.T, n int, method, url, body string, header ...string) {
	t.Helper()
	for range n {
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
}

func goGitHub(t *testing.T, p providers.Provider, api *fakeapi.Server) (url string, client *github.Client) {
	t.Helper()
	url, c := serve(t, p, api)
	client = github.NewClient(c)
	base, err := client.BaseURL.Parse(url + "/")
	if err != nil {
		t.Fatal(err)
	}
	client.BaseURL = base
	client.DisableRateLimitCheck = true // otherwise go-github refuses requests that the transport delays
	return url, client
}

func TestGitHub(t *testing.T) {
	t.Parallel()
	p := providers.GitHub()
	hour := &p.Scope("core").Policy.Tiers[0]
	hour.Limit, hour.Window = 20, time.Second
	api := fakeapi.GitHub(20, time.Second)
	_, client := goGitHub(t, p, api)
	calls(t, api, 50, func(int) error {
		_, _, err := client.Users.Get(t.Context(), "octocat")
		return err
	})
}

func TestGitHubRefused(t *testing.T) {
	t.Parallel()
	p := providers.GitHub()
	url, client := goGitHub(t, p, fakeapi.GitHub(20, time.Hour))
	sendElsewhere(t, 20, "GET", url+"/user", "")
	_, _, err := client.Users.Get(t.Context(), "octocat")
	var limited *github.RateLimitError
	if !errors.As(err, &limited) || limited.Rate.Limit != 20 || limited.Rate.Remaining != 0 || !limited.Rate.Reset.After(time.Now()) {
		t.Errorf("%v, want the client's error for a refusal", err)
	}
}

func stripeClient(t *testing.T, api *fakeapi.Server) (url string, client *stripe.Client) {
	t.Helper()
	url, c := serve(t, providers.Stripe(), api)
	return url, stripe.NewClient("key", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL: &url, HTTPClient: c, MaxNetworkRetries: stripe.Int64(0), LeveledLogger: &stripe.LeveledLogger{},
	})))
}

func TestStripe(t *testing.T) {
	t.Parallel()
	api := fakeapi.Stripe()
	_, client := stripeClient(t, api)
	calls(t, api, 60, func(i int) error {
		_, err := client.V1Customers.Retrieve(t.Context(), fmt.Sprintf("cus_%d", i), nil)
		return err
	})
}

func TestStripeRefused(t *testing.T) {
	t.Parallel()
	url, client := stripeClient(t, fakeapi.Stripe())
	sendElsewhere(t, 25, "GET", url+"/v1/customers/cus_1", "", "Authorization", "Bearer key")
	_, err := client.V1Customers.Retrieve(t.Context(), "cus_1", nil)
	var refused *stripe.Error
	if !errors.As(err, &refused) || refused.HTTPStatusCode != http.StatusTooManyRequests || refused.Code != stripe.ErrorCodeRateLimit {
		t.Errorf("%v, want the client's error for a refusal", err)
	}
}

// openAI returns a client of a fake API whose minute has the given length.
func openAI(t *testing.T, requests, tokens int64, minute time.Duration) (string, openai.Client, *fakeapi.Server) {
	t.Helper()
	p := providers.OpenAI(requests, tokens)
	for i := range p.Scope("model").Policy.Tiers {
		p.Scope("model").Policy.Tiers[i].Window = minute
	}
	api := fakeapi.OpenAI(requests, tokens, minute)
	url, c := serve(t, p, api)
	return url, openai.NewClient(option.WithHTTPClient(c), option.WithBaseURL(url+"/v1/"), option.WithAPIKey("key"), option.WithMaxRetries(0)), api
}

var hello = openai.ChatCompletionNewParams{
	Model:     "gpt-4o",
	Messages:  []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say hello.")},
	MaxTokens: openai.Int(20),
}

func TestOpenAI(t *testing.T) {
	t.Parallel()
	_, client, api := openAI(t, 120, 10_000, 2*time.Second)
	calls(t, api, 150, func(int) error {
		answer, err := client.Chat.Completions.New(t.Context(), hello)
		if err == nil && answer.Choices[0].Message.Content != "Hello!" {
			err = fmt.Errorf("answered %s", answer.RawJSON())
		}
		return err
	})
}

func TestOpenAIStreaming(t *testing.T) {
	t.Parallel()
	_, client, api := openAI(t, 1_200, 1_000, time.Second)
	calls(t, api, 60, func(int) error {
		stream := client.Chat.Completions.NewStreaming(t.Context(), hello)
		defer stream.Close()
		text := ""
		for stream.Next() {
			for _, choice := range stream.Current().Choices {
				text += choice.Delta.Content
			}
		}
		if stream.Err() == nil && text != "Hello!" {
			return fmt.Errorf("streamed %q", text)
		}
		return stream.Err()
	})
}

func TestOpenAIRefused(t *testing.T) {
	t.Parallel()
	url, client, api := openAI(t, 120, 1_000, 2*time.Second)
	hello := hello
	hello.MaxTokens = openai.Int(900) // which take 1.8 s to come back
	sendElsewhere(t, 1, "POST", url+"/v1/chat/completions", `{"max_tokens":1000}`)
	_, err := client.Chat.Completions.New(t.Context(), hello)
	var refused *openai.Error
	if !errors.As(err, &refused) || refused.StatusCode != http.StatusTooManyRequests || refused.Code != "rate_limit_exceeded" {
		t.Errorf("%v, want the client's error for a refusal", err)
	}
	if _, err := client.Chat.Completions.New(t.Context(), hello); err != nil || api.Refused()["tokens"] != 1 {
		t.Errorf("the next call, after the reported wait: %v, refused %v", err, api.Refused())
	}
}

func slackClient(t *testing.T, minute time.Duration) (url string, client *slack.Client, api *fakeapi.Server) {
	t.Helper()
	p := providers.Slack()
	p.Scope("method").Policy.Tiers[0].Window = minute
	p.Scope("message").Policy.Tiers[0].Window = minute / 60
	api = fakeapi.Slack(minute)
	url, c := serve(t, p, api)
	return url, slack.New("token", slack.OptionAPIURL(url+"/api/"), slack.OptionHTTPClient(c)), api
}

func TestSlack(t *testing.T) {
	t.Parallel()
	_, client, api := slackClient(t, 1200*time.Millisecond)
	calls(t, api, 50, func(int) error {
		_, _, err := client.GetConversationsContext(t.Context(), &slack.GetConversationsParameters{})
		return err
	})
}

func TestSlackMessages(t *testing.T) {
	t.Parallel()
	_, client, api := slackClient(t, 12*time.Second)
	calls(t, api, 20, func(i int) error {
		channel := fmt.Sprintf("C%d", i%2)
		to, _, err := client.PostMessageContext(t.Context(), channel, slack.MsgOptionText("Hello!", false))
		if err == nil && to != channel {
			err = fmt.Errorf("posted to %q, not %q", to, channel)
		}
		return err
	})
}

func TestSlackRefused(t *testing.T) {
	t.Parallel()
	url, client, _ := slackClient(t, time.Minute)
	sendElsewhere(t, 20, "POST", url+"/api/conversations.list", "")
	_, _, err := client.GetConversationsContext(t.Context(), &slack.GetConversationsParameters{})
	var limited *slack.RateLimitedError
	if !errors.As(err, &limited) || limited.RetryAfter <= 0 || limited.RetryAfter > time.Minute {
		t.Errorf("%v, want the client's error for a refusal", err)
	}
}
