package batch

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimitsThatHang has a store that never reports its state. The progress goes on without it: the time left
// follows from the items that are over.
func TestLimitsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var all []Progress
		p := &reporter{
			progress: func(p Progress) { all = append(all, p) }, log: slog.New(slog.DiscardHandler),
			ask: func(ctx context.Context) status {
				asked++
				<-ctx.Done()
				return status{}
			},
			ended: func() error { return nil }, panicked: func(error) {}, count: newTally(1_000), left: newEstimate(10),
			answers: make(chan status, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
		}
		go p.run(time.Second)
		for range 500 {
			p.count.start()
			time.Sleep(100 * time.Millisecond)
			p.count.done()
		}
		close(p.stop)
		<-p.stopped
		if asked < 4 || asked > 6 {
			t.Errorf("asked %d times", asked)
		}
		if n := len(all); n < 50 || n > 51 || !all[n-1].Final {
			t.Fatalf("%d calls", n)
		}
		for _, p := range all[10:40] {
			if d := p.TimeLeft - (100*time.Second - p.Elapsed); !p.TimeLeftKnown || d.Abs() > 2*time.Second || p.Rate < 9.5 || p.Rate > 10.5 {
				t.Errorf("%v: %v left, %v/s", p.Elapsed, p.TimeLeft, p.Rate)
			}
		}
	})
}
