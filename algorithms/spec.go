package algorithms

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// lengths are the lengths of time with names. The first name is the short form.
var lengths = []struct {
	length time.Duration
	names  []string
}{
	{24 * time.Hour, []string{"d"}}, // a "day" is a Period
	{time.Hour, []string{"h", "hr", "hour"}},
	{time.Minute, []string{"m", "min", "minute"}},
	{time.Second, []string{"s", "sec", "second"}},
}

// FormatDuration formats a length as ParseDuration reads it: whole days as "30d", and all others
// as time.Duration does. If short is set, a second, minute, hour or day is "s", "m", "h" or "d".
func FormatDuration(d time.Duration, short bool) string {
	for _, u := range lengths {
		if short && d == u.length {
			return u.names[0]
		}
	}
	if day := lengths[0].length; d > 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	return d.String()
}

// FormatRate formats a number of units per Window with three digits, such as "12.4/s". Larger whole
// numbers keep all of theirs.
func (t Tier) FormatRate(units float64) string {
	digits := 0
	for least := 100.0; units > 0 && units < least && digits < 6; least /= 10 {
		digits++
	}
	text := strconv.FormatFloat(units, 'f', digits, 64)
	if digits > 0 {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + t.per()
}

// per returns the window or the period of the tier behind a slash. It is empty for Concurrency.
func (t Tier) per() string {
	switch {
	case t.Window == 0 && t.Algorithm == Calendar:
		return "/" + t.Period.String()
	case t.Window != 0 || t.Algorithm != Concurrency:
		return "/" + FormatDuration(t.Window, true)
	}
	return ""
}

// ParseDuration parses one unit of time, such as "s", "sec", "min", "hour" or "d", whole days
// such as "30d", and whatever time.ParseDuration accepts.
func ParseDuration(s string) (time.Duration, error) {
	for _, u := range lengths {
		if slices.Contains(u.names, s) {
			return u.length, nil
		}
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 64)
		if err == nil && n >= 0 && n <= int64(MaxWindow/lengths[0].length) {
			return time.Duration(n) * lengths[0].length, nil
		}
	} else if d, err := time.ParseDuration(s); err == nil {
		return d, nil
	}
	return 0, fmt.Errorf("%q is not a length of time: use s, min, h, d, or a length such as 500ms, 20s, 1h30m or 30d", s)
}

// String formats the tier as ParseTier reads it, such as "5/s" or
// "100000/m;unit=tokens;algo=token_bucket;burst=20000".
func (t Tier) String() string {
	var b strings.Builder
	b.WriteString(t.formatLimit(t.Limit))
	b.WriteString(t.per())
	option := func(name, value string) { b.WriteString(";" + name + "=" + value) }
	inDollars := t.Unit == Nanodollars
	if t.Unit != "" && !inDollars {
		option("unit", t.Unit)
	}
	if t.Algorithm != SlidingLog && t.Algorithm != Calendar {
		option("algo", t.Algorithm.String())
	}
	if t.Burst != 0 {
		option("burst", strconv.FormatInt(t.Burst, 10))
	}
	if t.Precision != 0 {
		option("precision", FormatDuration(t.Precision, false))
	}
	switch t.Phase {
	case 0:
	case UnknownPhase:
		option("phase", "unknown")
	default:
		option("phase", FormatDuration(t.Phase, false))
	}
	if t.PaceBurst != 0 {
		option("pace_burst", strconv.FormatInt(t.PaceBurst, 10))
	}
	if t.Estimated != (inDollars && t.per() != "") {
		option("estimated", strconv.FormatBool(t.Estimated))
	}
	if t.Zone != "" {
		option("zone", t.Zone)
	}
	if t.Budget != (inDollars && t.Period != NoPeriod) {
		option("budget", strconv.FormatBool(t.Budget))
	}
	if t.Follow != (Follow{}) {
		option("follow", t.Follow.String())
	}
	if t.Learn != (Learn{}) {
		option("learn", t.Learn.String())
	}
	return b.String()
}

// ParseTier parses a limit and a window, such as "10000/h", "100/min" or "60/20s", and options,
// each after a semicolon: unit, algo, burst, precision, phase (which may be "unknown"), pace_burst,
// zone, budget and estimated (true or false), follow and learn (least..most, or most). A window is a length that [ParseDuration] reads.
// If it is day, week or month, the tier is a Calendar. A concurrency tier has no window:
// "10;algo=concurrency".
//
// A limit in dollars, such as "$500/month", "$0.50/day" or "$10/week;zone=Europe/Berlin", is a tier of
// [Nanodollars] that is Estimated. Of a day, week or month it is a Budget. The options estimated=false and
// budget=false change that.
//
// ParseTier returns an error if the tier is not valid.
func ParseTier(spec string) (Tier, error) {
	fields := strings.Split(spec, ";")
	var t Tier
	limit, window, hasWindow := strings.Cut(strings.TrimSpace(fields[0]), "/")
	window = strings.TrimSpace(window)
	err := t.setLimit(limit)
	if err != nil {
		return Tier{}, fmt.Errorf("limit: %w", err)
	}
	inDollars := t.Unit == Nanodollars
	if p, ok := parsePeriod(window); ok {
		t.Period, t.Algorithm = p, Calendar
	} else if hasWindow {
		if t.Window, err = ParseDuration(window); err != nil {
			return Tier{}, fmt.Errorf("window: %w", err)
		}
	}
	t.Estimated, t.Budget = inDollars && hasWindow, inDollars && t.Period != NoPeriod
	if err = EachOption(fields[1:], t.setOption); err != nil {
		return Tier{}, err
	}
	switch n := t.Limit; {
	case inDollars && t.Unit != Nanodollars:
		return Tier{}, fmt.Errorf("unit: it is %s for a limit in dollars: remove the option unit, or the dollar sign", t.Unit)
	case window == "" && inDollars && t.Algorithm != Concurrency:
		return Tier{}, fmt.Errorf("window: it is missing: write %[1]s/day, %[1]s/week or %[1]s/month", formatDollars(n))
	case window == "" && t.Algorithm != Concurrency:
		return Tier{}, fmt.Errorf("window: it is missing: write %[1]d/s, %[1]d/min, %[1]d/h or %[1]d/d", n)
	}
	return t, t.Validate()
}

// setLimit sets the limit that a text begins with and, if that is in dollars, the unit.
func (t *Tier) setLimit(text string) (err error) {
	if strings.Contains(text, "$") {
		t.Unit = Nanodollars
		t.Limit, err = parseDollars(strings.TrimSpace(text))
		return err
	}
	if t.Limit, err = ParseCount(text); err != nil {
		return fmt.Errorf("%w: write limit/window, such as 5/s, 10000/h or $500/month", err)
	}
	return nil
}

func (t *Tier) setOption(name, value string) (err error) {
	switch name {
	case "unit":
		t.Unit = value
	case "algo":
		t.Algorithm, err = ParseAlgorithm(value)
	case "burst":
		t.Burst, err = ParseCount(value)
	case "precision":
		t.Precision, err = ParseDuration(value)
	case "phase":
		if t.Phase = UnknownPhase; value != "unknown" {
			t.Phase, err = ParseDuration(value)
		}
	case "pace_burst":
		t.PaceBurst, err = ParseCount(value)
	case "estimated":
		t.Estimated, err = ParseBool(value)
	case "zone":
		t.Zone = value
	case "budget":
		t.Budget, err = ParseBool(value)
	case "follow":
		t.Follow.Least, t.Follow.Most, err = parseBounds(value)
	case "learn":
		t.Learn.Least, t.Learn.Most, err = parseBounds(value)
	default:
		err = fmt.Errorf("is not an option of a tier: use unit, algo, burst, precision, phase, pace_burst, zone, budget, estimated, follow or learn")
	}
	return err
}

// EachOption calls set for every "name=value" and returns the first error, with the option's
// name. An option that is empty or repeated is an error.
func EachOption(options []string, set func(name, value string) error) error {
	seen := make(map[string]bool)
	for _, o := range options {
		name, value, ok := strings.Cut(o, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || value == "" {
			return fmt.Errorf("option %q: write name=value", strings.TrimSpace(o))
		}
		if seen[name] {
			return fmt.Errorf("option %q is given twice", name)
		}
		seen[name] = true
		if err := set(name, value); err != nil {
			return fmt.Errorf("option %q: %w", name, err)
		}
	}
	return nil
}

// parseBounds parses bounds such as "1..1000", or only the upper one.
func parseBounds(value string) (least, most int64, err error) {
	low, high, both := strings.Cut(value, "..")
	if !both {
		low, high = "0", value
	}
	if least, err = ParseCount(low); err == nil {
		most, err = ParseCount(high)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%w: write the least and the most, such as 1..1000", err)
	}
	if most == 0 || both && least == 0 {
		return 0, 0, fmt.Errorf("%q has a bound of 0: write the least and the most, such as 1..1000", value)
	}
	return least, most, nil
}

// ParseCount parses a whole number of at least 0.
func ParseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if errors.Is(err, strconv.ErrRange) && n > 0 {
		return 0, fmt.Errorf("%q is too large", s)
	}
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a whole number", s)
	}
	return n, nil
}

// ParseBool parses true or false.
func ParseBool(value string) (bool, error) {
	switch value {
	case "true", "false":
		return value == "true", nil
	}
	return false, fmt.Errorf("%q is not a boolean: use true or false", value)
}
