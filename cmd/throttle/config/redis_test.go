package config_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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
