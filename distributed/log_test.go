package distributed_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
)

// A logBuffer collects log output.
type logBuffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

func (l *logBuffer) options() distributed.Options {
	return distributed.Options{Log: slog.New(slog.NewTextHandler(l, nil))}
}

// Each kind of incident is logged, and once a minute at most.
func TestLog(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var delay atomic.Int64
		delay.Store(int64(ms))
		rdb, log := distant(t, s, func() time.Duration { return time.Duration(delay.Load()) }), new(logBuffer)
		options := log.options()
		options.Timeout = 20 * sec // a script travels in several pieces, each of which takes the delay
		l := limiter(t, tenASecond, distributed.New(rdb, options))
		ask := func() { _, _ = l.Status(t.Context()) }
		checkTwice := func(kind string, cause func()) {
			t.Helper()
			for i := range 2 {
				cause()
				cause()
				time.Sleep(ms)
				if n := log.count(kind); n != i+1 {
					t.Errorf("got %q logged %d times, want %d", kind, n, i+1)
				}
				time.Sleep(2 * time.Minute)
			}
		}
		now := time.Now()
		s.SetTime(now)
		ask()
		if log.count("msg=") > 0 {
			t.Errorf("got log output %q, want none without an incident", log.text.String())
		}
		checkTwice("the clock of Redis stepped", func() {
			now = now.Add(-8 * sec)
			s.SetTime(now)
			ask()
		})
		checkTwice("answers too late", func() {
			delay.Store(int64(1500 * ms)) // longer than a reservation is valid
			l.Allow()
			delay.Store(int64(ms))
		})
		checkTwice("is away", func() {
			reply := breakable(s)
			reply(loading)
			ask()
			reply("")
			time.Sleep(sec)
			ask()
		})
		checkTwice("was lost", func() {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.FlushAll()
			now = now.Add(ms) // otherwise the new state would have the generation of the old one
			s.SetTime(now)
			ask()
		})
	})
}

// An eviction policy of the server is logged once, and only if the user may read it.
func TestLogEviction(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
	log := new(logBuffer)
	st := distributed.New(s.Client(), log.options())
	for _, name := range []string{"one", "two"} {
		p := tenASecond
		p.Name = name
		if err := limiter(t, p, st).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	waitUntil(t, "the eviction policy is logged", func() bool { return log.count("maxmemory-policy=allkeys-lru") == 1 })

	grant(t, s, "")
	quiet, rdb := new(logBuffer), s.Client()
	options := *rdb.Options()
	options.Username, options.Password = "limiter", "secret"
	if err := limiter(t, tenASecond, distributed.New(client(t, &options), quiet.options())).Wait(t.Context()); err != nil {
		t.Error(err)
	}
	waitUntil(t, "the server has denied reading the policy", func() bool {
		denied, err := s.Client().Do(t.Context(), "ACL", "LOG").Slice()
		return err == nil && len(denied) > 0
	})
	if n := quiet.count("maxmemory-policy"); n != 0 {
		t.Errorf("got %d log lines, want none: %s", n, quiet.text.String())
	}
}

// A server that replicates writes between regions is logged once.
func TestLogRegions(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		for modules, want := range map[string]int{
			"# Modules\r\nmodule:name=ReJSON,ver=20811,api=1\r\nmodule:name=crdt,ver=10018,api=1\r\n": 1,
			"# Modules\r\nmodule:name=ReJSON,ver=20811,api=1\r\n":                                     0,
		} {
			rdb, log := near(t, s), new(logBuffer)
			rdb.AddHook(withModules(modules))
			l := limiter(t, tenASecond, distributed.New(rdb, log.options()))
			for range 2 {
				if err := l.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(sec)
			if n := log.count("several regions"); n != want || n != log.count("module:name=crdt,ver=10018") {
				t.Errorf("got %d warnings, want %d: %s", n, want, log.text.String())
			}
		}
	})
}

// withModules answers INFO as a server that lists modules.
type withModules string

func (withModules) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m withModules) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if info, ok := cmd.(*redis.StringCmd); ok && cmd.Name() == "info" && cmd.Args()[1] == "modules" {
			info.SetVal(string(m))
			return nil
		}
		return next(ctx, cmd)
	}
}

func (withModules) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
