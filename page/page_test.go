package page_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/apithrottle/throttle/internal/leaktest"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// TestPaths checks what each path serves, and its headers.
func TestPaths(t *testing.T) {
	h := page.New(page.Options{Stats: observe.NewStats()})
	for _, test := range []struct {
		method, path string
		status       int
		contentType  string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"GET", "/app.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/style.css", 200, "text/css; charset=utf-8"},
		{"GET", "/state.json", 200, "application/json"},
		{"GET", "/health", 200, "application/json"},
		{"HEAD", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/events", 200, "text/event-stream"},
		{"GET", "/page.html", 404, "text/plain; charset=utf-8"},
		{"GET", "/nothing", 404, "text/plain; charset=utf-8"},
		{"POST", "/", 405, "text/plain; charset=utf-8"},
		{"DELETE", "/state.json", 405, "text/plain; charset=utf-8"},
		{"OPTIONS", "/nothing", 405, "text/plain; charset=utf-8"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(test.method, test.path, nil))
		if w.Code != test.status || w.Header().Get("Content-Type") != test.contentType {
			t.Errorf("%s %s: %d %q, want %d %q", test.method, test.path, w.Code, w.Header().Get("Content-Type"), test.status, test.contentType)
		}
		if test.status == http.StatusMethodNotAllowed && w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow %q", test.method, test.path, w.Header().Get("Allow"))
		}
		const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
		if w.Header().Get("Content-Security-Policy") != policy || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: headers %v", test.method, test.path, w.Header())
		}
	}
}
