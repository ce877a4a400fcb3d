package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/internal/redistest"
)

// resumes is how long after a fault the fleet may take until it uses the limit in full again:
// docs/faults.md has 4.1 s at most, on a machine that is not as busy.
const resumes = 6 * time.Second

// A breaker injects faults, one after the other, chosen by a seed.
type breaker struct {
	random *rand.Rand
	server *redistest.Server
	admin  *redis.Client
	dir    string // of the server's data
	fleet  *fleet
	stand  *provider

	lasting sync.WaitGroup // of the faults that go on while others begin

	mu   sync.Mutex // guards done
	done map[string]int
}

func newBreaker(seed uint64, server *redistest.Server, f *fleet, p *provider) (*breaker, error) {
	b := &breaker{random: rand.New(rand.NewPCG(seed, 1)), server: server, admin: server.Client(), fleet: f, stand: p, done: map[string]int{}}
	dir, err := b.admin.ConfigGet(context.Background(), "dir").Result()
	b.dir = dir["dir"]
	return b, err
}

// run breaks something every so often, until the context ends. It returns when all is whole again.
func (b *breaker) run(ctx context.Context, every time.Duration) {
	faults := []struct {
		weight int
		inject func()
	}{
		{3, b.killServer}, {1, b.killServerAndData}, {3, b.stopServer}, {1, b.flushScripts}, {2, b.killClients},
		{3, b.killWorker}, {2, b.replaceWorker}, {2, b.join}, {3, b.far}, {2, b.deploy}, {2, b.refuse},
	}
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	defer b.lasting.Wait()
	for {
		gap := min(time.Duration(b.random.ExpFloat64()*float64(every)), 3*every)
		select {
		case <-ctx.Done():
			return
		case <-time.After(gap):
		}
		n := b.random.IntN(total)
		for _, f := range faults {
			if n -= f.weight; n < 0 {
				f.inject()
				break
			}
		}
	}
}

// say notes a fault.
func (b *breaker) say(kind, format string, args ...any) {
	fmt.Printf("%s  %s%s\n", stamp(time.Now()), kind, fmt.Sprintf(format, args...))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done[kind]++
}

func (b *breaker) counts() (text string, total int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.done {
		total += n
	}
	return fmt.Sprint(b.done), total
}

func (b *breaker) between(least, most time.Duration) time.Duration {
	return least + time.Duration(b.random.Int64N(int64(most-least+1))).Round(time.Millisecond)
}

// killServer restarts the server with all of its data: each write was in the log before its reply.
func (b *breaker) killServer() { b.restart("server killed", nil) }

// killServerAndData restarts an empty server.
func (b *breaker) killServerAndData() {
	b.restart("server killed, data lost", func() {
		old, _ := filepath.Glob(filepath.Join(b.dir, "*"))
		for _, path := range old {
			_ = os.RemoveAll(path)
		}
		b.stand.lost("data lost", b.fleet.callers)
	})
}

func (b *breaker) restart(kind string, while func()) {
	away := b.between(200*time.Millisecond, 5*time.Second)
	b.say(kind, ", away for %v", away)
	b.stand.outage(away + resumes)
	b.server.Kill()
	if while != nil {
		while()
	}
	time.Sleep(away)
	b.server.Restart()
	b.stand.outage(resumes)
}

func (b *breaker) stopServer() {
	d := b.between(time.Second, 5*time.Second)
	b.say("server stopped", " for %v", d)
	b.stand.outage(d + resumes)
	b.server.Stop()
	time.Sleep(d)
	b.server.Resume()
}

func (b *breaker) flushScripts() {
	b.say("scripts flushed", "")
	b.admin.ScriptFlush(context.Background())
	b.admin.Do(context.Background(), "FUNCTION", "FLUSH")
}

func (b *breaker) killClients() {
	b.say("connections killed", "")
	for _, kind := range []string{"normal", "pubsub"} {
		b.admin.ClientKillByFilter(context.Background(), "TYPE", kind)
	}
}

// mortal returns a worker that may be replaced.
func (b *breaker) mortal() int { return lasting + b.random.IntN(len(b.fleet.places)-1-lasting) }

func (b *breaker) killWorker() {
	i := b.mortal()
	b.say("worker killed", " at place %d", i)
	b.fleet.replace(i, syscall.SIGKILL)
}

func (b *breaker) replaceWorker() {
	i := b.mortal()
	b.say("worker replaced", " at place %d", i)
	b.fleet.replace(i, syscall.SIGTERM)
}

func (b *breaker) join() {
	d := b.between(10*time.Second, 30*time.Second)
	b.say("worker joins", " for %v", d)
	b.lasting.Go(func() { b.fleet.join(d) })
}

// far moves a worker away from Redis.
func (b *breaker) far() {
	i, d, trip := b.random.IntN(len(b.fleet.places)-1), b.between(20*time.Second, time.Minute), b.between(40*time.Millisecond, 150*time.Millisecond)
	b.say("worker far", ", at place %d, round trips of %v for %v", i, trip, d)
	proxy := b.fleet.places[i].proxy
	proxy.SetDelay(trip / 2)
	b.lasting.Go(func() { time.Sleep(d); proxy.SetDelay(0) })
}

// deploy deploys lower or higher limits, and some time later the former ones. The provider has the
// higher limits before the first worker, and until the last worker has the lower ones.
func (b *breaker) deploy() {
	factor, pause, stay := 0.7, b.between(time.Second, 3*time.Second), b.between(5*time.Second, 30*time.Second)
	if b.random.IntN(2) == 0 {
		factor = 1.25
	}
	b.say("deployment", " of limits × %v", factor)
	b.lasting.Go(func() {
		b.fleet.deploying.Lock()
		defer b.fleet.deploying.Unlock()
		b.stand.setLimits(max(factor, 1), min(factor, 1))
		b.fleet.deploy(policyText(factor), pause)
		b.stand.setLimits(max(factor, 1), factor)
		time.Sleep(stay)
		b.stand.setLimits(max(factor, 1), min(factor, 1))
		b.fleet.deploy(policyText(1), pause)
		time.Sleep(resumes) // times that were reserved under the higher limits
		b.stand.setLimits(1, 1)
		b.stand.outage(resumes)
	})
}

func (b *breaker) refuse() {
	d, retry := b.between(500*time.Millisecond, 4*time.Second), time.Duration(1+b.random.IntN(4))*time.Second
	b.say("provider refuses", " for %v with Retry-After %v", d, retry)
	b.stand.refuse(d, retry)
}
