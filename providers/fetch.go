package providers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
)

// FetchAnthropic returns the limits of an organization's models, as Models for the scope "family" of
// [Anthropic]. Models that share limits are one pattern, and so is their fast mode. If workspace is not
// empty, these are the limits of that workspace, where it has lower ones.
//
//	limits, err := providers.FetchAnthropic(ctx, nil, adminKey, "")
//	if err != nil {
//		return err
//	}
//	p := providers.Anthropic(50, 30_000, 8_000) // of models that are not listed
//	models := providers.NewModels(limits)
//	p.Scope("family").Models = models
//
// Call it again, and Models.Set with the result, to follow changes. A ceiling is in Models.Most:
//
//	for range time.Tick(time.Hour) {
//		limits, err := providers.FetchAnthropic(ctx, nil, adminKey, "")
//		if err == nil {
//			err = models.Set(ctx, limits)
//		}
//		if err != nil {
//			log.Print(err) // the limits stay as they are
//		}
//	}
//
// FetchAnthropic makes one call of Anthropic's Rate Limits API for each page, and two for a workspace,
// and blocks until the last response is read or ctx ends.
//
// The key is an administrator's, which begins with sk-ant-admin. It is sent to api.anthropic.com alone,
// and is part of no error. If client is nil, http.DefaultClient is used. The error for a key that is
// not valid, or is not an administrator's, says so.
//
// Source: https://platform.claude.com/docs/en/manage-claude/rate-limits-api, read on 2026-11-28.
func FetchAnthropic(ctx context.Context, client *http.Client, key, workspace string) (map[string][]throttle.Tier, error) {
	f := fetcher{client: client, api: "Anthropic", host: "https://api.anthropic.com", key: key, rights: "an administrator's key, which begins with sk-ant-admin",
		header: http.Header{"X-Api-Key": {key}, "Anthropic-Version": {"2023-06-01"}}}
	groups, err := f.anthropic(ctx, "/v1/organizations/rate_limits")
	if err == nil && workspace != "" {
		var own []anthropicGroup
		own, err = f.anthropic(ctx, "/v1/organizations/workspaces/"+url.PathEscape(workspace)+"/rate_limits")
		groups = overridden(groups, own)
	}
	if err != nil {
		return nil, err
	}
	all := make(map[string][]throttle.Tier)
	for _, g := range apart(groups) {
		l := g.limits()
		family := func(input, output int64) []throttle.Tier {
			return Anthropic(l.orMost("requests_per_minute"), input, output).Scope("family").Policy.Tiers
		}
		input, output := min(l.orMost("input_tokens_per_minute"), l.orMost("input_tokens_per_minute_cache_aware")), l.orMost("output_tokens_per_minute")
		all[strings.Join(g.Models, "|")] = family(input, output)
		fast := strings.Join(g.Models, fastMode+"|") + fastMode
		all[fast] = family(min(input, l.orMost("fast_itpmca")), min(output, l.orMost("fast_otpm")))
	}
	return f.some(all)
}

// An anthropicGroup is a group of models that share limits.
type anthropicGroup struct {
	Models []string
	Limits []struct {
		Type  string
		Value int64
	}
}

func (g anthropicGroup) limits() limiters {
	l := make(limiters)
	for _, limit := range g.Limits {
		l.lower(limit.Type, limit.Value)
	}
	return l
}

// anthropic returns the groups of models on all pages of a path.
func (f *fetcher) anthropic(ctx context.Context, path string) (all []anthropicGroup, err error) {
	err = f.pages(ctx, path, url.Values{"group_type": {"model_group"}}, func(page []byte, query url.Values) (more bool, err error) {
		var groups struct {
			Data []anthropicGroup
			Next string `json:"next_page"`
		}
		if err := json.Unmarshal(page, &groups); err != nil {
			return false, err
		}
		for _, g := range groups.Data {
			if g.Models = slices.DeleteFunc(g.Models, func(model string) bool { return model == "" }); len(g.Models) > 0 {
				all = append(all, g)
			}
		}
		query.Set("page", groups.Next)
		return groups.Next != "", nil
	})
	return all, err
}

// apart returns groups of which no two have a model in common: those that have are one.
func apart(groups []anthropicGroup) (all []anthropicGroup) {
	for _, g := range groups {
		for i := 0; i < len(all); i++ {
			if slices.ContainsFunc(all[i].Models, func(model string) bool { return slices.Contains(g.Models, model) }) {
				g.Models, g.Limits = append(g.Models, all[i].Models...), append(g.Limits, all[i].Limits...)
				all = slices.Delete(all, i, i+1)
				i--
			}
		}
		slices.Sort(g.Models)
		g.Models = slices.Compact(g.Models)
		all = append(all, g)
	}
	return all
}

// overridden returns the groups of an organization with the lower limits of a workspace, which lists only
// those that differ.
func overridden(groups, own []anthropicGroup) []anthropicGroup {
	for i, g := range groups {
		for _, o := range own {
			if slices.ContainsFunc(o.Models, func(model string) bool { return slices.Contains(g.Models, model) }) {
				groups[i].Limits = append(groups[i].Limits, o.Limits...)
			}
		}
	}
	return groups
}

// limiters are the values of a group of limits, by type. A type that is missing is not limited.
type limiters map[string]int64

func (l limiters) orMost(kind string) int64 {
	if n := l[kind]; n > 0 {
		return min(n, algorithms.MaxLimit)
	}
	return algorithms.MaxLimit
}

// lower lowers a value to n, if n is one.
func (l limiters) lower(kind string, n int64) {
	if n > 0 {
		l[kind] = min(n, l.orMost(kind))
	}
}

// limitersOf returns the limits of a name, which it adds if it is new.
func limitersOf(all map[string]limiters, name string) limiters {
	if all[name] == nil {
		all[name] = make(limiters)
	}
	return all[name]
}

// FetchOpenAI returns the limits of each model of a project, as Models for the scope "model" of
// [OpenAI]. The project's name begins with proj_. Limits of images, audio and batches are left out,
// because the preset does not count them. Snapshots of a model share its lowest limits. See
// [FetchAnthropic] for how to use the result.
//
// FetchOpenAI makes one call for each 100 models, and blocks until the last response is read or ctx
// ends. The key is an administrator's, which begins with sk-admin. It is sent to api.openai.com alone,
// and is part of no error. If client is nil, http.DefaultClient is used.
//
// Source: https://platform.openai.com/docs/api-reference/project-rate-limits, read on 2026-11-28.
func FetchOpenAI(ctx context.Context, client *http.Client, key, project string) (map[string][]throttle.Tier, error) {
	f := fetcher{client: client, api: "OpenAI", host: "https://api.openai.com", key: key, rights: "an administrator's key, which begins with sk-admin",
		header: http.Header{"Authorization": {"Bearer " + key}}}
	if project == "" {
		return nil, f.errorf("the project is empty: pass its name, which begins with proj_")
	}
	found := make(map[string]limiters)
	err := f.pages(ctx, "/v1/organization/projects/"+url.PathEscape(project)+"/rate_limits", url.Values{"limit": {"100"}}, func(page []byte, query url.Values) (more bool, err error) {
		var limits struct {
			Data []struct {
				Model          string
				Requests       int64 `json:"max_requests_per_1_minute"`
				Tokens         int64 `json:"max_tokens_per_1_minute"`
				RequestsPerDay int64 `json:"max_requests_per_1_day"`
			}
			More bool   `json:"has_more"`
			Last string `json:"last_id"`
		}
		if err := json.Unmarshal(page, &limits); err != nil {
			return false, err
		}
		for _, l := range limits.Data {
			of := limitersOf(found, openAIBase(l.Model))
			of.lower("requests", l.Requests)
			of.lower("tokens", l.Tokens)
			of.lower("day", l.RequestsPerDay)
		}
		query.Set("after", limits.Last)
		return limits.More && limits.Last != "", nil
	})
	if err != nil {
		return nil, err
	}
	all := make(map[string][]throttle.Tier)
	for model, l := range found {
		all[model] = OpenAI(l.orMost("requests"), l.orMost("tokens")).Scope("model").Policy.Tiers
		if l["day"] > 0 {
			all[model] = append(all[model], throttle.PerDay(l.orMost("day")))
		}
	}
	return f.some(all)
}

// A fetcher reads the limits of an API.
type fetcher struct {
	client *http.Client
	api    string // its name
	host   string
	key    string
	rights string // the key that is needed
	header http.Header
}

const (
	maxPages = 100     // of limits, in one call
	maxPage  = 4 << 20 // bytes
)

// pages calls read with each page. It returns whether there is another one, and sets the query of that.
func (f *fetcher) pages(ctx context.Context, path string, query url.Values, read func(page []byte, query url.Values) (more bool, err error)) error {
	if f.key == "" {
		return f.errorf("the key is empty: pass %s", f.rights)
	}
	for range maxPages {
		page, err := f.get(ctx, f.host+path+"?"+query.Encode())
		if err != nil {
			return err
		}
		switch more, err := read(page, query); {
		case err != nil:
			return f.errorf("the response is not the JSON that is documented: %w", err)
		case !more:
			return nil
		}
	}
	return f.errorf("there are more than %d pages of limits", maxPages)
}

// get returns the body of a response. It follows no redirect, because the key is for the API's host.
func (f *fetcher) get(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, f.errorf("%w", err)
	}
	req.Header = f.header.Clone()
	client := *http.DefaultClient
	if f.client != nil {
		client = *f.client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		return nil, f.errorf("%w", err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, f.errorf("%s", f.advice(resp))
	case err != nil:
		return nil, f.errorf("%w", err)
	case len(page) > maxPage:
		return nil, f.errorf("the response has more than %d bytes", maxPage)
	}
	return page, nil
}

// advice says what to do about a response that is not a page.
func (f *fetcher) advice(resp *http.Response) string {
	switch status := resp.StatusCode; status {
	case http.StatusUnauthorized:
		return fmt.Sprintf("the key is not valid (status 401): pass %s", f.rights)
	case http.StatusForbidden:
		return fmt.Sprintf("the key lacks the right to read limits (status 403): pass %s", f.rights)
	case http.StatusNotFound:
		return "there is no such project or workspace for this key (status 404)"
	case http.StatusTooManyRequests:
		if after := resp.Header.Get("Retry-After"); after != "" {
			return fmt.Sprintf("too many calls (status 429): try again after %s", after)
		}
		return "too many calls (status 429): try again later"
	default:
		if status >= 500 {
			return fmt.Sprintf("the API fails (status %d): try again later", status)
		}
		return fmt.Sprintf("unexpected status %d, and the key is not sent to where a redirect leads: the limits are unknown", status)
	}
}

// some returns limits, or an error if there are none.
func (f *fetcher) some(limits map[string][]throttle.Tier) (map[string][]throttle.Tier, error) {
	if len(limits) == 0 {
		return nil, f.errorf("the response has no limits of models")
	}
	return limits, nil
}

func (f *fetcher) errorf(format string, args ...any) error {
	return fmt.Errorf("providers: limits of "+f.api+": "+format, args...)
}
