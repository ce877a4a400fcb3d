package algorithms

// The token bucket holds burst tokens at first and
// gains limit a window, a token admitting a unit. The tokens that are missing are
// what the theoretical arrival time is ahead by: "10 a second, burst 15" sends 15
// at once and 10 in every second after.
//
// Source: the lazy-fill token bucket of Coinbase Exchange's rate limit page;
// J. S. Turner, "New directions in communications" (1986).
var tokenBucketCounter = counter{name: "token_bucket", newRule: gcraCounter.newRule, rate: bucketRate, burst: true}
