package gauntlet

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

// A part is what one process has in a run.
type part struct {
	Run   Run
	URL   string    // of the provider
	Start time.Time // when all of its processes begin
}

// preparing is how long processes have to get ready. Then the runs begin one after the
// other, within a second, so that not all of them are busy at the same moment of each.
const (
	preparing = 3 * time.Second
	beginning = time.Second
)

// Real makes runs in real time, all at once, each with a provider of its own behind a
// local socket. Fleets are processes over the Redis server at a URL: this program once
// more, which has to call [Member] where [IsMember] says so. It blocks until the last
// run has ended.
func Real(ctx context.Context, runs []Run, redisURL string) ([]chart.Row, error) {
	parts, apis := make([]part, len(runs)), make([]*throttletest.Provider, len(runs))
	begin := time.Now().Add(preparing)
	for i, r := range runs {
		apis[i] = r.provider()
		server := httptest.NewServer(front{apis[i], apis[i].Delay})
		defer server.Close()
		apis[i].Delay = nil
		parts[i] = part{r, server.URL, begin.Add(time.Duration(i) * beginning / time.Duration(len(runs)))}
	}
	tallies, err := playAll(ctx, parts, redisURL)
	if err != nil {
		return nil, err
	}
	rows, errs := make([]chart.Row, len(runs)), make([]error, len(runs))
	for i, r := range runs {
		rows[i], errs[i] = r.row("real", apis[i].Arrivals(), parts[i].Start, tallies[i])
	}
	return rows, errors.Join(errs...)
}

// playAll has every part played where it belongs: those of fleets in as many
// processes, the others in this one. It returns the tallies of each part.
func playAll(ctx context.Context, parts []part, redisURL string) ([][]Tally, error) {
	var mine, fleets []int
	for i, p := range parts {
		if c, err := p.Run.client(); err != nil {
			return nil, err
		} else if c.redis {
			fleets = append(fleets, i)
		} else {
			mine = append(mine, i)
		}
	}
	tallies := make([][]Tally, len(parts))
	put := func(where []int, found []Tally) {
		for i, t := range found {
			tallies[where[i]] = append(tallies[where[i]], t)
		}
	}
	members, wait := hireAll(ctx, choose(parts, fleets), redisURL)
	put(mine, play(ctx, order{Parts: choose(parts, mine)}))
	err := wait()
	for _, found := range members {
		put(fleets, found)
	}
	return tallies, err
}

// A front holds requests back on their way to the provider, as long as is drawn for
// each from when it was sent, so that a machine that is slow to bring it is not added.
type front struct {
	api   http.Handler
	delay func() time.Duration
}

func (f front) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if f.delay != nil {
		sent, _ := strconv.ParseInt(req.Header.Get(sentHeader), 10, 64)
		time.Sleep(time.Until(time.Unix(0, sent).Add(f.delay())))
	}
	f.api.ServeHTTP(w, req)
}

func choose(parts []part, which []int) (chosen []part) {
	for _, i := range which {
		chosen = append(chosen, parts[i])
	}
	return chosen
}

// hireAll has parts played by a fleet, whose members' tallies are there after wait. If
// one fails all are ended.
func hireAll(ctx context.Context, parts []part, redisURL string) (tallies [][]Tally, wait func() error) {
	if len(parts) == 0 {
		return nil, func() error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	tallies, errs := make([][]Tally, fleet), make([]error, fleet)
	var all sync.WaitGroup
	for m := range fleet {
		all.Go(func() {
			if tallies[m], errs[m] = hire(ctx, order{m, redisURL, parts}); errs[m] != nil {
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

// An order tells a process what to play.
type order struct {
	Member int // which of the fleet it is
	Redis  string
	Parts  []part
}

// play plays all parts of one process at once, and returns what their workers saw.
func play(ctx context.Context, o order) []Tally {
	tallies := make([]Tally, len(o.Parts))
	var all sync.WaitGroup
	for i, p := range o.Parts {
		all.Go(func() {
			t, err := p.play(ctx, o)
			if err != nil {
				t.Error = err.Error()
			}
			tallies[i] = t
		})
	}
	all.Wait()
	return tallies
}

func (p part) play(ctx context.Context, o order) (t Tally, err error) {
	var rdb *redis.Client
	var asked calls.Counter
	if o.Redis != "" {
		options, err := redis.ParseURL(o.Redis)
		if err != nil {
			return t, err
		}
		rdb = redis.NewClient(options)
		defer rdb.Close()
		rdb.AddHook(&asked)
	}
	r := p.Run
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConns, base.MaxIdleConnsPerHost = 0, r.workers()
	defer base.CloseIdleConnections()
	crowd, err := seat{Run: r, member: o.Member, base: base, rdb: rdb}.join(p.URL)
	if err != nil {
		return t, err
	}
	if time.Until(p.Start) < 0 {
		return t, errors.New("not ready in time")
	}
	time.Sleep(time.Until(p.Start))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Not a deadline, which limiters would know and refuse who can't be in time.
	defer time.AfterFunc(time.Until(p.Start.Add(r.Length)), cancel).Stop()
	t = crowd.work(ctx, r.workers())
	t.Calls = asked.Count()
	if rdb != nil {
		time.Sleep(settling)
	}
	return t, nil
}

// watch tells how late this machine woke a sleeper, at worst. A request that is later
// than Policy.Guard for such a reason may be refused, whoever sent it.
func watch(ctx context.Context) (worst func() time.Duration) {
	var late time.Duration
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			began := time.Now()
			time.Sleep(step)
			late = max(late, time.Since(began)-step)
		}
	}()
	return func() time.Duration {
		cancel()
		<-done
		return late
	}
}

const step = 2 * time.Millisecond

const asMember = "FIDELITY_MEMBER"

// IsMember reports whether this process is one of a fleet, and has to call Member.
func IsMember() bool { return os.Getenv(asMember) != "" }

// Member plays what the order on its input says, and writes what its workers saw. It
// ends at once when its input does, as when its parent has died.
func Member(stdin io.Reader, stdout io.Writer) error {
	var o order
	orders := json.NewDecoder(stdin)
	if err := orders.Decode(&o); err != nil {
		return fmt.Errorf("no order: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_ = orders.Decode(new(any)) // blocks until the input ends
		cancel()
	}()
	return json.NewEncoder(stdout).Encode(play(ctx, o))
}

// hire starts this program as a member of a fleet, and blocks until it has ended.
func hire(ctx context.Context, o order) (tallies []Tally, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), asMember+"=1")
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
	err = errors.Join(json.NewEncoder(stdin).Encode(o), json.NewDecoder(stdout).Decode(&tallies))
	if err = errors.Join(err, stdin.Close(), cmd.Wait()); err != nil {
		return nil, fmt.Errorf("member %d of the fleets: %w", o.Member, err)
	}
	return tallies, nil
}
