// Package bench compares throttle with other limiters, and with a floor: the
// least code that could decide the same. It is a module of its own, so that
// their code stays out of the library's dependencies.
//
// "make bench", or here
//
//	go run ./cmd/table
//
// runs everything and prints the tables in Markdown. The libraries take turns,
// case by case and round by round, so that a machine that changes its speed
// changes it for all of them. The ratios in a row are therefore worth more than
// its nanoseconds, and nanoseconds from two runs are not worth comparing.
//
// The cases of BenchmarkLocal, none of which ever has to wait:
//
//	wait1           one tier, waiting if need be
//	wait2           two tiers
//	wait2window     two tiers that are exact rolling windows, not buckets
//	roundtrip2      two tiers in front of an http.RoundTripper that answers at once
//	allow1          one tier, now or not at all
//	allow1parallel  the same from two goroutines on one limiter
//	allow2parallel  two tiers, from two goroutines on one limiter
//
// A library without a limiter of two tiers uses two limiters in a row, as its
// users have to.
//
// The cases of BenchmarkRedis, with 1, 16, 64 or 256 callers at a time who share one
// client and one key, and never have to wait either. Without a redis-server in the
// PATH it is skipped, and so is all else that wants one.
//
//	one, two  so many tiers of GCRA, decided by a Redis server on this machine
//	ping      of the floor: PING
//	noop      of the floor: a script that does nothing
//	incr      of the floor: INCR, in pipelines of at most 64 that callers share
//
// The floor of one and two is the fastest of these for as many callers. Beside the
// time there is what a call takes of the server's processor, of which Redis uses one.
package bench
