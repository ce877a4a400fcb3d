package suites

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var chosen = flag.String("suites", "quick", `"quick", "all", or names of suites with commas between them`)

// A suite is the tests of some packages of one module.
type suite struct {
	name     string
	module   string   // If empty, the standard library
	packages []string // of which the tests are run
	quick    bool     // takes seconds

	// direct has the hook replace http.DefaultTransport too, for packages that send without an
	// http.Client. A suite that takes it for an *http.Transport can't have that.
	direct bool

	// often are tests that a fault makes fail now and then only, and how many times to run them.
	often map[string]int

	// differs has a reason for each test that may fail with the hook alone.
	differs map[string]string
}

var suites = []suite{
	{
		name: "httputil", packages: []string{"net/http/httputil"}, quick: true, direct: true,
		often: map[string]int{"net/http/httputil TestReverseProxyWebSocketHalfTCP": 300},
		differs: map[string]string{
			"TestReverseProxyCancellation": "http.Transport.CancelRequest, which is deprecated, finds a request by its address, and the base got a copy",
		},
	},
	{name: "go-github", module: "github.com/google/go-github/v74", packages: []string{"github.com/google/go-github/v74/github"}, quick: true},
	{name: "oauth2", module: "golang.org/x/oauth2", packages: []string{"golang.org/x/oauth2", "golang.org/x/oauth2/clientcredentials", "golang.org/x/oauth2/jwt"}, quick: true},
	{name: "connect", module: "connectrpc.com/connect", packages: []string{"connectrpc.com/connect"}},
	{name: "websocket", module: "github.com/coder/websocket", packages: []string{"github.com/coder/websocket"}, often: map[string]int{"github.com/coder/websocket TestConn": 10}},
}

func TestSuites(t *testing.T) {
	names := strings.Split(*chosen, ",")
	ran := 0
	for _, s := range suites {
		if *chosen == "all" || *chosen == "quick" && s.quick || slices.Contains(names, s.name) {
			ran++
			t.Run(s.name, s.run)
		}
	}
	if ran == 0 || *chosen != "all" && *chosen != "quick" && ran != len(names) {
		t.Errorf("-suites=%s: no such suite", *chosen)
	}
}

// run runs the suite with the hook. What does not pass is run without it, and must not pass there
// either. A suite may be shaky on a busy machine: what does not pass at first may pass three
// times in a row.
func (s suite) run(t *testing.T) {
	h, bare := s.hook(t), &runner{packages: s.packages}
	all := h.test(t, nil, 1)
	failed := all.unpassed()
	for name := range failed {
		if reason := s.differs[top(name)]; reason != "" {
			t.Logf("%s differs: %s", name, reason)
			delete(failed, name)
		}
	}
	if len(failed) > 0 {
		blame(t, bare.test(t, failed, 1), h.test(t, failed, 3))
	}
	for name, times := range s.often {
		only := map[string]bool{name: true}
		blame(t, bare.test(t, only, times), h.test(t, only, times))
	}
	sent, err := os.Stat(h.count)
	if err != nil || sent.Size() == 0 {
		t.Fatalf("no request passed the Transport: %v", err)
	}
	t.Logf("%d tests, %d requests through the Transport", len(all), sent.Size())
}

// blame fails for the tests that pass without the hook and not with it.
func blame(t *testing.T, without, with results) {
	for name, test := range without {
		if test.action != "pass" {
			continue
		}
		if got := with[name]; got == nil || got.action != "pass" {
			t.Errorf("%s passes without the hook, and not with it: %+v", name, got)
		}
	}
}

// A runner runs the tests of packages.
type runner struct {
	packages []string
	args     []string // for go test
	env      []string
	count    string // a file with a byte for each request
}

// hook writes the files that send a suite's requests through a Transport. They have the same
// names in every run, for the build cache's sake.
func (s suite) hook(t *testing.T) *runner {
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "throttle-suites", s.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	goroot := filepath.Join(output(t, "go", "env", "GOROOT"), "src")
	client := filepath.Join(dir, "client.go")
	write(t, client, patched(t, filepath.Join(goroot, "net/http/client.go")))
	overlay := map[string]string{filepath.Join(goroot, "net/http/client.go"): client}

	r := &runner{packages: s.packages, count: filepath.Join(t.TempDir(), "count")}
	r.env = []string{"THROTTLE_SUITES_COUNT=" + r.count}
	if s.direct {
		r.env = append(r.env, "THROTTLE_SUITES_DEFAULT=1")
	}
	if s.module != "" {
		r.args = append(r.args, "-modfile="+s.copied(t, dir))
	}
	for _, pkg := range s.packages {
		text := []byte(strings.Replace(hookText, "PACKAGE", output(t, "go", "list", "-f", "{{.Name}}", pkg), 1))
		const name = "zz_throttle_test.go"
		if s.module != "" {
			write(t, filepath.Join(dir, "module", strings.TrimPrefix(pkg, s.module), name), text)
			continue
		}
		file := filepath.Join(dir, path.Base(pkg)+"_"+name)
		write(t, file, text)
		overlay[filepath.Join(goroot, pkg, name)] = file
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "overlay.json"), text)
	r.args = append(r.args, "-overlay="+filepath.Join(dir, "overlay.json"))
	return r
}

//go:embed hook.txt
var hookText string

// patched is net/http's client.go with a variable that may wrap the transport of every Client.
func patched(t *testing.T, file string) []byte {
	const method = "func (c *Client) transport() RoundTripper {\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(text, []byte(method)) != 1 {
		t.Fatalf("%s has no Client.transport to wrap", file)
	}
	return bytes.Replace(text, []byte(method), []byte(`// WrapTransport wraps the transport of every Client. If nil, none.
var WrapTransport func(RoundTripper) RoundTripper

`+method+`	if WrapTransport != nil {
		return WrapTransport(c.unwrapped())
	}
	return c.unwrapped()
}

func (c *Client) unwrapped() RoundTripper {
`), 1)
}

// copied copies the module into dir, for no file may be added in the module cache, and returns
// a go.mod that uses the copy.
func (s suite) copied(t *testing.T, dir string) (modfile string) {
	var m struct{ Dir, Version string }
	if err := json.Unmarshal([]byte(output(t, "go", "mod", "download", "-json", s.module)), &m); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "module")
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(m.Dir)); err != nil {
		t.Fatal(err)
	}
	modfile = filepath.Join(dir, "go.mod")
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name == "go.mod" {
			text = fmt.Appendf(text, "\nreplace %s => %s\n", s.module, to)
		}
		write(t, filepath.Join(dir, name), text)
	}
	return modfile
}

// results are what became of tests, by package and name.
type results map[string]*result

type result struct {
	action string // "fail" if the test ever failed, or else "pass" or "skip"; empty if it did not end
	output string
}

// unpassed are the tests that did not pass.
func (r results) unpassed() map[string]bool {
	names := make(map[string]bool)
	for name, test := range r {
		if test.action != "pass" {
			names[name] = true
		}
	}
	return names
}

// test runs the tests of these names so many times, or all if there are none.
func (r *runner) test(t *testing.T, only map[string]bool, times int) results {
	args := append([]string{"test", "-json", fmt.Sprintf("-count=%d", times), "-vet=off", "-timeout=5m"}, r.args...)
	if only != nil {
		args = append(args, "-run="+pattern(only))
	}
	cmd := exec.Command("go", append(args, r.packages...)...)
	cmd.Env = append(os.Environ(), r.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output() // fails where a test does, which the output tells too
	all := make(results)
	failed := "" // packages without a failed test
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var e struct{ Action, Package, Test, Output string }
		if err := d.Decode(&e); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
		}
		name := e.Package + " " + e.Test
		switch {
		case e.Test == "" && e.Action == "fail" && !all.fails(e.Package):
			failed += e.Package + "\n"
		case e.Test == "":
		case all[name] == nil:
			all[name] = new(result)
			fallthrough
		default:
			all[name].add(e.Action, e.Output)
		}
	}
	if failed != "" || len(all) == 0 {
		t.Fatalf("go %s: %v\n%s%s", strings.Join(args, " "), err, failed, stderr.Bytes())
	}
	return all
}

// add has a test's first failure last.
func (r *result) add(action, output string) {
	switch {
	case r.action == "fail":
	case action == "run": // once more
		r.action, r.output = "", ""
	case action == "output":
		r.output += output
	case action == "pass" || action == "fail" || action == "skip":
		r.action = action
	}
}

// fails reports whether a test of the package failed or did not end.
func (r results) fails(pkg string) bool {
	for name, test := range r {
		if strings.HasPrefix(name, pkg+" ") && test.action != "pass" && test.action != "skip" {
			return true
		}
	}
	return false
}

// top is the name of the test that a test is or belongs to.
func top(name string) string {
	_, test, _ := strings.Cut(name, " ")
	test, _, _ = strings.Cut(test, "/")
	return test
}

// pattern is the -run of the tests that these are or belong to.
func pattern(names map[string]bool) string {
	tops := make(map[string]bool)
	for name := range names {
		tops[regexp.QuoteMeta(top(name))] = true
	}
	return "^(" + strings.Join(slices.Sorted(maps.Keys(tops)), "|") + ")$"
}

// write writes a file, if it isn't there already.
func write(t *testing.T, name string, text []byte) {
	t.Helper()
	if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, text) {
		return
	}
	if err := os.WriteFile(name, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}
