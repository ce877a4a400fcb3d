package algorithms

var concurrencyCounter = counter{
	name:     "concurrency",
	newRule:  func(t Tier, s site) rule { return &concurrency{s, t.Limit} },
	released: true,
}

// concurrency admits a request while at most limit units are open. A unit is open from its
// admission until its release, which is at the end of the response's body.
//
// Source: Stripe, "Scaling your API with rate limiters" (2017), the concurrent requests limiter.
//
// Memory: one word.
type concurrency struct {
	site
	limit int64
}

func (*concurrency) words() (words, rings int) { return 1, 0 }

func (r *concurrency) earliest(l *Ledger, now Moment, n int64) int64 {
	if l.word[r.word]+n <= r.limit {
		return now.At
	}
	return Never
}

// earliestTotal assumes that every place is free.
func (*concurrency) earliestTotal(_ *Ledger, now Moment, _ int64) int64 { return now.At }

func (r *concurrency) send(l *Ledger, _ Moment, n int64) { l.word[r.word] += n }

func (r *concurrency) release(l *Ledger, n int64) { l.word[r.word] = max(0, l.word[r.word]-n) }

func (*concurrency) land(*Ledger, Moment, int64) {}

func (r *concurrency) used(l *Ledger, _ Moment) int64 { return l.word[r.word] }

func (*concurrency) forget(*Ledger, Moment, int64) {}

func (r *concurrency) fresh(l *Ledger, now Moment) int64 {
	if l.word[r.word] > 0 {
		return Never
	}
	return now.At
}

func (r *concurrency) sound(l *Ledger) bool { return stored(l.word[r.word]) }

func (r *concurrency) recurs(l, o *Ledger, _ int64) bool { return l.word[r.word] == o.word[r.word] }
