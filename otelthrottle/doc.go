// Package otelthrottle reports what happens to limited requests to OpenTelemetry, as metrics and spans.
//
//	observer, err := otelthrottle.New(otelthrottle.Options{})
//	policy.Observer = observer
//	lim, err := throttle.New(policy, nil)
//	stop, err := otelthrottle.Watch(otelthrottle.Options{}, lim)
//
// One Observer serves all policies of a program, a [throttle.Group], nested limits and a [throttle.Pool] too.
//
// # Metrics
//
// [New] counts requests:
//
//   - throttle.requests, by policy, class and result
//   - throttle.request.time_in_queue, in seconds, by policy, class, result and tier: only of requests
//     that were queued. With a shared store nearly all are queued, for one round trip.
//   - throttle.queued_requests, by policy and class
//   - throttle.active_requests, by policy: requests that were admitted through a Transport or with a
//     Permit, and have got no response yet
//   - throttle.responses, by policy and kind: how those requests ended
//   - throttle.pauses and throttle.pause.time, in seconds, by policy and cause
//   - throttle.estimate.error, by policy and unit: the actual cost divided by the estimate
//   - throttle.store.calls and throttle.store.call.duration, in seconds, by policy and outcome: calls of
//     a shared store
//   - throttle.store.decisions, by policy: how many requests these calls decided
//
// What a member of a Pool has admitted is also by member: requests with the result "admitted", the time that they
// were in the queue, active requests and responses. The policy is then the name of the Pool.
//
// [Watch] reads the state of limiters at each collection:
//
//   - throttle.tier.usage, throttle.tier.limit and throttle.tier.utilization, by policy, tier and unit
//   - throttle.tier.learned_rate, in units a second, and throttle.tier.noise, which part of the requests is
//     refused at any rate, by policy, tier and unit: of tiers that learn their rate
//   - throttle.budget.limit, throttle.budget.spent and throttle.budget.forecast, which is expected at the end of
//     the period, in dollars, by policy, tier and unit: of budgets in dollars
//   - throttle.closed and throttle.guard.time, by policy
//
// The attributes are throttle.policy, throttle.member, throttle.class, throttle.result, throttle.tier,
// throttle.unit, throttle.kind, throttle.cause and throttle.outcome. The policy is that of the innermost
// limit. The tier is the one that
// decided how long the request waited, in this limit or an outer one, as ParsePolicy reads it; it is
// missing if none did, such as after a pause. A result is "admitted", the reason of a refusal ("deadline",
// "exceeds_capacity", "exhausted", "queue_full", "banned", "unavailable", "needs_permit", "closed",
// "too_many_keys"), "canceled", "not_now" for a false Allow, or "error". A kind is "passed", "limited", "banned", "other" for another
// refusal, "lost" if no response came, or "unsent". A cause is "response" or "call".
// An outcome is "ok", "timeout", "unavailable", "error", or "unsent" for a call that was not made because
// the store is away.
//
// No attribute contains a key of a Group, a host, a URL or the text of an error. Beyond 200 policies,
// 200 members of a Pool, and 1,000 tiers and units, the attribute is "_OTHER". So the number of series follows from the
// configuration of the program, not from its traffic.
//
// # Spans
//
// A request that has waited for at least [Options].MinWait gets a span "throttle wait", a child of the
// span in its context. It begins when the request was queued. The status of the span of a refused request
// is Error.
//
// # The order of transports
//
// otelhttp belongs inside throttle, as the Base of the throttle.Transport. Then
// http.client.request.duration is the time that the provider takes. Outside, it contains the wait, and
// the provider seems slow when the quota is short.
package otelthrottle
