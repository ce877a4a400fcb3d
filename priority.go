package throttle

import (
	"context"
	"fmt"

	"github.com/apithrottle/throttle/internal/admit"
	"github.com/apithrottle/throttle/internal/queue"
)

// A Class is the priority of a request that has to wait. All classes share one quota. A Limiter
// takes the class from the context; see WithClass.
//
// Waiting requests are served in the order in which they arrived, except that a Normal request
// counts as if it had arrived Policy.Aging later, and a Batch request twice that time later. With
// the default of 10 s, an Interactive request therefore goes before Normal requests that have
// waited for less than 10 s and before Batch requests that have waited for less than 20 s. A Normal
// request goes before Batch requests that have waited for less than 10 s. Aging thus prevents
// starvation. Within a class the order is first in, first out. A request that is overtaken keeps
// its deadline and its place among the others.
//
// A Batch request that has waited for less than Aging leaves Policy.Headroom of every tier to the
// other classes. In a fleet it is also reserved only some milliseconds ahead, so requests of the
// other classes in all processes can go before it. Interactive and Normal requests of different
// processes are served in the order of their reservations.
type Class uint8

// The classes of requests.
const (
	Normal      Class = iota // the class of requests without another one, and of Allow
	Interactive              // a user waits for the response
	Batch                    // can wait
)

const classes = 3

var classNames = [classes]string{"normal", "interactive", "batch"}

// String returns the name of the class, such as "interactive".
func (c Class) String() string {
	if c < classes {
		return classNames[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// WithClass returns a copy of ctx whose requests have class c, for Wait, WaitN, Acquire, TryAcquire,
// Forecast, Explain and Transport. A class that does not exist is Normal.
func WithClass(ctx context.Context, c Class) context.Context {
	if c >= classes {
		c = Normal
	}
	return admit.WithClass(ctx, queue.Class(c))
}
