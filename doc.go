// Package throttle keeps a program's outbound calls inside the limits of the APIs
// it pays for, so that the provider never has to say 429 and nothing of the quota
// is left unused.
//
//	lim, err := throttle.New(throttle.Policy{
//		Name:  "coinbase",
//		Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10000)},
//	}, nil)
//	client := &http.Client{Transport: &throttle.Transport{Limiter: lim}}
//
// There are three things to know: a [Policy] says what the provider allows, a
// [Limiter] admits requests under it, and a [Transport] is an http.RoundTripper that
// asks the limiter before it sends.
//
// # Policies
//
// A policy is a set of tiers, all of which must admit a request: 5 a second and
// 10,000 an hour. They are one decision. A request is charged in all of them or in
// none, at one instant.
//
// A [Tier] says how much, and also how the provider counts it, because no single
// counter is right for every provider. "5 a second" may mean that any second holds
// at most five, or that each second of the clock does, or that a bucket of five
// tokens gains one every 200 ms: a client of the third kind sends nine requests in
// its first second, which providers of the first two refuse. Name the provider's counter in
// Tier.Algorithm. If its documentation is silent, keep the default, [SlidingLog]: it
// is safe wherever the provider counts by a log, by windows of the clock, by a window
// that opens with the first request, or by a bucket that holds at least Limit. It is
// not safe against [WeightedWindow], nor against a bucket that holds less than Limit,
// such as one that wants equal spacing: those must be declared.
//
// [ParsePolicy] reads policies from text, "5/s + 10000/h", for flags and
// configuration files.
//
// # Waiting
//
// Wait(ctx) blocks until one request may be sent, and WaitN until n may. Acquire takes a
// [Cost] in several units and returns a [Permit]. Allow and TryAcquire never wait.
// Callers are admitted in the order in which they came, except that a [Class] may go
// first. They hold places, not tokens: a canceled caller leaves no trace in the queue.
//
// A wait that is known to outlast the context's deadline or Policy.MaxWait is
// refused at once with [ErrDeadline], and a cost that no tier will ever admit with
// [ErrExceedsCapacity]. Both cost nothing. Every refusal is a [*WaitError]. Forecast returns how
// long a request would wait now, and SetPolicy changes the limits while callers wait.
//
// # What goes first
//
// A batch job and the requests of users who wait may share one quota. Each call says
// with its context what it is, WithClass(ctx, Interactive) or Batch, and the users' calls
// go first. Nobody starves: after Policy.Aging a Batch request counts as a Normal one
// that has just come, and after as long again as an Interactive one. Policy.Headroom is
// the part of every tier that Batch requests leave to the others, so that these need not
// wait for a window that a job has filled.
//
// # Limits hold where the provider counts
//
// Between admission and arrival a request is late by an unknown time, and a limit
// that is kept to the microsecond at home is broken at the provider by the jitter
// of the network. So an admitted request is in flight until its response comes, or
// for Policy.Guard (50 ms if not set) at most; all that time it counts in full, and
// only then does its window begin to run. An error is no response: the request may still
// arrive. Whatever instant in between the provider
// stamps, it refuses nothing. With answers after 10 ms, "5 a second" becomes five
// requests every 1.01 s, while ten thousand an hour stays what it is.
//
// A Transport and a Permit report the response. Wait and Allow cannot, so that
// their requests are on their way for the whole of Guard. If requests can take
// longer than Guard to reach the provider, raise it, or have it learned: [AutoGuard].
// A server that takes seconds to answer costs a one-second tier the whole Guard each
// time; AutoGuard finds that the network is quicker than the server.
//
// # What nobody told
//
// Of what an earlier process sent, a limiter in this process knows nothing. A Policy
// of [AssumeUsed] takes all for used at first; a store that survives knows better. A
// [FixedWindow] whose boundaries are not known has [UnknownPhase]: it is rolling until
// responses tell. And a tier that should last, 10,000 an hour without a rush in the
// first minutes, has a PaceBurst: so many at once, the others evenly.
//
// # Budgets
//
// A [Calendar] tier counts by the day, week or month of a time zone, in requests or any
// other unit, such as millionths of a dollar: see [Budget]. A tier that is a budget keeps
// nobody waiting: what it has no room for is refused at once with [ErrExhausted], before
// anything is charged or sent. [Alert] tells when part of it is spent.
//
// # Refusals
//
// Should a response still be a 429, or a 503 with Retry-After, the quota is paused
// for everyone who shares it, those who already wait too; then one request tries, and
// the others follow its answer. If the provider asks for more than Policy.MaxPause, or
// bans, callers get [ErrBanned] with the time it ends instead of sleeping for hours. The
// response is handed on as it is; package retry makes an http.Client that sends again
// what was refused.
//
// # What responses tell
//
// A Transport's Profile says, as data, where a provider's responses tell what is left,
// what was charged, and what is a refusal: see package answers, and package providers
// for those of well-known APIs with their limits.
//
// A tier whose Unit is known only afterwards, such as a language model's tokens, is
// Estimated: [Transport].Cost says what a request may cost, and that counts as on its way
// until the response, or [Permit].Settle, says what it did.
//
// # Who goes first
//
// [WithClass] gives the requests of a context a [Class]: users go before batch jobs, who
// leave Policy.Headroom to them, and nobody starves. [Limiter.Within] puts a limit inside
// another: an endpoint's inside its account's.
//
// # Quotas by key
//
// A [Group] keeps one quota per host, API key or account, and its For is a
// Transport's Route.
//
// # Stores
//
// New with a nil store keeps the quota in this process: one lock, one clock read and
// no allocation for a decision, no goroutine and no timer for a limiter at rest. A
// [Store] shares quotas by the policy's name: that of package distributed among the
// processes of a fleet, through Redis or Valkey, that of package host among those of
// one host, in a file.
package throttle
