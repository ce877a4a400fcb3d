package answers

import (
	"cmp"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/internal/retryafter"
)

const maxReadings = 32 // of one response, which bounds memory: no provider reports more

func unitOrRequests(unit string) string { return cmp.Or(unit, "requests") }

// fields returns the Fields with one value each, in the order of fieldNames.
func (q *Quota) fields() [7]*Field {
	return [...]*Field{&q.Limit, &q.Remaining, &q.Used, &q.Share, &q.Rate, &q.Length, &q.Reset}
}

// read appends the readings of q.
func (q *Quota) read(e *event, to []Reading) []Reading {
	base := Reading{Name: q.Name, Unit: unitOrRequests(q.Unit), Window: q.Window, Full: q.Full, Authoritative: q.Authoritative}
	for _, f := range q.fields() {
		base.FromBody = base.FromBody || f.inBody()
	}
	if q.NameIn != "" {
		base.Name = cmp.Or(e.Header.Get(q.NameIn), q.Name)
	}
	if q.UnitIn != "" {
		base.Unit = cmp.Or(e.Header.Get(q.UnitIn), base.Unit)
	}
	var found []Reading
	switch {
	case q.Read != nil:
		for _, r := range q.Read(e.Response) {
			to = add(to, r.bounded(base, e), &base)
		}
		return to
	case q.Combined.Header != "":
		found = q.combined(e, base)
	}
	if found == nil {
		return add(to, q.plain(e, base), &base)
	}
	for i := range found {
		to = add(to, found[i], &base)
	}
	return to
}

// bounded names, bounds and marks a reading that a Quota.Read returned, as the Fields do.
func (r Reading) bounded(base Reading, e *event) Reading {
	name := r.Name
	r.Name = base.Name
	r.addName(name)
	r.Unit = cmp.Or(r.Unit, base.Unit)
	for _, n := range []*int64{&r.Limit, &r.Remaining, &r.Used, &r.Share} {
		*n = min(max(*n, 0), maxCount)
	}
	if r.Window <= 0 || r.Window >= maxTime {
		r.Window = base.Window
	}
	if r.Slack = e.slack; r.Has&HasReset == 0 || r.Reset < 0 || r.Reset >= maxTime {
		r.Has &^= HasReset
		r.Reset, r.Slack = 0, 0
	}
	r.Reset = retryafter.Micros(r.Reset)
	r.Full, r.Authoritative, r.FromBody = r.Full || base.Full, r.Authoritative || base.Authoritative, r.FromBody || base.FromBody
	return r
}

// add appends r, unless it contains no more than base.
func add(to []Reading, r Reading, base *Reading) []Reading {
	if r.Limit == 0 && r.Has == 0 && r.Window == base.Window || len(to) == maxReadings {
		return to
	}
	switch {
	case r.Limit == 0:
	case r.Has&HasRemaining != 0:
		r.Remaining = min(r.Remaining, r.Limit)
	case r.Has&HasUsed != 0:
		r.Remaining = max(r.Limit-r.Used, 0)
		r.Has |= HasRemaining
	}
	return append(to, r)
}

// plain reads the Fields with one value each.
func (q *Quota) plain(e *event, r Reading) Reading {
	empty := r
	var known bool
	if r.Limit, known = q.Limit.count(e, down); known && r.Limit == 0 {
		return empty
	}
	r.set(HasRemaining, &r.Remaining, &q.Remaining, e, down)
	r.set(HasUsed, &r.Used, &q.Used, e, up)
	if n, ok := q.Share.Format.share(q.Share.text(e)); ok {
		r.Share = n
		r.Has |= HasShare
	}
	q.readTimes(e, &r)
	return r
}

// set reads a count into to.
func (r *Reading) set(fact Facts, to *int64, from *Field, e *event, round rounding) {
	if n, ok := from.count(e, round); ok {
		*to = n
		r.Has |= fact
	}
}

// readTimes reads the window and the reset.
func (q *Quota) readTimes(e *event, r *Reading) {
	if d, ok := q.Length.wait(e); ok && d > 0 && d < maxTime {
		r.Window = d
	}
	if rate, ok := fraction(q.Rate.text(e)); ok {
		if one := (Reading{Limit: 1}); q.Limit != (Field{}) {
			r.setRate(rate)
		} else if one.setRate(rate); one.Window > 0 {
			r.Limit, r.Window = 1, one.Window
		}
	}
	if d, ok := q.Reset.wait(e); ok && d < maxTime {
		r.setReset(d, q.Reset.Format.absolute(), e)
	}
}

// setRate sets the window to the time in which the rate restores the limit. The rate is in
// millionths of a unit a second.
func (r *Reading) setRate(rate int64) {
	hi, lo := bits.Mul64(uint64(r.Limit), 1_000_000*uint64(time.Second))
	if rate <= 0 || hi >= uint64(rate) {
		return
	}
	if window, _ := bits.Div64(hi, lo, uint64(rate)); window < uint64(maxTime) {
		r.Window = time.Duration(window)
	}
}

// setReset sets the time left. A date goes by the provider's clock, and the Date of the response
// has a resolution of one second.
func (r *Reading) setReset(d time.Duration, date bool, e *event) {
	r.Reset, r.Slack = d, e.slack
	if date && e.dated {
		r.Slack += time.Second
	}
	r.Has |= HasReset
}

// combined reads a header with several values, or every header with a prefix.
func (q *Quota) combined(e *event, base Reading) (rs []Reading) {
	prefix, many := strings.CutSuffix(q.Combined.Header, "*")
	if !many {
		return q.Combined.Format.readings(e.Header.Values(prefix), "", base, e)
	}
	prefix = http.CanonicalHeaderKey(prefix)
	var names []string
	for name := range e.Header {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names) // the order of a map is random
	for _, name := range names[:min(len(names), maxReadings)] {
		rs = append(rs, q.Combined.Format.readings(e.Header[name], strings.ToLower(name[len(prefix):]), base, e)...)
	}
	return rs
}

// readings parses the lines of one header. In rest is the part of its name that "*" stands for.
func (f Format) readings(lines []string, rest string, r Reading, e *event) []Reading {
	if len(lines) == 0 {
		return nil
	}
	v, ok := strings.Trim(lines[0], " \t"), false
	switch f {
	case UsedOfLimit:
		r.addName(rest)
		ok = r.usedOfLimit(v)
	case UsedPerWindow:
		if r.Window, ok = window(rest); ok {
			r.Used, ok = count(v, up)
			r.Has |= HasUsed
		}
	case NamedUses:
		return namedUses(v, r)
	case Pairs:
		r.addName(rest)
		return pairs(lines, r, e)
	}
	if !ok {
		return nil
	}
	return []Reading{r}
}

// addName appends a name to the quota's name.
func (r *Reading) addName(name string) {
	if r.Name != "" && name != "" {
		name = r.Name + "/" + name
	}
	r.Name = cmp.Or(name, r.Name)
}

// usedOfLimit parses "32/40".
func (r *Reading) usedOfLimit(v string) (ok bool) {
	used, limit, _ := strings.Cut(v, "/")
	limit, _, _ = strings.Cut(limit, "(")
	r.Limit, ok = count(limit, down)
	if !ok || r.Limit == 0 {
		return false
	}
	r.Used, ok = count(used, up)
	r.Has |= HasUsed
	return ok
}

// namedUses parses "api-usage=25/5000; per-app-api-usage=17/250(appName=a)".
func namedUses(v string, base Reading) (rs []Reading) {
	for part := range strings.SplitSeq(v, ";") {
		r := base
		name, uses, _ := strings.Cut(part, "=")
		r.addName(strings.Trim(name, " \t"))
		if r.usedOfLimit(uses) && len(rs) < maxReadings {
			rs = append(rs, r)
		}
	}
	return rs
}

// window parses Binance's intervals, such as "1m" and "10s", in lower case.
func window(v string) (time.Duration, bool) {
	units := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}
	if v == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(v[:len(v)-1], 10, 16)
	d := time.Duration(n) * units[v[len(v)-1]]
	return d, err == nil && d > 0 && d < maxTime
}

// pairs parses lists of pairs, each a key and a number. A comma separates the lists.
func pairs(lines []string, base Reading, e *event) (rs []Reading) {
	for part := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		r, rate := base, int64(0)
		ok := true
		for pair := range strings.SplitSeq(part, ";") {
			at := strings.IndexAny(pair, "=:")
			if at < 0 {
				ok = false
				break
			}
			ok = ok && r.setPair(strings.Trim(pair[:at], " \t"), strings.Trim(pair[at+1:], " \t"), &rate, e)
		}
		if r.setRate(rate); ok && r.Limit > 0 && len(rs) < maxReadings {
			rs = append(rs, r)
		}
	}
	return rs
}

// setPair sets the value of one pair, and reports whether it is valid. It ignores unknown keys.
func (r *Reading) setPair(key, v string, rate *int64, e *event) (ok bool) {
	ok = true
	switch key {
	case "b", "name":
		r.addName(v)
		r.Window = map[string]time.Duration{"per_second": time.Second, "per_minute": time.Minute, "per_hour": time.Hour, "per_day": 24 * time.Hour}[v]
	case "q", "limit", "total", "burst":
		r.Limit, ok = count(v, down)
	case "r", "remaining":
		r.Remaining, ok = count(v, down)
		r.Has |= HasRemaining
	case "rate":
		*rate, ok = fraction(v)
	case "t", "reset", "resets":
		var d time.Duration
		if d, ok = retryafter.Seconds(v); ok && d < maxTime {
			r.setReset(d, false, e)
		}
	}
	return ok
}
