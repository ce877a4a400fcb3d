package local_test

import (
	"testing"

	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/storetest"
)

// TestStore tests the contract of package store.
func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Config{Open: func(testing.TB) store.Store { return local.New() }})
}
