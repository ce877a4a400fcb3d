package distributed

import (
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	peer "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
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
