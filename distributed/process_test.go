package distributed_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// The tests here run fleets: real processes that share a quota through a real server. Each process
// is this test binary, run again as a worker. A worker reports when each of its callers was
// admitted. All workers run on one machine, so they share one clock, and a Counter judges what they
// send together.

const (
	ms   = time.Millisecond
	sec  = time.Second
	hour = time.Hour

	// Longer than any reply of a server takes, and longer than the scheduler delays an admitted
	// caller.
	slow = 10 * sec

	asWorker = "THROTTLE_TEST_WORKER"
)

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		runWorker()
		return
	}
	os.Exit(redistest.Run(m))
}

// A task is one of the things that a worker does. Its callers send requests one after the other.
type task struct {
	// Addr is the address of the server.
	Addr string
	// Name is the name of the policy. If empty, "fleet".
	Name string
	// Policy is a text for ParsePolicy.
	Policy string
	// Callers is the number of goroutines.
	Callers int
	// For is how long the task runs. If zero, until the worker is told to stop.
	For time.Duration
	// Cost is the most that a request costs, 1 the least. If zero, 1.
	Cost int64
	// Cancel is the share of requests that are canceled within 200 ms.
	Cancel float64
	// Hold is the longest time for which a permit is held, half of it the shortest. If zero, the
	// callers use Wait.
	Hold time.Duration
	// Lease is Options.Lease.
	Lease time.Duration
	Class throttle.Class
	// Every is the longest pause of a caller between its requests, half of it the shortest.
	Every time.Duration
}

// An event is what a worker reports about a request. Instants are µs since 1970.
type event struct {
	Worker  int
	Task    string // Name of the task
	Asked   int64  // when the caller asked
	At      int64  // when the request was admitted, released or refused
	Cost    int64  // units
	Outcome string // admitted, released, canceled, or an error
}

const admitted, released, canceled = "admitted", "released", "canceled"

// runWorker runs the tasks of a worker process, in place of tests.
func runWorker() {
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	line, _ := in.ReadBytes('\n')
	var tasks []task
	if err := json.Unmarshal(line, &tasks); err != nil {
		os.Exit(2)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // a second line ends the work; the end of the input ends the process, however the test ends
		_, _ = in.ReadString('\n')
		cancel()
		_, _ = io.Copy(io.Discard, in)
		os.Exit(2)
	}()
	var wg sync.WaitGroup
	for _, k := range tasks {
		wg.Go(func() { k.run(ctx, redis.NewClient(&redis.Options{Addr: k.Addr, ReadTimeout: slow}), event.print) })
	}
	wg.Wait()
}

// run runs a task with a client of its own.
func (k task) run(ctx context.Context, rdb *redis.Client, report func(event)) {
	p, err := throttle.ParsePolicy(cmp.Or(k.Name, "fleet"), k.Policy)
	if err != nil {
		panic(err)
	}
	l, err := throttle.New(p, distributed.New(rdb, distributed.Options{Lease: k.Lease}))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(throttle.WithClass(ctx, k.Class))
	defer cancel()
	if k.For > 0 {
		time.AfterFunc(k.For, cancel) // not a deadline, which would refuse callers that cannot meet it
	}
	var wg sync.WaitGroup
	for range k.Callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				k.sendRequest(ctx, l, report)
				if k.Every > 0 {
					time.Sleep(k.Every/2 + rand.N(k.Every/2))
				}
			}
		})
	}
	wg.Wait()
}

// sendRequest makes one request and reports its outcome.
func (k task) sendRequest(ctx context.Context, l *throttle.Limiter, report func(event)) {
	e := event{Task: k.Name, Asked: time.Now().UnixMicro(), Cost: 1 + rand.Int64N(max(1, k.Cost)), Outcome: admitted}
	if rand.Float64() < k.Cancel {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(rand.N(200*ms), cancel)
	}
	var permit *throttle.Permit
	var err error
	if k.Hold > 0 {
		permit, err = l.Acquire(ctx, throttle.Cost{"requests": e.Cost})
	} else {
		err = l.WaitN(ctx, e.Cost)
	}
	switch {
	case errors.Is(err, context.Canceled):
		e.Outcome = canceled
	case err != nil:
		e.Outcome = err.Error()
	}
	e.At = time.Now().UnixMicro()
	report(e)
	if permit != nil {
		hold := time.NewTimer(k.Hold/2 + rand.N(k.Hold/2))
		defer hold.Stop()
		select {
		case <-hold.C:
		case <-ctx.Done():
		}
		e.Outcome, e.At = released, time.Now().UnixMicro()
		report(e)
		permit.Release()
	}
}

// print writes an event for the test process.
func (e event) print() {
	line, _ := json.Marshal(e)
	_, _ = os.Stdout.Write(append(line, '\n')) // one write, so that lines stay whole
}

// A worker is the test's side of another process, or a member of a fleet in a bubble.
type worker struct {
	t      *testing.T
	number int
	cmd    *exec.Cmd     // nil in a bubble
	in     io.Writer     // nil in a bubble
	rdb    *redis.Client // nil for a process
	asked  calls.Counter // calls of rdb
	ended  chan struct{} // closed after the last event

	mu       sync.Mutex // guards reported
	reported []event
}

// startMembers starts workers in a bubble, each with a client whose messages take the given delay.
func startMembers(t *testing.T, s *miniredis.Miniredis, delays ...time.Duration) []*worker {
	t.Helper()
	var workers []*worker
	for i, delay := range delays {
		w := &worker{t: t, number: i, rdb: distant(t, s, func() time.Duration { return delay }), ended: make(chan struct{})}
		w.rdb.AddHook(&w.asked)
		workers = append(workers, w)
	}
	return workers
}

// startWorkers starts n workers, which wait for their tasks.
func startWorkers(t *testing.T, n int) []*worker {
	t.Helper()
	soak.Long(t, "needs several processes")
	workers := make([]*worker, n)
	for i := range workers {
		w := &worker{t: t, number: i, cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
		w.cmd.Env = append(os.Environ(), asWorker+"=1")
		w.cmd.Stderr = os.Stderr
		in, err := w.cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := w.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.kill)
		w.in = in
		lines := bufio.NewScanner(out)
		workers[i] = w
		lines.Scan() // the worker is ready
		go w.readEvents(lines)
	}
	return workers
}

func (w *worker) readEvents(lines *bufio.Scanner) {
	defer close(w.ended)
	for lines.Scan() {
		e := event{}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return // the worker was killed while it wrote
		}
		w.record(e)
	}
}

func (w *worker) record(e event) {
	e.Worker = w.number
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, e)
}

func (w *worker) begin(tasks ...task) {
	w.t.Helper()
	if w.rdb != nil {
		var working sync.WaitGroup
		for _, k := range tasks {
			working.Go(func() { k.run(context.Background(), w.rdb, w.record) })
		}
		go func() { working.Wait(); close(w.ended) }()
		return
	}
	if err := json.NewEncoder(w.in).Encode(tasks); err != nil {
		w.t.Fatal(err)
	}
}

// stop tells a process to end its work.
func (w *worker) stop() { _, _ = io.WriteString(w.in, "stop\n") }

// kill kills the process as kill -9 does.
func (w *worker) kill() {
	if w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill()
		<-w.ended
		_ = w.cmd.Wait()
	}
}

// signal sends the signal STOP or CONT.
func (w *worker) signal(name string) {
	w.t.Helper()
	if err := exec.Command("kill", "-"+name, strconv.Itoa(w.cmd.Process.Pid)).Run(); err != nil {
		w.t.Skip("no signals here: ", err)
	}
}

// events returns the events of a kind that the worker has reported so far.
func (w *worker) events(what string) (some []event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.reported {
		if e.Outcome == what {
			some = append(some, e)
		}
	}
	return some
}

// waitForWorkers waits for the workers to end without error, and returns all admissions in order.
func waitForWorkers(t *testing.T, workers ...*worker) (all []event) {
	t.Helper()
	for _, w := range workers {
		<-w.ended
		if w.cmd != nil && w.cmd.ProcessState == nil {
			if err := w.cmd.Wait(); err != nil {
				t.Errorf("worker %d: got %v, want it to end without error", w.number, err)
			}
		}
		for _, e := range w.reported {
			if !slices.Contains([]string{admitted, released, canceled}, e.Outcome) {
				t.Errorf("worker %d: got outcome %q, want no error", w.number, e.Outcome)
				break
			}
		}
		all = append(all, w.events(admitted)...)
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(a.At, b.At) })
	if len(all) == 0 {
		t.Fatal("got no admissions")
	}
	return all
}

func (e event) cost() map[string]int64 { return map[string]int64{"requests": e.Cost} }

func counter(t *testing.T, tiers ...throttle.Tier) *throttletest.Counter {
	t.Helper()
	c, err := throttletest.NewCounter(tiers...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// checkBound checks the law of the bound: the provider refuses nothing.
func checkBound(t *testing.T, all []event, tiers ...throttle.Tier) {
	t.Helper()
	provider, refused := counter(t, tiers...), 0
	for _, e := range all {
		if !provider.Arrive(e.At, e.cost()) {
			refused++
		}
	}
	if refused > 0 {
		t.Errorf("the provider refused %d of %d, want none", refused, len(all))
	}
}

// upperBound returns when an ideal client sends the same requests in the same order, again and
// again until end, and how many units.
func upperBound(t *testing.T, all []event, end int64, tiers ...throttle.Tier) (times []int64, units int64) {
	t.Helper()
	provider, at := counter(t, tiers...), all[0].At
	for i := 0; ; i++ {
		e := all[i%len(all)]
		at, _ = provider.Earliest(at, e.cost())
		if at >= end {
			return times, units
		}
		provider.Arrive(at, e.cost())
		times, units = append(times, at), units+e.Cost
	}
}

// checkUse checks that until end a part was admitted of what an ideal client would have sent. What
// the ideal client sends in that part of the time suffices, because end may fall just before a
// window begins. With a guard of 50 ms and windows of a second, the part is 0.95 at most.
func checkUse(t *testing.T, all []event, end time.Time, part float64, tiers ...throttle.Tier) {
	t.Helper()
	var sent int64
	for _, e := range all {
		sent += e.Cost
	}
	first := all[0].At
	_, most := upperBound(t, all, end.UnixMicro(), tiers...)
	_, least := upperBound(t, all, first+int64(part*float64(end.UnixMicro()-first)), tiers...)
	least = min(least, int64(part*float64(most)))
	if sent+largestCost(all) <= least { // the next request may not have fit
		t.Errorf("got %d units admitted, want %d at least, of %d at best", sent, least, most)
	}
}

func largestCost(all []event) (units int64) {
	for _, e := range all {
		units = max(units, e.Cost)
	}
	return units
}

// checkOrder checks the law of order: in a process, a caller is not admitted well after a caller
// that came well after it. Smaller differences are up to the scheduler.
func checkOrder(t *testing.T, all []event) {
	t.Helper()
	const apart = 30_000
	for _, a := range all {
		for _, b := range all {
			if a.Worker == b.Worker && a.Asked+apart < b.Asked && a.At > b.At+apart {
				t.Fatalf("worker %d: got the caller of %d admitted at %d, and the caller of %d at %d, want them in order", a.Worker, a.Asked, a.At, b.Asked, b.At)
			}
		}
	}
}

// open returns a limiter of this process on the fleet's quota. It waits for a server that a busy machine
// delays.
func open(t *testing.T, s *redistest.Server, p throttle.Policy) *throttle.Limiter {
	t.Helper()
	p.Name = "fleet"
	return limiter(t, p, distributed.New(s.Client(), distributed.Options{Timeout: time.Minute}))
}

func limiter(t *testing.T, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// waitUntil waits until done returns true, and fails with what after two minutes.
func waitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(5 * ms) {
		if time.Now().After(end) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}

func policy(tiers ...throttle.Tier) throttle.Policy { return throttle.Policy{Tiers: tiers} }

func per(window time.Duration, limit int64, a throttle.Algorithm) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: window, Algorithm: a}
}

// randomPolicies returns policies of two tiers each, which have every algorithm between them.
func randomPolicies() (policies []throttle.Policy) {
	names := []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.WeightedWindow, throttle.FixedWindow,
		throttle.AnchoredWindow, throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for i := 0; i < len(names); i += 2 {
		limit := 30 + rand.Int64N(30)
		window := sec + rand.N(300*ms).Truncate(ms)
		wide := per(window, limit, names[i])
		narrow := per(2*window, limit+rand.Int64N(limit), names[i+1])
		for _, tier := range []*throttle.Tier{&wide, &narrow} {
			if slices.Contains([]throttle.Algorithm{throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA}, tier.Algorithm) {
				// With a much smaller burst, callers would wait for the guard.
				tier.Burst = limit/2 + rand.Int64N(limit/2)
			}
		}
		policies = append(policies, policy(wide, narrow))
	}
	return policies
}

// With three members of four callers each, the laws of the bound and of order hold and the limits
// are used. When many callers cancel, their reservations go to the next requests of the same cost,
// so the limits are still used.
func TestFleetLaws(t *testing.T) {
	t.Parallel()
	for range soak.Times(1) {
		for _, p := range randomPolicies() {
			// Costs of 3 leave units unused in every window of every tier.
			checkFleetLaws(t, p, task{Cost: 3}, 0.65)
			checkFleetLaws(t, p, task{Cancel: 0.7}, 0.65)
		}
	}
}

func checkFleetLaws(t *testing.T, p throttle.Policy, k task, part float64) {
	t.Run(fmt.Sprintf("%v cancel %v", p, k.Cancel), func(t *testing.T) {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			k.Policy, k.Callers, k.For = p.String(), 4, 4*sec
			end := time.Now().Add(k.For)
			workers := startMembers(t, s, ms/2, ms/2, ms)
			for _, w := range workers {
				w.begin(k)
			}
			all := waitForWorkers(t, workers...)
			checkBound(t, all, p.Tiers...)
			checkOrder(t, all)
			checkUse(t, all, end, part, p.Tiers...)
		})
	})
}

// Everything that three processes send is charged. At most two reservations a caller are lost, also
// when callers cancel again and again, and when one process is killed while the others continue.
func TestFleetOfProcesses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		cancel float64
		kill   bool
	}{{"stay", 0, false}, {"cancel", 0.5, false}, {"are killed", 0, true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			const callers = 40
			s, workers := redistest.Start(t), startWorkers(t, 3)
			p := policy(per(sec, 100, throttle.TokenBucket), throttle.PerHour(1_000_000))
			p.Guard, p.Tiers[0].Burst = 5*sec, 500 // every reply arrives in time
			for _, w := range workers {
				w.begin(task{Addr: s.Addr(), Policy: p.String(), Callers: callers, Cancel: test.cancel})
			}
			waitUntil(t, "more than the burst is sent", func() bool { return sentBy(workers...) > 550*soak.Times(1) })
			others := workers
			if test.kill {
				workers[0].kill()
				others = workers[1:]
			}
			before := sentBy(others...)
			waitUntil(t, "the others continue", func() bool { return sentBy(others...) > before+20 })
			for _, w := range others {
				w.stop()
			}
			sent := int64(len(waitForWorkers(t, workers...)))
			// Workers that are not killed end at once. They may not have returned their
			// reservations, nor those that came too late and were made anew.
			lost := tierStatus(t, open(t, s, p), 1).Used - sent
			if lost < 0 || lost > 2*3*callers {
				t.Errorf("got %d sent and %d more charged, want 0 to %d more", sent, lost, 2*3*callers)
			}
		})
	}
}

// sentBy returns how many admissions the workers have reported so far.
func sentBy(workers ...*worker) (n int) {
	for _, w := range workers {
		n += len(w.events(admitted))
	}
	return n
}

// checkRefusal checks that err is a *WaitError which matches want, with a wait of least or longer.
func checkRefusal(t *testing.T, err, want error, least time.Duration) {
	t.Helper()
	var w *throttle.WaitError
	if !errors.Is(err, want) || !errors.As(err, &w) || w.Wait < least {
		t.Errorf("got %v, want %v with a wait of %v at least", err, want, least)
	}
}

// When one process has used up a quota, another process is refused at once if its deadline is known
// to be too early, with the wait that it would have needed. A cost above a tier's capacity is
// always refused. Refusals are not charged, and do not delay callers that wait.
func TestFleetRefusesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		p := policy(per(2*sec, 5, throttle.SlidingLog), per(hour, 1000, throttle.TokenBucket))
		w := startMembers(t, s, ms/2)
		w[0].begin(task{Policy: p.String(), Callers: 6, For: 3 * sec})
		p.Name = "fleet"
		l := limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
		time.Sleep(100 * ms)
		for range 10 {
			ctx, cancel := context.WithTimeout(context.Background(), 400*ms)
			now := time.Now()
			checkRefusal(t, l.Wait(ctx), throttle.ErrDeadline, 400*ms)
			cancel()
			checkRefusal(t, l.WaitN(context.Background(), 6), throttle.ErrExceedsCapacity, 0)
			if took := time.Since(now); took > 10*ms {
				t.Errorf("got refusals after %v, want 10ms at most", took)
			}
		}
		all := waitForWorkers(t, w...)
		checkBound(t, all, p.Tiers...)
		if len(all) != 10 || all[5].At-all[0].At > (2*sec+100*ms).Microseconds() {
			t.Errorf("got %d admitted, want 10, the sixth within 2.1s of the first: refusals must not be charged", len(all))
		}
	})
}

// A pause stops the whole fleet, including callers with a reservation, and a shorter pause does not
// end it. After the pause the tiers still hold.
func TestFleetPause(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		p := policy(per(sec, 50, throttle.TokenBucket), per(2*sec, 80, throttle.SlidingLog))
		p.Tiers[0].Burst = 5
		workers := startMembers(t, s, ms/2, ms/2)
		for _, w := range workers {
			w.begin(task{Policy: p.String(), Callers: 8, For: 4 * sec})
		}
		p.Name = "fleet"
		l := limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
		time.Sleep(sec)
		began := time.Now()
		for _, length := range []time.Duration{1200 * ms, 200 * ms} {
			if err := l.Pause(context.Background(), length); err != nil {
				t.Fatal(err)
			}
		}
		reached := began.Add(50 * ms) // a pause does not wake callers that sleep for less than 5 ms
		all := waitForWorkers(t, workers...)
		checkBound(t, all, p.Tiers...)
		var during, after int
		for _, e := range all {
			if e.At > reached.UnixMicro() && e.At < began.Add(1200*ms).UnixMicro() {
				during++
			}
			if e.At > began.Add(1200*ms).UnixMicro() {
				after++
			}
		}
		if during > 0 || after < 20 {
			t.Errorf("got %d admitted during the pause and %d after it, want none and 20 at least", during, after)
		}
	})
}

// A process that has just begun to wait has no subscription yet. It learns of a pause once it has
// one: after a connection, SUBSCRIBE and a query, which are four round trips at most whenever the
// pause comes, even if the server has not loaded the query's script. Until then the process admits
// what was reserved before the pause.
func TestFleetPauseAtStart(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	const trip, length = 20 * ms, 400 * ms
	for at := 3 * trip; at < 15*trip; at += 10 * ms {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			tier := per(sec, 100, throttle.GCRA)
			tier.Burst = 1
			w := startMembers(t, s, trip)
			if err := w[0].rdb.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			w[0].begin(task{Policy: exact(tier).String(), Callers: 40, For: length + 15*trip})
			p := exact(tier)
			p.Name = "fleet"
			time.Sleep(at)
			l := limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
			began := time.Now()
			if err := l.Pause(context.Background(), length); err != nil {
				t.Fatal(err)
			}
			returned := time.Now()
			for _, e := range waitForWorkers(t, w...) {
				if late := time.UnixMicro(e.At).Sub(returned); late > 4*trip && e.At < began.Add(length).UnixMicro() {
					t.Errorf("paused at %v: got an admission %v later, want none after four round trips", at, late)
				}
			}
		})
	}
}

// checkOpen checks that at most that many permits were open at once, by the instants that the
// workers reported. It returns how many were open on average in [from, to).
func checkOpen(t *testing.T, most int, from, to time.Time, workers ...*worker) (average float64) {
	t.Helper()
	type change struct {
		at int64
		by int
	}
	var changes []change
	for _, w := range workers {
		for _, e := range w.events(admitted) {
			changes = append(changes, change{e.At, 1})
		}
		for _, e := range w.events(released) {
			changes = append(changes, change{e.At, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), a.by-b.by) })
	open, last := 0, from.UnixMicro()
	for _, c := range changes {
		if between := min(c.at, to.UnixMicro()) - last; between > 0 {
			average += float64(open) * float64(between)
			last += between
		}
		if open += c.by; open > most {
			t.Fatalf("got %d open, want %d at most", open, most)
		}
	}
	return average / float64(to.Sub(from).Microseconds())
}

// Three processes share four leased permits. At most four are open at once, and most of them are
// for most of the time.
func TestFleetConcurrency(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		k := task{Policy: policy(throttle.Tier{Limit: 4, Algorithm: throttle.Concurrency}).String(), Callers: 4, For: 2 * sec, Hold: 50 * ms}
		workers := startMembers(t, s, ms/2, ms/2, ms/2)
		began := time.Now()
		for _, w := range workers {
			w.begin(k)
		}
		waitForWorkers(t, workers...)
		if open := checkOpen(t, 4, began.Add(300*ms), began.Add(k.For-300*ms), workers...); open < 3 {
			t.Errorf("got %.2f of 4 permits held on average, want 3 at least", open)
		}
		for _, w := range workers {
			if n := len(w.events(admitted)); n < 20 {
				t.Errorf("worker %d: got %d admissions, want 20 at least", w.number, n)
			}
		}
	})
}

// The permits of a killed process become free when its lease ends, and not before. Then all four
// are available again.
func TestFleetKilledWhileHolding(t *testing.T) {
	t.Parallel()
	const lease = 12 * sec // long enough to be renewed in time on any machine, also if that stands still for some seconds
	s := redistest.Start(t)
	k := task{Addr: s.Addr(), Policy: policy(throttle.Tier{Limit: 4, Algorithm: throttle.Concurrency}).String(), Lease: lease}
	workers := startWorkers(t, 2)
	killed, other := workers[0], workers[1]
	k.Callers, k.Hold = 3, hour
	killed.begin(k)
	waitUntil(t, "three permits are held", func() bool { return len(killed.events(admitted)) == 3 })
	k.Callers, k.Hold = 6, 50*ms
	other.begin(k)
	time.Sleep(3 * lease / 2) // the lease is renewed meanwhile
	if n := maxOpen(other, time.Now()); n != 1 {
		t.Errorf("got %d held besides the three, want 1", n)
	}
	died := time.Now()
	killed.kill()
	waitUntil(t, "all four permits are available", func() bool { return maxOpen(other, time.Now()) >= 4 })
	other.stop()
	waitForWorkers(t, other)
	if early := maxOpen(other, died.Add(lease/3)); early > 1 {
		t.Errorf("got %d held besides the three before the lease ended, want 1 at most", early)
	}
	if n := maxOpen(other, time.Now()); n > 4 {
		t.Errorf("%d are open, want 4 at most", n)
	}
}

// maxOpen returns how many permits a worker had open at most until an instant.
func maxOpen(w *worker, end time.Time) (most int) {
	open, begun, ended := 0, w.events(admitted), w.events(released)
	for len(begun) > 0 && begun[0].At < end.UnixMicro() {
		if len(ended) > 0 && ended[0].At <= begun[0].At {
			open, ended = open-1, ended[1:]
			continue
		}
		open, begun = open+1, begun[1:]
		most = max(most, open)
	}
	return most
}

// A process that was stopped reserves anew when it continues. It does not send its expired
// reservations in a burst.
func TestFleetStopped(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := policy(per(sec, 50, throttle.SlidingLog), per(sec, 100, throttle.TokenBucket))
	p.Guard = 2 * sec // more than any machine takes to wake up a process
	workers := startWorkers(t, 2)
	for _, w := range workers {
		w.begin(task{Addr: s.Addr(), Policy: p.String(), Callers: 20})
	}
	waitUntil(t, "both processes are admitted", func() bool { return len(workers[0].events(admitted)) > 0 && len(workers[1].events(admitted)) > 0 })
	workers[0].signal("STOP")
	time.Sleep(p.Guard + 2*sec)
	before := len(workers[0].events(admitted))
	workers[0].signal("CONT")
	waitUntil(t, "the process continues", func() bool { return len(workers[0].events(admitted)) > before+10 })
	for _, w := range workers {
		w.stop()
	}
	checkBound(t, waitForWorkers(t, workers...), p.Tiers...)
}

// Processes share a quota fairly. A process that is farther away gets as much as the others. No
// caller waits much longer than in a single queue, and an admission costs little more than one
// call. (More callers wait than are admitted at once. Otherwise nearer processes would take more of
// what no caller waits for.)
func TestFleetFairness(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		tiers := []throttle.Tier{per(500*ms, 10, throttle.SlidingLog), per(4*sec, 60, throttle.SlidingLog)}
		workers := startMembers(t, s, 2*ms, ms/2, ms/2)
		for _, w := range workers {
			w.begin(task{Policy: policy(tiers...).String(), Callers: 8, For: 7 * sec})
		}
		all := waitForWorkers(t, workers...)
		checkBound(t, all, tiers...)
		counts, calls := make([]int, len(workers)), 0.0
		for _, e := range all {
			if e.At > all[0].At+250_000 { // all callers wait
				counts[e.Worker]++
			}
		}
		for _, w := range workers {
			calls += float64(w.asked.Count()) / float64(len(all))
		}
		best, _ := upperBound(t, all, all[len(all)-1].At+1, tiers...)
		var longest, oneQueue int64
		for i, e := range all {
			longest = max(longest, e.At-e.Asked)
			if i >= 24 {
				oneQueue = max(oneQueue, best[i]-best[i-24])
			}
		}
		t.Logf("%v admitted, %.2f calls an admission, longest wait %d ms, in a single queue %d ms", counts, calls, longest/1000, oneQueue/1000)
		least, most := slices.Min(counts), slices.Max(counts)
		// A turn is eight, and one process may have had the first and the last.
		if least*10 < most*8 && most-least > 16 {
			t.Errorf("got %v admitted by process, want them within 20 %% or two turns", counts)
		}
		if calls > 1.3 {
			t.Errorf("got %.2f calls an admission, want 1.3 at most", calls)
		}
		if longest > oneQueue*3/2 {
			t.Errorf("got a longest wait of %d ms, want 1.5 times the %d ms of a single queue at most", longest/1000, oneQueue/1000)
		}
	})
}

// Processes share a steady flow fairly too, with more waiters than can reserve within the horizon.
func TestFleetFairnessInAFlow(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		tier := per(sec, 50, throttle.TokenBucket)
		tier.Burst = 5
		workers := startMembers(t, s, ms/2, ms/2)
		for _, w := range workers {
			w.begin(task{Policy: policy(tier).String(), Callers: 40, For: 5 * sec})
		}
		checkBound(t, waitForWorkers(t, workers...), tier)
		a, b := len(workers[0].events(admitted)), len(workers[1].events(admitted))
		if max(a, b)-min(a, b) > 60 { // a turn is 25, and one process may have begun with two turns
			t.Errorf("got %d and %d admitted by process, want a difference of 60 at most", a, b)
		}
	})
}

// Two processes ask for far more than the limit, and a third asks now and then for interactive
// users. With classes the users' requests go ahead of the job, which gets the rest.
func TestFleetClasses(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		tier := per(sec, 40, throttle.GCRA)
		tier.Burst = 4
		p := policy(tier)
		p.Aging, p.Headroom = time.Minute, 25
		workers := startMembers(t, s, ms/2, ms/2, ms/2)
		for i, w := range workers {
			with := task{Name: "with", Policy: p.String(), Callers: 20, For: 6 * sec, Class: throttle.Batch}
			if i == 0 {
				with.Callers, with.Every, with.Class = 2, 400*ms, throttle.Interactive
			}
			without := with
			without.Name, without.Class = "without", throttle.Normal
			w.begin(with, without)
		}
		all := waitForWorkers(t, workers...)
		slowest := func(name string, interactive bool) time.Duration {
			var waits []int64
			for _, e := range all {
				if e.Task == name && (e.Worker == 0) == interactive {
					waits = append(waits, e.At-e.Asked)
				}
			}
			slices.Sort(waits)
			t.Logf("%s classes, interactive %v: %d admitted, 99 in 100 within %d ms", name, interactive, len(waits), waits[len(waits)*99/100]/1000)
			return time.Duration(waits[len(waits)*99/100]) * time.Microsecond
		}
		for _, name := range []string{"with", "without"} {
			checkBound(t, slices.DeleteFunc(slices.Clone(all), func(e event) bool { return e.Task != name }), tier)
		}
		fast, slow, job := slowest("with", true), slowest("without", true), slowest("with", false)
		if n := len(slices.DeleteFunc(slices.Clone(all), func(e event) bool { return e.Task != "with" || e.Worker == 0 })); n < 100 { // of 240, less about 40
			t.Errorf("got %d admitted for the job, want 100 at least", n)
		}
		if 3*fast > min(slow, job) {
			t.Errorf("got interactive waits of %v, want at most a third of %v without classes, and of the job's %v", fast, slow, job)
		}
	})
}

// TestFleetHeadroom checks that the headroom that a job leaves in one process is available at once
// in another process.
func TestFleetHeadroom(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		p := policy(per(time.Hour, 100, throttle.SlidingLog))
		p.Name, p.Headroom = "fleet", 20
		take := func(c throttle.Class) (n int) {
			l := limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
			ctx := throttle.WithClass(context.Background(), c)
			for ; ; n++ {
				soon, cancel := context.WithTimeout(ctx, 200*ms)
				err := l.Wait(soon)
				cancel()
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Fatal(err)
					}
					return n
				}
			}
		}
		if n := take(throttle.Batch); n != 80 {
			t.Errorf("got %d of 100 admitted for the job, want 80", n)
		}
		if n := take(throttle.Interactive); n != 20 {
			t.Errorf("got %d interactive requests admitted, want the 20 of the headroom", n)
		}
	})
}

// TestFleetAging checks that a Batch request is admitted after Aging, behind the reservations of
// that instant, although another process always has more reserved than the limit allows.
func TestFleetAging(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		p := policy(per(sec, 20, throttle.GCRA))
		p.Name, p.Tiers[0].Burst, p.Aging = "fleet", 1, 500*ms
		ctx, cancel := context.WithCancel(context.Background())
		process := func() *throttle.Limiter {
			return limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
		}
		busy, job := process(), process()
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		for range 20 {
			wg.Go(func() {
				for busy.Wait(ctx) == nil {
				}
			})
		}
		time.Sleep(sec)
		start := time.Now()
		err := job.Wait(throttle.WithClass(ctx, throttle.Batch))
		if took := time.Since(start); err != nil || took < p.Aging || took > p.Aging+2*sec {
			t.Errorf("got %v after %v, want no error after %v to 2s more", err, took, p.Aging)
		}
	})
}

// scriptCalls returns how often the script has run.
func scriptCalls(t *testing.T, s *redistest.Server) (n int) {
	t.Helper()
	for _, command := range []string{"eval", "evalsha", "fcall"} {
		if text := s.Info("commandstats", "cmdstat_"+command); text != "" {
			calls := 0
			if _, err := fmt.Sscanf(text, "calls=%d,", &calls); err != nil {
				t.Fatal(err)
			}
			n += calls
		}
	}
	return n
}

// While a release with a smaller limit is rolled out, processes with either limit share the quota.
// Everything that was spent counts. The larger limit holds for all processes, and the smaller limit
// for the processes of the new release.
func TestFleetRollingDeployment(t *testing.T) {
	t.Parallel()
	for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.FixedWindow, throttle.TokenBucket} {
		t.Run(a.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				before, after := per(sec, 50, a), per(sec, 30, a)
				workers := startMembers(t, s, ms/2, ms/2)
				workers[0].begin(task{Policy: policy(before).String(), Callers: 8, For: 3 * sec})
				time.Sleep(100 * ms)
				if n := len(workers[0].events(admitted)); n < 50 {
					t.Errorf("got %d admitted at once, want 50", n)
				}
				workers[1].begin(task{Policy: policy(after).String(), Callers: 8, For: 3 * sec})
				checkBound(t, waitForWorkers(t, workers...), before)
				checkBound(t, workers[1].events(admitted), after)
			})
		})
	}
}

// When processes with different limits take turns, everything that was spent counts, and the rest
// of the larger limit stays available to its processes.
func TestRollingDeploymentForgetsNothing(t *testing.T) {
	t.Parallel()
	for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.WeightedWindow, throttle.FixedWindow,
		throttle.AnchoredWindow, throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA} {
		t.Run(a.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				process := func(limit int64) *throttle.Limiter {
					p := policy(per(hour, limit, a))
					p.Name = "fleet"
					return limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
				}
				old, young := process(50), process(30)
				sent := 0
				for range 3 {
					for old.Allow() {
						sent++
					}
					time.Sleep(60 * ms) // in-flight requests land meanwhile and must still count
					for young.Allow() {
						sent++
					}
				}
				if sent != 50 {
					t.Errorf("got %d admitted, want 50", sent)
				}
			})
		})
	}
}
