package admit

import (
	"context"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// Events receives what happens under a policy. Its methods call functions of the user, which may panic.
type Events interface {
	// Admitted reports a request that was admitted without a Record, and Unsent that it was not sent,
	// because Admitted panicked.
	Admitted(ctx context.Context, held bool)
	Unsent(ctx context.Context)

	// Settled returns the function that reports the actual cost of a request in an estimated unit, nil if
	// nobody listens.
	Settled(unit string, estimated, actual int64) (report func())

	// Paused reports a pause of the quota by this process.
	Paused(length time.Duration, closed bool, cause string)

	// Changed reports that a response has changed the rate of a tier.
	Changed(Change)

	// Called reports a call of a shared store.
	Called(store.Call)

	// Crossed reports thresholds of budgets that were crossed under a policy.
	Crossed(*Policy, []algorithms.Crossing)
}

// A Change is a change of the rate of a tier, in units per Window.
type Change struct {
	Tier     string // as the policy declares it
	From, To float64
	Cause    string // namedLimit or refusal
}

const (
	namedLimit = "limit"
	refusal    = "refusal"
)

// A Record receives what happens to one request.
type Record interface {
	// Queued reports that the request has taken a place in a queue, perhaps several times.
	Queued(ahead int)

	// Decided reports which tier decided how long the request waited. The first call counts, unless
	// Undecided takes it back.
	Decided(by *Policy, tier int)
	Undecided()

	// Chosen reports the member of a Pool that the request prefers, or that has admitted it.
	Chosen(*Member)

	// Admitted reports the admission, and Unsent that the request was not sent, because Admitted
	// panicked.
	Admitted()
	Unsent()
}

// Callbacks are functions of the user that are called for one event. They wait until all quotas have
// received the event, so that a panic or a runtime.Goexit of one of them leaves nothing half done.
type Callbacks []func()

// Add adds a function.
func (c *Callbacks) Add(f func()) { *c = append(*c, f) }

// Run calls them in their order, those after one that panics, too.
func (c Callbacks) Run() {
	if len(c) > 0 {
		defer c[1:].Run()
		c[0]()
	}
}

type classKey struct{}

// WithClass returns a copy of ctx whose requests have a class.
func WithClass(ctx context.Context, c queue.Class) context.Context {
	return context.WithValue(ctx, classKey{}, c)
}

// ClassOf returns the class of a context's requests.
func ClassOf(ctx context.Context) queue.Class {
	c, _ := ctx.Value(classKey{}).(queue.Class)
	return c
}

type hedgeKey struct{}

// AsHedge returns a copy of ctx whose requests are hedges: they are admitted at once or not at all, and no
// Record reports that one was refused, because the request that it copies is being sent.
func AsHedge(ctx context.Context) context.Context {
	return context.WithValue(ctx, hedgeKey{}, true)
}

// IsHedge reports whether a context's requests are hedges.
func IsHedge(ctx context.Context) bool { return ctx.Value(hedgeKey{}) != nil }
