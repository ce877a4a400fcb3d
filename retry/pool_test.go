package retry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/retry"
)

// A pooled base answers for each member by a script of lines as those of a provider. The last line repeats. It
// records each request as its member, body and time.
type pooled struct {
	start   time.Time
	scripts map[string][]string
	sent    []string
}

func (p *pooled) RoundTrip(req *http.Request) (*http.Response, error) {
	body := ""
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		body = string(b)
		req.Body.Close()
	}
	p.sent = append(p.sent, fmt.Sprintf("%s%s %v", req.URL.Host, body, time.Since(p.start)))
	script := p.scripts[req.URL.Host]
	if len(script) > 1 {
		p.scripts[req.URL.Host] = script[1:]
	}
	status, value, _ := strings.Cut(script[0], " ")
	if status == "reset" {
		return nil, io.ErrUnexpectedEOF
	}
	resp := &http.Response{Header: http.Header{}, Body: io.NopCloser(strings.NewReader("of " + req.URL.Host)), Request: req}
	fmt.Sscan(status, &resp.StatusCode)
	switch {
	case resp.StatusCode/100 == 3:
		resp.Header.Set("Location", value)
	case value != "":
		resp.Header.Set("Retry-After", value)
	}
	return resp, nil
}

// poolOver returns a Transport to the members of the base. Each of them has room for all requests of a test.
func poolOver(t *testing.T, base *pooled, names ...string) *throttle.Transport {
	t.Helper()
	var members []throttle.Member
	for i, name := range names {
		l, err := throttle.New(throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(1000)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, throttle.Member{Name: name, Limiter: l, Rank: i})
	}
	p, err := throttle.NewPool(members...)
	if err != nil {
		t.Fatal(err)
	}
	return &throttle.Transport{Base: base, Pool: p, Rewrite: func(req *http.Request, member string) error {
		req.URL.Host = member
		return nil
	}}
}

func TestRefusalsGoToAnotherMember(t *testing.T) {
	for _, c := range []struct {
		name    string
		members string // their scripts, by commas
		method  string
		max     int
		within  time.Duration
		sent    []string
		status  int // 0 for an error
		text    string
	}{
		{name: "a refusal", members: "429 30,200", sent: []string{"a+body 0s", "b+body 0s"}, status: 200, text: "of b"},
		{name: "a refusal that names no time", members: "429,200", sent: []string{"a+body 0s", "b+body 0s"}, status: 200, text: "of b"},
		{name: "503 with a time", members: "503 30,200", sent: []string{"a+body 0s", "b+body 0s"}, status: 200, text: "of b"},
		{name: "a ban", members: "429 7200,200", sent: []string{"a+body 0s", "b+body 0s"}, status: 200, text: "of b"},
		{name: "two refusals", members: "429 30,429 7200,200", sent: []string{"a+body 0s", "b+body 0s", "c+body 0s"}, status: 200, text: "of c"},
		{name: "a refusal by all", members: "429 30;200,429 20;201", sent: []string{"a+body 0s", "b+body 0s", "b+body 20s"}, status: 201, text: "of b"},
		{name: "a refusal by the only one", members: "429 30;200", sent: []string{"a+body 0s", "a+body 30s"}, status: 200, text: "of a"},
		{name: "a refusal beyond the deadline", members: "429 30,429 20", within: 10 * time.Second, sent: []string{"a+body 0s", "b+body 0s"}, status: 429, text: "of b"},
		{name: "a ban by all", members: "429 7200,429 7200", sent: []string{"a+body 0s", "b+body 0s"}, status: 429, text: "of b"},
		{name: "a ban by the only one", members: "429 7200", sent: []string{"a+body 0s"}, status: 429, text: "of a"},
		{name: "as often as Max", members: "429 30,429 30,200", max: 1, sent: []string{"a+body 0s", "b+body 0s"}, status: 429, text: "of b"},
		{name: "never", members: "429 30,200", max: -1, sent: []string{"a+body 0s"}, status: 429, text: "of a"},
		{name: "a failure of a POST", members: "502,200", sent: []string{"a+body 0s"}, status: 502, text: "of a"},
		{name: "a failure of a PUT", members: "502;200,429 30", method: "PUT", sent: []string{"a+body 0s", "a+body 1s"}, status: 200, text: "of a"},
		{name: "a body that was written", members: "reset,200", sent: []string{"a+body 0s"}},
	} {
		bubble(t, c.name, func(t *testing.T) {
			base := &pooled{start: time.Now(), scripts: map[string][]string{}}
			var names []string
			for i, script := range strings.Split(c.members, ",") {
				names = append(names, string(rune('a'+i)))
				base.scripts[names[i]] = strings.Split(script, ";")
			}
			ctx := t.Context()
			if c.within > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.within)
				defer cancel()
			}
			method := c.method
			if method == "" {
				method = "POST"
			}
			req := request(t, method, strings.NewReader("+body")).WithContext(ctx)
			resp, err := retry.Config{Transport: poolOver(t, base, names...), Max: c.max}.Client().Do(req)
			status, text := finish(t, resp)
			if status != c.status || text != c.text || (err != nil) != (c.status == 0) {
				t.Errorf("status %d %q, error %v; want %d %q", status, text, err, c.status, c.text)
			}
			if resp != nil && resp.Request.URL.String() != target {
				t.Errorf("the response is to %s", resp.Request.URL)
			}
			if !slices.Equal(base.sent, c.sent) {
				t.Errorf("sent %q, want %q", base.sent, c.sent)
			}
		})
	}
}

// TestRefusalsAndSpill checks that a request waits for the pause of the preferred member if that is shorter than
// Pool.Spill, and goes to another at once if it is longer.
func TestRefusalsAndSpill(t *testing.T) {
	for spill, want := range map[time.Duration]string{10 * time.Second: "b 0s", time.Minute: "a 30s"} {
		bubble(t, spill.String(), func(t *testing.T) {
			base := &pooled{start: time.Now(), scripts: map[string][]string{"a": {"429 30", "200"}, "b": {"200"}}}
			tr := poolOver(t, base, "a", "b")
			tr.Pool.Spill = spill
			resp, err := retry.NewClient(tr).Do(request(t, "POST", nil))
			if err != nil {
				t.Fatal(err)
			}
			if status, _ := finish(t, resp); status != 200 || !slices.Equal(base.sent, []string{"a 0s", want}) {
				t.Errorf("status %d, sent %q, want the last to be %s", status, base.sent, want)
			}
		})
	}
}

// TestRefusalsAfterARedirectAway checks that no member is asked to repeat what another host has refused, and that the
// client waits as long as that asks for.
func TestRefusalsAfterARedirectAway(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		base := &pooled{start: time.Now(), scripts: map[string][]string{"a": {"302 http://files.example/x"}, "files.example": {"429 5", "200"}}}
		resp, err := retry.NewClient(poolOver(t, base, "a")).Do(request(t, "GET", nil))
		if err != nil {
			t.Fatal(err)
		}
		status, text := finish(t, resp)
		if want := []string{"a 0s", "files.example 0s", "files.example 5s"}; status != 200 || text != "of files.example" || !slices.Equal(base.sent, want) {
			t.Errorf("%d %q, sent %q, want %q", status, text, base.sent, want)
		}
	})
}

// TestRefusalsOfRewriteAreFinal checks that a request that Rewrite does not direct is not sent again.
func TestRefusalsOfRewriteAreFinal(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		base := &pooled{start: time.Now()}
		tr, calls, failed := poolOver(t, base, "a", "b"), 0, errors.New("no key")
		tr.Rewrite = func(*http.Request, string) error { calls++; return failed }
		body := &bodies{text: "+body"}
		req := request(t, "PUT", nil)
		req.GetBody, req.ContentLength = body.open, 5
		req.Body, _ = body.open()
		if _, err := retry.NewClient(tr).Do(req); !errors.Is(err, failed) || calls != 1 || len(base.sent) > 0 || time.Since(base.start) > 0 {
			t.Errorf("%v after %d calls and %v", err, calls, time.Since(base.start))
		}
		if !slices.Equal(body.closed, []int{1}) {
			t.Errorf("the bodies were closed %v times", body.closed)
		}
	})
}
