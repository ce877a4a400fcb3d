// Package algorithms holds the counters that providers use, as arithmetic: no
// clock, no lock, no I/O. A [Tier] says what a provider counts and how; a [Plan]
// is a set of tiers made ready; a [Ledger] is what one quota remembers, and
// decides over all tiers at once.
//
// # On its way
//
// A limit holds where the provider counts, which is where the request arrives,
// and nobody knows that instant. So an admitted request is on its way until its
// response is in, or for the plan's guard at most. All that time it counts in
// full in every tier, and only when it has landed does its window begin to run.
// Whatever instant in between the provider stamps, it refuses nothing. With a
// guard of 50 ms and answers after 10 ms, "5 per second" sends five requests
// every 1.01 s; a slower answer costs its own round trip and at most 50 ms.
//
// # Time and numbers
//
// Instants are whole microseconds in an int64, rates stay a pair (Limit, Window),
// and products take 128 bits: 1 a month and 3,000,000 a second are both exact in
// the long run. Waits round up.
package algorithms
