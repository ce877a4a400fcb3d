package batch

import "sort"

// A sample is what a job had done at one time. Times are in seconds since its start.
type sample struct {
	at       float64
	over     float64 // items that are done or failed
	admitted float64 // items that the limiter has admitted
	inFlight float64 // of these, those that are not over
	flown    float64 // the integral of inFlight over the time
	atOnce   float64 // how long AtOnce has bound
	other    float64 // how long Items or InOrder have bound
	waits    float64 // 1 if items wait for the limiter
	waited   float64 // the integral of waits over the time
}

// minus returns the difference between two samples of a history.
func (s sample) minus(o sample) sample { return s.plus(o, -1) }

// plus returns s and a multiple of o.
func (s sample) plus(o sample, times float64) sample {
	return sample{
		s.at + times*o.at, s.over + times*o.over, s.admitted + times*o.admitted, s.inFlight + times*o.inFlight,
		s.flown + times*o.flown, s.atOnce + times*o.atOnce, s.other + times*o.other, s.waits + times*o.waits, s.waited + times*o.waited,
	}
}

// mostSamples is the length of a history. The last half of it has every sample.
const mostSamples = 2_048

// A history has the samples of a job, those of long ago at longer intervals.
type history []sample

// add adds a sample, unless it is earlier than the last one.
func (h *history) add(s sample) {
	if last := len(*h) - 1; last >= 0 {
		before := (*h)[last]
		if s.at < before.at {
			return
		}
		s.flown = before.flown + (before.inFlight+s.inFlight)/2*(s.at-before.at)
		s.waited = before.waited + (before.waits+s.waits)/2*(s.at-before.at)
	}
	if *h = append(*h, s); len(*h) <= mostSamples {
		return
	}
	thin := (*h)[:0]
	for i, s := range *h {
		if i >= mostSamples/2 || i%2 == 0 {
			thin = append(thin, s)
		}
	}
	*h = thin
}

// at returns what the job had done at a time.
func (h history) at(t float64) sample {
	i := sort.Search(len(h), func(i int) bool { return h[i].at >= t })
	switch {
	case len(h) == 0:
		return sample{at: t}
	case i == 0:
		return h[0]
	case i == len(h):
		return h[i-1]
	}
	return h[i-1].plus(h[i].minus(h[i-1]), (t-h[i-1].at)/(h[i].at-h[i-1].at))
}

// last returns what the job did in the last seconds.
func (h history) last(seconds float64) sample {
	if len(h) == 0 {
		return sample{}
	}
	end := h[len(h)-1]
	return end.minus(h.at(end.at - seconds))
}

// admittedAll returns when the last item was admitted.
func (h history) admittedAll() float64 {
	all := h[len(h)-1].admitted
	return h[sort.Search(len(h)-1, func(i int) bool { return h[i].admitted >= all })].at
}
