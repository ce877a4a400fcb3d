package distributed_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
)

// commandCalls returns how often a server ran a command, and how often it refused to.
func commandCalls(t *testing.T, s *redistest.Server, command string) (calls, refused int) {
	t.Helper()
	if text := s.Info("commandstats", "cmdstat_"+command); text != "" {
		var us int
		var per float64
		if _, err := fmt.Sscanf(text, "calls=%d,usec=%d,usec_per_call=%f,rejected_calls=%d", &calls, &us, &per, &refused); err != nil {
			t.Fatal(err)
		}
	}
	return calls, refused
}

func hasFunctions(s *redistest.Server) bool {
	err := s.Client().FunctionStats(context.Background()).Err()
	return err == nil || !strings.Contains(err.Error(), "unknown command")
}

// serverWithFunctions skips the test if the server has no functions.
func serverWithFunctions(t *testing.T) *redistest.Server {
	t.Helper()
	s := redistest.Start(t)
	if !hasFunctions(s) {
		t.Skip("the server has no functions")
	}
	return s
}

// checkCharges makes requests and checks that each is charged once.
func checkCharges(t *testing.T, l *throttle.Limiter, requests int) {
	t.Helper()
	before := tierStatus(t, l, 0).Used
	for range requests {
		if err := l.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if used := tierStatus(t, l, 0).Used - before; used != int64(requests) {
		t.Errorf("got %d requests charged, want %d", used, requests)
	}
}

// On a server that has functions no script runs, also after the server has lost the function.
func TestServerFunction(t *testing.T) {
	ctx := context.Background()
	s := serverWithFunctions(t)
	admin := s.Client()
	if err := admin.FunctionLoad(ctx, "#!lua name=throttle_0\nredis.register_function('throttle_0', function() return 0 end)").Err(); err != nil {
		t.Fatal(err)
	}
	l := limiter(t, named(throttle.PerHour(1000)), distributed.New(s.PatientClient(), distributed.Options{Timeout: slow}))
	other := limiter(t, named(throttle.PerHour(1000)), distributed.New(s.PatientClient(), distributed.Options{Timeout: slow}))
	checkCharges(t, l, 5)
	checkCharges(t, other, 5)
	if libraries, err := admin.FunctionList(ctx, redis.FunctionListQuery{}).Result(); err != nil || len(libraries) != 2 {
		t.Errorf("got libraries %v, %v, want the other release's and one more", libraries, err)
	}
	admin.FunctionFlush(ctx)
	checkCharges(t, l, 5)
	checkCharges(t, other, 5)
	if scripts, _ := commandCalls(t, s, "evalsha"); scripts > 0 {
		t.Errorf("got %d script runs, want none", scripts)
	}
	// The test loads one library, and one load is refused.
	if loaded, _ := commandCalls(t, s, "function|load"); loaded != 4 {
		t.Errorf("the library was loaded %d times, want 3: by each process, and after the flush", loaded-1)
	}
}

// A server that refuses functions runs the script instead. Not every call tries a function first.
func TestServerFunctionRefused(t *testing.T) {
	for _, rights := range [][]string{{}, {"+fcall"}, {"+function|load"}, {"+fcall", "+function|load"}} {
		s := serverWithFunctions(t)
		grant(t, s, "", rights...)
		rdb := client(t, &redis.Options{Addr: s.Addr(), Username: "limiter", Password: "secret"})
		checkCharges(t, limiter(t, named(throttle.PerHour(1000)), distributed.New(rdb, distributed.Options{Timeout: slow})), 20)
		attempts := func(command string) int {
			done, refused := commandCalls(t, s, command)
			return done + refused
		}
		scripts, _ := commandCalls(t, s, "evalsha")
		if len(rights) == 2 && scripts > 0 {
			t.Errorf("with %v: got %d script runs, want none", rights, scripts)
		}
		if refused := attempts("function|load") + attempts("fcall"); len(rights) < 2 && (scripts < 20 || refused > 4) {
			t.Errorf("with %v: got %d script runs and %d attempts to use functions, want 20 at least and 4 at most", rights, scripts, refused)
		}
	}
	s := redistest.Start(t, "--rename-command", "FCALL", "")
	checkCharges(t, limiter(t, named(throttle.PerHour(1000)), distributed.New(s.PatientClient(), distributed.Options{Timeout: slow})), 20)
}

// Each node of a Cluster supports functions or not, and stores its own.
func TestServerFunctionCluster(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	serverWithFunctions(t)
	c := redistest.StartCluster(t, 3, 0)
	rdb := c.PatientClient()
	var limiters []*throttle.Limiter
	for i := range 12 {
		p := named(throttle.PerHour(1000))
		p.Name = fmt.Sprint("quota ", i)
		limiters = append(limiters, limiter(t, p, distributed.New(rdb, distributed.Options{Timeout: slow})))
	}
	all := func() {
		for _, l := range limiters {
			checkCharges(t, l, 3)
		}
	}
	all()
	nodes := []*redistest.Server{c.Master("a"), c.Master("b"), c.Master("c")}
	for _, s := range nodes {
		if scripts, _ := commandCalls(t, s, "evalsha"); scripts > 0 {
			t.Errorf("got %d script runs, want none", scripts)
		}
	}
	nodes[0].Client().FunctionFlush(ctx)
	if err := nodes[1].Client().Do(ctx, "ACL", "SETUSER", "default", "-fcall").Err(); err != nil {
		t.Fatal(err)
	}
	all()
	if _, refused := commandCalls(t, nodes[1], "fcall"); refused == 0 {
		t.Error("got no FCALL on the node that refuses functions, want one at least")
	}
}
