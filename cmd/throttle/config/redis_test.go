package config_test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/config"
)

// startRedis starts a Redis server on a socket and returns its URL.
func startRedis(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil && os.Getenv("THROTTLE_REQUIRE_REDIS") == "" {
		t.Skip("there is no redis-server")
	} else if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "redis") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(path, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "ready to accept connections") {
			return "unix://" + socket
		}
	}
	t.Fatal("redis-server ended")
	return ""
}

// What is charged in Redis stays charged when a program reads its file again.
func TestReloadRedis(t *testing.T) {
	reload(t, "store: {redis: \""+startRedis(t)+"\"}\n"+reloaded)
}

// The bounds of a route hold for clients with limits of their own, and a client's limits over all
// routes, also in Redis.
func TestClientsRedis(t *testing.T) {
	c := parse(t, `
store: {redis: "%s"}
routes:
  /a: {to: https://a.example, policy: 1/h, max_queue: 3}
  /b: {to: https://b.example, policy: 100/h, max_wait: 1s}
clients:
  web: {token: 0123456789abcdef, policy: 4/h, budget: 1000/day;budget=true}
`, startRedis(t))
	s, closer, err := c.OpenStore()
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	all, err := c.Transports(s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(config.WithClient(t.Context(), "web"))
	defer cancel()
	a, b := all.Of("/a"), all.Of("/b")
	a.Base, b.Base = sending{}, new(api)
	answers := make(chan error, 12)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 12 {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "GET", "https://a.example/", nil)
			resp, err := a.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			answers <- err
		})
	}
	sent := 0
	for range 9 { // three wait, one of them perhaps for the first answer of Redis
		switch err := <-answers; {
		case err == nil:
			sent++
		case !errors.Is(err, throttle.ErrQueueFull):
			t.Error(err)
		}
	}
	n, err := send(t, b, "https://b.example/", "web")
	if sent > 1 || n < 2 || n > 3 || !errors.Is(err, throttle.ErrDeadline) || !strings.Contains(err.Error(), `policy "client:web"`) {
		t.Errorf("%d and %d requests were sent, then %v, want at most 1, and 3, or 2 while a request to /a asks", sent, n, err)
	}
}
