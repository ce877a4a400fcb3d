package answers

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Validate returns every problem of the profile, each with the name of its field and
// what to do: what can't be read as it stands, and rules that can't match. A profile
// with problems may be used, and reads what it can. Zones are looked up in the time
// zone database of the system, or of package time/tzdata if that is linked.
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
				v.add("", "can't match: Rules[%d] matches whatever it would; put it before that", j)
				break
			}
		}
	}
	for i := range p.RetryAfter {
		v.in("RetryAfter[%d]", i).field("", &p.RetryAfter[i], waits)
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
	told := q.Combined != Field{}
	v.field("Combined", &q.Combined, combinations)
	for i, f := range q.fields() {
		told = told || *f != Field{}
		if i < 5 {
			v.field(fieldNames[i], f, counts)
		} else {
			v.field(fieldNames[i], f, waits)
		}
	}
	if q.Window < 0 {
		v.add("Window", "is %v: it must be at least 0", q.Window)
	}
	if told && q.Read != nil {
		v.add("Read", "is set beside Fields: they are not read; use a Quota for each")
	}
	if !told && q.Read == nil {
		v.add("", "reads nothing: set a Field or Read")
	}
	if (q.Rate != Field{} && q.Limit == Field{}) {
		v.add("Rate", "is of no use without Limit: set that, too")
	}
}

// fieldNames are those of Quota.fields: five counts, two times.
var fieldNames = [...]string{"Limit", "Remaining", "Used", "Share", "Rate", "Length", "Reset"}

func (v *validator) charge(c *Charge) {
	if (c.Field == Field{}) {
		v.add("Field", "is empty: set its Header or Path")
	}
	v.field("Field", &c.Field, counts)
	v.field("Or", &c.Or, counts)
}

func (v *validator) rule(r *Rule) {
	if r.Status != 0 && (r.Status < 100 || r.Status > 999) {
		v.add("Status", "is %d: it must be from 100 to 999, or 0 for any", r.Status)
	}
	if r.Value != "" && r.Header == "" {
		v.add("Header", "is empty: set the one that has the Value, or clear that")
	}
	if r.Path != "" && r.Text == "" {
		v.add("Text", `is empty: set what the value at Path must be, "*" for anything`)
	}
	if r.Kind > Other {
		v.add("Kind", "is %d: it must be Passed, Limited, Banned or Other", r.Kind)
	}
	if _, err := location(r.Until); err != nil && r.Until != "" {
		v.add("Until", `is %q: it must be a zone of the IANA, such as "UTC" (%w)`, r.Until, err)
	}
	if r.Wait < 0 {
		v.add("Wait", "is %v: it must be at least 0", r.Wait)
	}
	v.pattern("Value", r.Value)
	v.pattern("Text", r.Text)
	v.path("Path", r.Path)
	for i := range r.Delay {
		v.field(fmt.Sprintf("Delay[%d]", i), &r.Delay[i], waits)
	}
	v.field("Asked", &r.Asked, counts)
}

func (v *validator) pattern(field, text string) {
	if strings.Contains(strings.TrimSuffix(strings.TrimPrefix(text, "*"), "*"), "*") {
		v.add(field, "is %q: a * must begin or end it", text)
	}
}

// A purpose is what a field is for, and so the formats that it may have.
type purpose struct {
	first, last Format
	hint        string
}

var (
	counts       = purpose{Number, Number, "clear it, for a Number"}
	waits        = purpose{Seconds, RetryAfter, "set a time, such as Seconds or EpochSeconds"}
	combinations = purpose{UsedOfLimit, Pairs, "set one of several values, such as Pairs"}
)

func (v *validator) field(name string, f *Field, p purpose) {
	if *f == (Field{}) {
		return
	}
	switch star := strings.Contains(f.Header, "*"); {
	case f.Header != "" && f.Path != "":
		v.add(name, "has a Header and a Path: clear one, for the Header alone is read")
	case f.Header == "" && f.Path == "":
		v.add(name, "has neither a Header nor a Path: set one")
	case p == combinations && f.Header == "":
		v.add(name, "has a Path: several values are read from a Header only")
	case star && p != combinations:
		v.add(name, "has the Header %q: only that of Combined may end in a *", f.Header)
	case !star && f.Format == UsedPerWindow:
		v.add(name, "has the Header %q: it must end in a *, where its window is", f.Header)
	}
	if f.Format < p.first || f.Format > p.last {
		v.add(name, "has the Format %v, which can't be read here: %s", f.Format, p.hint)
	}
	v.path(strings.TrimPrefix(name+".Path", "."), f.Path)
}

func (v *validator) path(field, path string) {
	if path == "" {
		return
	}
	steps := strings.Split(path, ".")
	if len(steps) > mostSteps {
		v.add(field, "has %d steps: it may have %d", len(steps), mostSteps)
	}
	for _, step := range steps {
		if step == "" || step != "*" && strings.ContainsAny(step, "*[]$") {
			v.add(field, `is %q: it must be keys between points, a * for each of an array's, as in "errors.*.code"`, path)
			return
		}
	}
}

// covers reports whether the rule matches every response that b matches.
func (r *Rule) covers(b *Rule) bool {
	return (r.Status == 0 || r.Status == b.Status) &&
		(r.Header == "" || http.CanonicalHeaderKey(r.Header) == http.CanonicalHeaderKey(b.Header) && (r.Value == "" || r.Value == b.Value)) &&
		(r.Text == "" || r.Path == b.Path && r.Text == b.Text)
}
