package queue

// away are the waiters that wait for another quota: see Turn.StepAside. They are not in the line.
type away struct {
	tree
	// recalled is the number of them that must come back before any waiter may ask.
	recalled int
}

// cancel cancels the calls of Ticket.Ask of all waiters. They come back and ask again.
func (a *away) cancel() {
	for _, w := range a.all() {
		w.recall()
	}
}

// recall makes all waiters come back before any waiter may ask.
func (a *away) recall() {
	for _, w := range a.all() {
		if !w.recalled {
			w.recalled = true
			a.recalled++
		}
		w.recall()
	}
}

// forget ends the absence of a waiter, which the queue may have refused meanwhile.
func (a *away) forget(w *waiter) {
	if w.recall = nil; w.recalled {
		w.recalled = false
		a.recalled--
	}
	if !w.out.Load() {
		a.remove(w)
	}
}

// costAhead returns the cost of the waiters ahead of w, which is not away. It is nil if there are none.
func (a *away) costAhead(w *waiter) []int64 {
	sum := make([]int64, len(w.Request.Cost))
	if a.ahead(w.rank, w.number, sum) == 0 {
		return nil
	}
	return sum
}
