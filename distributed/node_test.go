package distributed

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	peer "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/store"
)

// Each command of a pipeline gets a reply or an error, whatever the server refuses or replies.
func TestPipelined(t *testing.T) {
	for _, tt := range []struct {
		refused string // command
		write   func(c *peer.Peer)
		want    string // part of the error
	}{
		{"SELECT", func(c *peer.Peer) { c.WriteError("LOADING Redis is loading the dataset in memory") }, "LOADING"},
		{"EVALSHA", func(c *peer.Peer) { c.WriteError("READONLY You can't write against a read only replica.") }, "READONLY"},
		{"EVALSHA", func(c *peer.Peer) { c.WriteNull() }, "nil"},
		{"EVALSHA", func(c *peer.Peer) { c.WriteInline("OK") }, "OK"},
		{"EVALSHA", func(c *peer.Peer) { c.WriteLen(0) }, "0 numbers"},
		{"EVALSHA", func(c *peer.Peer) { c.WriteLen(2); c.WriteInt(1); c.WriteInt(2) }, "2 numbers"},
		{"EVALSHA", func(c *peer.Peer) { c.WriteLen(headerLen); c.Close() }, "EOF"},
	} {
		m := miniredis.RunT(t)
		m.Server().SetPreHook(func(c *peer.Peer, cmd string, _ ...string) bool {
			if cmd == tt.refused {
				tt.write(c)
			}
			return cmd == tt.refused
		})
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), DB: 1})
		defer rdb.Close()
		cmds := make([]once, 3)
		for i := range cmds {
			cmds[i] = once{redis.NewIntSliceCmd(t.Context(), "evalsha", peekSHA, 1, "key")}
		}
		_ = pipelined(t.Context(), rdb, cmds)
		for i, cmd := range cmds {
			if reply, err := cmd.answer(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: command %d: got reply %d and error %v, want an error that contains %s", tt.refused, i, reply, err, tt.want)
			}
		}
	}
}

// TestScriptIsLoaded checks that a server without functions receives the script once, and again after it has
// lost it, in a way in which newer servers keep it.
func TestScriptIsLoaded(t *testing.T) {
	m := miniredis.RunT(t)
	var loaded, evaluated atomic.Int64
	m.Server().SetPreHook(func(_ *peer.Peer, cmd string, args ...string) bool {
		switch {
		case cmd == "EVAL":
			evaluated.Add(1)
		case cmd == "SCRIPT" && strings.EqualFold(args[0], "load"):
			loaded.Add(1)
		}
		return false
	})
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	q, err := New(rdb, Options{Timeout: 20 * time.Second}).Open("q", planOf(t, 0, "100/h"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for loads := int64(1); loads < 3; loads++ {
		for range 3 {
			if d, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}}); err != nil || d.Verdict != store.Admitted {
				t.Fatal(d, err)
			}
		}
		if evaluated.Load() > 0 || loaded.Load() != loads {
			t.Errorf("got %d loads of the script and %d times its text in a call, want %d and 0", loaded.Load(), evaluated.Load(), loads)
		}
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNestedNames checks that a quota whose key names an outer quota is in the slot of that quota, with
// its leases, and that different keys have different names.
func TestNestedNames(t *testing.T) {
	for _, prefix := range []string{"throttle:", "{team}:"} {
		s := New(redis.NewClient(&redis.Options{Addr: "localhost:1"}), Options{Prefix: prefix})
		outer := s.name("api/account\x00a")
		names := []string{outer}
		for _, key := range []string{"api/model\x00api/account\x00a\x01m", "api/model\x00api/account\x00a\x01n", "api/other\x00api/account\x00a\x01m"} {
			names = append(names, s.name(key))
		}
		for i, name := range names {
			for _, key := range append(s.leaseKeys(name), name) {
				if slot(key) != slot(outer) || !strings.HasPrefix(key, prefix) {
					t.Errorf("got %s, want it in the slot of %s", key, outer)
				}
			}
			if slices.Contains(names[:i], name) {
				t.Errorf("got the name %s twice", name)
			}
		}
	}
}

// The slots are those of the specification, https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/,
// read on 2026-11-28, and of CLUSTER KEYSLOT.
func TestSlot(t *testing.T) {
	for key, want := range map[string]int{
		"123456789": 0x31C3, "": 0, "foo": 12182, "bar": 5061, "{foo}.x": 12182, "a{foo}{bar}": 12182,
	} {
		if got := slot(key); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
	if slot("{}foo") == slot("foo") || slot("foo{") == slot("foo") {
		t.Error("braces without a text are part of the key")
	}
}
