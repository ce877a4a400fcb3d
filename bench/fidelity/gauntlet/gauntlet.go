// Package gauntlet measures how well a rate limiter keeps the limits of a provider,
// and how much of them it uses. This library and its peers run the same course.
//
// A [Run] is one client against one provider. The provider
// ([github.com/apithrottle/throttle/throttletest]) counts exactly as its tiers say,
// when a request arrives, and refuses what is too much. The client is saturated: each
// of its workers is admitted by the limiter, sends a request, reads the answer to its
// end, and does it again. A refused request is not repeated. This library's transport
// waits for what Retry-After says; the peers leave that to their users, who are left
// out here.
//
// # Delays
//
// A request reaches the provider's counter a while after it was sent: at once
// ("none"), after 5 to 50 ms ("uniform"), or after 25 ms in the median with a heavy
// tail that is cut at 500 ms ("heavy"). "slow" is a near provider, which is reached
// after 5 to 15 ms, with answers that take 1 to 5 s to come, as those of language models do.
// A connection takes a millisecond to be made. Eight workers in each process are enough
// to saturate all but these, where there are 64.
//
// # Utilisation
//
// It is what the provider accepted, divided by what it would have accepted in the
// same time from a client that knows its tiers, its phase and its state, sends
// whatever comes next the instant that the provider would accept it, and has no delay
// ([Run.Possible]). Both begin with a provider that has counted nothing.
//
// It is measured where the run has settled: after two of the longest window, and over
// whole ones. What a client may send at the beginning depends on whether it
// knows the phase and what was sent before, which is another question: see the
// restarts. Refusals count from the beginning.
//
// Tokens are counted as tokens. Both clients send the same requests, but for the order
// in which workers come to it and for what each process of a fleet has of its own; as
// the next request may fit badly, a client may be lucky by a percent.
//
// # Fleets
//
// Clients over Redis are three processes; in virtual time, three clients with
// connections of their own. The others are one.
package gauntlet

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

// A Run is one client against one provider. The names are those that the rows of the
// result have.
type Run struct {
	Client, Provider, Delay, Policy string

	Length time.Duration
	Seed   uint64
}

// String tells runs apart.
func (r Run) String() string {
	return strings.Join([]string{r.Client, r.Provider, r.Delay, r.Policy}, "/")
}

const (
	tokens    = "tokens"
	mostToken = 4000 // of one request

	// atOnce is the limit of concurrency, with answers after 3 s on average: 4 a second.
	atOnce = 12
)

// asDocumented are the tiers of the policy with nothing said about how they count.
func (r Run) asDocumented() []throttle.Tier {
	p, err := throttle.ParsePolicy(r.Client, r.Policy)
	if err != nil {
		panic(err) // the policies are constants
	}
	if strings.HasSuffix(r.Provider, "+concurrency") {
		p.Tiers = append(p.Tiers, throttle.Tier{Limit: atOnce, Algorithm: throttle.Concurrency})
	}
	return p.Tiers
}

// asCounted are the tiers as the provider counts them, with the phase that is its own
// secret.
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
			t.Algorithm = throttle.WeightedWindow // aligned to the clock, as in Cloudflare's description of it
		case "bucket":
			t.Algorithm, t.Burst = throttle.TokenBucket, t.Limit
		case "bucket-100": // who promises much for an hour rarely takes it at once
			t.Algorithm, t.Burst = throttle.TokenBucket, 100
		case "spacing":
			t.Algorithm, t.Burst = throttle.GCRA, 1
			if t.Unit == tokens {
				t.Burst = mostToken // one request
			}
		}
	}
	return tiers
}

// provider starts the provider's clock.
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

// workers is how many each process has.
func (r Run) workers() int {
	if r.Delay == "slow" {
		return 64
	}
	return 8
}

// delay draws how late a request reaches the provider.
func (r Run) delay() func() time.Duration {
	switch r.Delay {
	case "none":
		return nil
	case "heavy":
		return r.draw("delay", func(random *rand.Rand) time.Duration {
			return min(longestDelay, time.Duration(25*math.Exp(1.1*random.NormFloat64())*float64(time.Millisecond)))
		})
	}
	least, most := 5*time.Millisecond, 50*time.Millisecond
	if r.Delay == "slow" {
		most = 15 * time.Millisecond
	}
	return r.draw("delay", func(random *rand.Rand) time.Duration {
		return least + time.Duration(random.Int64N(int64(most-least)))
	})
}

const longestDelay = 500 * time.Millisecond

// settled is when the part of a run begins and ends that its use is measured in.
func (r Run) settled(start time.Time) (from, to time.Time) {
	tiers := r.asDocumented()
	longest := slices.MaxFunc(tiers, func(a, b throttle.Tier) int { return cmp.Compare(a.Window, b.Window) }).Window
	if longest == 0 {
		return start, start.Add(r.Length)
	}
	return start.Add(2 * longest), start.Add(r.Length.Truncate(longest))
}

// hold draws how long the provider takes to answer.
func (r Run) hold() func() time.Duration {
	if r.Delay != "slow" {
		return nil
	}
	return r.draw("hold", func(random *rand.Rand) time.Duration {
		return time.Second + time.Duration(random.Int64N(int64(4*time.Second)))
	})
}

// costs draws the tokens of one request after the other, or returns nil.
func (r Run) costs() func() int64 {
	if !r.countsTokens() {
		return nil
	}
	draw := r.draw("cost", func(random *rand.Rand) time.Duration {
		return time.Duration(500 + random.Int64N(mostToken-500+1))
	})
	return func() int64 { return int64(draw()) }
}

// draw makes the same sequence for every client.
func (r Run) draw(what string, next func(*rand.Rand) time.Duration) func() time.Duration {
	var mu sync.Mutex // guards random
	random := r.random(what)
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return next(random)
	}
}

// random depends on the seed, and on all of the course but the client.
func (r Run) random(what string) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, what, r.Provider, r.Delay, r.Policy)
	return rand.New(rand.NewPCG(r.Seed, h.Sum64()))
}

// costHeader tells what a request costs, in tokens.
const costHeader = "Tokens"

func cost(req *http.Request) int64 {
	n, _ := strconv.ParseInt(req.Header.Get(costHeader), 10, 64)
	return n
}
