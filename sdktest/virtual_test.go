package sdktest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/bwmarrin/discordgo"
	"google.golang.org/genai"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// These clients run in virtual time, where the fake API is the Base of the provider's transport.

// A counted API counts the requests that it receives.
type counted struct {
	*fakeapi.Server
	received atomic.Int64
}

func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	c.received.Add(1)
	return c.Server.RoundTrip(req)
}

// standIn returns a stand-in of an API, from its rule file, with other tiers: see fakeapi.New.
func standIn(name string, tiers ...string) *fakeapi.Server {
	return fakeapi.New("../providers/testdata", name, tiers...)
}

// over returns a client that keeps to a provider's limits and sends to a fake API.
func over(t *testing.T, p providers.Provider, api *fakeapi.Server) (*http.Client, *counted) {
	t.Helper()
	client, err := p.Client(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{Server: api}
	client.Transport.(*throttle.Transport).Base = c
	return client, c
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(*testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// atOnce makes calls in goroutines of their own.
func atOnce(t *testing.T, n int, call func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := call(i); err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// check fails unless the API received n requests, of which traps answered some, and served the others.
func (c *counted) check(t *testing.T, n int64, trapped int) {
	t.Helper()
	if got := c.received.Load(); got != n || c.Served() != int(n)-trapped || len(c.Refused()) > 0 {
		t.Errorf("received %d requests, want %d, served %d, want %d, refused %v", got, n, c.Served(), int(n)-trapped, c.Refused())
	}
}

// fakeAnthropic returns a stand-in with limits a minute. Its answers have a quarter of max_tokens.
func fakeAnthropic(requests, input, output int64) *fakeapi.Server {
	api := standIn("anthropic", fmt.Sprintf("requests=%d/m;algo=token_bucket", requests),
		fmt.Sprintf("input=%d/m;algo=token_bucket", input), fmt.Sprintf("output=%d/m;algo=token_bucket", output))
	api.Output = func(most int64) int64 { return most / 4 }
	return api
}

// claude returns Anthropic's client with its own retries: two, after 408, 409, 429, errors of the
// server and of the network. They do no harm over a Transport. Each waits for its admission, and a
// call that the limiter refuses sends nothing however often it is repeated.
// option.WithMaxRetries(0) ends such a call at the first refusal.
func claude(t *testing.T, requests, input, output int64) (anthropic.Client, *counted) {
	t.Helper()
	c, api := over(t, providers.Anthropic(requests, input, output), fakeAnthropic(requests, input, output))
	return anthropic.NewClient(anthropicoption.WithHTTPClient(c), anthropicoption.WithAPIKey("key")), api
}

var quaternion = anthropic.MessageNewParams{
	MaxTokens: 400, // of which the fake API uses 100
	Messages:  []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("What is a quaternion?"))},
	Model:     "claude-sonnet-4-5",
}

func TestAnthropic(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := claude(t, 600, 100_000, 10_000)
		start := time.Now()
		atOnce(t, 300, func(int) error {
			message, err := client.Messages.New(t.Context(), quaternion)
			if err == nil && message.Content[0].Text != "Hello!" {
				err = fmt.Errorf("answered %s", message.RawJSON())
			}
			return err
		})
		api.check(t, 300, 0)
		if took := time.Since(start); took > 4*time.Minute {
			t.Errorf("30,000 tokens took %v", took)
		}
	})
}

// The cost that a stream reports at its end replaces the estimate.
func TestAnthropicStreaming(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := claude(t, 600, 100_000, 10_000)
		start := time.Now()
		for range 100 {
			stream := client.Messages.NewStreaming(t.Context(), quaternion)
			message := anthropic.Message{}
			for stream.Next() {
				if err := message.Accumulate(stream.Current()); err != nil {
					t.Fatal(err)
				}
			}
			if err := stream.Err(); err != nil || message.Content[0].Text != "Hello!" || message.Usage.OutputTokens != 100 {
				t.Fatalf("streamed %+v: %v", message, err)
			}
			stream.Close()
		}
		api.check(t, 100, 0)
		if took := time.Since(start); took > time.Minute { // the estimates, 40,000, would have taken three
			t.Errorf("10,000 tokens took %v", took)
		}
	})
}

func TestAnthropicRefused(t *testing.T) {
	refusal := fakeapi.Reply{
		Status: http.StatusTooManyRequests, Header: map[string]string{"Retry-After": "20"},
		Body: `{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit."}}`,
	}
	inBubble(t, func(t *testing.T) {
		client, api := claude(t, 600, 100_000, 10_000)
		api.Trap(refusal)
		start := time.Now()
		_, err := client.Messages.New(t.Context(), quaternion, anthropicoption.WithMaxRetries(0))
		var refused *anthropic.Error
		if !errors.As(err, &refused) || refused.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%v, want the client's error for a refusal", err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := client.Messages.New(ctx, quaternion); !errors.Is(err, throttle.ErrDeadline) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call with too little time: %v", err)
		}
		atOnce(t, 8, func(int) error {
			_, err := client.Messages.New(t.Context(), quaternion)
			return err
		})
		if took := time.Since(start); took < 20*time.Second || took > 30*time.Second {
			t.Errorf("the calls went after %v", took)
		}
		api.check(t, 9, 1) // none for the call that had too little time
	})
}

// A refused call is repeated once, however many wait.
func TestAnthropicRetries(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := claude(t, 600, 100_000, 10_000)
		api.Trap(fakeapi.Reply{Status: http.StatusTooManyRequests, Header: map[string]string{"Retry-After": "20"}, Body: "{}"})
		atOnce(t, 8, func(int) error {
			_, err := client.Messages.New(t.Context(), quaternion)
			return err
		})
		api.check(t, 9, 1)
	})
}

// gemini returns Google's client. It does not repeat calls by itself. With
// HTTPOptions.RetryOptions it repeats a refused call up to four times, after delays of its own. Each
// waits for its admission first, so that the delays do no harm.
func gemini(t *testing.T, requests, tokens int64, retries *genai.HTTPRetryOptions) (*genai.Client, *counted) {
	t.Helper()
	c, api := over(t, providers.Gemini(requests, tokens, 0), standIn("gemini", fmt.Sprintf("requests=%d/m", requests), fmt.Sprintf("input=%d/m", tokens)))
	client, err := genai.NewClient(t.Context(), &genai.ClientConfig{
		APIKey: "key", Backend: genai.BackendGeminiAPI, HTTPClient: c, HTTPOptions: genai.HTTPOptions{RetryOptions: retries},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client, api
}

var image = genai.Text("What's this image about?")

func TestGemini(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := gemini(t, 60, 100_000, nil)
		start := time.Now()
		atOnce(t, 150, func(int) error {
			answer, err := client.Models.GenerateContent(t.Context(), "gemini-2.5-flash", image, nil)
			if err == nil && answer.Text() != "Hello!" {
				err = fmt.Errorf("answered %q", answer.Text())
			}
			return err
		})
		api.check(t, 150, 0)
		if took := time.Since(start); took < 2*time.Minute || took > 3*time.Minute {
			t.Errorf("150 calls took %v", took)
		}
	})
}

// The input tokens that a stream reports replace the estimate.
func TestGeminiStreaming(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := gemini(t, 60, 10_000, nil)
		words := genai.Text(strings.Repeat("a b ", 900)) // 900 tokens, of which 1,800 are expected
		start := time.Now()
		for range 10 {
			text := ""
			for answer, err := range client.Models.GenerateContentStream(t.Context(), "gemini-2.5-flash", words, nil) {
				if err != nil {
					t.Fatal(err)
				}
				text += answer.Text()
			}
			if text != "HelHello!" { // two chunks
				t.Errorf("streamed %q", text)
			}
		}
		api.check(t, 10, 0)
		if took := time.Since(start); took > 50*time.Second {
			t.Errorf("10 streams took %v", took)
		}
	})
}

func TestGeminiRefused(t *testing.T) {
	refusal := fakeapi.Reply{Status: http.StatusTooManyRequests, Body: `{"error":{"code":429,"message":"You exceeded your current quota.\nPlease retry in 15.8s.","status":"RESOURCE_EXHAUSTED"}}`}
	inBubble(t, func(t *testing.T) {
		client, api := gemini(t, 60, 100_000, nil)
		api.Trap(refusal)
		start := time.Now()
		_, err := client.Models.GenerateContent(t.Context(), "gemini-2.5-flash", image, nil)
		var refused genai.APIError
		if !errors.As(err, &refused) || refused.Code != http.StatusTooManyRequests || refused.Status != "RESOURCE_EXHAUSTED" {
			t.Errorf("%v, want the client's error for a refusal", err)
		}
		if _, err := client.Models.GenerateContent(t.Context(), "gemini-2.5-flash", image, nil); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 15_800*time.Millisecond {
			t.Errorf("the next call went after %v", took)
		}
		api.check(t, 2, 1)
	})
}

func TestGeminiRetries(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, api := gemini(t, 60, 100_000, &genai.HTTPRetryOptions{})
		api.Trap(fakeapi.Reply{Status: http.StatusTooManyRequests, Body: `{"error":{"code":429,"message":"Please retry in 15.8s.","status":"RESOURCE_EXHAUSTED"}}`})
		start := time.Now()
		atOnce(t, 8, func(int) error {
			_, err := client.Models.GenerateContent(t.Context(), "gemini-2.5-flash", image, nil)
			return err
		})
		if took := time.Since(start).Round(time.Millisecond); took != 15_800*time.Millisecond {
			t.Errorf("the calls went after %v", took)
		}
		api.check(t, 9, 1)
	})
}

// discord returns discordgo's session. It repeats a refused call without an end, each time after the
// wait that the refusal names; ShouldRetryOnRateLimit = false returns the refusal instead. Its
// own limiter sends one call of a route at a time and waits for the bucket, as the preset does. It does
// not know of the 50 requests a second. A client has no Timeout here: 20 seconds, as by default,
// would include the wait.
func discord(t *testing.T) (*discordgo.Session, *counted) {
	t.Helper()
	c, api := over(t, providers.Discord(), standIn("discord"))
	session, err := discordgo.New("Bot token")
	if err != nil {
		t.Fatal(err)
	}
	session.Client = c
	return session, api
}

func TestDiscord(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		session, api := discord(t)
		var mu sync.Mutex
		var sent []time.Time
		start := time.Now()
		atOnce(t, 120, func(channel int) error { // each channel is a route
			for range 6 {
				if _, err := session.ChannelMessageSend(fmt.Sprint(1_000+channel), "Hello!"); err != nil {
					return err
				}
				mu.Lock()
				sent = append(sent, time.Now())
				mu.Unlock()
			}
			return nil
		})
		api.check(t, 720, 0)
		if took := time.Since(start); took > 20*time.Second { // 14 at 50 a second
			t.Errorf("720 calls took %v", took)
		}
		slices.SortFunc(sent, time.Time.Compare)
		for i := 50; i < len(sent); i++ {
			if took := sent[i].Sub(sent[i-50]); took < time.Second {
				t.Errorf("51 calls in %v", took)
				break
			}
		}
	})
}

func TestDiscordRefused(t *testing.T) {
	refusal := fakeapi.Reply{
		Status: http.StatusTooManyRequests, Header: map[string]string{"Retry-After": "7", "X-RateLimit-Scope": "shared"},
		Body: `{"message":"You are being rate limited.","retry_after":6.5,"global":false}`,
	}
	inBubble(t, func(t *testing.T) {
		session, api := discord(t)
		session.ShouldRetryOnRateLimit = false
		api.Trap(refusal)
		start := time.Now()
		_, err := session.ChannelMessageSend("1", "Hello!")
		var refused *discordgo.RateLimitError
		if !errors.As(err, &refused) || refused.RetryAfter != 6500*time.Millisecond {
			t.Errorf("%v, want the client's error for a refusal", err)
		}
		if _, err := session.ChannelMessageSend("2", "Hello!"); err != nil || time.Since(start) > 0 {
			t.Errorf("another channel: %v after %v", err, time.Since(start))
		}
		if _, err := session.ChannelMessageSend("1", "Hello!"); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < 6500*time.Millisecond || took > 7*time.Second {
			t.Errorf("the next call went after %v", took)
		}
		api.check(t, 3, 1)
	})
}

func TestDiscordRetries(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		session, api := discord(t)
		for range 2 {
			api.Trap(fakeapi.Reply{
				Status: http.StatusTooManyRequests, Header: map[string]string{"Retry-After": "7", "X-RateLimit-Scope": "shared"},
				Body: `{"message":"You are being rate limited.","retry_after":6.5,"global":false}`,
			})
		}
		start := time.Now()
		if _, err := session.ChannelMessageSend("1", "Hello!"); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < 13*time.Second || took > 14*time.Second {
			t.Errorf("the call went after %v", took)
		}
		api.check(t, 3, 2)
	})
}
