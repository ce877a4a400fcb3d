package credentials

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestNamesOfFields(t *testing.T) {
	for _, name := range []string{
		"Authorization", "Proxy-Authorization", "X-Forwarded-Authorization", "Cookie", "Cookie2", "Auth",
		"api-key", "x-api-key", "X-ApiKey", "apikey", "xi-api-key", "x-goog-api-key", "Ocp-Apim-Subscription-Key", "X-Functions-Key", "DD-API-KEY", "DD-APPLICATION-KEY",
		"X-RapidAPI-Key", "X-Master-Key", "X-Auth-Key", "X-Auth-User-Service-Key", "X-Insert-Key", "user-key", "key",
		"X-Auth-Token", "X-Access-Token", "X-Shopify-Access-Token", "PRIVATE-TOKEN", "X-Vault-Token", "X-Subscription-Token", "X-Amz-Security-Token", "X-Amzn-Oidc-Accesstoken", "X-Amzn-Oidc-Data",
		"CB-ACCESS-KEY", "CB-ACCESS-SIGN", "CB-ACCESS-PASSPHRASE", "API-Sign", "Authent", "X-MBX-APIKEY", "X-BAPI-SIGN", "OK-ACCESS-SIGN",
		"Signature", "Signature-Input", "X-Hasura-Admin-Secret", "CF-Access-Client-Secret", "Cf-Access-Jwt-Assertion", "DPoP", "X-Honeycomb-Team", "X_Api_Key",
	} {
		if !IsName(name) {
			t.Errorf("%s has credentials, and IsName is false", name)
		}
	}
	for _, name := range []string{
		"Idempotency-Key", "X-Idempotency-Key", "X-Idempotency-Token", "Surrogate-Key", "Partition-Key", "Sec-WebSocket-Key", "X-Goog-Encryption-Key", "X-Amz-Server-Side-Encryption-Customer-Key",
		"X-Max-Tokens", "X-Max-Token", "X-Token-Limit", "X-Token-Count", "X-Page-Token", "Next-Token", "X-Continuation-Token", "X-Ms-Continuationtoken", "Lock-Token",
		"Anthropic-Version", "Anthropic-Beta", "OpenAI-Organization", "OpenAI-Beta", "X-Goog-Api-Client", "X-Client-Request-Id", "Mcp-Session-Id", "User-Agent", "Accept", "Content-Type", "Expect", "X-Design", "X-Keyword", "Traceparent", "",
	} {
		if IsName(name) {
			t.Errorf("%s has no credentials, and IsName is true", name)
		}
	}
}

func TestNamesOfParameters(t *testing.T) {
	for _, name := range []string{
		"key", "KEY", "api-key", "api_key", "apiKey", "apikey", "x-api-key", "access_token", "accessToken", "token", "auth", "sig", "Signature", "subscription-key", "private_token", "client_secret", "X-Amz-Signature", "X-Amz-Credential", "X-Amz-Security-Token", "AWSAccessKeyId", "X-Goog-Signature", "oauth_token", "hapikey",
	} {
		if !IsParameter(name) {
			t.Errorf("%s has credentials, and IsParameter is false", name)
		}
	}
	for _, name := range []string{
		"page_token", "pageToken", "next_token", "nextToken", "continuation-token", "continuationToken", "ContinuationToken", "syncToken", "max_tokens", "sort_key", "partition-key", "idempotency_key", "code", "client_id", "api-version", "cursor", "sign", "keys", "tokens", "keyword", "",
	} {
		if IsParameter(name) {
			t.Errorf("%s has no credentials, and IsParameter is true", name)
		}
	}
}

func request(t *testing.T, rawURL string, fields ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequest("POST", rawURL, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header[fields[i]] = append(req.Header[fields[i]], fields[i+1])
	}
	return req
}

// dump returns all that a server could read of a request.
func dump(req *http.Request) string {
	return fmt.Sprint(req.URL, req.URL.Opaque, req.URL.Fragment, req.Host, req.Header, req.Trailer, req.RequestURI)
}

func TestRewriteReceivesNoCredentials(t *testing.T) {
	const canary = "s3cret"
	for _, field := range []string{
		"Authorization", "Proxy-Authorization", "Cookie", "api-key", "Api-Key", "x-api-key", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "X-Auth-Token", "authorization", "Auth",
	} {
		checkRewrite(t, request(t, "https://api.example/v1/chat?n=1", field, "x="+canary, "Idempotency-Key", "k", "Anthropic-Version", "v"), "n=1", field != "Cookie")
	}
	for query, left := range map[string]string{
		"key=" + canary:                              "",
		"api-key=" + canary + "&n=1":                 "n=1",
		"n=%31&access_token=" + canary + "&m":        "n=%31&m",
		"sig=" + canary + "&sig=" + canary:           "",
		"%6Bey=" + canary + "&page_token=p":          "page_token=p",
		"n=1;api_key=" + canary + "&next_token=t%2F": "next_token=t%2F",
		"%zz=" + canary + "&&n=1":                    "&n=1",
		"+key=" + canary:                             "",
	} {
		checkRewrite(t, request(t, "https://api.example/v1/chat?"+query), left, true)
	}
	checkRewrite(t, request(t, "https://user:"+canary+"@api.example/v1/chat?n=1"), "n=1", true)
	// An http.Client sets the Referer of a redirect.
	checkRewrite(t, request(t, "https://api.example/v1/chat?n=1", "Referer", "https://api.example/old?api_key="+canary), "n=1", false)
}

// checkRewrite checks that rewrite receives nothing secret of a request, and that the request does not change.
func checkRewrite(t *testing.T, req *http.Request, query string, mustSet bool) {
	t.Helper()
	before := dump(req)
	rewrite := func(target *http.Request) error {
		if s := dump(target); strings.Contains(s, "s3cret") {
			t.Errorf("Rewrite receives %s of %s", s, before)
		}
		if target.URL.RawQuery != query || target.URL.Path != "/v1/chat" {
			t.Errorf("Rewrite receives %s of %s, want the query %s", target.URL, before, query)
		}
		if req.Header.Get("Idempotency-Key") != target.Header.Get("Idempotency-Key") || req.Header.Get("Anthropic-Version") != target.Header.Get("Anthropic-Version") {
			t.Errorf("Rewrite receives %v", target.Header)
		}
		target.URL.Host, target.URL.Path = "member.example", "/x"
		target.Header.Set("X-Changed", "yes")
		return nil
	}
	if _, err := Replace(req, rewrite); (err != nil) != mustSet {
		t.Errorf("%s: error %v, want one: %v", before, err, mustSet)
	}
	with := func(target *http.Request) error {
		target.Header.Set("Api-Key", "member")
		return rewrite(target)
	}
	target, err := Replace(req, with)
	if err != nil || target.URL.Host != "member.example" || target.Host != "" || target.Body != req.Body || target.ContentLength != 4 {
		t.Errorf("%s: %v, %+v", before, err, target)
	}
	if after := dump(req); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

func TestRewriteThatSetsNoCredentialsFails(t *testing.T) {
	set := func(name, value string) func(*http.Request) error {
		return func(r *http.Request) error { r.Header.Set(name, value); return nil }
	}
	query := func(q string) func(*http.Request) error {
		return func(r *http.Request) error { r.URL.RawQuery = q; return nil }
	}
	user := func(u *url.Userinfo) func(*http.Request) error {
		return func(r *http.Request) error { r.URL.User = u; return nil }
	}
	plain, keyed := "https://api.example/v1", "https://api.example/v1?key=k"
	for _, c := range []struct {
		name    string
		url     string
		rewrite func(*http.Request) error
		err     string // empty for none
	}{
		{"nothing", keyed, func(*http.Request) error { return nil }, "set no credentials"},
		{"nothing, and a signer follows", plain, func(*http.Request) error { return nil }, ""},
		{"an account alone", keyed, set("OpenAI-Organization", "org"), "set no credentials"},
		{"no key behind Bearer", plain, set("Authorization", "Bearer "), "credentials of Authorization"},
		{"no key behind Bearer, and spaces", keyed, set("Authorization", " Bearer \t"), "credentials of Authorization"},
		{"no key behind another scheme", plain, set("Authorization", "Token"), "credentials of Authorization"},
		{"no user and no password", plain, func(r *http.Request) error { r.SetBasicAuth("", ""); return nil }, "credentials of Authorization"},
		{"an empty key", plain, set("Api-Key", ""), "credentials of Api-Key"},
		{"an empty cookie", plain, set("Cookie", "session=; other="), "credentials of Cookie"},
		{"an empty parameter", plain, query("n=1&api-key="), "credentials of api-key"},
		{"an empty user", plain, user(url.UserPassword("", "")), "credentials of the URL's user"},
		{"a key", keyed, set("Authorization", "Bearer k"), ""},
		{"a key without a scheme", keyed, set("Authorization", "k"), ""},
		{"a password", keyed, func(r *http.Request) error { r.SetBasicAuth("key", ""); return nil }, ""},
		{"a cookie", keyed, set("Cookie", "session=k"), ""},
		{"a parameter", keyed, query("key=k"), ""},
		{"a user", keyed, user(url.User("k")), ""},
		{"no URL", plain, func(r *http.Request) error { r.URL = nil; return nil }, "without a host"},
		{"no host", plain, func(r *http.Request) error { r.URL.Host = ""; return nil }, "without a host"},
		{"an error", plain, func(*http.Request) error { return errors.New("no such member") }, "failed: no such member"},
	} {
		target, err := Replace(request(t, c.url), c.rewrite)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || target != nil) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
	}
}

// TestUserOfTheMembersURL checks that it is sent, which only an http.Client does by itself.
func TestUserOfTheMembersURL(t *testing.T) {
	for set, want := range map[string][2]string{"": {"member", "s3cret"}, "Basic bzpw": {"o", "p"}} {
		target, err := Replace(request(t, "https://api.example/v1", "Authorization", "Bearer c"), func(r *http.Request) error {
			r.URL.User = url.UserPassword("member", "s3cret")
			if set != "" {
				r.Header.Set("Authorization", set)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if user, password, _ := target.BasicAuth(); user != want[0] || password != want[1] || target.URL.User != nil {
			t.Errorf("the member receives %s %v", target.URL, target.Header)
		}
	}
}

func TestCookiesOfAJarNeedNoCredentials(t *testing.T) {
	target, err := Replace(request(t, "https://api.example/v1", "Cookie", "__cf_bm=x", "OpenAI-Organization", "org"), func(*http.Request) error { return nil })
	if err != nil || len(target.Header) > 0 {
		t.Errorf("%v, %v", err, target)
	}
}

func TestRequestsThatCannotBeReplaced(t *testing.T) {
	called := func(*http.Request) error { t.Error("Rewrite is called"); return nil }
	trailing := request(t, "https://api.example/v1")
	trailing.Trailer = http.Header{"X-Api-Key": nil}
	for _, req := range []*http.Request{{Header: http.Header{}}, trailing} {
		if _, err := Replace(req, called); err == nil || !strings.Contains(err.Error(), "is not called") {
			t.Errorf("%v", err)
		}
	}
}

func TestTrailersOfTheBodyReachTheTarget(t *testing.T) {
	req := request(t, "https://api.example/v1")
	req.Trailer = http.Header{"Digest": nil}
	req.Body = io.NopCloser(bytes.NewReader(nil))
	target, err := Replace(req, func(*http.Request) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	req.Trailer.Set("Digest", "d")
	if target.Trailer.Get("Digest") != "d" {
		t.Errorf("the target has the trailer %v", target.Trailer)
	}
}

func TestErrorsHideTheURL(t *testing.T) {
	cause := errors.New("refused")
	target := request(t, "https://member.example")
	invalid := "https://user:s3cret/x@m.example/v1"
	for _, bad := range []string{"https://m.example/v1?n=1&key=s3cret", "https://user:s3cret@m.example/v1", invalid} {
		err := Hide(target, &url.Error{Op: "Get", URL: bad, Err: cause})
		if s := err.Error(); strings.Contains(s, "s3cret") {
			t.Error(s)
		}
	}
	if _, err := url.Parse(strings.Clone(invalid)); strings.Contains(Hide(target, err).Error(), "s3cret") {
		t.Error(Hide(target, err))
	}
	err := Hide(target, &url.Error{Op: "Get", URL: "https://m.example/v1?n=1&key=k", Err: cause})
	if !errors.Is(err, cause) || err.Error() != `Get "https://m.example/v1?n=1": refused` {
		t.Error(err)
	}
	if Hide(target, cause) != cause || Hide(nil, err) != err {
		t.Error("another error changes")
	}
}

func TestRedirectsLeadBack(t *testing.T) {
	for _, c := range []struct{ caller, member, location, want string }{
		{"https://api.example/v1/chat", "https://m.example/v1/chat?key=k", "/v1/new?n=1", "https://api.example/v1/new?n=1"},
		{"https://api.example/v1/chat", "https://m.example/v1/chat", "https://m.example/v1/new#f", "https://api.example/v1/new#f"},
		{"https://api.example/v1/chat", "https://m.example/v1/chat", "https://M.example:443/v1/new", "https://api.example/v1/new"},
		{"https://api.example/v1/chat", "https://m.example/v1/chat?key=k", "new?key=k&n=1", "https://api.example/v1/new?n=1"},
		{"http://api.example/chat", "https://m.example/base/v1/chat", "/base/v1/new", "http://api.example/new"},
		{"http://api.example/chat", "https://m.example/base/v1/chat", "/login", "http://api.example/login"},
		{"http://api.example", "https://m.example/base", "/base/new", "http://api.example/new"},
		{"https://api.example/v1/chat", "https://m.example/chat", "/new", "https://api.example/v1/new"},
		{"https://api.example/openai/deployments/a/chat", "https://m.example/openai/deployments/b/chat", "/openai/deployments/b/new%2Fx", "https://api.example/openai/deployments/a/new%2Fx"},
		{"http://m.example/v1", "http://m.example/v1", "https://m.example/v1", "https://m.example/v1"},
		// A path must not become a host.
		{"https://api.example/chat", "https://m.example/base/chat", "/base//evil.example/x", "https://api.example//evil.example/x"},
		// Another host gets nothing of the member.
		{"https://api.example/v1/chat", "https://m.example/v1/chat?key=k", "https://files.example/x?key=k&n=%7e", "https://files.example/x?n=%7e"},
		{"https://api.example/v1/chat", "https://m.example/v1/chat?key=k", "https://files.example/x?sig=s&se=%7e", "https://files.example/x?sig=s&se=%7e"},
		{"https://api.example/v1/chat", "https://m.example/v1/chat", "//files.example/x", "//files.example/x"},
		{"https://api.example/v1/chat", "https://m.example/v1/chat", "http://[", "http://["},
		{"https://api.example/v1/chat", "https://m.example:8443/v1/chat", "https://m.example/x", "https://m.example/x"},
	} {
		req, sent := request(t, c.caller), request(t, c.member)
		header := http.Header{"Location": {c.location}}
		resp := &http.Response{StatusCode: 307, Header: header, Request: sent}
		LeadBack(resp, sent, req)
		if got := resp.Header.Get("Location"); got != c.want || resp.Request != req {
			t.Errorf("%s at %s of %s leads to %s, want %s", c.location, c.member, c.caller, got, c.want)
		}
		if header.Get("Location") != c.location {
			t.Error("the header of the Base has changed")
		}
		created := &http.Response{StatusCode: 201, Header: header}
		if LeadBack(created, sent, req); created.Header.Get("Location") != c.location {
			t.Errorf("a 201 has the Location %s", created.Header.Get("Location"))
		}
	}
}

func TestRedirectsThatLeadAway(t *testing.T) {
	first := request(t, "https://api.example/v1")
	next := func(after *http.Request, to string, fields ...string) *http.Request {
		req := request(t, to, fields...)
		req.Response = &http.Response{Request: after}
		return req
	}
	away := next(first, "https://files.example/x?sig=s", "X-Api-Key", "s3cret", "Cookie", "c=s3cret", "Referer", "https://api.example/v1?key=s3cret", "Accept", "*/*")
	for _, c := range []struct {
		req  *http.Request
		away bool
	}{
		{first, false},
		{next(first, "https://API.example:443/v2"), false},
		{next(first, "http://api.example/v2"), false},
		{next(first, "https://api.example:8443/v2"), true},
		{away, true},
		{next(away, "https://files.example/y"), true},
		{next(away, "https://api.example/v1"), false},
		{&http.Request{Response: &http.Response{}}, false},
	} {
		if got := LeadsAway(c.req); got != c.away {
			t.Errorf("%v leads away: %v", c.req.URL, got)
		}
	}
	before := dump(away)
	bare := WithoutFields(away)
	if s := dump(bare); strings.Contains(s, "s3cret") || bare.URL.RawQuery != "sig=s" || bare.Header.Get("Accept") == "" {
		t.Error(s)
	}
	if dump(away) != before {
		t.Error("the caller's request has changed")
	}
}

// FuzzParameters checks that a server reads no credentials from a query that has lost them, whatever it separates
// pairs by, and that another pair stays as it was written.
func FuzzParameters(f *testing.F) {
	f.Add("n=1&key=k;api_key=k&page_token=p")
	f.Add("%6Bey=k&%zz&&=&;token;=&a+b=%2F")
	f.Fuzz(func(t *testing.T, query string) {
		u := &url.URL{RawQuery: query + "&page_token=%7e"}
		had := removeParameters(u)
		for _, separators := range []string{u.RawQuery, strings.ReplaceAll(u.RawQuery, ";", "&")} {
			values, _ := url.ParseQuery(separators)
			for name := range values {
				if IsParameter(name) {
					t.Errorf("%q has become %q", query, u.RawQuery)
				}
			}
		}
		if !strings.HasSuffix("&"+u.RawQuery, "&page_token=%7e") {
			t.Errorf("%q has become %q", query, u.RawQuery)
		}
		if again := *u; removeParameters(&again) || again != *u || !had && u.RawQuery != query+"&page_token=%7e" {
			t.Errorf("%q has become %q and then %q", query, u.RawQuery, again.RawQuery)
		}
	})
}
