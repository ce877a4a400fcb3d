package pagetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/apithrottle/throttle/internal/leaktest"
)

var screenshots = flag.String("screenshots", "", "a directory for pictures of the page")

// patience is how long a test waits for what must happen.
const patience = 60 * time.Second

// browser is the Chromium of all tests.
var browser struct {
	sync.Once
	ctx   context.Context
	close func()
	err   error
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := leaktest.Run(m)
	if browser.close != nil {
		browser.close()
	}
	os.Exit(code)
}

// startBrowser starts Chromium. It reaches nothing but this machine.
func startBrowser() {
	path, err := chromium()
	if err != nil {
		browser.err = err
		return
	}
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(path)}
	for _, name := range []string{
		"headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "no-default-browser-check",
		"disable-background-networking", "disable-component-update", "disable-sync", "disable-default-apps",
		"disable-extensions", "disable-breakpad", "disable-dev-shm-usage", "metrics-recording-only",
	} {
		options = append(options, chromedp.Flag(name, true))
	}
	options = append(options,
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Flag("force-color-profile", "srgb"))
	allocated, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, closeTab := chromedp.NewContext(allocated)
	browser.ctx, browser.close = ctx, func() { closeTab(); stop() }
	browser.err = chromedp.Do(ctx) // starts it
}

// chromium returns the path of the browser.
func chromium() (string, error) {
	if name := os.Getenv("THROTTLE_CHROMIUM"); name != "" {
		return exec.LookPath(name)
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("there is no chromium")
}

// need ends a test for which something is missing.
func need(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("THROTTLE_REQUIRE_CHROMIUM") == "1" {
		t.Fatalf("%v, but THROTTLE_REQUIRE_CHROMIUM=1 requires it", err)
	}
	if f, fail := os.OpenFile(os.Getenv("THROTTLE_SKIPPED"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666); fail == nil {
		fmt.Fprintf(f, "%s: %v\n", t.Name(), err)
		f.Close()
	}
	t.Skip(err)
}

// A profile is a browser context: its tabs share cookies, caches and connections.
type profile struct{ ctx context.Context }

// newProfile returns a profile of its own, which ends with the test.
func newProfile(t *testing.T) profile {
	t.Helper()
	browser.Do(startBrowser)
	need(t, browser.err)
	ctx, cancel := context.WithTimeout(browser.ctx, 4*patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return profile{ctx}
}

// A tab is a viewer. When the test ends, it fails if the tab has had a problem.
type tab struct {
	t     *testing.T
	ctx   context.Context
	close context.CancelFunc

	mu       sync.Mutex // guards the rest
	problems []string   // errors and warnings, and refusals of the Content-Security-Policy
	requests []string   // the URLs of what the tab asked for
	offline  bool       // errors of the network are none of the page's
}

// open opens the URL in a tab of a new profile.
func open(t *testing.T, url string) *tab {
	t.Helper()
	return newProfile(t).open(t, url)
}

// open opens the URL in a tab.
func (p profile) open(t *testing.T, url string) *tab {
	t.Helper()
	w := p.blank(t)
	w.navigate(url)
	return w
}

// blank opens an empty tab.
func (p profile) blank(t *testing.T) *tab {
	t.Helper()
	w := &tab{t: t}
	id := chromedp.FromContext(p.ctx).BrowserContextID
	w.ctx, w.close = chromedp.NewContext(p.ctx, chromedp.WithExistingBrowserContext(id), chromedp.WithListener(w.listen))
	t.Cleanup(func() {
		w.close()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, problem := range w.problems {
			t.Error(problem)
		}
	})
	call(w, audits.Enable, cdp.Empty{})
	call(w, emulation.SetScrollbarsHidden, emulation.SetScrollbarsHiddenParams{Hidden: true})
	return w
}

func (w *tab) navigate(url string) {
	w.t.Helper()
	if err := chromedp.Do(w.ctx, chromedp.Navigate(url)); err != nil {
		w.t.Fatalf("%s: %v", url, err)
	}
}

// listen keeps what the test judges.
func (w *tab) listen(event any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		w.problem("console.%s: %s", e.Type, text(e.Args))
	case *runtime.EventExceptionThrown:
		w.problem("%v", &chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails})
	case *log.EventEntryAdded:
		if !w.offline || e.Entry.Source != log.EntrySourceNetwork {
			w.problem("%s, %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text, e.Entry.URL)
		}
	case *audits.EventIssueAdded:
		details, _ := json.Marshal(e.Issue.Details)
		w.problem("%s: %s", e.Issue.Code, details)
	case *network.EventRequestWillBeSent:
		w.requests = append(w.requests, e.Request.URL)
	}
}

func (w *tab) problem(format string, args ...any) {
	w.problems = append(w.problems, "the browser reports "+fmt.Sprintf(format, args...))
}

func text(args []*runtime.RemoteObject) string {
	var all []string
	for _, a := range args {
		all = append(all, cmp.Or(a.Description, string(a.Value)))
	}
	return strings.Join(all, " ")
}

// goOffline makes the tab take errors of the network as given.
func (w *tab) goOffline() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.offline = true
}

// staysUnder checks that the tab has asked for nothing outside of a URL.
func (w *tab) staysUnder(base string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.requests) < 2 {
		w.t.Errorf("the browser reports only the requests %q", w.requests)
	}
	for _, r := range w.requests {
		if u, err := url.Parse(r); err != nil || u.Scheme != "data" && !strings.HasPrefix(r, base) {
			w.t.Errorf("the page requests %s, outside of %s", r, base)
		}
	}
}

// call runs a command of the protocol.
func call[P, R any](w *tab, command cdp.Command[P, R], params P) R {
	w.t.Helper()
	result, err := chromedp.Call(w.ctx, command, params)
	if err != nil {
		w.t.Fatalf("%s: %v", command.Method, err)
	}
	return result
}

// evaluate returns the value of a script, which may be a promise.
func evaluate[T any](w *tab, script string) T {
	w.t.Helper()
	v, err := chromedp.Run(w.ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		w.t.Fatalf("%v in %.300s", err, script)
	}
	return v
}

// press presses a key.
func (w *tab) press(key string) {
	w.t.Helper()
	if err := chromedp.Do(w.ctx, chromedp.KeyEvent(key)); err != nil {
		w.t.Fatal(err)
	}
}

// look sets the width of the window, and media features such as "prefers-color-scheme", "dark". The
// window becomes as high as the page, because browsers need not make what is off the screen.
func (w *tab) look(width int64, features ...string) {
	w.t.Helper()
	var media emulation.SetEmulatedMediaParams
	for pair := range slices.Chunk(features, 2) {
		media.Features = append(media.Features, &emulation.MediaFeature{Name: pair[0], Value: pair[1]})
	}
	call(w, emulation.SetEmulatedMedia, media)
	w.fill(width, 1)
}

// fill makes the window as wide as told, and as high as the page is then.
func (w *tab) fill(width int64, scale float64) {
	w.t.Helper()
	height := int64(900)
	for range 4 {
		call(w, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: scale})
		height = evaluate[int64](w, `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(
			() => done(Math.ceil(Math.max(900, document.documentElement.scrollHeight))))))`)
	}
}

// text returns the text that the page shows.
func (w *tab) text() string {
	w.t.Helper()
	return evaluate[string](w, `document.body.innerText`)
}

// until waits until something is so.
func (w *tab) until(what string, so func() bool) {
	w.t.Helper()
	until(w.t, what, so, func() string { return "the page shows\n" + w.text() })
}

// until waits until something is so.
func until(t *testing.T, what string, so func() bool, why ...func() string) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			for _, f := range why {
				t.Log(f())
			}
			t.Fatalf("never: %s", what)
		}
	}
}

// A node is an element as a screen reader finds it.
type node struct {
	role, name, value, min, max string
}

// nodes returns the elements of a role, or all of them if it is empty.
func (w *tab) nodes(role string) []node {
	w.t.Helper()
	var found []node
	for _, n := range call(w, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if n.Ignored || n.Role == nil || role != "" && plain(n.Role) != role {
			continue
		}
		one := node{role: plain(n.Role), name: plain(n.Name), value: plain(n.Value)}
		for _, p := range n.Properties {
			switch p.Name {
			case "valuemin":
				one.min = plain(p.Value)
			case "valuemax":
				one.max = plain(p.Value)
			}
		}
		found = append(found, one)
	}
	return found
}

// plain returns a value without the quotes of JSON.
func plain(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	var s string
	if json.Unmarshal(v.Value, &s) == nil {
		return s
	}
	return string(v.Value)
}
