package simulate

import (
	"context"
	"errors"
	"time"
)

// A Pooled is how a Batch goes over several policies as the members of a throttle.Pool.
type Pooled struct {
	// Shares are the requests that each policy admits.
	Shares []int64

	// Length is the time until the last response is in.
	Length time.Duration

	// Refused reports that budgets refuse the requests beyond the Shares.
	Refused bool
}

// PlayPool plays a batch over several policies, whose Batches differ by policy and cost alone. Each request goes
// to the policy that admits it first. Without a bound on the workers no policy waits for another one, so each
// admits what it would admit alone until the last request of the batch has gone. A policy that never admits a
// request has no share, unless none admits any: then PlayPool returns the error of the first.
func PlayPool(ctx context.Context, batches []Batch) (*Pooled, error) {
	runs, first := make([]*Run, len(batches)), error(nil)
	until := time.Duration(0) // the shortest of the runs so far
	for i, b := range batches {
		b.Workers = 0
		b.until = until
		run, err := b.Play(ctx)
		switch never := (*NeverError)(nil); {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && err != errLong && !errors.As(err, &never):
			return nil, err
		case err != nil && first == nil:
			first = err
		}
		if runs[i] = run; run != nil && err == nil && run.Refused == nil && run.Total() >= b.Count {
			until = run.Length() // else it would have ended before
		}
	}
	return pooled(runs, batches[0].Count, batches[0].Answers, first)
}

// pooled returns how a number of requests goes over runs of as many each.
func pooled(runs []*Run, count int64, answers time.Duration, first error) (*Pooled, error) {
	admitted := func(at time.Duration) (all int64) {
		for _, r := range runs {
			if r != nil {
				all += r.Admitted(at)
			}
		}
		return all
	}
	p := &Pooled{Shares: make([]int64, len(runs))}
	total := admitted(mostLength)
	if total < count && (first != nil || total == 0) {
		return nil, first
	}
	p.Refused = total < count
	need := min(total, count)
	before, last := time.Duration(-1), mostLength
	for last-before > 1 {
		if at := before + (last-before)/2; admitted(at) >= need {
			last = at
		} else {
			before = at
		}
	}
	for i, r := range runs {
		if r != nil {
			p.Shares[i] = min(need, r.Admitted(last))
			need -= p.Shares[i]
		}
	}
	if total > 0 && count > 0 {
		p.Length = last + answers
	}
	return p, nil
}
