package projection

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A Period is that of a budget, with the zone in which its days begin.
type Period struct {
	Start, End time.Time
	Zone       *time.Location
}

// An Estimate is how much will have been used at the end of a period.
type Estimate struct {
	Total int64

	// Rough reports that less than a week of this use is known, so Total is often wrong by a quarter and more.
	Rough bool
}

const (
	hoursOfDay  = 24
	daysOfWeek  = 7
	halfLife    = 7 * hoursOfDay // of the weight of an hour for the level
	sumFades    = 3 * hoursOfDay // hours known until the sum of those before no longer counts
	sumWeight   = hoursOfDay     // of that sum in the beginning, in hours
	likeOthers  = hoursOfDay     // weight of the other days of its kind for a day of the week, in hours
	leastChange = 1.25           // of a level
	leastSpan   = 18             // hours of a level
	maxChanges  = 4
	evidence    = 24.0 // how many times the noise a change must explain
	leastNoise  = 0.05 // of the use of a day
)

// Estimate estimates what will have been used at the end of a period in which used is used until now. It
// returns false if less than an hour is known.
func (h *Hours) Estimate(now time.Time, p Period, used int64) (Estimate, bool) {
	m := h.model(now, p)
	level, ok := m.level(now, used)
	if !ok {
		return Estimate{}, false
	}
	total := min(float64(used)+level*m.weigh(now, p.End), math.MaxInt64/2)
	return Estimate{Total: int64(math.Round(total)), Rough: m.known < daysOfWeek*hoursOfDay}, true
}

// A known is an hour whose sum is known.
type known struct {
	at          int64 // its number
	sum         float64
	day, oClock int
}

// A model explains known hours by levels and factors. The mean of the factors of all days, and of all
// hours of a day, is 1.
type model struct {
	now    int64 // its hour
	period Period
	days   [daysOfWeek]float64
	clock  [hoursOfDay]float64

	known  int // hours of the present level
	recent int // the same, but sumFades after a change
	last   use // of these, by their weights
	inside use // of all that are in the period

	// What follows is nil after the fit.
	hours   []known
	changes []int64 // hours in which another level begins
	levels  []float64
	until   []table // of one level, with what was before each hour
}

// A use is what was used in some hours, and the sum of the factors of these hours.
type use struct{ used, hours float64 }

func (u *use) add(used, hours float64) {
	u.used += used
	u.hours += hours
}

// A table is the use by the day of the week.
type table [daysOfWeek]use

// newModel returns a model of the hours that have passed.
func newModel(h *Hours, now time.Time, p Period) *model {
	m := &model{now: HourOf(now), period: p}
	for i, sum := range h.sums {
		if hour := h.first + int64(i); sum != unknown && hour < m.now {
			day, oClock := place(hour, p.Zone)
			m.hours = append(m.hours, known{hour, float64(sum), day, oClock})
		}
	}
	for i := range m.days {
		m.days[i] = 1
	}
	for i := range m.clock {
		m.clock[i] = 1
	}
	if m.known = len(m.hours); m.known > 0 {
		m.fit()
		m.sum()
	}
	m.hours, m.changes, m.levels, m.until = nil, nil, nil, nil
	return m
}

// place returns the day of the week and the hour of the day of an hour's middle.
func place(hour int64, zone *time.Location) (day, oClock int) {
	t := time.Unix(hour*3600+1800, 0).In(zone)
	return int(t.Weekday()), t.Hour()
}

// fit finds the factors and the changes of the level.
func (m *model) fit() {
	for range 3 {
		m.solve(m.changes)
		m.fitClock()
	}
	for len(m.changes) < maxChanges && m.change() {
		m.solve(m.changes)
		m.fitClock()
	}
	m.solve(m.changes)
}

// levelOf returns which level holds in an hour.
func levelOf(changes []int64, hour int64) int {
	i, _ := slices.BinarySearch(changes, hour+1)
	return i
}

// fitClock finds the factors of the hours of a day. Those that are hardly known are near 1.
func (m *model) fitClock() {
	var sums, expected [hoursOfDay]float64
	var mean float64
	for _, h := range m.hours {
		e := m.levels[levelOf(m.changes, h.at)] * m.days[h.day]
		sums[h.oClock] += h.sum
		expected[h.oClock] += e
		mean += e / float64(len(m.hours))
	}
	prior := mean / 4
	var total float64
	for i := range m.clock {
		m.clock[i] = 1
		if expected[i]+prior > 0 {
			m.clock[i] = (sums[i] + prior) / (expected[i] + prior)
		}
		total += m.clock[i]
	}
	for i := range m.clock {
		m.clock[i] *= hoursOfDay / total
	}
	m.until = nil
}

// tabulate adds up the use before each hour.
func (m *model) tabulate() {
	m.until = make([]table, len(m.hours)+1)
	for i, h := range m.hours {
		m.until[i+1] = m.until[i]
		m.until[i+1][h.day].add(h.sum, m.clock[h.oClock])
	}
}

// tables returns the use while each level holds.
func (m *model) tables(changes []int64) []table {
	all := make([]table, len(changes)+1)
	from := 0
	for i := range all {
		to := len(m.hours)
		if i < len(changes) {
			to, _ = slices.BinarySearchFunc(m.hours, changes[i], func(h known, hour int64) int { return cmp.Compare(h.at, hour) })
		}
		for d := range all[i] {
			before, after := m.until[from][d], m.until[to][d]
			all[i][d] = use{after.used - before.used, after.hours - before.hours}
		}
		from = to
	}
	return all
}

// solve finds the levels and the factors of the days for given changes, by adapting each to the other
// in turns. It returns the likelihood of the sums, if they are distributed as Poisson has it.
func (m *model) solve(changes []int64) (likelihood float64) {
	if m.until == nil {
		m.tabulate()
	}
	t := m.tables(changes)
	m.levels = make([]float64, len(t))
	for i := range m.days {
		m.days[i] = 1
	}
	for range 20 {
		m.fitLevels(t)
		m.fitDays(t)
	}
	m.fitLevels(t)
	for i, level := range m.levels {
		for d, c := range t[i] {
			if mean := level * m.days[d] * c.hours; mean > 0 {
				likelihood += c.used*math.Log(level*m.days[d]) - mean
			}
		}
	}
	return likelihood
}

// fitLevels finds the levels for given factors of the days.
func (m *model) fitLevels(t []table) {
	for i := range m.levels {
		var all use
		for d, c := range t[i] {
			all.add(c.used, c.hours*m.days[d])
		}
		m.levels[i] = ratio(all.used, all.hours, 0)
	}
}

// fitDays finds the factors of the days for given levels. Days of a kind are alike until they are known.
func (m *model) fitDays(t []table) {
	var used, expected [daysOfWeek]float64
	var usedOf, expectedOf [2]float64
	var hours, all float64
	for d := range m.days {
		for i, level := range m.levels {
			used[d] += t[i][d].used
			expected[d] += level * t[i][d].hours
			hours += t[i][d].hours
		}
		usedOf[kind(d)] += used[d]
		expectedOf[kind(d)] += expected[d]
		all += expected[d]
	}
	prior := likeOthers * ratio(all, hours, 0)
	mean := ratio(usedOf[0]+usedOf[1], all, 1)
	var total float64
	for d := range m.days {
		like := mean
		if expectedOf[kind(d)] > 0 {
			like = usedOf[kind(d)] / expectedOf[kind(d)]
		}
		m.days[d] = ratio(used[d]+prior*like, expected[d]+prior, 1)
		total += m.days[d]
	}
	for d := range m.days {
		m.days[d] = ratio(daysOfWeek*m.days[d], total, 1)
	}
}

// kind returns 1 for a day of the weekend.
func kind(day int) int {
	if time.Weekday(day) == time.Saturday || time.Weekday(day) == time.Sunday {
		return 1
	}
	return 0
}

// ratio returns a/b, or another value if b is zero.
func ratio(a, b, other float64) float64 {
	if b <= 0 {
		return other
	}
	return a / b
}

// change adds the change of the level that explains the most. It returns false if none explains enough.
func (m *model) change() bool {
	before := m.solve(m.changes)
	first, last := m.hours[0].at, m.hours[len(m.hours)-1].at
	best, most := int64(0), 0.0
	try := func(hour int64) {
		if changes := m.with(hour, first, last+1); changes != nil {
			if gain := m.solve(changes) - before; gain > most {
				best, most = hour, gain
			}
		}
	}
	for hour := first + leastSpan; hour <= last; hour += 6 {
		try(hour)
	}
	for around, d := best, int64(-5); best != 0 && d <= 5; d++ {
		try(around + d)
	}
	if best == 0 {
		return false
	}
	changes := m.with(best, first, last+1)
	m.solve(changes)
	i := levelOf(changes, best)
	changed := math.Abs(math.Log(ratio(m.levels[i], m.levels[i-1], 1)))
	if 2*most < evidence*m.noise(changes) || changed < math.Log(leastChange) {
		return false
	}
	m.changes = changes
	return true
}

// with returns the changes and another, or nil if a level were too short.
func (m *model) with(hour, first, end int64) []int64 {
	i, _ := slices.BinarySearch(m.changes, hour)
	if i > 0 {
		first = m.changes[i-1]
	}
	if i < len(m.changes) {
		end = m.changes[i]
	}
	if hour-first < leastSpan || end-hour < leastSpan {
		return nil
	}
	return slices.Insert(slices.Clone(m.changes), i, hour)
}

// noise returns the variance of what is used in a day, divided by its mean, with given changes.
func (m *model) noise(changes []int64) float64 {
	var sum, days, used, mean, total float64
	for i, h := range m.hours {
		used += h.sum
		mean += m.levels[levelOf(changes, h.at)] * m.days[h.day] * m.clock[h.oClock]
		if i == len(m.hours)-1 || m.hours[i+1].day != h.day || levelOf(changes, m.hours[i+1].at) != levelOf(changes, h.at) {
			if mean > 0 {
				sum += (used - mean) * (used - mean) / mean
			}
			days++
			total += mean
			used, mean = 0, 0
		}
	}
	return max(sum/max(1, days-float64(len(changes))-3), leastNoise*leastNoise*total/days)
}

// sum adds up what the present level follows from.
func (m *model) sum() {
	start := HourOf(m.period.Start)
	for _, h := range m.hours {
		factor := m.days[h.day] * m.clock[h.oClock]
		if h.at >= start {
			m.inside.add(h.sum, factor)
		}
		if levelOf(m.changes, h.at) == len(m.changes) {
			weight := math.Exp2(-float64(m.now-h.at) / halfLife)
			m.last.add(weight*h.sum, weight*factor)
			m.recent++
		}
	}
	if m.known = m.recent; len(m.changes) > 0 {
		m.recent = sumFades // what was before is another level
	}
}

// level returns the present level, and false if it is not known at all.
func (m *model) level(now time.Time, used int64) (float64, bool) {
	all := m.last
	unknown := m.weigh(m.period.Start, now) - m.inside.hours
	if prior := sumWeight * (1 - float64(m.recent)/sumFades); prior > 0 && unknown >= 1 {
		all.add(prior*max(0, float64(used)-m.inside.used)/unknown, prior)
	}
	return ratio(all.used, all.hours, 0), all.hours > 0
}

// weigh returns the sum of the factors of the hours from a time to another.
func (m *model) weigh(from, to time.Time) (sum float64) {
	for hour := HourOf(from); hour*3600 < to.Unix(); hour++ {
		begin, end := max(hour*3600, from.Unix()), min((hour+1)*3600, to.Unix())
		day, oClock := place(hour, m.period.Zone)
		sum += float64(end-begin) / 3600 * m.days[day] * m.clock[oClock]
	}
	return sum
}
