package kept

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// Places and estimates that no process has are free, whatever the ledgers of several releases have made of them.
func TestPlacesOfNobodyAreFree(t *testing.T) {
	p, err := algorithms.NewPlan([]algorithms.Tier{
		{Limit: 5, Algorithm: algorithms.Concurrency}, {Limit: 100, Window: time.Second, Unit: "tokens", Estimated: true},
	}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s := New(nil, Options{Name: "kept", Ahead: true})
	opened, err := s.Open("nobody", p, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := p.NewLedger()
	l.Hold([]int64{3, 40})
	value := (&state{birth: 1, revision: 1, last: 1000, ledgers: []record{{text: planText(p), used: 1000, plan: p, ledger: l}}}).encode()
	txn, err := begin(value, View{Wall: 2000}, opened.(*reserving).quota)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range txn.ledger().Usage(txn.now) {
		if u.Used != 0 {
			t.Errorf("%d used, want 0", u.Used)
		}
	}
}
