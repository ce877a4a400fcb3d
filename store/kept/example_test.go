package kept_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
	"github.com/apithrottle/throttle/store/storetest"
)

// A table is a keeper in memory. In a database the rows are in a table, the lock is one for each row, and the
// clock is the server's.
type table struct {
	mu   sync.Mutex // guards rows
	rows map[string][]byte
}

func (t *table) Update(_ context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	view := kept.View{Sent: time.Now()}
	t.mu.Lock() // BEGIN; SELECT … ORDER BY name FOR UPDATE
	defer t.mu.Unlock()
	for _, name := range names {
		view.Values = append(view.Values, bytes.Clone(t.rows[string(name)])) // nil if there is no row
	}
	view.Wall = time.Now().UnixMicro() // the time now, when all rows are locked
	view.Got = time.Now()
	writes, err := change(view)
	if err != nil {
		return err // ROLLBACK
	}
	for i, w := range writes {
		if w.Value != nil {
			t.rows[string(names[i])] = w.Value // INSERT or UPDATE
		}
	}
	return nil // COMMIT
}

// Two processes share a quota in a keeper.
func Example_keeper() {
	shared := &table{rows: make(map[string][]byte)}
	policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(1000)}}
	for range 2 {
		quotas := kept.New(shared, kept.Options{Name: "table", Shared: "a table", Ahead: true}) // in each process
		lim, err := throttle.New(policy, quotas)
		if err != nil {
			log.Fatal(err)
		}
		if err := lim.WaitN(context.Background(), 300); err != nil {
			log.Fatal(err)
		}
		s, err := lim.Status(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(s.Tiers[0].Used, "of", s.Tiers[0].Limit, "in", s.Shared)
		if err := quotas.Flush(context.Background()); err != nil { // before the process ends
			log.Fatal(err)
		}
	}
	// Output:
	// 300 of 1000 in a table
	// 600 of 1000 in a table
}

// The example is a keeper as package store requires it.
func TestExampleKeeper(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Open: func(t testing.TB) store.Store {
			k := &closing{table: &table{rows: make(map[string][]byte)}}
			t.Cleanup(func() {
				k.closed.Store(true)
				time.Sleep(2 * time.Minute) // goroutines end by themselves
			})
			return kept.New(k, kept.Options{Name: "table", Ahead: true})
		},
		Lag:            500 * time.Millisecond,
		LandsWithGuard: true,
		ReservedStays:  true,
	})
}

// A closing is a table that ends with its test.
type closing struct {
	*table
	closed atomic.Bool
}

func (c *closing) Update(ctx context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	if c.closed.Load() {
		return errors.New("the table is closed")
	}
	return c.table.Update(ctx, names, change)
}
