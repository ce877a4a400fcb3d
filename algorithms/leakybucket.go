package algorithms

// leaky_bucket is a funnel that holds burst units and drains limit units a window. A request pours
// its units in, and is refused if they would spill. This is the bucket as a meter, not as a queue:
// a burst passes at once. Kraken's counter of at most 15 that falls by one every three seconds is
// 1 per 3s, burst 15. The level of the funnel is the time by which the theoretical arrival time of
// bucket is ahead.
//
// Source: ATM Forum, UNI 3.1 (1994), the continuous-state leaky bucket.
//
// Memory: two words, those of bucket.
var leakyBucketCounter = counter{name: "leaky_bucket", newRule: gcraCounter.newRule, rate: bucketRate, burst: true, steady: true}
