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

var chosen = flag.String("suites", "quick", `"quick", "all", or a comma-separated list of suites`)

// A suite is the tests of packages of one module.
type suite struct {
	name     string
	module   string   // if empty, the standard library
	packages []string // with the tests to run
	quick    bool     // takes seconds

	// direct makes the hook replace http.DefaultTransport too, for packages that send without an
	// http.Client. It must be false for a suite that expects an *http.Transport there.
	direct bool

	// often are tests that a defect makes fail only sometimes, with the number of runs.
	often map[string]int

	// differs are tests that may fail with the hook, with the reason.
	differs map[string]string
}

var suites = []suite{
	{
		name: "httputil", packages: []string{"net/http/httputil"}, quick: true, direct: true,
		often: map[string]int{"net/http/httputil TestReverseProxyWebSocketHalfTCP": 300},
		differs: map[string]string{
			"TestReverseProxyCancellation": "the deprecated http.Transport.CancelRequest finds a request by its address, and the base gets a copy",
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
		t.Errorf("-suites is %q: unknown suite", *chosen)
	}
}

// run runs the suite with the hook. A test that fails must also fail without the hook, or pass
// three times in a row with it, because a suite may be flaky on a busy machine.
func (s suite) run(t *testing.T) {
	h, plain := s.hook(t), &runner{packages: s.packages}
	all := h.test(t, nil, 1)
	failed := all.unpassed()
	for name := range failed {
		if reason := s.differs[top(name)]; reason != "" {
			t.Logf("%s differs: %s", name, reason)
			delete(failed, name)
		}
	}
	if len(failed) > 0 {
		compare(t, plain.test(t, failed, 1), h.test(t, failed, 3))
	}
	for name, times := range s.often {
		only := map[string]bool{name: true}
		compare(t, plain.test(t, only, times), h.test(t, only, times))
	}
	sent, err := os.Stat(h.count)
	if err != nil || sent.Size() == 0 {
		t.Fatalf("no request passed the Transport: %v", err)
	}
	t.Logf("%d tests, %d requests through the Transport", len(all), sent.Size())
}

// compare fails for each test that passes without the hook and not with it.
func compare(t *testing.T, without, with results) {
	for name, test := range without {
		if test.action != "pass" {
			continue
		}
		if got := with[name]; got == nil || got.action != "pass" {
			t.Errorf("%s passes without the hook and fails with it: %+v", name, got)
		}
	}
}

// A runner runs the tests of packages.
type runner struct {
	packages []string
	args     []string // for go test
	env      []string
	count    string // a file with one byte for each request
}

// hook writes the files that send a suite's requests through a Transport. The files have the same
// names in every run, so the build cache works.
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

// patched returns net/http's client.go with a variable that can wrap the transport of every Client.
func patched(t *testing.T, file string) []byte {
	const method = "func (c *Client) transport() RoundTripper {\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(text, []byte(method)) != 1 {
		t.Fatalf("%s has no method Client.transport to wrap", file)
	}
	return bytes.Replace(text, []byte(method), []byte(`// WrapTransport wraps the transport of every Client. If nil, transports are not wrapped.
var WrapTransport func(RoundTripper) RoundTripper

`+method+`	if WrapTransport != nil {
		return WrapTransport(c.unwrapped())
	}
	return c.unwrapped()
}

func (c *Client) unwrapped() RoundTripper {
`), 1)
}

// copied copies the module into dir, because an overlay may not add files to the module cache, and returns a go.mod
// that uses the copy.
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

// results are the results of tests, by package and name.
type results map[string]*result

type result struct {
	action string // "fail" if any run failed, else "pass" or "skip"; empty if the test did not end
	output string
}

// unpassed returns the tests that did not pass.
func (r results) unpassed() map[string]bool {
	names := make(map[string]bool)
	for name, test := range r {
		if test.action != "pass" {
			names[name] = true
		}
	}
	return names
}

// test runs the tests in only, or all tests if only is nil, the given number of times.
func (r *runner) test(t *testing.T, only map[string]bool, times int) results {
	args := append([]string{"test", "-json", fmt.Sprintf("-count=%d", times), "-vet=off", "-timeout=5m"}, r.args...)
	if only != nil {
		args = append(args, "-run="+pattern(only))
	}
	cmd := exec.Command("go", append(args, r.packages...)...)
	cmd.Env = append(os.Environ(), r.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output() // fails if a test fails, which the output reports
	all := make(results)
	failed := "" // packages that failed without a failed test
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

// add adds an event. The first failure of a test stays.
func (r *result) add(action, output string) {
	switch {
	case r.action == "fail":
	case action == "run": // the next run
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

// top returns the name of the top-level test of a test.
func top(name string) string {
	_, test, _ := strings.Cut(name, " ")
	test, _, _ = strings.Cut(test, "/")
	return test
}

// pattern returns the -run pattern of the top-level tests of names.
func pattern(names map[string]bool) string {
	tops := make(map[string]bool)
	for name := range names {
		tops[regexp.QuoteMeta(top(name))] = true
	}
	return "^(" + strings.Join(slices.Sorted(maps.Keys(tops)), "|") + ")$"
}

// write writes a file, unless it already has this content.
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
