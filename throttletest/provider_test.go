package throttletest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// get sends a GET through the client and returns the response with its body read.
func get(t *testing.T, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

const anywhere = "http://provider.test/v1/things"

func TestHeaderStyles(t *testing.T) {
	at := time.Date(2025, 3, 1, 12, 0, 0, 999_999_000, time.UTC)
	tests := []struct {
		name  string
		style func(http.Header, Refusal)
		wait  time.Duration
		after string
		date  string
	}{
		{"seconds", RetryAfterSeconds, 3 * time.Second, "3", ""},
		{"seconds, up", RetryAfterSeconds, 2*time.Second + time.Microsecond, "3", ""},
		{"seconds, least", RetryAfterSeconds, time.Microsecond, "1", ""},
		{"seconds, none", RetryAfterSeconds, 0, "", ""},
		{"decimal", RetryAfterDecimal, 1250 * time.Millisecond, "1.250", ""},
		{"decimal, up", RetryAfterDecimal, 1250*time.Millisecond + time.Microsecond, "1.251", ""},
		{"decimal, least", RetryAfterDecimal, time.Microsecond, "0.001", ""},
		{"decimal, none", RetryAfterDecimal, 0, "", ""},
		{"date", RetryAfterDate, time.Second + time.Microsecond, "Sat, 01 Mar 2025 12:00:02 GMT", "Sat, 01 Mar 2025 12:00:00 GMT"},
		{"date, up", RetryAfterDate, time.Second + 2*time.Microsecond, "Sat, 01 Mar 2025 12:00:03 GMT", "Sat, 01 Mar 2025 12:00:00 GMT"},
		{"date, none", RetryAfterDate, 0, "", "Sat, 01 Mar 2025 12:00:00 GMT"},
		{"nothing", NoRetryAfter, time.Second, "", ""},
	}
	for _, test := range tests {
		h := http.Header{}
		test.style(h, Refusal{At: at, Wait: test.wait})
		if got := h.Get("Retry-After"); got != test.after {
			t.Errorf("%s: Retry-After is %q, want %q", test.name, got, test.after)
		}
		if got := h.Get("Date"); got != test.date {
			t.Errorf("%s: Date is %q, want %q", test.name, got, test.date)
		}
	}
}

func TestNewPanics(t *testing.T) {
	defer func() {
		if got, _ := recover().(string); !strings.Contains(got, "throttletest: tier 1: Limit is 0") {
			t.Errorf("panic with %q", got)
		}
	}()
	New(algorithms.PerHour(1), algorithms.PerSecond(0))
}

// TestAnswers tests the answers of the server and in memory.
func TestAnswers(t *testing.T) {
	server, memory := NewProvider(algorithms.PerHour(1)), New(algorithms.PerHour(1))
	defer server.Close()
	defer memory.Close()
	memory.URL = "http://provider.test"
	for name, p := range map[string]*Provider{"server": server, "memory": memory} {
		p.Penalty = 90 * time.Second
		steps := []struct {
			status      int
			text, retry string
			accepted    bool
			tier        int
		}{
			{200, `{"ok":true}`, "", true, -1},
			{429, `{"error":"too many requests","tier":0}`, "90", false, 0},
		}
		for i, s := range steps {
			res, text := get(t, p.Client(), p.URL+"/v1/things?page=2")
			if res.StatusCode != s.status || text != s.text || res.Header.Get("Retry-After") != s.retry {
				t.Errorf("%s, step %d: %s, Retry-After %q, %s", name, i, res.Status, res.Header.Get("Retry-After"), text)
			}
			if got := res.Header.Get("Content-Type"); got != "application/json" {
				t.Errorf("%s, step %d: Content-Type is %q", name, i, got)
			}
			if a := p.Arrivals()[i]; a.Accepted != s.accepted || a.Tier != s.tier || a.Path != "/v1/things" {
				t.Errorf("%s, step %d: arrival is %+v", name, i, a)
			}
		}
		if got, want := p.Summary(), (Summary{Sent: 2, Accepted: 1, Refused: 1, WorstSecond: 1}); got != want {
			t.Errorf("%s: summary is %+v, want %+v", name, got, want)
		}
	}
}

func TestStatusAndHeader(t *testing.T) {
	p := New(algorithms.PerHour(1))
	p.Status = http.StatusServiceUnavailable
	p.Header = func(h http.Header, r Refusal) { h.Set("X-Tier", string('a'+rune(r.Tier))) }
	get(t, p.Client(), anywhere)
	res, _ := get(t, p.Client(), anywhere)
	if res.Status != "503 Service Unavailable" || res.Header.Get("X-Tier") != "a" || res.Header.Get("Retry-After") != "" {
		t.Errorf("refused with %s and %v", res.Status, res.Header)
	}
}

// TestTrueWait tests that a request after Retry-After is accepted, and an earlier one is not.
func TestTrueWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(algorithms.PerSecond(2), algorithms.PerMinute(3))
		var wait time.Duration
		p.Header = func(_ http.Header, r Refusal) { wait = r.Wait }
		steps := []struct {
			after  time.Duration // since the step before
			status int
			wait   time.Duration
		}{
			{0, 200, 0},
			{300 * time.Millisecond, 200, 0},
			{0, 429, 700 * time.Millisecond},
			{700*time.Millisecond - time.Microsecond, 429, time.Microsecond},
			{time.Microsecond, 200, 0},
			{time.Second, 429, 58 * time.Second},
			{58 * time.Second, 200, 0},
			{0, 429, 300 * time.Millisecond},
		}
		for i, s := range steps {
			time.Sleep(s.after)
			wait = 0
			if res, _ := get(t, p.Client(), anywhere); res.StatusCode != s.status || wait != s.wait {
				t.Errorf("step %d: %s, wait %v; want %d, %v", i, res.Status, wait, s.status, s.wait)
			}
		}
		if got := p.WorstRolling(time.Minute); got != 3 {
			t.Errorf("within a minute %d were accepted, want 3", got)
		}
	})
}

// TestNoTrueWait tests that a Refusal has no Wait if time does not help, unless there is a Penalty.
func TestNoTrueWait(t *testing.T) {
	for _, penalty := range []time.Duration{0, time.Minute} {
		p := New(algorithms.PerSecond(2))
		p.Penalty = penalty
		p.Cost = func(*http.Request) map[string]int64 { return n(3) }
		p.Header = func(_ http.Header, r Refusal) {
			if r.Wait != penalty {
				t.Errorf("wait is %v, want %v", r.Wait, penalty)
			}
		}
		if res, _ := get(t, p.Client(), anywhere); res.StatusCode != 429 {
			t.Errorf("a cost above the limit: %s", res.Status)
		}
	}
}

func TestDelayAndHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(algorithms.PerSecond(1))
		p.Delay = func() time.Duration { return 30 * time.Millisecond }
		p.Hold = func() time.Duration { return 200 * time.Millisecond }
		began := time.Now()
		get(t, p.Client(), anywhere)
		if took := time.Since(began); took != 230*time.Millisecond {
			t.Errorf("the answer took %v, want 230ms", took)
		}
		if late := p.Arrivals()[0].At.Sub(began); late != 30*time.Millisecond {
			t.Errorf("counted %v after it was sent, want 30ms", late)
		}
	})
}

func TestCanceled(t *testing.T) {
	tests := []struct {
		name    string
		timeout time.Duration
		sent    int64
	}{
		{"before it starts", 0, 0},
		{"during Delay", 29 * time.Millisecond, 0},
		{"during Hold", 31 * time.Millisecond, 1}, // counted, although no client received the answer
	}
	for _, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			p := New(algorithms.PerHour(100), algorithms.Tier{Limit: 1, Algorithm: algorithms.Concurrency})
			p.Delay = func() time.Duration { return 30 * time.Millisecond }
			p.Hold = func() time.Duration { return 200 * time.Millisecond }
			ctx, cancel := context.WithTimeout(t.Context(), test.timeout)
			defer cancel()
			began, sent := time.Now(), &countingBody{Reader: strings.NewReader("hello")}
			r, err := http.NewRequestWithContext(ctx, "POST", anywhere, sent)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.RoundTrip(r); err != context.DeadlineExceeded {
				t.Errorf("%s: the error is %v", test.name, err)
			}
			if took := time.Since(began); took != test.timeout {
				t.Errorf("%s: it took %v, want %v", test.name, took, test.timeout)
			}
			if s := p.Summary(); s.Sent != test.sent || s.Accepted != test.sent {
				t.Errorf("%s: summary is %+v, want %d sent and accepted", test.name, s, test.sent)
			}
			if sent.closed != 1 {
				t.Errorf("%s: the request's body was closed %d times", test.name, sent.closed)
			}
			if res, _ := get(t, p.Client(), anywhere); res.StatusCode != 200 {
				t.Errorf("%s: the request is still in flight: %s", test.name, res.Status)
			}
		})
	}
}

type countingBody struct {
	io.Reader
	closed int
}

func (b *countingBody) Close() error { b.closed++; return nil }

func TestRequestBody(t *testing.T) {
	p := New(algorithms.Tier{Limit: 10, Window: time.Minute, Unit: "bytes"})
	p.Cost = func(r *http.Request) map[string]int64 {
		start, _ := io.ReadAll(io.LimitReader(r.Body, 3)) // Cost may read the body
		return map[string]int64{"bytes": int64(len(start))}
	}
	text := strings.NewReader("hello")
	sent := &countingBody{Reader: text}
	r := httptest.NewRequest("POST", anywhere, sent)
	res, err := p.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if text.Len() != 0 || sent.closed != 1 {
		t.Errorf("%d bytes were left, the body was closed %d times", text.Len(), sent.closed)
	}
	if got := p.Arrivals()[0].Cost["bytes"]; got != 3 {
		t.Errorf("the cost is %d bytes, want 3", got)
	}

	broken := errors.New("broken")
	sent = &countingBody{Reader: io.MultiReader(strings.NewReader("he"), brokenReader{broken})}
	p.Cost = nil
	if _, err := p.RoundTrip(httptest.NewRequest("POST", anywhere, sent)); !errors.Is(err, broken) || sent.closed != 1 {
		t.Errorf("the error is %v, the body was closed %d times", err, sent.closed)
	}
	if got := p.Summary().Sent; got != 1 {
		t.Errorf("a request without its whole body was counted")
	}
}

type brokenReader struct{ err error }

func (r brokenReader) Read([]byte) (int, error) { return 0, r.err }

func TestConcurrencyInMemory(t *testing.T) {
	p := New(algorithms.Tier{Limit: 1, Algorithm: algorithms.Concurrency})
	send := func(step string, want int) *http.Response {
		t.Helper()
		res, err := p.RoundTrip(httptest.NewRequest("GET", anywhere, nil))
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != want {
			t.Fatalf("%s: %s, want %d", step, res.Status, want)
		}
		return res
	}
	first := send("first", 200)
	send("while the first is open", 429).Body.Close()
	send("a refusal's body releases nothing", 429)
	if _, err := io.ReadAll(first.Body); err != nil {
		t.Fatal(err)
	}
	second := send("after the first was read", 200)
	first.Body.Close()
	send("the first releases once only", 429)
	second.Body.Close()
	send("after the second was closed", 200)
}

// TestConcurrencyOfServer sends requests one at a time, each as soon as the previous one is
// answered, and one more during Hold.
func TestConcurrencyOfServer(t *testing.T) {
	p := NewProvider(algorithms.Tier{Limit: 1, Algorithm: algorithms.Concurrency})
	defer p.Close()
	var held atomic.Bool
	entered, gate := make(chan bool), make(chan bool)
	p.Hold = func() time.Duration {
		if held.Swap(false) {
			entered <- true
			<-gate
		}
		return 0
	}
	for i := range 100 {
		if res, _ := get(t, p.Client(), p.URL); res.StatusCode != 200 {
			t.Fatalf("request %d: %s", i, res.Status)
		}
	}
	held.Store(true)
	done := make(chan int)
	go func() {
		res, err := p.Client().Get(p.URL)
		if err != nil {
			done <- 0
			return
		}
		res.Body.Close()
		done <- res.StatusCode
	}()
	<-entered
	if res, _ := get(t, p.Client(), p.URL); res.StatusCode != 429 {
		t.Errorf("a second request while the first is held: %s", res.Status)
	}
	close(gate)
	if status := <-done; status != 200 {
		t.Errorf("the held request: %d", status)
	}
}

// TestClientGoesAway tests that the server does not count a request whose client leaves during
// Delay.
func TestClientGoesAway(t *testing.T) {
	p := NewProvider(algorithms.PerHour(1))
	entered := make(chan bool)
	p.Delay = func() time.Duration { close(entered); return time.Hour }
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	r, err := http.NewRequestWithContext(ctx, "POST", p.URL, strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Client().Do(r); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	p.Close() // blocks until the handler has ended
	if got := p.Summary(); got != (Summary{}) {
		t.Errorf("summary is %+v", got)
	}
}

// TestParallel sends from many goroutines at once. Exactly the limit is accepted, and the clock
// never runs backward.
func TestParallel(t *testing.T) {
	p := NewProvider(algorithms.PerHour(60))
	defer p.Close()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 20 {
				res, err := p.Client().Get(p.URL)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
		})
	}
	wg.Wait()
	if s := p.Summary(); s.Sent != 200 || s.Accepted != 60 || s.Refused != 140 {
		t.Errorf("summary is %+v, want 60 of 200 accepted", s)
	}
	var last time.Time
	for i, a := range p.Arrivals() {
		if a.At.Before(last) {
			t.Errorf("arrival %d is before the previous one", i)
		}
		last = a.At
	}
}

// TestHour sends slightly faster than one request each 360 ms, in memory, with a limit of 10,000 an
// hour.
func TestHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(algorithms.PerSecond(5), algorithms.PerHour(10_000))
		for range 10_001 {
			get(t, p.Client(), anywhere)
			time.Sleep(360*time.Millisecond - time.Microsecond)
		}
		if s := p.Summary(); s != (Summary{Sent: 10_001, Accepted: 10_000, Refused: 1, WorstSecond: 3}) {
			t.Errorf("summary is %+v", s)
		}
	})
}
