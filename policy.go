package throttle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A Tier is one limit of a provider: so many units in so much time, and how the
// provider counts them. See [algorithms.Tier] for its fields: Limit, Window,
// Algorithm, Burst, Precision, Phase, Unit, Spread, Period, Zone, Budget and Estimated.
type Tier = algorithms.Tier

// An Algorithm names the way a provider counts.
type Algorithm = algorithms.Algorithm

// The counters in use among providers.
const (
	SlidingLog     = algorithms.SlidingLog     // at most Limit in any Window: the exact rolling window
	SlidingWindow  = algorithms.SlidingWindow  // the same, remembered in sub-buckets of Precision
	WeightedWindow = algorithms.WeightedWindow // current window + previous window × its part still in view
	FixedWindow    = algorithms.FixedWindow    // windows aligned to the clock
	AnchoredWindow = algorithms.AnchoredWindow // a window opens with the first request
	TokenBucket    = algorithms.TokenBucket    // a bucket of Burst tokens, refilled at Limit per Window
	LeakyBucket    = algorithms.LeakyBucket    // a funnel of Burst units, drained at Limit per Window
	GCRA           = algorithms.GCRA           // the same, told as a theoretical arrival time
	Concurrency    = algorithms.Concurrency    // at most Limit at once
	Calendar       = algorithms.Calendar       // days, weeks or months of a time zone
)

// UnknownPhase is the Phase of a FixedWindow whose boundaries nobody has told: they
// are learned where the Transport's Profile reads of them, and its windows are rolling until then.
const UnknownPhase = algorithms.UnknownPhase

// PerSecond is a Tier of n requests in any second.
func PerSecond(n int64) Tier { return algorithms.PerSecond(n) }

// PerMinute is a Tier of n requests in any minute.
func PerMinute(n int64) Tier { return algorithms.PerMinute(n) }

// PerHour is a Tier of n requests in any hour.
func PerHour(n int64) Tier { return algorithms.PerHour(n) }

// PerDay is a Tier of n requests in any 24 hours.
func PerDay(n int64) Tier { return algorithms.PerDay(n) }

// A Policy is what a provider allows, and how patient the program is. It has no
// useful zero value: it needs at least one tier.
type Policy struct {
	Name     string        // names the quota in errors and in a shared store
	Tiers    []Tier        // all must admit
	Guard    time.Duration // the longest an admitted request may take to reach the provider. If zero, 50 ms; NoGuard for none, AutoGuard to learn it
	MaxWait  time.Duration // refuse what would wait longer. If zero, as long as the context allows
	MaxQueue int           // refuse when so many already wait. If zero, no bound
	MaxPause time.Duration // the longest pause a response may impose. If zero, 15 minutes
	Start    Start         // what to take for used at first. If zero, StartFull
	AlertAt  []int         // when Alert is called: percent of every Calendar tier that is a Budget, 1 to 100, ascending, at most eight. If empty, no alerts
	Alert    func(Alert)   `json:"-"` // is told once a period for each of AlertAt, and must not block. If nil, nobody is
	Ageing   time.Duration // how long a Normal request yields to Interactive ones that come after it, and a Batch one to Normal ones: see Class. If zero, 10 s
	Headroom int           // percent of the capacity of every tier but budgets that Batch requests leave to the others for as long, 0 to 90. If zero, none
}

// Start is what a new quota in this process takes for used, of which nobody knows
// what an earlier process sent. A store that survives the process knows.
type Start uint8

const (
	StartFull  Start = iota // nothing: right where the program has not run for the longest Window
	StartEmpty              // everything: nothing goes before the tiers make room again, at worst a Window after New or NewGroup
)

// NoGuard is the Guard of a Policy whose requests reach the provider the instant
// they are admitted. They cannot be cancelled either: they have been counted.
const NoGuard time.Duration = -1

const (
	defaultGuard    = 50 * time.Millisecond
	defaultMaxPause = 15 * time.Minute
	defaultAgeing   = 10 * time.Second
	mostHeadroom    = 90 // percent
)

func (p Policy) guard() time.Duration {
	switch p.Guard {
	case 0:
		return defaultGuard
	case NoGuard:
		return 0
	case AutoGuard:
		return mostGuard
	}
	return p.Guard
}

func (p Policy) maxPause() time.Duration {
	if p.MaxPause == 0 {
		return defaultMaxPause
	}
	return p.MaxPause
}

func (p Policy) ageing() time.Duration {
	if p.Ageing == 0 {
		return defaultAgeing
	}
	return p.Ageing
}

// Validate reports every problem at once, each with its field, its value and what
// is allowed, and those of a tier with its index and text.
func (p Policy) Validate() error {
	_, err := p.plan()
	return err
}

// plan makes the policy ready to decide.
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
	if p.Start > StartEmpty {
		errs = append(errs, fmt.Errorf("Start is %d: it must be StartFull or StartEmpty", p.Start))
	}
	if p.Ageing < 0 || p.Ageing > algorithms.MaxWindow {
		errs = append(errs, fmt.Errorf("Ageing is %v: it must be from 0 to %v", p.Ageing, algorithms.MaxWindow))
	}
	if p.Headroom < 0 || p.Headroom > mostHeadroom {
		errs = append(errs, fmt.Errorf("Headroom is %d: it must be from 0 to %d percent", p.Headroom, mostHeadroom))
	}
	plan, err := algorithms.NewPlan(p.Tiers, max(0, p.guard()))
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("throttle: policy %q: %w", p.Name, err)
	}
	if p.Start == StartEmpty {
		plan = plan.Starting(time.Now())
	}
	return plan, nil
}

// ParsePolicy reads tiers joined by "+", each as "limit/window" with options
// after semicolons, and after a bar what holds for all of them:
//
//	5/s + 10000/h
//	100000/m;unit=tokens;algo=token_bucket;burst=20000
//	20;algo=concurrency + 60/20s | guard=100ms;max_wait=30s;max_queue=1000;max_pause=10m;start=empty
//
// A window is s, m, h, d, or a length such as 20s or 30d. The options of a tier
// are unit, algo, burst, precision, phase, spread, zone, budget and estimated; those of the
// policy guard (or guard=none, guard=auto), max_wait, max_queue, max_pause, start, ageing,
// headroom and alert_at. The policy it returns is valid.
//
// A window of the calendar is day, week or month, in a zone, and may be a budget:
//
//	100000000/month;unit=usd;zone=Europe/Berlin;budget=true | alert_at=50,80,100
func ParsePolicy(name, spec string) (Policy, error) {
	p := Policy{Name: name}
	fail := func(format string, args ...any) (Policy, error) {
		return Policy{}, fmt.Errorf("throttle: policy %q: "+format, append([]any{name}, args...)...)
	}
	tiers, options, hasOptions := strings.Cut(spec, "|")
	for i, text := range strings.Split(tiers, "+") {
		text = strings.TrimSpace(text)
		t, err := algorithms.ParseTier(text)
		if err != nil {
			return fail("tier %d %q: %w", i, text, err)
		}
		p.Tiers = append(p.Tiers, t)
	}
	if hasOptions {
		if err := algorithms.EachOption(strings.Split(options, ";"), p.setOption); err != nil {
			return fail("%w", err)
		}
	}
	if err := p.Validate(); err != nil {
		return Policy{}, err
	}
	return p, nil
}

var guardNames = map[string]time.Duration{"none": NoGuard, "auto": AutoGuard}

func (p *Policy) setOption(name, value string) (err error) {
	switch name {
	case "guard":
		if named, ok := guardNames[value]; ok {
			p.Guard = named
			return nil
		}
		p.Guard, err = algorithms.ParseDuration(value)
	case "max_wait":
		p.MaxWait, err = algorithms.ParseDuration(value)
	case "max_queue":
		p.MaxQueue, err = strconv.Atoi(value)
	case "max_pause":
		p.MaxPause, err = algorithms.ParseDuration(value)
	case "start":
		switch value {
		case "empty":
			p.Start = StartEmpty
		case "full":
		default:
			err = fmt.Errorf("%q is not a start: use full or empty", value)
		}
	case "alert_at":
		p.AlertAt, err = parseAlertAt(value)
	case "ageing":
		p.Ageing, err = algorithms.ParseDuration(value)
	case "headroom":
		p.Headroom, err = strconv.Atoi(value)
	default:
		err = errors.New("is not an option of a policy: use guard, max_wait, max_queue, max_pause, start, ageing, headroom or alert_at")
	}
	return err
}

// String writes the policy without its name, as ParsePolicy reads it.
func (p Policy) String() string {
	var tiers, options []string
	for _, t := range p.Tiers {
		tiers = append(tiers, t.String())
	}
	length := func(name string, d time.Duration) {
		if d != 0 {
			options = append(options, name+"="+algorithms.FormatDuration(d, false))
		}
	}
	switch p.Guard {
	case NoGuard:
		options = append(options, "guard=none")
	case AutoGuard:
		options = append(options, "guard=auto")
	default:
		length("guard", p.Guard)
	}
	length("max_wait", p.MaxWait)
	if p.MaxQueue != 0 {
		options = append(options, "max_queue="+strconv.Itoa(p.MaxQueue))
	}
	length("max_pause", p.MaxPause)
	if p.Start == StartEmpty {
		options = append(options, "start=empty")
	}
	length("ageing", p.Ageing)
	if p.Headroom != 0 {
		options = append(options, "headroom="+strconv.Itoa(p.Headroom))
	}
	if len(p.AlertAt) > 0 {
		options = append(options, "alert_at="+formatAlertAt(p.AlertAt))
	}
	spec := strings.Join(tiers, " + ")
	if len(options) > 0 {
		spec += " | " + strings.Join(options, ";")
	}
	return spec
}

// A Cost is units by name; the empty name is "requests", as in Tier.Unit. A Cost without
// "requests" counts one request, and 0 must be written; nil is one request.
type Cost map[string]int64

// Compiled is a policy made ready to decide. It never changes, so that scopes share it.
type compiled struct {
	policy Policy
	plan   *algorithms.Plan
	one    []int64         // the cost of one request
	yields *store.WaitSpec // of a Batch request that has just come; nil if it leaves no headroom
	most   []int64         // of each unit, the highest estimate that is charged; nil if none is estimated

	reserves   bool // the quotas of the store reserve ahead
	counts     bool // some tier counts requests
	estimates  bool // some unit is estimated
	concurrent bool // some tier limits what is open at once
	auto       bool // the guard is learned
	plain      bool // a request needs nothing but a place: see Limiter.tryOne
}

func compile(p Policy) (*compiled, error) {
	plan, err := p.plan()
	if err != nil {
		return nil, err
	}
	p.Tiers, p.AlertAt = slices.Clone(p.Tiers), slices.Clone(p.AlertAt)
	c := &compiled{
		policy: p, plan: plan, counts: slices.Contains(plan.Units(), algorithms.Requests),
		estimates: plan.Estimates(), concurrent: plan.Concurrent(), auto: p.Guard == AutoGuard,
	}
	if c.estimates {
		c.most = plan.Most()
	}
	c.one = c.requests(1)
	c.plain = c.counts && !c.concurrent && !c.auto && p.Alert == nil
	if p.Headroom > 0 {
		c.yields = &store.WaitSpec{YieldFor: p.ageing(), Headroom: int64(p.Headroom)}
	}
	return c, nil
}

// replacement makes another policy ready for the same quota.
func (c *compiled) replacement(p Policy) (*compiled, error) {
	if p.Name != c.policy.Name {
		return nil, c.errorf("SetPolicy: Name is %q: it must stay %q, or make another Limiter", p.Name, c.policy.Name)
	}
	p.Start = StartFull
	next, err := compile(p)
	if err != nil {
		return nil, err
	}
	next.reserves, next.plain = c.reserves, next.plain && !c.reserves
	return next, nil
}

// under returns the policy with the tiers of another plan, which somebody else has set.
func (c *compiled) under(plan *algorithms.Plan) *compiled {
	p := c.policy
	p.Tiers, p.Start = plan.Given(), StartFull
	if p.Guard != AutoGuard {
		if p.Guard = plan.Guard(); p.Guard == 0 {
			p.Guard = NoGuard
		}
	}
	if !slices.ContainsFunc(p.Tiers, alerts) {
		p.AlertAt = nil
	}
	next, err := compile(p)
	if err != nil {
		return c // the plan was valid as it came
	}
	next.plan, next.reserves, next.plain = plan, c.reserves, next.plain && !c.reserves
	return next
}

// has reports whether a tier counts the unit.
func (c *compiled) has(unit string) bool { return slices.Contains(c.plan.Units(), unit) }

// requests returns the cost of n requests.
func (c *compiled) requests(n int64) []int64 {
	cost := make([]int64, len(c.plan.Units()))
	if i := slices.Index(c.plan.Units(), algorithms.Requests); i >= 0 {
		cost[i] = n
	}
	return cost
}

// compile returns what a demand costs, in the order of the plan's units, without those
// that other scopes count. It refuses what no wait admits.
func (c *compiled) compile(d *demand) ([]int64, error) {
	if d.cost == nil && d.n == 1 {
		return c.one, nil // every tier admits one
	}
	cost := c.requests(1)
	if d.cost == nil {
		cost = c.requests(d.n)
	}
	for unit, n := range d.cost {
		if i := slices.Index(c.plan.Units(), cmp.Or(unit, algorithms.Requests)); i >= 0 {
			cost[i] = n
		}
	}
	for u, most := range c.most {
		// An estimate above what the tiers ever admit waits until they are unused, and
		// is charged in full when it is settled.
		if c.plan.Estimated(u) {
			cost[u] = min(cost[u], most)
		}
	}
	if tier := c.plan.TooLarge(cost); tier >= 0 {
		return nil, c.refuse(ErrNever, tier, 0)
	}
	return cost, nil
}

// isOne reports whether a cost is that of one request, without a look at it.
func (c *compiled) isOne(cost []int64) bool { return &cost[0] == &c.one[0] }

// hasBudget reports whether any tier refuses rather than makes wait.
func (c *compiled) hasBudget() bool {
	return slices.ContainsFunc(c.plan.Tiers(), func(t Tier) bool { return t.Budget })
}

// isFree reports whether a cost charges nothing, neither now nor when it is settled.
func (c *compiled) isFree(cost []int64) bool {
	return !c.estimates && !slices.ContainsFunc(cost, func(n int64) bool { return n != 0 })
}

// mostActual is the most that a request can turn out to have cost.
const mostActual = algorithms.MaxLimit

func (c *compiled) errorf(format string, args ...any) error {
	return fmt.Errorf("throttle: policy %q: "+format, append([]any{c.policy.Name}, args...)...)
}
