package pgurl

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/postgres"
)

// TestParse reads URLs with the options of the store, with those of pgx, and with neither.
func TestParse(t *testing.T) {
	for _, tt := range []struct {
		url     string
		conns   int32
		idle    time.Duration
		options postgres.Options
	}{
		{"postgres://u:p@h/d", 3, 5 * time.Second, postgres.Options{Conns: 2}},
		{"postgresql://u:p%40%2F@h:1,i:2/d?sslmode=disable&sync=true&poll_only=1", 3, 5 * time.Second, postgres.Options{Conns: 2, Sync: true, PollOnly: true}},
		{"postgres://h/d?table=a.b&timeout=2s&horizon=100ms&lease=30s", 3, 5 * time.Second,
			postgres.Options{Conns: 2, Table: "a.b", Timeout: 2 * time.Second, Horizon: 100 * time.Millisecond, Lease: 30 * time.Second}},
		{"postgres://h/d?pool_max_conns=9&pool_max_conn_idle_time=1h", 9, time.Hour, postgres.Options{Conns: 8}},
		{"postgres://h/d?pool_max_conns=1", 1, 5 * time.Second, postgres.Options{Conns: 1, PollOnly: true}},
	} {
		pool, o, err := Parse(tt.url)
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		if o.OnLost != nil || pool.MaxConns != tt.conns || pool.MaxConnIdleTime != tt.idle || pool.MinConns != 0 || pool.MinIdleConns != 0 {
			t.Errorf("%s: %d connections, idle for %v", tt.url, pool.MaxConns, pool.MaxConnIdleTime)
		}
		if got := [7]any{o.Table, o.Timeout, o.Horizon, o.Lease, o.Conns, o.PollOnly, o.Sync}; got != [7]any{
			tt.options.Table, tt.options.Timeout, tt.options.Horizon, tt.options.Lease, tt.options.Conns, tt.options.PollOnly, tt.options.Sync,
		} {
			t.Errorf("%s: options %v, want those of %+v", tt.url, got, tt.options)
		}
		for name := range pool.ConnConfig.RuntimeParams {
			if parameters[name] != nil {
				t.Errorf("%s: the server would receive %s", tt.url, name)
			}
		}
	}
}

// TestParseUsesPasswordFile checks that the password may come from a file, as for other clients.
func TestParseUsesPasswordFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pgpass")
	if err := os.WriteFile(file, []byte("h:5432:d:u:of the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGPASSFILE", file)
	pool, _, err := Parse("postgres://u@h:5432/d")
	if err != nil || pool.ConnConfig.Password != "of the file" {
		t.Errorf("the password is not that of the file: %v", err)
	}
	t.Setenv("PGPASSWORD", "of the variable")
	pool, _, err = Parse("postgres://u@h:5432/d")
	if err != nil || pool.ConnConfig.Password != "of the variable" {
		t.Errorf("the password is not that of the variable: %v", err)
	}
}

// TestErrorsHideSecrets checks that no error about a URL has a part of its password, wherever the password ends
// up, and that each says what to do.
func TestErrorsHideSecrets(t *testing.T) {
	const canary = "CANARYCANARY"
	for url, want := range map[string]string{
		canary:                                                                       "use postgres://",
		"mysql://u:" + canary + "@h/d":                                               "use postgres://",
		"postgres://u:" + canary + "@h:port/d":                                       "check its port",
		"postgres://u:" + canary + "%zz@h/d":                                         "check its port",
		"postgres://u:1/" + canary + "@h/d":                                          "write @ / ? and # in them as %40",
		"postgres://u:1?x=" + canary + "@h/d":                                        "write @ / ? and # in them as %40",
		"postgres://u:1@" + canary + "@h/d":                                          "write @ / ? and # in them as %40",
		"postgres://u:" + canary + "@h/d?sslmode=" + canary:                          "such as sslmode",
		"postgres://u@h/d?password=" + canary + "&port=x":                            "check its port",
		"postgres://u:" + canary + "@h/d?timeout=" + canary:                          "has a wrong timeout: it must be a length of time",
		"postgres://u:" + canary + "@h/d?lease=0s":                                   "has a wrong lease: it must be a length of time from 1ms",
		"postgres://u:" + canary + "@h/d?sync=" + canary:                             "has a wrong sync: it must be true or false",
		"postgres://u:" + canary + "@h/d?table=a.b.c":                                "it must be the name of a table",
		"postgres://u:" + canary + "@h/d?sslmode=verify-ca&sslrootcert=/missing.pem": "open /missing.pem: no such file",
	} {
		_, _, err := Parse(url)
		if err == nil || strings.Contains(err.Error(), canary) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
		if at := Where(url); at != "PostgreSQL" {
			t.Errorf("%s is at %q", url, at)
		}
	}
}

// TestPing connects to servers that refuse: the error is one line, and has neither user nor password.
func TestPing(t *testing.T) {
	const canary = "CANARYCANARY"
	for query, tt := range map[string]struct {
		answer func(net.Conn)
		want   string
	}{
		"sslmode=disable": {func(c net.Conn) {
			c.Read(make([]byte, 1000))
			fields := "SFATAL\x00C28P01\x00Mpassword authentication failed\x00\x00"
			c.Write(append([]byte{'E', 0, 0, 0, byte(len(fields) + 4)}, fields...))
		}, "FATAL: password authentication failed (SQLSTATE 28P01)"},
		"sslmode=require": {func(c net.Conn) { c.Read(make([]byte, 1000)); c.Write([]byte("N")) }, "server refused TLS connection"},
		"sslmode=verify-full": {func(c net.Conn) {
			c.Read(make([]byte, 1000))
			c.Write([]byte("S"))
			c.Read(make([]byte, 1000))
			c.Write([]byte("this is not TLS"))
		}, "tls: first record does not look like a TLS handshake"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				tt.answer(c)
				c.Close()
			}
		}()
		url := "postgres://" + canary + ":" + canary + "@" + l.Addr().String() + "/" + canary + "?" + query
		err = Ping(t.Context(), url)
		if err == nil || strings.Contains(err.Error(), canary) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", query, err, tt.want)
		}
		if at := Where(url); at != "PostgreSQL at "+l.Addr().String() {
			t.Errorf("the server is at %q", at)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Ping(ended, "postgres://"+canary+":"+canary+"@127.0.0.1:1/d"); err != context.Canceled {
		t.Errorf("without time: %v", err)
	}
}
