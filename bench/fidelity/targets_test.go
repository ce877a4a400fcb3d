package main

import (
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestTargets checks that a client is never refused and uses nearly all of the limit if it
// declares the provider's counter and how late requests may arrive.
func TestTargets(t *testing.T) {
	t.Parallel()
	var runs []Run
	for _, r := range Runs(true, 7) {
		c, _ := r.client()
		declared := r.Client == "throttle" || r.Client == "throttle-redis"
		undeclared := r.Client == "throttle-default" && (r.Provider == "fixed" || r.Provider == "rolling" || r.Provider == "bucket")
		switch {
		case r.Policy == hourly || c.restarts:
		case c.redis && (r.countsTokens() || r.concurrent() || r.Policy == "60/m"): // these take a minute
		case declared, undeclared && r.Delay != "heavy", r.Client == "throttle-auto" && r.Delay == "heavy":
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
			t.Errorf("%v: %d of %d were refused, want none", r, row.Refused, row.Sent)
		}
		if want := r.minUtilization(); row.Utilization < want {
			t.Errorf("%v: utilization is %.4f, want at least %.4f", r, row.Utilization, want)
		}
	}
}

// minUtilization returns the utilization that a client must reach.
func (r Run) minUtilization() float64 {
	tiers := r.asDocumented()
	shortest, longest := tiers[0], tiers[len(tiers)-1]
	usesRedis := strings.Contains(r.Client, "redis")
	minimum := 0.99
	switch {
	case r.Delay == "heavy" || r.concurrent() || r.Client == "throttle-default" && r.Provider == "bucket":
		return 0 // waits that the limiter doesn't cause
	case r.Provider == "spacing":
		inFlight := 27500 * time.Microsecond // mean
		switch {
		case usesRedis: // for the whole of Guard
			inFlight = 50 * time.Millisecond
		case r.Delay == "slow":
			inFlight = 20 * time.Millisecond
		case r.Delay == "none":
			inFlight = 0
		}
		interval := longest.Window / time.Duration(longest.Limit)
		return 0.95 * float64(interval) / float64(interval+inFlight)
	case longest.Window == time.Second && (usesRedis || r.Delay == "slow" && r.Client == "throttle-default"):
		minimum = 0.94
	case shortest.Window == time.Second:
		minimum = min(minimum, 0.96)
	}
	return minimum
}

// TestDeterministic checks that the same seed makes the same run. Only a client that is refused tells
// another seed by its row.
func TestDeterministic(t *testing.T) {
	for _, client := range []string{"throttle", "xtime-burst"} {
		r := Run{Client: client, Provider: "rolling", Delay: "heavy", Policy: twoTiers, Length: 10 * time.Minute, Seed: 3}
		first, err := r.Virtual(t)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := r.Virtual(t); again != first {
			t.Errorf("the first run returned %+v, the second %+v", first, again)
		}
		r.Seed++
		if other, _ := r.Virtual(t); other == first && first.Refused > 0 {
			t.Errorf("a different seed made the same run: %+v", first)
		}
		if (first.Refused > 0) != (client == "xtime-burst") {
			t.Errorf("%+v, want refusals of xtime-burst alone", first)
		}
	}
}

// TestRestart checks that a restart costs nothing if the quota was saved. Otherwise it costs
// time if the limiter assumes that the quota is used up, and refusals if not.
func TestRestart(t *testing.T) {
	t.Parallel()
	result := make(map[string]Row)
	for _, c := range clients {
		r := Run{Client: c.Key, Provider: "rolling", Delay: "uniform", Policy: twoTiers, Length: 12 * lifetime, Seed: 1}
		if !c.restarts {
			continue
		}
		row, err := r.Virtual(t)
		if err != nil {
			t.Fatal(err)
		}
		result[c.Key] = row
	}
	unused, used, saved := result["throttle-restart"], result["throttle-assumeused"], result["throttle-saved"]
	if unused.Refused == 0 || used.Refused != 0 || saved.Refused != 0 {
		t.Errorf("refused: default %d, want some; AssumeUsed %d, saved %d, want none", unused.Refused, used.Refused, saved.Refused)
	}
	if saved.Utilization < 0.98 || used.Utilization >= saved.Utilization {
		t.Errorf("utilization: saved %.3f, want 0.98; AssumeUsed %.3f, want less", saved.Utilization, used.Utilization)
	}
}

// TestPaced checks that PaceBurst prevents refusals of an hourly quota by a provider that
// accepts only a small burst.
func TestPaced(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"bucket-100", "spacing"} {
		r := Run{Client: "throttle-paced", Provider: provider, Delay: "uniform", Policy: hourly, Length: 3 * time.Hour, Seed: 1}
		row, err := r.Virtual(t)
		if err != nil || row.Refused != 0 || row.Utilization < 0.92 {
			t.Errorf("%s: %d refused, utilization %.3f, %v, want 0 and 0.92", provider, row.Refused, row.Utilization, err)
		}
		r.Client, r.Length = "throttle-default", time.Minute
		if row, err := r.Virtual(t); err != nil || row.Refused == 0 {
			t.Errorf("%s, not paced: %v, %v, want refusals", provider, row, err)
		}
	}
}

// TestDeclared checks that a client does not declare the phase of the provider.
func TestDeclared(t *testing.T) {
	r := Run{Client: "throttle", Provider: "fixed", Policy: twoTiers, Seed: 1}
	for i, tier := range r.asCounted() {
		if tier.Phase == 0 || tier.Phase >= tier.Window {
			t.Errorf("tier %d: the phase is %v, want one between 0 and %v", i, tier.Phase, tier.Window)
		}
		if got := r.declared()[i].Phase; got != throttle.UnknownPhase {
			t.Errorf("tier %d: the client declares the phase %v, want UnknownPhase", i, got)
		}
	}
}
