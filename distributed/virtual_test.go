package distributed_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// The tests here run fleets in virtual time. Processes, server and provider are goroutines of one
// bubble, and every message takes a given time. Results therefore depend on these times only.

// A cable is the client's end of a connection. It delivers messages in both directions, each after
// a delay.
type cable struct {
	net.Conn
	delay, answers func() time.Duration // delays of a message to the server and back
	arrive         func()               // called before a message arrives
	there, back    chan message
	left           []byte        // bytes of the last message that were not read yet
	closed         chan struct{} // closed by Close
	once           sync.Once
}

type message struct {
	bytes []byte
	due   time.Time
}

func newCable(c net.Conn, least, most time.Duration) net.Conn {
	delay := func() time.Duration { return least + rand.N(most-least+1) }
	return twoWays(c, delay, delay, func() {})
}

func (k *cable) deliver() {
	for {
		select {
		case m := <-k.there:
			time.Sleep(time.Until(m.due))
			k.arrive()
			_, _ = k.Conn.Write(m.bytes)
		case <-k.closed:
			return
		}
	}
}

func (k *cable) receive() {
	defer close(k.back)
	for b := make([]byte, 1<<12); ; {
		n, err := k.Conn.Read(b)
		if err != nil {
			return
		}
		k.back <- message{bytes.Clone(b[:n]), time.Now().Add(k.answers())}
	}
}

func (k *cable) Write(b []byte) (int, error) {
	k.there <- message{bytes.Clone(b), time.Now().Add(k.delay())}
	return len(b), nil
}

func (k *cable) Read(b []byte) (n int, err error) {
	if len(k.left) == 0 {
		m, ok := <-k.back
		if !ok {
			return 0, io.EOF
		}
		time.Sleep(time.Until(m.due))
		k.left = m.bytes
	}
	n = copy(b, k.left)
	k.left = k.left[n:]
	return n, nil
}

func (k *cable) Close() error {
	k.once.Do(func() { close(k.closed) })
	return k.Conn.Close()
}

// SetDeadline and the like do nothing, because no message is late.
func (k *cable) SetDeadline(time.Time) error      { return nil }
func (k *cable) SetReadDeadline(time.Time) error  { return nil }
func (k *cable) SetWriteDeadline(time.Time) error { return nil }

// virtual runs a test in a bubble. The function process returns the client of another process,
// whose messages take least to most.
func virtual(t *testing.T, test func(t *testing.T, process func(least, most time.Duration) *redis.Client)) {
	synctest.Test(t, func(t *testing.T) {
		s := redismem.New()
		var clients []*redis.Client
		defer func() {
			time.Sleep(time.Second) // go-redis leaks a connection that is being made when the client is closed
			for _, rdb := range clients {
				rdb.Close()
			}
			s.Close()
			time.Sleep(time.Minute) // goroutines of the clients end by themselves
		}()
		test(t, func(least, most time.Duration) *redis.Client {
			rdb := redis.NewClient(&redis.Options{
				Addr: "127.0.0.1:6379", // a name would be looked up
				Dialer: func(context.Context, string, string) (net.Conn, error) {
					c, err := s.Dial()
					if err != nil {
						return nil, err
					}
					return newCable(c, least, most), nil
				},
				DisableIdentity: true,
			})
			clients = append(clients, rdb)
			return rdb
		})
	})
}

// A provider refuses the first requests, each with its Retry-After, and takes some time to answer.
type provider struct {
	takes    time.Duration
	refusals []time.Duration

	mu   sync.Mutex // guards sent
	sent []time.Time
}

func (p *provider) RoundTrip(*http.Request) (*http.Response, error) {
	p.mu.Lock()
	n := len(p.sent)
	p.sent = append(p.sent, time.Now())
	p.mu.Unlock()
	time.Sleep(p.takes)
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}
	if n < len(p.refusals) {
		resp.StatusCode = 429
		resp.Header.Set("Retry-After", strconv.Itoa(int(p.refusals[n].Seconds())))
	}
	return resp, nil
}

// check checks that nothing is sent for the Retry-After of each refusal, and then one request until
// its response is in.
func (p *provider) check(t *testing.T) {
	t.Helper()
	for i, refusal := range p.refusals {
		if pause := p.sent[i+1].Sub(p.sent[i]); pause < p.takes+refusal {
			t.Errorf("refusal %d: the next request was sent after %v, want %v at least", i, pause, p.takes+refusal)
		}
	}
	probe := len(p.refusals)
	if alone := p.sent[probe+1].Sub(p.sent[probe]); alone < p.takes {
		t.Errorf("probe: the next request was sent after %v, want %v at least", alone, p.takes)
	}
}

// After a pause one request of the whole fleet is sent as a probe. Nothing else is sent before its
// response is in, however far away the processes are.
func TestFleetProbes(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		base := &provider{takes: time.Millisecond, refusals: []time.Duration{sec, sec, sec, sec, 2 * sec, sec}}
		var clients []*http.Client
		for i := range 4 {
			s := distributed.New(process(0, time.Duration(i)*7*time.Millisecond), distributed.Options{})
			lim := limiter(t, throttle.Policy{Name: "probe", Tiers: []throttle.Tier{throttle.PerSecond(50)}}, s)
			clients = append(clients, &http.Client{Transport: &throttle.Transport{Base: base, Limiter: lim}})
		}
		get(t, clients[0])
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() { get(t, clients[i%len(clients)]) })
		}
		wg.Wait()
		base.check(t)
		if n := len(base.sent); n != 41 {
			t.Errorf("got %d requests sent, want 41", n)
		}
	})
}

// A probe that is never sent, or whose process ends, is followed by another probe.
func TestFleetProbeUnsent(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		base := &provider{takes: 10 * time.Millisecond, refusals: []time.Duration{sec}}
		var limiters []*throttle.Limiter
		for range 2 {
			s := distributed.New(process(0, 5*time.Millisecond), distributed.Options{})
			limiters = append(limiters, limiter(t, throttle.Policy{Name: "probe", Tiers: []throttle.Tier{throttle.PerSecond(50)}}, s))
		}
		client := &http.Client{Transport: &throttle.Transport{Base: base, Limiter: limiters[1]}}
		get(t, client)
		silent, err := limiters[0].Acquire(t.Context(), nil) // the probe, whose outcome is never reported
		if err != nil {
			t.Fatal(err)
		}
		probed := time.Now()
		base.refusals = append(base.refusals, sec) // for the next probe
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { get(t, client) })
		}
		wg.Wait()
		base.check(t)
		if alone := base.sent[1].Sub(probed); alone < sec {
			t.Errorf("got the next request sent %v after the probe, want a second at least", alone)
		}
		_ = silent.Cancel(t.Context())
	})
}

// Nothing else is sent before the response to a probe, however slow it is. If the process of the
// probe dies, the others wait two seconds at most.
func TestFleetProbeSlow(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	for name, dies := range map[string]bool{"the response takes 20 s": false, "its process dies": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
				open := func(rdb *redis.Client) store.Quota {
					return quota(t, distributed.New(rdb, distributed.Options{}), "probe", plan(t, 50*ms, throttle.PerSecond(50)))
				}
				first := process(0, 5*ms)
				q, other := open(first), open(process(0, 5*ms))
				if _, err := q.Pause(t.Context(), store.Pause{Probe: true}); err != nil {
					t.Fatal(err)
				}
				r := store.Request{Cost: []int64{1}, Held: true}
				began, b := time.Now(), admit(t, q, r)
				least, most := 20*sec, 20*sec+100*ms
				if dies {
					least, most = sec, 600*ms+2*sec+100*ms
					time.Sleep(600 * ms)
					_ = first.Close()
				} else {
					time.AfterFunc(least, func() { q.Arrived(b, r.Cost) })
				}
				var next store.Decision
				for next.Verdict != store.Admitted {
					var err error
					if next, err = other.TryAcquire(t.Context(), r); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * ms)
				}
				if took := time.Since(began); took < least || took > most || next.Probe != dies {
					t.Errorf("got the next request after %v, want %v to %v: %+v", took, least, most, next)
				}
			})
		})
	}
}

// The outcome of a request by Wait is never reported, so other requests follow a probe by Wait
// after a second.
func TestFleetProbeUnreported(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		base := &provider{takes: 10 * time.Millisecond, refusals: []time.Duration{sec}}
		s := distributed.New(process(0, 5*time.Millisecond), distributed.Options{})
		l := limiter(t, throttle.Policy{Name: "probe", Tiers: []throttle.Tier{throttle.PerSecond(50)}}, s)
		get(t, &http.Client{Transport: &throttle.Transport{Base: base, Limiter: l}})
		var waits []time.Duration
		began := time.Now()
		for range 3 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			waits = append(waits, time.Since(began))
		}
		if alone := waits[1] - waits[0]; alone < sec || alone > sec+200*ms || waits[2]-waits[1] > 100*ms {
			t.Errorf("got admissions after %v, want the second a second after the first, and the third with it", waits)
		}
	})
}

// Times that were reserved before a pause are not used after it, however late they are. Otherwise
// the probe would not be the only request.
func TestFleetPauseVoidsReservations(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		base := &provider{takes: 100 * time.Millisecond, refusals: []time.Duration{sec}}
		var wg sync.WaitGroup
		var clients []*http.Client
		var limiters []*throttle.Limiter
		for range 4 {
			s := distributed.New(process(0, 5*time.Millisecond), distributed.Options{})
			l := limiter(t, throttle.Policy{Name: "reserved", Tiers: []throttle.Tier{per(5*sec, 10, throttle.SlidingLog)}}, s)
			limiters = append(limiters, l)
			clients = append(clients, &http.Client{Transport: &throttle.Transport{Base: base, Limiter: l}})
		}
		if err := limiters[0].WaitN(t.Context(), 9); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { get(t, clients[0]) })
		time.Sleep(50 * time.Millisecond)
		for i := range 20 { // which reserve times in 5 s before the refusal
			wg.Go(func() { get(t, clients[i%len(clients)]) })
		}
		wg.Wait()
		base.check(t)
	})
}
