package algorithms

// The leaky bucket is a funnel that holds burst units and drains limit a window; a
// request pours its units in and is refused where they would spill. It is the
// bucket as a meter, not as a queue: it lets a burst through at once. Its level is
// what the theoretical arrival time is ahead by: Kraken's counter of at most 15
// that falls by one every three seconds is 1 per 3s, burst 15.
//
// Source: ATM Forum, UNI 3.1 (1994), the continuous-state leaky bucket.
var leakyBucketCounter = counter{name: "leaky_bucket", newRule: gcraCounter.newRule, rate: bucketRate, burst: true}
