package store

import (
	"fmt"
	"strings"
	"time"
)

// String returns one sentence for each tier, and one each for a pause, a ban and the waiting
// callers, if there are any:
//
//	5/s: 3 of 5 used, room for 2. 100/h: 100 of 100 used, one more in 12m3.4s. 41 callers wait.
func (s Status) String() string {
	var sentences []string
	for _, t := range s.Tiers {
		sentences = append(sentences, t.String()+".")
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
	used := fmt.Sprintf("%v: %d of %d used", t.Tier, t.Used, t.Limit)
	if t.InFlight > 0 {
		used += fmt.Sprintf(", %d in flight", t.InFlight)
	}
	switch {
	case !t.Limited:
		return fmt.Sprintf("%s, room for %d", used, t.Remaining)
	case t.RetryAfter == Forever:
		return used + ", one more when something is released"
	}
	return fmt.Sprintf("%s, one more in %v", used, roundUp(t.RetryAfter))
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
