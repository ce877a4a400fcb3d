package store

import (
	"fmt"
	"strings"
	"time"
)

// String returns one sentence for each tier, another one for a rate that is learned or followed, and one
// each for a pause, a ban and the waiting callers, if there are any:
//
//	5/s: 3 of 5 used, room for 2. 100/h: 100 of 100 used, one more in 12m3.4s. 41 callers wait.
func (s Status) String() string {
	var sentences []string
	for _, t := range s.Tiers {
		sentences = append(sentences, t.String()+".")
		if origin := t.Origin(); origin != "" {
			sentences = append(sentences, origin+".")
		}
	}
	if s.Paused > 0 {
		sentences = append(sentences, fmt.Sprintf("Paused for %v.", roundUp(s.Paused)))
	}
	if s.Closed > 0 {
		sentences = append(sentences, fmt.Sprintf("Banned for %v.", roundUp(s.Closed)))
	}
	switch {
	case s.Waiting == 1:
		sentences = append(sentences, "1 caller waits.")
	case s.Waiting > 1:
		sentences = append(sentences, fmt.Sprintf("%d callers wait.", s.Waiting))
	}
	return strings.Join(sentences, " ")
}

// String returns how much of the tier is used, and either how many units it admits now or when it
// admits one more.
func (t TierStatus) String() string {
	amount := t.Tier.FormatAmount
	used := t.Tier.String() + ": " + t.Tier.FormatUse(t.Used, t.Limit)
	if t.InFlight > 0 {
		used += fmt.Sprintf(", %s in flight", amount(t.InFlight))
	}
	switch {
	case !t.Limited:
		return fmt.Sprintf("%s, room for %s", used, amount(t.Remaining))
	case t.RetryAfter == Forever:
		return used + ", one more when something is released"
	}
	return fmt.Sprintf("%s, one more in %v", used, roundUp(t.RetryAfter))
}

// Origin returns where the rate in force comes from, without a full stop, if the policy does not declare
// it. It is empty for other tiers. For example:
//
//	15000/h is followed: the policy says 5000/h
//	9.97/s is learned: refused at 10.8/s 15s ago, tries up to 11.1/s in the next minute
func (t TierStatus) Origin() string {
	rate := t.Tier.FormatRate
	if t.Followed > 0 {
		return fmt.Sprintf("%s is followed: the policy says %s", rate(float64(t.Followed)), rate(float64(t.Tier.Limit)))
	}
	l := t.Learned
	if l == nil {
		return ""
	}
	text := rate(l.Rate) + " is learned: not refused at that rate yet"
	switch {
	case l.Refused > 0:
		text = fmt.Sprintf("%s is learned: refused at %s %s ago", rate(l.Rate), rate(l.Refused), coarse(l.Ago))
	case l.Rate == float64(t.Tier.Limit):
		text = rate(l.Rate) + " is the start: nothing is learned yet"
	}
	if next := rate(l.Next); next != rate(l.Rate) {
		text += ", tries up to " + next + " in the next minute"
	}
	if l.Noise >= 0.0005 {
		text += fmt.Sprintf(". %.1f%% of requests seem to be refused at any rate", 100*l.Noise)
	}
	return text
}

// coarse returns a time that has passed in whole seconds, minutes, hours or days.
func coarse(d time.Duration) string {
	for _, u := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= u.length {
			return fmt.Sprintf("%d%s", d/u.length, u.name)
		}
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// roundUp rounds a time up to whole milliseconds, or to microseconds if it is shorter than a
// second.
func roundUp(d time.Duration) time.Duration {
	unit := time.Millisecond
	if d < time.Second {
		unit = time.Microsecond
	}
	if rest := d % unit; rest > 0 && d < Forever-unit {
		d += unit - rest
	}
	return d
}
