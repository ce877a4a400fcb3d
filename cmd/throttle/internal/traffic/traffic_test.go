package traffic_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/cmd/throttle/internal/traffic"
)

// read reads a log, and returns its requests and the lines that can't be read.
func read(t *testing.T, r io.Reader, o traffic.Options) (format traffic.Format, all []traffic.Request, bad []int) {
	t.Helper()
	format, err := traffic.Read(r, o, func(r traffic.Request) error {
		all = append(all, r)
		return nil
	}, func(e *traffic.LineError) error {
		bad = append(bad, e.Line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return format, all, bad
}

func TestTimes(t *testing.T) {
	const want = 1795341600123456000
	for _, test := range []struct {
		text string
		want int64
	}{
		{`"2026-11-22T10:00:00.123456Z"`, want},
		{`"2026-11-22T12:00:00.123456+02:00"`, want},
		{`"2026-11-22T12:00:00.123456+0200"`, want},
		{`"2026-11-22 10:00:00.123456Z"`, want},
		{`1795341600.123456`, want},
		{`"1795341600.123456"`, want},
		{`1795341600123.456`, want},
		{`1795341600123456`, want},
		{`1795341600123456000`, want},
		{`1795341600`, 1795341600e9},
		{`1.7953416e9`, 1795341600e9},
		{`0`, 0},
	} {
		format, all, bad := read(t, strings.NewReader(`{"ts":`+test.text+`}`), traffic.Options{})
		if format != traffic.JSON || len(bad) > 0 || len(all) != 1 || all[0].At != test.want || all[0].Took != -1 {
			t.Errorf("%s: %v, bad %v, want %d", test.text, all, bad, test.want)
		}
	}
	for _, text := range []string{`"noon"`, `-1`, `true`, `null`, `[1]`, `""`, `"2026-11-22"`, `"10e400"`, `1e300`, `"0001-01-01T00:00:00Z"`, `"NaN"`} {
		if _, all, bad := read(t, strings.NewReader(`{"ts":`+text+`}`), traffic.Options{}); len(all) > 0 || len(bad) != 1 {
			t.Errorf("%s: %v, bad %v", text, all, bad)
		}
	}
}

func TestDurations(t *testing.T) {
	for _, test := range []struct {
		field string
		unit  time.Duration
		want  time.Duration
	}{
		{`"duration":0.25`, 0, 250 * time.Millisecond},
		{`"duration":"250ms"`, 0, 250 * time.Millisecond},
		{`"duration":250`, time.Millisecond, 250 * time.Millisecond},
		{`"duration_ms":250`, 0, 250 * time.Millisecond},
		{`"request_time":"0.250"`, 0, 250 * time.Millisecond},
		{`"duration_us":250000`, 0, 250 * time.Millisecond},
		{`"duration_ns":250000000`, 0, 250 * time.Millisecond},
	} {
		_, all, bad := read(t, strings.NewReader(`{"time":1,`+test.field+`}`), traffic.Options{Unit: test.unit})
		if len(all) != 1 || all[0].Took != test.want {
			t.Errorf("%s: %v, bad %v, want %v", test.field, all, bad, test.want)
		}
	}
	for _, field := range []string{`"duration":-1`, `"duration":"soon"`, `"duration":1e300`, `"duration":null`} {
		if _, all, bad := read(t, strings.NewReader(`{"time":1,`+field+`}`), traffic.Options{}); len(all) > 0 || len(bad) != 1 {
			t.Errorf("%s: %v, bad %v", field, all, bad)
		}
	}
}

// TestHostileNumbers leaves out times, durations and amounts that no later sum could hold.
func TestHostileNumbers(t *testing.T) {
	clf := func(stamp, end string) string {
		return `1.1.1.1 - - [` + stamp + `] "GET / HTTP/1.1" 200 5` + end
	}
	har := func(entry string) string { return `{"log":{"entries":[{` + entry + `}]}}` }
	for _, log := range []string{
		clf("02/Jan/0000:15:04:05 -0700", ""),
		clf("02/Jan/1969:15:04:05 -0700", ""),
		clf("02/Jan/9999:15:04:05 -0700", ""),
		clf("02/Jan/1970:15:04:05 +0000", " 200000.5"),
		`{"time":1,"duration":"2500000h"}`,
		`{"time":1,"duration":4e9}`,
		`{"time":1,"duration":1,"n":"NaN"}`,
		`{"time":1,"duration":1,"n":"Inf"}`,
		`{"time":1,"duration":1,"n":-1}`,
		har(`"startedDateTime":"2026-01-01T00:00:00Z","time":1e308`),
		har(`"startedDateTime":"2026-01-01T00:00:00Z","time":4e15`),
		har(`"startedDateTime":"9999-01-01T00:00:00Z","time":1`),
	} {
		o := traffic.Options{}
		if strings.Contains(log, `"n"`) {
			o.Amounts = []string{"n"}
		}
		if _, all, bad := read(t, strings.NewReader(log), o); len(all) > 0 || len(bad) != 1 {
			t.Errorf("%s: %v, bad %v", log, all, bad)
		}
	}
	if _, all, bad := read(t, strings.NewReader(har(`"startedDateTime":"2026-01-01T00:00:00Z","time":-1`)), traffic.Options{}); len(bad) > 0 || len(all) != 1 || all[0].Took != 0 {
		t.Errorf("a HAR without a known duration: %v, bad %v", all, bad)
	}
}

// TestLongEntry stops at an entry of a HAR that is longer than a line may be, without reading all of it.
func TestLongEntry(t *testing.T) {
	const begins = `{"log":{"entries":[{"startedDateTime":"2026-01-01T00:00:00Z","time":1},{"text":"`
	endless := &counted{Reader: io.MultiReader(strings.NewReader(begins), repeated('a'))}
	_, err := traffic.Read(endless, traffic.Options{}, func(traffic.Request) error { return nil }, nil)
	var bad *traffic.LineError
	if !errors.As(err, &bad) || bad.Line != 2 || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("%v", err)
	}
	if endless.n > 200<<20 {
		t.Errorf("%d bytes were read", endless.n)
	}
	endless = &counted{Reader: io.MultiReader(strings.NewReader(`{"log":{"pages":"`), repeated('a'))}
	if _, err := traffic.Read(endless, traffic.Options{}, nil, nil); err == nil || endless.n > 200<<20 {
		t.Errorf("%v after %d bytes", err, endless.n)
	}
}

// A repeated is a reader without an end.
type repeated byte

func (r repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

// A counted counts the bytes that were read, and fails after 1 GB.
type counted struct {
	io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	if c.n > 1<<30 {
		return 0, errors.New("too much was read")
	}
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// TestCompressed reads what was compressed in two parts, as gzip -c appends them, after a byte order
// mark, and with the line ends of Windows.
func TestCompressed(t *testing.T) {
	var b bytes.Buffer
	for _, part := range []string{"\xef\xbb\xbf{\"time\":1}\r\n\r\n{\"ti", "me\":2}\r\n{"} {
		z := gzip.NewWriter(&b)
		io.WriteString(z, part)
		z.Close()
	}
	format, all, bad := read(t, &b, traffic.Options{})
	if format != traffic.JSON || len(all) != 2 || all[1].At != 2e9 || !slices.Equal(bad, []int{4}) {
		t.Errorf("%s: %v, bad %v", format, all, bad)
	}
	cut := bytes.NewReader([]byte{0x1f, 0x8b, 8, 0})
	if _, err := traffic.Read(cut, traffic.Options{}, nil, nil); err == nil {
		t.Error("a compressed log that ends early can be read")
	}
}

// TestStops returns the errors of both functions at once.
func TestStops(t *testing.T) {
	stop := errors.New("stop")
	n := 0
	_, err := traffic.Read(strings.NewReader("{\"time\":1}\nx\n"), traffic.Options{}, func(traffic.Request) error { n++; return stop }, nil)
	if err != stop || n != 1 {
		t.Errorf("%v after %d requests", err, n)
	}
	_, err = traffic.Read(strings.NewReader("{\nx\n"), traffic.Options{}, nil, func(e *traffic.LineError) error { return e })
	var bad *traffic.LineError
	if !errors.As(err, &bad) || bad.Line != 1 {
		t.Error(err)
	}
	long := strings.NewReader("{\"time\":1}\n" + strings.Repeat("x", 17<<20))
	_, err = traffic.Read(long, traffic.Options{}, func(traffic.Request) error { return nil }, nil)
	if err == nil || err.Error() != "line 2: it is longer than 16 MB" {
		t.Error(err)
	}
}

// TestSorter sorts requests that are up to 100 places out of order, and moves one that is further away.
func TestSorter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var got []traffic.Request
	s := traffic.NewSorter(100, func(r traffic.Request) error {
		got = append(got, r)
		return nil
	})
	const n = 5000
	for i := range n {
		at := int64(i + r.IntN(50))
		if i == n/2 {
			at = 7
		}
		s.Add(traffic.Request{At: at, Took: time.Duration(i)})
	}
	s.Flush()
	if len(got) != n || s.Moved != 1 {
		t.Errorf("%d requests, %d moved", len(got), s.Moved)
	}
	if !slices.IsSortedFunc(got, func(a, b traffic.Request) int {
		if a.At != b.At {
			return int(a.At - b.At)
		}
		if a.Took == n/2 || b.Took == n/2 {
			return 0
		}
		return int(a.Took - b.Took)
	}) {
		t.Error("the requests are out of order")
	}
}

// FuzzRead reads anything without a panic, and never makes a request from before 1970 or a negative
// duration or amount from it.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-22T10:00:00Z","duration":1,"n":3}`), "")
	f.Add([]byte(`10.0.0.1 - - [22/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 612 "-" "curl" 0.5`), "")
	f.Add([]byte(`{"log":{"entries":[{"startedDateTime":"2026-11-22T10:00:00Z","time":1}]}}`), "har")
	f.Fuzz(func(t *testing.T, data []byte, format string) {
		for _, o := range []traffic.Options{{Format: traffic.Format(format)}, {Amounts: []string{"n"}, Unit: time.Second}} {
			_, err := traffic.Read(bytes.NewReader(data), o, func(r traffic.Request) error {
				if r.Took < -1 || slices.ContainsFunc(r.Amount, func(n int64) bool { return n < 0 }) {
					return fmt.Errorf("%+v", r)
				}
				return nil
			}, func(*traffic.LineError) error { return nil })
			if err != nil && strings.HasPrefix(err.Error(), "{") {
				t.Error(err)
			}
		}
	})
}
