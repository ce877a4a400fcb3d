package fakeapi

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A request is a request whose parts selectors name.
type request struct {
	*http.Request
	api    *API
	output func(most int64) int64 // see Server.Output
	now    int64                  // microseconds since the epoch, by the API's clock
	body   []byte
	json   any // nil until it is needed
	form   url.Values
}

var id = regexp.MustCompile(`[0-9A-Z]`)

// value returns the part of a request that a selector names, or "":
//
//	header NAME, query NAME, path N, base N, after SEGMENT, host, method, endpoint, or body FIELD.FIELD
//
// Path N ends at a colon. Base N is path N without a version, which an at sign begins. After names the segment of the path that follows a SEGMENT.
// The endpoint is the method and the path without segments that have a digit or a capital letter.
func (r *request) value(selector string) string {
	kind, name, _ := strings.Cut(selector, " ")
	switch kind {
	case "header":
		return r.Header.Get(name)
	case "query":
		return r.URL.Query().Get(name)
	case "host":
		return r.URL.Host
	case "method":
		return r.Method
	case "path":
		i, err := strconv.Atoi(name)
		if parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/"); err == nil && i < len(parts) {
			segment, _, _ := strings.Cut(parts[i], ":")
			return segment
		}
		return ""
	case "base":
		base, _, _ := strings.Cut(r.value("path "+name), "@")
		return base
	case "after":
		_, rest, _ := strings.Cut(r.URL.Path, "/"+name+"/")
		segment, _, _ := strings.Cut(rest, "/")
		return segment
	case "endpoint":
		parts := strings.Split(r.URL.Path, "/")
		for i, p := range parts {
			if i > 1 && id.MatchString(p) {
				parts[i] = "*"
			}
		}
		return r.Method + " " + strings.Join(parts, "/")
	case "body":
		switch v := r.field(name).(type) {
		case nil:
			return ""
		case string:
			return v
		case float64:
			return strconv.FormatFloat(v, 'f', -1, 64)
		default:
			text, _ := json.Marshal(v)
			return string(text)
		}
	}
	panic(fmt.Sprintf("%s: selector %q", r.api.Name, selector))
}

// field returns a field of the body, or nil.
func (r *request) field(path string) any {
	if r.json == nil && r.form == nil {
		if json.Unmarshal(r.body, &r.json) != nil {
			r.form, _ = url.ParseQuery(string(r.body))
		}
	}
	if r.form != nil {
		if !r.form.Has(path) {
			return nil
		}
		return r.form.Get(path)
	}
	v := r.json
	for _, name := range strings.Split(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// cost returns what must be free for the request, and what it is charged in the end.
func (r *request) cost(l *Limit) (cost, settled int64) {
	text, end := l.Cost, l.Settled
	for _, c := range l.Costs {
		if _, ok := c.fits(r); ok {
			text, end = c.Cost, c.Settled
			break
		}
	}
	cost = 1
	if text != "" {
		cost = r.amount(text)
	}
	if end == "" {
		return cost, cost
	}
	return cost, r.amount(end)
}

// amount returns the value of an expression: numbers and selectors, joined by + and *, from left to
// right, and
//
//	text FIELD    tokens of the texts in the body, or in a field of it: 15 for each sentence of Fill
//	words FIELD   words of these texts
//	runes/4 FIELD a quarter of the characters of each of these texts, rounded up
//	output        output tokens of the answer: see Server.Output
//	age SELECTOR  milliseconds since a time in milliseconds, 0 if there is none
//	count FIELD   elements of an array in the body
//	items SELECTOR parts of a list with commas, such as query fields
//	A or B        B if A is 0
//	A max B       the greater one
func (r *request) amount(expression string) (sum int64) {
	for _, term := range strings.Split(expression, " + ") {
		product := int64(1)
		for _, factor := range strings.Split(term, " * ") {
			product *= r.factor(factor)
		}
		sum += product
	}
	return sum
}

func (r *request) factor(f string) int64 {
	if a, b, ok := strings.Cut(f, " or "); ok {
		if n := r.factor(a); n != 0 {
			return n
		}
		return r.factor(b)
	}
	if a, b, ok := strings.Cut(f, " max "); ok {
		return max(r.factor(a), r.factor(b))
	}
	if n, err := strconv.ParseInt(f, 10, 64); err == nil {
		return n
	}
	switch kind, name, _ := strings.Cut(f, " "); kind {
	case "text":
		n, sentence := r.texts(name, func(s string) int { return len(s) }), int64(len(sentence))
		return (n*15 + sentence - 1) / sentence
	case "words":
		return r.texts(name, func(s string) int { return len(strings.Fields(s)) })
	case "runes/4":
		return r.texts(name, func(s string) int { return (utf8.RuneCountInString(s) + 3) / 4 })
	case "output":
		return r.output(r.factor(r.api.MaxOutput))
	case "age":
		if at := r.factor(name); at > 0 {
			return r.now/1000 - at
		}
		return 0
	case "count":
		list, _ := r.field(name).([]any)
		return int64(len(list))
	case "items":
		list := r.value(name)
		if list == "" {
			return 0
		}
		return int64(strings.Count(list, ",") + 1)
	default:
		v, _ := strconv.ParseFloat(r.value(f), 64)
		return int64(v)
	}
}

// texts returns the sum of the sizes of the texts in a field of the body, or in all of it.
func (r *request) texts(field string, size func(string) int) int64 {
	v := r.field(field)
	if field == "" {
		v = r.json
	}
	return int64(sizes(v, size))
}

// sizes returns the sum of the sizes of the texts of messages, and of their names.
func sizes(v any, size func(string) int) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			if name != "model" && name != "role" && name != "type" {
				n += sizes(x, size)
			}
		}
	case []any:
		for _, x := range v {
			n += sizes(x, size)
		}
	case string:
		n = size(v)
	}
	return n
}

var placeholder = regexp.MustCompile(`\$\{([^}]*)\}`)

// fill replaces the placeholders of a template. It reports false if one names a limit that does not
// count the request.
//
//	${LIMIT.limit} (${LIMIT.limit|,} as 1,000) ${LIMIT.left} (${LIMIT.left|k} in thousands) ${LIMIT.used} ${LIMIT.cost}
//	${LIMIT.wait|FORM}    until the request would be admitted
//	${LIMIT.reset|FORM}   until all of the limit is free
//	${now|FORM} ${=EXPRESSION} ${SELECTOR} ${hash SELECTOR} (eight digits)
//
// Without a name, LIMIT is the refusing one. See format for FORM.
func (a *answer) fill(template string) (text string, ok bool) {
	ok = true
	text = placeholder.ReplaceAllStringFunc(template, func(p string) string {
		p, form, _ := strings.Cut(p[2:len(p)-1], "|")
		if p == "now" {
			return a.format(0, form)
		}
		if expression, found := strings.CutPrefix(p, "="); found {
			return strconv.FormatInt(a.amount(expression), 10)
		}
		if selector, found := strings.CutPrefix(p, "hash "); found {
			return fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(a.value(selector))))
		}
		name, what, found := strings.Cut(p, ".")
		if !found {
			return a.value(p)
		}
		c := a.limit(name)
		if c == nil {
			if !slices.ContainsFunc(a.api.Limits, func(l *Limit) bool { return l.ID == name }) {
				panic(fmt.Sprintf("%s: placeholder %q", a.api.Name, p))
			}
			ok = false
			return ""
		}
		return a.number(c, what, form)
	})
	return text, ok
}

// number returns what a placeholder of a limit stands for.
func (a *answer) number(c *counted, what, form string) string {
	left := c.left(a.now)
	switch what {
	case "limit":
		if form == "," {
			return thousands(capacity(c.tier))
		}
		return strconv.FormatInt(capacity(c.tier), 10)
	case "left":
		if form == "k" {
			return strconv.FormatInt((left+500)/1000*1000, 10)
		}
		return strconv.FormatInt(left, 10)
	case "used":
		return strconv.FormatInt(capacity(c.tier)-left, 10)
	case "share":
		return strconv.FormatInt((capacity(c.tier)-left)*100/capacity(c.tier), 10)
	case "cost":
		return strconv.FormatInt(c.cost, 10)
	case "settled":
		return strconv.FormatInt(c.settled, 10)
	case "wait":
		return a.format(a.wait, form)
	case "reset":
		at, _ := c.earliest(a.now, capacity(c.tier))
		return a.format(time.Duration(at-a.now)*time.Microsecond, form)
	}
	panic(fmt.Sprintf("%s: placeholder %q", a.api.Name, what))
}

// limit returns the limit with an id that counts the request, or the refusing one.
func (a *answer) limit(name string) *counted {
	for i := range a.counted {
		if c := &a.counted[i]; c.ID == name || name == "" && a.refused != nil && i == a.by {
			return c
		}
	}
	return nil
}

// A form is how a time is written: as a number of units, rounded up.
type form struct {
	unit     time.Duration
	decimals int
	epoch    bool // since 1970, and not from now on
}

var forms = map[string]form{
	"s": {time.Second, 0, false}, "s2": {time.Second, 2, false}, "s3": {time.Second, 3, false},
	"unix": {time.Second, 0, true}, "unix3": {time.Second, 3, true}, "unixms": {time.Millisecond, 0, true},
}

// format writes a time from now on in one of the forms, or as dur (as Go does), rfc3339 or http.
func (a *answer) format(d time.Duration, as string) string {
	at := time.UnixMicro(a.now).Add(d)
	second := at.Add(time.Second - 1).UTC().Truncate(time.Second)
	switch as {
	case "dur":
		return (d + time.Millisecond - 1).Truncate(time.Millisecond).String()
	case "rfc3339":
		return second.Format(time.RFC3339)
	case "http":
		return second.Format(http.TimeFormat)
	}
	f, ok := forms[as]
	if !ok {
		panic(fmt.Sprintf("%s: form %q", a.api.Name, as))
	}
	if f.epoch {
		d = time.Duration(at.UnixNano())
	}
	parts := time.Duration(math.Pow10(f.decimals))
	part := f.unit / parts
	return strconv.FormatFloat(float64((d+part-1)/part)/float64(parts), 'f', f.decimals, 64)
}

// sentence is 14 words and a period: 15 tokens in the vocabularies of today's models.
const sentence = "The quick brown fox jumps over the lazy dog near the old river bank. "

// Fill replaces ${worker}, ${n}, ${n%K}, ${words K}, a text of K words, and ${list K}, K empty objects
// of a JSON array, in the text of Traffic.
func Fill(text string, worker, n int) string {
	return placeholder.ReplaceAllStringFunc(text, func(p string) string {
		p = p[2 : len(p)-1]
		if p == "worker" {
			return strconv.Itoa(worker)
		}
		if count, ok := strings.CutPrefix(p, "words "); ok {
			k, _ := strconv.Atoi(count)
			return strings.Repeat(sentence, k/14+1)
		}
		if count, ok := strings.CutPrefix(p, "list "); ok {
			k, _ := strconv.Atoi(count)
			return strings.TrimSuffix(strings.Repeat("{},", k), ",")
		}
		number := n
		if _, divisor, ok := strings.Cut(p, "%"); ok {
			k, _ := strconv.Atoi(divisor)
			number %= k
		}
		return strconv.Itoa(number)
	})
}

// thousands writes a number such as 1,000.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
