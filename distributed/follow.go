package distributed

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/apithrottle/throttle/algorithms"
)

// errFollowed is the error of a call that changed nothing, because the state has limits that responses have
// named later than those of the call. The quota then has a successor with these limits. The call must be
// repeated under the successor.
var errFollowed = errors.New("distributed: the limits of a quota have changed meanwhile")

// unlessFollowed returns the error of a call that another call repeats.
func unlessFollowed(err error) error {
	if err == errFollowed {
		return nil
	}
	return err
}

// heed takes over the limits with which the script has replied instead of running the call.
func (c *call) heed() {
	if c.err == nil {
		return
	}
	_, text, found := strings.Cut(c.err.Error(), "THROTTLE follow ")
	for _, q := range append([]*quota{c.quota}, c.around...) {
		if numbers, own := strings.CutSuffix(text, " "+q.key); found && own && q.follow(parseNumbers(numbers)) {
			c.err = errFollowed
		}
	}
}

func parseNumbers(text string) (numbers []int64) {
	for word := range strings.FieldsSeq(text) {
		n, _ := strconv.ParseInt(word, 10, 64)
		numbers = append(numbers, n)
	}
	return numbers
}

// follow takes over limits that another process has: their number, the hash of the policy and the limits
// of its tiers, see plan.lua. They may be bounded by another release of the policy. So the process takes
// over the number even if its own bounds leave the limits as they are. It reports whether the quota has a
// successor.
func (q *quota) follow(named []int64) bool {
	for n := q.newest(); ; n = n.newest() {
		was := n.plan.Followed()
		if len(named) < 2 || named[0] < was.At || named[0] == was.At && slices.Equal(named[2:], was.Limits) ||
			!n.plan.Follows() || named[1] != policyHash(n.plan.Base()) {
			return n != q
		}
		if n.lineage.Replace(n.version, n.plan.Following(algorithms.Followed{At: named[0], Limits: named[2:]})) {
			return true
		}
	}
}

// hasNews reports whether limits that another process has are later than those of the quota.
func (q *quota) hasNews(named []int64) bool {
	return len(named) > 2 && q.plan.Follows() && named[0] > q.plan.Followed().At
}

// Change replaces the plan for all quotas that this process has opened under the key. The script
// converts the state with the next call. For a plan that has taken over limits, a goroutine makes that
// call at once, so that the fleet has them too.
func (q *quota) Change(_ context.Context, plan *algorithms.Plan) error {
	if plan.Followed().At == 0 {
		q.lineage.Change(plan)
		return nil
	}
	for n := q.newest(); plan.Replaces(n.plan); n = n.newest() {
		if n.lineage.Replace(n.version, plan) {
			q.store.reports.Background(func() error {
				_, _, _, err := q.ask(context.Background(), opStatus)
				return err
			})
			break
		}
	}
	return nil
}
