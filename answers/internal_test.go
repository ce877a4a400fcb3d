package answers

import (
	"testing"
	"time"
)

// 1,000 ns and a third are two microseconds: waits round up.
func TestRefilled(t *testing.T) {
	d, ok := refilled(1, []Reading{{}, {Has: HasRemaining, Limit: 3, Window: 3001 * time.Nanosecond}})
	if !ok || d != 2*time.Microsecond {
		t.Error(d, ok)
	}
	if d, ok := refilled(mostCount, []Reading{{Has: HasRemaining, Limit: mostCount, Window: farthest}}); ok {
		t.Error("more than 128 bits hold:", d)
	}
}
