package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

func TestServer(t *testing.T) {
	t.Parallel()
	s := Start(t, "max_connections = 42", OnDisk)
	if got := s.Exec("SELECT 'a', 'b'; SELECT current_setting('max_connections') || current_setting('fsync')"); got != "42on" {
		t.Errorf("the settings are %q, want 42on", got)
	}
	if got := s.Exec("SELECT 1 WHERE false"); got != "" {
		t.Errorf("no row = %q", got)
	}
	if !strings.HasPrefix(s.data(), s.home.dir) {
		t.Errorf("the data is in %s, want in %s", s.data(), s.home.dir)
	}
	c := connect(t, s.SocketURL())
	var addr *string
	if err := c.QueryRow(t.Context(), "SELECT inet_server_addr()::text").Scan(&addr); err != nil || addr != nil {
		t.Errorf("through the socket: at %v, %v", addr, err)
	}
	wrong := strings.Replace(s.URL(), s.password, "wrong", 1)
	if c, err := pgx.Connect(t.Context(), wrong); err == nil {
		c.Close(t.Context())
		t.Error("a wrong password opens a connection")
	}
}

func TestKilledServerRecovers(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Exec("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)")
	c := connect(t, s.URL())
	s.Kill()
	s.Kill()
	if err := c.Ping(t.Context()); err == nil {
		t.Error("a killed server answers")
	}
	if pids := s.processes(); len(pids) > 0 {
		t.Errorf("processes %v run after a Kill", pids)
	}
	refused(t, s.Addr())
	s.Restart()
	if got := s.Exec("SELECT n FROM kept"); got != "7" {
		t.Errorf("the table has %q, want 7", got)
	}
	if log := s.log(); !strings.Contains(log, "automatic recovery in progress") {
		t.Errorf("the server did not recover:\n%s", log)
	}
}

func TestStoppedServerKeepsAll(t *testing.T) {
	t.Parallel()
	s := Start(t, "synchronous_commit = off", "wal_writer_delay = 10s")
	s.Exec("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)")
	s.Stop()
	s.Stop()
	refused(t, s.Addr())
	s.Restart()
	if got := s.Exec("SELECT n FROM kept"); got != "7" {
		t.Errorf("the table has %q, want 7", got)
	}
}

// What was committed with synchronous_commit = off is lost, unless the writer of the log was faster.
func TestKilledServerLosesWhatIsNotInItsLog(t *testing.T) {
	t.Parallel()
	s := Start(t, "synchronous_commit = off", "wal_writer_delay = 10s")
	s.Exec("CREATE TABLE kept (n int)")
	s.Exec("CHECKPOINT")
	inserted := 0
	until(t, "a row is lost", func() bool {
		s.Exec("INSERT INTO kept VALUES (7)")
		inserted++
		s.Restart()
		return s.Exec("SELECT count(*) FROM kept") != strconv.Itoa(inserted)
	})
}

func TestSuspendedServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := Start(t)
	c := connect(t, s.URL())
	s.Suspend()
	if !hangs(t, c) {
		t.Error("a session of a suspended server answers")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := pgx.Connect(ctx, s.URL()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a connection to a suspended server: %v, want a timeout", err)
	}
	s.Continue()
	if got := s.Exec("SELECT 1"); got != "1" {
		t.Errorf("got %q", got)
	}
}

func TestServersEndWithTheTest(t *testing.T) {
	t.Parallel()
	var s *Server
	t.Run("part", func(t *testing.T) {
		s = Start(t)
		s.Suspend() // a suspended server ends too
	})
	if s == nil {
		return // skipped, because there is no server
	}
	refused(t, s.Addr())
	if pids := s.processes(); len(pids) > 0 {
		t.Errorf("processes %v run after the test", pids)
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory after the test: %v, want none", err)
	}
}

// A test that is killed can't end its servers.
func TestServersEndWithAKilledTest(t *testing.T) {
	const victim = "PGTEST_VICTIM"
	if os.Getenv(victim) != "" {
		s := Start(t)
		s.Suspend()
		fmt.Println("at", s.home.dir, s.home.memory, s.proc.Pid)
		select {}
	}
	t.Parallel()
	Shared(t) // or skip
	test := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	test.Env = append(os.Environ(), victim+"=1")
	output, err := test.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := test.Start(); err != nil {
		t.Fatal(err)
	}
	var dir, memory string
	var pid int
	for lines := bufio.NewScanner(output); pid == 0 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "at %s %s %d", &dir, &memory, &pid)
	}
	_ = test.Process.Kill()
	_ = test.Wait()
	if pid == 0 {
		t.Fatal("no server")
	}
	until(t, "the server has ended and its files are gone", func() bool {
		_, onDisk := os.Stat(dir)
		_, inMemory := os.Stat(memory)
		return errors.Is(onDisk, os.ErrNotExist) && errors.Is(inMemory, os.ErrNotExist) && !runs(pid)
	})
	all, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range all {
		if to, _ := os.Readlink(link); strings.HasPrefix(to, memory+"/") {
			t.Errorf("%s is %s", link, to)
		}
	}
}

func TestSharedDatabases(t *testing.T) {
	t.Parallel()
	var dropped string
	t.Run("part", func(t *testing.T) {
		a, b := Shared(t), Shared(t)
		if a.Addr() != b.Addr() {
			t.Errorf("the databases are at %s and %s, want one server", a.Addr(), b.Addr())
		}
		a.Exec("CREATE TABLE mine (n int)")
		if got := b.Exec("SELECT count(*) FROM pg_tables WHERE tablename = 'mine'"); got != "0" {
			t.Error("a database has the table of another")
		}
		connect(t, a.URL()) // is still open when the database is dropped
		dropped = a.name
	})
	if dropped == "" {
		return // skipped
	}
	if got := Shared(t).Exec("SELECT count(*) FROM pg_database WHERE datname = '" + dropped + "'"); got != "0" {
		t.Errorf("the database %s is there after its test", dropped)
	}
}

func TestAnotherRole(t *testing.T) {
	t.Parallel()
	d := Shared(t)
	d.Exec("CREATE TABLE mine (n int)")
	d.Exec("CREATE ROLE another LOGIN PASSWORD 'other'")
	defer d.Exec("DROP ROLE another")
	as := d.As("another", "other")
	if got := as.Exec("SELECT current_user"); got != "another" {
		t.Errorf("the role is %s, want another", got)
	}
	if _, err := as.PgBouncer().try("SELECT * FROM mine", timeout); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("reading the table of the first role: %v, want permission denied", err)
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Exec("CREATE TABLE kept (n int)")
	dump, err := s.Command("pg_dump", "-d", s.URL()).Output()
	if err != nil || !strings.Contains(string(dump), "CREATE TABLE public.kept") {
		t.Errorf("pg_dump printed %q, %v, want the table", dump, err)
	}
}

func TestWALBytes(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Exec("CREATE TABLE big (b bytea)")
	before := s.WALBytes()
	s.Exec("INSERT INTO big SELECT sha512(n::text::bytea) FROM generate_series(1, 1000) AS n")
	if got := s.WALBytes() - before; got < 64_000 || got > 640_000 {
		t.Errorf("1,000 rows of 64 bytes took %d bytes", got)
	}
}

func TestLimitedFilesAreFull(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Exec("CREATE TABLE big (b bytea)")
	s.LimitFiles(16 << 20)
	grow := "INSERT INTO big SELECT sha512(n::text::bytea) FROM generate_series(1, 200000) AS n"
	if _, err := s.try(grow, timeout); err == nil || !strings.Contains(err.Error(), "File too large") {
		t.Errorf("a table of more than 16 MB: %v, want an error that the file is too large", err)
	}
	s.LimitFiles(-1)
	s.Exec(grow)
}

func TestReplica(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Exec("CREATE TABLE kept (n int)")
	r := s.Replica()
	s.Exec("INSERT INTO kept VALUES (7)")
	until(t, "the replica has the row", func() bool { return r.Exec("SELECT n FROM kept") == "7" })
	if _, err := r.try("INSERT INTO kept VALUES (8)", timeout); err == nil {
		t.Error("a replica writes")
	}
	s.Kill()
	r.Promote()
	r.Exec("INSERT INTO kept VALUES (8)")
}

func TestClock(t *testing.T) {
	t.Parallel()
	s, step := StartWithClock(t)
	c := connect(t, s.URL())
	for _, tt := range []struct{ by, want time.Duration }{
		{0, 0},
		{-8 * time.Second, -8 * time.Second},
		{30 * time.Second, 22 * time.Second},
	} {
		step(tt.by)
		var now time.Time
		if err := c.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&now); err != nil {
			t.Fatal(err)
		}
		if got := time.Until(now).Round(time.Second); got != tt.want {
			t.Errorf("after a step by %v the clock is ahead by %v, want %v", tt.by, got, tt.want)
		}
		micros, _ := strconv.ParseInt(s.Exec("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"), 10, 64)
		if got := time.Until(time.UnixMicro(micros)).Round(time.Second); got != tt.want {
			t.Errorf("after a step by %v the clock of a new session is ahead by %v, want %v", tt.by, got, tt.want)
		}
	}
}

func TestPgBouncer(t *testing.T) {
	t.Parallel()
	b := Shared(t).PgBouncer("default_pool_size = 1")
	one, other := connect(t, b.URL()), connect(t, b.URL())
	if got, want := pid(t, one), pid(t, other); got != want {
		t.Errorf("two clients have the sessions %s and %s, want one in turn", got, want)
	}
	if _, err := one.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	if !hangs(t, other) {
		t.Error("a client is served while a transaction has the only connection")
	}
}

// A server that is named or required must be there.
func TestNoServer(t *testing.T) {
	t.Setenv("THROTTLE_SKIPPED", "") // a skip of the spy is not a skipped test
	t.Setenv("PATH", t.TempDir())
	for _, test := range []struct{ server, require, want string }{
		{"", "", "skipped: initdb"},
		{"", "1", "failed: initdb"},
		{"/no-such-directory", "", "failed: /no-such-directory"},
		{"/no-such-directory", "1", "failed: /no-such-directory"},
	} {
		t.Setenv(named, test.server)
		t.Setenv(require, test.require)
		spy := &spy{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			binariesOr(spy, filepath.Join(t.TempDir(), "*", "initdb"))
		}()
		<-done
		how, who, _ := strings.Cut(test.want, ": ")
		if !strings.HasPrefix(spy.ended, how) || !strings.Contains(spy.ended, who) {
			t.Errorf("%q, want %s and the name %s", spy.ended, how, who)
		}
	}
}

func TestNewestServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(named, "")
	dir := t.TempDir()
	for _, version := range []string{"9.6", "13", "15"} {
		if err := os.MkdirAll(filepath.Join(dir, version, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, version, "bin", "initdb"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := findBinaries(dir + "/*/bin/initdb"); err != nil || got != filepath.Join(dir, "15", "bin") {
		t.Errorf("found %s, %v, want version 15", got, err)
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

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // which prepares nothing
	c, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Close(ctx)
	})
	return c
}

// pid returns the ID of the process that serves the connection.
func pid(t *testing.T, c *pgx.Conn) string {
	t.Helper()
	var pid string
	if err := c.QueryRow(t.Context(), "SELECT pg_backend_pid()::text").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// hangs reports whether a connection gets no answer for 50 ms. It is of no use afterward.
func hangs(t *testing.T, c *pgx.Conn) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	return errors.Is(c.Ping(ctx), context.DeadlineExceeded)
}

func refused(t *testing.T, addr string) {
	t.Helper()
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialing %s: %v, want refused", addr, err)
	}
}
