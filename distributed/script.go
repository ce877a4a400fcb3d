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

// scriptParts are the script's parts but for those that another includes. The line include 'x' of
// a part stands for the part x, which the function around it defines when it comes there: so a call defines what it needs.
var scriptParts = []string{
	"number", "pack", "call", "plan", "queue", "flight", "state", "rule", "need", "pool", "save", "tail", "tiers", "convert",
	"pace", "reserve", "main",
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

// A line of a part may declare names: a function, registers, which are locals without a value, or
// locals with one.
type line struct {
	text  string
	names []string
	rest  string // what follows them
}

// joinScript makes a library of the parts. A script is defined anew with each call, and Lua finds
// each local that a new function uses by a search through the locals of the function around it. So
// the names that most functions use are declared outside that, and those that only one part uses
// end with it. Constants are written out: a constant is a local of a part in capitals whose value is one word.
// An instance of the library has names of its own. There is one, which makes others for calls with
// several quotas: see peers in joint.lua.
func joinScript() string {
	constants := make(map[string]string)
	var units [][]line // the lines of each part, and of those that it includes
	for _, part := range scriptParts {
		units = append(units, readPart(part, "", constants))
	}
	outside, inside := sharedNames(units)
	shared := slices.Concat(outside, inside)
	var b strings.Builder
	fmt.Fprintf(&b, "local function instance()\nlocal run, jointly, %s\nlocal function define()\nlocal %s\n", strings.Join(outside, ", "), strings.Join(inside, ", "))
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
	b.WriteString("end\ndefine()\nreturn run, jointly\nend\nlocal run = instance()\n")
	return b.String()
}

// assignment is the line where its names are declared before.
func (l line) assignment() string {
	switch {
	case l.rest == "":
		return ""
	case l.rest[0] == '(':
		return "function " + l.names[0] + l.rest
	}
	return strings.Join(l.names, ", ") + l.rest
}

// readPart returns the lines of a part and of those that it includes, which are indented. Constants go to the map.
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

// sharedNames returns the names that a unit declares and another uses: those that most functions
// do, and the rest. A name counts where its word is, whatever it means there.
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
	outside = outside[:mostShared-3] // and run, jointly and instance
	// They are found at once where the first that is used is the first that is declared.
	most := func(name string) bool { return slices.Contains(outside, name) }
	return slices.DeleteFunc(slices.Clone(inside), func(name string) bool { return !most(name) }), slices.DeleteFunc(inside, most)
}

func notInName(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }

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

func readFile(name string) string {
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
