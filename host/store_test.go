package host_test

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/storetest"
)

// TestStore tests the contract of package store.
func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Open: func(t testing.TB) store.Store {
			s := openFile(t, file(t))
			t.Cleanup(func() { _ = s.Close() }) // or a report would write when the file is gone
			return s
		},
		Lag: 500 * time.Millisecond,
	})
}
