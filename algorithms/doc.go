// Package algorithms implements the counters that providers use, as arithmetic without clock,
// lock or I/O.
//
// A [Tier] describes what a provider counts and how. A [Plan] is a set of tiers, validated and
// ready to decide. A [Ledger] is the state of one quota. It decides over all tiers at once.
//
// # In flight
//
// A provider counts a request when the request arrives, and the caller does not know that
// instant. So an admitted request is in flight until its response is in, but no longer than the
// plan's guard. Then it lands. While it is in flight, it counts in full in every tier, and its
// window starts when it lands. The provider therefore accepts it, whenever it arrives in between.
// With a guard of 50 ms and responses after 10 ms, "5 per second" sends five requests every
// 1.01 s. A slower response costs its own round trip, at most 50 ms.
//
// # Time and numbers
//
// Instants are whole microseconds in an int64. Rates stay a pair (Limit, Window), and products
// take 128 bits: in the long run, 1 a month and 3,000,000 a second are both exact. Waits round up.
//
// Before v1.0.0 what the root package does not name may change in any minor version: see
// docs/compatibility.md.
package algorithms
