package answers

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/apithrottle/throttle/internal/jsonpath"
)

// Validate returns all problems of the profile: fields that can't be read, and rules that can't
// match. Each problem names its field and how to correct it. A profile with problems may still be
// used; Read ignores the fields concerned. Validate looks up time zones in the system's database,
// or in package time/tzdata if the program imports it.
func (p Profile) Validate() error {
	v := validator{}
	for i := range p.Quotas {
		v.in("Quotas[%d]", i).quota(&p.Quotas[i])
	}
	for i := range p.Charges {
		v.in("Charges[%d]", i).charge(&p.Charges[i])
	}
	for i := range p.Rules {
		v.in("Rules[%d]", i).rule(&p.Rules[i])
		for j := range i {
			if p.Rules[j].covers(&p.Rules[i]) {
				v.add("", "can't match: Rules[%d] matches the same responses first; move this rule before it", j)
				break
			}
		}
	}
	for i := range p.RetryAfter {
		v.in("RetryAfter[%d]", i).field("", &p.RetryAfter[i], waits)
	}
	for i := range p.Reasons {
		v.in("Reasons[%d]", i).reason(&p.Reasons[i])
	}
	if len(v.errs) == 0 {
		return nil
	}
	return fmt.Errorf("answers: %w", errors.Join(v.errs...))
}

// A validator collects problems.
type validator struct {
	where string
	errs  []error
}

func (v *validator) in(format string, i int) *validator {
	v.where = fmt.Sprintf(format, i)
	return v
}

func (v *validator) add(field, format string, args ...any) {
	if field != "" {
		field = "." + field
	}
	v.errs = append(v.errs, fmt.Errorf(v.where+field+" "+format, args...))
}

func (v *validator) quota(q *Quota) {
	hasFields := q.Combined != Field{}
	v.field("Combined", &q.Combined, combinations)
	for i, f := range q.fields() {
		hasFields = hasFields || *f != Field{}
		v.field(fieldNames[i], f, fieldPurposes[i])
	}
	if q.Window < 0 {
		v.add("Window", "is %v: it must be at least 0", q.Window)
	}
	if hasFields && q.Read != nil {
		v.add("Read", "is set together with Fields, which are then ignored: use one Quota for each")
	}
	if !hasFields && q.Read == nil {
		v.add("", "reads nothing: set a Field or Read")
	}
}

// fieldNames and fieldPurposes describe Quota.fields.
var (
	fieldNames    = [...]string{"Limit", "Remaining", "Used", "Share", "Rate", "Length", "Reset"}
	fieldPurposes = [...]purpose{counts, counts, counts, shares, counts, waits, waits}
)

func (v *validator) charge(c *Charge) {
	switch {
	case len(c.ByStatus) > 0 && (c.Field != Field{} || c.Or != Field{}):
		v.add("ByStatus", "is set together with Fields, which are then ignored: use one Charge for each")
	case len(c.ByStatus) == 0 && (c.Field == Field{}):
		v.add("Field", "is empty: set its Header or Path, or set ByStatus")
	}
	for _, status := range slices.Sorted(maps.Keys(c.ByStatus)) {
		if n := c.ByStatus[status]; n < 0 || n > maxCount {
			v.add("ByStatus", "charges %d for status %d: it must be from 0 to %d", n, status, int64(maxCount))
		}
		if status != 0 && (status < 100 || status > 999) {
			v.add("ByStatus", "has the status %d: it must be from 100 to 999, or 0 for every other", status)
		}
	}
	if c.Times < 0 {
		v.add("Times", "is %d: it must be at least 0", c.Times)
	}
	field := c.Field
	switch {
	case field.Format == Elements && !field.inBody():
		v.add("Field", "has the Format Elements, but no Path alone: set a Path, and no Header")
	case field.Format == Elements && c.Or != Field{}:
		v.add("Or", "is set, but the Format Elements counts the values at one Path: use a Charge for each")
	}
	if field.Format == Elements || field.Format == Hash {
		field.Format = Number
	}
	v.field("Field", &field, counts)
	v.field("Or", &c.Or, counts)
}

func (v *validator) rule(r *Rule) {
	if r.Status != 0 && (r.Status < 100 || r.Status > 999) {
		v.add("Status", "is %d: it must be from 100 to 999, or 0 for any", r.Status)
	}
	if r.Method != strings.ToUpper(r.Method) {
		v.add("Method", "is %q: it must be %q, in capital letters", r.Method, strings.ToUpper(r.Method))
	}
	if r.Value != "" && r.Header == "" {
		v.add("Header", "is empty: set the header that has the Value, or clear Value")
	}
	if r.Path != "" && r.Text == "" {
		v.add("Text", `is empty: set the text that the value at Path must match, or "*" for any`)
	}
	if r.Path == "" && jsonpath.Match(r.Event, defaultEvent) {
		v.add("Event", "is %q, the type of all events of many streams: set the Path of a value that only errors have", r.Event)
	}
	if r.Kind > Other {
		v.add("Kind", "is %d: it must be Passed, Limited, Banned or Other", r.Kind)
	}
	if _, err := location(r.Until); err != nil && r.Until != "" {
		v.add("Until", `is %q: it must be an IANA time zone, such as "UTC" (%w)`, r.Until, err)
	}
	if r.Wide && r.Unit != "" {
		v.add("Unit", "is set together with Wide: clear one, because each names the scope that pauses")
	}
	for _, unit := range slices.Sorted(maps.Keys(r.Cost)) {
		if n := r.Cost[unit]; n < 0 || n > maxCount {
			v.add("Cost", "is %d %s: it must be from 0 to %d", n, unitOrRequests(unit), int64(maxCount))
		}
	}
	if r.Wait < 0 {
		v.add("Wait", "is %v: it must be at least 0", r.Wait)
	}
	v.pattern("Event", r.Event)
	v.pattern("Value", r.Value)
	v.pattern("Text", r.Text)
	v.path("Path", r.Path)
	for i := range r.Delay {
		v.field(fmt.Sprintf("Delay[%d]", i), &r.Delay[i], waits)
	}
	v.field("Asked", &r.Asked, counts)
}

func (v *validator) reason(f *Field) {
	if *f == (Field{}) {
		v.add("", "has neither a Header nor a Path: set one")
	}
	if f.After != "" {
		v.add("", "has an After: clear it, because the whole value is the reason")
	}
	v.field("", f, texts)
}

func (v *validator) pattern(field, text string) {
	if strings.Contains(strings.TrimSuffix(strings.TrimPrefix(text, "*"), "*"), "*") {
		v.add(field, "is %q: a * may only begin or end it", text)
	}
}

// A purpose is the use of a field. It determines the valid formats.
type purpose struct {
	first, last Format
	hint        string
}

var (
	counts       = purpose{Number, Number, "clear it, because this field is a Number"}
	shares       = purpose{Number, Percent, "set Percent, or clear it for a fraction"}
	waits        = purpose{Seconds, RetryAfter, "set a format of times, such as Seconds or EpochSeconds"}
	texts        = purpose{Number, Number, "clear it, because a reason is text"}
	combinations = purpose{UsedOfLimit, Pairs, "set a format of combined values, such as Pairs"}
)

func (v *validator) field(name string, f *Field, p purpose) {
	if *f == (Field{}) {
		return
	}
	switch star := strings.Contains(f.Header, "*"); {
	case f.Header == "" && f.Path == "":
		v.add(name, "has neither a Header nor a Path: set one")
	case p == combinations && f.Path != "":
		v.add(name, "has a Path: clear it and set a Header, the only place of combined values")
	case p == combinations && (f.Item != 0 || f.After != ""):
		v.add(name, "has an Item or After: clear both, because Combined reads the whole value")
	case star && p != combinations:
		v.add(name, "has the Header %q: only the Header of Combined may end in *", f.Header)
	case !star && f.Format == UsedPerWindow:
		v.add(name, "has the Header %q: it must end in *, in the place of the window", f.Header)
	}
	if f.Item < 0 {
		v.add(name, "has the Item %d: it must be at least 1, or 0 if the value is not a list", f.Item)
	}
	if f.Format < p.first || f.Format > p.last {
		v.add(name, "has the Format %v: %s", f.Format, p.hint)
	}
	v.path(strings.TrimPrefix(name+".Path", "."), f.Path)
}

func (v *validator) path(field, path string) {
	if path == "" {
		return
	}
	steps := strings.Split(path, ".")
	if len(steps) > jsonpath.MaxSteps {
		v.add(field, "has %d steps: the most is %d", len(steps), jsonpath.MaxSteps)
	}
	for _, step := range steps {
		if step == "" || step != "*" && strings.ContainsAny(step, "*[]$") {
			v.add(field, `is %q: it must be keys with points between them, and * for the elements of an array or the values of an object, as in "errors.*.code"`, path)
			return
		}
	}
}

// covers reports whether the rule matches every response that b matches.
func (r *Rule) covers(b *Rule) bool {
	return (r.Event == b.Event || r.Event == "*" && b.Event != "") && (r.Method == "" || r.Method == b.Method) && (r.Status == 0 || r.Status == b.Status) &&
		(r.Header == "" || http.CanonicalHeaderKey(r.Header) == http.CanonicalHeaderKey(b.Header) && (r.Value == "" || r.Value == b.Value)) &&
		(r.Text == "" || r.Path == b.Path && r.Text == b.Text)
}
