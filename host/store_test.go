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
		Open: func(t testing.TB) store.Store { return openFile(t, file(t)) },
		Lag:  500 * time.Millisecond,
	})
}
