package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
)

// TestSecretsInHeaders checks that secrets are removed from the headers of informational responses and of
// the response, and from its trailers, and that the links of informational responses lead to the route,
// also if the request asks for an upgrade.
func TestSecretsInHeaders(t *testing.T) {
	const secret = "canary-canary"
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", secret)
		w.Header().Set("Link", "<http://"+r.Host+"/x?key="+secret+">; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Trailer", "X-Trailer")
		}
		_, _ = io.WriteString(w, "ok")
		w.Header().Set("X-Trailer", secret)
	}, proxy.Options{}, func(b *bench) proxy.Table {
		r := b.route(plenty)
		r.Secrets = []string{secret}
		return proxy.Table{Routes: []proxy.Route{r}}
	})
	for _, upgrade := range []bool{false, true} {
		var hints []string
		trace := &httptrace.ClientTrace{Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprint(status, h["Link"], h["X-Echo"]))
			return nil
		}}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", "http://"+b.addr+"/api/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		if upgrade {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "echo")
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		want := "103 [<http://" + b.addr + "/api/x?key=[secret]>; rel=preload] [[secret]]"
		if len(hints) != 1 || hints[0] != want {
			t.Errorf("upgrade %v: the hints are %q, want %q", upgrade, hints, want)
		}
		if text := fmt.Sprint(resp.Header, resp.Trailer); strings.Contains(text, "canary") || upgrade == strings.Contains(text, "X-Trailer:[[secret]]") {
			t.Errorf("upgrade %v: the client receives %s", upgrade, text)
		}
	}
}
