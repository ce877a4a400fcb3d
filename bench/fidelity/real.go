package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/bench/rig"
	"github.com/apithrottle/throttle/throttletest"
)

// A task is a run as each of its processes receives it.
type task struct {
	Run   Run
	Index int       // of the run
	URL   string    // of the provider
	Start time.Time // when all processes of the run begin
}

// The processes have startupTime to open their clients. Then the runs begin one after the other
// within startSpread, which keeps them from being busy at the same moment of each second.
const (
	startupTime = 2 * time.Second
	startSpread = time.Second
)

// Real makes runs in real time, all at once, each with its own provider behind a local socket. The
// clients run in processes that run this program again: one for all clients without Redis, and those
// of the fleets over the Redis server at redisURL. Real blocks until the last run has ended.
func Real(ctx context.Context, runs []Run, redisURL string) ([]Row, error) {
	jobs, apis := make([]job, 1+fleet), make([]*throttletest.Provider, len(runs))
	children, err := rig.Start(len(jobs))
	defer rig.End(children)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { rig.End(children) })()
	begin := time.Now().Add(startupTime)
	start := func(run int) time.Time { return begin.Add(time.Duration(run) * startSpread / time.Duration(len(runs))) }
	for i, r := range runs {
		c, err := r.client()
		if err != nil {
			return nil, err
		}
		apis[i] = r.provider()
		server := httptest.NewServer(delayedHandler{apis[i], apis[i].Delay})
		defer server.Close()
		apis[i].Delay = nil
		for process := range jobs {
			if (process > 0) == c.redis {
				jobs[process].Tasks = append(jobs[process].Tasks, task{r, i, server.URL, start(i)})
			}
		}
	}
	for process := 1; process < len(jobs); process++ {
		jobs[process].Process, jobs[process].Redis = process-1, redisURL
	}
	tallies, err := runAll(children, jobs, len(runs))
	if err != nil {
		return nil, err
	}
	rows, errs := make([]Row, len(runs)), make([]error, len(runs))
	for i, r := range runs {
		rows[i], errs[i] = r.row("real", apis[i].Arrivals(), start(i), tallies[i])
	}
	return rows, errors.Join(errs...)
}

// runAll gives the children their jobs, and returns the tallies of each run.
func runAll(children []*rig.Child, jobs []job, runs int) ([][]Tally, error) {
	results, err := rig.Do[[]Tally](children, func(i int) job { return jobs[i] })
	if err != nil {
		return nil, err
	}
	tallies := make([][]Tally, runs)
	for process, all := range results {
		for i, t := range jobs[process].Tasks {
			tallies[t.Index] = append(tallies[t.Index], all[i])
		}
	}
	return tallies, nil
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

// A job is the tasks of one process.
type job struct {
	Process int    // index in the fleet
	Redis   string // URL. If empty, the tasks don't use Redis
	Tasks   []task
}

// work runs all tasks of a job at once, and returns their tallies.
func work(j job) ([]Tally, error) {
	tallies := make([]Tally, len(j.Tasks))
	var all sync.WaitGroup
	for i, t := range j.Tasks {
		all.Go(func() { tallies[i] = t.run(j) })
	}
	all.Wait()
	return tallies, nil
}

func (t task) run(j job) Tally {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConns, base.MaxIdleConnsPerHost = 0, t.Run.workers()
	defer base.CloseIdleConnections()
	p := process{Run: t.Run, index: j.Process, base: base}
	if j.Redis != "" {
		options, err := redis.ParseURL(j.Redis)
		if err != nil {
			return Tally{Error: err.Error()}
		}
		p.rdb = redis.NewClient(options)
	}
	return p.run(t.URL, t.Start, t.Run.Length)
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
