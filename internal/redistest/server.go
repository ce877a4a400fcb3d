// Package redistest starts real Redis servers for tests: a single one, a cluster, a
// master that sentinels watch over, and a proxy that breaks connections. Everything
// listens on 127.0.0.1, keeps its data in memory and ends with the test.
//
// The servers run the redis-server of the PATH, or what $THROTTLE_REDIS_SERVER
// names, such as valkey-server: any Redis since version 5, or Valkey. A server that is
// named must be there. Where none is named and none is installed the test is skipped, or
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
)

const (
	host     = "127.0.0.1"
	timeout  = time.Second      // for what a client asks
	patience = 20 * time.Second // for what a server needs to do, on a slow machine
)

// A Server is a redis-server. Its methods may be called from any goroutine, but
// those that can fail end the test, which only the test's own goroutine can do.
type Server struct {
	t    testing.TB
	bin  string
	dir  string
	args []string // all but the port
	env  []string // besides that of the test
	port int

	admin *redis.Client // for the package's own questions

	mu   sync.Mutex // guards proc
	proc *process
}

// A process is one run of a server.
type process struct {
	*os.Process
	exited chan struct{} // closed when it has ended
	output bytes.Buffer  // to be read after that
}

// Start starts an empty server. The arguments come after those of the package, as
// in Start(t, "--maxmemory", "6mb").
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, nil, dataArgs(args)...)
}

// dataArgs are the arguments of a server that keeps data: in memory only, and
// handed to a replica at once.
func dataArgs(args []string) []string {
	return append([]string{"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"}, args...)
}

func start(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, bin: serverPath(t), dir: t.TempDir(), args: args, env: env}
	t.Cleanup(s.Kill)
	// Between finding a free port and listening on it someone else may take it.
	for range 5 {
		s.port = freePort(t)
		output, ok := s.run()
		if ok {
			s.admin = newClient(t, s.Addr(), patience)
			return s
		}
		if !strings.Contains(output, "Address already in use") {
			t.Fatalf("%s %q ended at once:\n%s", s.bin, args, output)
		}
	}
	t.Fatalf("%s found every port taken", s.bin)
	return nil
}

// serverPath returns the server to run, or ends the test.
func serverPath(t testing.TB) string {
	t.Helper()
	name := os.Getenv("THROTTLE_REDIS_SERVER")
	path, err := exec.LookPath(cmp.Or(name, "redis-server"))
	switch {
	case err != nil && name != "":
		t.Fatalf("THROTTLE_REDIS_SERVER asks for a server that is missing: %v", err)
	case err != nil:
		absent(t, "THROTTLE_REQUIRE_REDIS", "no Redis server: "+err.Error())
	}
	return path
}

// absent ends a test that lacks something: as skipped, unless the variable says
// that it must be there.
func absent(t testing.TB, variable, why string) {
	t.Helper()
	if os.Getenv(variable) == "1" {
		t.Fatalf("%s, but %s=1 asks for it", why, variable)
	}
	note(t.Name() + ": " + why)
	t.Skip(why)
}

// note adds a line to the file that $THROTTLE_SKIPPED names, if it does: go test
// itself does not tell what was skipped.
func note(line string) {
	f, err := os.OpenFile(os.Getenv("THROTTLE_SKIPPED"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString(line + "\n")
}

// freePort returns a port that nobody listens on, nor on the one 10000 above it,
// where the nodes of a cluster talk.
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

// run runs the server and waits until it answers. If it ends instead, run returns
// false and what it printed.
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
		// The parent that dieWithParent means is this thread.
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

	for end := time.Now().Add(patience); time.Now().Before(end); {
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

// answers reports whether the process answers at the server's port. It asks for the
// process, since another server that took the port would answer too.
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

// PatientClient returns a new client that makes each call once and waits for its reply however
// busy the machine is. It is closed with the test.
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
		DialTimeout:   timeout,
		DialerRetries: 1,
		ReadTimeout:   timeout,
		WriteTimeout:  timeout,
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// Kill kills the server and returns when it has ended. Killing it again does
// nothing.
func (s *Server) Kill() {
	if p := s.current(); p != nil {
		_ = p.Kill() // it may have ended by itself
		<-p.exited
	}
}

// Restart kills the server and starts it again on the same port, without its data.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if output, ok := s.run(); !ok {
		s.t.Fatalf("the server can't be started again:\n%s", output)
	}
}

// Stop makes the server hang until Resume: it keeps its connections and accepts
// others, but answers nothing. It skips the test on systems other than Linux.
func (s *Server) Stop() { s.signal(suspend) }

// Resume ends what Stop began.
func (s *Server) Resume() { s.signal(resume) }

func (s *Server) signal(sig os.Signal) {
	s.t.Helper()
	if sig == nil {
		s.t.Skip("a server can only be made to hang on Linux")
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

// Info returns one field of a section of INFO, such as Info("stats",
// "expired_keys"), or "" if the section hasn't got it.
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

// do sends a command that mustn't fail.
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
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain until %s", patience, what)
		}
	}
}
