package throttletest_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/hidden"
	"github.com/apithrottle/throttle/internal/soak"
)

// learning returns a client that learns a rate between 0.05/s and 1,000/s from 5/s on. burst may be zero.
func learning(t *testing.T, burst int64) hidden.Client {
	tier := throttle.Tier{
		Limit: 5, Window: time.Second, Algorithm: throttle.GCRA, Burst: burst, Learn: throttle.Learn{Most: 1000},
	}
	return func(base http.RoundTripper) http.RoundTripper { return hidden.Limited(t, base, tier, 0) }
}

// TestLearnHidden plays callers that learn a hidden limit. In minutes 10 to 20 they get at least 0.85 of what a
// client gets that knows the limit, and from minute 2 on at most 1 % of the requests are refused, or 3 % where
// responses take 5 s. See lawOf for the cells where chance decides on more.
func TestLearnHidden(t *testing.T) {
	for _, c := range hidden.Cells() {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			sample(t, c)
			knows := hidden.Knows(t, c, 1, 10, 20)
			law := lawOf(c)
			for _, burst := range []int64{1, 0} {
				var share, refused float64
				for seed := range law.seeds {
					r := hidden.Play(t, c, seed+1, learning(t, burst))
					share += r.Goodput(10, 20) / knows / float64(law.seeds)
					refused += r.RefusedPart(2, 20) / float64(law.seeds)
				}
				t.Logf("burst %d: goodput %.2f of %.2f/s, refused %.2f %%", burst, share, knows, 100*refused)
				if c.Reachable() && (share < law.goodput || refused > law.refused) {
					t.Errorf("burst %d: goodput %.3f of %.2f/s and refused %.2f %%, want %.2f and %.0f %%",
						burst, share, knows, 100*refused, law.goodput, 100*law.refused)
				}
			}
		})
	}
}

// sample leaves out most cells under -short, and those that take long with the race detector.
func sample(t *testing.T, c hidden.Cell) {
	if c.Tier.Limit >= 10 {
		soak.NoRace(t, "12,000 requests a client or more")
	}
	if c.Tier.Limit == 100 {
		soak.Long(t, "120,000 requests a client")
	}
	soak.Sample(t, 18)
}

// A law is the least share of the goodput of a cell and the largest part of refusals, as means of some seeds.
type law struct {
	seeds            uint64
	goodput, refused float64
}

// lawOf returns the law of a cell. Requests whose responses take 5 s arrive up to a quarter of a second early or
// late, and chance decides how many of them meet in one window of a second. If the window admits one request, single
// seeds have from 0.35 to 0.92 of the limit, and means of 8 seeds at least 0.62. A client that knows the limit gets
// all of it if its requests arrive far from the ends of the windows. Of single seeds with responses of a second, one
// in twenty has more than 1 % refused, and few up to 5 %. At 100/s with responses of 5 s, a decrease costs a minute or
// two, and chance decides on how many there are: single seeds have from 0.81 to 0.99.
func lawOf(c hidden.Cell) law {
	late, windows := c.Response == 5*time.Second, c.Tier.Algorithm == throttle.FixedWindow
	switch {
	case windows && late && c.Tier.Limit == 1:
		return law{8, 0.5, 0.07}
	case windows && c.Tier.Limit == 1:
		return law{8, 0.85, 0.02}
	case late && c.Tier.Limit == 100:
		return law{4, 0.8, c.MostRefused()}
	}
	return law{1, 0.85, c.MostRefused()}
}

func bucketOf(limit int64) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: time.Second, Algorithm: throttle.TokenBucket}
}

// TestLearnChanges plays limits that halve or double after 10 minutes. The callers have 0.85 of the new limit
// again within two minutes, or five where they must first find 2/s by twice 1/s.
func TestLearnChanges(t *testing.T) {
	for _, test := range []struct {
		name           string
		before, after  throttle.Tier
		rate           float64 // of the new limit
		lost, regained int     // the minutes until the goodput is back
	}{
		{"1 to 0.5", bucketOf(1), throttle.Tier{Limit: 1, Window: 2 * time.Second}, 0.5, 2, 4},
		{"1 to 2", bucketOf(1), bucketOf(2), 2, 5, 7},
		{"10 to 5", bucketOf(10), bucketOf(5), 5, 1, 3},
		{"10 to 20", bucketOf(10), bucketOf(20), 20, 2, 4},
		{"100 to 50", bucketOf(100), bucketOf(50), 50, 1, 3},
		{"100 to 200", bucketOf(100), bucketOf(200), 200, 2, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := hidden.Cell{Tier: test.before, Then: test.after, Response: 100 * time.Millisecond, Workers: 64, Minutes: 20}
			sample(t, c)
			r := hidden.Play(t, c, 1, learning(t, 1))
			from, to := 10+test.lost, 10+test.regained
			got, refused := r.Goodput(from, to)/test.rate, sum(r.Refused[10:to])
			t.Logf("goodput %.2f of the new limit, after %v in the minutes before; %d refused", got, r.Good[10:from], refused)
			if got < 0.85 {
				t.Errorf("goodput is %.2f of the new limit in minutes %d to %d, want 0.85", got, from, to)
			}
		})
	}
}

func sum(list []int) (n int) {
	for _, x := range list {
		n += x
	}
	return n
}

// TestLearnNoise plays refusals that have nothing to do with the rate. A failure with status 503 teaches nothing. One
// status 429 in 100 does not keep the rate from the limit, which is still found: it refuses few requests. Nor do
// callers whose own object is refused each time, as long as they send few of the requests.
func TestLearnNoise(t *testing.T) {
	for _, test := range []struct {
		name    string
		noise   hidden.Cell
		goodput float64
	}{
		{"503", hidden.Cell{Failing: 0.01}, 0.85},
		{"429", hidden.Cell{Noisy: 0.01}, 0.7},
		{"hostile", hidden.Cell{Hostile: 1}, 0.6},
	} {
		for _, limit := range []int64{1, 10, 100} {
			t.Run(fmt.Sprintf("%s at %d", test.name, limit), func(t *testing.T) {
				t.Parallel()
				c := test.noise
				c.Tier, c.Response, c.Workers, c.Minutes = bucketOf(limit), 100*time.Millisecond, 64, 40
				sample(t, c)
				var goodput, refused float64
				const seeds = 4
				for seed := range uint64(seeds) {
					r := hidden.Play(t, c, seed, learning(t, 1))
					goodput += r.Goodput(20, 40) / float64(limit) / seeds
					refused += r.RefusedPart(20, 40) / seeds
					if limit == 100 {
						goodput, refused = goodput*seeds, refused*seeds
						break
					}
				}
				t.Logf("goodput %.2f of the limit, which refuses %.2f %%", goodput, 100*refused)
				if goodput < test.goodput || refused > 0.03 {
					t.Errorf("goodput %.2f of the limit, which refuses %.2f %%, want %.2f and 3 %%", goodput, 100*refused, test.goodput)
				}
			})
		}
	}
}
