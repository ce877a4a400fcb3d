package main

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A Run is one client in one scenario.
type Run struct {
	// The names appear in the rows of the result.
	Client, Provider, Delay, Policy string

	Length time.Duration
	Seed   uint64
}

// String returns the names, which identify a run.
func (r Run) String() string {
	return strings.Join([]string{r.Client, r.Provider, r.Delay, r.Policy}, "/")
}

const (
	tokens    = "tokens"
	maxTokens = 4000 // of one request

	// maxConcurrent is the concurrency limit. Responses take 3 s on average, so it admits 4
	// requests a second.
	maxConcurrent = 12
)

// asDocumented returns the tiers of the policy, which don't describe how they count.
func (r Run) asDocumented() []throttle.Tier {
	p, err := throttle.ParsePolicy(r.Client, r.Policy)
	if err != nil {
		panic(err) // the policies are constants
	}
	if strings.HasSuffix(r.Provider, "+concurrency") {
		p.Tiers = append(p.Tiers, throttle.Tier{Limit: maxConcurrent, Algorithm: throttle.Concurrency})
	}
	return p.Tiers
}

// asCounted returns the tiers as the provider counts them, with a phase that clients don't
// get.
func (r Run) asCounted() []throttle.Tier {
	tiers, random := r.asDocumented(), r.random("phase")
	for i := range tiers {
		t := &tiers[i]
		if t.Algorithm == throttle.Concurrency {
			continue
		}
		switch counter, _, _ := strings.Cut(r.Provider, "+"); counter {
		case "fixed":
			t.Algorithm = throttle.FixedWindow
			t.Phase = time.Duration(random.Int64N(t.Window.Microseconds())) * time.Microsecond
		case "weighted":
			t.Algorithm = throttle.WeightedWindow // aligned to the clock, as Cloudflare describes it
		case "bucket":
			t.Algorithm, t.Burst = throttle.TokenBucket, t.Limit
		case "bucket-100": // an hourly limit rarely comes with a burst of the same size
			t.Algorithm, t.Burst = throttle.TokenBucket, 100
		case "spacing":
			t.Algorithm, t.Burst = throttle.GCRA, 1
			if t.Unit == tokens {
				t.Burst = maxTokens // one request
			}
		}
	}
	return tiers
}

// provider returns the provider of the run. Its clock starts now.
func (r Run) provider() *throttletest.Provider {
	p := throttletest.New(r.asCounted()...)
	p.Delay, p.Hold = r.delay(), r.hold()
	if r.countsTokens() {
		p.Cost = func(req *http.Request) map[string]int64 { return map[string]int64{tokens: cost(req)} }
	}
	return p
}

func (r Run) countsTokens() bool { return strings.Contains(r.Policy, "unit="+tokens) }

func (r Run) concurrent() bool {
	return slices.ContainsFunc(r.asDocumented(), func(t throttle.Tier) bool { return t.Algorithm == throttle.Concurrency })
}

// workers returns the number of workers in each process.
func (r Run) workers() int {
	if r.Delay == "slow" {
		return 64
	}
	return 8
}

// delay returns a function that draws how long each request takes to reach the provider.
func (r Run) delay() func() time.Duration {
	switch r.Delay {
	case "none":
		return nil
	case "heavy":
		return r.draw("delay", func(random *rand.Rand) time.Duration {
			return min(maxDelay, time.Duration(25*math.Exp(1.1*random.NormFloat64())*float64(time.Millisecond)))
		})
	}
	shortest, longest := 5*time.Millisecond, 50*time.Millisecond
	if r.Delay == "slow" {
		longest = 15 * time.Millisecond
	}
	return r.draw("delay", func(random *rand.Rand) time.Duration {
		return shortest + time.Duration(random.Int64N(int64(longest-shortest)))
	})
}

const maxDelay = 500 * time.Millisecond

// measured returns the beginning and end of the time in which utilization is measured.
func (r Run) measured(start time.Time) (from, to time.Time) {
	tiers := r.asDocumented()
	longest := slices.MaxFunc(tiers, func(a, b throttle.Tier) int { return cmp.Compare(a.Window, b.Window) }).Window
	if longest == 0 {
		return start, start.Add(r.Length)
	}
	return start.Add(2 * longest), start.Add(r.Length.Truncate(longest))
}

// hold returns a function that draws how long the provider takes to respond. It returns nil
// if responses are immediate.
func (r Run) hold() func() time.Duration {
	if r.Delay != "slow" {
		return nil
	}
	return r.draw("hold", func(random *rand.Rand) time.Duration {
		return time.Second + time.Duration(random.Int64N(int64(4*time.Second)))
	})
}

// costs returns a function that draws the tokens of each request. It returns nil if the
// policy doesn't count tokens.
func (r Run) costs() func() int64 {
	if !r.countsTokens() {
		return nil
	}
	draw := r.draw("cost", func(random *rand.Rand) time.Duration {
		return time.Duration(500 + random.Int64N(maxTokens-500+1))
	})
	return func() int64 { return int64(draw()) }
}

// draw returns a function that draws from a sequence that is the same for every client.
func (r Run) draw(what string, next func(*rand.Rand) time.Duration) func() time.Duration {
	var mu sync.Mutex // guards random
	random := r.random(what)
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return next(random)
	}
}

// random returns a source that depends on what is drawn, the seed and the scenario, but not
// on the client.
func (r Run) random(what string) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, what, r.Provider, r.Delay, r.Policy)
	return rand.New(rand.NewPCG(r.Seed, h.Sum64()))
}

// costHeader carries the cost of a request in tokens.
const costHeader = "Tokens"

func cost(req *http.Request) int64 {
	n, _ := strconv.ParseInt(req.Header.Get(costHeader), 10, 64)
	return n
}
