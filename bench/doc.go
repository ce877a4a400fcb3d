// Package bench compares throttle with other limiters and with a floor, the smallest
// amount of code that makes the same decision. It is a module of its own, which keeps the
// other limiters out of the library's dependencies.
//
// "make bench", or here
//
//	go run ./cmd/table
//
// runs everything and prints the tables in Markdown. The libraries take turns in each case
// and each round. A machine whose speed changes therefore affects all of them alike: compare
// the ratios in a row, not the nanoseconds, and never the nanoseconds of two runs.
//
// BenchmarkLocal has these cases. None of them ever waits.
//
//	wait1           one tier, in a call that may wait
//	wait2           two tiers
//	wait2window     two tiers that are exact rolling windows, not buckets
//	wait2observed   wait2 with an Observer that does nothing
//	wait2stats      wait2 with the Observer of observe.Stats
//	roundtrip2      two tiers in front of an http.RoundTripper that responds immediately
//	allow1          one tier, in a call that never waits
//	allow1parallel  the same from two goroutines on one limiter
//	allow2parallel  two tiers, from two goroutines on one limiter
//
// If a library has no limiter of two tiers, the benchmark calls two limiters in a row, as
// the library's users must.
//
// BenchmarkPool has these cases, for a limiter and for pools of 1 and 16 members, each a token bucket.
//
//	wait, waitparallel   a call that may wait but never does, from one goroutine and from two
//	acquire, tryacquire  the same for a permit, which is released
//	trylast              tryacquire if only the last of 16 members has room
//	refused              tryacquire if no member has room
//
// BenchmarkPoolWaiting measures the memory and the goroutines of callers that wait in a limiter (0
// members) and in pools, and what joining and leaving take. BenchmarkPoolSaturated measures the processor
// time of an admission while 1,000 callers wait.
//
// BenchmarkWakeLateness, BenchmarkWakeSchedule and BenchmarkWakeBurst show how late a waiting caller
// returns, what that costs of a limit, and how long many callers take that are admitted together.
//
// BenchmarkBody compares a streamed body with the same one without a limiter. Both are read in turn.
//
// BenchmarkRedis has these cases, each with 1, 16, 64 or 256 concurrent callers that share
// one client and one key. None of them ever waits. This benchmark, and every other one that
// uses Redis, is skipped if PATH has no redis-server.
//
//	one, two  one or two GCRA tiers, decided by a Redis server on this machine
//	ping      a floor: PING
//	noop      a floor: a script that does nothing
//	incr      a floor: INCR, in shared pipelines of at most 64 callers
//
// The floor of one and two is the fastest of these three with the same number of callers.
// The tables also have the processor time of the server for each call. Redis uses one
// processor.
package bench
