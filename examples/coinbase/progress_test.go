package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

func TestBar(t *testing.T) {
	batch := progress{Elapsed: 12500 * time.Millisecond, Duration: 15 * time.Second, Sent: 64, Accepted: 61, Total: 75, InFlight: 3, Left: 2750 * time.Millisecond}
	with := func(change func(*progress)) progress {
		p := batch
		change(&p)
		return p
	}
	long := with(func(p *progress) { p.Total, p.Left, p.Tier, p.Duration = 10_001, time.Hour, "10000/h", 0 })
	failing := with(func(p *progress) { p.Failure = errors.New("dial tcp 127.0.0.1:80:\n\x1b[31mconnection refused") })
	for _, test := range []struct {
		name    string
		p       progress
		columns int
		want    string
	}{
		{"80 columns", batch, 79, "[##########################------] 61 of 75 · 4.9/s · 3 in flight · 2.8 s left"},
		{"200 columns", batch, 199, "[################################--------] 61 of 75 · 4.9/s · 3 in flight · 2.8 s left"},
		{"60 columns", batch, 59, "[######--] 61 of 75 · 4.9/s · 3 in flight · 2.8 s left"},
		{"50 columns", batch, 49, "[#############---] 61 of 75 · 4.9/s · 2.8 s left"},
		{"40 columns", batch, 39, "[######--] 61 of 75 · 2.8 s left"},
		{"30 columns", batch, 29, "61 of 75 · 2.8 s left"},
		{"20 columns", batch, 19, "61 of 75 · 2.8 s l…"},
		{"2 columns", batch, 1, "…"},
		{"a tier decides", long, 79, "[----------------] 61 of 10001 · 4.9/s · 3 in flight · 60 min left (10000/h)"},
		{"a tier decides, 60 columns", long, 59, "[--------] 61 of 10001 · 4.9/s · 3 in flight · 60 min left"},
		{"failing", failing, 79, "61 of 75 · 2.8 s left · failing: dial tcp 127.0.0.1:80:  [31mconnection refused"},
		{"failing, 40 columns", failing, 39, "61 of 75 · 2.8 s left · failing: dial …"},
		{"refused", with(func(p *progress) { p.Rejected = 2 }), 79, "[#############---] 61 of 75 · 2 refused · 4.9/s · 3 in flight · 2.8 s left"},
		{"no bound", with(func(p *progress) { p.Total = 0 }), 79, "[##########################------] 61 · 4.9/s · 3 in flight · 2.8 s left"},
		{"not known", with(func(p *progress) { p.InFlight, p.Left = -1, -1 }), 79, "[################################--------] 61 of 75 · 4.9/s"},
		{"start", progress{Total: 75, Left: -1}, 59, "[------------------------] 0 of 75 · 0.0/s · 0 in flight"},
		{"more than possible", with(func(p *progress) { p.Accepted, p.Left = 76, 0 }), 59, "[########] 76 of 75 · 6.1/s · 3 in flight · 0.0 s left"},
	} {
		got := test.p.bar(test.columns)
		if got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
		if n := utf8.RuneCountInString(got); n > test.columns {
			t.Errorf("%s: %d columns, want at most %d", test.name, n, test.columns)
		}
	}
}

func TestProgressLine(t *testing.T) {
	for want, p := range map[string]progress{
		"5s of 15s: sent 26, accepted 25, refused 1, 5.0/s": {Elapsed: 5 * time.Second, Duration: 15 * time.Second, Sent: 26, Accepted: 25, Rejected: 1, Left: 10 * time.Second},
		"10s: sent 50 of 75, accepted 50, refused 0, 5.0/s, 4.0 s left (5/s), failing: EOF": {
			Elapsed: 10 * time.Second, Sent: 50, Accepted: 50, Total: 75, Left: 4 * time.Second, Tier: "5/s", Failure: io.EOF},
	} {
		if got := p.line(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestLeft(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                          "0.0 s left",
		time.Nanosecond:            "0.1 s left",
		9999 * time.Millisecond:    "10.0 s left",
		10001 * time.Millisecond:   "11 s left",
		100 * time.Second:          "100 s left",
		101 * time.Second:          "2 min left",
		100 * time.Minute:          "100 min left",
		100*time.Minute + 1:        "1 h 41 min left",
		25*time.Hour - time.Minute: "24 h 59 min left",
	} {
		if got := (progress{Left: d}).left(true); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

// A fakeTerminal keeps what it shows at which time.
type fakeTerminal struct {
	t      *testing.T
	width  int
	start  time.Time
	line   []rune
	column int
	frames []frame
}

type frame struct {
	at   time.Duration
	text string
}

func (f *fakeTerminal) Columns() int { return f.width }

func (f *fakeTerminal) Write(p []byte) (int, error) {
	if p[0] != '\r' {
		return len(p), nil // the line before the progress
	}
	for _, r := range string(p) {
		switch {
		case r == '\r':
			f.column = 0
			continue
		case !unicode.IsPrint(r):
			f.t.Errorf("%q contains %q", p, r)
		case f.column == len(f.line):
			f.line = append(f.line, r)
		default:
			f.line[f.column] = r
		}
		f.column++
	}
	if len(f.line) >= f.width {
		f.t.Errorf("%q in a terminal of %d columns", string(f.line), f.width)
	}
	f.frames = append(f.frames, frame{time.Since(f.start), strings.TrimRight(string(f.line), " ")})
	return len(p), nil
}

// onTerminal runs a batch in virtual time on a terminal, against a provider that responds
// after a microsecond. It
// returns what the terminal showed, and when the last request arrived.
func onTerminal(t *testing.T, width int, args ...string) (frames []frame, last time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		c, _, err := parse(args)
		if err != nil {
			t.Fatal(err)
		}
		f := &fakeTerminal{t: t, width: width, start: time.Now()}
		api := throttletest.New(c.policy.Tiers...)
		api.Delay = func() time.Duration { return time.Microsecond } // no request is sent while the time is shown
		if err := run(t.Context(), c, target{url: "http://api.example.com", base: api}, io.Discard, f); err != nil {
			t.Error(err)
		}
		arrivals := api.Arrivals()
		frames, last = f.frames, arrivals[len(arrivals)-1].At.Sub(f.start).Round(time.Millisecond)
	})
	return frames, last
}

// TestTerminal checks what a terminal shows while a batch runs, but for the whole seconds at which
// requests are sent.
func TestTerminal(t *testing.T) {
	for width, want := range map[int]string{
		80: `
200ms [########------------------------] 5 of 20 · 25.0/s · 0 in flight · 2.9 s left
800ms [########------------------------] 5 of 20 · 6.2/s · 0 in flight · 2.3 s left
1.2s [################----------------] 10 of 20 · 8.3/s · 0 in flight · 1.9 s left
1.8s [################----------------] 10 of 20 · 5.6/s · 0 in flight · 1.3 s left
2.2s [########################--------] 15 of 20 · 6.8/s · 0 in flight · 0.9 s left
2.8s [########################--------] 15 of 20 · 5.4/s · 0 in flight · 0.3 s left
`,
		40: `
200ms [####------------] 5 of 20 · 2.9 s left
800ms [##------] 5 of 20 · 6.2/s · 2.3 s left
1.2s [####----] 10 of 20 · 1.9 s left
1.8s [####----] 10 of 20 · 1.3 s left
2.2s [######--] 15 of 20 · 0.9 s left
2.8s [######--] 15 of 20 · 0.3 s left
`,
	} {
		frames, _ := onTerminal(t, width, "-duration", "3001ms")
		var got strings.Builder
		for _, f := range frames {
			if f.at%time.Second%(600*time.Millisecond) == 200*time.Millisecond {
				fmt.Fprintln(&got, f.at, f.text)
			}
		}
		if got.String() != want[1:] {
			t.Errorf("%d columns:\n%swant%s", width, &got, want)
		}
		if text := frames[len(frames)-1].text; text != "" {
			t.Errorf("%d columns: %q stays", width, text)
		}
	}
}

var leftPattern = regexp.MustCompile(`([\d.]+) (s|min) left`)

// TestForetold checks that the time shown for the last request is right from the beginning, although a
// slower tier decides later or, as for 101 requests, for the last one only.
func TestForetold(t *testing.T) {
	for _, test := range []struct {
		requests, policy string
		want             time.Duration
		tier             string // that decides at first
	}{
		{"1", "5/s", 0, ""}, // sent before the first frame
		{"31", "5/s + 20/8s", 10 * time.Second, "5/s"},
		{"100", "5/s + 100/m", 19 * time.Second, "5/s"},
		{"101", "5/s + 100/m", time.Minute, "100/m"},
		{"240", "5/s + 100/m", 2*time.Minute + 7*time.Second, "5/s"},
		{"151", "10/s + 150/m", time.Minute, "150/m"},
		{"50", "2;algo=concurrency + 5/s", 9 * time.Second, "5/s"},
		{"50", "5/s;unit=tokens", 9 * time.Second, "5/s;unit=tokens"},
	} {
		frames, last := onTerminal(t, 80, "-requests", test.requests, "-policy", test.policy)
		if last != test.want {
			t.Errorf("%s at %s: the last arrived after %v, want %v", test.requests, test.policy, last, test.want)
		}
		known := false
		for _, f := range frames {
			left, unit := leftIn(f.text), 100*time.Millisecond
			switch {
			case left < 0:
				if f.at < last && (known || f.at > 2*time.Second) { // the requests join the queue
					t.Errorf("%s at %s: after %v no time is known: %q", test.requests, test.policy, f.at, f.text)
				}
				continue
			case left > 100*time.Second:
				unit = time.Minute
			case left > 10*time.Second:
				unit = time.Second
			}
			if !known && !strings.HasSuffix(f.text, " left ("+test.tier+")") {
				t.Errorf("%s at %s: %q, want %s", test.requests, test.policy, f.text, test.tier)
			}
			known = true
			if over := left - (last - f.at); over < -time.Millisecond || over > unit+time.Millisecond {
				t.Errorf("%s at %s: after %v %q, but the last arrived after %v", test.requests, test.policy, f.at, f.text, last)
			}
		}
	}
}

// TestForetoldPause checks that the time contains a pause that a response has asked for.
func TestForetoldPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.New(throttle.Tier{Limit: 10, Window: time.Minute}) // refuses the 11th request
		p := parsed(t, "5/s")
		f := &fakeTerminal{t: t, width: 80, start: time.Now()}
		err := run(t.Context(), config{duration: always, requests: 17, policy: p}, target{url: "http://api.example.com", base: api}, io.Discard, f)
		if err != nil {
			t.Error(err)
		}
		for _, f := range f.frames {
			if left := leftIn(f.text); f.at == 1200*time.Millisecond && left > 5*time.Second || f.at == 2200*time.Millisecond && left < 57*time.Second {
				t.Errorf("after %v: %q", f.at, f.text)
			}
		}
	})
}

// leftIn returns the time that is left by a text, or -1 if there is none.
func leftIn(text string) time.Duration {
	m := leftPattern.FindStringSubmatch(text)
	if m == nil {
		return -1
	}
	n, _ := strconv.ParseFloat(m[1], 64)
	left := time.Duration(n*1000) * time.Millisecond
	if m[2] == "min" {
		left *= 60
	}
	return left
}
