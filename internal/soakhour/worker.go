package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

const (
	workerEnv  = "THROTTLE_SOAK_WORKER"
	sentHeader = "X-Sent" // when a request was admitted, in µs since 1970
	panicText  = "a callback of the soak test panics"
)

// A job is what a worker receives in its environment.
type job struct {
	Redis, Provider, Policy string
	Callers                 int
	Guard                   time.Duration
	Seed                    uint64
}

// A report is what a worker prints every second, as a line of JSON.
type report struct {
	Waits      []int // ms from a call to the admission
	Goroutines int
	Deployed   bool // the worker has taken over a policy
	Canceled   int
	Panics     int
	Lost       int            // calls of OnLost
	Errors     map[string]int // that are not expected
}

// A worker is one process of the fleet.
type worker struct {
	job
	rt *throttle.Transport

	mu  sync.Mutex // guards now
	now report
}

// A key is the key of a value in a request's context.
type key string

const (
	panics key = "panics" // the callback that panics
	began  key = "began"  // when the caller called
)

// runWorker does the job in the environment until it is told to end by SIGTERM, or its parent has ended.
func runWorker(text string) (code int) {
	w := &worker{}
	if err := json.Unmarshal([]byte(text), &w.job); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	redis.SetLogger(silent{})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: w.Redis})
	store := distributed.New(rdb, distributed.Options{OnLost: func(string) { w.note(func(r *report) { r.Lost++ }) }})
	lim, err := throttle.New(w.policy(w.Policy), store)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	w.rt = &throttle.Transport{
		Base:    &base{w, &http.Transport{MaxIdleConnsPerHost: w.Callers}},
		Limiter: lim,
		Cost:    func(r *http.Request) throttle.Cost { panicIn(r.Context(), "Cost"); return nil },
	}
	go w.obey(lim)
	var callers sync.WaitGroup
	for i := range w.Callers {
		random := rand.New(rand.NewPCG(w.Seed, uint64(i)))
		callers.Go(func() {
			for ctx.Err() == nil {
				w.call(ctx, random)
			}
		})
	}
	ended := make(chan struct{})
	go func() { callers.Wait(); close(ended) }()
	for working := true; working; w.print() {
		select {
		case <-time.After(time.Second):
		case <-ended:
			working = false
		}
	}
	flush, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := store.Flush(flush); err != nil && !errors.Is(err, throttle.ErrUnavailable) && flush.Err() == nil {
		w.fail(fmt.Errorf("Flush: %w", err))
	}
	_ = rdb.Close()
	w.print()
	return 0
}

func (w *worker) policy(text string) throttle.Policy {
	p, err := throttle.ParsePolicy("soak", text)
	if err != nil {
		panic(err)
	}
	p.Guard = w.Guard
	p.Observer = &throttle.Observer{
		Queued:   func(ctx context.Context, _ throttle.QueuedInfo) { panicIn(ctx, "Queued") },
		Admitted: func(ctx context.Context, _ throttle.AdmittedInfo) { panicIn(ctx, "Admitted") },
		Answered: func(ctx context.Context, _ throttle.AnsweredInfo) { panicIn(ctx, "Answered") },
	}
	return p
}

// obey takes over policies from standard input. Its end is that of the parent.
func (w *worker) obey(lim *throttle.Limiter) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := lim.SetPolicy(context.Background(), w.policy(lines.Text())); err != nil {
			w.fail(fmt.Errorf("SetPolicy: %w", err))
		}
		w.note(func(r *report) { r.Deployed = true })
	}
	os.Exit(2)
}

// call sends one request. A few are canceled, have a deadline, or meet a callback that panics.
func (w *worker) call(ctx context.Context, random *rand.Rand) {
	cancel := context.CancelFunc(func() {})
	mayEnd := true // the request may be canceled
	soon := time.Duration(random.Int64N(int64(4 * time.Second)))
	switch n := random.IntN(1000); {
	case n < 40:
		ctx, cancel = context.WithTimeout(ctx, soon)
	case n < 80:
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(soon, cancel)
	case n < 88:
		ctx = context.WithValue(ctx, panics, []string{"Cost", "Queued", "Admitted", "Answered", "Base"}[random.IntN(5)])
	default:
		mayEnd = false
	}
	defer cancel()
	defer func() {
		if r := recover(); r == panicText {
			w.note(func(r *report) { r.Panics++ })
		} else if r != nil {
			w.fail(fmt.Errorf("panic: %v", r))
		}
	}()
	req, _ := http.NewRequestWithContext(context.WithValue(ctx, began, time.Now()), http.MethodGet, w.Provider, nil)
	resp, err := w.rt.RoundTrip(req)
	switch {
	case err == nil:
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	case (mayEnd || ctx.Err() != nil) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		w.note(func(r *report) { r.Canceled++ })
	default:
		w.fail(err)
	}
}

// A base sends admitted requests.
type base struct {
	w *worker
	http.RoundTripper
}

func (b *base) RoundTrip(r *http.Request) (*http.Response, error) {
	panicIn(r.Context(), "Base")
	now := time.Now()
	waited := int(now.Sub(r.Context().Value(began).(time.Time)).Milliseconds())
	b.w.note(func(r *report) { r.Waits = append(r.Waits, waited) })
	r = r.Clone(r.Context())
	r.Header.Set(sentHeader, strconv.FormatInt(now.UnixMicro(), 10))
	return b.RoundTripper.RoundTrip(r)
}

func panicIn(ctx context.Context, callback string) {
	if ctx.Value(panics) == callback {
		panic(panicText)
	}
}

func (w *worker) fail(err error) {
	text := err.Error()
	if at := strings.Index(text, "\n"); at > 0 {
		text = text[:at]
	}
	w.note(func(r *report) {
		if r.Errors == nil {
			r.Errors = map[string]int{}
		}
		r.Errors[text]++
	})
}

func (w *worker) note(f func(*report)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.now)
}

// print prints what happened since the last report.
func (w *worker) print() {
	w.mu.Lock()
	r := w.now
	w.now = report{}
	w.mu.Unlock()
	r.Goroutines = runtime.NumGoroutine()
	_ = json.NewEncoder(os.Stdout).Encode(r)
}

// silent discards what the client of Redis logs about connections that faults break.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
