package kept

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// A memory is a keeper of one value.
type memory struct{ value []byte }

func (m *memory) Update(_ context.Context, _ [][]byte, change func(View) ([]Write, error)) error {
	now := time.Now()
	v := View{Values: [][]byte{append([]byte(nil), m.value...)}, Wall: now.UnixMicro(), Sent: now, Got: now}
	if m.value == nil {
		v.Values[0] = nil
	}
	writes, err := change(v)
	if err == nil && writes[0].Value != nil {
		m.value = writes[0].Value
	}
	return err
}

// Many requests leave nothing behind: neither in the process nor in the value.
func TestRequestsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan, err := algorithms.NewPlan([]algorithms.Tier{
			{Limit: 5, Algorithm: algorithms.Concurrency},
			{Limit: 100, Window: time.Second, Algorithm: algorithms.GCRA, Unit: "tokens", Estimated: true, Burst: 100},
		}, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		m := new(memory)
		s := New(m, Options{Name: "kept", Ahead: true})
		opened, err := s.Open("key", plan, nil)
		if err != nil {
			t.Fatal(err)
		}
		q := opened.(*reserving)
		cost, actual := []int64{1, 1}, []int64{0, 1}
		for i := range soak.Times(20_000) {
			d, err := q.TryAcquire(t.Context(), store.Request{Cost: cost, Held: true})
			if err != nil || d.Verdict != store.Admitted {
				t.Fatal(i, d, err)
			}
			if i%3 == 0 {
				_ = q.Return(t.Context(), d, cost)
			} else {
				q.Settle(d, cost, actual, nil)
				q.Release(d, cost)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := q.Status(t.Context()); err != nil { // which confirms the last settlement
			t.Fatal(err)
		}
		l := q.lease
		l.mu.Lock()
		if len(l.ahead) > 1 || l.held[0]|l.held[1] != 0 || l.hasNews() {
			t.Errorf("the process keeps %d requests ahead, and holds %v", len(l.ahead), l.held)
		}
		l.mu.Unlock()
		if st, err := parse(m.value); err != nil || len(st.owners)+len(st.book) > 0 || len(m.value) > 300 {
			t.Errorf("the value has %d bytes, %d owners and %d bookings, %v", len(m.value), len(st.owners), len(st.book), err)
		}
		if len(q.pending)+len(q.probes)+len(q.watchers) > 0 {
			t.Errorf("the process keeps %d changes and %d probes", len(q.pending), len(q.probes))
		}
		q.Close()
		time.Sleep(time.Minute)
		if len(s.entries) > 0 {
			t.Error("the process keeps the entry of a closed quota")
		}
	})
}
