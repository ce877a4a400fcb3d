package throttle

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// ParsePolicy reads tiers joined by "+", each as "limit/window" with options after semicolons.
// After a bar come the options of the policy:
//
//	5/s + 10000/h
//	100000/min;unit=tokens;algo=token_bucket;burst=20000
//	20;algo=concurrency + 60/20s | guard=100ms;max_wait=30s;max_queue=1000;max_pause=10m;assume_used=true;shadow=true
//
// A window is s, sec, m, min, h, hour, d, or a length such as 20s or 30d. The options of a tier are unit,
// algo, burst, precision, phase, pace_burst, zone, budget, estimated, follow and learn. The options of
// the policy are guard (a length, none or auto), max_wait, max_queue, max_pause, assume_used,
// shadow, ignore_reports, aging, headroom and alert_at. ParsePolicy returns an error if the policy
// is not valid.
//
// The windows day, week and month are those of the calendar, in a zone. In dollars they are budgets:
//
//	$500/month;zone=Europe/Berlin | alert_at=50,80,100
func ParsePolicy(name, spec string) (Policy, error) {
	p := Policy{Name: name}
	fail := func(format string, args ...any) (Policy, error) {
		return Policy{}, fmt.Errorf("throttle: policy %q: "+format, append([]any{name}, args...)...)
	}
	tiers, options, hasOptions := strings.Cut(spec, "|")
	for i, text := range strings.Split(tiers, "+") {
		text = strings.TrimSpace(text)
		t, err := algorithms.ParseTier(text)
		switch {
		case text == "":
			return fail("tier %d is empty: write limit/window, such as 5/s", i+1)
		case err != nil && isSeveral(text):
			return fail("tier %q: join limits with +, such as 5/s + 10000/h", text)
		case err != nil:
			return fail("tier %q: %w", text, err)
		}
		p.Tiers = append(p.Tiers, t)
	}
	if hasOptions {
		if err := algorithms.EachOption(strings.Split(options, ";"), p.setOption); err != nil {
			return fail("%w", err)
		}
	}
	if err := p.Validate(); err != nil {
		return Policy{}, err
	}
	return p, nil
}

// isSeveral reports whether a text has several limits that something other than a + joins.
func isSeveral(text string) bool {
	n := 0
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n,;&*|", r) }) {
		if _, err := algorithms.ParseTier(part); err == nil && strings.Contains(part, "/") {
			n++
		}
	}
	return n > 1
}

var guardNames = map[string]time.Duration{"none": NoGuard, "auto": AutoGuard}

func (p *Policy) setOption(name, value string) (err error) {
	switch name {
	case "guard":
		if named, ok := guardNames[value]; ok {
			p.Guard = named
			return nil
		}
		p.Guard, err = algorithms.ParseDuration(value)
	case "max_wait":
		p.MaxWait, err = algorithms.ParseDuration(value)
	case "max_queue":
		p.MaxQueue, err = strconv.Atoi(value)
	case "max_pause":
		p.MaxPause, err = algorithms.ParseDuration(value)
	case "assume_used":
		p.AssumeUsed, err = algorithms.ParseBool(value)
	case "shadow":
		p.Shadow, err = algorithms.ParseBool(value)
	case "ignore_reports":
		p.IgnoreReports, err = algorithms.ParseBool(value)
	case "alert_at":
		p.AlertAt, err = parseAlertAt(value)
	case "aging":
		p.Aging, err = algorithms.ParseDuration(value)
	case "headroom":
		p.Headroom, err = strconv.Atoi(value)
	default:
		err = errors.New("is not an option of a policy: use guard, max_wait, max_queue, max_pause, assume_used, shadow, ignore_reports, aging, headroom or alert_at")
	}
	return err
}

// MarshalText returns the name, a colon, and what String returns, such as "mail: 5/s + 10000/h". The
// functions of the policy are left out.
func (p Policy) MarshalText() ([]byte, error) {
	if p.Name == "" {
		return []byte(p.String()), nil
	}
	return []byte(p.Name + ": " + p.String()), nil
}

// UnmarshalText reads what MarshalText returns. The functions of the policy stay. After an error the
// policy is unchanged.
func (p *Policy) UnmarshalText(text []byte) error {
	name, spec := "", string(text)
	if i := strings.LastIndex(spec, ": "); i >= 0 {
		name, spec = spec[:i], spec[i+2:]
	}
	read, err := ParsePolicy(name, spec)
	if err != nil {
		return err
	}
	read.Observer, read.Alert = p.Observer, p.Alert
	*p = read
	return nil
}

// String returns the policy without its name, as ParsePolicy reads it.
func (p Policy) String() string {
	var tiers, options []string
	for _, t := range p.Tiers {
		tiers = append(tiers, t.String())
	}
	length := func(name string, d time.Duration) {
		if d != 0 {
			options = append(options, name+"="+algorithms.FormatDuration(d, false))
		}
	}
	switch p.Guard {
	case NoGuard:
		options = append(options, "guard=none")
	case AutoGuard:
		options = append(options, "guard=auto")
	default:
		length("guard", p.Guard)
	}
	length("max_wait", p.MaxWait)
	if p.MaxQueue != 0 {
		options = append(options, "max_queue="+strconv.Itoa(p.MaxQueue))
	}
	length("max_pause", p.MaxPause)
	if p.AssumeUsed {
		options = append(options, "assume_used=true")
	}
	if p.Shadow {
		options = append(options, "shadow=true")
	}
	if p.IgnoreReports {
		options = append(options, "ignore_reports=true")
	}
	length("aging", p.Aging)
	if p.Headroom != 0 {
		options = append(options, "headroom="+strconv.Itoa(p.Headroom))
	}
	if len(p.AlertAt) > 0 {
		options = append(options, "alert_at="+formatAlertAt(p.AlertAt))
	}
	spec := strings.Join(tiers, " + ")
	if len(options) > 0 {
		spec += " | " + strings.Join(options, ";")
	}
	return spec
}
