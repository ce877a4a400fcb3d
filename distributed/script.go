package distributed

import (
	"cmp"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/apithrottle/throttle/algorithms"
)

//go:embed script/*.lua
var scriptFiles embed.FS

// scriptParts lists the parts of the script that no other part includes. A line include 'x' in a
// part stands for the part x. The function that contains the line then defines the part when it
// runs, so a call defines only what it needs.
var scriptParts = []string{
	"number", "pack", "call", "plan", "queue", "flight", "state", "rule", "need", "pool", "save", "tail", "tiers", "convert",
	"pace", "line", "reserve", "main",
}

// The operations of the script. The header of script/main.lua lists their arguments and replies.
const (
	opReserve   = "reserve"    // reserves requests, each behind the decisions before it
	opBudget    = "budget"     // as opReserve, for a plan with budgets
	opBundle    = "bundle"     // reserves the same times in several quotas
	opCancel    = "cancel"     // returns reservations, which other requests may take over
	opRefund    = "refund"     // takes back requests that were not sent
	opRefundOld = "refund_old" // the same for requests under another plan
	opLease     = "lease"      // reports the held amounts
	opPause     = "pause"      // pauses the fleet
	opEndPause  = "end_pause"  // ends a pause, or the wait for a probe
	opObserve   = "observe"    // compares the counts that a response reports with the quota's own
	opStatus    = "status"     // reports the use of each tier
	opCount     = "count"      // charges what the provider has counted already
	opForget    = "forget"     // makes the learned tiers start again
	opLeave     = "leave"      // gives back a turn
)

// The library of the parts, its name as a script, and its name as a function, which no other
// release has. They are made for the first call, so a program that only links this package does not
// keep them in memory.
var (
	library      = sync.OnceValue(joinScript)
	scriptSHA    = sync.OnceValue(func() string { return sha(scriptSource()) })
	functionName = sync.OnceValue(func() string { return "throttle_" + scriptSHA()[:16] })
)

// scriptSource returns the library as a script.
func scriptSource() string { return asScript(library()) }

// functionSource returns the library as a function of the server.
func functionSource() string { return asFunction(functionName(), library()) }

// mostShared is the most locals of enclosing functions that a function of Lua may use.
const mostShared = 60

// A line is a line of a part. It may declare names: a function, registers, which are locals without
// a value, or locals with a value.
type line struct {
	text  string
	names []string
	rest  string // the text after the names
}

// joinScript joins the parts to a library. A script is defined anew with each call, and Lua
// resolves each local that a new function uses by a search through the locals of the enclosing
// function. So the names that most functions use are declared outside that function, and the names
// that only one part uses end with the part. Constants are replaced by their values; a constant is
// a local of a part in capitals whose value is one word. An instance of the library has its own
// locals. There is one instance, which makes others for calls with several quotas: see instances in
// bundle.lua.
func joinScript() string {
	constants := make(map[string]string)
	var units [][]line // the lines of each part, and of those that it includes
	for _, part := range scriptParts {
		units = append(units, readPart(part, "", constants))
	}
	outside, inside := sharedNames(units)
	shared := slices.Concat(outside, inside)
	var b strings.Builder
	fmt.Fprintf(&b, "local function instance()\nlocal run, bundled, %s\nlocal function define()\nlocal %s\n", strings.Join(outside, ", "), strings.Join(inside, ", "))
	for _, unit := range units {
		b.WriteString("do\n")
		for _, l := range unit {
			text := l.text
			if len(l.names) > 0 && slices.Contains(shared, l.names[0]) {
				text = l.assignment()
			}
			if text != "" {
				writeOut(&b, strings.TrimLeft(text, " "), constants)
				b.WriteByte('\n')
			}
		}
		b.WriteString("end\n")
	}
	b.WriteString("end\ndefine()\nreturn run, bundled\nend\nlocal run = instance()\n")
	return b.String()
}

// assignment returns the line for a place where its names are declared already.
func (l line) assignment() string {
	switch {
	case l.rest == "":
		return ""
	case l.rest[0] == '(':
		return "function " + l.names[0] + l.rest
	}
	return strings.Join(l.names, ", ") + l.rest
}

// readPart returns the lines of a part and, indented, of the parts that it includes. It adds
// constants to the map.
func readPart(part, indent string, constants map[string]string) (lines []line) {
	for text := range strings.Lines(readFile(part)) {
		text, _, _ = strings.Cut(text, "--")
		text = strings.TrimRight(text, " \n")
		if text == "" {
			continue
		}
		if included, found := strings.CutPrefix(strings.TrimLeft(text, " "), "include "); found {
			lines = append(lines, readPart(strings.Trim(included, "'"), "  ", constants)...)
			continue
		}
		l := line{text: indent + text}
		if function, found := strings.CutPrefix(text, "local function "); found {
			name, _, _ := strings.Cut(function, "(")
			l.names, l.rest = []string{name}, function[len(name):]
		} else if declared, found := strings.CutPrefix(text, "local "); found {
			names, value, set := strings.Cut(declared, " = ")
			if set && isConstant(names, value) {
				constants[names] = "(" + value + ")"
				continue
			}
			l.names, l.rest = strings.Split(names, ", "), declared[len(names):]
		}
		lines = append(lines, l)
	}
	return lines
}

// sharedNames returns the names that one unit declares and another uses. The names that most
// functions use are outside, and the rest inside. Every occurrence of a name's word counts as a
// use.
func sharedNames(units [][]line) (outside, inside []string) {
	unitsOf, functionsOf := make(map[string]int), make(map[string]int)
	for _, unit := range units {
		inUnit, inFunction := make(map[string]bool), make(map[string]bool)
		for _, l := range unit {
			if l.text[0] != ' ' {
				clear(inFunction)
			}
			for word := range strings.FieldsFuncSeq(l.text, notInName) {
				if !inFunction[word] {
					inFunction[word] = true
					functionsOf[word]++
				}
				if !inUnit[word] {
					inUnit[word] = true
					unitsOf[word]++
				}
			}
		}
	}
	for _, unit := range units {
		for _, l := range unit {
			if slices.ContainsFunc(l.names, func(name string) bool { return unitsOf[name] > 1 }) {
				inside = append(inside, l.names...)
			}
		}
	}
	outside = slices.Clone(inside)
	slices.SortStableFunc(outside, func(a, b string) int { return functionsOf[b] - functionsOf[a] })
	outside = outside[:mostShared-3] // and run, bundled and instance
	// Lua finds them fastest if they are declared in the order of their first use.
	most := func(name string) bool { return slices.Contains(outside, name) }
	return slices.DeleteFunc(slices.Clone(inside), func(name string) bool { return !most(name) }), slices.DeleteFunc(inside, most)
}

func notInName(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }

const capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_"

// isConstant reports whether the name is in capitals and the value is a number or a string.
func isConstant(name, value string) bool {
	return strings.Trim(name, capitals) == "" && (strings.Trim(value, "0123456789^ ") == "" || value[0] == '\'' && value[len(value)-1] == '\'')
}

// writeOut writes a line with the values of constants instead of their names.
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

func readFile(name string) string {
	part, err := scriptFiles.ReadFile("script/" + name + ".lua")
	if err != nil {
		panic(err) // the file is embedded
	}
	return string(part)
}

// asScript returns a library as a script that runs one call.
func asScript(library string) string { return library + "return run(KEYS, ARGV)\n" }

// asFunction returns a library in the format of Redis. Its only function runs one call.
func asFunction(name, library string) string {
	return "#!lua name=" + name + "\n" + library + "redis.register_function('" + name + "', run)\n"
}

func sha(s string) string {
	sum := sha1.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// estimate is added to the hash of a unit with estimated amounts.
const estimate = 1 << 32

// unknownPhase is the burst of a log or a sliding window that is declared as FixedWindow.
const unknownPhase = 1

// learned is the algorithm of a bucket whose rate is learned.
const learned = 10

// planText returns the plan as the script's argument, see plan.lua.
func planText(p *algorithms.Plan) string {
	text := tiersText(p)
	if !p.Follows() {
		return text
	}
	named := p.Followed()
	limits := make([]int64, len(p.Given()))
	copy(limits, named.Limits)
	return fmt.Sprintf("%s=%d %d %s", text, named.At, policyHash(p.Base()), strings.Trim(fmt.Sprint(limits), "[]"))
}

// policyHash returns a hash of the units and the tiers of a plan. It does not depend on the guard.
func policyHash(p *algorithms.Plan) int64 {
	h := fnv.New64a()
	fmt.Fprint(h, len(p.Given()), strings.SplitN(tiersText(p), " ", 3)[2])
	return int64(h.Sum64() >> 16) // fits in a double
}

// tiersText returns the text of a plan without what it has taken over.
func tiersText(p *algorithms.Plan) string {
	words := make([]string, 0, 4+len(p.Units())+6*len(p.Tiers()))
	add := func(numbers ...int64) {
		for _, n := range numbers {
			words = append(words, strconv.FormatInt(n, 10))
		}
	}
	add(p.Guard().Microseconds(), int64(p.Resolution()), int64(len(p.Units())), int64(len(p.Tiers())))
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
		if t.Phase == algorithms.UnknownPhase {
			burst = unknownPhase
		}
		if t.Algorithm == algorithms.Calendar {
			burst = t.Period.Longest().Microseconds()
		}
		algorithm := int64(t.Algorithm)
		if t.Learns() {
			algorithm = learned
		}
		add(algorithm, unit[t.Unit], t.Limit, t.Window.Microseconds(), burst, extra(t))
	}
	return strings.Join(words, " ")
}

// extra returns the last number of a tier, which depends on the algorithm: precision or phase in
// µs, a hash of a calendar's period and zone, or the bounds of a learned rate.
func extra(t algorithms.Tier) int64 {
	if t.Learns() {
		return t.Learn.Least<<24 + t.Learn.Most
	}
	if t.Algorithm == algorithms.Calendar {
		h := fnv.New64a()
		h.Write([]byte(t.Period.String() + " " + t.Zone))
		return int64(h.Sum64() >> 16) // fits in a double
	}
	if t.Phase == algorithms.UnknownPhase {
		t.Phase = 0 // the script does not align windows: the window stays rolling
	}
	if t.Algorithm != algorithms.AnchoredWindow {
		return (t.Precision + t.Phase).Microseconds() // no tier has both
	}
	// The rolling bound of an anchored window is a sliding window of the default precision.
	t.Algorithm, t.Burst = algorithms.SlidingWindow, 0
	rolling, err := algorithms.NewPlan([]algorithms.Tier{t}, 0)
	if err != nil {
		panic(err) // the tier was valid as it came
	}
	return rolling.Tiers()[0].Precision.Microseconds()
}
