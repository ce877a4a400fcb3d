// Package pgtest starts real PostgreSQL servers for tests: a server of a test's own, with replicas, with a
// stepped clock, or behind PgBouncer, or a database in a server that all tests of a process share. It
// also has a proxy that breaks connections. All servers listen on 127.0.0.1 and ask for a password. They
// end with the test, even with one that is killed, and leave nothing behind.
//
// The servers run the programs in $THROTTLE_POSTGRES_BIN, or those beside the initdb of the PATH, or the
// newest in /usr/lib/postgresql: any PostgreSQL since version 13. A test of root lets nobody run them.
// If there are none, the test is skipped, or fails if THROTTLE_REQUIRE_POSTGRES is 1 or
// THROTTLE_POSTGRES_BIN is set.
package pgtest

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/servertest"
)

const (
	host      = "127.0.0.1"
	superuser = "postgres"
	// require is the environment variable that makes a missing server an error, if it is 1.
	require = "THROTTLE_REQUIRE_POSTGRES"
	// named is the environment variable that contains the directory of the server's programs.
	named = "THROTTLE_POSTGRES_BIN"
	// debian is where Debian's servers are: not on the PATH.
	debian = "/usr/lib/postgresql/*/bin/initdb"
	// timeout is the timeout for servers to become ready, on a slow machine.
	timeout = 2 * time.Minute
	// busy is what a server that found its port taken says.
	busy = "Address already in use"
)

// OnDisk is the setting of a server that has its data on a disk and waits for it. The data of others is in
// memory if there is room, which starts them several times faster. It survives their death, too.
const OnDisk = "fsync = on"

// settings are those of all servers.
const settings = `
fsync = off
dynamic_shared_memory_type = mmap  # in the directory, which is removed
wal_retrieve_retry_interval = 50ms  # replicas begin to stream at once
`

// A Server is a PostgreSQL server. Its methods may be called from any goroutine. Methods that can fail
// must be called from the test's own goroutine, because they end the test. The methods of its Database
// use the database postgres.
type Server struct {
	Database

	home *home
	bin  string   // directory of the programs
	disk bool     // the data is on a disk
	dir  string   // contains the data, the log and the socket
	env  []string // in addition to the environment of the test

	mu   sync.Mutex // guards proc
	proc *process
}

// A process is one run of a program.
type process struct {
	*os.Process
	exited chan struct{} // closed when the process has ended
}

// Start starts an empty server. Each setting is a line of postgresql.conf, such as "max_connections = 20",
// or OnDisk.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	return start(t, nil, settings)
}

func start(t testing.TB, env, settings []string) *Server {
	t.Helper()
	s := launch(t, env, settings)
	t.Cleanup(s.end)
	return s
}

// launch starts a server that does not end with the test.
func launch(t testing.TB, env, settings []string) *Server {
	t.Helper()
	s := newServer(t, slices.Contains(settings, OnDisk), env)
	template, err := s.home.template(s.bin)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.home.do("cp", "-R", template, s.data()); err != nil {
		t.Fatal(err)
	}
	s.serve(settings)
	return s
}

// newServer returns a server that has no data.
func newServer(t testing.TB, onDisk bool, env []string) *Server {
	t.Helper()
	bin, h := binaries(t), theHomeOf(t)
	dir, err := h.mkdir(onDisk)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{home: h, bin: bin, disk: onDisk, dir: dir, env: env}
	s.Database = Database{t: t, user: superuser, password: h.password, name: "postgres"}
	return s
}

// serve starts the server for the first time.
func (s *Server) serve(lines []string) {
	s.t.Helper()
	lines = append([]string{settings}, lines...)
	conf, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = conf.WriteString(strings.Join(lines, "\n") + "\n")
		err = errors.Join(err, conf.Close())
	}
	if err != nil {
		s.t.Fatal(err)
	}
	// Another process may take the free port before the server listens on it.
	for range 5 {
		s.addr = freeAddr(s.t)
		if s.run() {
			return
		}
		if !strings.Contains(s.log(), busy) {
			break
		}
	}
	s.t.Fatalf("the server ended at once:\n%s", s.log())
}

// binaries returns the directory of the server's programs, or ends the test.
func binaries(t testing.TB) string {
	t.Helper()
	return binariesOr(t, debian)
}

func binariesOr(t testing.TB, pattern string) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		servertest.SkipOrFail(t, require, "PostgreSQL servers for tests need Linux")
	}
	bin, err := findBinaries(pattern)
	switch {
	case err != nil && os.Getenv(named) != "":
		t.Fatalf("%s names servers that are missing: %v", named, err)
	case err != nil:
		servertest.SkipOrFail(t, require, "no PostgreSQL server: "+err.Error())
	}
	return bin
}

// findBinaries returns the directory of the server's programs.
func findBinaries(pattern string) (string, error) {
	if dir := os.Getenv(named); dir != "" {
		_, err := exec.LookPath(filepath.Join(dir, "initdb"))
		return dir, err
	}
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		others, _ := filepath.Glob(pattern)
		if len(others) == 0 {
			return "", err
		}
		initdb = slices.MaxFunc(others, func(a, b string) int { return cmp.Compare(version(a), version(b)) })
	}
	initdb, err = filepath.EvalSymlinks(initdb)
	return filepath.Dir(initdb), err
}

// version returns the version in a path such as /usr/lib/postgresql/15/bin/initdb.
func version(initdb string) float64 {
	v, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(filepath.Dir(initdb))), 64)
	return v
}

// theHomeOf returns the home of this process, or ends the test.
func theHomeOf(t testing.TB) *home {
	t.Helper()
	h, err := theHome()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// freeAddr returns an address to listen on.
func freeAddr(t testing.TB) string {
	t.Helper()
	l := servertest.Listen(t)
	defer l.Close()
	return l.Addr().String()
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// log returns the end of what the server has logged.
func (s *Server) log() string {
	b, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return string(b[max(0, len(b)-4000):])
}

// run runs the server and waits until it answers. If the server ends instead, run returns false.
func (s *Server) run() bool {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(s.addr)
	cmd := s.home.command(filepath.Join(s.bin, "postgres"), "-D", s.data(), "-p", port,
		"-c", "listen_addresses="+host, "-c", "unix_socket_directories="+s.dir)
	cmd.Env = append(cmd.Env, s.env...)
	p := runProcess(s.t, cmd, filepath.Join(s.dir, "log"))
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	return p.answers(s.t, func() bool {
		// Another server that took the port would answer, too.
		data, err := s.try("SHOW data_directory", timeout)
		return err == nil && data == s.data()
	})
}

// runProcess starts a command that writes to a log.
func runProcess(t testing.TB, cmd *exec.Cmd, log string) *process {
	t.Helper()
	output, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	// These are files, and not buffers, because Wait would wait for the processes that the command starts.
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Process: cmd.Process, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	return p
}

// answers waits for a process that has just been started, and returns false if it ends.
func (p *process) answers(t testing.TB, ready func() bool) bool {
	t.Helper()
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		select {
		case <-p.exited:
			return false
		case <-time.After(10 * time.Millisecond):
		}
		if ready() {
			return true
		}
	}
	t.Fatal("the server doesn't answer")
	return false
}

// SocketURL returns the URL of the database at the server's Unix socket.
func (s *Server) SocketURL() string {
	_, port, _ := net.SplitHostPort(s.addr)
	return fmt.Sprintf("postgres://%s:%s@/%s?host=%s&port=%s&sslmode=disable", s.user, s.password, s.name, s.dir, port)
}

// Kill kills all processes of the server at once and returns when they have ended. A second call does
// nothing.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return
	}
	_ = s.proc.Kill() // it starts no others then
	<-s.proc.exited
	for {
		left := s.processes()
		if len(left) == 0 {
			break
		}
		signal(left, os.Kill)
		time.Sleep(time.Millisecond)
	}
	s.removeSegment()
	s.proc = nil
}

// removeSegment removes the segment of shared memory that a killed server leaves behind. With its data,
// the server would remove it when it starts.
func (s *Server) removeSegment() {
	b, _ := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	lines := strings.Split(string(b), "\n")
	if len(lines) < 7 {
		return
	}
	if keyAndID := strings.Fields(lines[6]); len(keyAndID) == 2 {
		_ = exec.Command("ipcrm", "-m", keyAndID[1]).Run() // it may be gone
	}
}

// Stop ends the server as an administrator does: it ends all sessions and writes everything to its
// files.
func (s *Server) Stop() { s.stop(fast) }

// stop ends the server by a signal and returns when it has ended. A second call does nothing.
func (s *Server) stop(how os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return
	}
	_ = s.proc.Signal(how)
	<-s.proc.exited
	s.proc = nil
}

// end ends the server with its test and removes its files. It says what the server has logged if the
// test has failed.
func (s *Server) end() {
	s.Continue()
	s.stop(immediate)
	if s.t.Failed() {
		s.t.Logf("the end of the server's log:\n%s", s.log())
	}
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Error(err)
	}
}

// Restart starts the server again, on the same port and with its data. A server that runs is killed
// first. A killed server recovers what it had written to its log.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if !s.run() {
		s.t.Fatalf("can't restart the server:\n%s", s.log())
	}
}

// Answers reports whether the server answers soon.
func (s *Server) Answers() bool {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err := s.try("SELECT 1", time.Second); err == nil {
			return true
		}
	}
	return false
}

// Suspend suspends all processes of the server until Continue. The system keeps their connections and
// accepts others, but nothing answers.
func (s *Server) Suspend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		_ = s.proc.Signal(suspend) // it starts no others then
		signal(s.processes(), suspend)
	}
}

// Continue ends the suspension by Suspend.
func (s *Server) Continue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		signal(s.processes(), resume)
	}
}

// processes returns the IDs of the processes of the server, which work in the directory of its data.
func (s *Server) processes() []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, dir := range dirs {
		if to, err := os.Readlink(dir); err == nil && to == s.data() {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// LimitFiles makes each write of the server beyond so many bytes of a file fail, as on a disk that is
// nearly full, until LimitFiles(-1). Its log of 16 MB a file needs as much. A server whose log can't be
// written ends its sessions and may end itself. If the limit is 0, nothing can be written.
func (s *Server) LimitFiles(bytes int64) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := "unlimited:"
	if bytes >= 0 {
		limit = strconv.FormatInt(bytes, 10) + ":" // the soft limit, which may be raised again
	}
	// The first process comes first: it gives its limit to those that it starts.
	for _, pid := range append([]int{s.proc.Pid}, s.processes()...) {
		err := s.home.do("prlimit", "--pid", strconv.Itoa(pid), "--fsize="+limit)
		if err != nil && runs(pid) {
			s.t.Fatal(err)
		}
	}
}

// runs reports whether a process is there.
func runs(pid int) bool {
	_, err := os.Stat("/proc/" + strconv.Itoa(pid))
	return err == nil
}

func signal(pids []int, sig os.Signal) {
	for _, pid := range pids {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Signal(sig) // it may have ended
		}
	}
}

// Command returns a command that runs a program that comes with the server, such as pgbench, as the user
// who runs the server.
func (s *Server) Command(program string, args ...string) *exec.Cmd {
	return s.home.command(filepath.Join(s.bin, program), args...)
}

// Replica starts a replica of the server, and returns when it streams. It ends with the test.
func (s *Server) Replica() *Server {
	s.t.Helper()
	r := newServer(s.t, s.disk, s.env)
	err := s.home.do(filepath.Join(s.bin, "pg_basebackup"), "-D", r.data(), "-d", s.URL(),
		"-R", "-X", "stream", "-c", "fast", "--no-sync")
	if err != nil {
		s.t.Fatal(err)
	}
	r.serve(nil)
	s.t.Cleanup(r.end)
	until(s.t, "the replica streams", func() bool {
		return s.Exec("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") != "0"
	})
	return r
}

// Promote makes a replica a server that writes, and returns when it does.
func (s *Server) Promote() {
	s.t.Helper()
	if got := s.Exec("SELECT pg_promote()"); got != "t" {
		s.t.Fatalf("pg_promote() = %s", got)
	}
}

// WALBytes returns how many bytes the server has added to its log since it was made.
func (s *Server) WALBytes() int64 {
	s.t.Helper()
	n, err := strconv.ParseInt(s.Exec("SELECT pg_current_wal_insert_lsn() - '0/0'"), 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout after %v, waiting until %s", timeout, what)
		}
	}
}
