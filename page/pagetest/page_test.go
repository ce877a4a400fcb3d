package pagetest

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"
)

// The page works wherever a program puts it.
func TestMounts(t *testing.T) {
	t.Parallel()
	strip := func(prefix string, h http.Handler) http.Handler { return http.StripPrefix(prefix, h) }
	for name, test := range map[string]struct {
		open  string // what the viewer opens
		base  string // what all requests must begin with
		mount func(t *testing.T, s http.Handler) http.Handler
	}{
		"root":  {"/", "/", func(_ *testing.T, s http.Handler) http.Handler { return s }},
		"query": {"/?from=mail#top", "/", func(_ *testing.T, s http.Handler) http.Handler { return s }},
		"prefix": {"/a/b/", "/a/b/", func(_ *testing.T, s http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/a/b/", s)
			return mux
		}},
		"prefix without a slash": {"/a/b", "/a/b", func(_ *testing.T, s http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/a/b/", s)
			return mux
		}},
		"stripped": {"/a/b/", "/a/b/", func(_ *testing.T, s http.Handler) http.Handler { return strip("/a/b", s) }},
		"stripped with its slash": {"/a/b/", "/a/b/", func(_ *testing.T, s http.Handler) http.Handler {
			return strip("/a/b/", s)
		}},
		"stripped, without a slash": {"/a/b", "/a/b", func(_ *testing.T, s http.Handler) http.Handler {
			return strip("/a/b", s)
		}},
		"escaped": {"/a%20b/%C3%BC/", "/a%20b/%C3%BC/", func(_ *testing.T, s http.Handler) http.Handler {
			return strip("/a b/ü", s)
		}},
		"proxy":                 {"/tools/throttle/", "/tools/throttle/", behindProxy},
		"proxy without a slash": {"/tools/throttle", "/tools/throttle", behindProxy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			l := s.limiter("api", "1000/h")
			s.send(l, 3)
			host := serve(t, test.mount(t, s))
			w := open(t, host+test.open)
			w.awaits("1000/h", 3, 1000)
			s.send(l, 4)
			w.awaits("1000/h", 7, 1000)
			w.staysUnder(host + test.base)
			if bad := s.refusals(); bad != nil {
				t.Errorf("the page requests what is not there: %v", bad)
			}
		})
	}
}

// behindProxy puts a proxy before the page that removes the first part of paths.
func behindProxy(t *testing.T, s http.Handler) http.Handler {
	upstream, err := url.Parse(serve(t, s))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/tools/throttle/", http.StripPrefix("/tools/throttle", &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
	}))
	return mux
}
