// Package commandtest runs the command throttle on real PostgreSQL servers. It is here, and not beside the command,
// because only this module may import package pgtest. It builds the command as its users run it.
package commandtest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// bin is where the tests build the command.
var bin string

func TestMain(m *testing.M) {
	var err error
	if bin, err = os.MkdirTemp("", "throttle"); err != nil {
		panic(err)
	}
	code := pgtest.Run(m)
	os.RemoveAll(bin)
	os.Exit(code)
}

// built returns the path of the command, which all tests run.
var built = sync.OnceValues(func() (string, error) {
	path := filepath.Join(bin, "throttle")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = "../../../cmd/throttle"
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// A fleet runs commands that share the table of one database.
type fleet struct {
	*testing.T
	*pgtest.Database
	path, url string
}

// newFleet returns a fleet whose database has no table yet.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	t.Parallel()
	d := pgtest.Shared(t)
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return &fleet{t, d, path, d.URL()}
}

// migrate creates the table.
func (f *fleet) migrate() *fleet {
	f.Helper()
	f.run(0, "postgres", "migrate", "--store", f.url)
	return f
}

// command returns a command, with the URL in the environment, as in scripts.
func (f *fleet) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(f.Context(), time.Minute)
	f.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, f.path, args...)
	cmd.Env = append(os.Environ(), "THROTTLE_STORE="+f.url)
	return cmd
}

// run runs a command, and fails unless it ends with the code. It returns what the command writes.
func (f *fleet) run(code int, args ...string) string {
	f.Helper()
	cmd := f.command(args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
		f.Fatalf("throttle %s ends with %v, want %d:\n%s", strings.Join(args, " "), err, code, out)
	}
	return string(out)
}

// TestCommandCreatesTable creates the table in both ways, and reads what the command says before.
func TestCommandCreatesTable(t *testing.T) {
	f := newFleet(t)
	out := f.run(69, "wait", "--policy", "5/h", "--name", "a")
	if !strings.Contains(out, "PostgreSQL at "+f.Addr()+" cannot be used: the table of quotas is missing: create it by throttle postgres migrate --store URL, or throttle postgres schema | psql URL") {
		t.Errorf("without the table: %s", out)
	}
	f.Exec("CREATE SCHEMA limits; " + f.run(0, "postgres", "schema", "--table", "limits.quota"))
	f.run(0, "wait", "--policy", "5/h", "--name", "a", "--store", f.url+"&table=limits.quota")
	f.migrate().migrate()
	f.run(0, "wait", "--policy", "5/h", "--name", "a")
	if n := f.Exec("SELECT (SELECT count(*) FROM limits.quota) || ' ' || (SELECT count(*) FROM throttle_quota)"); n != "1 1" {
		t.Errorf("the tables have %s rows, want 1 each", n)
	}
}

// TestCommandsShareQuota runs commands of several processes in one quota, whose state others show.
func TestCommandsShareQuota(t *testing.T) {
	f := newFleet(t).migrate()
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			cmd := f.command("exec", "--policy", "5/h", "--name", "files", "--max-wait", "0s", "--", "echo", "sent")
			switch out, err := cmd.CombinedOutput(); {
			case err == nil && string(out) == "sent\n":
				admitted.Add(1)
			case cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 75:
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
	out := f.run(0, "status", "--policy", "5/h", "files", "--json")
	if admitted.Load() != 5 || !strings.Contains(out, `"shared":"a table of PostgreSQL"`) || !strings.Contains(out, `"used":5,`) {
		t.Errorf("%d of 8 commands ran, want 5: %s", admitted.Load(), out)
	}
	if out := f.run(0, "top", "--policy", "5/h", "files", "--interval", "100ms", "--count", "2"); !strings.Contains(out, "files") {
		t.Errorf("top shows %s", out)
	}
	f.run(75, "wait", "--policy", "5/h", "--name", "files", "--max-wait", "0s")
	f.run(0, "wait", "--policy", "5/h", "--name", "files", "--key", "other", "--max-wait", "0s")
}

// TestCommandHoldsPlace runs a command that holds the only place, and another one that finds it taken.
func TestCommandHoldsPlace(t *testing.T) {
	f := newFleet(t).migrate()
	args := []string{"exec", "--policy", "1;algo=concurrency", "--name", "deploys", "--max-wait", "0s", "--"}
	f.run(75, slices.Concat(args, []string{f.path}, args, []string{"true"})...)
	f.run(0, append(args, "true")...) // the place was given back
}

// TestCommandsShareRate sends lines from two processes. No window of a second has more than five.
func TestCommandsShareRate(t *testing.T) {
	f := newFleet(t).migrate()
	var mu sync.Mutex
	var sent []time.Time
	var all sync.WaitGroup
	for range 2 {
		cmd := f.command("lines", "--policy", "5/s", "--name", "mail", "--guard", "1s", "--quiet")
		cmd.Stdin = strings.NewReader(strings.Repeat("line\n", 6))
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				mu.Lock()
				sent = append(sent, time.Now())
				mu.Unlock()
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	slices.SortFunc(sent, time.Time.Compare)
	for i := 5; i < len(sent); i++ {
		if took := sent[i].Sub(sent[i-5]); took < time.Second {
			t.Errorf("6 lines within %v", took)
		}
	}
	if len(sent) != 12 {
		t.Errorf("%d lines, want 12", len(sent))
	}
}

// TestCommandPausesOthers pauses the quota of a process that waits.
func TestCommandPausesOthers(t *testing.T) {
	f := newFleet(t).migrate()
	quota := []string{"--policy", "100/s", "--name", "mail"}
	f.run(0, append([]string{"pause", "--for", "1h"}, quota...)...)
	f.run(75, append([]string{"wait", "--max-wait", "0s"}, quota...)...)
	if out := f.run(0, append([]string{"status"}, quota...)...); !strings.Contains(out, "Paused for 59m") {
		t.Errorf("status shows no pause: %s", out)
	}
	waits := f.command(append([]string{"wait"}, quota...)...)
	waits.Stderr = &bytes.Buffer{}
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	f.run(0, append([]string{"resume"}, quota...)...)
	if err := waits.Wait(); err != nil {
		t.Errorf("the command that waited: %v: %s", err, waits.Stderr)
	}
}

// A sidecar is a proxy that runs.
type sidecar struct {
	*exec.Cmd
	at  string // the address
	log *bytes.Buffer
	end func() error
}

var listens = regexp.MustCompile(`the proxy listens.* address=(\S+)`)

// proxy starts a proxy of an API.
func (f *fleet) proxy(store, api string) *sidecar {
	f.Helper()
	file := filepath.Join(f.TempDir(), "throttle.yaml")
	text := fmt.Sprintf("listen: 127.0.0.1:0\nstore: {%s}\nobservability: {log: debug}\nroutes: {/api: {to: %q, policy: 100/s, max_wait: 100ms}}\n", store, api)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
	s := &sidecar{Cmd: f.command("proxy", "--config", file), log: new(bytes.Buffer)}
	out, err := s.StderrPipe()
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		f.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for s.at == "" {
		line, err := lines.ReadString('\n')
		s.log.WriteString(line)
		if m := listens.FindStringSubmatch(line); m != nil {
			s.at = "http://" + m[1]
		} else if err != nil {
			f.Fatalf("the proxy ends: %s", s.log)
		}
	}
	read := make(chan struct{})
	go func() { defer close(read); io.Copy(s.log, lines) }()
	s.end = sync.OnceValue(func() error {
		s.Process.Signal(syscall.SIGTERM)
		<-read
		return s.Wait()
	})
	f.Cleanup(func() { s.end() })
	return s
}

// get returns the status and the body of a page of the proxy.
func (f *fleet) get(url string) (int, string) {
	f.Helper()
	resp, err := http.Get(url)
	if err != nil {
		f.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// until waits until a text is shown, for half a minute.
func (f *fleet) until(text string, shown func() string) {
	f.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		switch out := shown(); {
		case strings.Contains(out, text):
			return
		case time.Now().After(deadline):
			f.Fatalf("%q is not in %s", text, out)
		}
	}
}

// TestProxiesShareBan sends a request through one proxy, which the API bans. The other one sends none.
func TestProxiesShareBan(t *testing.T) {
	f := newFleet(t).migrate()
	var requests atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer api.Close()
	store := fmt.Sprintf("postgres: %q, sync: true, lease: 20s", f.url)
	one, other := f.proxy(store, api.URL), f.proxy(store, api.URL)
	f.get(one.at + "/api/x")
	status := func(flag, value string) func() string { // the proxy records the ban behind its answer
		return func() string { return f.run(0, "status", flag, value, "api", "--json") }
	}
	f.until("Banned for 59m", status("--config", one.Args[len(one.Args)-1]))
	if code, body := f.get(other.at + "/api/x"); code < 400 || requests.Load() != 1 {
		t.Errorf("the other proxy answers %d, %s, and the API had %d requests, want 1", code, body, requests.Load())
	}
	f.until("Banned for 59m", status("--page", other.at+"/_throttle/"))
	if _, body := f.get(other.at + "/_throttle/"); !strings.Contains(body, "Quotas are in PostgreSQL at "+f.Addr()) {
		t.Errorf("the page does not say where quotas are: %s", body)
	}
	_, metrics := f.get(other.at + "/_throttle/metrics")
	if !regexp.MustCompile(`throttle_store_calls_total\{[^}]*outcome="ok"[^}]*\} [1-9]`).MatchString(metrics) {
		t.Errorf("the metrics have no calls of the store:\n%s", metrics)
	}
	for _, s := range []*sidecar{one, other} {
		if err := s.end(); err != nil || strings.Contains(s.log.String(), f.url) {
			t.Errorf("the proxy ends with %v:\n%s", err, s.log)
		}
	}
}

// TestProxyAtRestHoldsNoConnection sends a request through a proxy. Some seconds later it has no connection.
func TestProxyAtRestHoldsNoConnection(t *testing.T) {
	f := newFleet(t).migrate()
	api := httptest.NewServer(http.NotFoundHandler())
	defer api.Close()
	s := f.proxy(fmt.Sprintf("postgres: %q", f.url), api.URL)
	if code, body := f.get(s.at + "/api/x"); code != http.StatusNotFound {
		t.Fatalf("the proxy answers %d, %s", code, body)
	}
	connections := func() string {
		return f.Exec("SELECT count(*) || ' connections' FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'throttle'")
	}
	if got := connections(); got == "0 connections" {
		t.Error("the proxy has used no connection")
	}
	f.until("0 connections", connections)
}

// TestCommandHidesPassword fails in many ways: neither the output nor the log of a proxy has the password.
func TestCommandHidesPassword(t *testing.T) {
	f := newFleet(t).migrate()
	const canary = "CANARYCANARY"
	bad := f.As("postgres", canary)
	refused := strings.Replace(bad.URL(), f.Addr(), "127.0.0.1:1", 1)
	for _, url := range []string{
		bad.URL(), refused, strings.Replace(bad.URL(), f.Addr(), "nowhere.invalid", 1),
		strings.Replace(bad.URL(), "sslmode=disable", "sslmode=require", 1), bad.URL() + "&wish=1",
	} {
		f.url = url
		for _, args := range [][]string{
			{"wait", "--policy", "5/s", "--name", "a"}, {"status", "--policy", "5/s", "a", "--json"}, {"top", "--policy", "5/s", "a", "--count", "1"},
			{"pause", "--policy", "5/s", "--name", "a"}, {"postgres", "migrate"}, {"wait", "--help"}, {"wait", "--store"},
			{"validate", url}, {"wait", url}, {"wait", "--policy", url}, {"proxy", "--config", url},
		} {
			out, err := f.command(args...).CombinedOutput()
			if strings.Contains(string(out), canary) || err == nil && args[0] != "top" && args[1] != "--help" {
				t.Errorf("throttle %s: %v: %s", strings.Join(args, " "), err, out)
			}
		}
	}
	for _, url := range []string{bad.URL(), refused} {
		s := f.proxy(fmt.Sprintf("postgres: %q", url), "http://127.0.0.1:1")
		text := ""
		for _, page := range []string{"/api/x", "/_throttle/", "/_throttle/metrics", "/_throttle/state.json", "/readyz", "/_throttle/health", "/_throttle/ready"} {
			_, body := f.get(s.at + page)
			text += body
		}
		s.end()
		if text += s.log.String(); strings.Contains(text, canary) {
			t.Errorf("the proxy shows the password:\n%s", text)
		}
	}
}
