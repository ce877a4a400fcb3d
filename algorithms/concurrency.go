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

func (r *concurrency) earliest(s *state, now Moment, n int64) int64 {
	if s.word[r.word]+n <= r.limit {
		return now.At
	}
	return Never
}

// earliestTotal assumes that every place is free.
func (*concurrency) earliestTotal(_ *state, now Moment, _ int64) int64 { return now.At }

func (r *concurrency) send(s *state, _ Moment, n int64) { s.word[r.word] += n }

func (r *concurrency) release(s *state, n int64) { s.word[r.word] = max(0, s.word[r.word]-n) }

func (*concurrency) land(*state, Moment, int64) {}

func (r *concurrency) used(s *state, _ Moment) int64 { return s.word[r.word] }

func (*concurrency) forget(*state, Moment, int64) {}

func (r *concurrency) fresh(s *state, now Moment) int64 {
	if s.word[r.word] > 0 {
		return Never
	}
	return now.At
}

func (r *concurrency) sound(s *state) bool { return stored(s.word[r.word]) }

func (r *concurrency) recurs(s, o *state, _ int64) bool { return s.word[r.word] == o.word[r.word] }
