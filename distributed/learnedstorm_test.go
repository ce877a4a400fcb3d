package distributed_test

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// After ten minutes of refusals or of slow responses, a fleet has its rate again within five minutes of
// its next probe.
func TestFleetRecovers(t *testing.T) {
	soak.Long(t, "a fleet learns for minutes, and TestFleetLearnsHiddenLimit plays one")
	for name, disturb := range map[string]func(f *learningFleet, on bool){
		"refusals": func(f *learningFleet, on bool) {
			if f.provider.restart(40); on {
				f.provider.restart(0)
			}
		},
		"slow responses": func(f *learningFleet, on bool) {
			if f.provider.setTakes(50 * ms); on {
				f.provider.setTakes(30 * sec)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			soon := func(t *testing.T, s *distributed.Store) *throttle.Limiter { // a probe follows soon after the disturbance
				return limiter(t, throttle.Policy{Name: "hidden", Tiers: []throttle.Tier{learnsFromFive}, MaxPause: 30 * sec}, s)
			}
			learning(t, soon, func(f *learningFleet) {
				f.addAll(6)
				time.Sleep(5 * time.Minute)
				disturb(f, true)
				time.Sleep(10 * time.Minute)
				disturb(f, false)
				time.Sleep(5 * time.Minute)
				f.checkGoodput(40, 2*time.Minute)
			})
		})
	}
}

// A refusal of a request inside a quota whose limit is known teaches the quota around it, in all processes.
func TestNestedFleetTeachesOuter(t *testing.T) {
	soak.Long(t, "a fleet learns for minutes, and TestFleetLearnsHiddenLimit plays one")
	known := throttle.Tier{Limit: 500, Window: sec, Algorithm: throttle.GCRA}
	nested := func(t *testing.T, s *distributed.Store) *throttle.Limiter {
		inner := limiter(t, throttle.Policy{Name: "{teach}inner", Tiers: []throttle.Tier{known}}, s)
		return inner.Within(limiter(t, throttle.Policy{Name: "{teach}outer", Tiers: []throttle.Tier{learnsFromFive}}, s))
	}
	learning(t, nested, func(f *learningFleet) {
		f.addAll(3)
		time.Sleep(3 * time.Minute)
		f.checkGoodput(40, time.Minute)
	})
}

// A fleet whose state is lost again and again starts again at the tier's limit, and has its rate within two minutes.
func TestFleetLearnsAgainAfterLostStates(t *testing.T) {
	soak.Long(t, "a fleet learns for minutes, and TestFleetLearnsHiddenLimit plays one")
	learning(t, alone(), func(f *learningFleet) {
		f.addAll(6)
		admin := f.process(ms, 3*ms)
		for range 3 {
			time.Sleep(2 * time.Minute)
			f.provider.restart(40)
			if err := admin.FlushAll(f.Context()).Err(); err != nil {
				f.Fatal(err)
			}
			time.Sleep(10 * sec)
			if sum, refused := f.provider.sum(); sum < 30 || refused > 20 {
				f.Errorf("got %d passed and %d refused in the 10 s after the state was lost", sum, refused)
			}
		}
		time.Sleep(2 * time.Minute)
		f.checkGoodput(40, time.Minute)
	})
}
