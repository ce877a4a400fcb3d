// Package throttle keeps a program's outbound calls inside the limits of the APIs that it
// pays for: no request is refused for lack of quota, and no quota is left unused.
//
//	lim, err := throttle.New(throttle.Policy{
//		Name:  "coinbase",
//		Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10000)},
//	}, nil)
//	client := &http.Client{Transport: &throttle.Transport{Limiter: lim}}
//
// A [Policy] describes what the provider allows, a [Limiter] admits requests under it, and a
// [Transport] is an http.RoundTripper that waits for the limiter before it sends. Most callers
// need no more than the lines above, or [Limiter.Wait] before each step of a batch job, and may
// stop reading here.
//
// # Policies and tiers
//
// A policy has one or more tiers. A request is charged in all tiers or in none. A [Tier] also
// says how the provider counts, because a client that counts in another way is refused: "5 a
// second" may be a rolling window, a window of the clock, or a bucket that gains a token every
// 200 ms. If the documentation is silent, keep the default, [SlidingLog]. It is safe for
// windows of every kind and for buckets that hold at least Limit, but neither for
// [WeightedWindow] nor for smaller buckets. [ParsePolicy] reads "5/s + 10000/h".
//
// # Waiting and refusals
//
// Callers are admitted in the order in which they arrive. A canceled caller leaves no trace in
// the queue. A wait that is known to outlast the context's deadline is refused at once with
// [ErrDeadline], and costs nothing. Every refusal is a [*WaitError].
//
// # Delivery delay
//
// A request arrives at an unknown time between its admission and its response. It counts in
// full for that time, and its window begins only then, so that jitter of the network breaks no
// limit. Policy.Guard bounds that time where no response is reported; the default is 50 ms.
// Raise it if requests take longer to reach the provider, or use [AutoGuard], which learns it.
//
// # Priorities and nested limits
//
// [WithClass] gives a request a [Class]: Interactive requests go before Batch requests, and
// aging prevents starvation. Policy.Headroom is what Batch requests leave to the others.
// [Limiter.Within] puts an endpoint's limit inside an account's. A [Group] keeps one quota for
// each host, API key or account, and its For can be a Transport's Route. A [Pool] sends each request
// to the one of several deployments, regions or accounts that admits it first.
//
// # Costs, estimates and budgets
//
// A [Cost] has an amount for each unit, such as requests and tokens. A tier whose cost is known
// only after the response is Estimated; [Permit.Settle], or a Transport's Meter, reports what a
// request really cost. A [Budget] covers a day, a week or a month of a time zone. It never makes
// callers wait: a request that exceeds what is left fails immediately with [ErrExhausted]. An
// [Alert] reports that part of it is spent.
//
// # Provider feedback
//
// A 429, or a 503 with Retry-After, pauses the quota for all of its callers. When the pause
// ends one request tries, and the others follow if it passes. If the provider asks for more
// than Policy.MaxPause, callers fail with [ErrBanned]. The response itself is returned as it
// is; package retry sends again what was refused. A Transport's Profile describes as data what
// else responses report: see package answers, and package providers for well-known APIs.
//
// # Observation
//
// Policy.Observer receives what happens to requests: how long each waited and for which tier, what
// was refused, and why a quota pauses. Package observe logs and counts that. [Limiter.Status] returns
// what is used and left, and [Limiter.Explain] explains why a request would wait. Policy.Shadow tells
// what a policy would do to a program's requests, without delaying them.
//
// # Cold starts and pacing
//
// A new limiter in this process does not know what an earlier process sent. Policy.AssumeUsed
// waits that out. [UnknownPhase] is for windows of the clock whose boundaries are undocumented.
// Tier.PaceBurst makes a long tier last: some requests at once, the others evenly.
//
// # Stores
//
// With a nil [Store], New keeps the quota in this process. Package distributed shares it among
// the processes of a fleet, through Redis or Valkey, and package host among those of one host,
// in a file. Limiters with the same policy name on one store share one quota.
package throttle
