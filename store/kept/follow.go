package kept

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// Processes whose plans have the same base share what they take over from responses. The text of such a plan
// contains the base and what was taken over. Of two plans of one base, the newer one replaces the other: a
// transaction of a process whose plan is older changes the plan instead of deciding.

// between stands between a plan, its base and what it has taken over, in a text. No tier contains it.
const between = " | "

// textsOf returns the text of a plan as a store keeps it, and the text of its base, as it was given.
func textsOf(given *algorithms.Plan, mostStamps int64) (text, base string) {
	text = planText(given.WithShortLogs(mostStamps))
	if !given.Follows() {
		return text, text
	}
	f := given.Followed()
	if base = planText(given.Base()); f.At == 0 && text == base {
		return text, base
	}
	taken := strconv.FormatInt(f.At, 10)
	for _, limit := range f.Limits {
		taken += " " + strconv.FormatInt(limit, 10)
	}
	return text + between + base + between + taken, base
}

// splitText returns the parts of a text.
func splitText(text string) (plan, base string, f algorithms.Followed, err error) {
	plan, rest, follows := strings.Cut(text, between)
	if !follows {
		return plan, plan, f, nil
	}
	base, taken, _ := strings.Cut(rest, between)
	for i, field := range strings.Fields(taken) {
		n, bad := strconv.ParseInt(field, 10, 64)
		if err = errors.Join(err, bad); i == 0 {
			f.At = n
		} else {
			f.Limits = append(f.Limits, n)
		}
	}
	if taken == "" {
		err = fmt.Errorf("%q does not contain what was taken over", text)
	}
	return plan, base, f, err
}

// isNewer reports whether a plan that has taken over f is newer than one of the same base that has taken over g. Responses
// to requests of one instant may differ: then the one that has taken over more is newer, and else lower limits are.
func isNewer(f, g algorithms.Followed) bool {
	count := func(limits []int64) (n int) {
		for _, limit := range limits {
			if limit > 0 {
				n++
			}
		}
		return n
	}
	return cmp.Or(cmp.Compare(f.At, g.At), cmp.Compare(count(f.Limits), count(g.Limits)), slices.Compare(g.Limits, f.Limits)) > 0
}

// errMoved is the error of a transaction that has not decided, because the quota has a successor now.
var errMoved = errors.New("the quota has a successor")

// Behind is the error of a transaction of a quota whose plan is older than another one of its base.
type behind struct {
	quota *quota
	// newer is what that plan has taken over.
	newer algorithms.Followed
}

func (*behind) Error() string { return errMoved.Error() }

// catchUp replaces the plan by the newer one.
func (b *behind) catchUp() {
	q := b.quota
	if q.line.Replace(q.version, q.given.Following(b.newer)) {
		q.notify(store.Replanned, 0)
	}
}

// follow replaces the plan by a newer one of the same base, for this process at once. The next transaction
// tells the others. It reports whether the plan has the same base.
func (q *quota) follow(plan *algorithms.Plan) bool {
	for {
		q = q.newest()
		if !plan.Follows() || !plan.Continues(q.given) {
			return false
		}
		if !isNewer(plan.Followed(), q.given.Followed()) {
			return true
		}
		if q.line.Replace(q.version, plan) {
			break
		}
	}
	q.notify(store.Replanned, 0)
	q.entry.mu.Lock()
	q.pending = append(q.pending, pending{func(t *txn) { t.changed = true }, true})
	q.entry.mu.Unlock()
	q.reportAfter(0)
	return true
}
