package algorithms

// token_bucket is a bucket of burst tokens that starts full and gains limit tokens a window. A
// unit takes a token: "10 a second, burst 15" sends 15 at once and 10 in every second after. The
// missing tokens are the time by which the theoretical arrival time of bucket is ahead.
//
// Source: the lazy-fill token bucket of Coinbase Exchange's rate limit page; J. S. Turner, "New
// directions in communications" (1986).
//
// Memory: two words, those of bucket.
var tokenBucketCounter = counter{name: "token_bucket", newRule: gcraCounter.newRule, rate: bucketRate, burst: true, steady: true}
