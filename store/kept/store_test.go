package kept_test

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/keptmem"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
	"github.com/apithrottle/throttle/store/storetest"
)

func TestStore(t *testing.T) {
	for _, way := range []time.Duration{0, time.Millisecond} {
		t.Run(way.String(), func(t *testing.T) {
			storetest.Run(t, storetest.Config{
				Open: func(t testing.TB) store.Store {
					return virtual(t, way, kept.Options{Name: "kept", Ahead: true})
				},
				Lag:            200*time.Millisecond + 20*way,
				LandsWithGuard: true,
				ReservedStays:  true,
			})
		})
	}
}

// A store for one machine reserves nothing ahead.
func TestStorePlain(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Open: func(t testing.TB) store.Store {
			return virtual(t, 0, kept.Options{Name: "kept"})
		},
		Lag: store.RecheckInterval,
	})
}

// virtual returns a store on a server that ends with the bubble.
func virtual(t testing.TB, way time.Duration, o kept.Options) *kept.Store {
	s := keptmem.New()
	t.Cleanup(func() {
		s.Close()
		time.Sleep(2 * time.Minute) // goroutines end by themselves
	})
	return kept.New(s.Client(way), o)
}
