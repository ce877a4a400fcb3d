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

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/leak"
	"github.com/apithrottle/throttle/internal/redistest"
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

	asWorker = "THROTTLE_TEST_WORKER"
)

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		work()
		return
	}
	os.Exit(leak.Run(m))
}

// A task is what a worker does, maybe among others: its callers ask again and again.
type task struct {
	Addr    string        // of the server
	Name    string        // of the policy. If empty, "fleet"
	Policy  string        // as ParsePolicy reads it
	Callers int           // goroutines
	For     time.Duration // how long
	Cost    int64         // each request costs from 1 to this. If zero, 1
	Cancel  float64       // the part of the requests that are cancelled within 200 ms
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
	var tasks []task
	if err := json.NewDecoder(os.Stdin).Decode(&tasks); err != nil {
		os.Exit(2)
	}
	go func() { // ends with the test, however that ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(2)
	}()
	var wg sync.WaitGroup
	for _, k := range tasks {
		wg.Go(k.work)
	}
	wg.Wait()
}

func (k task) work() {
	p, err := throttle.ParsePolicy(cmp.Or(k.Name, "fleet"), k.Policy)
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: k.Addr})
	l, err := throttle.New(p, distributed.New(rdb, distributed.Options{Lease: k.Lease}))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(throttle.WithClass(context.Background(), k.Class))
	time.AfterFunc(k.For, cancel) // not a deadline: that would refuse who can't make it
	var wg sync.WaitGroup
	for range k.Callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				k.request(ctx, l)
				if k.Every > 0 {
					time.Sleep(k.Every/2 + rand.N(k.Every/2))
				}
			}
		})
	}
	wg.Wait()
}

// request makes one request and tells what became of it.
func (k task) request(ctx context.Context, l *throttle.Limiter) {
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
	e.tell()
	if permit != nil {
		time.Sleep(k.Hold/2 + rand.N(k.Hold/2))
		e.What = released
		e.tell()
		permit.Release()
	}
}

func (e event) tell() {
	e.At = time.Now().UnixMicro()
	line, _ := json.Marshal(e)
	_, _ = os.Stdout.Write(append(line, '\n')) // one write, so that lines stay whole
}

// A worker is another process, as the test sees it.
type worker struct {
	t      *testing.T
	number int
	cmd    *exec.Cmd
	in     io.Writer
	ended  chan struct{} // closed when it has told everything

	mu   sync.Mutex // guards told
	told []event
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
		e.Worker = w.number
		w.mu.Lock()
		w.told = append(w.told, e)
		w.mu.Unlock()
	}
}

func (w *worker) begin(tasks ...task) {
	w.t.Helper()
	if err := json.NewEncoder(w.in).Encode(tasks); err != nil {
		w.t.Fatal(err)
	}
}

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
		if w.cmd.ProcessState == nil {
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

// isUsed tells whether until the end a part was admitted of what a client who knows
// everything would have sent, or at least what he sends in that part of the time,
// since the end may come just before a window does. With a guard of 50 ms and windows
// of a second that part is 0.95 at most, and less on a machine that is slow to wake who
// sleeps: it is to tell a stall from that, not to measure.
func isUsed(t *testing.T, all []event, end time.Time, part float64, tiers ...throttle.Tier) bool {
	var sent int64
	for _, e := range all {
		sent += e.Cost
	}
	first := all[0].At
	_, most := atBest(t, all, end.UnixMicro(), tiers...)
	_, least := atBest(t, all, first+int64(part*float64(end.UnixMicro()-first)), tiers...)
	least = min(least, int64(part*float64(most)))
	t.Logf("%d units were admitted, want %d at least, of %d at best", sent, least, most)
	return sent+largest(all) > least // the next one may not have fit
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
	for end := time.Now().Add(10 * sec); !done(); time.Sleep(5 * ms) {
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

// Three processes of four callers each: the laws of the bound and of order hold, and
// the limits are used. Of a storm of cancellations what was booked is given back to
// the next of the same cost, so that they are used then too.
//
// How much was used is up to the machine too: where it was little, it is measured once more.
func TestFleetLaws(t *testing.T) {
	t.Parallel()
	s, workers := redistest.Start(t), startWorkers(t, 3)
	policies := append(randomPolicies(), randomPolicies()...)
	var tasks []task
	for i, p := range policies {
		k := task{Name: strconv.Itoa(i), Addr: s.Addr(), Policy: p.String(), Callers: 4, For: 4 * sec, Cost: 3}
		if i >= len(policies)/2 {
			k.Cost, k.Cancel = 1, 0.7
		}
		tasks = append(tasks, k)
	}
	play := func(which []int) (unused []int) {
		var begin []task
		for _, i := range which {
			begin = append(begin, tasks[i])
		}
		end := time.Now().Add(4 * sec)
		for _, w := range workers {
			w.begin(begin...)
		}
		all := finish(t, workers...)
		for _, i := range which {
			t.Run(fmt.Sprintf("%v cancel %v", policies[i], tasks[i].Cancel), func(t *testing.T) {
				own := slices.DeleteFunc(slices.Clone(all), func(e event) bool { return e.Task != tasks[i].Name })
				checkBound(t, own, policies[i].Tiers...)
				checkOrder(t, own)
				if !isUsed(t, own, end, 0.75-0.1*tasks[i].Cancel/0.7, policies[i].Tiers...) {
					unused = append(unused, i)
				}
			})
		}
		return unused
	}
	every := make([]int, len(policies))
	for i := range every {
		every[i] = i
	}
	if unused := play(every); len(unused) > 0 {
		workers = startWorkers(t, 3)
		for i := range tasks {
			tasks[i].Name += " again" // another quota
		}
		for _, i := range play(unused) {
			t.Errorf("%v was not used, twice", policies[i])
		}
	}
}

// refused checks that err came at once, as a refusal which a caller may decide on.
func refused(t *testing.T, began time.Time, err, want error, least time.Duration) {
	t.Helper()
	var w *throttle.WaitError
	if !errors.Is(err, want) || !errors.As(err, &w) || w.Wait < least {
		t.Errorf("%v, want %v with a wait of %v at least", err, want, least)
	}
	if took := time.Since(began); took > 300*ms {
		t.Errorf("the refusal came after %v", took)
	}
}

// What one process has used up, another is refused at once: when its deadline is
// known to be too early, with the wait that there would have been; and a cost above
// a tier always. Neither is charged, nor stands in the way of those who wait.
func TestFleetRefusesAtOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	tiers := []throttle.Tier{per(2*sec, 5, throttle.SlidingLog), per(hour, 1000, throttle.TokenBucket)}
	l := open(t, s, policy(tiers...))
	w := startWorkers(t, 1)
	began := time.Now()
	w[0].begin(task{Addr: s.Addr(), Policy: policy(tiers...).String(), Callers: 6, For: 3 * sec})
	until(t, "the worker has used the quota up", func() bool { return len(w[0].events(admitted)) == 5 })
	for time.Since(began) < 500*ms {
		ctx, cancel := context.WithTimeout(context.Background(), 400*ms)
		now := time.Now()
		refused(t, now, l.Wait(ctx), throttle.ErrDeadline, 400*ms)
		cancel()
		now = time.Now()
		refused(t, now, l.WaitN(context.Background(), 6), throttle.ErrNever, 0)
	}
	all := finish(t, w...)
	checkBound(t, all, tiers...)
	if len(all) != 10 || all[5].At-all[0].At > (2*sec+300*ms).Microseconds() {
		t.Errorf("%d were admitted, want 10, the sixth after two seconds: refusals must not be charged", len(all))
	}
}

// A pause holds for the whole fleet, also for those with a booking, and a shorter one
// does not end it. After it the tiers still hold.
func TestFleetPause(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	tiers := []throttle.Tier{per(sec, 50, throttle.TokenBucket), per(2*sec, 80, throttle.SlidingLog)}
	tiers[0].Burst = 5
	l := open(t, s, policy(tiers...))
	workers := startWorkers(t, 2)
	for _, w := range workers {
		w.begin(task{Addr: s.Addr(), Policy: policy(tiers...).String(), Callers: 8, For: 4 * sec})
	}
	until(t, "both are at work", func() bool { return len(workers[0].events(admitted)) > 10 && len(workers[1].events(admitted)) > 10 })
	began := time.Now()
	if err := l.Pause(context.Background(), 1200*ms); err != nil {
		t.Fatal(err)
	}
	heard := time.Now().Add(100 * ms) // it takes a message, and some to wake up
	if err := l.Pause(context.Background(), 200*ms); err != nil {
		t.Fatal(err)
	}
	all := finish(t, workers...)
	checkBound(t, all, tiers...)
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
}

// checkOpen checks that never more than so many were open, as the processes stamped
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
	s := redistest.Start(t)
	k := task{Addr: s.Addr(), Policy: policy(throttle.Tier{Limit: 4, Algorithm: throttle.Concurrency}).String(), Callers: 4, For: 3 * sec, Hold: 50 * ms}
	workers := startWorkers(t, 3)
	for _, w := range workers {
		w.begin(k)
	}
	began := time.Now()
	finish(t, workers...)
	open := checkOpen(t, 4, began.Add(300*ms), began.Add(k.For-300*ms), workers...)
	t.Logf("%.2f of 4 permits were held on average", open)
	if open < 2.5 {
		t.Errorf("%.2f of 4 permits were held on average", open)
	}
	for _, w := range workers {
		if n := len(w.events(admitted)); n < 20 {
			t.Errorf("worker %d was admitted %d times only", w.number, n)
		}
	}
}

// What a process held that was killed comes back when its lease ends, and not before;
// then all is there again.
func TestFleetKilledWhileHolding(t *testing.T) {
	t.Parallel()
	const lease = sec
	s := redistest.Start(t)
	k := task{Addr: s.Addr(), Policy: policy(throttle.Tier{Limit: 4, Algorithm: throttle.Concurrency}).String(), Lease: lease}
	workers := startWorkers(t, 2)
	killed, other := workers[0], workers[1]
	k.Callers, k.For, k.Hold = 3, hour, hour
	killed.begin(k)
	until(t, "three are held", func() bool { return len(killed.events(admitted)) == 3 })
	k.Callers, k.For, k.Hold = 6, 5*sec, 50*ms
	other.begin(k)
	time.Sleep(3 * lease / 2) // the lease is renewed meanwhile
	if n := len(other.events(admitted)) - len(other.events(released)); n > 1 {
		t.Errorf("%d are held besides the three", n)
	}
	killed.kill()
	died := time.Now()
	finish(t, other)
	back := died.Add(lease + sec)
	if early := checkOpenUntil(other, died.Add(lease/2)); early > 1 {
		t.Errorf("%d were held besides the three before the lease had ended", early)
	}
	open := checkOpen(t, 4, back, back.Add(sec), other)
	t.Logf("%.2f of 4 permits were held when the lease had ended", open)
	if open < 2.5 {
		t.Errorf("%.2f of 4 permits were held on average when the lease had ended", open)
	}
}

// checkOpenUntil returns the most that a worker had open until an instant.
func checkOpenUntil(w *worker, end time.Time) (most int) {
	open, begun, ended := 0, w.events(admitted), w.events(released)
	for len(begun) > 0 && begun[0].At < end.UnixMicro() {
		if len(ended) > 0 && ended[0].At < begun[0].At {
			open, ended = open-1, ended[1:]
			continue
		}
		open, begun = open+1, begun[1:]
		most = max(most, open)
	}
	return most
}

// A process that is killed loses what it has booked, and nothing else: at most 64, or
// what fits the horizon. The others go on as soon as those times have passed.
func TestFleetKilledWithBookings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ rate, booked int64 }{{50, 26}, {400, 64}} {
		t.Run(fmt.Sprint(test.rate, " a second"), func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			tier := per(sec, test.rate, throttle.TokenBucket)
			tier.Burst = test.rate / 10
			workers := startWorkers(t, 3)
			end := time.Now().Add(4 * sec)
			for _, w := range workers {
				w.begin(task{Addr: s.Addr(), Policy: policy(tier).String(), Callers: 70, For: 4 * sec})
			}
			var busy *worker
			until(t, "one is at work", func() bool {
				for _, w := range workers {
					if len(w.events(admitted)) > int(test.booked) {
						busy = w
					}
				}
				return busy != nil
			})
			busy.kill()
			died := time.Now().UnixMicro()
			all := finish(t, workers...)
			checkBound(t, all, tier)

			last, n, gap := died, int64(0), int64(0)
			for _, e := range all {
				if e.At > died {
					gap, last, n = max(gap, e.At-last), e.At, n+1
				}
			}
			allowed := (end.UnixMicro() - died) * test.rate / sec.Microseconds()
			t.Logf("%d of %d were admitted after it died, nobody for %d ms", n, allowed, gap/1000)
			if n < allowed*9/10-test.booked {
				t.Errorf("%d were lost, want %d at most", allowed-n, test.booked)
			}
			if most := (sec + 500*ms).Microseconds(); gap > most {
				t.Errorf("nobody was admitted for %d ms", gap/1000)
			}
		})
	}
}

// A process that is stopped books anew when it goes on: what it had booked meanwhile
// is not sent in a burst.
func TestFleetStopped(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	tiers := []throttle.Tier{per(sec, 50, throttle.TokenBucket), per(sec, 50, throttle.SlidingLog)}
	tiers[0].Burst = 10
	workers := startWorkers(t, 2)
	for _, w := range workers {
		w.begin(task{Addr: s.Addr(), Policy: policy(tiers...).String(), Callers: 20, For: 5 * sec})
	}
	until(t, "it is at work", func() bool { return len(workers[0].events(admitted)) > 20 })
	workers[0].signal("STOP")
	time.Sleep(2 * sec)
	before := len(workers[0].events(admitted))
	workers[0].signal("CONT")
	all := finish(t, workers...)
	checkBound(t, all, tiers...)
	if after := len(workers[0].events(admitted)) - before; after < 10 {
		t.Errorf("it was admitted %d times after it went on", after)
	}
}

// Fair is what the processes share: one that is further away gets as much as the
// others, nobody waits much longer than when all stand in one line, and all that
// costs little more than a call an admission. (More stand in line than are admitted
// at once: of what nobody waits for, who is nearer takes more.)
func TestFleetFairness(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	far := redistest.NewProxy(t, s.Addr())
	far.SetDelay(ms)
	tiers := []throttle.Tier{per(500*ms, 10, throttle.SlidingLog), per(4*sec, 60, throttle.SlidingLog)}
	workers := startWorkers(t, 3)
	for i, w := range workers {
		k := task{Addr: s.Addr(), Policy: policy(tiers...).String(), Callers: 8, For: 7 * sec}
		if i == 0 {
			k.Addr = far.Addr()
		}
		w.begin(k)
	}
	all := finish(t, workers...)
	checkBound(t, all, tiers...)
	counts := make([]int, len(workers))
	for _, e := range all {
		if e.At > all[0].At+250_000 { // all stand in line
			counts[e.Worker]++
		}
	}
	calls := float64(scriptCalls(t, s)) / float64(len(all))
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
}

// In a steady flow too, with more waiters than can book within the horizon.
func TestFleetFairnessInAFlow(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	tier := per(sec, 50, throttle.TokenBucket)
	tier.Burst = 5
	workers := startWorkers(t, 2)
	for _, w := range workers {
		w.begin(task{Addr: s.Addr(), Policy: policy(tier).String(), Callers: 40, For: 5 * sec})
	}
	checkBound(t, finish(t, workers...), tier)
	a, b := len(workers[0].events(admitted)), len(workers[1].events(admitted))
	t.Logf("%d and %d admitted", a, b)
	if max(a, b)-min(a, b) > 60 { // each has 25 at a time, and one may have begun with two turns
		t.Errorf("the processes had %d and %d", a, b)
	}
}

// Two processes ask for far more than there is, and a third now and then, for those who
// wait. With classes these go ahead of the job, which gets the rest.
func TestFleetClasses(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	tier := per(sec, 40, throttle.GCRA)
	tier.Burst = 4
	p := policy(tier)
	p.Ageing, p.Headroom = time.Minute, 25
	workers := startWorkers(t, 3)
	for i, w := range workers {
		with := task{Addr: s.Addr(), Name: "with", Policy: p.String(), Callers: 20, For: 6 * sec, Class: throttle.Batch}
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
	slowest("without", false)
	if n := len(slices.DeleteFunc(slices.Clone(all), func(e event) bool { return e.Task != "with" || e.Worker == 0 })); n < 100 { // of 240, less some 40
		t.Errorf("the job had %d", n)
	}
	if 3*fast > min(slow, job) {
		t.Errorf("interactive requests wait for %v, without classes for %v, the job for %v", fast, slow, job)
	}
}

// TestFleetHeadroom: what a job leaves in one process the others have in another, at once.
func TestFleetHeadroom(t *testing.T) {
	s := redistest.Start(t)
	p := policy(per(time.Hour, 100, throttle.SlidingLog))
	p.Headroom = 20
	take := func(l *throttle.Limiter, c throttle.Class) (n int) {
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
	if n := take(open(t, s, p), throttle.Batch); n != 80 {
		t.Errorf("the job has %d of 100 at once", n)
	}
	if n := take(open(t, s, p), throttle.Interactive); n != 20 {
		t.Errorf("the others have %d of the 20 that were left to them", n)
	}
}

// TestFleetAgeing: another process always has more booked ahead than there is. A Batch
// request goes all the same when it has waited for Ageing, after what is booked then.
func TestFleetAgeing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := policy(per(sec, 20, throttle.GCRA))
	p.Tiers[0].Burst, p.Ageing = 1, 500*ms
	ctx, cancel := context.WithCancel(context.Background())
	busy, job := open(t, s, p), open(t, s, p)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 20 {
		wg.Go(func() {
			for busy.Wait(ctx) == nil {
			}
		})
	}
	until(t, "all wait", func() bool {
		st, err := busy.Status(ctx)
		return err == nil && st.Waiting > 15
	})
	soon, giveUp := context.WithTimeout(throttle.WithClass(ctx, throttle.Batch), 5*sec)
	defer giveUp()
	start := time.Now()
	err := job.Wait(soon)
	took := time.Since(start)
	t.Logf("admitted after %v", took)
	if err != nil || took < p.Ageing || took > p.Ageing+2*sec {
		t.Errorf("%v after %v, and Ageing is %v", err, took, p.Ageing)
	}
}

// scriptCalls is how often the script has run.
func scriptCalls(t *testing.T, s *redistest.Server) (n int) {
	t.Helper()
	for _, command := range []string{"eval", "evalsha"} {
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
			t.Parallel()
			s := redistest.Start(t)
			before, after := per(sec, 50, a), per(sec, 30, a)
			workers := startWorkers(t, 2)
			workers[0].begin(task{Addr: s.Addr(), Policy: policy(before).String(), Callers: 8, For: 3 * sec})
			until(t, "the limit is used up", func() bool { return len(workers[0].events(admitted)) >= 50 })
			workers[1].begin(task{Addr: s.Addr(), Policy: policy(after).String(), Callers: 8, For: 3 * sec})
			checkBound(t, finish(t, workers...), before)
			checkBound(t, workers[1].events(admitted), after)
			t.Logf("%d and %d admitted", len(workers[0].events(admitted)), len(workers[1].events(admitted)))
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
			t.Parallel()
			s := redistest.Start(t)
			before, after := policy(per(hour, 50, a)), policy(per(hour, 30, a))
			old, young := open(t, s, before), open(t, s, after)
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
	}
}
