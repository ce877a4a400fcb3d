package throttle_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// eventRules refuse in events of a type of their own, and in others by a path.
var eventRules = &answers.Profile{
	Charges: []answers.Charge{{Unit: "tokens", Field: answers.Field{Path: "usage"}}},
	Rules: []answers.Rule{
		{Event: "error", Path: "type", Text: "spent", Kind: answers.Other},
		{Event: "error", Path: "type", Text: "banned", Kind: answers.Banned},
		{Event: "error", Path: "type", Text: "limited", Kind: answers.Limited, Delay: []answers.Field{
			{Path: "text", After: "try again in ", Format: answers.Duration}, {Path: "at", Format: answers.Timestamp},
		}},
		{Event: "message", Path: "error.status", Text: "EXHAUSTED", Kind: answers.Limited, Wait: 7 * time.Second},
	},
}

const limitedFor5s = "event: error\ndata: {\"type\":\"limited\",\"text\":\"Please try again in 5s.\"}\n\n"

// A streamed body has portions, each of which is read at once, a second after the one before.
type streamed struct {
	portions []string
	closed   int
}

func (s *streamed) Read(p []byte) (int, error) {
	if len(s.portions) == 0 {
		return 0, io.EOF
	}
	time.Sleep(time.Second)
	n := copy(p, s.portions[0])
	s.portions = s.portions[1:]
	return n, nil
}

func (s *streamed) Close() error {
	s.closed++
	return nil
}

// stream sends a request that is answered by a stream of events.
func stream(t *testing.T, tr *throttle.Transport, ctx context.Context, portions ...string) *http.Response {
	t.Helper()
	tr.Profile = eventRules
	tr.Base = roundTripper(func(*http.Request) (*http.Response, error) {
		resp := trAnswer(200, "Content-Type", "text/event-stream", "Date", time.Now().UTC().Format(http.TimeFormat))
		resp.Body = &streamed{portions: portions}
		return resp, nil
	})
	resp, err := tr.RoundTrip(httptest.NewRequestWithContext(ctx, "POST", trURL, nil))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func pausedFor(t *testing.T, l *throttle.Limiter) time.Duration {
	t.Helper()
	s, err := l.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return max(s.Paused, s.Closed)
}

// TestRefusalInStream checks for how long an event pauses the quota, however the body is read, and that
// the body is what the server sent.
func TestRefusalInStream(t *testing.T) {
	const at = "event: error\ndata: {\"type\":\"limited\",\"at\":\"2000-01-01T00:00:10Z\"}\n\n"
	long := strings.Repeat("x", 20_000)
	for _, c := range []struct {
		name, kind, body string
		status           string // if empty, 200
		lines            []string
		want             time.Duration
		closed           bool
	}{
		{name: "a wait in a text", body: "data: {\"text\":\"Hi\"}\n\n" + limitedFor5s, want: 5 * time.Second},
		{name: "an instant, counted from the event", body: at, want: 10 * time.Second},
		{name: "an event without a type", body: "data: {\"error\":{\"status\":\"EXHAUSTED\"}}\n\n", want: 7 * time.Second},
		{name: "CRLF", body: strings.ReplaceAll(limitedFor5s, "\n", "\r\n"), want: 5 * time.Second},
		{name: "CR", body: strings.ReplaceAll(limitedFor5s, "\n", "\r"), want: 5 * time.Second},
		{name: "the type after the data", body: "data: {\"type\":\"limited\",\"text\":\"try again in 5s\"}\nevent: error\n\n", want: 5 * time.Second},
		{name: "data on three lines", body: ":ping\nevent:error\ndata:{\"type\":\n:ping\ndata:\"limited\",\nid: 7\ndata:\"text\":\"try again in 5s\"}\n\n", want: 5 * time.Second},
		{name: "after an event that is too long", body: "event: error\ndata: {\"type\":\"limited\",\"x\":\"" + long + "\"}\n\n" + limitedFor5s, want: 5 * time.Second},
		{name: "an event that is too long", body: "event: error\ndata: {\"type\":\"limited\",\"x\":\"" + long + "\"}\n\n"},
		{name: "two refusals", body: limitedFor5s + strings.Replace(limitedFor5s, "5s", "50s", 1), want: 5 * time.Second},
		{name: "a wait of a day", body: strings.Replace(limitedFor5s, "5s", "24h", 1), want: 15 * time.Minute, closed: true},
		{name: "a ban", body: "event: error\ndata: {\"type\":\"banned\"}\n\n", want: 15 * time.Minute, closed: true},
		{name: "spent", body: "event: error\ndata: {\"type\":\"spent\",\"text\":\"try again in 5s\"}\n\n"},
		{name: "another type", body: strings.Replace(limitedFor5s, "error", "delta", 1)},
		{name: "a text that looks like an event", body: `data: {"text":"\n\nevent: error\ndata: {\"type\":\"limited\",\"text\":\"try again in 5s\"}\n\n"}` + "\n\n"},
		{name: "a text that looks like a key", body: `data: {"text":"\"error\":{\"status\":\"EXHAUSTED\"}","error":null}` + "\n\n"},
		{name: "a key below another", body: "data: {\"delta\":{\"error\":{\"status\":\"EXHAUSTED\"}}}\n\n"},
		{name: "no end", body: strings.TrimSuffix(limitedFor5s, "\n")},
		{name: "a wait in a header", lines: []string{"Retry-After: 4"}, body: limitedFor5s, want: 4 * time.Second},
		{name: "compressed", lines: []string{"Content-Encoding: gzip"}, body: limitedFor5s},
		{name: "a text", kind: "text/plain", body: limitedFor5s},
		{name: "an array", kind: "application/json", body: "[{\"text\":\"[{\\\"error\"}\r\n,\r\n{\"error\":{\"status\":\"EXHAUSTED\"}}\r\n]", want: 7 * time.Second},
		{name: "an object", kind: "application/json", body: `{"error":{"status":"EXHAUSTED"}}`, want: 7 * time.Second},
		{name: "an array in an object", kind: "application/json", body: `{"a":[{"error":{"status":"EXHAUSTED"}}]}`},
		{name: "a refusal by its status", kind: "text/event-stream", status: "429", lines: []string{"Retry-After: 3"}, body: limitedFor5s, want: 3 * time.Second},
	} {
		for name, split := range map[string]func(io.Reader) io.Reader{
			"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "with the error": iotest.DataErrReader,
		} {
			synctest.Test(t, func(t *testing.T) {
				lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
				head := append([]string{cmp.Or(c.status, "200"), "Content-Type: " + cmp.Or(c.kind, "text/event-stream; charset=utf-8")}, c.lines...)
				tr := &throttle.Transport{Limiter: lim, Profile: eventRules, Base: answering(strings.Join(head, "\n") + "\n\n" + c.body)}
				resp, err := tr.RoundTrip(httptest.NewRequest("POST", trURL, nil))
				if err != nil {
					t.Fatal(err)
				}
				if body, err := io.ReadAll(split(resp.Body)); string(body) != c.body || err != nil {
					t.Errorf("%s, read %s: body %.80q, %v", c.name, name, body, err)
				}
				resp.Body.Close()
				s, _ := lim.Status(t.Context())
				if got := max(s.Paused, s.Closed); got != c.want || s.Closed > 0 != c.closed {
					t.Errorf("%s, read %s: paused for %v, closed for %v, want %v", c.name, name, s.Paused, s.Closed, c.want)
				}
			})
		}
	}
}

// TestRefusalInStreamAtItsEvent checks that each portion of the body reaches the caller when it comes, and
// that the pause begins with the event, while the stream goes on.
func TestRefusalInStreamAtItsEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
		start, buf := time.Now(), make([]byte, 1000)
		resp := stream(t, &throttle.Transport{Limiter: lim}, t.Context(), "data: {}\n\n", limitedFor5s[:30], limitedFor5s[30:], ": more\n\n")
		for i, want := range []time.Duration{0, 0, 5 * time.Second, 4 * time.Second} {
			if _, err := resp.Body.Read(buf); err != nil {
				t.Fatal(err)
			}
			if at := time.Since(start); at != time.Duration(i+1)*time.Second || pausedFor(t, lim) != want {
				t.Errorf("portion %d after %v, paused for %v, want %v", i, at, pausedFor(t, lim), want)
			}
		}
		resp.Body.Close()
		if err := lim.Wait(t.Context()); err != nil || time.Since(start) != 8*time.Second {
			t.Errorf("the next request was admitted after %v, %v", time.Since(start), err)
		}
	})
}

// TestRefusalInStreamSettles checks that what a stream has used before its refusal is charged, by the
// Profile's Meter and by another, and that the place is free when the body ends and not before.
func TestRefusalInStreamSettles(t *testing.T) {
	const usage = "data: {\"usage\":120}\n\n"
	for name, c := range map[string]struct {
		meter    func(*http.Response) throttle.Meter
		portions []string
		tokens   int64
	}{
		"reported":     {nil, []string{usage, limitedFor5s}, 120},
		"not reported": {nil, []string{limitedFor5s}, 500},
		"by a Meter":   {func(*http.Response) throttle.Meter { return new(length) }, []string{usage, limitedFor5s}, int64(len(usage + limitedFor5s))},
	} {
		synctest.Test(t, func(t *testing.T) {
			lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{
				{Limit: 1, Algorithm: throttle.Concurrency},
				{Limit: 1000, Window: time.Hour, Algorithm: throttle.FixedWindow, Unit: "tokens", Estimated: true},
			}}, nil)
			tr := &throttle.Transport{Limiter: lim, Meter: c.meter, Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 500} }}
			resp := stream(t, tr, t.Context(), c.portions...)
			buf := make([]byte, 1000)
			for range c.portions {
				if _, err := resp.Body.Read(buf); err != nil {
					t.Fatal(err)
				}
			}
			if got := used(t, lim); !slices.Equal(got, []int64{1, 500}) || pausedFor(t, lim) != 5*time.Second {
				t.Errorf("%s: before the end %v are used, paused for %v", name, got, pausedFor(t, lim))
			}
			if _, err := resp.Body.Read(buf); err != io.EOF {
				t.Fatal(err)
			}
			if got := used(t, lim); !slices.Equal(got, []int64{0, c.tokens}) || pausedFor(t, lim) != 5*time.Second {
				t.Errorf("%s: %v are used, want none open and %d, paused for %v", name, got, c.tokens, pausedFor(t, lim))
			}
			resp.Body.Close()
		})
	}
}

// TestRefusalInAbandonedStream checks that a stream whose caller has gone ends as any other, and that what
// was not read before pauses nothing.
func TestRefusalInAbandonedStream(t *testing.T) {
	for _, cancels := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}}, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			resp := stream(t, &throttle.Transport{Limiter: lim}, ctx, limitedFor5s[:30], limitedFor5s[30:])
			buf := make([]byte, 1000)
			if _, err := resp.Body.Read(buf); err != nil {
				t.Fatal(err)
			}
			if cancels {
				cancel()
				synctest.Wait()
			} else {
				resp.Body.Close()
			}
			if _, err := resp.Body.Read(buf); err != nil {
				t.Fatal(err)
			}
			if got := used(t, lim); got[0] != 0 || pausedFor(t, lim) > 0 {
				t.Errorf("canceled %v: %v are open, paused for %v", cancels, got, pausedFor(t, lim))
			}
		})
	}
}

// TestRefusalInStreamHoldsWaiters checks that a place that a refused stream frees is taken only after the
// pause, and that streams which are refused together, without a time, pause once.
func TestRefusalInStreamHoldsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 2, Algorithm: throttle.Concurrency}}}, nil)
		const limited = "event: error\ndata: {\"type\":\"limited\"}\n\n"
		start, next := time.Now(), make(chan time.Duration)
		one := stream(t, &throttle.Transport{Limiter: lim}, t.Context(), limited)
		two := stream(t, &throttle.Transport{Limiter: lim}, t.Context(), limited)
		go func() {
			p, err := lim.Acquire(context.Background(), nil)
			next <- time.Since(start)
			if err == nil {
				p.Release()
			}
		}()
		done := make(chan error)
		for _, resp := range []*http.Response{one, two} {
			go func() {
				_, err := io.Copy(io.Discard, resp.Body)
				done <- errors.Join(err, resp.Body.Close())
			}()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if at := <-next; at < 2*time.Second || at > 3*time.Second { // a second, and a pause of 1 to 2 s
			t.Errorf("the next request was admitted after %v", at)
		}
	})
}

// TestRefusalInStreamIsReported checks what an Observer receives: the response has passed, and then the
// quota pauses, also under a policy that is newer than the request's.
func TestRefusalInStreamIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answered []throttle.AnsweredInfo
		var paused []throttle.PausedInfo
		policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(100)}, Observer: &throttle.Observer{
			Answered: func(_ context.Context, i throttle.AnsweredInfo) { answered = append(answered, i) },
			Paused:   func(i throttle.PausedInfo) { paused = append(paused, i) },
		}}
		lim := mustNew(t, policy, nil)
		resp := stream(t, &throttle.Transport{Limiter: lim}, t.Context(), limitedFor5s)
		if len(answered) != 1 || answered[0] != (throttle.AnsweredInfo{Policy: "api", Status: 200}) || paused != nil {
			t.Errorf("before the event: answered %+v, paused %+v", answered, paused)
		}
		policy.Tiers = []throttle.Tier{throttle.PerSecond(1000)}
		if err := lim.SetPolicy(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		want := throttle.PausedInfo{Policy: "api", For: 5 * time.Second, Cause: throttle.PausedByResponse}
		if len(answered) != 1 || !slices.Equal(paused, []throttle.PausedInfo{want}) || pausedFor(t, lim) != 5*time.Second {
			t.Errorf("answered %+v, paused %+v, for %v", answered, paused, pausedFor(t, lim))
		}
		if e, err := lim.Explain(t.Context(), nil); err != nil || !strings.Contains(e.String(), "after a response with status 200") {
			t.Errorf("%v, %v", e, err)
		}
	})
}

// TestRefusalInStreamPanics checks that the place, the estimate and the pause survive an Observer that
// panics in the reader of a stream.
func TestRefusalInStreamPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := mustNew(t, throttle.Policy{
			Tiers: []throttle.Tier{
				{Limit: 1, Algorithm: throttle.Concurrency},
				{Limit: 1000, Window: time.Hour, Algorithm: throttle.FixedWindow, Unit: "tokens", Estimated: true},
			},
			Observer: &throttle.Observer{Paused: func(throttle.PausedInfo) { panic("a test") }},
		}, nil)
		tr := &throttle.Transport{Limiter: lim, Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 500} }}
		resp := stream(t, tr, t.Context(), "data: {\"usage\":7}\n\n", limitedFor5s)
		survive(func() {
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
			t.Error("the Observer did not panic")
		})
		if got := used(t, lim); !slices.Equal(got, []int64{0, 7}) || pausedFor(t, lim) != 5*time.Second {
			t.Errorf("%v are used, paused for %v", got, pausedFor(t, lim))
		}
		if err := lim.Wait(t.Context()); !errors.Is(err, throttle.ErrNeedsPermit) {
			t.Errorf("Wait: %v", err)
		}
	})
}

// TestRefusalInStreamOfScopes checks that the scope pauses that a Rule names, that a key of a Group stays
// while its stream lasts, and that a shadow pauses nothing.
func TestRefusalInStreamOfScopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := mustNew(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
		models, err := throttle.NewGroup(throttle.Policy{Name: "model", Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil, throttle.GroupOptions{MaxKeys: 1})
		if err != nil {
			t.Fatal(err)
		}
		stream(t, &throttle.Transport{Limiter: models.For("n").Within(account)}, t.Context(), "data: {}\n\n").Body.Close()
		time.Sleep(24 * time.Hour)
		resp := stream(t, &throttle.Transport{Limiter: models.For("m").Within(account)}, t.Context(), limitedFor5s)
		time.Sleep(24 * time.Hour)
		if err := models.For("n").Within(account).Wait(t.Context()); !errors.Is(err, throttle.ErrTooManyKeys) {
			t.Errorf("another key took the place of a stream's: %v", err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if own, outer := pausedFor(t, models.For("m")), pausedFor(t, account); own != 5*time.Second || outer > 0 {
			t.Errorf("the model is paused for %v, the account for %v", own, outer)
		}
		shadow := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}, Shadow: true}, nil)
		resp = stream(t, &throttle.Transport{Limiter: shadow}, t.Context(), limitedFor5s)
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if d := pausedFor(t, shadow); d > 0 {
			t.Errorf("a shadow is paused for %v", d)
		}
	})
}
