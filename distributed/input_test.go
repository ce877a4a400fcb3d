package distributed_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/redistest"
)

// The tests here give bad input. Each case must soon end in an error that names the fault and the
// fix, and must admit nothing.

func named(tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: "vendor api", Tiers: tiers, Guard: slow}
}

func client(t *testing.T, o *redis.Options) *redis.Client {
	t.Helper()
	o.DialTimeout, o.DialerRetries, o.ReadTimeout = slow, 1, slow
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

// checkError checks that an error contains all parts.
func checkError(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: got no error, want one that contains %q", what, parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got error %v, want one that contains %q", what, err, part)
		}
	}
}

// checkFails checks that a limiter admits nothing and returns an error with all parts before its
// caller gives up.
func checkFails(t *testing.T, what string, l *throttle.Limiter, parts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := l.Wait(ctx)
	checkError(t, what, err, append(parts, `policy "vendor api"`)...)
	if errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("%s: got %v, which matches ErrUnavailable, want an error that does not", what, err)
	}
	if l.Allow() {
		t.Errorf("%s: got Allow = true, want false", what)
	}
	_, err = l.Status(context.Background())
	checkError(t, what+", Status", err, parts...)
	checkError(t, what+", Pause", l.Pause(context.Background(), time.Microsecond), parts...)
}

func TestInputOptions(t *testing.T) {
	rdb := client(t, &redis.Options{Addr: "localhost:1"})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": "localhost:1"}})
	t.Cleanup(func() { ring.Close() })
	for _, test := range []struct {
		what  string
		rdb   redis.UniversalClient
		o     distributed.Options
		parts []string
	}{
		{"no client", nil, distributed.Options{}, []string{"client is nil"}},
		{"a nil *Client", (*redis.Client)(nil), distributed.Options{}, []string{"client is nil"}},
		{"a nil *ClusterClient", (*redis.ClusterClient)(nil), distributed.Options{}, []string{"client is nil"}},
		{"a Ring", ring, distributed.Options{}, []string{"redis.Ring"}},
		{"Timeout", rdb, distributed.Options{Timeout: -sec}, []string{"Options.Timeout is -1s", "from 1ms"}},
		{"Horizon", rdb, distributed.Options{Horizon: -1}, []string{"Options.Horizon is -1ns", "from 1ms"}},
		{"Lease", rdb, distributed.Options{Lease: -ms}, []string{"Options.Lease is -1ms", "from 1ms"}},
		{"a lease that is too long", rdb, distributed.Options{Lease: 2 * hour}, []string{"Options.Lease is 2h", "to 1h"}},
		{"Workers", rdb, distributed.Options{Fallback: distributed.Fallback{Workers: -1}}, []string{"Options.Fallback.Workers is -1"}},
		{"an open tag", rdb, distributed.Options{Prefix: "a{b:"}, []string{`Options.Prefix is "a{b:"`, `"{team}:"`}},
		{"an empty tag", rdb, distributed.Options{Prefix: "{}:"}, []string{`Options.Prefix is "{}:"`}},
		{"a lone brace", rdb, distributed.Options{Prefix: "a}b:"}, []string{`Options.Prefix is "a}b:"`}},
		{"several fields", nil, distributed.Options{Timeout: -1, Lease: -1}, []string{"client is nil", "Options.Timeout", "Options.Lease"}},
	} {
		_, err := throttle.New(named(throttle.PerSecond(5)), distributed.New(test.rdb, test.o))
		checkError(t, test.what, err, append(test.parts, `policy "vendor api"`)...)
	}
	_, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5)}}, distributed.New(rdb, distributed.Options{Timeout: slow}))
	checkError(t, "no name", err, "Name is empty")
}

// New makes no connection. A caller that waits for a server that is not there gets the cause when
// its context ends.
func TestInputNoServer(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	l := limiter(t, named(throttle.PerSecond(5)), distributed.New(client(t, &redis.Options{Addr: closed.Addr().String()}), distributed.Options{}))
	for timeout := 300 * ms; ; timeout *= 2 { // a busy machine may not have dialed yet
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		err = l.Wait(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the context's error", err)
		}
		if errors.Is(err, throttle.ErrUnavailable) || timeout > 10*sec {
			break
		}
	}
	checkError(t, "no server", err, "refused", `policy "vendor api"`)
	if l.Allow() {
		t.Error("got Allow = true, want false")
	}
}

// An error that a server may overcome later counts as unavailability. This includes the texts of
// servers before Redis 7, which begin with the line of the script. (These are the texts of Redis
// 6.2.14.)
func TestInputScriptErrors(t *testing.T) {
	const at = "ERR Error running script (call to f_0123): @user_script:1234: @user_script: 1234: "
	for text, unavailable := range map[string]bool{
		at + "-OOM command not allowed when used memory > 'maxmemory'.":        true,
		at + "-READONLY You can't write against a read only replica.":          true,
		at + "-NOREPLICAS Not enough good replicas to write.":                  true,
		at + "-MISCONF Redis is configured to save RDB snapshots, but is not.": true,
		"OOM command not allowed when used memory > 'maxmemory'.":              true,
		at + "The user executing the script can't run this command":            false,
		at + "attempt to index a nil value: -1":                                false,
	} {
		t.Run(text, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				rdb := near(t, s)
				if err := rdb.Ping(t.Context()).Err(); err != nil { // starts the server
					t.Fatal(err)
				}
				redismem.Hook(s, func(c *server.Peer, cmd string, _ ...string) bool {
					if cmd == "EVALSHA" {
						c.WriteError(text)
					}
					return cmd == "EVALSHA"
				})
				_, err := limiter(t, named(throttle.PerSecond(5)), distributed.New(rdb, distributed.Options{})).Status(t.Context())
				if err == nil || errors.Is(err, throttle.ErrUnavailable) != unavailable {
					t.Errorf("got %v, want ErrUnavailable matched: %v", err, unavailable)
				}
				if strings.Contains(text, "user executing") {
					checkError(t, "a right", err, "lacks a right")
				}
			})
		})
	}
}

// Replies that the script never gives count as unavailability: callers wait until they get valid
// ones.
func TestInputReplies(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			rdb := near(t, s)
			if err := rdb.Ping(t.Context()).Err(); err != nil { // starts the server
				t.Fatal(err)
			}
			var mu sync.Mutex
			src, left := rand.New(rand.NewPCG(seed, 1)), 100
			odd := []int64{math.MinInt64, -1 << 40, -3, -2, -1, 0, 1, 2, 3, 64, 65, 1 << 40, math.MaxInt64}
			reply := func() (numbers []int64) {
				mu.Lock()
				defer mu.Unlock()
				if left--; left < 0 || left%3 == 0 {
					return nil
				}
				now := time.Now().UnixMicro()
				numbers = []int64{now, 0, 1000, 0, 0, 0, now, now}
				for range src.IntN(20) {
					numbers = append(numbers, odd[src.IntN(len(odd))])
				}
				return numbers
			}
			redismem.Hook(s, func(c *server.Peer, cmd string, args ...string) bool {
				if cmd != "EVALSHA" {
					return false
				}
				numbers := reply()
				if numbers != nil {
					c.WriteLen(len(numbers))
				}
				for _, n := range numbers {
					c.WriteRaw(fmt.Sprintf(":%d\r\n", n))
				}
				return numbers != nil
			})
			l := limiter(t, named(throttle.PerSecond(1000), throttle.Budget(1000, "", throttle.Month)), distributed.New(rdb, distributed.Options{}))
			var callers sync.WaitGroup
			for range 100 {
				callers.Go(func() {
					l.Allow()
					if err := l.Wait(context.Background()); err != nil && !errors.Is(err, throttle.ErrExhausted) && !errors.Is(err, throttle.ErrExceedsCapacity) {
						t.Error(err)
					}
				})
			}
			callers.Wait()
			if err := l.Wait(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}

// documentedRights returns the command that gives a user the rights of the package documentation.
func documentedRights(without string, more ...string) []any {
	rights := []any{"ACL", "SETUSER", "limiter", "on", ">secret", "~throttle:*", "resetchannels", "&throttle:*"}
	for _, r := range append([]string{"+evalsha", "+eval", "+script|load", "+time", "+get", "+set", "+getrange", "+setrange",
		"+pexpire", "+publish", "+subscribe", "+unsubscribe", "+ping"}, more...) {
		if r != without {
			rights = append(rights, r)
		}
	}
	return rights
}

// grant gives a user the documented rights. It skips the test if the server has no users.
func grant(t *testing.T, s *redistest.Server, without string, more ...string) {
	t.Helper()
	version := s.Info("server", "redis_version")
	if strings.HasPrefix(version, "5.") {
		t.Skip("Redis 5 has no users")
	}
	rights := slices.DeleteFunc(documentedRights(without, more...), func(right any) bool {
		return strings.HasPrefix(version, "6.0.") && (right == "resetchannels" || right == "&throttle:*")
	})
	if err := s.Client().Do(context.Background(), rights...).Err(); err != nil {
		t.Fatal(err)
	}
}

// A restricted is a Cluster whose user has the documented rights and no others.
type restricted struct {
	*redistest.Cluster
	addrs []string
}

func startRestricted(t *testing.T, more ...string) *restricted {
	t.Helper()
	c := &restricted{Cluster: redistest.StartCluster(t, 3, 0)}
	for _, n := range c.Nodes {
		c.addrs = append(c.addrs, n.Addr())
		grant(t, n, "", append([]string{"+cluster|slots", "+command", "+asking"}, more...)...)
	}
	return c
}

// limiter returns a limiter of a process that has its own connection.
func (c *restricted) limiter(t *testing.T, p throttle.Policy, o distributed.Options) *throttle.Limiter {
	t.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: c.addrs, Username: "limiter", Password: "secret",
		DialTimeout: slow, DialerRetries: 1, ReadTimeout: slow, ClusterStateReloadInterval: sec,
	})
	t.Cleanup(func() { rdb.Close() })
	o.Timeout = slow
	return limiter(t, p, distributed.New(rdb, o))
}

// moveKey moves the slot of the quota's key to another node, and calls during at each stage.
func (c *restricted) moveKey(t *testing.T, during func()) {
	t.Helper()
	key := keyIn(t, c.Cluster)
	for _, to := range c.Nodes {
		if to != c.Master(key) {
			c.MoveSlot(key, to, func(bool) { during() })
			return
		}
	}
}

// checkLog checks that the nodes denied the user nothing that it needs.
func (c *restricted) checkLog(t *testing.T) {
	t.Helper()
	for _, n := range c.Nodes {
		log, err := n.Client().Do(context.Background(), "ACL", "LOG").Slice()
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range log {
			// Without the right to load functions the client runs the script.
			if m, _ := entry.(map[any]any); !greetingCommands[m["object"]] && m["object"] != "function|load" {
				t.Errorf("got %v denied, want the documented rights granted", entry)
			}
		}
	}
}

// The documented rights suffice on a Cluster, too: to find a key's master, to continue while its
// slot moves, and to subscribe.
func TestServerRightsOnCluster(t *testing.T) {
	t.Parallel()
	c := startRestricted(t)
	ctx := context.Background()
	p := named(per(200*ms, 5, throttle.SlidingLog), throttle.PerHour(1_000)) // the key outlives a slow machine
	p.Guard = 0
	l, other := c.limiter(t, p, distributed.Options{}), c.limiter(t, p, distributed.Options{})
	wait := func() {
		t.Helper()
		for range 6 { // waits and subscribes
			if err := l.Wait(ctx); err != nil {
				t.Fatalf("got %v, want the documented rights to suffice", err)
			}
		}
	}
	wait()
	c.moveKey(t, wait)
	if err := other.Pause(ctx, 300*ms); err != nil {
		t.Errorf("Pause: got %v, want the documented rights to suffice", err)
	}
	wait()
	c.checkLog(t)
}

// With the rights that are documented for Concurrency, processes on a Cluster share places, receive
// the message that a place is free, and continue while the slot of all their keys moves.
func TestServerRightsOfLeases(t *testing.T) {
	t.Parallel()
	c := startRestricted(t, "+hget", "+hmget", "+hset", "+hdel", "+zadd", "+zrem", "+zrangebyscore", "+del")
	ctx := context.Background()
	p, o := named(throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}), distributed.Options{Lease: time.Hour}
	first, second := c.limiter(t, p, o), c.limiter(t, p, o)
	acquireByTurns := func() {
		t.Helper()
		held, err := first.Acquire(ctx, nil)
		if err != nil {
			t.Fatalf("got %v, want the documented rights to suffice", err)
		}
		got := make(chan error, 1)
		go func() {
			permit, err := second.Acquire(ctx, nil)
			if err == nil {
				permit.Release()
			}
			got <- err
		}()
		waitUntil(t, "the other waits", func() bool { s, err := second.Status(ctx); return err == nil && s.Waiting == 1 })
		held.Release()
		if err := <-got; err != nil {
			t.Fatalf("got %v, want the documented rights to suffice", err)
		}
	}
	for range 3 {
		acquireByTurns()
	}
	c.moveKey(t, acquireByTurns)
	acquireByTurns()
	c.checkLog(t)
}

// greetingCommands are the commands with which a client greets a server. A user need not have the
// right to run them.
var greetingCommands = map[any]bool{"client|setinfo": true, "client|maint_notifications": true, "client": true}

func TestServerRights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ctx := context.Background()
	for _, without := range []string{"", "+evalsha", "+time", "+get", "+set"} {
		admin := s.Client()
		admin.Do(ctx, "ACL", "DELUSER", "limiter")
		admin.FlushAll(ctx)
		admin.ScriptFlush(ctx)
		grant(t, s, without)
		rdb := client(t, &redis.Options{Addr: s.Addr(), Username: "limiter", Password: "secret"})
		p := named(per(200*ms, 5, throttle.SlidingLog))
		p.Guard = 0
		l := limiter(t, p, distributed.New(rdb, distributed.Options{Timeout: slow}))
		if without != "" {
			checkFails(t, "without "+without, l, "lacks a right", "package documentation")
			continue
		}
		other := limiter(t, p, distributed.New(rdb, distributed.Options{Timeout: slow}))
		began := time.Now()
		for i := range 12 { // waits and subscribes
			if i == 3 {
				if err := other.Pause(ctx, 300*ms); err != nil {
					t.Errorf("Pause: got %v, want the documented rights to suffice", err)
				}
			}
			if err := l.Wait(ctx); err != nil {
				t.Fatalf("got %v, want the documented rights to suffice", err)
			}
		}
		if took := time.Since(began); took < 500*ms {
			t.Errorf("got 12 admissions in %v with a pause of 300ms, want 500ms at least", took)
		}
		if _, err := l.Status(ctx); err != nil {
			t.Errorf("Status: got %v, want the documented rights to suffice", err)
		}
	}
	log, err := s.Client().Do(ctx, "ACL", "LOG").Slice()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range log {
		if m, _ := entry.(map[any]any); m["object"] == "publish" || m["object"] == "subscribe" {
			t.Errorf("got %v denied, want the documented rights granted", entry)
		}
	}
}

// The error names the cause if a server requires a password, runs no scripts, is too old, or the
// client is closed.
func TestServerInput(t *testing.T) {
	plan := named(throttle.PerSecond(5))
	t.Run("password", func(t *testing.T) {
		s := miniredis.RunT(t)
		s.RequireAuth("secret")
		checkFails(t, "no password", limiter(t, plan, distributed.New(client(t, &redis.Options{Addr: s.Addr()}), distributed.Options{})), "NOAUTH", "requires a password")
		checkFails(t, "a wrong one", limiter(t, plan, distributed.New(client(t, &redis.Options{Addr: s.Addr(), Password: "wrong"}), distributed.Options{})), "WRONGPASS")
	})
	t.Run("scripts", func(t *testing.T) {
		without := []string{"--rename-command", "EVALSHA", "", "--rename-command", "EVAL", ""}
		if hasFunctions(redistest.Start(t)) {
			without = append(without, "--rename-command", "FUNCTION", "")
		}
		s := redistest.Start(t, without...)
		checkFails(t, "no scripts", limiter(t, plan, distributed.New(s.Client(), distributed.Options{})), "unknown command", "Redis 5 or later")
	})
	t.Run("old", func(t *testing.T) {
		s := miniredis.RunT(t)
		s.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd == "EVALSHA" || cmd == "EVAL" {
				c.WriteError("ERR Error running script: @user_script: Write commands not allowed after non deterministic commands")
				return true
			}
			return false
		})
		checkFails(t, "Redis 4", limiter(t, plan, distributed.New(client(t, &redis.Options{Addr: s.Addr()}), distributed.Options{})), "too old", "Redis 5 or later")
	})
	t.Run("closed", func(t *testing.T) {
		rdb := client(t, &redis.Options{Addr: miniredis.RunT(t).Addr()})
		rdb.Close()
		checkFails(t, "a closed client", limiter(t, plan, distributed.New(rdb, distributed.Options{Timeout: slow})), "client is closed")
	})
}

// onlyKey returns the only key of the server.
func onlyKey(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	keys, err := rdb.Keys(context.Background(), "*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("got keys %q, %v, want one", keys, err)
	}
	return keys[0]
}

// If the value under the key is not a state, is cut off, or is of a later release, nothing is
// admitted and the value stays as it is.
func TestServerStoredValue(t *testing.T) {
	s, ctx := redistest.Start(t), context.Background()
	rdb := s.Client()
	for _, tier := range []throttle.Tier{per(hour, 50, throttle.TokenBucket), per(hour, 50, throttle.SlidingLog), per(hour, 50, throttle.SlidingWindow)} {
		fresh := func() (*throttle.Limiter, string, string) {
			rdb.FlushAll(ctx)
			l := limiter(t, named(tier), distributed.New(rdb, distributed.Options{Timeout: slow}))
			if !l.AllowN(7) {
				t.Fatal("got a refusal by a new quota")
			}
			key := onlyKey(t, rdb)
			return l, key, rdb.Get(ctx, key).Val()
		}
		l, key, _ := fresh()
		rdb.Del(ctx, key)
		rdb.LPush(ctx, key, "other")
		checkFails(t, "a list", l, "WRONGTYPE", "another Options.Prefix", key)

		for _, test := range []struct {
			what  string
			spoil func(value string) string
			parts []string
		}{
			{"another program's", func(string) string { return "a string" }, []string{"foreign", "another Options.Prefix"}},
			{"an empty string", func(string) string { return "" }, []string{"foreign"}},
			{"a number", func(string) string { return "12" }, []string{"foreign"}},
			{"a later release's", func(v string) string { return v[:3] + string(v[3]+2) + v[4:] }, []string{"version", "upgrade"}},
			{"only the beginning", func(v string) string { return v[:3] }, []string{"THROTTLE"}},
			{"cut within the plan", func(v string) string { return v[:20] }, []string{"corrupt", "delete the key"}},
			{"cut in half", func(v string) string { return v[:len(v)/2] }, []string{"corrupt", "delete the key"}},
			{"an invalid plan", func(v string) string { return v[:6] + strings.Repeat("9", 12) + v[18:] }, []string{"corrupt", "delete the key"}},
		} {
			l, key, value := fresh()
			spoiled := test.spoil(value)
			rdb.Set(ctx, key, spoiled, 0)
			checkFails(t, tier.String()+", "+test.what, l, append(test.parts, key)...)
			if now := rdb.Get(ctx, key).Val(); now != spoiled {
				t.Errorf("%v, %s: got a changed value, want it unchanged", tier, test.what)
			}
			if rdb.Del(ctx, key); !l.AllowN(50) {
				t.Errorf("%v, %s: got a refusal after the key was deleted, want a new quota", tier, test.what)
			}
		}
	}
}

// Keys in Redis are hashes, because a policy's name and a Group's keys may be secret.
func TestServerKeysAreHashed(t *testing.T) {
	s, ctx := redistest.Start(t), context.Background()
	rdb := s.Client()
	store := distributed.New(rdb, distributed.Options{Prefix: "limits:"})
	l := limiter(t, named(per(hour, 50, throttle.SlidingLog)), store)
	g, err := throttle.NewGroup(named(per(hour, 50, throttle.GCRA)), store, throttle.GroupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !l.Allow() || !g.For("sk-secret").Allow() {
		t.Fatal("got a refusal by a new quota")
	}
	keys := rdb.Keys(ctx, "*").Val()
	if len(keys) != 2 {
		t.Errorf("got %d keys, want 2", len(keys))
	}
	for _, key := range keys {
		if !strings.HasPrefix(key, "limits:") {
			t.Errorf("got key %q, want the prefix limits:", key)
		}
		for _, text := range []string{key, rdb.Get(ctx, key).Val()} {
			if strings.Contains(text, "vendor") || strings.Contains(text, "secret") {
				t.Errorf("got %q, want neither the policy's name nor the Group's key in it", text)
			}
		}
		if ttl := rdb.PTTL(ctx, key).Val(); ttl <= 0 || ttl > 2*hour+2*sec {
			t.Errorf("key %q: got expiry in %v, want in 2h and 2s at most", key, ttl)
		}
	}
}

// Status answers for every algorithm, with instants to the microsecond.
func TestInputStatus(t *testing.T) { bubble(t, inputStatus) }

func inputStatus(t *testing.T, s *miniredis.Miniredis) {
	ctx, rdb := context.Background(), near(t, s)
	time.Sleep(123_457 * time.Microsecond) // away from the full second at which virtual time begins
	for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.WeightedWindow, throttle.FixedWindow,
		throttle.AnchoredWindow, throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA} {
		p := policy(per(hour, 10, a), per(24*hour, 1000, throttle.SlidingLog))
		p.Name, p.Guard = a.String(), 5*ms
		l := limiter(t, p, distributed.New(rdb, distributed.Options{}))
		status := func() throttle.Status {
			t.Helper()
			st, err := l.Status(ctx)
			if err != nil || len(st.Tiers) != 2 {
				t.Fatalf("%v: got status %+v, %v, want two tiers", a, st, err)
			}
			return st
		}
		fresh := status().Tiers[0]
		if fresh.Limited || fresh.Limit != 10 || fresh.Used != 0 || fresh.Remaining != 10 || fresh.RetryAfter != 0 || fresh.ResetAfter != 0 {
			t.Errorf("%v: new quota: got %+v, want nothing used", a, fresh)
		}
		if !l.AllowN(10) {
			t.Fatalf("%v: got a refusal by a new quota", a)
		}
		st := status()
		full := st.Tiers[0]
		if !full.Limited || full.Used != 10 || full.Remaining != 0 || full.RetryAfter <= 0 || full.ResetAfter < full.RetryAfter || full.ResetAfter > 2*hour+sec {
			t.Errorf("%v: used up: got %+v, want 10 used, limited", a, full)
		}
		if slices.Contains([]throttle.Algorithm{throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA}, a) &&
			(full.RetryAfter > 6*time.Minute+300*ms || full.RetryAfter < 6*time.Minute-10*ms || full.RetryAfter%ms == 0 && full.ResetAfter%ms == 0) {
			t.Errorf("%v: used up: got %+v, want 6 minutes to the microsecond", a, full)
		}
		if other := st.Tiers[1]; other.Limited || other.Used != 10 || other.Remaining != 990 {
			t.Errorf("%v: other tier: got %+v, want 10 used and 990 remaining", a, other)
		}
		if err := l.Pause(ctx, hour); err != nil {
			t.Fatal(err)
		}
		if st := status(); st.Paused <= 59*time.Minute || st.Paused > hour || st.Closed != 0 {
			t.Errorf("%v: got paused for %v and closed for %v, want an hour and zero", a, st.Paused, st.Closed)
		}
	}
	p := policy(throttle.Tier{Limit: 2, Algorithm: throttle.Concurrency})
	p.Name = "open"
	l := limiter(t, p, distributed.New(rdb, distributed.Options{}))
	var permits []*throttle.Permit
	for range 2 {
		permit, err := l.Acquire(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		permits = append(permits, permit)
	}
	st, err := l.Status(ctx)
	if err != nil || !st.Tiers[0].Limited || st.Tiers[0].Used != 2 || st.Tiers[0].Remaining != 0 {
		t.Errorf("concurrency: got %+v, %v, want 2 used, limited", st, err)
	}
	for _, permit := range permits {
		permit.Release()
	}
	waitUntil(t, "the permits are released", func() bool {
		st, err := l.Status(ctx)
		return err == nil && st.Tiers[0].Used == 0 && st.Tiers[0].Remaining == 2 && !st.Tiers[0].Limited
	})
}
