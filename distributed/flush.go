package distributed

import (
	"context"
)

// Flush sends Redis everything that this process still has to report, and returns when that is
// done: it returns unused reservations and released permits, gives up the turns and the places in
// queues that no caller needs any more, settles estimates, repeats reports that failed, and charges
// requests that were sent in a fallback. It returns the context's error, or the error of the first
// call that failed, which is throttle.ErrUnavailable if Redis was away.
//
// A program calls Flush at shutdown, when its callers have returned and its responses are read, and
// before it closes the client. Flush blocks for some round trips, for Options.Timeout if Redis does
// not answer, and for up to Policy.Guard behind an estimated request that failed, because such a
// request may still arrive. Other goroutines may use the store meanwhile: Flush waits for reports
// that began before it and for those that follow from them, not for later ones. Waiting callers and
// requests in flight keep their reservations and permits.
//
// Without Flush nothing is admitted twice. Unused reservations stay charged, and leases end by
// themselves.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.validate(); err != nil {
		return err
	}
	for range deepest {
		s.debtors.Range(func(q, _ any) bool {
			s.reports.Background(q.(*quota).newest().repay)
			return true
		})
		s.lessees.Range(func(l, _ any) bool {
			l.(*leases).retryReport()
			return true
		})
		if err := s.reports.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// deepest is the length of the longest chain of reports that follow from each other: a call may
// reserve times that no caller needs, and another call returns them.
const deepest = 3
