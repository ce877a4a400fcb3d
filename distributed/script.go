package distributed

import (
	"cmp"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"hash/fnv"
	"strconv"
	"strings"
	"sync"

	"github.com/apithrottle/throttle/algorithms"
)

//go:embed script/*.lua
var scriptFiles embed.FS

// scriptParts are the script's parts, each after those that it uses.
var scriptParts = []string{
	"number", "pack", "call", "plan", "queue", "flight",
	"slidinglog", "slidingwindow", "anchoredwindow", "fixedwindow", "weightedwindow", "gcra", "concurrency",
	"state", "calendar", "rule", "lease", "pool", "pause", "reading", "save", "tail", "tiers", "convert",
	"pace", "turn", "reserve", "unbook", "status", "charge", "main",
}

// The parts as a library, and the name by which a server knows it as a script and, with a name
// that no other release has, as a function. They are made for the first call: a program that
// only links this package has none of them in its memory.
var (
	library      = sync.OnceValue(joinScript)
	scriptSHA    = sync.OnceValue(func() string { return sha(scriptSource()) })
	functionName = sync.OnceValue(func() string { return "throttle_" + scriptSHA()[:16] })
)

// scriptSource is the script that decides.
func scriptSource() string { return asScript(library()) }

// functionSource is the same as a function of the server.
func functionSource() string { return asFunction(functionName(), library()) }

// mostShared is how many locals around it a function of Lua may use.
const mostShared = 60

// joinScript makes a library of the parts. A script is defined anew with each call, and Lua
// finds each local that a new function uses by a search through the locals of the function
// around it. So registers are declared outside that, and constants are written out: a register
// is a local of a part without a value, a constant one in capitals whose value is one word.
func joinScript() string {
	var registers []string
	constants := make(map[string]string)
	var parts strings.Builder
	for _, file := range scriptParts {
		for line := range strings.Lines(readPart(file)) {
			line, _, _ = strings.Cut(line, "--")
			line = strings.TrimRight(line, " \n")
			if declared, found := strings.CutPrefix(line, "local "); found && !strings.HasPrefix(declared, "function ") {
				names, value, set := strings.Cut(declared, " = ")
				if !set {
					registers, line = append(registers, strings.Split(names, ", ")...), ""
				} else if isConstant(names, value) {
					constants[names], line = "("+value+")", ""
				}
			}
			if line = strings.TrimLeft(line, " "); line != "" {
				writeOut(&parts, line, constants)
				parts.WriteByte('\n')
			}
		}
	}
	declare := func(names []string) string { return "local " + strings.Join(names, ", ") + "\n" }
	return declare(append([]string{"run"}, registers[:mostShared-1]...)) + "local function define()\n" +
		declare(registers[mostShared-1:]) + parts.String() + "end\ndefine()\n"
}

const capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_"

// isConstant reports whether a name is in capitals and its value a number or a string.
func isConstant(name, value string) bool {
	return strings.Trim(name, capitals) == "" && (strings.Trim(value, "0123456789^ ") == "" || value[0] == '\'' && value[len(value)-1] == '\'')
}

// writeOut writes a line with the values of constants in place of their names.
func writeOut(to *strings.Builder, line string, constants map[string]string) {
	for {
		start := strings.IndexAny(line, capitals)
		if start < 0 {
			to.WriteString(line)
			return
		}
		name := line[start : len(line)-len(strings.TrimLeft(line[start:], capitals))]
		to.WriteString(line[:start])
		to.WriteString(cmp.Or(constants[name], name))
		line = line[start+len(name):]
	}
}

func readPart(name string) string {
	part, err := scriptFiles.ReadFile("script/" + name + ".lua")
	if err != nil {
		panic(err) // embedded: it cannot be missing
	}
	return string(part)
}

// asScript is a library as a script that does one call.
func asScript(library string) string { return library + "return run(KEYS, ARGV)\n" }

// asFunction is a library as one of Redis's, whose only function does one call.
func asFunction(name, library string) string {
	return "#!lua name=" + name + "\n" + library + "redis.register_function('" + name + "', run)\n"
}

func sha(s string) string {
	sum := sha1.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// estimate is added to the hash of a unit whose amounts are estimates.
const estimate = 1 << 32

// planText tells the script the plan, from its guard to its last tier.
func planText(p *algorithms.Plan) string {
	words := make([]string, 0, 4+len(p.Units())+6*len(p.Tiers()))
	add := func(numbers ...int64) {
		for _, n := range numbers {
			words = append(words, strconv.FormatInt(n, 10))
		}
	}
	add(p.Guard().Microseconds(), int64(p.Grain()), int64(len(p.Units())), int64(len(p.Tiers())))
	unit := make(map[string]int64)
	for i, name := range p.Units() {
		unit[name] = int64(i)
		h := fnv.New32a()
		h.Write([]byte(name))
		hash := int64(h.Sum32())
		if p.Estimated(i) {
			hash += estimate
		}
		add(hash)
	}
	for _, t := range p.Tiers() {
		burst := t.Burst
		if t.Algorithm == algorithms.Calendar {
			burst = t.Period.Longest().Microseconds()
		}
		add(int64(t.Algorithm), unit[t.Unit], t.Limit, t.Window.Microseconds(), burst, extra(t))
	}
	return strings.Join(words, " ")
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
