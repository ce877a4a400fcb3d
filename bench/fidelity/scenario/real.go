package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/bench/fidelity/chart"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/throttletest"
)

// A task is a run as each of its processes receives it.
type task struct {
	Run   Run
	URL   string    // of the provider
	Start time.Time // when all processes of the run begin
}

// The processes have startupTime to get ready. Then the runs begin one after the other
// within startSpread, which keeps them from being busy at the same moment of each second.
const (
	startupTime = 3 * time.Second
	startSpread = time.Second
)

// Real makes runs in real time, all at once, each with its own provider behind a local
// socket. A fleet is several processes over the Redis server at redisURL. They run this
// program again, which must call [RunChild] if [IsChild] reports true. Real blocks until
// the last run has ended.
func Real(ctx context.Context, runs []Run, redisURL string) ([]chart.Row, error) {
	tasks, apis := make([]task, len(runs)), make([]*throttletest.Provider, len(runs))
	begin := time.Now().Add(startupTime)
	for i, r := range runs {
		apis[i] = r.provider()
		server := httptest.NewServer(delayedHandler{apis[i], apis[i].Delay})
		defer server.Close()
		apis[i].Delay = nil
		tasks[i] = task{r, server.URL, begin.Add(time.Duration(i) * startSpread / time.Duration(len(runs)))}
	}
	tallies, err := runAll(ctx, tasks, redisURL)
	if err != nil {
		return nil, err
	}
	rows, errs := make([]chart.Row, len(runs)), make([]error, len(runs))
	for i, r := range runs {
		rows[i], errs[i] = r.row("real", apis[i].Arrivals(), tasks[i].Start, tallies[i])
	}
	return rows, errors.Join(errs...)
}

// runAll runs the tasks of fleets in child processes, and all others in this process. It
// returns the tallies of each task.
func runAll(ctx context.Context, tasks []task, redisURL string) ([][]Tally, error) {
	var local, fleets []int
	for i, t := range tasks {
		if c, err := t.Run.client(); err != nil {
			return nil, err
		} else if c.redis {
			fleets = append(fleets, i)
		} else {
			local = append(local, i)
		}
	}
	tallies := make([][]Tally, len(tasks))
	add := func(indexes []int, results []Tally) {
		for i, t := range results {
			tallies[indexes[i]] = append(tallies[indexes[i]], t)
		}
	}
	children, wait := startFleet(ctx, choose(tasks, fleets), redisURL)
	add(local, job{Tasks: choose(tasks, local)}.run(ctx))
	err := wait()
	for _, results := range children {
		add(fleets, results)
	}
	return tallies, err
}

// A delayedHandler passes each request to the provider at a random time after the request
// was sent. Time that a slow machine takes to deliver the request is part of the delay.
type delayedHandler struct {
	api   http.Handler
	delay func() time.Duration
}

func (h delayedHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if h.delay != nil {
		sent, _ := strconv.ParseInt(req.Header.Get(sentHeader), 10, 64)
		time.Sleep(time.Until(time.Unix(0, sent).Add(h.delay())))
	}
	h.api.ServeHTTP(w, req)
}

func choose(tasks []task, indexes []int) (chosen []task) {
	for _, i := range indexes {
		chosen = append(chosen, tasks[i])
	}
	return chosen
}

// startFleet starts the processes of a fleet, each with all tasks. The tallies of each
// process are complete once wait returns. If one process fails, all are ended.
func startFleet(ctx context.Context, tasks []task, redisURL string) (tallies [][]Tally, wait func() error) {
	if len(tasks) == 0 {
		return nil, func() error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	tallies, errs := make([][]Tally, fleet), make([]error, fleet)
	var all sync.WaitGroup
	for i := range fleet {
		all.Go(func() {
			if tallies[i], errs[i] = runChild(ctx, job{i, redisURL, tasks}); errs[i] != nil {
				cancel()
			}
		})
	}
	return tallies, func() error {
		all.Wait()
		cancel()
		return errors.Join(errs...)
	}
}

// A job is the tasks of one process.
type job struct {
	Process int    // index in the fleet
	Redis   string // URL. If empty, the tasks don't use Redis
	Tasks   []task
}

// run runs all tasks at once, and returns their tallies.
func (j job) run(ctx context.Context) []Tally {
	tallies := make([]Tally, len(j.Tasks))
	var all sync.WaitGroup
	for i, t := range j.Tasks {
		all.Go(func() {
			tally, err := t.run(ctx, j)
			if err != nil {
				tally.Error = err.Error()
			}
			tallies[i] = tally
		})
	}
	all.Wait()
	return tallies
}

func (t task) run(ctx context.Context, j job) (tally Tally, err error) {
	var rdb *redis.Client
	var redisCalls calls.Counter
	if j.Redis != "" {
		options, err := redis.ParseURL(j.Redis)
		if err != nil {
			return tally, err
		}
		rdb = redis.NewClient(options)
		defer rdb.Close()
		rdb.AddHook(&redisCalls)
	}
	r := t.Run
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConns, base.MaxIdleConnsPerHost = 0, r.workers()
	defer base.CloseIdleConnections()
	l, err := process{Run: r, index: j.Process, base: base, rdb: rdb}.newLoad(t.URL)
	if err != nil {
		return tally, err
	}
	if time.Until(t.Start) < 0 {
		return tally, fmt.Errorf("the process took more than %v to start", startupTime)
	}
	time.Sleep(time.Until(t.Start))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A limiter refuses waits that outlast a context's deadline. So the context is canceled.
	defer time.AfterFunc(time.Until(t.Start.Add(r.Length)), cancel).Stop()
	tally = l.run(ctx, r.workers())
	tally.Calls = redisCalls.Count()
	if rdb != nil {
		time.Sleep(drainTime)
	}
	return tally, nil
}

// measureLateness measures how late this machine wakes a sleeping goroutine, until the
// returned function is called, which returns the maximum. A provider may refuse any client's
// request that such a delay makes later than Policy.Guard.
func measureLateness(ctx context.Context) (maximum func() time.Duration) {
	var late time.Duration
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			start := time.Now()
			time.Sleep(latenessInterval)
			late = max(late, time.Since(start)-latenessInterval)
		}
	}()
	return func() time.Duration {
		cancel()
		<-done
		return late
	}
}

const latenessInterval = 2 * time.Millisecond

const childEnv = "FIDELITY_CHILD"

// IsChild reports whether this process belongs to a fleet and must call RunChild.
func IsChild() bool { return os.Getenv(childEnv) != "" }

// RunChild reads a job from stdin, runs it, and writes the tallies to stdout. It ends as
// soon as stdin ends, which also happens when its parent dies.
func RunChild(stdin io.Reader, stdout io.Writer) error {
	var j job
	input := json.NewDecoder(stdin)
	if err := input.Decode(&j); err != nil {
		return fmt.Errorf("reading the job from standard input: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_ = input.Decode(new(any)) // blocks until the input ends
		cancel()
	}()
	return json.NewEncoder(stdout).Encode(j.run(ctx))
}

// runChild starts this program as a process of a fleet, and blocks until the process ends.
func runChild(ctx context.Context, j job) (tallies []Tally, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err = errors.Join(json.NewEncoder(stdin).Encode(j), json.NewDecoder(stdout).Decode(&tallies))
	if err = errors.Join(err, stdin.Close(), cmd.Wait()); err != nil {
		return nil, fmt.Errorf("process %d of the fleets: %w", j.Process, err)
	}
	return tallies, nil
}
