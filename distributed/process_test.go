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

// The tests here are about a fleet: real processes that share a quota through a
// real server, each this test binary, run again as a worker. A worker tells when
// each of its callers was admitted; all are on one machine, so that their clocks
// are one, and a Counter judges what all of them sent together.

const (
	ms   = time.Millisecond
	sec  = time.Second
	hour = time.Hour

	// No reply of a server takes so long, nor does the scheduler to run who was admitted.
	slow = 10 * sec

	asWorker = "THROTTLE_TEST_WORKER"
)

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		work()
		return
	}
	os.Exit(redistest.Run(m))
}

// A task is what a worker does, maybe among others: its callers ask again and again.
type task struct {
	Addr    string        // of the server
	Name    string        // of the policy. If empty, "fleet"
	Policy  string        // as ParsePolicy reads it
	Callers int           // goroutines
	For     time.Duration // how long. If zero, until it is told to stop
	Cost    int64         // each request costs from 1 to this. If zero, 1
	Cancel  float64       // the part of the requests that are canceled within 200 ms
	Hold    time.Duration // how long a permit is held, half as long at least. If zero, Wait is called
	Lease   time.Duration // Options.Lease
	Class   throttle.Class
	Every   time.Duration // how long a caller pauses between its requests, half as long at least
}

// An event is what a worker tells of a request. Instants are µs since 1970.
type event struct {
	Worker int
	Task   string // its Name
	Came   int64  // when it was asked for
	At     int64  // when it was admitted, released or refused
	Cost   int64  // units
	What   string // admitted, released, left, or an error
}

const admitted, released, left = "admitted", "released", "left"

// work is what a worker does in place of tests.
func work() {
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	line, _ := in.ReadBytes('\n')
	var tasks []task
	if err := json.Unmarshal(line, &tasks); err != nil {
		os.Exit(2)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // a second line ends the work, and the end of the test ends it however that ends
		_, _ = in.ReadString('\n')
		cancel()
		_, _ = io.Copy(io.Discard, in)
		os.Exit(2)
	}()
	var wg sync.WaitGroup
	for _, k := range tasks {
		wg.Go(func() { k.work(ctx, redis.NewClient(&redis.Options{Addr: k.Addr, ReadTimeout: slow}), event.print) })
	}
	wg.Wait()
}

// work plays a task with a client of its own.
func (k task) work(ctx context.Context, rdb *redis.Client, tell func(event)) {
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
		time.AfterFunc(k.For, cancel) // not a deadline: that would refuse who can't make it
	}
	var wg sync.WaitGroup
	for range k.Callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				k.request(ctx, l, tell)
				if k.Every > 0 {
					time.Sleep(k.Every/2 + rand.N(k.Every/2))
				}
			}
		})
	}
	wg.Wait()
}

// request makes one request and tells what became of it.
func (k task) request(ctx context.Context, l *throttle.Limiter, tell func(event)) {
	e := event{Task: k.Name, Came: time.Now().UnixMicro(), Cost: 1 + rand.Int64N(max(1, k.Cost)), What: admitted}
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
		e.What = left
	case err != nil:
		e.What = err.Error()
	}
	e.At = time.Now().UnixMicro()
	tell(e)
	if permit != nil {
		hold := time.NewTimer(k.Hold/2 + rand.N(k.Hold/2))
		defer hold.Stop()
		select {
		case <-hold.C:
		case <-ctx.Done():
		}
		e.What, e.At = released, time.Now().UnixMicro()
		tell(e)
		permit.Release()
	}
}

// print tells an event to the test from another process.
func (e event) print() {
	line, _ := json.Marshal(e)
	_, _ = os.Stdout.Write(append(line, '\n')) // one write, so that lines stay whole
}

// A worker is another process as the test sees it, or a member of a fleet in a bubble.
type worker struct {
	t      *testing.T
	number int
	cmd    *exec.Cmd     // nil in a bubble
	in     io.Writer     // nil in a bubble
	rdb    *redis.Client // nil of a process
	asked  calls.Counter // what rdb called
	ended  chan struct{} // closed when it has told everything

	mu   sync.Mutex // guards told
	told []event
}

// startMembers starts workers in a bubble, each with a client that is so far away.
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

// startWorkers starts so many, which wait for their task.
func startWorkers(t *testing.T, n int) []*worker {
	t.Helper()
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
		lines.Scan() // it is ready
		go w.listen(lines)
	}
	return workers
}

func (w *worker) listen(lines *bufio.Scanner) {
	defer close(w.ended)
	for lines.Scan() {
		e := event{}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return // it was killed in the middle
		}
		w.hear(e)
	}
}

func (w *worker) hear(e event) {
	e.Worker = w.number
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, e)
}

func (w *worker) begin(tasks ...task) {
	w.t.Helper()
	if w.rdb != nil {
		var working sync.WaitGroup
		for _, k := range tasks {
			working.Go(func() { k.work(context.Background(), w.rdb, w.hear) })
		}
		go func() { working.Wait(); close(w.ended) }()
		return
	}
	if err := json.NewEncoder(w.in).Encode(tasks); err != nil {
		w.t.Fatal(err)
	}
}

// stop makes a process end its work.
func (w *worker) stop() { _, _ = io.WriteString(w.in, "stop\n") }

// kill is kill -9.
func (w *worker) kill() {
	if w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill()
		<-w.ended
		_ = w.cmd.Wait()
	}
}

// signal sends STOP or CONT.
func (w *worker) signal(name string) {
	w.t.Helper()
	if err := exec.Command("kill", "-"+name, strconv.Itoa(w.cmd.Process.Pid)).Run(); err != nil {
		w.t.Skip("no signals here: ", err)
	}
}

// events are what it has told so far.
func (w *worker) events(what string) (some []event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.told {
		if e.What == what {
			some = append(some, e)
		}
	}
	return some
}

// finish waits for the workers to end, as they should, and returns what was
// admitted, in order.
func finish(t *testing.T, workers ...*worker) (all []event) {
	t.Helper()
	for _, w := range workers {
		<-w.ended
		if w.cmd != nil && w.cmd.ProcessState == nil {
			if err := w.cmd.Wait(); err != nil {
				t.Errorf("worker %d: %v", w.number, err)
			}
		}
		for _, e := range w.told {
			if !slices.Contains([]string{admitted, released, left}, e.What) {
				t.Errorf("worker %d: %s", w.number, e.What)
				break
			}
		}
		all = append(all, w.events(admitted)...)
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(a.At, b.At) })
	if len(all) == 0 {
		t.Fatal("nothing was admitted")
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

// checkBound is the law of the bound: the provider refuses nothing.
func checkBound(t *testing.T, all []event, tiers ...throttle.Tier) {
	t.Helper()
	provider, refused := counter(t, tiers...), 0
	for _, e := range all {
		if !provider.Arrive(e.At, e.cost()) {
			refused++
		}
	}
	if refused > 0 {
		t.Errorf("the provider refuses %d of %d", refused, len(all))
	}
}

// atBest is when a client who knows everything sends the same requests in the same
// order, again and again, as long as they are before an end.
func atBest(t *testing.T, all []event, end int64, tiers ...throttle.Tier) (times []int64, units int64) {
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

// isUsed checks that until the end a part was admitted of what a client who knows
// everything would have sent, or at least what he sends in that part of the time,
// since the end may come just before a window does. With a guard of 50 ms and windows
// of a second that part is 0.95 at most.
func isUsed(t *testing.T, all []event, end time.Time, part float64, tiers ...throttle.Tier) {
	t.Helper()
	var sent int64
	for _, e := range all {
		sent += e.Cost
	}
	first := all[0].At
	_, most := atBest(t, all, end.UnixMicro(), tiers...)
	_, least := atBest(t, all, first+int64(part*float64(end.UnixMicro()-first)), tiers...)
	least = min(least, int64(part*float64(most)))
	if sent+largest(all) <= least { // the next one may not have fit
		t.Errorf("%d units were admitted, want %d at least, of %d at best", sent, least, most)
	}
}

func largest(all []event) (units int64) {
	for _, e := range all {
		units = max(units, e.Cost)
	}
	return units
}

// checkOrder is the law of order: in a process, who came well before another is
// not admitted well after it. What is less apart is up to the scheduler.
func checkOrder(t *testing.T, all []event) {
	t.Helper()
	const apart = 30_000
	for _, a := range all {
		for _, b := range all {
			if a.Worker == b.Worker && a.Came+apart < b.Came && a.At > b.At+apart {
				t.Fatalf("worker %d: who came at %d was admitted at %d, and who came at %d at %d", a.Worker, a.Came, a.At, b.Came, b.At)
			}
		}
	}
}

// open returns a limiter of this process on the fleet's quota.
func open(t *testing.T, s *redistest.Server, p throttle.Policy) *throttle.Limiter {
	t.Helper()
	p.Name = "fleet"
	return limiter(t, p, distributed.New(s.Client(), distributed.Options{}))
}

func limiter(t *testing.T, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// until waits for what another process does.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(5 * ms) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func policy(tiers ...throttle.Tier) throttle.Policy { return throttle.Policy{Tiers: tiers} }

func per(window time.Duration, limit int64, a throttle.Algorithm) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: window, Algorithm: a}
}

// randomPolicies are a handful of two tiers each, with every algorithm in one.
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
				tier.Burst = limit/2 + rand.Int64N(limit/2) // much less, and the guard would be what they wait for
			}
		}
		policies = append(policies, policy(wide, narrow))
	}
	return policies
}

// Three members of four callers each: the laws of the bound and of order hold, and
// the limits are used. Of a storm of cancellations what was booked is given back to
// the next of the same cost, so that they are used then too.
func TestFleetLaws(t *testing.T) {
	t.Parallel()
	for range soak.Times(1) {
		for _, p := range randomPolicies() {
			fleetLaws(t, p, task{Cost: 3}, 0.65) // costs of 3 leave a rest in every window of every tier
			fleetLaws(t, p, task{Cancel: 0.7}, 0.65)
		}
	}
}

func fleetLaws(t *testing.T, p throttle.Policy, k task, part float64) {
	t.Run(fmt.Sprintf("%v cancel %v", p, k.Cancel), func(t *testing.T) {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			k.Policy, k.Callers, k.For = p.String(), 4, 4*sec
			end := time.Now().Add(k.For)
			workers := startMembers(t, s, ms/2, ms/2, ms)
			for _, w := range workers {
				w.begin(k)
			}
			all := finish(t, workers...)
			checkBound(t, all, p.Tiers...)
			checkOrder(t, all)
			isUsed(t, all, end, part, p.Tiers...)
		})
	})
}

// What three processes send is charged, and of what is charged no more is lost than one
// booking for each caller: where callers give up again and again, and where a process is
// killed, while the others go on.
func TestFleetOfProcesses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		cancel float64
		kill   bool
	}{{"stay", 0, false}, {"give up", 0.5, false}, {"are killed", 0, true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			const callers = 40
			s, workers := redistest.Start(t), startWorkers(t, 3)
			p := policy(per(sec, 100, throttle.TokenBucket), throttle.PerHour(1_000_000))
			p.Guard, p.Tiers[0].Burst = 5*sec, 500 // no reply is too late
			for _, w := range workers {
				w.begin(task{Addr: s.Addr(), Policy: p.String(), Callers: callers, Cancel: test.cancel})
			}
			until(t, "the burst is sent, and more", func() bool { return sentBy(workers...) > 550*soak.Times(1) })
			others := workers
			if test.kill {
				workers[0].kill()
				others = workers[1:]
			}
			before := sentBy(others...)
			until(t, "the others go on", func() bool { return sentBy(others...) > before+20 })
			for _, w := range others {
				w.stop()
			}
			sent := int64(len(finish(t, workers...)))
			// Those who were not killed end at once. They may not have given back what they had
			// reserved, nor what came too late and was reserved anew.
			lost := tierStatus(t, open(t, s, p), 1).Used - sent
			if lost < 0 || lost > 2*3*callers {
				t.Errorf("%d were sent, and %d more charged, want 0 to %d more", sent, lost, 2*3*callers)
			}
		})
	}
}

// sentBy is how many the workers say were admitted so far.
func sentBy(workers ...*worker) (n int) {
	for _, w := range workers {
		n += len(w.events(admitted))
	}
	return n
}

// refused checks that err is a refusal which a caller may decide on.
func refused(t *testing.T, err, want error, least time.Duration) {
	t.Helper()
	var w *throttle.WaitError
	if !errors.Is(err, want) || !errors.As(err, &w) || w.Wait < least {
		t.Errorf("%v, want %v with a wait of %v at least", err, want, least)
	}
}

// What one process has used up, another is refused at once: when its deadline is
// known to be too early, with the wait that there would have been; and a cost above
// a tier always. Neither is charged, nor stands in the way of those who wait.
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
			refused(t, l.Wait(ctx), throttle.ErrDeadline, 400*ms)
			cancel()
			refused(t, l.WaitN(context.Background(), 6), throttle.ErrExceedsCapacity, 0)
			if took := time.Since(now); took > 10*ms {
				t.Errorf("the refusals took %v", took)
			}
		}
		all := finish(t, w...)
		checkBound(t, all, p.Tiers...)
		if len(all) != 10 || all[5].At-all[0].At > (2*sec+100*ms).Microseconds() {
			t.Errorf("%d were admitted, want 10, the sixth after two seconds: refusals must not be charged", len(all))
		}
	})
}

// A pause holds for the whole fleet, also for those with a booking, and a shorter one
// does not end it. After it the tiers still hold.
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
		heard := began.Add(50 * ms) // who sleeps for less than 5 ms is not told
		all := finish(t, workers...)
		checkBound(t, all, p.Tiers...)
		var during, after int
		for _, e := range all {
			if e.At > heard.UnixMicro() && e.At < began.Add(1200*ms).UnixMicro() {
				during++
			}
			if e.At > began.Add(1200*ms).UnixMicro() {
				after++
			}
		}
		if during > 0 || after < 20 {
			t.Errorf("%d were admitted in the pause and %d after it, want none and many", during, after)
		}
	})
}

// A process that has just begun to wait has no subscription yet, and hears of a pause when it
// has: a connection, SUBSCRIBE and a question later, four trips at most whenever the pause comes,
// also if this server has never been asked that question. Until then it admits what was answered
// before the pause.
func TestFleetPauseAtStart(t *testing.T) {
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
			told := time.Now()
			for _, e := range finish(t, w...) {
				if late := time.UnixMicro(e.At).Sub(told); late > 4*trip && e.At < began.Add(length).UnixMicro() {
					t.Errorf("paused at %v: one was admitted %v after that", at, late)
				}
			}
		})
	}
}

// checkOpen checks that never more than so many were open, as the workers stamped
// them, and returns how many were between two instants on average.
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
			t.Fatalf("%d are open, want %d at most", open, most)
		}
	}
	return average / float64(to.Sub(from).Microseconds())
}

// Three processes share four permits, which are leased: never are more open, and all
// of them most of the time.
func TestFleetConcurrency(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		k := task{Policy: policy(throttle.Tier{Limit: 4, Algorithm: throttle.Concurrency}).String(), Callers: 4, For: 2 * sec, Hold: 50 * ms}
		workers := startMembers(t, s, ms/2, ms/2, ms/2)
		began := time.Now()
		for _, w := range workers {
			w.begin(k)
		}
		finish(t, workers...)
		if open := checkOpen(t, 4, began.Add(300*ms), began.Add(k.For-300*ms), workers...); open < 3 {
			t.Errorf("%.2f of 4 permits were held on average", open)
		}
		for _, w := range workers {
			if n := len(w.events(admitted)); n < 20 {
				t.Errorf("worker %d was admitted %d times only", w.number, n)
			}
		}
	})
}

// What a process held that was killed comes back when its lease ends, and not before;
// then all is there again.
func TestFleetKilledWhileHolding(t *testing.T) {
	t.Parallel()
	const lease = 6 * sec // it is renewed in good time on any machine
	s := redistest.Start(t)
	k := task{Addr: s.Addr(), Policy: policy(throttle.Tier{Limit: 4, Algorithm: throttle.Concurrency}).String(), Lease: lease}
	workers := startWorkers(t, 2)
	killed, other := workers[0], workers[1]
	k.Callers, k.Hold = 3, hour
	killed.begin(k)
	until(t, "three are held", func() bool { return len(killed.events(admitted)) == 3 })
	k.Callers, k.Hold = 6, 50*ms
	other.begin(k)
	time.Sleep(3 * lease / 2) // the lease is renewed meanwhile
	if n := mostOpen(other, time.Now()); n != 1 {
		t.Errorf("%d were held besides the three, want 1", n)
	}
	killed.kill()
	died := time.Now()
	until(t, "all four are there again", func() bool { return mostOpen(other, time.Now()) >= 4 })
	other.stop()
	finish(t, other)
	if early := mostOpen(other, died.Add(lease/3)); early > 1 {
		t.Errorf("%d were held besides the three before the lease had ended", early)
	}
	if n := mostOpen(other, time.Now()); n > 4 {
		t.Errorf("%d are open, want 4 at most", n)
	}
}

// mostOpen returns the most that a worker had open until an instant.
func mostOpen(w *worker, end time.Time) (most int) {
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

// A process that is stopped books anew when it goes on: what it had booked meanwhile
// is not sent in a burst.
func TestFleetStopped(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := policy(per(sec, 50, throttle.SlidingLog), per(sec, 100, throttle.TokenBucket))
	p.Guard = 2 * sec // no machine wakes up a process later
	workers := startWorkers(t, 2)
	for _, w := range workers {
		w.begin(task{Addr: s.Addr(), Policy: p.String(), Callers: 20})
	}
	until(t, "both are at work", func() bool { return len(workers[0].events(admitted)) > 0 && len(workers[1].events(admitted)) > 0 })
	workers[0].signal("STOP")
	time.Sleep(p.Guard + 2*sec)
	before := len(workers[0].events(admitted))
	workers[0].signal("CONT")
	until(t, "it goes on", func() bool { return len(workers[0].events(admitted)) > before+10 })
	for _, w := range workers {
		w.stop()
	}
	checkBound(t, finish(t, workers...), p.Tiers...)
}

// Fair is what the processes share: one that is further away gets as much as the
// others, nobody waits much longer than when all stand in one line, and all that
// costs little more than a call an admission. (More stand in line than are admitted
// at once: of what nobody waits for, who is nearer takes more.)
func TestFleetFairness(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		tiers := []throttle.Tier{per(500*ms, 10, throttle.SlidingLog), per(4*sec, 60, throttle.SlidingLog)}
		workers := startMembers(t, s, 2*ms, ms/2, ms/2)
		for _, w := range workers {
			w.begin(task{Policy: policy(tiers...).String(), Callers: 8, For: 7 * sec})
		}
		all := finish(t, workers...)
		checkBound(t, all, tiers...)
		counts, calls := make([]int, len(workers)), 0.0
		for _, e := range all {
			if e.At > all[0].At+250_000 { // all stand in line
				counts[e.Worker]++
			}
		}
		for _, w := range workers {
			calls += float64(w.asked.Count()) / float64(len(all))
		}
		best, _ := atBest(t, all, all[len(all)-1].At+1, tiers...)
		var longest, inLine int64
		for i, e := range all {
			longest = max(longest, e.At-e.Came)
			if i >= 24 {
				inLine = max(inLine, best[i]-best[i-24])
			}
		}
		t.Logf("%v admitted, %.2f calls an admission, the longest wait %d ms, in one line %d ms", counts, calls, longest/1000, inLine/1000)
		least, most := slices.Min(counts), slices.Max(counts)
		if least*10 < most*8 && most-least > 16 { // a turn is eight, and one may have begun and ended with one more
			t.Errorf("the processes had %v", counts)
		}
		if calls > 1.3 {
			t.Errorf("%.2f calls an admission", calls)
		}
		if longest > inLine*3/2 {
			t.Errorf("somebody waited for %d ms; in one line it would be %d", longest/1000, inLine/1000)
		}
	})
}

// In a steady flow too, with more waiters than can book within the horizon.
func TestFleetFairnessInAFlow(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		tier := per(sec, 50, throttle.TokenBucket)
		tier.Burst = 5
		workers := startMembers(t, s, ms/2, ms/2)
		for _, w := range workers {
			w.begin(task{Policy: policy(tier).String(), Callers: 40, For: 5 * sec})
		}
		checkBound(t, finish(t, workers...), tier)
		a, b := len(workers[0].events(admitted)), len(workers[1].events(admitted))
		if max(a, b)-min(a, b) > 60 { // each has 25 at a time, and one may have begun with two turns
			t.Errorf("the processes had %d and %d", a, b)
		}
	})
}

// Two processes ask for far more than there is, and a third now and then, for those who
// wait. With classes these go ahead of the job, which gets the rest.
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
		all := finish(t, workers...)
		slowest := func(name string, interactive bool) time.Duration {
			var waits []int64
			for _, e := range all {
				if e.Task == name && (e.Worker == 0) == interactive {
					waits = append(waits, e.At-e.Came)
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
		if n := len(slices.DeleteFunc(slices.Clone(all), func(e event) bool { return e.Task != "with" || e.Worker == 0 })); n < 100 { // of 240, less some 40
			t.Errorf("the job had %d", n)
		}
		if 3*fast > min(slow, job) {
			t.Errorf("interactive requests wait for %v, without classes for %v, the job for %v", fast, slow, job)
		}
	})
}

// TestFleetHeadroom: what a job leaves in one process the others have in another, at once.
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
			t.Errorf("the job has %d of 100 at once", n)
		}
		if n := take(throttle.Interactive); n != 20 {
			t.Errorf("the others have %d of the 20 that were left to them", n)
		}
	})
}

// TestFleetAgeing: another process always has more booked ahead than there is. A Batch
// request goes all the same when it has waited for Aging, after what is booked then.
func TestFleetAgeing(t *testing.T) {
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
			t.Errorf("%v after %v, and Aging is %v", err, took, p.Aging)
		}
	})
}

// scriptCalls is how often the script has run.
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

// While a new release with a smaller limit is rolled out, processes with either share
// the quota: what was spent counts, the larger limit holds for all of them and the
// smaller one for those who know of it.
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
					t.Errorf("%d were admitted at once, want 50", n)
				}
				workers[1].begin(task{Policy: policy(after).String(), Callers: 8, For: 3 * sec})
				checkBound(t, finish(t, workers...), before)
				checkBound(t, workers[1].events(admitted), after)
			})
		})
	}
}

// Nothing that was spent is forgotten when processes with different limits take turns,
// and what is still unused of the larger one is lost to nobody for long.
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
					time.Sleep(60 * ms) // what is on its way is landed, and has to be remembered
					for young.Allow() {
						sent++
					}
				}
				if sent != 50 {
					t.Errorf("%d were admitted, want 50", sent)
				}
			})
		})
	}
}
