package redismem_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/internal/redismem"
)

// TestScripts checks that a script gets and gives the replies that it gets and gives on a miniredis
// that defines it with each call.
func TestScripts(t *testing.T) {
	const script = `
local function run(keys, argv)
	local reply = redis.pcall(unpack(argv))
	if type(reply) == 'table' then
		reply = {'of', #reply, reply.err or reply.ok or unpack(reply)}
	end
	if #keys == 2 then
		return redis.error_reply('ERR two keys')
	end
	return {#keys, keys[1] or false, true, 2.5, {reply, {}}}
end
return run(KEYS, ARGV)
`
	mem, plain := redismem.New(), miniredis.RunT(t)
	defer mem.Close()
	servers := []*miniredis.Miniredis{mem, plain}
	var clients []*redis.Client
	for _, s := range servers {
		s.SetTime(time.Unix(1_000_000, 0))
		rdb := redismem.Dial(s, func() time.Duration { return 0 })
		defer rdb.Close()
		clients = append(clients, rdb)
	}
	both := func(what string, do func(*redis.Client) *redis.Cmd) {
		t.Helper()
		var got []string
		for _, rdb := range clients {
			reply, err := do(rdb).Result()
			got = append(got, fmt.Sprintf("%#v, %v", reply, err))
		}
		if got[0] != got[1] {
			t.Errorf("%s: got %s, want %s of miniredis", what, got[0], got[1])
		}
		t.Log(what, got[0])
	}
	load := func() (sha string) {
		for _, rdb := range clients {
			var err error
			if sha, err = rdb.ScriptLoad(t.Context(), script).Result(); err != nil {
				t.Fatal(err)
			}
		}
		return sha
	}
	sha := load()
	call := func(keys []string, args ...any) {
		t.Helper()
		both(fmt.Sprint(keys, args), func(rdb *redis.Client) *redis.Cmd { return rdb.EvalSha(t.Context(), sha, keys, args...) })
	}
	call(nil, "TIME")
	call([]string{"k"}, "HSET", "h", "a", "1")
	call([]string{"k"}, "HMGET", "h", "a", "missing")
	call([]string{"k"}, "SETRANGE", "s", "2", "\x00\r\n\xff")
	call([]string{"k"}, "GETRANGE", "s", "0", "-1")
	call([]string{"k"}, "INCRBY", "n", "-7")
	call([]string{"k"}, "SET", "n", "-7")
	call([]string{"k"}, "GET", "missing")
	call([]string{"k"}, "INCRBY", "s", "1")
	call([]string{"k", "l"}, "HSET", "h", "b", "1")
	both("the state of a client", func(rdb *redis.Client) *redis.Cmd { return rdb.Do(t.Context(), "HGETALL", "h") })
	both("too many keys", func(rdb *redis.Client) *redis.Cmd { return rdb.Do(t.Context(), "EVALSHA", sha, "3", "k") })
	both("flush", func(rdb *redis.Client) *redis.Cmd { return rdb.Do(t.Context(), "SCRIPT", "FLUSH") })
	call(nil, "TIME")
	load()
	call(nil, "TIME")
}

// TestWideNumbers checks that numbers have 64 bits where an int has 32: in the replies of all scripts,
// and in the expiries of keys.
func TestWideNumbers(t *testing.T) {
	m := redismem.New()
	defer m.Close()
	rdb := redismem.Dial(m, nil)
	defer rdb.Close()
	const script = "redis.call('SET', KEYS[1], 'v', 'PX', ARGV[1]) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return ARGV[1] + 0"
	const month, key = int64(30 * 24 * 3600 * 1000), "k" // month in ms
	sha, err := rdb.ScriptLoad(t.Context(), script).Result()
	if err != nil {
		t.Fatal(err)
	}
	for what, cmd := range map[string]*redis.Cmd{
		"EVAL":    rdb.Eval(t.Context(), script, []string{key}, month),
		"EVALSHA": rdb.EvalSha(t.Context(), sha, []string{key}, month),
	} {
		if got, err := cmd.Int64(); got != month || err != nil {
			t.Errorf("%s: got %d, %v, want %d", what, got, err, month)
		}
	}
	if left := m.TTL(key); left < 20*24*time.Hour {
		t.Errorf("the key expires in %v, want weeks", left)
	}
}
