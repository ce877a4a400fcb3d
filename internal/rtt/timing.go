package rtt

import "time"

// A Timing reports what one request tells of the network to the Estimators of the guards that it was
// admitted under. The zero Timing reports nothing.
type Timing struct {
	estimator *Estimator // of the innermost scope that learns, nil if none does
	others    []*Estimator
	Admitted  time.Time
	guard     time.Duration
}

// StartTiming returns the Timing of a request that is admitted now.
func StartTiming(e *Estimator) Timing {
	return Timing{estimator: e, Admitted: time.Now(), guard: e.Estimate()}
}

// AddOther lets another Estimator learn.
func (t *Timing) AddOther(e *Estimator) { t.others = append(t.others, e) }

// Learns reports whether there is an estimator. If there is none, the clock need not be read.
func (t *Timing) Learns() bool { return t.estimator != nil }

func (t *Timing) add(s Sample) {
	t.estimator.Add(s)
	for _, e := range t.others {
		e.Add(s)
	}
}

// Connected reports a new connection.
func (t *Timing) Connected() {
	if t.Learns() {
		t.add(Sample{Connect: time.Since(t.Admitted)})
	}
}

// Answered reports a response, and how long the body took to be written.
func (t *Timing) Answered(upload time.Duration) {
	if t.Learns() {
		t.add(Sample{RoundTrip: max(1, time.Since(t.Admitted)), Upload: upload})
	}
}

// Refused reports a refusal: the request, or one before it, may have arrived later than the
// guard allows.
func (t *Timing) Refused() {
	if t.Learns() {
		t.add(Sample{AtLeast: 2 * t.guard})
	}
}
