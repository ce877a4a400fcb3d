package throttle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/admit"
	"github.com/apithrottle/throttle/internal/rtt"
)

// A Tier is one limit of a provider: a number of units in a length of time, and how the
// provider counts them. See [algorithms.Tier] for its fields: Limit, Window, Algorithm,
// Burst, Precision, Phase, Unit, PaceBurst, Period, Zone, Budget, Estimated, Follow and Learn.
type Tier = algorithms.Tier

// Follow makes a Tier take over the limit that responses name. See [algorithms.Follow].
type Follow = algorithms.Follow

// Learn makes a Tier find a rate that nobody documents. See [algorithms.Learn] for what that costs.
type Learn = algorithms.Learn

// An Algorithm names the way a provider counts.
type Algorithm = algorithms.Algorithm

// The counters in use among providers.
const (
	SlidingLog     = algorithms.SlidingLog     // at most Limit in any Window: the exact rolling window
	SlidingWindow  = algorithms.SlidingWindow  // the same, counted in sub-buckets of Precision
	WeightedWindow = algorithms.WeightedWindow // current window + previous window × its part still in view
	FixedWindow    = algorithms.FixedWindow    // windows aligned to the clock
	AnchoredWindow = algorithms.AnchoredWindow // a window opens with the first request
	TokenBucket    = algorithms.TokenBucket    // a bucket of Burst tokens, refilled at Limit per Window
	LeakyBucket    = algorithms.LeakyBucket    // a funnel of Burst units, drained at Limit per Window
	GCRA           = algorithms.GCRA           // the same bucket, kept as a theoretical arrival time
	Concurrency    = algorithms.Concurrency    // at most Limit at the same time
	Calendar       = algorithms.Calendar       // days, weeks or months of a time zone
)

// UnknownPhase is the Phase of a FixedWindow whose boundaries are undocumented. Its windows
// are rolling until the Transport's Profile reads from a response when a window ends.
const UnknownPhase = algorithms.UnknownPhase

// Nanodollars is the Unit of tiers of money. ParsePolicy reads them in dollars.
const Nanodollars = algorithms.Nanodollars

// PerSecond is a Tier of n requests in any second.
func PerSecond(n int64) Tier { return algorithms.PerSecond(n) }

// PerMinute is a Tier of n requests in any minute.
func PerMinute(n int64) Tier { return algorithms.PerMinute(n) }

// PerHour is a Tier of n requests in any hour.
func PerHour(n int64) Tier { return algorithms.PerHour(n) }

// PerDay is a Tier of n requests in any 24 hours.
func PerDay(n int64) Tier { return algorithms.PerDay(n) }

// A Policy describes what a provider allows and how long callers wait for it. A Policy needs
// at least one tier.
type Policy struct {
	// Name names the quota in errors and in a shared store.
	Name string

	// Tiers must all admit a request.
	Tiers []Tier

	// Guard is the longest time that an admitted request may take to reach the provider.
	// NoGuard is none, and AutoGuard learns it. If zero, 50 ms.
	Guard time.Duration

	// MaxWait refuses what would wait longer. If zero, the context alone limits a wait.
	MaxWait time.Duration

	// MaxQueue refuses a caller when so many already wait. If zero, any number may wait.
	MaxQueue int

	// MaxPause is the longest pause that callers wait for. A longer one, from a header, closes the
	// quota: callers get ErrBanned until it ends. A longer one from a body closes the quota for
	// MaxPause. If zero, 15 minutes.
	MaxPause time.Duration

	// AssumeUsed starts a new quota in this process with all of its tiers used up. Then an
	// earlier process that has just ended cannot cause a refusal: the first request waits until
	// the tiers have room again, at worst for a Window after New or NewGroup. If false, the
	// quota starts unused, which is right if the program has not run for the longest Window,
	// and with a store that survives the process.
	AssumeUsed bool

	// Shadow tries the policy on the traffic of a program: no request waits and none is refused. For
	// each request a shadow is queued, admitted or refused, and the Observer receives that event when
	// it happens. Errors of bad arguments, ErrClosed and the error of a context that has already ended
	// are returned as usual. The quota must be in this process: New and NewGroup return an error for a
	// Store, Within for a Limiter in shadow mode, and SetPolicy for a change of Shadow. The section
	// "Shadow mode" of docs/observe.md has all rules. If false, requests wait.
	Shadow bool

	// IgnoreReports is for limits that the program itself sets besides those of the provider, such as the
	// share of one of its customers. What responses report of the provider's counters then changes
	// nothing in them. If false, it changes all tiers except budgets.
	IgnoreReports bool

	// AlertAt has the percentages of every Budget at which Alert is called: 1 to 100,
	// ascending, at most eight. If empty, Alert is not called.
	AlertAt []int

	// Alert is called once a period for each percentage of AlertAt. It must not block.
	Alert func(Alert) `json:"-"`

	// Observer receives events of the requests under this policy. If nil, there are none.
	Observer *Observer `json:"-"`

	// Aging is how long a Normal request yields to Interactive requests that come after it,
	// and a Batch request to Normal ones; see Class. If zero, 10 s.
	Aging time.Duration

	// Headroom is the percentage of every tier's capacity, except that of budgets, which Batch
	// requests leave to others until they have aged: 0 to 90. If zero, none.
	Headroom int
}

// NoGuard is the Guard of a Policy whose requests reach the provider at the instant of their
// admission. An admitted request cannot be refunded: the provider has counted it.
const NoGuard time.Duration = -1

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

const (
	defaultGuard    = 50 * time.Millisecond
	defaultMaxPause = 15 * time.Minute
	defaultAging    = 10 * time.Second
	mostHeadroom    = 90 // percent
)

func (p Policy) guard() time.Duration {
	switch p.Guard {
	case 0:
		return defaultGuard
	case NoGuard:
		return 0
	case AutoGuard:
		return rtt.Most
	}
	return p.Guard
}

// Validate returns an error that reports every problem of the policy: its field, its value and
// what is allowed. A problem of a tier is reported with the tier's index and text.
func (p Policy) Validate() error {
	_, err := p.plan()
	return err
}

// plan validates the policy and compiles its tiers.
func (p Policy) plan() (*algorithms.Plan, error) {
	var errs []error
	if strings.ContainsFunc(p.Name, func(r rune) bool { return r < ' ' }) {
		errs = append(errs, fmt.Errorf("Name is %q: it must have no control characters", p.Name))
	}
	if p.Guard < 0 && p.Guard != NoGuard && p.Guard != AutoGuard {
		errs = append(errs, fmt.Errorf("Guard is %v: it must be at least 0, NoGuard or AutoGuard", p.Guard))
	}
	if p.MaxWait < 0 {
		errs = append(errs, fmt.Errorf("MaxWait is %v: it must be at least 0", p.MaxWait))
	}
	if p.MaxQueue < 0 {
		errs = append(errs, fmt.Errorf("MaxQueue is %d: it must be at least 0", p.MaxQueue))
	}
	if p.MaxPause < 0 {
		errs = append(errs, fmt.Errorf("MaxPause is %v: it must be at least 0", p.MaxPause))
	}
	if err := p.checkAlerts(); err != nil {
		errs = append(errs, err)
	}
	if p.Aging < 0 || p.Aging > algorithms.MaxWindow {
		errs = append(errs, fmt.Errorf("Aging is %v: it must be from 0 to %v", p.Aging, algorithms.MaxWindow))
	}
	if p.Headroom < 0 || p.Headroom > mostHeadroom {
		errs = append(errs, fmt.Errorf("Headroom is %d: it must be from 0 to %d percent", p.Headroom, mostHeadroom))
	}
	plan, err := algorithms.NewPlan(p.Tiers, max(0, p.guard()))
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("throttle: policy %q: %w", p.Name, err)
	}
	if p.AssumeUsed {
		plan = plan.AssumeUsedAt(time.Now())
	}
	return plan, nil
}

// compile makes a policy ready for quotas in a store, or in this process if s is nil. It returns an error
// if the policy is not valid or the store cannot keep it.
func compile(p Policy, s Store) (*admit.Policy, error) {
	plan, err := p.plan()
	if err != nil {
		return nil, err
	}
	if err := checkStore(p, s); err != nil {
		return nil, err
	}
	if p.Shadow {
		p = inShadow(p)
	}
	c := &admit.Policy{
		Name: p.Name, Tiers: slices.Clone(p.Tiers), Plan: plan, Store: s,
		MaxWait: p.MaxWait, MaxPause: cmp.Or(p.MaxPause, defaultMaxPause), Aging: cmp.Or(p.Aging, defaultAging),
		MaxQueue: p.MaxQueue, Headroom: p.Headroom,
		AutoGuard: p.Guard == AutoGuard, IgnoreReports: p.IgnoreReports, Shadow: p.Shadow, Alerts: p.Alert != nil,
	}
	if p.Observer != nil || p.Alert != nil {
		c.Events = &events{policy: p.Name, observer: p.Observer, alert: p.Alert, alertAt: slices.Clone(p.AlertAt)}
	}
	return c.Compile(), nil
}

// checkStore returns an error for a policy that a store cannot keep.
func checkStore(p Policy, s Store) error {
	switch {
	case s == nil:
	case p.Name == "":
		return errors.New("throttle: policy \"\": Name is empty: a shared store keeps quotas by name, so give it one")
	case p.Shadow:
		return fmt.Errorf("throttle: policy %q: Shadow is true: a shadow has no store: pass a nil Store, or set Shadow to false", p.Name)
	}
	return nil
}

// replacement compiles a policy that replaces c for the same quota.
func (p Policy) replacement(c *admit.Policy) (*admit.Policy, error) {
	if p.Shadow != c.Shadow {
		return nil, c.Errorf("SetPolicy: Shadow is %v: it must stay %v, or make another Limiter", p.Shadow, c.Shadow)
	}
	p.AssumeUsed = false
	next, err := compile(p, c.Store)
	if err != nil {
		return nil, err
	}
	if next.Name != c.Name {
		return nil, c.Errorf("SetPolicy: Name is %q: it must stay %q, or make another Limiter", p.Name, c.Name)
	}
	return next, nil
}

// A Cost is an amount for each unit that it names, such as "tokens" or "requests". A Cost that does not name requests counts one request. A nil Cost is one request.
type Cost map[string]int64
