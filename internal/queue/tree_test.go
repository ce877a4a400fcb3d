package queue

import (
	"cmp"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// sorted is a slice that models a tree.
type sorted []*waiter

func (s sorted) sum(to int) []int64 {
	sum := make([]int64, 2)
	for _, w := range s[:to] {
		add(sum, w.Request.Cost)
	}
	return sum
}

// firm returns the waiters that wait in no other queue.
func (s sorted) firm() (firm sorted) {
	for _, w := range s {
		if w.Option == nil {
			firm = append(firm, w)
		}
	}
	return firm
}

// place returns the index of a newcomer of a rank: behind waiters of equal rank.
func (s sorted) place(rank time.Time) int {
	i := slices.IndexFunc(s, func(w *waiter) bool { return w.rank.After(rank) })
	if i < 0 {
		return len(s)
	}
	return i
}

// check compares all results of the tree with the slice.
func (s sorted) check(t *testing.T, tree *tree, random *rand.Rand) {
	t.Helper()
	if tree.len() != len(s) {
		t.Fatalf("%d waiters, want %d", tree.len(), len(s))
	}
	if tree.at(-1) != nil || tree.at(len(s)) != nil {
		t.Fatal("the tree has a waiter beyond its ends")
	}
	rank := time.Unix(random.Int64N(20), 0)
	sum := make([]int64, 2)
	n := tree.ahead(rank, 0, sum)
	want := s.place(rank)
	if n != want || !slices.Equal(sum, s.sum(n)) {
		t.Fatalf("%d waiters of cost %v are ahead of %v, want %d of cost %v", n, sum, rank, want, s.sum(want))
	}
	firm := s[:n].firm()
	clear(sum)
	if all, got := tree.firmAhead(rank, 0, sum); all != n || got != len(firm) || !slices.Equal(sum, firm.sum(len(firm))) {
		t.Fatalf("%d waiters, of which %d of cost %v are firm, are ahead of %v, want %d, %d and %v", all, got, sum, rank, n, len(firm), firm.sum(len(firm)))
	}
	var classes [3]int
	for _, w := range s[:n] {
		classes[w.Class]++
	}
	if got := tree.aheadByClass(rank); got != classes {
		t.Fatalf("%v of the classes are ahead of %v, want %v", got, rank, classes)
	}
	for _, cost := range [][]int64{{1, 0}, {0, 3}, {2, 3}} {
		want := !slices.ContainsFunc(s, func(w *waiter) bool { return !slices.Equal(w.Request.Cost, cost) })
		if tree.costs(cost) != want {
			t.Fatalf("all of %d waiters cost %v: %v, want %v", len(s), cost, !want, want)
		}
	}
	if len(s) == 0 {
		if tree.first() != nil || tree.end() != nil {
			t.Fatal("an empty tree has waiters")
		}
		return
	}
	if tree.first() != s[0] || tree.end() != s[len(s)-1] {
		t.Fatal("wrong first or last waiter")
	}
	i := random.IntN(len(s))
	sum = make([]int64, 2)
	if n := tree.ahead(s[i].rank, s[i].number, sum); n != i || !slices.Equal(sum, s.sum(i)) || tree.at(i) != s[i] {
		t.Fatalf("waiter %d has %d waiters ahead of cost %v, want cost %v", i, n, sum, s.sum(i))
	}
	if next := s[i].next(); i+1 < len(s) && next != s[i+1] || i+1 == len(s) && next != nil {
		t.Fatalf("wrong waiter behind %d of %d", i, len(s))
	}
}

// randomWaiter returns a waiter of one of so many kinds of costs, which waits in other queues too with a
// probability of elsewhere/4.
func randomWaiter(random *rand.Rand, kinds, elsewhere int) *waiter {
	var deadline time.Time
	if random.IntN(3) > 0 {
		deadline = time.Unix(random.Int64N(1000), 0)
	}
	t := ticket([][]int64{{1, 0}, {0, 3}, {2, 3}}[random.IntN(kinds)]...).of(Class(random.IntN(3)))
	if random.IntN(4) < elsewhere {
		t.Option = new(Option)
	}
	return &waiter{newcomer: newcomer{deadline: deadline, rank: time.Unix(random.Int64N(20), 0), Ticket: t}}
}

func TestTree(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 0))
		tree, model := new(tree), sorted{}
		size, kinds, elsewhere := 1+random.IntN(200), 1+random.IntN(3), random.IntN(5)
		for range 600 {
			if len(model) > 0 && random.IntN(8) == 0 {
				model[random.IntN(len(model))].setCost(randomWaiter(random, kinds, 0).Request.Cost)
			} else if len(model) == 0 || len(model) < size && random.IntN(2) == 0 {
				w := randomWaiter(random, kinds, elsewhere)
				i := model.place(w.rank)
				w.number = tree.last + 1
				tree.insert(w)
				model = slices.Insert(model, i, w)
			} else {
				i := random.IntN(len(model))
				tree.remove(model[i])
				model = slices.Delete(model, i, i+1)
			}
			model.check(t, tree, random)
			if random.IntN(50) == 0 {
				checkNodes(t, tree.root, nil)
			}
			if random.IntN(100) == 0 {
				tree.rebuild(random, model)
				checkNodes(t, tree.root, nil)
			}
		}
		for len(model) > 0 {
			tree.remove(model[0])
			model = model[1:]
		}
		model.check(t, tree, random)
	}
}

// rebuild builds the tree anew, with other ranks and costs in half of the cases.
func (t *tree) rebuild(random *rand.Rand, model sorted) {
	all := t.all()
	if random.IntN(2) == 0 {
		for _, w := range model {
			w.rank, w.Request.Cost = time.Unix(random.Int64N(20), 0), []int64{random.Int64N(3), random.Int64N(3)}
		}
		slices.SortFunc(model, func(a, b *waiter) int {
			return cmp.Or(a.rank.Compare(b.rank), cmp.Compare(a.number, b.number))
		})
	}
	t.build(all)
}

// checkNodes checks every node of a subtree.
func checkNodes(t *testing.T, w, parent *waiter) (size int, sum []int64) {
	if sum = make([]int64, 2); w == nil {
		return 0, sum
	}
	if w.parent != parent || parent != nil && w.priority > parent.priority {
		t.Fatalf("a node has a wrong parent, or a higher priority than its parent")
	}
	left, leftSum := checkNodes(t, w.left, w)
	right, rightSum := checkNodes(t, w.right, w)
	size = left + 1 + right
	add(sum, w.Request.Cost)
	add(sum, leftSum)
	add(sum, rightSum)
	soonest := w.deadline
	for _, child := range []*waiter{w.left, w.right} {
		if child != nil && !child.soonest.IsZero() && (soonest.IsZero() || child.soonest.Before(soonest)) {
			soonest = child.soonest
		}
	}
	if !w.soonest.Equal(soonest) {
		t.Fatalf("the soonest deadline of a subtree is %v, want %v", w.soonest, soonest)
	}
	if w.size != size || !slices.Equal(w.sum, sum) {
		t.Fatalf("a subtree of %d waiters of cost %v has size %d and sum %v", size, sum, w.size, w.sum)
	}
	return size, sum
}

// TestTreeDepth tests that a place is found in O(log n) steps, in whatever order waiters join.
func TestTreeDepth(t *testing.T) {
	const n = 1 << 14
	orders := map[string]func(i int) int64{
		"in order":    func(i int) int64 { return int64(i) },
		"reverse":     func(i int) int64 { return int64(-i) },
		"at once":     func(int) int64 { return 0 },
		"alternating": func(i int) int64 { return int64(i % 3 * n) },
	}
	for name, rank := range orders {
		tree := new(tree)
		for i := range n {
			w := &waiter{newcomer: newcomer{rank: time.Unix(rank(i), 0), Ticket: ticket(1)}}
			w.number = uint64(i + 1)
			tree.insert(w)
		}
		if d := depth(tree.root); d > 5*bits.Len(n) { // exceeded with a probability below 10^-9
			t.Errorf("%s: %d waiters are %d levels deep", name, n, d)
		}
	}
}

func depth(w *waiter) int {
	if w == nil {
		return 0
	}
	return 1 + max(depth(w.left), depth(w.right))
}
