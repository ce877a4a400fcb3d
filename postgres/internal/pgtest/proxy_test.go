package pgtest

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestProxyDelays(t *testing.T) {
	t.Parallel()
	p, c, _ := startProxy(t)
	const delay = 20 * time.Millisecond
	p.SetDelay(delay)
	start := time.Now()
	ping(t, c)
	if took := time.Since(start); took < 2*delay {
		t.Errorf("a round trip took %v, want at least %v", took, 2*delay)
	}
}

func TestProxyDropsReplies(t *testing.T) {
	t.Parallel()
	p, c, d := startProxy(t)
	d.Exec("CREATE TABLE kept (n int)")
	p.DropReplies(3)
	lost := 0
	for range 9 {
		if c.IsClosed() {
			c = connect(t, p.URL())
		}
		if _, err := c.Exec(t.Context(), "INSERT INTO kept VALUES (1)"); err != nil {
			lost++
		}
	}
	if got := d.Exec("SELECT count(*) FROM kept"); lost != 3 || got != "9" {
		t.Errorf("%d replies were lost and %s rows inserted, want 3 and 9", lost, got)
	}
	p.DropReplies(0)
	ping(t, connect(t, p.URL()))
}

func TestProxyHangs(t *testing.T) {
	t.Parallel()
	p, c, _ := startProxy(t)
	p.Hang(true)
	if !hangs(t, c) {
		t.Error("a proxy that hangs forwards")
	}
	p.Hang(false)
	ping(t, connect(t, p.URL()))
}

func TestProxyCutsAndRefuses(t *testing.T) {
	t.Parallel()
	p, c, _ := startProxy(t)
	p.Refuse(true)
	ping(t, c) // on the existing connection
	if _, err := pgx.Connect(t.Context(), p.URL()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v, want refused", err)
	}
	p.Cut()
	if err := c.Ping(t.Context()); err == nil {
		t.Error("a connection that was cut answers")
	}
	p.Refuse(false)
	ping(t, connect(t, p.URL()))
}

func TestProxyCounts(t *testing.T) {
	t.Parallel()
	p, c, _ := startProxy(t)
	before := map[string]int{}
	for _, types := range []string{"Q", "P", "E", "S"} {
		before[types] = p.Sent(types)
	}
	batch := new(pgx.Batch)
	for range 3 {
		batch.Queue("SELECT $1::int", 1)
	}
	if err := c.SendBatch(t.Context(), batch).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "SELECT 1", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	for types, want := range map[string]int{"Q": 1, "P": 3, "E": 3, "S": 1} {
		if got := p.Sent(types) - before[types]; got != want {
			t.Errorf("%d messages of type %s, want %d", got, types, want)
		}
	}
	other := connect(t, p.URL())
	if got := p.Conns(); got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
	other.Close(t.Context())
	until(t, "one connection is left", func() bool { return p.Conns() == 1 })
}

// A client that asks for encryption first, as libpq does, is counted like any other.
func TestProxyUnderstandsStartup(t *testing.T) {
	t.Parallel()
	p := &Proxy{sent: make(map[byte]int)}
	c := &tap{proxy: p}
	p.DropReplies(1)
	askTLS := "\x00\x00\x00\x08\x04\xd2\x16\x2f"
	startup := "\x00\x00\x00\x0b\x00\x03\x00\x00u\x00\x00"
	query := "Q\x00\x00\x00\x06;\x00"
	for _, b := range []byte(askTLS) { // in as many pieces as possible
		c.Request([]byte{b})
	}
	ready := "Z\x00\x00\x00\x05I"
	if !c.Reply([]byte("N")) || !c.Reply([]byte("R\x00\x00\x00\x08\x00\x00\x00\x00"+ready)) {
		t.Error("a reply to the start of a connection is dropped")
	}
	for _, b := range []byte(startup + query) {
		c.Request([]byte{b})
	}
	c.Request([]byte(query + query))
	if got := p.Sent("QZ"); got != 3 {
		t.Errorf("%d queries, want 3", got)
	}
	if !c.Reply([]byte("C\x00\x00\x00\x05Z")) {
		t.Error("a part of a reply is dropped")
	}
	if c.Reply([]byte(ready)) {
		t.Error("a reply is not dropped")
	}
}

// startProxy returns a proxy in front of a database, and a client that is connected through it.
func startProxy(t *testing.T) (*Proxy, *pgx.Conn, *Database) {
	t.Helper()
	d := Shared(t)
	p := NewProxy(t, d)
	return p, connect(t, p.URL()), d
}

func ping(t *testing.T, c *pgx.Conn) {
	t.Helper()
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
}
