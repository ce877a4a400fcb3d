package providers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
)

// A limitsAPI is a stand-in of an administration API that lists rate limits, as the base of an
// http.Client. It answers requests to its host, and records requests to other hosts.
type limitsAPI struct {
	host string
	key  string // of an administrator
	// plain is a valid key without the right to read limits.
	plain string
	// header is the name of the header with the key, and prefix what precedes the key there.
	header, prefix string
	// list answers an authorized request.
	list func(*http.Request) (status int, body string)
	// refusal returns the body of an error.
	refusal func(status int) string
	// failure replaces the answers to authorized requests. If empty, there is none.
	failure string

	mu      sync.Mutex // guards the fields below
	asked   int
	foreign []*http.Request // to other hosts
}

// The failures of a limitsAPI. With failEndless each page has a next one, and with failRepeated
// each page names the same one.
const (
	failLimited  = "status 429"
	failBroken   = "status 500"
	failRedirect = "redirect to another host"
	failNotJSON  = "not JSON"
	failEndless  = "endless pages"
	failRepeated = "a page that names itself"
)

// tooMany is the number of pages after which a client is taken to ask forever.
const tooMany = 20_000

func (s *limitsAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Host != s.host || r.URL.Scheme != "https" {
		s.foreign = append(s.foreign, r)
		return s.response(r, http.StatusOK, `{"data":[],"has_more":false,"next_page":null}`), nil
	}
	if s.asked++; s.asked > tooMany {
		return nil, fmt.Errorf("the client asked for %d pages", s.asked)
	}
	switch r.Header.Get(s.header) {
	case s.prefix + s.key:
		return s.answer(r), nil
	case s.prefix + s.plain:
		return s.response(r, http.StatusForbidden, s.refusal(http.StatusForbidden)), nil
	}
	return s.response(r, http.StatusUnauthorized, s.refusal(http.StatusUnauthorized)), nil
}

// answer answers an authorized request.
func (s *limitsAPI) answer(r *http.Request) *http.Response {
	switch s.failure {
	case failLimited:
		resp := s.response(r, http.StatusTooManyRequests, s.refusal(http.StatusTooManyRequests))
		resp.Header.Set("Retry-After", "30")
		return resp
	case failBroken:
		return s.response(r, http.StatusInternalServerError, s.refusal(http.StatusInternalServerError))
	case failRedirect:
		resp := s.response(r, http.StatusTemporaryRedirect, "")
		resp.Header.Set("Location", "https://example.com"+r.URL.Path)
		return resp
	case failNotJSON:
		resp := s.response(r, http.StatusOK, "<!DOCTYPE html><html><body>Please sign in</body></html>")
		resp.Header.Set("Content-Type", "text/html")
		return resp
	}
	if r.Method != http.MethodGet {
		return s.response(r, http.StatusMethodNotAllowed, s.refusal(http.StatusMethodNotAllowed))
	}
	status, body := s.list(r)
	return s.response(r, status, body)
}

func (s *limitsAPI) response(r *http.Request, status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: jsonHeader(),
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: r}
}

// A limitGroup is a group of Anthropic's limits.
type limitGroup struct {
	Type   string      `json:"group_type"`
	Models []string    `json:"models"` // null if Type is not model_group
	Limits []limitType `json:"limits"`
	Object string      `json:"type"`
}

type limitType struct {
	Type  string `json:"type"`
	Value int64  `json:"value"`
	// Organization is there in workspaces only, and null if the organization has no such limit.
	Organization *json.RawMessage `json:"org_limit,omitempty"`
}

const (
	anthropicAdminKey  = "sk-ant-admin01-7Jx2QvWq9aLr4TzKpB8m"
	anthropicPlainKey  = "sk-ant-api03-not-an-administrator"
	anthropicWorkspace = "wrkspc_01JwQvzr7rXLA5AGx3HKfFUJ"
)

// newAnthropicLimits returns a stand-in of Anthropic's Rate Limits API:
//
//	GET /v1/organizations/rate_limits
//	GET /v1/organizations/workspaces/{workspace_id}/rate_limits
//
// with x-api-key and anthropic-version. The list of a workspace has overrides only: a group or
// limiter that it lacks is inherited from the organization. Pages: next_page goes into the
// parameter page. https://platform.claude.com/docs/en/manage-claude/rate-limits-api (copy of
// 2026-09-26) and https://platform.claude.com/docs/en/api/http/beta/organization/rate_limits/list,
// read on 2026-11-28. Errors: https://platform.claude.com/docs/en/api/errors, read on 2026-11-28.
//
// The page calls the limiter of input tokens input_tokens_per_minute. Clients read
// input_tokens_per_minute_cache_aware from real responses, and fast_itpmca and fast_otpm for fast
// mode: provider claude of https://github.com/mondoohq/mql, and others. So the groups here have
// either.
func newAnthropicLimits() *limitsAPI {
	s := &limitsAPI{host: "api.anthropic.com", header: "X-Api-Key", key: anthropicAdminKey, plain: anthropicPlainKey, refusal: anthropicError}
	organization := []limitGroup{
		{"model_group", []string{"claude-opus-5-5"}, []limitType{{"requests_per_minute", 4_000, nil}, {"input_tokens_per_minute", 10_000_000, nil}, {"output_tokens_per_minute", 800_000, nil}}, ""},
		{"model_group", []string{"claude-opus-4-5", "claude-opus-4-5-20251101", "claude-opus-4-8"},
			[]limitType{{"fast_itpmca", 123_000, nil}, {"fast_otpm", 45_000, nil}, {"requests_per_minute", 2_000, nil}, {"input_tokens_per_minute_cache_aware", 2_000_000, nil}, {"output_tokens_per_minute", 400_000, nil}}, ""},
		{"batch", nil, []limitType{{"requests_per_minute", 1_000, nil}, {"enqueued_batch_requests", 500_000, nil}}, ""},
		{"web_search", nil, []limitType{{"tool_uses_per_second", 30, nil}}, ""},
		{"token_count", nil, []limitType{{"requests_per_minute", 2_001, nil}}, ""},
		{"files", nil, []limitType{{"requests_per_minute", 500, nil}}, ""},
		{"skills", nil, []limitType{{"requests_per_minute", 501, nil}}, ""},
		{"model_group", []string{"claude-haiku-4-5", "claude-haiku-4-5-20251001"}, []limitType{{"requests_per_minute", 1_001, nil}, {"input_tokens_per_minute", 2_000_001, nil}, {"output_tokens_per_minute", 400_001, nil}}, ""},
	}
	of := func(text string) *json.RawMessage { return (*json.RawMessage)(ptr([]byte(text))) }
	overrides := []limitGroup{
		{"model_group", []string{"claude-opus-5-5"}, []limitType{{"requests_per_minute", 1_000, of("4000")}, {"input_tokens_per_minute", 500_000, of("null")}}, ""},
		{"batch", nil, []limitType{{"enqueued_batch_requests", 100_000, of("500000")}}, ""},
	}
	s.list = func(r *http.Request) (int, string) {
		if r.Header.Get("Anthropic-Version") == "" {
			return http.StatusBadRequest, `{"type":"error","error":{"type":"invalid_request_error","message":"anthropic-version: header is required"}}`
		}
		switch r.URL.Path {
		case "/v1/organizations/rate_limits":
			return s.anthropicPage(r, "rate_limit", organization)
		case "/v1/organizations/workspaces/" + anthropicWorkspace + "/rate_limits":
			return s.anthropicPage(r, "workspace_rate_limit", overrides)
		}
		return http.StatusNotFound, anthropicError(http.StatusNotFound)
	}
	return s
}

func ptr[T any](v T) *T { return &v }

// anthropicPage returns a page of the groups, of 3 or of the parameter limit.
func (s *limitsAPI) anthropicPage(r *http.Request, object string, all []limitGroup) (int, string) {
	query := r.URL.Query()
	size, err := strconv.Atoi(query.Get("limit"))
	if err != nil || size > 3 {
		size = 3 // pages end early, so that clients must follow them
	}
	var page struct {
		Data []limitGroup `json:"data"`
		Next *string      `json:"next_page"`
	}
	from, _ := strconv.Atoi(strings.TrimPrefix(query.Get("page"), "page_"))
	page.Data = []limitGroup{}
	for _, g := range all {
		if kind := query.Get("group_type"); kind == "" || kind == g.Type {
			g.Object = object
			page.Data = append(page.Data, g)
		}
	}
	page.Data = page.Data[min(from, len(page.Data)):]
	switch {
	case s.failure == failEndless:
		page.Next = ptr("page_" + strconv.Itoa(s.asked))
		page.Data = page.Data[:min(size, len(page.Data))]
	case s.failure == failRepeated:
		page.Next = ptr("page_0")
	case len(page.Data) > size:
		page.Data, page.Next = page.Data[:size], ptr("page_"+strconv.Itoa(from+size))
	}
	body, err := json.Marshal(page)
	if err != nil {
		panic(err)
	}
	return http.StatusOK, string(body)
}

func anthropicError(status int) string {
	kind, message := "api_error", "Internal server error"
	switch status {
	case http.StatusUnauthorized:
		kind, message = "authentication_error", "invalid x-api-key"
	case http.StatusForbidden:
		kind, message = "permission_error", "Your API key does not have permission to use the specified resource."
	case http.StatusNotFound:
		kind, message = "not_found_error", "Not found"
	case http.StatusTooManyRequests:
		kind, message = "rate_limit_error", "Number of requests has exceeded your rate limit"
	}
	return fmt.Sprintf(`{"type":"error","error":{"type":%q,"message":%q},"request_id":"req_011CSHoEeqs5C35K2UUqR7Fy"}`, kind, message)
}

// An openAILimit is a limit of a model in a project of OpenAI. Fields that are nil are left out.
type openAILimit struct {
	Object         string `json:"object"`
	ID             string `json:"id"`
	Model          string `json:"model"`
	Requests       int64  `json:"max_requests_per_1_minute"`
	Tokens         int64  `json:"max_tokens_per_1_minute"`
	Images         *int64 `json:"max_images_per_1_minute,omitempty"`
	Audio          *int64 `json:"max_audio_megabytes_per_1_minute,omitempty"`
	RequestsPerDay *int64 `json:"max_requests_per_1_day,omitempty"`
	BatchPerDay    *int64 `json:"batch_1_day_max_input_tokens,omitempty"`
}

const (
	openAIAdminKey = "sk-admin-Vb3kN8sQe1Yt6UoGhW2c"
	openAIPlainKey = "sk-proj-not-an-administrator"
	openAIProject  = "proj_abc"
)

// newOpenAILimits returns a stand-in of OpenAI's list of a project's rate limits:
//
//	GET /v1/organization/projects/{project_id}/rate_limits?after=rl_xxx&limit=100
//
// https://developers.openai.com/api/reference/resources/organization/subresources/projects/subresources/rate_limits,
// read on 2026-11-28. Limit is 100 by default. A page has first_id, last_id and has_more, and after
// is the id of the last object of the page before. The 403 of a key without the right is a JSON
// object whose error is a text, as clients have recorded it ("Missing scopes:
// api.management.read").
func newOpenAILimits() *limitsAPI {
	s := &limitsAPI{host: "api.openai.com", header: "Authorization", prefix: "Bearer ", key: openAIAdminKey, plain: openAIPlainKey, refusal: openAIError}
	all := []openAILimit{
		{Model: "gpt-4o", Requests: 10_000, Tokens: 30_000_000, BatchPerDay: ptr(int64(15_000_000_000))},
		{Model: "gpt-4o-mini", Requests: 500, Tokens: 200_000, RequestsPerDay: ptr(int64(10_000)), BatchPerDay: ptr(int64(2_000_000))},
		{Model: "dall-e-3", Requests: 7, Tokens: 0, Images: ptr(int64(9))},
		{Model: "whisper-1", Requests: 501, Tokens: 0, Audio: ptr(int64(100))},
	}
	for i := range 230 { // three pages
		all = append(all, openAILimit{Model: fmt.Sprintf("model-%d", i), Requests: int64(1_000 + i), Tokens: int64(100_000 + i)})
	}
	for i := range all {
		all[i].Object, all[i].ID = "project.rate_limit", "rl-"+all[i].Model
	}
	s.list = func(r *http.Request) (int, string) {
		if r.URL.Path != "/v1/organization/projects/"+openAIProject+"/rate_limits" {
			return http.StatusNotFound, openAIError(http.StatusNotFound)
		}
		return s.openAIPage(r, all)
	}
	return s
}

func (s *limitsAPI) openAIPage(r *http.Request, all []openAILimit) (int, string) {
	query := r.URL.Query()
	size, err := strconv.Atoi(query.Get("limit"))
	if err != nil || size > 100 {
		size = 100
	}
	page := struct {
		Object string        `json:"object"`
		Data   []openAILimit `json:"data"`
		First  *string       `json:"first_id"`
		Last   *string       `json:"last_id"`
		More   bool          `json:"has_more"`
	}{Object: "list", Data: []openAILimit{}}
	begun := query.Get("after") == ""
	for _, l := range all {
		if begun && len(page.Data) < size {
			page.Data = append(page.Data, l)
		} else if begun {
			page.More = true
		}
		begun = begun || l.ID == query.Get("after")
	}
	switch {
	case s.failure == failEndless:
		page.More = true
		page.Data = []openAILimit{{Object: "project.rate_limit", ID: "rl-" + strconv.Itoa(s.asked), Model: "model-" + strconv.Itoa(s.asked), Requests: 1, Tokens: 1}}
	case s.failure == failRepeated:
		page.More, page.Data = true, all[:1]
	}
	if len(page.Data) > 0 {
		page.First, page.Last = &page.Data[0].ID, &page.Data[len(page.Data)-1].ID
	}
	body, err := json.Marshal(page)
	if err != nil {
		panic(err)
	}
	return http.StatusOK, string(body)
}

func openAIError(status int) string {
	switch status {
	case http.StatusForbidden:
		return `{"error":"You have insufficient permissions for this operation. Missing scopes: api.management.read. Check that you have the correct role in your organization (Reader, Writer, Owner), and if you're using a restricted API key, that it has the necessary scopes."}`
	case http.StatusUnauthorized:
		return `{"error":{"message":"Incorrect API key provided: sk-admin-*****2c. You can find your API key at https://platform.openai.com/account/api-keys.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`
	case http.StatusTooManyRequests:
		return `{"error":{"message":"Rate limit reached for requests","type":"requests","param":null,"code":"rate_limit_exceeded"}}`
	case http.StatusNotFound:
		return `{"error":{"message":"Project not found","type":"invalid_request_error","param":null,"code":"not_found"}}`
	}
	return `{"error":{"message":"The server had an error while processing your request. Sorry about that!","type":"server_error","param":null,"code":null}}`
}

// A fetcher reads limits with a client and a key, of a workspace or project if within is not empty.
type fetcher func(ctx context.Context, client *http.Client, key, within string) (map[string][]throttle.Tier, error)

// A fetching is a fetcher, and what it must read from the stand-in of its API.
type fetching struct {
	name   string
	api    func() *limitsAPI
	within string
	fetch  fetcher
	want   map[string][]int64 // limits of a minute, by model
}

// fetchings returns what fetchers must read. A workspace inherits what it doesn't override.
func fetchings(anthropic, openAI fetcher) []fetching {
	four, haiku := []int64{2_000, 400_000, 2_000_000}, []int64{1_001, 400_001, 2_000_001}
	organization := map[string][]int64{"claude-opus-5-5": {4_000, 800_000, 10_000_000}, "claude-opus-4-5": four, "claude-opus-4-5-20251101": four,
		"claude-opus-4-8": four, "claude-haiku-4-5": haiku, "claude-haiku-4-5-20251001": haiku}
	overridden := maps.Clone(organization)
	overridden["claude-opus-5-5"] = []int64{1_000, 500_000, 800_000}
	return []fetching{
		{"Anthropic", newAnthropicLimits, "", anthropic, organization},
		{"Anthropic, workspace", newAnthropicLimits, anthropicWorkspace, anthropic, overridden},
		{"OpenAI", newOpenAILimits, openAIProject, openAI, map[string][]int64{"gpt-4o": {10_000, 30_000_000}, "gpt-4o-mini": {500, 200_000}, "model-0": {1_000, 100_000}, "model-229": {1_229, 100_229}}},
	}
}

// perWindow returns the limits of the tiers with a window.
func perWindow(tiers []throttle.Tier, window time.Duration) (limits []int64) {
	for _, tier := range tiers {
		if tier.Window == window {
			limits = append(limits, tier.Limit)
		}
	}
	slices.Sort(limits)
	return limits
}

// tiersOf returns the tiers of a model. A | separates the models that share them.
func tiersOf(all map[string][]throttle.Tier, model string) []throttle.Tier {
	for models, tiers := range all {
		if slices.Contains(strings.Split(models, "|"), model) {
			return tiers
		}
	}
	return nil
}

// checkFetched checks that the tiers of each model have the numbers that the API lists.
func checkFetched(t *testing.T, f fetching) {
	api := f.api()
	all, err := f.fetch(t.Context(), &http.Client{Transport: api}, api.key, f.within)
	if err != nil {
		t.Fatal(err)
	}
	for model, limits := range f.want {
		if got := perWindow(tiersOf(all, model), time.Minute); !slices.Equal(got, limits) {
			t.Errorf("%s has tiers of %v a minute, want %v", model, got, limits)
		}
	}
	for model, tiers := range all {
		if err := (throttle.Policy{Name: "fetched", Tiers: tiers}).Validate(); err != nil {
			t.Errorf("%s: %v", model, err)
		}
	}
	if len(api.foreign) > 0 {
		t.Errorf("%d requests to other hosts", len(api.foreign))
	}
}

// checkOtherUnits checks that OpenAI's limits of images, audio and a day don't become limits of
// requests or tokens a minute.
func checkOtherUnits(t *testing.T, openAI fetcher) {
	api := newOpenAILimits()
	all, err := openAI(t.Context(), &http.Client{Transport: api}, api.key, openAIProject)
	if err != nil {
		t.Fatal(err)
	}
	if got := perWindow(all["gpt-4o-mini"], 24*time.Hour); !slices.Contains(got, 10_000) {
		t.Errorf("gpt-4o-mini has tiers of %v a day, want 10000 requests", got)
	}
	for model, requests := range map[string]int64{"dall-e-3": 7, "whisper-1": 501} {
		if len(all[model]) == 0 {
			t.Errorf("%s has no tiers", model)
		}
		for _, tier := range all[model] {
			if ofRequests := tier.Unit == "" || tier.Unit == "requests"; ofRequests && tier.Limit != requests {
				t.Errorf("%s has a tier %v, want %d requests", model, tier, requests)
			}
		}
	}
}

// checkFailures checks that errors say what to do and don't have the key, that nothing is sent to
// another host, and that pages without end do end.
func checkFailures(t *testing.T, f fetching) {
	valid := f.api()
	for _, test := range []struct{ name, failure, key, says string }{
		{"wrong key", "", "sk-wrong-3fA9", `(?i)key`},
		{"no key", "", "", `(?i)key`},
		{"key without the right", "", valid.plain, `(?i)admin`},
		{failLimited, failLimited, valid.key, `(?i)again|later|30 ?s`},
		{failBroken, failBroken, valid.key, `(?i)again|later`},
		{failRedirect, failRedirect, valid.key, `(?i)redirect`},
		{failNotJSON, failNotJSON, valid.key, `(?i)JSON`},
		{failEndless, failEndless, valid.key, `(?i)page`},
		{failRepeated, failRepeated, valid.key, `(?i)page`},
	} {
		t.Run(test.name, func(t *testing.T) {
			api := f.api()
			api.failure = test.failure
			all, err := f.fetch(t.Context(), &http.Client{Transport: api}, test.key, f.within)
			if err == nil {
				t.Fatalf("no error, and tiers of %d models", len(all))
			}
			if t.Log(err); !regexp.MustCompile(test.says).MatchString(err.Error()) {
				t.Errorf("error %q, want one that says %s", err, test.says)
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				if test.key != "" && strings.Contains(fmt.Sprintf("%v %+v", e, e), test.key) {
					t.Errorf("the key is in the error %q", e)
				}
			}
			if len(api.foreign) > 0 {
				t.Errorf("%d requests to other hosts, such as %s", len(api.foreign), api.foreign[0].URL)
			}
			if api.asked > tooMany {
				t.Errorf("the API was asked %d times", api.asked)
			}
		})
	}
}

// checkNames checks that a name of a workspace or project can't change the host or the path.
func checkNames(t *testing.T, f fetching) {
	for _, within := range []string{"../../../v1/messages", "a/b", "a?x=y", "@example.com", "a#b", "a b"} {
		api := f.api()
		all, err := f.fetch(t.Context(), &http.Client{Transport: api}, api.key, within)
		if err == nil {
			t.Errorf("%q: no error, and tiers of %d models", within, len(all))
		}
		if len(api.foreign) > 0 {
			t.Errorf("%q: a request to %s", within, api.foreign[0].URL)
		}
	}
}

// checkFetching runs the checks of all fetchers.
func checkFetching(t *testing.T, anthropic, openAI fetcher) {
	for _, f := range fetchings(anthropic, openAI) {
		t.Run(f.name, func(t *testing.T) {
			checkFetched(t, f)
			checkFailures(t, f)
			if f.within != "" {
				checkNames(t, f)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			api := f.api()
			if _, err := f.fetch(ctx, &http.Client{Transport: api}, api.key, f.within); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v after the context has ended, want context.Canceled", err)
			}
		})
	}
	t.Run("other units", func(t *testing.T) { checkOtherUnits(t, openAI) })
}

// The stand-ins can be read by clients that are written from the documentation.
func TestLimitsAPIStandIns(t *testing.T) { checkFetching(t, readAnthropic, readOpenAI) }

// readAnthropic and readOpenAI are clients that know the APIs.
func readAnthropic(ctx context.Context, client *http.Client, key, workspace string) (map[string][]throttle.Tier, error) {
	paths := []string{"/v1/organizations/rate_limits"}
	if workspace != "" {
		paths = append(paths, "/v1/organizations/workspaces/"+url.PathEscape(workspace)+"/rate_limits")
	}
	limits := map[string]map[string]int64{} // of a kind, by model
	header := http.Header{"X-Api-Key": {key}, "Anthropic-Version": {"2023-06-01"}}
	for _, path := range paths {
		err := readPages(ctx, client, "https://api.anthropic.com"+path, "page", header, func(body []byte) (string, error) {
			var page struct {
				Data []limitGroup
				Next string `json:"next_page"`
			}
			err := json.Unmarshal(body, &page)
			for _, group := range page.Data {
				for _, model := range group.Models {
					for _, l := range group.Limits {
						if limits[model] == nil {
							limits[model] = map[string]int64{}
						}
						limits[model][strings.TrimSuffix(l.Type, "_cache_aware")] = l.Value
					}
				}
			}
			return page.Next, err
		})
		if err != nil {
			return nil, err
		}
	}
	all := map[string][]throttle.Tier{}
	for model, l := range limits {
		all[model] = []throttle.Tier{throttle.PerMinute(l["requests_per_minute"]),
			{Limit: l["input_tokens_per_minute"], Window: time.Minute, Unit: "input_tokens"}, {Limit: l["output_tokens_per_minute"], Window: time.Minute, Unit: "output_tokens"}}
	}
	return all, nil
}

func readOpenAI(ctx context.Context, client *http.Client, key, project string) (map[string][]throttle.Tier, error) {
	all := map[string][]throttle.Tier{}
	address := "https://api.openai.com/v1/organization/projects/" + url.PathEscape(project) + "/rate_limits"
	err := readPages(ctx, client, address, "after", http.Header{"Authorization": {"Bearer " + key}}, func(body []byte) (string, error) {
		var page struct {
			Data []openAILimit
			Last string `json:"last_id"`
			More bool   `json:"has_more"`
		}
		err := json.Unmarshal(body, &page)
		for _, l := range page.Data {
			tiers := []throttle.Tier{throttle.PerMinute(l.Requests)}
			if l.Tokens > 0 {
				tiers = append(tiers, throttle.Tier{Limit: l.Tokens, Window: time.Minute, Unit: "tokens"})
			}
			if l.RequestsPerDay != nil {
				tiers = append(tiers, throttle.PerDay(*l.RequestsPerDay))
			}
			all[l.Model] = tiers
		}
		if !page.More {
			page.Last = ""
		}
		return page.Last, err
	})
	return all, err
}

// readPages reads the pages of a list, at most a hundred. The function read returns the next one.
func readPages(ctx context.Context, client *http.Client, address, parameter string, header http.Header, read func([]byte) (string, error)) error {
	still := *client
	still.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	next := ""
	for range 100 {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return err
		}
		if r.Header = header; next != "" {
			r.URL.RawQuery = url.Values{parameter: {next}}.Encode()
		}
		resp, err := still.Do(r)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if advice, ok := map[int]string{401: "the key is wrong", 403: "use an administrator's key", 307: "the server redirects to another address"}[resp.StatusCode]; ok {
			return errors.New(advice)
		} else if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d: try again later", resp.StatusCode)
		}
		if next, err = read(body); err != nil {
			return fmt.Errorf("the answer is not JSON: %w", err)
		}
		if next == "" {
			return nil
		}
	}
	return errors.New("more than 100 pages")
}
