// Package projection estimates how much of a budget will be used when its period ends, from what was used in
// each hour before.
//
// What is used in an hour is taken to be a product: a level, which holds until it changes, a factor of the day
// of the week, and a factor of the hour of the day, both in the time zone of the period. A change of the level by a
// quarter or more is recognized within a day or two, and what was before it then counts for the factors only. Within a
// level, recent days count more: the weight halves in each week. A weekday that has not been seen yet is taken to be
// like the other weekdays, and a Saturday like a Sunday. If no day of a weekend has been seen, weekends are taken to be
// like weekdays, so an estimate is rough until a week is known.
//
// Of the hours before a process began, only the sum is known. It counts for the level, less and less,
// until three days are known. In the beginning the estimate is thus the mean of the time that has passed.
package projection

import (
	"slices"
	"time"
)

// Kept is how many hours Hours remembers: those of a month, and of the week before it.
const Kept = 31*24 + 7*24

// Hours are the sums of what was used in each of the last Kept hours. An hour is numbered by how many have passed
// since the Unix epoch. The zero value has no hours. Hours are not safe for concurrent use.
type Hours struct {
	first int64   // the number of the oldest hour
	sums  []int64 // unknown for an hour in which nothing was seen

	fitted *model // to the hours before its own; nil if these have changed
}

const unknown = -1

// HourOf returns the number of the hour of a time.
func HourOf(t time.Time) int64 { return t.Unix() / 3600 }

// Add adds what was used in an hour. It may be negative, for units that were given back. If they are more than the
// hour has used, they were taken in the hour before. The sum of an hour is never less than zero. Hours that are too
// old are ignored.
func (h *Hours) Add(hour, used int64) {
	if len(h.sums) == 0 {
		h.first = hour
	}
	if hour < h.first {
		return
	}
	h.changed(hour)
	if skip := hour - h.first - Kept + 1; skip > 0 {
		h.sums = slices.Delete(h.sums, 0, int(min(skip, int64(len(h.sums)))))
		h.first += skip
	}
	for int64(len(h.sums)) <= hour-h.first {
		h.sums = append(h.sums, unknown)
	}
	sum := &h.sums[hour-h.first]
	rest := max(0, *sum) + used
	if *sum = max(0, rest); rest < 0 && hour > h.first && h.sums[hour-1-h.first] != unknown {
		h.changed(hour - 1)
		before := &h.sums[hour-1-h.first]
		*before = max(0, *before+rest)
	}
}

// Forget makes an hour unknown, because only a part of it was seen.
func (h *Hours) Forget(hour int64) {
	if i := hour - h.first; i >= 0 && i < int64(len(h.sums)) {
		h.changed(hour)
		h.sums[i] = unknown
	}
}

// Of returns what was used in an hour, and zero if that is not known.
func (h *Hours) Of(hour int64) int64 {
	if i := hour - h.first; i >= 0 && i < int64(len(h.sums)) {
		return max(0, h.sums[i])
	}
	return 0
}

// changed forgets the model of an hour that it has explained.
func (h *Hours) changed(hour int64) {
	if h.fitted != nil && hour < h.fitted.now {
		h.fitted = nil
	}
}

// model returns the model of the hours that have passed.
func (h *Hours) model(now time.Time, p Period) *model {
	if h.fitted == nil || h.fitted.now != HourOf(now) || h.fitted.period != p {
		h.fitted = newModel(h, now, p)
	}
	return h.fitted
}
