package kept_test

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/kepttwin"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store/kept"
)

// TestDecidesAsLedgers compares each step of random traces with ledgers that are driven directly.
func TestDecidesAsLedgers(t *testing.T) {
	traces := soak.Times(1250) // four times
	for part := range 4 {
		ahead := part < 2
		t.Run(fmt.Sprintf("ahead=%v,%d", ahead, part%2), func(t *testing.T) {
			soak.Sample(t, 3)
			t.Parallel()
			var sum kepttwin.Count
			for i := 0; i < traces && !t.Failed(); i++ {
				synctest.Test(t, func(t *testing.T) {
					m := new(kepttwin.Memory)
					sum.Add(kepttwin.Run(t, kepttwin.Config{
						Keeper: m, Memory: m, Ahead: ahead, Window: 10 * time.Second, Seed: uint64(i*4 + part), Steps: 40,
						Check: func(value []byte) { checkReencoded(t, value) },
					}))
				})
			}
			for i := range reflect.TypeOf(sum).NumField() {
				n, name := reflect.ValueOf(sum).Field(i), reflect.TypeOf(sum).Field(i).Name
				if n.Kind() == reflect.Int && n.Int() == 0 && (ahead || name != "Reserved" && name != "TakenOver") {
					t.Errorf("%s is never more than zero", name)
				}
			}
		})
	}
}

// checkReencoded checks that a value is encoded as it was.
func checkReencoded(t testing.TB, value []byte) {
	t.Helper()
	again, err := kept.Reencode(value)
	if err != nil || !bytes.Equal(again, value) {
		t.Errorf("a value of %d bytes is encoded in %d, error %v:\n%x\n%x", len(value), len(again), err, value, again)
	}
}
