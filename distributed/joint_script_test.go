package distributed

import (
	"slices"
	"testing"
	"time"
)

// What is booked ahead under a quota alone stays charged for a call that books there together with
// another, also if that knows the clock to have been set back.
func TestJointChargesTail(t *testing.T) {
	play := func(s *subject, back int64) func(*testing.T) {
		return func(t *testing.T) {
			s.begin(planOf(t, 10*time.Millisecond, "1/10s;algo=sliding_log"))
			inner, outer := s.key, s.key+":outer"
			at := int64(1_800_000_000_000_000)
			call := func(keys []string, op string, args ...int64) []int64 {
				t.Helper()
				all := []any{op, s.text}
				for _, n := range args {
					all = append(all, n)
				}
				if op == "j" {
					all = slices.Insert(all, 5, any(s.text))
				}
				if s.set != nil {
					s.set(time.UnixMicro(at))
				} else {
					all = append(all, at)
				}
				reply, err := s.eval(keys, all...).Int64Slice()
				if err != nil {
					t.Fatal(err)
				}
				return reply
			}
			for _, key := range []string{inner, outer} {
				call([]string{key}, "r", 9, 0, 0, 0, 0, 4, -1, 1)
			}
			at += 1000
			reply := call([]string{inner, outer}, "j", 0, 0, 1000+back, 0, 1000+back, 9, 1_000_000, 9, 0, 0, 1, -1, 0, 1, 1)
			got := reply[headerLen+2+headerLen:]
			if ready := microseconds(got[1] - reply[0]); ready < 39*time.Second {
				t.Errorf("it is ready in %v, four are before it", ready)
			}
		}
	}
	for name, s := range map[string]*subject{"in memory": mini(t), "real": real(t)} {
		t.Run(name, play(s, 0))
		t.Run(name+", the clock was set back", play(s, 1000))
	}
}
