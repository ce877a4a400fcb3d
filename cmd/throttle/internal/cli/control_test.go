package cli

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/internal/redistest"
)

// TestPause pauses a quota while another process copies lines in it. It stops, and goes on after the
// resume.
func TestPause(t *testing.T) {
	t.Parallel()
	for name, store := range map[string][]string{
		"file":  {"--file", filepath.Join(t.TempDir(), "quotas.db")},
		"Redis": {"--redis", "redis://" + redistest.Start(t).Addr()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			quota := slices.Concat(store, []string{"--policy", "20/100ms", "--name", "q"})
			lines := startLines(t, quota)
			lines.next(t) // it is admitted, and the file is there

			var paused controlResult
			throttleJSON(t, &paused, slices.Concat([]string{"pause", "--for", "1h", "--reason", "incident"}, quota))
			if paused.Name != "q" || paused.Paused < 3000 || paused.Until == nil || paused.Reason != "incident" {
				t.Errorf("pause: %+v", paused)
			}
			lines.untilStopped(t)

			var again controlResult
			throttleJSON(t, &again, slices.Concat([]string{"pause", "--for", "1m"}, quota))
			if again.Paused < 3000 {
				t.Errorf("a shorter pause: %+v", again)
			}
			if out, err := exec.Command("throttle", slices.Concat([]string{"wait", "--max-wait", "0s"}, quota)...).CombinedOutput(); err == nil {
				t.Errorf("a paused quota admits: %s", out)
			}

			var resumed controlResult
			throttleJSON(t, &resumed, slices.Concat([]string{"resume"}, quota))
			if resumed.Paused != 0 || resumed.Until != nil || resumed.Was == nil || *resumed.Was < 3000 {
				t.Errorf("resume: %+v", resumed)
			}
			for range 3 { // the third one was not in the pipe
				lines.next(t)
			}

			out, err := exec.Command("throttle", slices.Concat([]string{"resume"}, quota)...).CombinedOutput()
			if err != nil || string(out) != "q was not paused\n" {
				t.Errorf("resume once more: %q, %v", out, err)
			}
		})
	}
}

// throttleJSON runs the command with --json, and reads its result.
func throttleJSON(t *testing.T, result any, args []string) {
	t.Helper()
	out, err := exec.Command("throttle", append(args, "--json")...).Output()
	if err == nil {
		err = json.Unmarshal(out, result)
	}
	if err != nil {
		t.Fatalf("throttle %q: %q, %v", args, out, err)
	}
}

// longLine is longer than a pipe.
var longLine = strings.Repeat("x", 70_000)

// copyingLines is a process that copies lines without end, each a longLine.
type copyingLines struct {
	out  chan string
	talk chan string
}

func startLines(t *testing.T, flags []string) *copyingLines {
	t.Helper()
	cmd := exec.Command("throttle", append([]string{"lines"}, flags...)...)
	in, out := io.Pipe()
	cmd.Stdin = in
	go func() {
		for {
			if _, err := io.WriteString(out, longLine+"\n"); err != nil {
				return
			}
		}
	}()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &copyingLines{make(chan string), make(chan string, 1000)}
	done := make(chan struct{})
	read := func(r io.Reader, to chan string) {
		defer close(to)
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			select {
			case to <- s.Text():
			case <-done:
				return
			}
		}
	}
	go read(stdout, l.out)
	go read(stderr, l.talk)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		close(done)
		in.Close()
		_ = cmd.Wait()
	})
	return l
}

// next waits for a line.
func (l *copyingLines) next(t *testing.T) {
	t.Helper()
	if line := <-l.out; line != longLine {
		t.Fatalf("%.80q", line)
	}
}

// untilStopped reads lines until the process reports that it waits for the end of a pause.
func (l *copyingLines) untilStopped(t *testing.T) {
	t.Helper()
	for {
		select {
		case <-l.out:
		case text := <-l.talk:
			if !strings.HasPrefix(text, "throttle: q: waiting for the end of a pause, at least ") {
				t.Fatalf("%q", text)
			}
			return
		}
	}
}

// TestPauseProxy calls a proxy as docs/proxy.md describes it.
func TestPauseProxy(t *testing.T) {
	type call struct{ path, token, body string }
	var calls []call
	status, answer := http.StatusOK, `{"ok":true}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		calls = append(calls, call{r.Method + " " + r.URL.Path, r.Header.Get("Authorization"), string(body)})
		if status == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
		io.WriteString(w, answer)
	}))
	defer server.Close()
	page := server.URL + "/_throttle/"
	env := map[string]string{controlToken: "0123456789abcdef"}

	out, talk, code := runWith(t, "", env, "pause", "--page", page, "--name", "acme", "--for", "5m", "--reason", "incident 7")
	if !strings.HasPrefix(out, "acme is paused for 5m0s, until ") || talk != "" || code != 0 {
		t.Errorf("%q, %q, %d", out, talk, code)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("fedcba9876543210\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, talk, code = runWith(t, "", env, "resume", "--page", server.URL+"/_throttle", "--name", "acme", "--token-file", file, "--json")
	if out != `{"name":"acme","paused_seconds":0}`+"\n" || talk != "" || code != 0 {
		t.Errorf("%q, %q, %d", out, talk, code)
	}
	want := []call{
		{"POST /_throttle/pause", "Bearer 0123456789abcdef", `{"name":"acme","for":"5m0s","reason":"incident 7"}`},
		{"POST /_throttle/resume", "Bearer fedcba9876543210", `{"name":"acme"}`},
	}
	if !slices.Equal(calls, want) {
		t.Errorf("the proxy receives %q\nwant %q", calls, want)
	}

	for _, tt := range []struct {
		status  int
		answer  string
		message string
		code    int
	}{
		{401, `{"title":"Unauthorized","detail":"the token is wrong"}`, "refuses: 401 Unauthorized: the token is wrong", exitFailure},
		{403, "", "refuses: 403 Forbidden: the control token is wrong, or the proxy has none", exitFailure},
		{404, `{"detail":"no quota is named \u001b[2Jacme"}`, "refuses: 404 Not Found: no quota is named ?[2Jacme", exitFailure},
		{404, "<html>", "refuses: 404 Not Found: there is no such page: the proxy is too old, or --page is not its page", exitFailure},
		{302, "", "refuses: 302 Found", exitFailure},
		{503, `{"detail":"the store is away"}`, "cannot be used: 503 Service Unavailable: the store is away", exitUnavailable},
	} {
		status, answer, calls = tt.status, tt.answer, nil
		out, talk, code := runWith(t, "", env, "pause", "--page", page, "--name", "acme")
		if !strings.Contains(talk, tt.message) || strings.Contains(talk, "0123456789abcdef") || out != "" || code != tt.code || len(calls) != 1 {
			t.Errorf("%d: %q, %q, %d, %d calls", tt.status, out, talk, code, len(calls))
		}
	}
}
