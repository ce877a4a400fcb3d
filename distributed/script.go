package distributed

import (
	"cmp"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"hash/fnv"
	"regexp"
	"strconv"
	"strings"

	"github.com/apithrottle/throttle/algorithms"
)

//go:embed script/*.lua
var scriptFiles embed.FS

// scriptParts are the script's parts, each after those that it uses.
var scriptParts = []string{
	"number", "pack", "call", "plan", "queue", "flight",
	"slidinglog", "slidingwindow", "anchoredwindow", "fixedwindow", "weightedwindow", "gcra", "concurrency",
	"state", "calendar", "rule", "convert", "lease", "pool", "pause", "reading", "tiers",
	"pace", "reserve", "unbook", "status", "charge", "save", "main",
}

// The script that decides, and the name by which a server knows it.
var (
	scriptSource = asScript(joinScript())
	scriptSHA    = sha(scriptSource)
)

// The same as a function of the server, with a name that no other release has.
var (
	functionName   = "throttle_" + scriptSHA[:16]
	functionSource = asFunction(functionName, joinScript())
)

// A register is a local of a part without a value, a constant one in capitals.
var (
	register = regexp.MustCompile(`(?m)^local (\w+(?:, \w+)*)(?: --.*)?$`)
	constant = regexp.MustCompile(`(?m)^local ([A-Z_]+) = ([\d^ ]*\d|'[^']*')(?: --.*)?$`)
	name     = regexp.MustCompile(`[A-Z_]{2,}`)
	comment  = regexp.MustCompile(`(?m)^ +| *--.*$`) // and indentation
)

// mostShared is how many locals around it a function of Lua may use.
const mostShared = 60

// joinScript makes a library of the parts. A script is defined anew with each call, and Lua
// finds each local that a new function uses by a search through the locals of the function
// around it. So registers are declared outside that, and constants are written out.
func joinScript() string {
	var registers []string
	constants := make(map[string]string)
	var parts strings.Builder
	for _, file := range scriptParts {
		text := register.ReplaceAllStringFunc(readPart(file)+"\n", func(line string) string {
			registers = append(registers, strings.Split(register.FindStringSubmatch(line)[1], ", ")...)
			return ""
		})
		text = constant.ReplaceAllStringFunc(text, func(line string) string {
			c := constant.FindStringSubmatch(line)
			constants[c[1]] = "(" + c[2] + ")"
			return ""
		})
		text = comment.ReplaceAllString(text, "")
		parts.WriteString(name.ReplaceAllStringFunc(text, func(word string) string { return cmp.Or(constants[word], word) }))
	}
	declare := func(names []string) string { return "local " + strings.Join(names, ", ") + "\n" }
	return declare(append([]string{"run"}, registers[:mostShared-1]...)) + "local function define()\n" +
		declare(registers[mostShared-1:]) + parts.String() + "end\ndefine()\n"
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
