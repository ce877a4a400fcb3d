package gauntlet

import (
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/bench/fidelity/chart"
	"github.com/apithrottle/throttle/internal/soak"
)

// Whoever declares the provider's counter, and how late requests may be, is never
// refused and leaves little unused.
func TestTargets(t *testing.T) {
	t.Parallel()
	var runs []Run
	for _, r := range InVirtualTime(true, 7) {
		c, _ := r.client()
		declared := r.Client == "throttle" || r.Client == "throttle-redis"
		unaware := r.Client == "throttle-default" && (r.Provider == "fixed" || r.Provider == "rolling" || r.Provider == "bucket")
		switch {
		case r.Policy == hourly || c.restarts:
		case c.redis && (r.countsTokens() || r.concurrent() || r.Policy == "60/m"): // these take a minute
		case declared, unaware && r.Delay != "heavy", r.Client == "throttle-auto" && r.Delay == "heavy":
			r.Length = r.Length / 2 * time.Duration(soak.Times(1))
			runs = append(runs, r)
		}
	}
	rows, err := inParallel(t.Context(), t, runs)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range runs {
		row := rows[i]
		if r.Client == "throttle-auto" {
			if float64(row.Refused) > 0.002*float64(row.Sent) {
				t.Errorf("%v: %d of %d were refused, want at most 0.2 %%", r, row.Refused, row.Sent)
			}
			continue
		}
		if row.Refused != 0 {
			t.Errorf("%v: %d of %d were refused", r, row.Refused, row.Sent)
		}
		if least := r.least(); row.Utilisation < least {
			t.Errorf("%v: used %.4f, want %.4f", r, row.Utilisation, least)
		}
	}
}

// least is the utilisation that a client has to reach.
func (r Run) least() float64 {
	tiers := r.asDocumented()
	shortest, longest := tiers[0], tiers[len(tiers)-1]
	shared := strings.Contains(r.Client, "redis")
	least := 0.99
	switch {
	case r.Delay == "heavy" || r.concurrent() || r.Client == "throttle-default" && r.Provider == "bucket":
		return 0 // what has to be waited for is not the limiter's
	case r.Provider == "spacing":
		late := 27500 * time.Microsecond
		switch {
		case shared: // each is on its way for the whole of Guard
			late = 50 * time.Millisecond
		case r.Delay == "slow":
			late = 20 * time.Millisecond
		case r.Delay == "none":
			late = 0
		}
		interval := longest.Window / time.Duration(longest.Limit)
		return 0.95 * float64(interval) / float64(interval+late)
	case longest.Window == time.Second && (shared || r.Delay == "slow" && r.Client == "throttle-default"):
		least = 0.94
	case shortest.Window == time.Second:
		least = min(least, 0.96)
	}
	return least
}

// The same seed makes the same run.
func TestDeterministic(t *testing.T) {
	r := Run{Client: "throttle", Provider: "rolling", Delay: "heavy", Policy: twoTiers, Length: 10 * time.Minute, Seed: 3}
	first, err := r.Virtual(t)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := r.Virtual(t); again != first {
		t.Errorf("the first time %+v, then %+v", first, again)
	}
	r.Seed++
	if other, _ := r.Virtual(t); other == first {
		t.Errorf("another seed makes the same run: %+v", first)
	}
}

// A restart costs nothing where the quota was saved, refusals where the limiter takes
// it for full, and time where it takes it for spent.
func TestRestart(t *testing.T) {
	t.Parallel()
	result := make(map[string]chart.Row)
	for _, c := range clients {
		r := Run{Client: c.name, Provider: "rolling", Delay: "uniform", Policy: twoTiers, Length: 12 * aLife, Seed: 1}
		if !c.restarts {
			continue
		}
		row, err := r.Virtual(t)
		if err != nil {
			t.Fatal(err)
		}
		result[c.name] = row
	}
	full, empty, saved := result["throttle-full"], result["throttle-empty"], result["throttle-saved"]
	if full.Refused == 0 || empty.Refused != 0 || saved.Refused != 0 {
		t.Errorf("refused: full %d, want some; empty %d, saved %d, want none", full.Refused, empty.Refused, saved.Refused)
	}
	if saved.Utilisation < 0.98 || empty.Utilisation >= saved.Utilisation {
		t.Errorf("used: saved %.3f, want 0.98; empty %.3f, want less", saved.Utilisation, empty.Utilisation)
	}
}

// A quota of an hour that is spread is not refused by a provider that takes a little
// of it at once.
func TestSpread(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"bucket-100", "spacing"} {
		r := Run{Client: "throttle-spread", Provider: provider, Delay: "uniform", Policy: hourly, Length: 3 * time.Hour, Seed: 1}
		row, err := r.Virtual(t)
		if err != nil || row.Refused != 0 || row.Utilisation < 0.92 {
			t.Errorf("%s: %d refused, %.3f used, %v, want 0 and 0.92", provider, row.Refused, row.Utilisation, err)
		}
		r.Client, r.Length = "throttle-default", time.Minute
		if row, err := r.Virtual(t); err != nil || row.Refused == 0 {
			t.Errorf("%s: %v, %v: greed was not refused", provider, row, err)
		}
	}
}

func TestDeclared(t *testing.T) {
	r := Run{Client: "throttle", Provider: "fixed", Policy: twoTiers, Seed: 1}
	for i, tier := range r.asCounted() {
		if tier.Phase == 0 || tier.Phase >= tier.Window {
			t.Errorf("tier %d: the phase is %v, want some of %v", i, tier.Phase, tier.Window)
		}
		if got := r.declared()[i].Phase; got != throttle.UnknownPhase {
			t.Errorf("tier %d: the client is told the phase %v", i, got)
		}
	}
}
