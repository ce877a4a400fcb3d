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
}

// minus returns the difference between two samples of a history.
func (s sample) minus(o sample) sample {
	return sample{s.at - o.at, s.over - o.over, s.admitted - o.admitted, s.inFlight - o.inFlight, s.flown - o.flown, s.atOnce - o.atOnce, s.other - o.other}
}

// between returns the sample between two others, at a part of the way from o to s.
func (o sample) between(s sample, part float64) sample {
	d := s.minus(o)
	return sample{
		o.at + part*d.at, o.over + part*d.over, o.admitted + part*d.admitted, o.inFlight + part*d.inFlight,
		o.flown + part*d.flown, o.atOnce + part*d.atOnce, o.other + part*d.other,
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
	return h[i-1].between(h[i], (t-h[i-1].at)/(h[i].at-h[i-1].at))
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
