// Package traffic reads requests from logs: JSON lines, the access logs of nginx and Apache, and HAR
// files, each of which may be compressed by gzip.
package traffic

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Format is the format of a log.
type Format string

// The formats.
const (
	Detect Format = ""      // by the first line
	JSON   Format = "jsonl" // an object on each line
	Access Format = "clf"   // common or combined log format, with or without the request's time at the end
	HAR    Format = "har"   // log.entries of an HTTP archive
)

// A Request is a request of a log.
type Request struct {
	At     int64         // when it was sent, in nanoseconds since the Unix epoch
	Took   time.Duration // until its response had ended; -1 if the log does not have it
	Amount []int64       // of the fields in Options.Amounts
}

// Options say how a log is read. The names of fields may have points, as in usage.total_tokens.
type Options struct {
	Format Format
	// Time is the field of JSON with the time. If empty, the first of the usual names.
	Time string
	// Duration is the field of JSON with the duration. If empty, the first of the usual names.
	Duration string
	// Unit is the unit of durations without one. If zero, a second, or what the name of the field
	// ends in: duration_ms.
	Unit time.Duration
	// Amounts are fields of JSON with whole numbers.
	Amounts []string
}

// The usual names of fields.
var (
	timeNames     = []string{"time", "timestamp", "ts", "@timestamp", "start", "start_time", "started_at", "date", "datetime"}
	durationNames = []string{"duration", "duration_ms", "duration_us", "duration_ns", "request_time", "response_time", "latency", "latency_ms", "elapsed", "elapsed_ms", "took", "took_ms"}
)

// A LineError is a line, or an entry of a HAR, that can't be read.
type LineError struct {
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

// mostLine is the longest line, and mostEntry the longest entry of a HAR, which may have the bodies of
// a request and its response.
const (
	mostLine  = 16 << 20
	mostEntry = 64 << 20
)

// mostTook is the longest duration.
const mostTook = 100 * 365 * 24 * time.Hour

// isTime reports whether a time is one of a log, so that sums of it and durations are in range.
func isTime(t time.Time) bool { return t.Year() >= 1970 && t.Year() < 2100 }

// Read calls each with the requests of a log, and bad with each line that can't be read. It returns
// the format, and the first error of these functions or of the reader.
func Read(r io.Reader, o Options, each func(Request) error, bad func(*LineError) error) (Format, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	if magic, _ := b.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return o.Format, err
		}
		b = bufio.NewReaderSize(z, 1<<16)
	}
	if bom, _ := b.Peek(3); bytes.Equal(bom, []byte("\xef\xbb\xbf")) {
		b.Discard(3)
	}
	if o.Format == Detect {
		o.Format = detect(b)
	}
	switch o.Format {
	case JSON:
		return o.Format, readLines(b, newJSONLine(o).parse, each, bad)
	case Access:
		return o.Format, readLines(b, (&accessLine{unit: o.Unit}).parse, each, bad)
	case HAR:
		return o.Format, readHAR(b, each, bad)
	}
	return o.Format, fmt.Errorf("format %q is not known: use jsonl, clf or har", o.Format)
}

var harBegins = regexp.MustCompile(`^\s*\{\s*"log"\s*:\s*\{`)

// detect returns the format of a log by its beginning.
func detect(b *bufio.Reader) Format {
	head, _ := b.Peek(4096)
	switch trimmed := bytes.TrimLeft(head, " \t\r\n"); {
	case harBegins.Match(head):
		return HAR
	case len(trimmed) > 0 && trimmed[0] == '{':
		return JSON
	}
	return Access
}

func readLines(b *bufio.Reader, parse func([]byte) (Request, error), each func(Request) error, bad func(*LineError) error) error {
	lines := bufio.NewScanner(b)
	lines.Buffer(make([]byte, 1<<16), mostLine)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		r, err := parse(line)
		if err == nil {
			err = each(r)
		} else {
			err = bad(&LineError{n, err})
		}
		if err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return &LineError{n + 1, fmt.Errorf("it is longer than %d MB", mostLine>>20)}
	}
	return lines.Err()
}

// A jsonLine parses lines of JSON.
type jsonLine struct {
	Options
	times, durations []string
}

func newJSONLine(o Options) *jsonLine {
	j := &jsonLine{o, timeNames, durationNames}
	if o.Time != "" {
		j.times = []string{o.Time}
	}
	if o.Duration != "" {
		j.durations = []string{o.Duration}
	}
	return j
}

func (j *jsonLine) parse(line []byte) (r Request, err error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return r, fmt.Errorf("it is not a JSON object: %w", err)
	}
	name, value := first(object, j.times)
	if value == nil {
		return r, fmt.Errorf("it has no time: it needs the field %s", strings.Join(j.times, ", "))
	}
	if r.At, err = parseTime(value); err != nil {
		return r, fmt.Errorf("field %s: %w", name, err)
	}
	r.Took = -1
	if name, value = first(object, j.durations); value != nil {
		if r.Took, err = parseDuration(text(value), j.unit(name)); err != nil {
			return r, fmt.Errorf("field %s: %w", name, err)
		}
	} else if j.Duration != "" {
		return r, fmt.Errorf("it has no field %s", j.Duration)
	}
	for _, field := range j.Amounts {
		_, value := first(object, []string{field})
		n, err := strconv.ParseFloat(text(value), 64)
		if value == nil || err != nil || !(n >= 0 && n <= 1e15) {
			return r, fmt.Errorf("field %s is %s: it must be a number of at least 0", field, orNone(value))
		}
		r.Amount = append(r.Amount, int64(math.Ceil(n)))
	}
	return r, nil
}

// first returns the first of the fields that an object has.
func first(object map[string]json.RawMessage, names []string) (string, json.RawMessage) {
	for _, name := range names {
		if value, ok := object[name]; ok {
			return name, value
		}
		if outer, inner, ok := strings.Cut(name, "."); ok {
			var nested map[string]json.RawMessage
			if json.Unmarshal(object[outer], &nested) == nil {
				if _, value := first(nested, []string{inner}); value != nil {
					return name, value
				}
			}
		}
	}
	return "", nil
}

// text returns a value without its quotes.
func text(value json.RawMessage) string {
	if len(value) > 0 && value[0] == '"' {
		var s string
		if json.Unmarshal(value, &s) == nil {
			return s
		}
	}
	return string(value)
}

func orNone(value json.RawMessage) string {
	if value == nil {
		return "not there"
	}
	return string(value)
}

// unit returns the unit of numbers in a field.
func (j *jsonLine) unit(name string) time.Duration {
	switch {
	case j.Unit != 0:
		return j.Unit
	case strings.HasSuffix(name, "_ms"), strings.HasSuffix(name, "Ms"):
		return time.Millisecond
	case strings.HasSuffix(name, "_us"), strings.HasSuffix(name, "Us"):
		return time.Microsecond
	case strings.HasSuffix(name, "_ns"), strings.HasSuffix(name, "Ns"):
		return time.Nanosecond
	}
	return time.Second
}

// parseTime parses RFC 3339, or Unix time in seconds, milliseconds, microseconds or nanoseconds, which
// its size tells.
func parseTime(value json.RawMessage) (int64, error) {
	s := text(value)
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05Z0700"} {
		if t, err := time.Parse(layout, s); err == nil && isTime(t) {
			return t.UnixNano(), nil
		}
	}
	if n, ok := parseUnix(s); ok && isTime(time.Unix(0, n)) {
		return n, nil
	}
	return 0, fmt.Errorf("%s is no time: write RFC 3339, as 2006-01-02T15:04:05Z, or Unix time", shortened(s))
}

// parseUnix parses Unix time, in nanoseconds.
func parseUnix(s string) (ns int64, ok bool) {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !(x >= 0 && x < 7e18) {
		return 0, false
	}
	unit := int64(time.Second)
	for _, u := range []float64{1e11, 1e14, 1e17} {
		if x >= u {
			unit /= 1000
		}
	}
	whole, fraction, _ := strings.Cut(s, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	part, partErr := strconv.ParseFloat("0."+fraction+"0", 64)
	if err != nil || partErr != nil || part >= 1 || strings.ContainsAny(fraction, "eE") { // such as 1.7e9
		return int64(math.Round(x*float64(unit)/1000)) * 1000, true
	}
	return n*unit + int64(math.Round(part*float64(unit))), true
}

// parseDuration parses a number of units, or a length such as 12ms.
func parseDuration(s string, unit time.Duration) (time.Duration, error) {
	if n, err := strconv.ParseFloat(s, 64); err == nil && n >= 0 && n*float64(unit) <= float64(mostTook) {
		return time.Duration(math.Round(n * float64(unit))), nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 && d <= mostTook {
		return d, nil
	}
	return 0, fmt.Errorf("%s is no duration: write a number of at least 0, or a length such as 12ms, of at most 100 years", shortened(s))
}

// shortened returns a value for an error.
func shortened(s string) string {
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	return strconv.Quote(s)
}

// An accessLine parses lines of access logs.
type accessLine struct {
	unit   time.Duration
	second []byte // the text of the last time
	at     int64
}

var errNoAccess = errors.New(`it is no line of an access log: it needs [02/Jan/2006:15:04:05 -0700] "GET / HTTP/1.1" 200 5`)

func (a *accessLine) parse(line []byte) (r Request, err error) {
	open := bytes.IndexByte(line, '[')
	if open < 0 {
		return r, errNoAccess
	}
	length := bytes.IndexByte(line[open:], ']')
	if length < 0 {
		return r, errNoAccess
	}
	stamp, rest := line[open+1:open+length], line[open+length+1:]
	if !bytes.Equal(stamp, a.second) {
		t, err := time.Parse("02/Jan/2006:15:04:05 -0700", string(stamp))
		if err != nil || !isTime(t) {
			return r, fmt.Errorf("%s is no time: it must be as 02/Jan/2006:15:04:05 -0700", shortened(string(stamp)))
		}
		a.second, a.at = append(a.second[:0], stamp...), t.UnixNano()
	}
	r.At, r.Took = a.at, -1
	rest, ok := skipQuoted(bytes.TrimLeft(rest, " "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 2 {
		return r, errNoAccess
	}
	if status, err := strconv.Atoi(string(fields[0])); err != nil || status < 100 || status > 999 {
		return r, errNoAccess
	}
	// nginx writes $request_time in seconds with a point, and the line when the request ends. Apache's
	// %D and %T have none, and its line has the time of the start.
	last := string(fields[len(fields)-1])
	if inner, ok := strings.CutPrefix(last, `"`); ok {
		last = strings.TrimSuffix(inner, `"`)
	}
	seconds := strings.Contains(last, ".")
	if took, err := parseDuration(last, cmp.Or(a.unit, time.Second)); err == nil && len(fields) > 2 && (seconds || a.unit != 0) {
		if r.Took = took; seconds {
			r.At -= int64(took)
		}
		if r.At < 0 {
			return r, fmt.Errorf("its duration %s begins before 1970", shortened(last))
		}
	}
	return r, nil
}

// skipQuoted returns what follows a quoted text.
func skipQuoted(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '"' {
		return nil, false
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return b[i+1:], true
		}
	}
	return nil, false
}

// readHAR reads the entries of a HAR one by one.
func readHAR(b *bufio.Reader, each func(Request) error, bad func(*LineError) error) error {
	bound := &bounded{b, mostEntry}
	d := json.NewDecoder(bound)
	if err := enter(d, "log"); err != nil {
		return err
	}
	if err := enter(d, "entries"); err != nil {
		return err
	}
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.New("the HAR has no list log.entries")
	}
	for n := 1; d.More(); n++ {
		bound.left = mostEntry
		var entry struct {
			StartedDateTime json.RawMessage `json:"startedDateTime"`
			Time            float64         `json:"time"` // milliseconds
		}
		var raw json.RawMessage
		switch err := d.Decode(&raw); {
		case errors.Is(err, errLongEntry):
			return &LineError{n, err}
		case err != nil:
			return &LineError{n, fmt.Errorf("the entry is not JSON: %w", err)}
		}
		var r Request
		err := json.Unmarshal(raw, &entry)
		if err == nil {
			r.At, err = parseTime(entry.StartedDateTime)
		}
		if err == nil {
			r.Took, err = parseDuration(strconv.FormatFloat(max(0, entry.Time), 'g', -1, 64), time.Millisecond)
		}
		if err == nil {
			err = each(r)
		} else {
			err = bad(&LineError{n, err})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A bounded is a reader of a limited number of bytes, which is set anew for each entry.
type bounded struct {
	io.Reader
	left int64
}

var errLongEntry = fmt.Errorf("it is longer than %d MB", mostEntry>>20)

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLongEntry
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// enter reads an object up to the value of a key.
func enter(d *json.Decoder, key string) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("it is no HAR: it has no object with the key " + key)
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		if t == key {
			return nil
		}
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			return err
		}
	}
	return errors.New("it is no HAR: it has no key " + key)
}

// A Sorter puts requests into order that are out of order by a number of places at most.
type Sorter struct {
	each    func(Request) error
	places  int
	waiting []Request
	last    int64
	// Moved is how many requests were further out of order. They were moved to the time of the request
	// that was already behind them.
	Moved int64
}

// NewSorter returns a Sorter that keeps up to twice as many requests.
func NewSorter(places int, each func(Request) error) *Sorter {
	return &Sorter{each: each, places: places, last: math.MinInt64}
}

// Add adds a request.
func (s *Sorter) Add(r Request) error {
	if s.waiting = append(s.waiting, r); len(s.waiting) <= 2*s.places {
		return nil
	}
	return s.pass(len(s.waiting) - s.places)
}

// Flush passes on what is left.
func (s *Sorter) Flush() error { return s.pass(len(s.waiting)) }

// pass passes on the first n requests.
func (s *Sorter) pass(n int) error {
	slices.SortStableFunc(s.waiting, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	for _, r := range s.waiting[:n] {
		if r.At < s.last {
			r.At = s.last
			s.Moved++
		}
		s.last = r.At
		if err := s.each(r); err != nil {
			return err
		}
	}
	s.waiting = slices.Delete(s.waiting, 0, n)
	return nil
}
