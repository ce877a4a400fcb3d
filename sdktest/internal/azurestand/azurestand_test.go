package azurestand

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	classic = "https://stand.openai.azure.com/openai/deployments/chat/chat/completions?api-version=2024-10-21"
	version = "https://stand.openai.azure.com/openai/v1/chat/completions"
	hello   = `{"messages":[{"role":"user","content":"Hello"}],"max_tokens":10}`
	key     = "key-of-the-stand"
)

// stand returns a resource with one deployment, whose name is chat.
func stand(d Deployment) *Server {
	d.Name = "chat"
	return New(Options{Keys: []string{key, "second-key"}, Token: "entra-token", Deployments: []Deployment{d}})
}

// post sends a body, with headers given as pairs, or the key if there are none.
func post(t *testing.T, s *Server, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if headers == nil {
		headers = []string{"Api-Key", key}
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := s.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(all)
}

// expect sends the greeting and fails unless it is answered with a status.
func expect(t *testing.T, s *Server, status int) *http.Response {
	t.Helper()
	res, body := post(t, s, classic, hello)
	if res.StatusCode != status {
		t.Fatalf("after %s: status %d, want %d: %s", time.Since(epoch), res.StatusCode, status, body)
	}
	return res
}

// The time at which bubbles begin.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func header(t *testing.T, res *http.Response, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got := res.Header.Get(name); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
}

func TestCredentialsAreChecked(t *testing.T) {
	s := stand(Deployment{TPM: 1_000_000})
	for _, c := range []struct {
		name, url string
		headers   []string
		body      string // of the refusal, or "" if there is none
	}{
		{"key", classic, []string{"Api-Key", key}, ""},
		{"second key", classic, []string{"Api-Key", "second-key"}, ""},
		{"token", classic, []string{"Authorization", "Bearer entra-token"}, ""},
		{"key and token", classic, []string{"Api-Key", key, "Authorization", "Bearer entra-token"}, ""},
		{"key as a bearer token of v1", version, []string{"Authorization", "Bearer " + key}, ""},
		{"key as a bearer token", classic, []string{"Authorization", "Bearer " + key}, tokenInvalid},
		{"none", classic, []string{}, tokenInvalid},
		{"wrong key", classic, []string{"Api-Key", "other"}, accessDenied},
		{"empty key", classic, []string{"Api-Key", ""}, accessDenied},
		{"two keys of which one is wrong", classic, []string{"Api-Key", key, "Api-Key", "other"}, accessDenied},
		{"key and wrong token", classic, []string{"Api-Key", key, "Authorization", "Bearer other"}, tokenInvalid},
		{"basic", classic, []string{"Authorization", "Basic entra-token"}, tokenInvalid},
		{"key in the query", classic + "&api-key=" + key, []string{}, tokenInvalid},
	} {
		body := `{"model":"chat",` + hello[1:]
		res, got := post(t, s, c.url, body, c.headers...)
		switch want := c.body; {
		case want == "" && res.StatusCode != http.StatusOK:
			t.Errorf("%s: status %d: %s", c.name, res.StatusCode, got)
		case want != "" && (res.StatusCode != http.StatusUnauthorized || got != want):
			t.Errorf("%s: status %d, body %s", c.name, res.StatusCode, got)
		}
	}
	if got := s.Counts("chat"); got.Accepted != 5 || got.Unauthorized != 8 {
		t.Errorf("counts %+v, want 5 accepted and 8 unauthorized", got)
	}
	// The recorded response says Content-Length: 224.
	if len(accessDenied) != 224 {
		t.Errorf("the body of a wrong key has %d bytes, recorded are 224", len(accessDenied))
	}
}

func TestNoTokenMatchesWhereNoneIsSet(t *testing.T) {
	s := New(Options{Keys: []string{key}, Deployments: []Deployment{{Name: "chat"}}})
	for _, value := range []string{"Bearer ", "Bearer", ""} {
		if res, _ := post(t, s, classic, hello, "Authorization", value); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%q: status %d", value, res.StatusCode)
		}
	}
}

func TestPathsFindDeployments(t *testing.T) {
	s := stand(Deployment{TPM: 1_000_000})
	const host = "https://stand.openai.azure.com"
	for _, c := range []struct {
		url, model string
		status     int
		body       string // or "" if it isn't looked at
	}{
		{classic, "ignored", 200, ""},
		{version, "chat", 200, ""},
		{version + "?api-version=preview", "chat", 200, ""},
		{version, "other", 404, deploymentNotFound},
		{version, "", 400, ""},
		{host + "/openai/deployments/other/chat/completions?api-version=2024-10-21", "chat", 404, deploymentNotFound},
		{host + "/openai/deployments/chat/chat/completions", "chat", 404, resourceNotFound},
		{host + "/openai/deployments//chat/completions?api-version=2024-10-21", "chat", 404, resourceNotFound},
		{host + "/openai/deployments/chat/completions?api-version=2024-10-21", "chat", 404, resourceNotFound},
		{host + "/v1/chat/completions", "chat", 404, resourceNotFound},
	} {
		res, body := post(t, s, c.url, fmt.Sprintf(`{"model":%q,%s`, c.model, hello[1:]))
		if res.StatusCode != c.status || c.body != "" && body != c.body {
			t.Errorf("%s %q: status %d, want %d: %s", c.url, c.model, res.StatusCode, c.status, body)
		}
	}
	if got := s.Counts("other").NotFound; got != 2 {
		t.Errorf("%d requests for the deployment that doesn't exist, want 2", got)
	}
}

// The capture of 2024-11-09, apim-request-id bea1796b-ad97-45dc-a586-b31cd1e94b1b: a deployment of
// 10,000 tokens a minute had 9,154 and, of a period's 10 requests, 9 left.
func TestEstimateIsThatOfTheCapture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(Deployment{PeriodHeaders: true})
		res, _ := post(t, s, classic, `{"messages":[
			{"role":"system","content":[{"type":"text","text":"You are a helpful assistant who talks like a pirate."}]},
			{"role":"user","content":[{"type":"text","text":"Good day, who am I talking to?"}]},
			{"role":"assistant","content":[{"type":"text","text":"Ahoy there, matey! What be bringin ye to these waters today? "}]}
			],"temperature":0.7,"top_p":0.95,"max_tokens":800}`)
		header(t, res, map[string]string{
			"X-Ratelimit-Remaining-Tokens": "9154", "X-Ratelimit-Limit-Tokens": "10000",
			"X-Ratelimit-Remaining-Requests": "9", "X-Ratelimit-Limit-Requests": "10",
			"X-Ratelimit-Reset-Requests": "10", "X-Ratelimit-Reset-Tokens": "60",
			"X-Ms-Region": "East US 2", "X-Ms-Rai-Invoked": "true", "X-Accel-Buffering": "no",
			"Strict-Transport-Security": "max-age=31536000; includeSubDomains; preload", "X-Content-Type-Options": "nosniff",
			"Retry-After": "", "Retry-After-Ms": "",
		})
		if res.Header.Get("Azureml-Model-Session") == "" || res.Header.Get("Apim-Request-Id") == "" {
			t.Errorf("no session or no request ID in %v", res.Header)
		}
	})
}

func TestEstimateTakesWhatMayBeAnswered(t *testing.T) {
	// "Hello" is two tokens and its message three.
	for params, want := range map[string]int{
		`"max_tokens":100`:                               105,
		`"max_completion_tokens":100`:                    105,
		`"max_tokens":100,"n":3`:                         305,
		`"max_tokens":100,"best_of":2`:                   210,
		`"temperature":1`:                                21,
		`"max_tokens":100,"tools":[{"type":"function"}]`: 111,
	} {
		s := stand(Deployment{})
		res, body := post(t, s, classic, `{"messages":[{"role":"user","content":"Hello"}],`+params+`}`)
		left, err := strconv.Atoi(res.Header.Get("X-Ratelimit-Remaining-Tokens"))
		if err != nil || 10_000-left != want {
			t.Errorf("%s: took %d tokens, want %d: %s", params, 10_000-left, want, body)
		}
	}
}

// The log of the measurement: 12 requests a minute, calls without a pause of more than 0.7 seconds.
// Two calls pass, and each opens again 10 seconds after it was made, whatever was refused meanwhile.
func TestCallsAreCountedAsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(Deployment{TPM: 2000, RPM: 12, ForgetRefused: true, PeriodHeaders: true})
		for _, c := range []struct {
			at   time.Duration
			left string // or "" if refused
		}{
			{0, "1"}, {2100 * time.Millisecond, "0"}, {3900 * time.Millisecond, ""}, {9900 * time.Millisecond, ""},
			{10600 * time.Millisecond, "0"}, {12600 * time.Millisecond, "0"}, {14300 * time.Millisecond, ""},
			{20500 * time.Millisecond, ""}, {21100 * time.Millisecond, "0"}, {22900 * time.Millisecond, "0"},
			{26400 * time.Millisecond, ""}, {30700 * time.Millisecond, ""}, {31400 * time.Millisecond, "0"},
		} {
			time.Sleep(c.at - time.Since(epoch))
			if c.left == "" {
				expect(t, s, http.StatusTooManyRequests)
				continue
			}
			header(t, expect(t, s, http.StatusOK), map[string]string{"X-Ratelimit-Remaining-Requests": c.left})
		}
	})
}

// The other log of the measurement: calls of 2,061 of 10,000 tokens. The fifth is refused with 1,756
// left, and the first opens again after 60 seconds.
func TestTokensAreCountedAsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(Deployment{ForgetRefused: true})
		body := `{"messages":[{"role":"user","content":"Hello"}],"max_tokens":2056}`
		for _, c := range []struct {
			at   time.Duration
			left string // or "" if refused
		}{
			{0, "7939"}, {1900 * time.Millisecond, "5878"}, {3600 * time.Millisecond, "3817"}, {5400 * time.Millisecond, "1756"},
			{7800 * time.Millisecond, ""}, {59600 * time.Millisecond, ""}, {60200 * time.Millisecond, "1756"},
			{62200 * time.Millisecond, "1756"}, {64500 * time.Millisecond, "1756"}, {66700 * time.Millisecond, "1756"},
			{68600 * time.Millisecond, ""},
		} {
			time.Sleep(c.at - time.Since(epoch))
			res, _ := post(t, s, classic, body)
			if got := res.Header.Get("X-Ratelimit-Remaining-Tokens"); c.left != "" && (res.StatusCode != 200 || got != c.left) {
				t.Errorf("at %s: status %d, %s left, want %s", c.at, res.StatusCode, got, c.left)
			}
			if c.left == "" && res.StatusCode != http.StatusTooManyRequests {
				t.Errorf("at %s: status %d, want a refusal", c.at, res.StatusCode)
			}
		}
	})
}

// The quota page's example: 600 requests a minute judged by the second are 10 in each.
func TestSecondsAreJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(Deployment{TPM: 100_000, Period: time.Second, ForgetRefused: true, PeriodHeaders: true})
		for range 3 {
			for left := 9; left >= 0; left-- {
				header(t, expect(t, s, http.StatusOK), map[string]string{"X-Ratelimit-Remaining-Requests": strconv.Itoa(left)})
			}
			header(t, expect(t, s, http.StatusTooManyRequests), map[string]string{"Retry-After": "1", "Retry-After-Ms": "1000"})
			time.Sleep(time.Second)
		}
		if got := s.Counts("chat"); got.Accepted != 30 || got.Refused != 3 {
			t.Errorf("counts %+v", got)
		}
	})
}

// A share of a request in each period is one, and the minute's limit holds all the same.
func TestMinuteHoldsWherePeriodsRoundUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(Deployment{RPM: 3, Period: time.Second})
		for range 3 {
			expect(t, s, http.StatusOK)
			time.Sleep(time.Second)
		}
		header(t, expect(t, s, http.StatusTooManyRequests), map[string]string{"X-Ratelimit-Remaining-Requests": "0"})
	})
}

func TestFixedPeriodsOpenAtTheirEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(Deployment{RPM: 12, Fixed: true, ForgetRefused: true})
		time.Sleep(9 * time.Second)
		expect(t, s, http.StatusOK)
		expect(t, s, http.StatusOK)
		header(t, expect(t, s, http.StatusTooManyRequests), map[string]string{"Retry-After": "1"})
		time.Sleep(time.Second)
		expect(t, s, http.StatusOK)
		expect(t, s, http.StatusOK)
		header(t, expect(t, s, http.StatusTooManyRequests), map[string]string{"Retry-After": "10"})
	})
}

// "Unsuccessful requests still count": a client that never waits is never served again, and one that
// waits as long as it was told is.
func TestRefusedRequestsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(Deployment{RPM: 60, TPM: 10_000})
		for range 10 {
			expect(t, s, http.StatusOK)
		}
		var res *http.Response
		for range 40 {
			res = expect(t, s, http.StatusTooManyRequests)
			time.Sleep(time.Second / 2)
		}
		ms, err := strconv.Atoi(res.Header.Get("Retry-After-Ms"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(ms)*time.Millisecond - time.Second/2)
		expect(t, s, http.StatusOK)
		if got := s.Counts("chat"); got.Accepted != 11 || got.Refused != 40 {
			t.Errorf("counts %+v", got)
		}
	})
}

// Whoever waits for the time told in seconds or milliseconds is admitted, and a millisecond earlier
// it is not.
func TestWaitsAreExact(t *testing.T) {
	for _, d := range []Deployment{
		{RPM: 12}, {RPM: 12, Fixed: true}, {RPM: 12, ForgetRefused: true}, {RPM: 12, Period: time.Second},
		{TPM: 40, RPM: 600}, {TPM: 40, RPM: 600, Fixed: true}, {TPM: 40, RPM: 600, ForgetRefused: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := stand(d)
			time.Sleep(1234567 * time.Microsecond)
			var res *http.Response
			for range 100 {
				if res, _ = post(t, s, classic, hello); res.StatusCode == http.StatusTooManyRequests {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			ms, err := strconv.Atoi(res.Header.Get("Retry-After-Ms"))
			if err != nil || ms < 2 || res.Header.Get("Retry-After") != strconv.Itoa((ms+999)/1000) {
				t.Fatalf("%+v: told to wait %q ms and %q s", d, res.Header.Get("Retry-After-Ms"), res.Header.Get("Retry-After"))
			}
			time.Sleep(time.Duration(ms)*time.Millisecond - 2*time.Millisecond)
			if d.ForgetRefused { // or this one counts and is refused for longer
				expect(t, s, http.StatusTooManyRequests)
			}
			time.Sleep(2 * time.Millisecond)
			expect(t, s, http.StatusOK)
		})
	}
}

func TestRefusalsReadAsCaptured(t *testing.T) {
	for _, c := range []struct {
		name   string
		d      Deployment
		body   string // of the second request
		policy string
		want   string
	}{
		{"calls", Deployment{RPM: 6}, hello, "DeploymentRatelimit-Call",
			`{"error":{"code":"429","message": "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded call rate limit of your current OpenAI S0 pricing tier. Please retry after 10 seconds. Please go here: https://aka.ms/oai/quotaincrease if you would like to further increase the default rate limit."}}`},
		{"calls of a second", Deployment{RPM: 60, Period: time.Second}, hello, "DeploymentRatelimit-Call",
			`{"error":{"code":"429","message": "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded call rate limit of your current OpenAI S0 pricing tier. Please retry after 1 second. Please go here: https://aka.ms/oai/quotaincrease if you would like to further increase the default rate limit."}}`},
		{"tokens", Deployment{TPM: 20, RPM: 60}, hello, "DeploymentRatelimit-Token",
			`{"error":{"code":"429","message": "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 60 seconds. Please go here: https://aka.ms/oai/quotaincrease if you would like to further increase the default rate limit."}}`},
		{"more tokens than the limit", Deployment{TPM: 1000, RPM: 60}, strings.Replace(hello, ":10", ":1000", 1), "DeploymentRatelimit-Token",
			`{"error":{"code":"429","message": "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 86400 seconds. Please go here: https://aka.ms/oai/quotaincrease if you would like to further increase the default rate limit."}}`},
		{"new wording", Deployment{RPM: 6, NewWording: true, Model: "gpt-4.1"}, hello, "DeploymentRatelimit-Call",
			`{"error":{"code":"RateLimitReached","message": "Your requests to chat for gpt-4.1 in East US 2 have exceeded the call rate limit for your current AIServices S0 pricing tier. This request was for ChatCompletions_Create under Azure OpenAI API version 2024-10-21. Please retry after 10 seconds. To increase your default rate limit, visit: https://aka.ms/oai/quotaincrease."}}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := stand(c.d)
			expect(t, s, http.StatusOK)
			res, body := post(t, s, classic, c.body)
			if res.StatusCode != http.StatusTooManyRequests || body != c.want {
				t.Errorf("%s: status %d, body\n%s, want\n%s", c.name, res.StatusCode, body, c.want)
			}
			header(t, res, map[string]string{"Policy-Id": c.policy, "Azureml-Model-Session": "", "Content-Type": "application/json"})
			if !json.Valid([]byte(body)) {
				t.Errorf("%s: no JSON", c.name)
			}
		})
	}
}

func TestDeploymentsHaveLimitsOfTheirOwn(t *testing.T) {
	s := New(Options{Keys: []string{key}, Deployments: []Deployment{{Name: "chat", RPM: 6}, {Name: "other", RPM: 6}}})
	expect(t, s, http.StatusOK)
	expect(t, s, http.StatusTooManyRequests)
	if res, _ := post(t, s, strings.Replace(classic, "/chat/", "/other/", 1), hello); res.StatusCode != http.StatusOK {
		t.Errorf("the other deployment answered %d", res.StatusCode)
	}
	if res, _ := post(t, s, version, `{"model":"other",`+hello[1:]); res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the other path has a limit of its own: status %d", res.StatusCode)
	}
}

func TestBadBodiesAreRefusedAndCount(t *testing.T) {
	s := stand(Deployment{RPM: 30})
	for _, body := range []string{`{`, `{}`, `{"messages":[],"max_tokens":1}`, strings.Replace(hello, ":10", ":0", 1),
		`{"stream_options":{"include_usage":true},` + hello[1:]} {
		if res, got := post(t, s, classic, body); res.StatusCode != http.StatusBadRequest || !json.Valid([]byte(got)) {
			t.Errorf("%s: status %d: %s", body, res.StatusCode, got)
		}
	}
	expect(t, s, http.StatusTooManyRequests)
	if got := s.Counts("chat"); got.Invalid != 5 || got.Refused != 1 || got.Accepted != 0 {
		t.Errorf("counts %+v", got)
	}
}

// The usage of a completion, as far as the tests look at it.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func TestCompletionIsThatOfTheCapture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, body := post(t, stand(Deployment{}), classic, hello)
		want := `{"choices":[{"content_filter_results":` + safe + `,"finish_reason":"stop","index":0,"logprobs":null,"message":{"content":"Hello! How can I assist you today?","refusal":null,"role":"assistant"}}],"created":946684800,"id":"chatcmpl-00000000000000000000000000001","model":"gpt-4o-2024-11-20","object":"chat.completion","prompt_filter_results":` + promptSafe + `,"system_fingerprint":"fp_f3927aa00d","usage":{"completion_tokens":10,"completion_tokens_details":{"accepted_prediction_tokens":0,"audio_tokens":0,"reasoning_tokens":0,"rejected_prediction_tokens":0},"prompt_tokens":5,"prompt_tokens_details":{"audio_tokens":0,"cached_tokens":0},"total_tokens":15}}`
		if body != want {
			t.Errorf("body\n%s, want\n%s", body, want)
		}
	})
}

func TestAnswersEndAtMaxTokens(t *testing.T) {
	_, body := post(t, stand(Deployment{}), classic, strings.Replace(hello, ":10", `:2,"n":3`, 1))
	var got struct {
		Choices []struct {
			Finish  string `json:"finish_reason"`
			Message struct{ Content string }
		}
		Usage usage
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Choices) != 3 || got.Choices[2].Finish != "length" || got.Choices[2].Message.Content != "Hello!" || got.Usage.Completion != 6 {
		t.Errorf("got %+v", got)
	}
}

// The events of the capture of 2025-02-16, whose times and identifiers are others.
func TestStreamIsThatOfTheCapture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const end = `"created":946684800,"id":"chatcmpl-00000000000000000000000000001","model":"gpt-4o-2024-11-20","object":"chat.completion.chunk","system_fingerprint":"fp_f3927aa00d"`
		filter := `{"hate":{"filtered":false,"severity":"safe"},"self_harm":{"filtered":false,"severity":"safe"},"sexual":{"filtered":false,"severity":"safe"},"violence":{"filtered":false,"severity":"safe"}}`
		events := func(null string) []string {
			all := []string{
				`{"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[{"prompt_index":0,"content_filter_results":{"hate":{"filtered":false,"severity":"safe"},"jailbreak":{"filtered":false,"detected":false},"self_harm":{"filtered":false,"severity":"safe"},"sexual":{"filtered":false,"severity":"safe"},"violence":{"filtered":false,"severity":"safe"}}}]}`,
				`{"choices":[{"content_filter_results":{},"delta":{"content":"","refusal":null,"role":"assistant"},"finish_reason":null,"index":0,"logprobs":null}],` + end + null + `}`,
			}
			for _, word := range []string{"Hello", "!", " How", " can", " I", " assist", " you", " today", "?"} {
				all = append(all, `{"choices":[{"content_filter_results":`+filter+`,"delta":{"content":"`+word+`"},"finish_reason":null,"index":0,"logprobs":null}],`+end+null+`}`)
			}
			return append(all, `{"choices":[{"content_filter_results":{},"delta":{},"finish_reason":"stop","index":0,"logprobs":null}],`+end+null+`}`)
		}
		last := `{"choices":[],` + end + `,"usage":{"completion_tokens":10,"completion_tokens_details":{"accepted_prediction_tokens":0,"audio_tokens":0,"reasoning_tokens":0,"rejected_prediction_tokens":0},"prompt_tokens":5,"prompt_tokens_details":{"audio_tokens":0,"cached_tokens":0},"total_tokens":15}}`
		for params, want := range map[string][]string{
			`"stream":true`: append(events(""), "[DONE]"),
			`"stream":true,"stream_options":{"include_usage":true}`: append(events(`,"usage":null`), last, "[DONE]"),
		} {
			res, body := post(t, stand(Deployment{}), classic, `{`+params+`,`+hello[1:])
			header(t, res, map[string]string{"Content-Type": "text/event-stream; charset=utf-8"})
			if want := "data: " + strings.Join(want, "\n\ndata: ") + "\n\n"; body != want {
				t.Errorf("%s: body\n%s, want\n%s", params, body, want)
			}
		}
	})
}

func TestStreamsArriveOverTheNetwork(t *testing.T) {
	s := stand(Deployment{})
	server := httptest.NewServer(s)
	defer server.Close()
	req, err := http.NewRequest(http.MethodPost, server.URL+"/openai/v1/chat/completions", strings.NewReader(`{"model":"chat","stream":true,`+hello[1:]))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	events := 0
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			events++
		}
	}
	if res.StatusCode != http.StatusOK || events != 13 || res.Header.Get("X-Ratelimit-Remaining-Requests") != "59" {
		t.Errorf("status %d, %d events, header %v", res.StatusCode, events, res.Header)
	}
}

// long returns a body whose prompt has a number of tokens, of which the first ones are the same for
// the same text, and then others.
func long(text byte, same, tokens int, params string) string {
	content := strings.Repeat(string(text)+"abc", same-3) + strings.Repeat("wxyz", tokens-same)
	return fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":10%s}`, content, params)
}

func TestPrefixesAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Keys: []string{key}, Deployments: []Deployment{{Name: "chat", TPM: 1_000_000}, {Name: "other", TPM: 1_000_000}}})
		other := strings.Replace(classic, "/chat/", "/other/", 1)
		for i, c := range []struct {
			after  time.Duration
			url    string
			body   string
			cached int
		}{
			{0, classic, long('a', 1566, 1566, ""), 0},
			{0, classic, long('a', 1566, 1566, ""), 1536}, // 1,024 + 4 × 128
			{0, classic, long('a', 1300, 1566, ""), 1280}, // the same as far as there
			{0, classic, long('a', 1100, 2000, ""), 1024},
			{0, classic, long('a', 1023, 2000, ""), 0}, // one token short
			{0, classic, long('b', 1566, 1566, ""), 0},
			{0, classic, long('a', 1023, 1023, ""), 0},                        // too short a prompt
			{0, classic, long('a', 1566, 1566, `,"prompt_cache_key":"k"`), 0}, // another machine
			{0, classic, long('a', 1566, 1566, `,"prompt_cache_key":"k"`), 1536},
			{0, classic, long('a', 1566, 1566, `,"tools":[{"type":"function"}]`), 0}, // which come first
			{0, other, long('a', 1566, 1566, ""), 0},                                 // another deployment
			{0, other, long('a', 1566, 1566, ""), 1536},
			{4*time.Minute + 59*time.Second, classic, long('a', 1566, 1566, ""), 1536},
			{4*time.Minute + 59*time.Second, classic, long('a', 1566, 1566, ""), 1536}, // a use keeps it
			{5 * time.Minute, classic, long('a', 1566, 1566, ""), 0},
		} {
			time.Sleep(c.after)
			res, body := post(t, s, c.url, c.body)
			var got struct{ Usage usage }
			if err := json.Unmarshal([]byte(body), &got); err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("request %d: status %d, %v: %s", i, res.StatusCode, err, body)
			}
			if got.Usage.Details.Cached != c.cached {
				t.Errorf("request %d: %d cached tokens of %d, want %d", i, got.Usage.Details.Cached, got.Usage.Prompt, c.cached)
			}
		}
		if got := s.Counts("other"); got.PromptTokens != 3132 || got.CachedTokens != 1536 || got.CachedShare() != 1536.0/3132 {
			t.Errorf("counts %+v, share %v", got, got.CachedShare())
		}
	})
}

// A refused prompt was not processed, so it isn't cached.
func TestRefusedPromptsAreNotCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(Deployment{TPM: 1600, RPM: 60})
		expect(t, s, http.StatusOK)
		if res, _ := post(t, s, classic, long('a', 1590, 1590, "")); res.StatusCode != http.StatusTooManyRequests {
			t.Fatalf("status %d, want a refusal", res.StatusCode)
		}
		time.Sleep(time.Minute)
		if res, body := post(t, s, classic, long('a', 1590, 1590, "")); res.StatusCode != 200 || !strings.Contains(body, `"cached_tokens":0`) {
			t.Errorf("status %d: %s", res.StatusCode, body)
		}
	})
}

func TestCredentialsAreRecorded(t *testing.T) {
	s := stand(Deployment{TPM: 1_000_000})
	post(t, s, classic+"&key=in-query&subscription-key=other-query", hello, "Api-Key", "foreign", "Authorization", "Bearer canary-bearer",
		"Cookie", "session=canary-cookie; theme=dark", "X-Api-Key", "canary-anthropic", "X-Goog-Api-Key", "canary-google",
		"Proxy-Authorization", "Basic dTpw", "Idempotency-Key", "is no secret")
	post(t, s, strings.Replace(classic, "https://", "https://user:pass@", 1), hello, "Api-Key", "foreign")
	want := []Credential{
		{"header Api-Key", "foreign"}, {"header Authorization", "canary-bearer"}, {"header Proxy-Authorization", "Basic dTpw"},
		{"header X-Api-Key", "canary-anthropic"}, {"header X-Goog-Api-Key", "canary-google"},
		{"cookie session", "canary-cookie"}, {"cookie theme", "dark"},
		{"query key", "in-query"}, {"query subscription-key", "other-query"}, {"userinfo", "user:pass"},
	}
	if got := s.Credentials(); !slices.Equal(got, want) {
		t.Errorf("credentials %v, want %v", got, want)
	}
}

func TestSecretsAreFoundWhereverTheyArrive(t *testing.T) {
	const secret = "canary/secret+1"
	for where, send := range map[string]func(s *Server){
		"URL":            func(s *Server) { post(t, s, classic+"&x=canary%2Fsecret%2B1", hello) },
		"":               func(s *Server) { post(t, s, classic, hello, "X-Other", "canary") }, // nothing carried it
		"header X-Other": func(s *Server) { post(t, s, classic, hello, "X-Other", "a="+secret) },
		"header Authorization in base64": func(s *Server) {
			post(t, s, classic, hello, "Authorization", "Basic dXNlcjpjYW5hcnkvc2VjcmV0KzE=") // user:canary/secret+1
		},
		"body": func(s *Server) { post(t, s, classic, `{"metadata":{"a":"`+secret+`"},`+hello[1:]) },
	} {
		s := stand(Deployment{})
		send(s)
		if got := strings.Join(s.Carriers(secret), ", "); got != where {
			t.Errorf("found in %q, want %q", got, where)
		}
	}
}

func TestRequestsAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(Deployment{})
		post(t, s, classic, hello)
		time.Sleep(time.Second)
		post(t, s, version, `{"model":"other",`+hello[1:], "Api-Key", "wrong")
		got := s.Requests()
		if len(got) != 2 || got[0].Body != hello || got[0].Deployment != "chat" || got[0].Status != 200 || got[0].URL != classic ||
			got[1].Deployment != "other" || got[1].Status != 401 || got[1].At.Sub(got[0].At) != time.Second {
			t.Errorf("recorded %+v", got)
		}
	})
}

// Many callers at one moment are counted one by one.
func TestCallersAtOneMomentAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(Deployment{RPM: 60})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { post(t, s, classic, hello) })
		}
		wg.Wait()
		if got := s.Counts("chat"); got.Accepted != 10 || got.Refused != 40 || len(s.Requests()) != 50 {
			t.Errorf("counts %+v", got)
		}
	})
}
