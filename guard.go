package throttle

import (
	"time"

	"github.com/apithrottle/throttle/internal/rtt"
)

// AutoGuard is the Guard of a Policy that learns from responses how long a request takes to
// reach the provider. Use it if the delay of the network is not known, or if the server is
// slow: a response after seconds then does not make the guard longer.
//
// The guard lies between 20 ms and 1 s. It is learned from the responses of the last five to ten
// minutes, and is 1 s until there are eight. It is computed from the longest round trip:
// a quarter more, and 128 parts in n more for n responses, since a few of them say little about
// the longest to come. If three in four round trips take longer than a network does, which is
// 50 ms and four times the longest that a connection took to be made, then the server is slow.
// The guard is then twice the longest connection, and the longest time to write a body. If no
// connection was seen, or only those to a proxy on the same host, a network takes 250 ms at
// most, and the guard for a slow server is 50 ms. Each refusal doubles the guard for five to ten
// minutes.
//
// A Transport reports round trips and connections, and a Permit round trips if Arrived is
// called. Requests admitted by Wait and Allow report nothing: with those alone, set a Guard.
// In a fleet each process learns its own.
const AutoGuard time.Duration = -2

// A timing reports what one request tells of the network to the estimators of the scopes that
// admitted it. The zero timing reports nothing.
type timing struct {
	estimator *rtt.Estimator // of the innermost scope that learns, nil if none does
	others    []*rtt.Estimator
	admitted  time.Time
	guard     time.Duration
}

func startTiming(e *rtt.Estimator) timing {
	if e == nil {
		return timing{}
	}
	return timing{estimator: e, admitted: time.Now(), guard: e.Estimate()}
}

// learns reports whether there is an estimator. If there is none, the clock need not be read.
func (t *timing) learns() bool { return t.estimator != nil }

func (t *timing) add(s rtt.Sample) {
	t.estimator.Add(s)
	for _, e := range t.others {
		e.Add(s)
	}
}

func (t *timing) connected() {
	if t.learns() {
		t.add(rtt.Sample{Connect: time.Since(t.admitted)})
	}
}

// answered reports a response, and how long the body took to be written.
func (t *timing) answered(upload time.Duration) {
	if t.learns() {
		t.add(rtt.Sample{RoundTrip: max(1, time.Since(t.admitted)), Upload: upload})
	}
}

// refused reports a refusal: the request, or one before it, may have arrived later than the
// guard allows.
func (t *timing) refused() {
	if t.learns() {
		t.add(rtt.Sample{AtLeast: 2 * t.guard})
	}
}
