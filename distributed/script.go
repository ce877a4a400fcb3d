package distributed

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"hash/fnv"
	"strings"

	"github.com/apithrottle/throttle/algorithms"
)

//go:embed script/*.lua
var scriptFiles embed.FS

// scriptParts are the script's parts, each after those that it uses.
var scriptParts = []string{
	"number", "pack", "plan", "queue", "flight",
	"slidinglog", "slidingwindow", "anchoredwindow", "fixedwindow", "weightedwindow", "gcra", "concurrency",
	"pool", "state", "calendar", "rule", "convert", "reading", "tiers", "lease", "main", "save",
}

// The script that decides, and the name by which a server knows it.
var (
	scriptSource = joinScript()
	scriptSHA    = sha(scriptSource)
)

func joinScript() string {
	var b strings.Builder
	for _, name := range scriptParts {
		part, err := scriptFiles.ReadFile("script/" + name + ".lua")
		if err != nil {
			panic(err) // embedded: it cannot be missing
		}
		b.Write(part)
		b.WriteByte('\n')
	}
	return b.String()
}

func sha(s string) string {
	sum := sha1.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// estimate is added to the hash of a unit whose amounts are estimates.
const estimate = 1 << 32

// planArgs are the script's arguments that tell the plan, from its guard to its
// last tier.
func planArgs(p *algorithms.Plan) []any {
	args := []any{p.Guard().Microseconds(), p.Grain(), len(p.Units()), len(p.Tiers())}
	unit := make(map[string]int)
	for i, name := range p.Units() {
		unit[name] = i
		h := fnv.New32a()
		h.Write([]byte(name))
		hash := int64(h.Sum32())
		if p.Estimated(i) {
			hash += estimate
		}
		args = append(args, hash)
	}
	for _, t := range p.Tiers() {
		burst := t.Burst
		if t.Algorithm == algorithms.Calendar {
			burst = t.Period.Longest().Microseconds()
		}
		args = append(args, int(t.Algorithm), unit[t.Unit], t.Limit, t.Window.Microseconds(), burst, extra(t))
	}
	return args
}

// extra is what only one algorithm knows of a tier, in µs where it is a length.
func extra(t algorithms.Tier) int64 {
	if t.Algorithm == algorithms.Calendar {
		h := fnv.New64a()
		h.Write([]byte(t.Period.String() + " " + t.Zone))
		return int64(h.Sum64() >> 16) // what a double holds
	}
	if t.Phase == algorithms.UnknownPhase {
		t.Phase = 0 // the script learns none: the window stays rolling
	}
	if t.Algorithm != algorithms.AnchoredWindow {
		return (t.Precision + t.Phase).Microseconds() // no tier has both
	}
	// Its rolling bound is a sliding window of the usual precision.
	t.Algorithm, t.Burst = algorithms.SlidingWindow, 0
	rolling, err := algorithms.NewPlan([]algorithms.Tier{t}, 0)
	if err != nil {
		panic(err) // the tier was valid as it came
	}
	return rolling.Tiers()[0].Precision.Microseconds()
}
