package azurestand

import (
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Counts are the requests of one deployment.
type Counts struct {
	Accepted     int // answered with a completion
	Refused      int // beyond a limit
	Unauthorized int // without the right credentials
	NotFound     int // for another path, or a deployment that doesn't exist
	Invalid      int // with a body that isn't a good one
	PromptTokens int // of accepted requests
	CachedTokens int // of those
}

// CachedShare returns the share of the prompt tokens of accepted requests that were cached, from 0 to
// 1. It is 0 if there were none.
func (c Counts) CachedShare() float64 {
	return float64(c.CachedTokens) / float64(max(1, c.PromptTokens))
}

// A Request is one that the resource received.
type Request struct {
	At         time.Time
	Deployment string // that it named, whether it exists or not
	Status     int    // of the answer
	Method     string
	URL        string
	Host       string
	Header     http.Header
	Trailer    http.Header
	Body       string
}

// A Credential is a value that came where credentials come.
type Credential struct {
	Where string // "header Api-Key", "query key", "cookie session", "userinfo"
	Value string // without "Bearer "
}

// counts returns the counts of a deployment, or those of a name that no deployment has.
func (s *Server) counts(name string) *Counts {
	if d := s.deployments[name]; d != nil {
		return &d.counts
	}
	if s.strangers[name] == nil {
		s.strangers[name] = &Counts{}
	}
	return s.strangers[name]
}

// Counts returns the counts of a deployment. Requests whose path names none, or whose /openai/v1 body
// names none, are counted under "".
func (s *Server) Counts(deployment string) Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.counts(deployment)
}

// Requests returns the requests received, in order.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Credentials returns each credential that ever arrived, once, in the order of arrival: the known
// headers of keys and tokens, cookies, keys in the query and in the URL's userinfo. They are recorded
// whether Azure would look at them or not.
func (s *Server) Credentials() []Credential {
	var all []Credential
	for _, r := range s.Requests() {
		for _, c := range r.credentials() {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all
}

// Carriers returns where a secret arrived: in URLs, hosts, headers, trailers and bodies, as it is,
// encoded for a URL, or in base64. It names a place for each request that carried it.
func (s *Server) Carriers(secret string) []string {
	var all []string
	for _, r := range s.Requests() {
		all = append(all, r.carriers(secret)...)
	}
	return all
}

func record(r *http.Request, body []byte, deployment string, status int, now time.Time) Request {
	return Request{
		At: now, Deployment: deployment, Status: status, Method: r.Method, URL: r.URL.String(), Host: r.Host,
		Header: r.Header.Clone(), Trailer: r.Trailer.Clone(), Body: string(body),
	}
}

// The places of credentials of Azure and of other APIs, by parts of their names in lower case.
var secretive = []string{"key", "token", "auth", "secret", "password", "signature", "credential"}

func keepsSecrets(name string) bool {
	name = strings.ToLower(name)
	return name != "idempotency-key" && slices.ContainsFunc(secretive, func(part string) bool {
		return strings.Contains(name, part)
	})
}

func (r *Request) credentials() []Credential {
	var all []Credential
	for _, header := range []http.Header{r.Header, r.Trailer} {
		for _, name := range names(header) {
			if !keepsSecrets(name) {
				continue
			}
			for _, v := range header[name] {
				if scheme, token, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "Bearer") {
					v = token
				}
				all = append(all, Credential{"header " + name, v})
			}
		}
	}
	for _, c := range (&http.Request{Header: r.Header}).Cookies() {
		all = append(all, Credential{"cookie " + c.Name, c.Value})
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return all
	}
	if u.User != nil {
		all = append(all, Credential{"userinfo", u.User.String()})
	}
	query := u.Query()
	for _, name := range names(query) {
		if keepsSecrets(name) {
			for _, v := range query[name] {
				all = append(all, Credential{"query " + name, v})
			}
		}
	}
	return all
}

// names returns the names of headers or parameters in order.
func names[V any](values map[string]V) []string { return slices.Sorted(maps.Keys(values)) }

func (r *Request) carriers(secret string) []string {
	forms := []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret),
		base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)),
	}
	var all []string
	look := func(where, value string) {
		if slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(value, form) }) {
			all = append(all, where)
		}
	}
	look("URL", r.URL)
	look("host", r.Host)
	for _, header := range []http.Header{r.Header, r.Trailer} {
		for _, name := range names(header) {
			look("header "+name, name+": "+strings.Join(header[name], "\n"))
		}
	}
	for _, v := range r.Header.Values("Authorization") {
		if _, encoded, ok := strings.Cut(v, " "); ok {
			plain, _ := base64.StdEncoding.DecodeString(encoded) // what is no base64 decodes to a part
			look("header Authorization in base64", string(plain))
		}
	}
	look("body", r.Body)
	return all
}
