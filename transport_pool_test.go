package throttle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/throttletest"
)

// toMember is a Rewrite to the host of a member, with a key of its own in the header and the query.
func toMember(req *http.Request, member string) error {
	req.URL.Host = "m" + member + ".example"
	req.Header.Set("Api-Key", "key of "+member)
	return nil
}

// post returns a request whose body counts how often it is closed.
func post(t *testing.T, rawURL string) (*http.Request, *trBody) {
	t.Helper()
	body := &trBody{Reader: strings.NewReader("body")}
	req, err := http.NewRequestWithContext(t.Context(), "POST", rawURL, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer of the caller")
	return req, body
}

// exchange sends a request and reads the response to its end.
func exchange(t *testing.T, rt http.RoundTripper, req *http.Request) (status int, text string) {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestPoolSendsNothingWithoutTheMembersKey(t *testing.T) {
	for _, c := range []struct {
		name    string
		rewrite func(*http.Request, string) error
		err     string // empty if the call does not return
	}{
		{"nil", nil, "set Rewrite"},
		{"error", func(*http.Request, string) error { return errors.New("no such member") }, `pool member "0": Rewrite failed: no such member`},
		{"nothing set", func(*http.Request, string) error { return nil }, "set no credentials"},
		{"a URL only", func(r *http.Request, _ string) error { r.URL.Host = "m.example"; return nil }, "set no credentials"},
		{"an empty key", func(r *http.Request, _ string) error { r.Header.Set("Authorization", "Bearer "); return nil }, "they are empty"},
		{"no URL", func(r *http.Request, _ string) error { r.URL = nil; return nil }, "without a host"},
		{"panic", func(*http.Request, string) error { panic("rewrite") }, ""},
		{"Goexit", func(*http.Request, string) error { runtime.Goexit(); return nil }, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, l := poolOf(t, "2/h + 1;algo=concurrency")
			var answers []throttle.AnsweredInfo
			p.Observer = &throttle.Observer{Answered: func(_ context.Context, i throttle.AnsweredInfo) { answers = append(answers, i) }}
			base := trNewBase(nil)
			tr := &throttle.Transport{Base: base, Pool: p, Rewrite: c.rewrite}
			for range 3 {
				req, body := post(t, trURL)
				var err error
				survive(func() { _, err = tr.RoundTrip(req) })
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: %v, want %q", c.name, err, c.err)
				}
				if n := body.closed.Load(); n != 1 {
					t.Errorf("%s: the body was closed %d times", c.name, n)
				}
				if u := used(t, l[0]); !slices.Equal(u, []int64{0, 0}) {
					t.Errorf("%s: used %v", c.name, u)
				}
			}
			if len(base.sent) > 0 {
				t.Errorf("%s: %d were sent", c.name, len(base.sent))
			}
			if c.rewrite != nil {
				want := throttle.AnsweredInfo{Policy: "pool", Member: "0", Unsent: true}
				if !slices.Equal(answers, []throttle.AnsweredInfo{want, want, want}) {
					t.Errorf("%s: the Observer received %+v", c.name, answers)
				}
			}
			tr.Rewrite = toMember
			req, _ := post(t, trURL)
			exchange(t, tr, req)
		})
	}
}

// A seen is what a member received of a request.
func seen(r *http.Request) string {
	return fmt.Sprintf("%s %s %v %v", r.Host, r.URL, r.Header, r.Trailer)
}

// TestPoolKeepsCredentialsApart sends requests with canaries in all places, with an http.Client that keeps the
// cookies of the members. Each member receives its own key, and nothing of the caller or another member.
func TestPoolKeepsCredentialsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := poolOf(t, "1/s", "1/s")
		received := map[string]int{}
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			text := seen(r)
			received[r.URL.Host]++
			if strings.Contains(text, "canary") || strings.Count(text, "secret") != 2 || strings.Count(text, "secret-"+r.URL.Host) != 2 {
				t.Errorf("%s received %s", r.URL.Host, text)
			}
			if r.Header.Get("Idempotency-Key") != "once" || r.URL.Query().Get("page_token") != "p2" {
				t.Errorf("%s received no page token: %s", r.URL.Host, text)
			}
			return trAnswer(200, "Set-Cookie", "session=canary; Path=/"), nil
		})
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Jar: jar, Transport: &throttle.Transport{Base: base, Pool: p, Rewrite: func(r *http.Request, member string) error {
			r.URL.Host = "m" + member
			r.Header.Set("Authorization", "Bearer secret-m"+member)
			q := r.URL.Query()
			q.Set("key", "secret-m"+member)
			r.URL.RawQuery = q.Encode()
			return nil
		}}}
		for range 6 {
			req, _ := http.NewRequestWithContext(t.Context(), "GET", "https://canary:canary@api.example/v1?page_token=p2&key=canary&api-key=canary&access_token=canary&sig=canary", nil)
			for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie", "api-key", "x-api-key", "x-goog-api-key", "Ocp-Apim-Subscription-Key", "X-Auth-Token"} {
				req.Header[name] = []string{"canary"}
			}
			req.Header.Set("Idempotency-Key", "once")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		if received["m0"] != 3 || received["m1"] != 3 {
			t.Errorf("received %v, want 3 each", received)
		}
	})
}

// TestPoolKeepsTheCallersRequest checks that a request does not change, and that the response is to it, also if
// the Base sends a copy, as an oauth2.Transport does.
func TestPoolKeepsTheCallersRequest(t *testing.T) {
	p, _ := poolOf(t, "100/s")
	for _, timeout := range []time.Duration{0, time.Minute} {
		tr := &throttle.Transport{Pool: p, AttemptTimeout: timeout, Rewrite: toMember, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			r.Body.Close()
			resp := trAnswer(200)
			resp.Request = r.Clone(r.Context())
			return resp, nil
		})}
		req, body := post(t, "https://user@api.example/v1?key=k&n=%31")
		header, ctx, own := req.Header.Clone(), req.Context(), *req.URL
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.Request != req {
			t.Errorf("the response is to %v", resp.Request)
		}
		if fmt.Sprint(req.Header) != fmt.Sprint(header) || *req.URL != own || req.Host != "api.example" || req.Context() != ctx || req.Body != body {
			t.Errorf("the request became %+v", req)
		}
		if n := body.closed.Load(); n != 1 {
			t.Errorf("the body was closed %d times", n)
		}
	}
}

// A fleet is members of a Pool that are servers of net/http.
func fleet(t *testing.T, http2 bool, handler func(member int) http.HandlerFunc) (*throttle.Transport, *http.Client) {
	t.Helper()
	servers := make([]*httptest.Server, 2)
	for i := range servers {
		servers[i] = httptest.NewUnstartedServer(handler(i))
		servers[i].EnableHTTP2 = http2
		servers[i].StartTLS()
		t.Cleanup(servers[i].Close)
	}
	p, _ := poolOf(t, "1000/s", "1000/s")
	base := servers[0].Client().Transport.(*http.Transport)
	base.ExpectContinueTimeout = time.Minute
	t.Cleanup(base.CloseIdleConnections)
	tr := &throttle.Transport{Pool: p, Base: base, Rewrite: func(r *http.Request, member string) error {
		u, err := url.Parse(servers[member[0]-'0'].URL)
		r.URL.Scheme, r.URL.Host = u.Scheme, u.Host
		r.Header.Set("Api-Key", "key of "+member)
		return err
	}}
	return tr, &http.Client{Transport: tr}
}

// TestPoolPassesBodiesOn sends bodies of all kinds through net/http: each arrives as it was sent.
func TestPoolPassesBodiesOn(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MB
	for _, http2 := range []bool{false, true} {
		var mu sync.Mutex
		var received []string
		_, client := fleet(t, http2, func(member int) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				mu.Lock()
				received = append(received, fmt.Sprint(r.ContentLength, len(body), bytes.Equal(body, large), err, r.Trailer.Get("Digest"), r.ProtoMajor))
				mu.Unlock()
				w.Header().Set("Trailer", "X-After")
				io.WriteString(w, r.Header.Get("Api-Key"))
				w.Header().Set("X-After", "trailer")
			}
		})
		major := 1
		if http2 {
			major = 2
		}
		for _, c := range []struct {
			name string
			set  func(*http.Request)
			want string
		}{
			{"of a known length", func(r *http.Request) {}, fmt.Sprint(len(large), len(large), true, nil, "", major)},
			{"chunked", func(r *http.Request) { r.ContentLength = -1 }, fmt.Sprint(-1, len(large), true, nil, "", major)},
			{"after 100 Continue", func(r *http.Request) { r.Header.Set("Expect", "100-continue") }, fmt.Sprint(len(large), len(large), true, nil, "", major)},
			{"with a trailer", func(r *http.Request) {
				r.ContentLength, r.Trailer = -1, http.Header{"Digest": nil}
				r.Body = &trailingBody{r.Body, r.Trailer}
			}, fmt.Sprint(-1, len(large), true, nil, "of the body", major)},
		} {
			req, _ := http.NewRequestWithContext(t.Context(), "POST", "https://api.example/v1", bytes.NewReader(large))
			req.Header.Set("Authorization", "Bearer of the caller")
			c.set(req)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || !strings.HasPrefix(string(text), "key of ") || resp.Trailer.Get("X-After") != "trailer" {
				t.Errorf("%s: %q, %v, %v", c.name, text, err, resp.Trailer)
			}
			if got := received[len(received)-1]; got != c.want {
				t.Errorf("HTTP/%d, a body %s arrived as %s, want %s", major, c.name, got, c.want)
			}
		}
	}
}

// A trailingBody sets a trailer at its end.
type trailingBody struct {
	io.ReadCloser
	trailer http.Header
}

func (b *trailingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.trailer.Set("Digest", "of the body")
	}
	return n, err
}

// TestPoolStreams checks that a response arrives piece by piece.
func TestPoolStreams(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		more := make(chan string)
		_, client := fleet(t, http2, func(int) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				http.NewResponseController(w).Flush()
				for text := range more {
					io.WriteString(w, text)
					http.NewResponseController(w).Flush()
				}
			}
		})
		resp, err := client.Get("https://api.example/v1")
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"data: 1\n\n", "data: 2\n\n"} {
			more <- text
			buf := make([]byte, len(text))
			if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != text {
				t.Errorf("read %q, %v; want %q", buf, err, text)
			}
		}
		close(more)
		if _, err := resp.Body.Read(make([]byte, 1)); err != io.EOF {
			t.Error(err)
		}
		resp.Body.Close()
	}
}

// TestPoolFollowsRedirects checks that the redirects of a member lead to the Pool again, with the caller's host,
// and that another host receives the key of nobody.
func TestPoolFollowsRedirects(t *testing.T) {
	for _, c := range []struct {
		name, location string
		status         int
		sent           []string
		last           string // the URL of the last request, as the caller sees it
	}{
		{"relative", "/v2/b?n=2", 302, []string{"GET m0.example/base/v1/a body=false key=true", "GET m0.example/base/v2/b body=false key=true"}, "https://api.example/v2/b?n=2"},
		{"in the member's path", "/base/v2/b", 302, []string{"POST m0.example/base/v1/a body=true key=true", "GET m0.example/base/v2/b body=false key=true"}, "https://api.example/v2/b"},
		{"to the member's host", "https://m0.example/base/v2/b", 307, []string{"POST m0.example/base/v1/a body=true key=true", "POST m0.example/base/v2/b body=true key=true"}, "https://api.example/v2/b"},
		{"to another host", "https://files.example/x?sig=s", 302, []string{"GET m0.example/base/v1/a body=false key=true", "GET files.example/x body=false key=false"}, "https://files.example/x?sig=s"},
		{"to another host with a body", "https://files.example/x", 308, []string{"POST m0.example/base/v1/a body=true key=true", "POST files.example/x body=true key=false"}, "https://files.example/x"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, l := poolOf(t, "10/h;algo=fixed_window | guard=none")
			var sent []string
			base := roundTripper(func(r *http.Request) (*http.Response, error) {
				has := r.Body != nil && r.Body != http.NoBody
				if has {
					if b, err := io.ReadAll(r.Body); string(b) != "body" || err != nil {
						t.Errorf("%s: the body is %q, %v", c.name, b, err)
					}
					r.Body.Close()
				}
				if text := seen(r); strings.Contains(text, "canary") || !strings.Contains(r.URL.Host, "m0") && strings.Contains(text, "key of") {
					t.Errorf("%s: %s received %s", c.name, r.URL.Host, text)
				}
				sent = append(sent, fmt.Sprintf("%s %s%s body=%v key=%v", r.Method, r.URL.Host, r.URL.Path, has, r.Header.Get("Api-Key") != ""))
				if len(sent) == 1 {
					return trAnswer(c.status, "Location", c.location), nil
				}
				return trAnswer(200), nil
			})
			client := &http.Client{Transport: &throttle.Transport{Base: base, Pool: p, Rewrite: func(r *http.Request, m string) error {
				r.URL.Path = "/base" + r.URL.Path
				return toMember(r, m)
			}}}
			method, body := strings.Fields(c.sent[0])[0], io.Reader(nil)
			if method == "POST" {
				body = strings.NewReader("body")
			}
			req, _ := http.NewRequestWithContext(t.Context(), method, "https://api.example/v1/a?key=canary", body)
			req.Header.Set("X-Api-Key", "canary")
			req.Header.Set("Authorization", "Bearer canary")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := resp.Request.URL.String(); !slices.Equal(sent, c.sent) || got != c.last {
				t.Errorf("%s: sent %q to %s, want %q to %s", c.name, sent, got, c.sent, c.last)
			}
			charged := int64(2)
			if strings.Contains(c.last, "files") {
				charged = 1
			}
			if u := used(t, l[0])[0]; u != charged {
				t.Errorf("%s: %d were charged, want %d", c.name, u, charged)
			}
		})
	}
}

// TestPoolErrorsHideTheMembersKey checks the errors of a Base that is itself a client of net/http.
func TestPoolErrorsHideTheMembersKey(t *testing.T) {
	p, _ := poolOf(t, "100/s")
	cause := errors.New("no route")
	inner := &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) { return nil, cause })}
	tr := &throttle.Transport{Pool: p, Base: roundTripper(inner.Do), Rewrite: func(r *http.Request, m string) error {
		r.URL.RawQuery = "key=s3cret"
		return nil
	}}
	_, err := (&http.Client{Transport: tr}).Get("https://api.example/v1?key=canary&n=1")
	if !errors.Is(err, cause) || strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}
	tr.Rewrite = func(_ *http.Request, member string) error {
		_, err := url.Parse("https://u:s3cret/@" + member)
		return err
	}
	if _, err = (&http.Client{Transport: tr}).Get("https://api.example/v1"); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}
}

// TestPoolPausesTheRefusingMember checks that a 429, a ban and a refusal that only one member's profile knows
// concern the member that has admitted the request.
func TestPoolPausesTheRefusingMember(t *testing.T) {
	refuses := &answers.Profile{Rules: []answers.Rule{{Status: 418, Kind: answers.Limited, Wait: time.Minute}}}
	for _, c := range []struct {
		name    string
		answer  func() *http.Response
		refuses int           // the member that answers so
		pause   time.Duration // zero for none
		banned  bool
	}{
		{"429", func() *http.Response { return trAnswer(429, "Retry-After", "60") }, 0, time.Minute, false},
		{"ban", func() *http.Response { return trAnswer(429, "Retry-After", "7200") }, 1, 2 * time.Hour, true},
		{"by the profile", func() *http.Response { return trAnswer(418) }, 1, time.Minute, false},
		{"by the profile of the other", func() *http.Response { return trAnswer(418) }, 0, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, l := poolOf(t, "10/s | guard=none", "10/s | guard=none")
			refusing := fmt.Sprintf("m%d.example", c.refuses)
			tr := &throttle.Transport{Pool: p, Rewrite: toMember, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.URL.Host == refusing {
					return c.answer(), nil
				}
				return trAnswer(200), nil
			}), ProfileFor: func(r *http.Request) *answers.Profile {
				if r.URL.Host == "m1.example" {
					return refuses
				}
				return nil
			}}
			for range 2 { // one of each member
				trSend(t.Context(), tr)
			}
			for i, lim := range l {
				want := time.Duration(0)
				if i == c.refuses {
					want = c.pause
				}
				s := status(t, lim)
				if got := s.Paused + s.Closed; got != want {
					t.Errorf("%s: member %d is paused for %v, want %v", c.name, i, got, want)
				}
				if err := lim.Wait(t.Context()); errors.Is(err, throttle.ErrBanned) != (i == c.refuses && c.banned) {
					t.Errorf("%s: member %d: %v", c.name, i, err)
				}
			}
		})
	}
}

// TestPoolSettlesTheAdmittingMember checks that what a response reports changes the quota of the member that has
// admitted the request, whatever reads it, and that Cost and Settle receive the caller's request.
func TestPoolSettlesTheAdmittingMember(t *testing.T) {
	const policy = "100/h;algo=fixed_window + 1000/h;unit=tokens;algo=fixed_window;estimated=true | guard=none"
	for name, set := range map[string]func(*throttle.Transport){
		"a profile": func(tr *throttle.Transport) { tr.Profile = totalTokens },
		"a meter": func(tr *throttle.Transport) {
			tr.Meter = func(*http.Response) throttle.Meter { return new(length) }
		},
		"Settle": func(tr *throttle.Transport) {
			tr.Profile = totalTokens
			tr.Settle = func(r *http.Request) func(throttle.Cost) throttle.Cost {
				if r.URL.Host != "api.example" || r.Header.Get("Authorization") == "" {
					t.Errorf("Settle receives %v", r)
				}
				return nil
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, l := poolOf(t, policy, policy)
			tr := &throttle.Transport{Pool: p, Rewrite: toMember, Cost: func(r *http.Request) throttle.Cost {
				if r.URL.Host != "api.example" || r.Header.Get("Authorization") == "" {
					t.Errorf("Cost receives %v", r)
				}
				return throttle.Cost{"tokens": 500}
			}, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
				r.Body.Close()
				resp := trAnswer(200, "Content-Type", "application/json")
				text := fmt.Sprintf(`{"usage": {"total_tokens": 1%s}}`, r.URL.Host[1:2])
				if tr := name == "a meter"; tr {
					text = strings.Repeat("x", 10+int(r.URL.Host[1]-'0'))
				}
				resp.Body = io.NopCloser(strings.NewReader(text))
				return resp, nil
			})}
			set(tr)
			for range 2 {
				req, _ := post(t, "https://api.example/v1")
				exchange(t, tr, req)
			}
			synctest.Wait()
			for i := range l {
				if u := used(t, l[i]); !slices.Equal(u, []int64{1, 10 + int64(i)}) {
					t.Errorf("%s: member %d has used %v, want 1 and %d", name, i, u, 10+i)
				}
			}
		})
	}
}

// TestPoolBounds checks that SendBy bounds the wait for all members and for a connection, and that AttemptTimeout
// does not include the wait.
func TestPoolBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := poolOf(t, "1/10s | guard=none", "1/15s | guard=none")
		base := trNewBase(func(_ int, r *http.Request) (*http.Response, error) {
			if trace := httptrace.ContextClientTrace(r.Context()); trace != nil {
				trace.GetConn("no connection")
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		for i := range l {
			if !l[i].Allow() {
				t.Fatal("not admitted")
			}
		}
		tr := &throttle.Transport{Base: base, Pool: p, Rewrite: toMember}
		sec := func(n int) time.Time { return base.start.Add(time.Duration(n) * time.Second) }
		for _, c := range []struct {
			sendBy, end time.Time
			bound       throttle.Bound
		}{
			{sec(9), sec(0), throttle.BoundSendBy},   // no member has room by then
			{sec(12), sec(12), throttle.BoundSendBy}, // admitted at 10 s
		} {
			tr.SendBy = func(*http.Request) time.Time { return c.sendBy }
			req, body := post(t, trURL)
			_, err := tr.RoundTrip(req)
			var w *throttle.WaitError
			if !errors.As(err, &w) || w.Err != throttle.ErrDeadline || w.Bound != c.bound || !time.Now().Equal(c.end) || body.closed.Load() != 1 {
				t.Errorf("%v at %v, want ErrDeadline at %v", err, time.Since(base.start), c.end)
			}
		}
		tr.SendBy, tr.AttemptTimeout = nil, time.Second
		req, _ := post(t, trURL)
		if _, err := tr.RoundTrip(req); err != context.DeadlineExceeded || !time.Now().Equal(sec(16)) {
			t.Errorf("%v at %v, want the timeout at 16s", err, time.Since(base.start))
		}
		if got := base.times(); !slices.Equal(got, []time.Duration{10 * time.Second, 15 * time.Second}) {
			t.Errorf("sent at %v", got)
		}
	})
}

// TestPoolLearnsTheGuardOfTheMembersHost checks that a connection to this host counts for a member on this host
// only, whatever the caller's host is: as for a request without a Pool to the member.
func TestPoolLearnsTheGuardOfTheMembersHost(t *testing.T) {
	guard := func(host string, pooled bool) (learned time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			p, l := poolOf(t, "100/s | guard=auto")
			api := throttletest.New()
			api.Hold = func() time.Duration { return 2*time.Second - 3*ms }
			tr := &throttle.Transport{Limiter: l[0], Base: path{api: api, dial: 3 * ms, conn: proxied{}}}
			client, to := &http.Client{Transport: tr}, host
			if pooled {
				to = map[string]string{"localhost": "api.test", "api.test": "localhost"}[host]
				tr.Pool, tr.Rewrite = p, func(r *http.Request, _ string) error {
					r.URL.Host = host
					return nil
				}
			}
			for range 40 {
				resp, err := client.Get("http://" + to)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
			}
			time.Sleep(3 * time.Second)
			if err := l[0].Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			learned = (status(t, l[0]).Tiers[0].ResetAfter - time.Second).Round(ms)
		})
		return learned
	}
	near, far := guard("localhost", false), guard("api.test", false)
	if pooled := guard("localhost", true); near == far || pooled != near {
		t.Errorf("the guard of a member on this host is %v, want %v", pooled, near)
	}
	if pooled := guard("api.test", true); pooled != far {
		t.Errorf("the guard of a member behind a proxy is %v, want %v", pooled, far)
	}
}
