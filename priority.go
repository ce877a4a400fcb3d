package throttle

import (
	"context"
	"fmt"
)

// A Class tells whom a request goes ahead of when it has to wait. All classes share one
// quota, and a Limiter takes the class from the context: see WithClass.
//
// Those who wait are served in the order in which they came, but a Normal request counts
// as one that came Policy.Aging later, and a Batch one as one that came twice as much
// later. So with the default of 10 s an Interactive request goes ahead of the Normal
// ones that have waited for less than 10 s and of the Batch ones that have waited for
// less than 20 s; a Normal one ahead of the Batch ones that have waited for less than
// 10 s; and nobody starves. Within a class it is first in, first out. Who is overtaken
// keeps its place among the others, and its deadline.
//
// A Batch request that has waited for less than Aging leaves Policy.Headroom of every
// tier to the others. In a fleet it is not booked ahead of time either, but for some
// milliseconds, so that the others of all processes go ahead of it. Interactive and Normal
// requests of different processes are served in the order in which they are booked.
type Class uint8

// The classes of requests.
const (
	Normal      Class = iota // neither of these, and what Allow asks for
	Interactive              // somebody waits for it
	Batch                    // it can wait
)

const classes = 3

var classNames = [classes]string{"normal", "interactive", "batch"}

// String returns the name, such as "interactive".
func (c Class) String() string {
	if c < classes {
		return classNames[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

type classKey struct{}

// WithClass returns a context whose requests are of a class, for Wait, WaitN, Acquire
// and Transport. A class that does not exist is Normal.
func WithClass(ctx context.Context, c Class) context.Context {
	return context.WithValue(ctx, classKey{}, c)
}

// classOf is the class of a context's requests.
func classOf(ctx context.Context) Class {
	if c, ok := ctx.Value(classKey{}).(Class); ok && c < classes {
		return c
	}
	return Normal
}
