package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A record is an item of a file: a line, or a record of CSV or JSON lines.
type record struct {
	key   string
	line  int      // at which it begins, from 1
	text  string   // the whole record, without the end of its line
	value any      // of CSV a map[string]string, of JSON what it decodes to; nil for a line
	args  []string // of its command
	err   error    // why it cannot be used
	calls int      // of the command
}

// field returns a field of a record, or its whole text for an empty name.
func (r *record) field(name string) (string, error) {
	if r.err != nil || name == "" {
		return r.text, r.err
	}
	if columns, ok := r.value.(map[string]string); ok {
		return columns[name], nil
	}
	value, ok := lookUp(r.value, name)
	if !ok {
		object, _ := r.value.(map[string]any)
		if object == nil {
			return "", fmt.Errorf("{%s} needs an object, such as {\"id\": 7}: the line has %s", name, shorten(r.text))
		}
		fields := slices.Sorted(maps.Keys(object))
		return "", fmt.Errorf("it has no field %s: it has %s", name, strings.Join(fields, ", "))
	}
	switch v := value.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	}
	text, err := json.Marshal(value)
	return string(text), err
}

// lookUp returns the value that a path such as user.id or items.0.id leads to.
func lookUp(value any, path string) (any, bool) {
	step, rest, more := strings.Cut(path, ".")
	var next any
	switch v := value.(type) {
	case map[string]any:
		if whole, ok := v[path]; ok {
			return whole, true
		}
		var ok bool
		if next, ok = v[step]; !ok {
			return nil, false
		}
	case []any:
		i, err := strconv.Atoi(step)
		if err != nil || i < 0 || i >= len(v) {
			return nil, false
		}
		next = v[i]
	default:
		return nil, false
	}
	if !more {
		return next, true
	}
	return lookUp(next, rest)
}

// A reader reads the records of a file.
type reader struct {
	in       io.Reader
	name     string // of the file, for errors
	records  func() iter.Seq2[*record, error]
	columns  []string // of CSV; empty for lines; nil if each record may have others
	keyField string
}

// newReader returns a reader of a format. It reads the header of CSV.
func newReader(in io.Reader, name string, f *batchFlags) (*reader, error) {
	r := &reader{in: in, name: name, keyField: f.keyField}
	switch {
	case f.csv && f.jsonl:
		return nil, usagef("--csv and --jsonl are two formats: leave one out")
	case f.csv:
		return r, r.openCSV()
	case f.jsonl:
		r.records = r.jsonLines
	case f.keyField != "":
		return nil, usagef("--key-field needs --csv or --jsonl: a line has no fields")
	default:
		r.columns, r.records = []string{}, r.lines
	}
	return r, nil
}

const byteOrderMark = "\ufeff"

// lines yields the lines that are not blank, and an error at the end if the file cannot be read.
func (r *reader) lines() iter.Seq2[*record, error] {
	return func(yield func(*record, error) bool) {
		in := bufio.NewScanner(r.in)
		in.Buffer(nil, mostLine)
		n := 1
		for ; in.Scan(); n++ {
			text := in.Text()
			if n == 1 {
				text = strings.TrimPrefix(text, byteOrderMark)
			}
			if strings.TrimSpace(text) != "" && !yield(&record{line: n, text: text}, nil) {
				return
			}
		}
		switch err := in.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			yield(nil, fmt.Errorf("%s: line %d has more than %d MB", r.name, n, mostLine>>20))
		case err != nil:
			yield(nil, fmt.Errorf("%s: %w", r.name, err))
		}
	}
}

// jsonLines yields the lines with their values.
func (r *reader) jsonLines() iter.Seq2[*record, error] {
	return func(yield func(*record, error) bool) {
		for rec, err := range r.lines() {
			if err == nil {
				rec.value, rec.err = decodeJSON(rec)
			}
			if !yield(rec, err) {
				return
			}
		}
	}
}

// decodeJSON returns the value of a line, whose numbers keep their text.
func decodeJSON(rec *record) (value any, err error) {
	d := json.NewDecoder(strings.NewReader(rec.text))
	d.UseNumber()
	if err = d.Decode(&value); err == nil {
		if _, err = d.Token(); err == io.EOF {
			return value, nil
		}
		err = errors.New("there is more after its value")
	}
	return nil, fmt.Errorf("line %d is not JSON: %w", rec.line, err)
}

// openCSV reads the header.
func (r *reader) openCSV() error {
	in := bufio.NewReader(r.in)
	if mark, _ := in.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		_, _ = in.Discard(len(byteOrderMark))
	}
	c := csv.NewReader(in)
	header, err := c.Read()
	switch {
	case err == io.EOF:
		return usagef("%s is empty: --csv needs a first line with the names of the columns", r.name)
	case err != nil:
		return fmt.Errorf("%s: %w", r.name, err)
	case r.keyField != "" && !slices.Contains(header, r.keyField):
		return usagef("--key-field is %q: %s has the columns %s", r.keyField, r.name, strings.Join(header, ", "))
	case isTwice(r.keyField, header):
		return usagef("--key-field is %q: %s has two columns of that name: give them different names", r.keyField, r.name)
	}
	r.columns = header
	r.records = func() iter.Seq2[*record, error] { return func(yield func(*record, error) bool) { r.csv(c, yield) } }
	return nil
}

func (r *reader) csv(c *csv.Reader, yield func(*record, error) bool) {
	for {
		values, err := c.Read()
		var wrong *csv.ParseError
		switch {
		case err == io.EOF:
			return
		case err != nil && !errors.As(err, &wrong):
			yield(nil, fmt.Errorf("%s: %w", r.name, err))
			return
		}
		rec := &record{text: csvText(values)}
		if wrong != nil {
			rec.line, rec.err = wrong.StartLine, wrong
		} else {
			rec.line, _ = c.FieldPos(0)
			columns := make(map[string]string, len(values))
			for i, v := range values {
				columns[r.columns[i]] = v
			}
			rec.value = columns
		}
		if !yield(rec, nil) {
			return
		}
	}
}

// csvText returns a record of CSV without the end of its line.
func csvText(values []string) string {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(values) // a Buffer takes all
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// A namer gives records their keys. A key is the same in a later run as long as the file has the same records
// before and with that text, wherever they are.
type namer struct {
	field string
	seen  map[[8]byte]int // how often, by the hash of a key
}

// name sets the key of a record: its key field, or else its text. The second record with the same text has
// " #2" behind it. Two records with the same key field are a mistake.
func (n *namer) name(r *record) {
	text := r.text
	if n.field != "" && r.err == nil {
		if text, r.err = r.field(n.field); r.err == nil && text == "" {
			r.err = fmt.Errorf("line %d has no %s", r.line, n.field)
		}
	}
	if text == "" {
		text = fmt.Sprintf("line %d", r.line)
	}
	sum := sha256.Sum256([]byte(text))
	hash := [8]byte(sum[:])
	n.seen[hash]++
	if r.key = text; !isShort(text) {
		r.key = shorten(text) + " " + hex.EncodeToString(hash[:])
	}
	if n.seen[hash] == 1 {
		return
	}
	r.key += " #" + strconv.Itoa(n.seen[hash])
	if n.field != "" && r.err == nil {
		r.err = fmt.Errorf("line %d has the %s %s of an earlier line", r.line, n.field, shorten(text))
	}
}

// mostKey is how many characters of a text are in its key.
const mostKey = 48

// isShort reports whether a text is a key as it is: it cannot be taken for another key.
func isShort(text string) bool {
	return utf8.ValidString(text) && utf8.RuneCountInString(text) <= mostKey && !strings.Contains(text, " #") &&
		!strings.ContainsFunc(text, unicode.IsControl)
}

// shorten returns the beginning of a text for a message.
func shorten(text string) string {
	text = plain(strings.ToValidUTF8(text, "?"))
	if runes := []rune(text); len(runes) > mostKey {
		return string(runes[:mostKey-1]) + "…"
	}
	return text
}

// items yields the records with their keys and arguments, until the context ends. An error of the file goes to failed.
func (r *reader) items(ctx context.Context, t template, failed func(error)) iter.Seq2[string, *record] {
	records := make(chan *record, 64)
	go func() { // a read that never returns ends with the process
		defer close(records)
		n := namer{r.keyField, map[[8]byte]int{}}
		for rec, err := range r.records() {
			if err != nil {
				failed(err)
				return
			}
			if n.name(rec); rec.err == nil {
				rec.args, rec.err = t.expand(rec)
			}
			select {
			case records <- rec:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func(yield func(string, *record) bool) {
		for {
			select {
			case rec, ok := <-records:
				if !ok || !yield(rec.key, rec) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// count returns how many records there are.
func (r *reader) count() (n int64) {
	for _, err := range r.records() {
		if err == nil {
			n++
		}
	}
	return n
}
