package sdktest

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
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

// sendElsewhere sends n requests without the limiter, like another program with the same quota.
func sendElsewhere(t *testing.T, api http.RoundTripper, n int, method, url, body string, header ...string) {
	t.Helper()
	for range n {
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := api.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
}

// late is how long requests take to reach a fake API: less than the guard of 50 ms.
var late = fakeapi.Between(5*time.Millisecond, 45*time.Millisecond)

func goGitHub(t *testing.T, hour time.Duration) (*github.Client, *counted) {
	t.Helper()
	p := providers.GitHub()
	tier := &p.Scope("core").Policy.Tiers[0]
	tier.Limit, tier.Window = 20, hour
	c, api := over(t, p, standIn("github", fmt.Sprintf("core=20/%s;algo=fixed_window", hour)))
	client := github.NewClient(c)
	client.DisableRateLimitCheck = true // otherwise go-github refuses requests that the transport delays
	return client, api
}

func TestGitHub(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := goGitHub(t, time.Second)
		api.Latency = late
		atOnce(t, 50, func(int) error {
			_, _, err := client.Users.Get(t.Context(), "octocat")
			return err
		})
		api.check(t, 50, 0)
	})
}

func TestGitHubRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := goGitHub(t, time.Hour)
		sendElsewhere(t, api.Server, 20, "GET", "https://api.github.com/user", "")
		_, _, err := client.Users.Get(t.Context(), "octocat")
		var limited *github.RateLimitError
		if !errors.As(err, &limited) || limited.Rate.Limit != 20 || limited.Rate.Remaining != 0 || !limited.Rate.Reset.After(time.Now()) {
			t.Errorf("%v, want the client's error for a refusal", err)
		}
	})
}

func stripeClient(t *testing.T) (*stripe.Client, *counted) {
	t.Helper()
	c, api := over(t, providers.Stripe(), standIn("stripe"))
	return stripe.NewClient("key", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		HTTPClient: c, MaxNetworkRetries: stripe.Int64(0), LeveledLogger: &stripe.LeveledLogger{},
	}))), api
}

func TestStripe(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := stripeClient(t)
		api.Latency = late
		atOnce(t, 60, func(i int) error {
			_, err := client.V1Customers.Retrieve(t.Context(), fmt.Sprintf("cus_%d", i), nil)
			return err
		})
		api.check(t, 60, 0)
	})
}

func TestStripeRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := stripeClient(t)
		sendElsewhere(t, api.Server, 25, "GET", "https://api.stripe.com/v1/customers/cus_1", "", "Authorization", "Bearer key")
		_, err := client.V1Customers.Retrieve(t.Context(), "cus_1", nil)
		var refused *stripe.Error
		if !errors.As(err, &refused) || refused.HTTPStatusCode != http.StatusTooManyRequests || refused.Code != stripe.ErrorCodeRateLimit {
			t.Errorf("%v, want the client's error for a refusal", err)
		}
	})
}

// newOpenAI returns OpenAI's client without its own retries.
func newOpenAI(c *http.Client, options ...option.RequestOption) openai.Client {
	return openai.NewClient(append(options, option.WithHTTPClient(c), option.WithAPIKey("key"), option.WithMaxRetries(0))...)
}

// fakeOpenAI returns a stand-in with limits a minute. It limits requests by the sixtieth of a minute,
// too.
func fakeOpenAI(requests, tokens int64) *fakeapi.Server {
	return standIn("openai", fmt.Sprintf("requests=%d/m;algo=token_bucket", requests),
		fmt.Sprintf("pace=%d/m;algo=token_bucket;burst=%d", requests, requests/60), fmt.Sprintf("tokens=%d/m;algo=token_bucket", tokens))
}

func openAI(t *testing.T, requests, tokens int64) (openai.Client, *counted) {
	t.Helper()
	c, api := over(t, providers.OpenAI(requests, tokens), fakeOpenAI(requests, tokens))
	return newOpenAI(c), api
}

var hello = openai.ChatCompletionNewParams{
	Model:     "gpt-4o",
	Messages:  []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say hello.")},
	MaxTokens: openai.Int(20),
}

func TestOpenAI(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := openAI(t, 120, 10_000)
		api.Latency = late
		atOnce(t, 150, func(int) error {
			answer, err := client.Chat.Completions.New(t.Context(), hello)
			if err == nil && answer.Choices[0].Message.Content != "Hello!" {
				err = fmt.Errorf("answered %s", answer.RawJSON())
			}
			return err
		})
		api.check(t, 150, 0)
	})
}

// streamHello streams the answer to hello.
func streamHello(t *testing.T, client openai.Client) error {
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
}

func TestOpenAIStreaming(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := openAI(t, 1_200, 1_000)
		api.Latency = late
		atOnce(t, 60, func(int) error { return streamHello(t, client) })
		api.check(t, 60, 0)
	})
}

// Over a network a request may take any time, so the API has a limit that is never used up.
func TestOverNetwork(t *testing.T) {
	t.Parallel()
	api := fakeOpenAI(6_000_000, 1_000_000_000)
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	p := providers.OpenAI(6_000, 1_000_000)
	p.Hosts = nil // the server has another host
	c, err := p.Client(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	client := newOpenAI(c, option.WithBaseURL(server.URL+"/v1/"))
	atOnce(t, 40, func(int) error { return streamHello(t, client) })
	if refused := api.Refused(); api.Served() != 40 || len(refused) > 0 {
		t.Errorf("served %d, want 40, refused %v", api.Served(), refused)
	}
}

func TestOpenAIRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := openAI(t, 120, 1_000)
		hello := hello
		hello.MaxTokens = openai.Int(900) // which take 54 s to come back
		sendElsewhere(t, api.Server, 1, "POST", "https://api.openai.com/v1/chat/completions", `{"model":"gpt-4o","max_tokens":1000}`)
		_, err := client.Chat.Completions.New(t.Context(), hello)
		var refused *openai.Error
		if !errors.As(err, &refused) || refused.StatusCode != http.StatusTooManyRequests || refused.Code != "rate_limit_exceeded" {
			t.Errorf("%v, want the client's error for a refusal", err)
		}
		if _, err := client.Chat.Completions.New(t.Context(), hello); err != nil || api.Refused()["tokens"] != 1 {
			t.Errorf("the next call, after the reported wait: %v, refused %v", err, api.Refused())
		}
	})
}

func slackClient(t *testing.T) (*slack.Client, *counted) {
	t.Helper()
	c, api := over(t, providers.Slack(), standIn("slack"))
	return slack.New("token", slack.OptionHTTPClient(c)), api
}

func TestSlack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := slackClient(t)
		api.Latency = late
		atOnce(t, 50, func(int) error {
			_, _, err := client.GetConversationsContext(t.Context(), &slack.GetConversationsParameters{})
			return err
		})
		api.check(t, 50, 0)
	})
}

func TestSlackMessages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := slackClient(t)
		api.Latency = late
		atOnce(t, 20, func(i int) error {
			channel := fmt.Sprintf("C%d", i%2)
			_, _, err := client.PostMessageContext(t.Context(), channel, slack.MsgOptionText("Hello!", false))
			return err
		})
		api.check(t, 20, 0)
	})
}

func TestSlackRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := slackClient(t)
		sendElsewhere(t, api.Server, 20, "POST", "https://slack.com/api/conversations.list", "")
		_, _, err := client.GetConversationsContext(t.Context(), &slack.GetConversationsParameters{})
		var limited *slack.RateLimitedError
		if !errors.As(err, &limited) || limited.RetryAfter <= 0 || limited.RetryAfter > time.Minute {
			t.Errorf("%v, want the client's error for a refusal", err)
		}
	})
}
