package queue

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// A tree keeps waiters in the order of their ranks. Waiters of equal rank are in the order of
// joining. It is a treap whose nodes are the waiters. Each node has the size and the cost of its
// subtree, so counting the waiters ahead of a rank and adding up their costs takes O(log n), as
// joining and leaving do.
type tree struct {
	root *waiter
	last uint64 // the highest number of a waiter that joined
}

// A node is a waiter's node of the tree. What leaving needs of the nodes above lies side by side,
// because in a long queue most of them are not in the processor's cache.
type node struct {
	left, right, parent *waiter
	// size is the number of waiters of the subtree, and byClass of those of each class.
	size    int
	byClass [3]int32
	// elsewhere is the number of waiters of the subtree that wait in other queues too. The others are firm.
	elsewhere int32
	// sum is the cost of the subtree, by unit.
	sum []int64
	// firmSum is the cost of the firm waiters if the subtree has both kinds. Otherwise it means nothing.
	firmSum *[]int64
	// mixed reports that the waiters of the subtree have different costs.
	mixed    bool
	priority uint32
	// few is the memory of sum, if that fits.
	few [2]int64
	// soonest is the soonest deadline in the subtree. If zero, there is none.
	soonest time.Time
}

func (t *tree) len() int { return t.root.count() }

func (w *waiter) count() int {
	if w == nil {
		return 0
	}
	return w.size
}

// before reports whether w is served before a waiter of a rank and number.
func (w *waiter) before(rank time.Time, number uint64) bool {
	if !w.rank.Equal(rank) {
		return w.rank.Before(rank)
	}
	return w.number < number
}

// ahead returns how many waiters are served before a waiter of a rank and number, and adds their cost
// to sum unless that is nil. The number of a newcomer is 0.
func (t *tree) ahead(rank time.Time, number uint64, sum []int64) (n int) {
	if number == 0 {
		number = t.last + 1
	}
	for at := t.root; at != nil; {
		if at.before(rank, number) {
			n += at.left.count() + 1
			at.left.addTo(sum)
			add(sum, at.Request.Cost)
			at = at.right
		} else {
			at = at.left
		}
	}
	return n
}

// firm returns the number of firm waiters of the subtree.
func (w *waiter) firm() int {
	if w == nil {
		return 0
	}
	return w.size - int(w.elsewhere)
}

// addFirm adds the cost of the firm waiters to sum.
func (w *waiter) addFirm(sum []int64) {
	switch {
	case w.firm() == 0:
	case w.elsewhere == 0:
		add(sum, w.sum)
	default:
		add(sum, *w.firmSum)
	}
}

// note counts a newcomer by its kind, before the size and the sum contain it.
func (w *waiter) note(n *newcomer) {
	were := w.elsewhere
	if n.Option != nil {
		w.elsewhere++
	}
	if w.elsewhere == 0 || int(w.elsewhere) > w.size {
		return // one kind
	}
	if were == 0 {
		w.setFirmSum(w.sum)
	} else if int(were) == w.size {
		w.setFirmSum(nil)
	}
	if n.Option == nil {
		add(*w.firmSum, n.Request.Cost)
	}
}

func (w *waiter) setFirmSum(sum []int64) {
	if w.firmSum == nil {
		w.firmSum = new([]int64)
		*w.firmSum = make([]int64, len(w.sum))
	}
	clear(*w.firmSum)
	copy(*w.firmSum, sum)
}

// updateKinds recomputes what note counts.
func (w *waiter) updateKinds() {
	w.elsewhere = 0
	for _, child := range []*waiter{w.left, w.right} {
		if child != nil {
			w.elsewhere += child.elsewhere
		}
	}
	if w.Option != nil {
		w.elsewhere++
	}
	if w.elsewhere == 0 || w.firm() == 0 {
		return
	}
	w.setFirmSum(nil)
	if w.Option == nil {
		add(*w.firmSum, w.Request.Cost)
	}
	w.left.addFirm(*w.firmSum)
	w.right.addFirm(*w.firmSum)
}

// firmAhead is ahead, but also returns how many of those are firm, and adds only the cost of these to sum.
func (t *tree) firmAhead(rank time.Time, number uint64, sum []int64) (n, firm int) {
	if number == 0 {
		number = t.last + 1
	}
	for at := t.root; at != nil; {
		if !at.before(rank, number) {
			at = at.left
			continue
		}
		n += at.left.count() + 1
		firm += at.left.firm()
		if at.left.addFirm(sum); at.Option == nil {
			firm++
			add(sum, at.Request.Cost)
		}
		at = at.right
	}
	return n, firm
}

// aheadByClass is ahead by class.
func (t *tree) aheadByClass(rank time.Time) (n [3]int) {
	for at := t.root; at != nil; {
		if !at.before(rank, t.last+1) {
			at = at.left
			continue
		}
		n[at.Class]++
		if at.left != nil {
			for c := range n {
				n[c] += int(at.left.byClass[c])
			}
		}
		at = at.right
	}
	return n
}

// at returns the i-th waiter, or nil if there is none.
func (t *tree) at(i int) *waiter {
	w := t.root
	for w != nil {
		switch left := w.left.count(); {
		case i < left:
			w = w.left
		case i == left:
			return w
		default:
			i -= left + 1
			w = w.right
		}
	}
	return nil
}

func (t *tree) first() *waiter { return t.at(0) }

func (t *tree) end() *waiter { return t.at(t.len() - 1) }

// next returns the waiter behind w, or nil if there is none.
func (w *waiter) next() *waiter {
	if w.right != nil {
		for w = w.right; w.left != nil; w = w.left {
		}
		return w
	}
	for w.parent != nil && w == w.parent.right {
		w = w.parent
	}
	return w.parent
}

func (w *waiter) addTo(sum []int64) {
	if w != nil {
		add(sum, w.sum)
	}
}

func add(sum, cost []int64) {
	if sum == nil {
		return
	}
	for u, n := range cost {
		sum[u] += n
	}
}

// insert adds w, which has a number, behind the waiters of its rank with lower numbers.
func (t *tree) insert(w *waiter) {
	t.last = max(t.last, w.number)
	w.node = node{priority: rand.Uint32(), size: 1, soonest: w.deadline}
	w.byClass[w.Class] = 1
	w.sum = append(w.few[:0], w.Request.Cost...)
	if w.Option != nil {
		w.elsewhere = 1
	}
	at := &t.root
	for *at != nil {
		parent := *at
		w.parent = parent
		parent.note(&w.newcomer)
		parent.size++
		parent.byClass[w.Class]++
		add(parent.sum, w.Request.Cost)
		parent.soonest = sooner(parent.soonest, w.deadline)
		parent.mixed = parent.mixed || !slices.Equal(parent.Request.Cost, w.Request.Cost)
		if parent.before(w.rank, w.number) {
			at = &parent.right
		} else {
			at = &parent.left
		}
	}
	*at = w
	for w.parent != nil && w.priority > w.parent.priority {
		t.rotate(w)
	}
}

// remove removes w.
func (t *tree) remove(w *waiter) {
	for w.left != nil && w.right != nil {
		child := w.left
		if w.right.priority > child.priority {
			child = w.right
		}
		t.rotate(child)
	}
	child := w.left
	if child == nil {
		child = w.right
	}
	*t.link(w) = child
	child.setParent(w.parent)
	for at := w.parent; at != nil; child, at = at, at.parent {
		at.subtract(w, child)
	}
	w.left, w.right, w.parent = nil, nil, nil
}

// all returns all waiters in their order.
func (t *tree) all() []*waiter {
	all := make([]*waiter, 0, t.len())
	for w := t.first(); w != nil; w = w.next() {
		all = append(all, w)
	}
	return all
}

// build makes a tree of waiters that were in a tree. It sorts them if their ranks have changed.
func (t *tree) build(waiters []*waiter) {
	byPlace := func(a, b *waiter) int {
		return cmp.Or(a.rank.Compare(b.rank), cmp.Compare(a.number, b.number))
	}
	if !slices.IsSortedFunc(waiters, byPlace) {
		slices.SortFunc(waiters, byPlace)
	}
	t.root = nil
	var spine []*waiter // from the root to the last waiter, each the right child of the one before
	for _, w := range waiters {
		w.sum, w.firmSum = append(w.few[:0], w.Request.Cost...), nil
		w.left, w.right, w.parent = nil, nil, nil
		for n := len(spine); n > 0 && spine[n-1].priority < w.priority; n-- {
			w.left, spine = spine[n-1], spine[:n-1]
			w.left.update()
		}
		w.left.setParent(w)
		if n := len(spine); n > 0 {
			spine[n-1].right, w.parent = w, spine[n-1]
		} else {
			t.root = w
		}
		spine = append(spine, w)
	}
	for _, w := range slices.Backward(spine) {
		w.update()
	}
}

// subtract updates the fields of w after a waiter has left the subtree of a child. It reads the
// children only where they decide.
func (w *waiter) subtract(left, child *waiter) {
	w.size--
	w.byClass[left.Class]--
	for u, n := range left.Request.Cost {
		w.sum[u] -= n
	}
	if left.Option != nil {
		w.elsewhere--
	} else if w.elsewhere > 0 && w.firm() > 0 {
		for u, n := range left.Request.Cost {
			(*w.firmSum)[u] -= n
		}
	}
	w.mixed = w.mixed && (w.differs(child) || w.differs(w.left) || w.differs(w.right))
	if !left.deadline.IsZero() && w.soonest.Equal(left.deadline) {
		w.updateSoonest()
	}
}

// setCost changes the cost of w.
func (w *waiter) setCost(cost []int64) {
	w.Request.Cost = cost
	for at := w; at != nil; at = at.parent {
		at.update()
	}
}

// link returns the pointer to w.
func (t *tree) link(w *waiter) **waiter {
	switch p := w.parent; {
	case p == nil:
		return &t.root
	case w == p.left:
		return &p.left
	default:
		return &p.right
	}
}

// rotate moves w above its parent.
func (t *tree) rotate(w *waiter) {
	p := w.parent
	*t.link(p) = w
	w.parent, p.parent = p.parent, w
	if w == p.left {
		p.left, w.right = w.right, p
		p.left.setParent(p)
	} else {
		p.right, w.left = w.left, p
		p.right.setParent(p)
	}
	p.update()
	w.update()
}

func (w *waiter) setParent(p *waiter) {
	if w != nil {
		w.parent = p
	}
}

// update recomputes the fields of w from its children.
func (w *waiter) update() {
	w.size, w.byClass, w.mixed = 1, [3]int32{}, false
	w.byClass[w.Class] = 1
	copy(w.sum, w.Request.Cost)
	for _, child := range []*waiter{w.left, w.right} {
		if child != nil {
			w.size += child.size
			for c, n := range child.byClass {
				w.byClass[c] += n
			}
			add(w.sum, child.sum)
			w.mixed = w.mixed || w.differs(child)
		}
	}
	w.updateKinds()
	w.updateSoonest()
}

func (w *waiter) updateSoonest() {
	w.soonest = w.deadline
	if w.left != nil {
		w.soonest = sooner(w.soonest, w.left.soonest)
	}
	if w.right != nil {
		w.soonest = sooner(w.soonest, w.right.soonest)
	}
}

// sooner returns the earlier of two deadlines. Zero is no deadline.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// differs reports whether a waiter in the subtree of a child has another cost than w.
func (w *waiter) differs(child *waiter) bool {
	return child != nil && (child.mixed || !slices.Equal(child.Request.Cost, w.Request.Cost))
}

// costs reports whether all waiters have that cost.
func (t *tree) costs(cost []int64) bool {
	return t.root == nil || !t.root.mixed && slices.Equal(t.root.Request.Cost, cost)
}
