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

// ran is how often a server was asked for a command: how often it did it, and refused.
func ran(t *testing.T, s *redistest.Server, command string) (calls, refused int) {
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

// serverWithFunctions skips the test where the server has none.
func serverWithFunctions(t *testing.T) *redistest.Server {
	t.Helper()
	s := redistest.Start(t)
	if !hasFunctions(s) {
		t.Skip("the server has no functions")
	}
	return s
}

// goesOn makes so many requests and checks that each was charged once.
func goesOn(t *testing.T, l *throttle.Limiter, requests int) {
	t.Helper()
	before := tierStatus(t, l, 0).Used
	for range requests {
		if err := l.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if used := tierStatus(t, l, 0).Used - before; used != int64(requests) {
		t.Errorf("%d requests were charged as %d", requests, used)
	}
}

// A server that has functions runs no scripts, also after it has lost the function.
func TestFunction(t *testing.T) {
	ctx := context.Background()
	s := serverWithFunctions(t)
	admin := s.Client()
	if err := admin.FunctionLoad(ctx, "#!lua name=throttle_0\nredis.register_function('throttle_0', function() return 0 end)").Err(); err != nil {
		t.Fatal(err)
	}
	l := limiter(t, named(throttle.PerHour(1000)), distributed.New(s.Client(), distributed.Options{Timeout: slow}))
	other := limiter(t, named(throttle.PerHour(1000)), distributed.New(s.Client(), distributed.Options{Timeout: slow}))
	goesOn(t, l, 5)
	goesOn(t, other, 5)
	if libraries, err := admin.FunctionList(ctx, redis.FunctionListQuery{}).Result(); err != nil || len(libraries) != 2 {
		t.Errorf("%v, %v, want the other release's library and one more", libraries, err)
	}
	admin.FunctionFlush(ctx)
	goesOn(t, l, 5)
	goesOn(t, other, 5)
	if scripts, _ := ran(t, s, "evalsha"); scripts > 0 {
		t.Errorf("%d scripts ran", scripts)
	}
	if loaded, _ := ran(t, s, "function|load"); loaded != 4 { // one by the test, one refused
		t.Errorf("%d times it was loaded, want once by each process and once after the flush", loaded-1)
	}
}

// A server that refuses functions runs the script, and is not asked at each call.
func TestFunctionRefused(t *testing.T) {
	for _, rights := range [][]string{{}, {"+fcall"}, {"+function|load"}, {"+fcall", "+function|load"}} {
		s := serverWithFunctions(t)
		grant(t, s, "", rights...)
		rdb := client(t, &redis.Options{Addr: s.Addr(), Username: "limiter", Password: "secret"})
		goesOn(t, limiter(t, named(throttle.PerHour(1000)), distributed.New(rdb, distributed.Options{Timeout: slow})), 20)
		asked := func(command string) int {
			done, refused := ran(t, s, command)
			return done + refused
		}
		scripts, _ := ran(t, s, "evalsha")
		if len(rights) == 2 && scripts > 0 {
			t.Errorf("with %v: %d scripts ran", rights, scripts)
		}
		if refused := asked("function|load") + asked("fcall"); len(rights) < 2 && (scripts < 20 || refused > 4) {
			t.Errorf("with %v: %d scripts ran, and %d times it asked for functions", rights, scripts, refused)
		}
	}
	s := redistest.Start(t, "--rename-command", "FCALL", "")
	goesOn(t, limiter(t, named(throttle.PerHour(1000)), distributed.New(s.Client(), distributed.Options{Timeout: slow})), 20)
}

// Each node of a Cluster has functions, or has none, and keeps them by itself.
func TestFunctionCluster(t *testing.T) {
	ctx := context.Background()
	serverWithFunctions(t)
	c := redistest.StartCluster(t, 3, 0)
	rdb := c.Client()
	var limiters []*throttle.Limiter
	for i := range 12 {
		p := named(throttle.PerHour(1000))
		p.Name = fmt.Sprint("quota ", i)
		limiters = append(limiters, limiter(t, p, distributed.New(rdb, distributed.Options{Timeout: slow})))
	}
	all := func() {
		for _, l := range limiters {
			goesOn(t, l, 3)
		}
	}
	all()
	nodes := []*redistest.Server{c.Master("a"), c.Master("b"), c.Master("c")}
	for _, s := range nodes {
		if scripts, _ := ran(t, s, "evalsha"); scripts > 0 {
			t.Errorf("%d scripts ran", scripts)
		}
	}
	nodes[0].Client().FunctionFlush(ctx)
	if err := nodes[1].Client().Do(ctx, "ACL", "SETUSER", "default", "-fcall").Err(); err != nil {
		t.Fatal(err)
	}
	all()
	if _, refused := ran(t, nodes[1], "fcall"); refused == 0 {
		t.Error("the node that refuses functions was not asked")
	}
}
