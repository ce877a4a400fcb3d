// Package redistest starts real Redis servers for tests: a single server, a cluster, or a master
// with sentinels. It also has a proxy that breaks connections. All servers listen on 127.0.0.1,
// keep their data in memory and end with the test.
//
// The servers run the redis-server of the PATH, or the server that $THROTTLE_REDIS_SERVER names,
// such as valkey-server: any Redis since version 5, or Valkey. A named server must be there. If
// none is named and redis-server is not installed, or with the race detector, the test is skipped, or
// fails if THROTTLE_REQUIRE_REDIS is 1.
package redistest

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/internal/servertest"
	"github.com/apithrottle/throttle/internal/soak"
)

const (
	host = "127.0.0.1"
	// require is the environment variable that makes a missing server an error, if it is 1.
	require = "THROTTLE_REQUIRE_REDIS"
	// timeout is the timeout of clients for commands.
	timeout = time.Second
	// dialTimeout is their timeout for connections. A dial is refused at once where no server listens,
	// and takes a second or more where a busy machine drops its first packet.
	dialTimeout = 30 * time.Second
	// serverTimeout is the timeout for servers to become ready, on a slow machine.
	serverTimeout = 2 * time.Minute
)

// A Server is a redis-server. Its methods may be called from any goroutine. Methods that can fail
// must be called from the test's own goroutine, because they end the test.
type Server struct {
	t    testing.TB
	bin  string
	dir  string
	args []string // all but the port
	env  []string // in addition to the environment of the test
	port int

	admin *redis.Client // for the package's own commands

	mu   sync.Mutex // guards proc
	proc *process
}

// A process is one run of a server.
type process struct {
	*os.Process
	exited chan struct{} // closed when the process has ended
	output bytes.Buffer  // may be read after that
}

// Start starts an empty server. args are appended to the package's arguments, as in Start(t,
// "--maxmemory", "6mb").
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, nil, dataArgs(args)...)
}

// dataArgs returns the arguments of a server for data, which keeps it only in memory and sends it
// to replicas at once.
func dataArgs(args []string) []string {
	return append([]string{"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"}, args...)
}

func start(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, bin: serverPath(t), dir: t.TempDir(), args: args, env: env}
	t.Cleanup(s.Kill)
	// Another process may take the free port before the server listens on it.
	for range 5 {
		s.port = freePort(t)
		output, ok := s.run()
		if ok {
			s.admin = newClient(t, s.Addr(), serverTimeout)
			return s
		}
		if !strings.Contains(output, "Address already in use") {
			t.Fatalf("%s %q ended at once:\n%s", s.bin, args, output)
		}
	}
	t.Fatalf("%s found no free port", s.bin)
	return nil
}

// serverPath returns the server to run, or ends the test.
func serverPath(t testing.TB) string {
	t.Helper()
	if soak.Race {
		servertest.SkipOrFail(t, require, "no Redis server with the race detector, because real time would not suffice")
	}
	name := os.Getenv("THROTTLE_REDIS_SERVER")
	path, err := exec.LookPath(cmp.Or(name, "redis-server"))
	switch {
	case err != nil && name != "":
		t.Fatalf("THROTTLE_REDIS_SERVER names a server that is missing: %v", err)
	case err != nil:
		servertest.SkipOrFail(t, require, "no Redis server: "+err.Error())
	}
	return path
}

// freePort returns a port that is free. The port 10000 above it, which cluster nodes use among
// themselves, is free too.
func freePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		bus, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port+10000)))
		l.Close()
		if err == nil {
			bus.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// run runs the server and waits until it answers. If the server ends instead, run returns false and
// the server's output.
func (s *Server) run() (output string, ok bool) {
	s.t.Helper()
	args := append(append([]string{}, s.args...), "--bind", host, "--port", strconv.Itoa(s.port), "--dir", s.dir)
	cmd := exec.Command(s.bin, args...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.SysProcAttr = dieWithParent
	p := &process{exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	started := make(chan error)
	go func() {
		// For dieWithParent, the parent is this thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		s.t.Fatal(err)
	}
	p.Process = cmd.Process
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()

	for end := time.Now().Add(serverTimeout); time.Now().Before(end); {
		select {
		case <-p.exited:
			return p.output.String(), false
		case <-time.After(5 * time.Millisecond):
		}
		if s.answers(p.Pid) {
			return "", true
		}
	}
	s.t.Fatalf("%s %q doesn't answer", s.bin, args)
	return "", false
}

// answers reports whether the process answers at the server's port. It compares the process ID,
// because another server that took the port would answer too.
func (s *Server) answers(pid int) bool {
	c, err := net.DialTimeout("tcp", s.Addr(), timeout)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(timeout))
	_, _ = c.Write([]byte("INFO server\r\nQUIT\r\n"))
	info, _ := io.ReadAll(c)
	return field(string(info), "process_id") == strconv.Itoa(pid)
}

// Addr returns the host and port to dial.
func (s *Server) Addr() string { return net.JoinHostPort(host, strconv.Itoa(s.port)) }

// Client returns a new client with short timeouts, which is closed with the test.
func (s *Server) Client() *redis.Client { return newClient(s.t, s.Addr(), timeout) }

// PatientClient returns a new client that makes each call once and waits for its reply without a
// timeout. It is closed with the test.
func (s *Server) PatientClient() *redis.Client {
	options := *s.Client().Options()
	options.MaxRetries, options.ReadTimeout, options.WriteTimeout = -1, -1, -1
	c := redis.NewClient(&options)
	s.t.Cleanup(func() { c.Close() })
	return c
}

func newClient(t testing.TB, addr string, timeout time.Duration) *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr:          addr,
		DialTimeout:   dialTimeout,
		DialerRetries: 1,
		ReadTimeout:   timeout,
		WriteTimeout:  timeout,
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// Kill kills the server and returns when it has ended. A second call does nothing.
func (s *Server) Kill() {
	if p := s.current(); p != nil {
		_ = p.Kill() // the server may have ended itself
		<-p.exited
	}
}

// Restart kills the server and starts it again on the same port, without its data.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if output, ok := s.run(); !ok {
		s.t.Fatalf("can't restart the server:\n%s", output)
	}
}

// Stop suspends the server until Resume. It keeps its connections and accepts others, but does not
// answer. Stop skips the test on systems other than Linux.
func (s *Server) Stop() { s.signal(suspend) }

// Resume ends the suspension by Stop.
func (s *Server) Resume() { s.signal(resume) }

func (s *Server) signal(sig os.Signal) {
	s.t.Helper()
	if sig == nil {
		s.t.Skip("a server can be suspended only on Linux")
	}
	if err := s.current().Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Info returns one field of a section of INFO, such as Info("stats", "expired_keys"), or "" if the
// section does not contain it.
func (s *Server) Info(section, name string) string {
	s.t.Helper()
	info, err := s.admin.Info(context.Background(), section).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	return field(info, name)
}

func field(info, name string) string {
	for line := range strings.Lines(info) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// do sends a command that must not fail.
func (s *Server) do(args ...any) any {
	s.t.Helper()
	reply, err := s.admin.Do(context.Background(), args...).Result()
	if err != nil {
		s.t.Fatalf("%v at %s: %v", args, s.Addr(), err)
	}
	return reply
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(serverTimeout); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout after %v, waiting until %s", serverTimeout, what)
		}
	}
}
