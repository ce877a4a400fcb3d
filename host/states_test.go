package host_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A recordedQuota is a quota in a file that an earlier release wrote, and what that release said
// about it.
type recordedQuota struct {
	Key string `json:"key"`
	// Policy is the tiers. The guard is 50 ms.
	Policy []string `json:"policy"`
	// Calls describes the calls before. Their times count from the first of them.
	Calls []string `json:"calls"`
	// At is when the last call was made, in Unix µs.
	At    int64  `json:"at"`
	Looks []look `json:"looks"`
}

// A look is what the release reported to a process that opened the file. Each look began with the
// recorded file.
type look struct {
	// After is the time since the last call.
	After string `json:"after"`
	// Used is the used amount of each tier.
	Used []int64 `json:"used"`
	// Closed is the time until the end of a ban. If zero, there was none.
	Closed time.Duration `json:"closed"`
	// Admits is how many requests of one unit it admitted at once.
	Admits int64 `json:"admits"`
}

// TestFileOfEarlierRelease checks that the quotas in the file of an earlier release stay charged:
// none admits a request that the earlier release would have refused, and none refuses one that it
// would have admitted.
//
// testdata/states/format2.db was written by a release that wrote format 2 of a quota, with a fixed
// clock and a policy for each algorithm, and with requests in flight, a reading and a ban.
// format2.json contains what that release then reported about copies of the file.
func TestFileOfEarlierRelease(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/states/format2.json")
	if err != nil {
		t.Fatal(err)
	}
	var quotas []recordedQuota
	if err := json.Unmarshal(text, &quotas); err != nil {
		t.Fatal(err)
	}
	db, err := os.ReadFile("testdata/states/format2.db")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range quotas {
		t.Run(r.Key, func(t *testing.T) { r.check(t, db) })
	}
}

func (r *recordedQuota) check(t *testing.T, db []byte) {
	var tiers []algorithms.Tier
	for _, spec := range r.Policy {
		tier, err := algorithms.ParseTier(spec)
		if err != nil {
			t.Fatal(err)
		}
		tiers = append(tiers, tier)
	}
	same := plan(t, 50*ms, tiers...)
	// A policy with one more tier makes the store convert the charges.
	more := plan(t, 50*ms, append(slices.Clone(tiers), throttle.Tier{Limit: 100_000, Window: 3 * hour, Unit: same.Units()[0]})...)
	for _, p := range []*algorithms.Plan{same, more} {
		for _, l := range r.Looks {
			after, err := time.ParseDuration(l.After)
			if err != nil {
				t.Fatal(err)
			}
			path := file(t)
			if err := os.WriteFile(path, db, 0o600); err != nil {
				t.Fatal(err)
			}
			s := openFile(t, path)
			s.SetWall(func() int64 { return r.At + after.Microseconds() })
			q, err := s.Open(r.Key, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			l.compare(t, q, p)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// compare compares what is used, and what is admitted, with what the earlier release reported.
func (l look) compare(t *testing.T, q store.Quota, p *algorithms.Plan) {
	t.Helper()
	status, err := q.Status(background)
	if err != nil {
		t.Fatalf("%s later: %v", l.After, err)
	}
	if status.Closed != l.Closed {
		t.Errorf("%s later: got a ban for %v, want %v", l.After, status.Closed, l.Closed)
	}
	for i, want := range l.Used {
		if got := status.Tiers[i].Used; got != want {
			t.Errorf("%v, %s later: got %d used of %v, want %d, as the earlier release reported", p.Tiers(), l.After, got, p.Tiers()[i], want)
		}
	}
	take := func(cost int64) store.Verdict {
		t.Helper()
		d, err := q.TryAcquire(background, store.Request{Cost: []int64{cost}})
		if err != nil {
			t.Fatalf("%s later: %v", l.After, err)
		}
		return d.Verdict
	}
	if l.Admits > 0 && take(l.Admits) != store.Admitted {
		t.Errorf("%v, %s later: %d units are refused, want them admitted, as by the earlier release", p.Tiers(), l.After, l.Admits)
	}
	if take(1) == store.Admitted {
		t.Errorf("%v, %s later: %d units and one more are admitted, want that one refused, as by the earlier release", p.Tiers(), l.After, l.Admits)
	}
}
