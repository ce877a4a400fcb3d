package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/internal/soak"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

func TestServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := Start(t, "--maxmemory", "64mb")
	c := s.Client()
	set(t, c, "key")
	if got := s.Info("memory", "maxmemory"); got != "67108864" {
		t.Errorf("maxmemory = %q, want the argument's 67108864", got)
	}
	if got := s.Info("memory", "nothing"); got != "" {
		t.Errorf("a field that isn't there = %q", got)
	}

	s.Kill()
	s.Kill()
	if err := c.Ping(ctx).Err(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("PING of a dead server: %v, want refused", err)
	}
	s.Restart()
	if n := c.Exists(ctx, "key"); n.Err() != nil || n.Val() != 0 {
		t.Errorf("EXISTS after a restart = %v, want 0", n)
	}
}

func TestServerHangs(t *testing.T) {
	t.Parallel()
	s := Start(t)
	c := s.PatientClient()
	set(t, c, "key")
	s.Stop()
	if !hangs(t, c) {
		t.Error("a stopped server answers")
	}
	s.Resume()
	set(t, c, "key")
}

func TestServersEndWithTheTest(t *testing.T) {
	t.Parallel()
	var addr string
	t.Run("part", func(t *testing.T) {
		s := Start(t)
		s.Stop() // a suspended server ends too
		addr = s.Addr()
	})
	if addr == "" {
		return // skipped, because there is no server
	}
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialing the server of a test that has ended: %v, want refused", err)
	}
}

// A server that is named or required must be there.
func TestNoServer(t *testing.T) {
	soak.NoRace(t, "no test with the race detector has a server")
	t.Setenv("PATH", t.TempDir())
	t.Setenv("THROTTLE_SKIPPED", "") // a skip of the spy is not a skipped test
	for _, test := range []struct{ server, require, want string }{
		{"", "", "skipped: redis-server"},
		{"", "1", "failed: redis-server"},
		{"no-such-server", "", "failed: no-such-server"},
		{"no-such-server", "1", "failed: no-such-server"},
	} {
		t.Setenv("THROTTLE_REDIS_SERVER", test.server)
		t.Setenv("THROTTLE_REQUIRE_REDIS", test.require)
		spy := &spy{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Start(spy)
		}()
		<-done
		how, who, _ := strings.Cut(test.want, ": ")
		if !strings.HasPrefix(spy.ended, how) || !strings.Contains(spy.ended, who) {
			t.Errorf("%q, want %s and the name %s", spy.ended, how, who)
		}
	}
}

// A spy is a testing.TB that records how the test ends.
type spy struct {
	testing.TB
	ended string
}

func (s *spy) Skip(args ...any) { s.end("skipped: " + fmt.Sprint(args...)) }

func (s *spy) Fatalf(format string, args ...any) { s.end("failed: " + fmt.Sprintf(format, args...)) }

func (s *spy) end(how string) {
	s.ended = how
	runtime.Goexit()
}

func TestClock(t *testing.T) {
	t.Parallel()
	s, step := StartWithClock(t)
	c := s.Client()
	// ahead is how far the server's clock is ahead of the test's.
	ahead := func() time.Duration {
		now, err := c.Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return time.Until(now).Round(time.Second)
	}
	for _, tt := range []struct{ by, want time.Duration }{
		{0, 0},
		{-8 * time.Second, -8 * time.Second},
		{30 * time.Second, 22 * time.Second},
	} {
		step(tt.by)
		if got := ahead(); got != tt.want {
			t.Errorf("after a step by %v the clock is ahead by %v, want %v", tt.by, got, tt.want)
		}
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := StartCluster(t, 3, 0)
	c := cluster.Client()
	for _, key := range []string{"{tag}1", "{tag}2", "b", "c"} {
		set(t, c, key)
	}
	from := cluster.Master("{tag}1")
	to := cluster.Nodes[0]
	if to == from {
		to = cluster.Nodes[1]
	}
	var stages []bool
	cluster.MoveSlot("{tag}1", to, func(moved bool) {
		stages = append(stages, moved)
		if got := c.Get(ctx, "{tag}2"); got.Err() != nil {
			t.Errorf("moved %v: %v", moved, got)
		}
		set(t, c, "{tag}3") // at whichever node has the slot now
	})
	if len(stages) != 2 || stages[0] || !stages[1] {
		t.Errorf("during got %v, want false and true", stages)
	}
	if got := cluster.Master("{tag}1"); got != to {
		t.Errorf("the slot is at %s, want %s", got.Addr(), to.Addr())
	}
	if n := c.Exists(ctx, "{tag}1", "{tag}2", "{tag}3"); n.Val() != 3 {
		t.Errorf("after the move: %v, want 3", n)
	}
}

func TestClusterFailsOver(t *testing.T) {
	t.Parallel()
	cluster := StartCluster(t, 3, 1)
	c := cluster.Client()
	set(t, c, "key")
	dead := cluster.Master("key")
	dead.Kill()
	until(t, "a replica has taken over", func() bool {
		return c.Set(t.Context(), "key", "new", 0).Err() == nil
	})
	if cluster.Master("key") == dead {
		t.Error("a dead node is still the master")
	}
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t)
	c := s.Client()
	until(t, "the client has found the master", func() bool {
		return c.Set(t.Context(), "key", "value", 0).Err() == nil
	})
	s.KillMaster()
	until(t, "the replica has taken over", func() bool {
		return c.Set(t.Context(), "key", "new", 0).Err() == nil
	})
	if got := s.Replica.Info("replication", "role"); got != "master" {
		t.Errorf("the replica is %s, want master", got)
	}
}

func TestProxyDelay(t *testing.T) {
	t.Parallel()
	p, c := startProxy(t)
	const delay = 20 * time.Millisecond
	p.SetDelay(delay)
	start := time.Now()
	set(t, c, "key")
	if took := time.Since(start); took < 2*delay {
		t.Errorf("a round trip took %v, want at least %v", took, 2*delay)
	}
}

func TestProxyDropsReplies(t *testing.T) {
	t.Parallel()
	p, c := startProxy(t)
	p.DropReplies(2) // the client sends the command again
	if n, err := c.Incr(t.Context(), "key").Result(); n != 3 || err != nil {
		t.Errorf("INCR with two replies lost = %d, %v, want 3", n, err)
	}
}

func TestProxyHangs(t *testing.T) {
	t.Parallel()
	p, c := startProxy(t)
	p.Hang(true)
	if !hangs(t, c) {
		t.Error("a proxy that hangs forwards")
	}
	p.Hang(false)
	set(t, c, "key")
}

func TestProxyCuts(t *testing.T) {
	t.Parallel()
	p, _ := startProxy(t)
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reply := make([]byte, 16)
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(reply); string(reply[:n]) != "+PONG\r\n" {
		t.Fatalf("got %q, %v", reply[:n], err)
	}
	p.Cut()
	if n, err := c.Read(reply); err == nil {
		t.Errorf("got %q from a connection that was cut", reply[:n])
	}
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	p, c := startProxy(t)
	p.Refuse(true)
	set(t, c, "key") // on the existing connection
	p.Cut()
	if err := c.Ping(t.Context()).Err(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("PING: %v, want refused", err)
	}
	p.Refuse(false)
	set(t, c, "key")
}

func TestGreets(t *testing.T) {
	for request, want := range map[string]bool{
		"*2\r\n$5\r\nhello\r\n$1\r\n3\r\n":         true,
		"*4\r\n$6\r\nCLIENT\r\n$7\r\nsetinfo\r\n…": true,
		"*2\r\n$3\r\nget\r\n$5\r\nhello\r\n":       false,
		"*1\r\n$4\r\nping\r\n":                     false,
		"ping":                                     false,
	} {
		if got := greets([]byte(request)); got != want {
			t.Errorf("greets(%q) = %v, want %v", request, got, want)
		}
	}
}

// startProxy returns a proxy in front of a server, and a client that is connected through it.
func startProxy(t *testing.T) (*Proxy, *redis.Client) {
	t.Helper()
	p := NewProxy(t, Start(t).Addr())
	c := p.Client()
	set(t, c, "before")
	return p, c
}

func set(t *testing.T, c redis.Cmdable, key string) {
	t.Helper()
	if err := c.Set(t.Context(), key, "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
}

// hangs reports whether a PING gets no answer for 50 ms.
func hangs(t *testing.T, c *redis.Client) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	opt := *c.Options()
	opt.ContextTimeoutEnabled = true
	impatient := redis.NewClient(&opt)
	defer impatient.Close()
	err := impatient.Ping(ctx).Err()
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}
