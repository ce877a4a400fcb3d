package distributed

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// compile returns a chunk of Lua as a function.
func compile(t *testing.T, name, source string) *lua.FunctionProto {
	t.Helper()
	chunk, err := parse.Parse(strings.NewReader(source), name)
	if err != nil {
		t.Fatal(err)
	}
	proto, err := lua.Compile(chunk, name)
	if err != nil {
		t.Fatal(err)
	}
	return proto
}

// walk calls do for a function and each function inside it.
func walk(p *lua.FunctionProto, do func(*lua.FunctionProto)) {
	do(p)
	for _, inner := range p.FunctionPrototypes {
		walk(inner, do)
	}
}

// globalNames returns the global names that a chunk of Lua uses and assigns.
func globalNames(t *testing.T, name, source string) (used, assigned map[string]bool) {
	t.Helper()
	used, assigned = make(map[string]bool), make(map[string]bool)
	walk(compile(t, name, source), func(p *lua.FunctionProto) {
		for _, instruction := range p.Code { // an opcode of 6 bits, and the index of a constant in the last 18
			name := func() string { return p.Constants[instruction&(1<<18-1)].String() }
			switch int(instruction >> 26) {
			case lua.OP_GETGLOBAL:
				used[name()] = true
			case lua.OP_SETGLOBAL:
				assigned[name()] = true
			}
		}
	})
	return used, assigned
}

// localsAtOnce returns how many locals a function has at once, at most.
func localsAtOnce(p *lua.FunctionProto) (most int) {
	for _, l := range p.DbgLocals {
		open := 0
		for _, other := range p.DbgLocals {
			if other.StartPc <= l.StartPc && l.StartPc < other.EndPc {
				open++
			}
		}
		most = max(most, open)
	}
	return most
}

// TestScriptFitsInLua checks that the functions of the scripts stay within the limits of Lua 5.1, which
// the servers have and miniredis lacks: 60 locals of enclosing functions, and 200 of its own.
func TestScriptFitsInLua(t *testing.T) {
	const mostShared, mostLocals = 60, 200
	for name, source := range map[string]string{
		"script": scriptSource(), // a function of the server has the same library
		"peek":   readFile("peek"),
	} {
		walk(compile(t, name, source), func(p *lua.FunctionProto) {
			if p.NumUpvalues > mostShared {
				t.Errorf("%s: the function at line %d uses %d locals of enclosing functions, want %d at most", name, p.LineDefined, p.NumUpvalues, mostShared)
			}
			if locals := localsAtOnce(p); locals > mostLocals {
				t.Errorf("%s: the function at line %d has %d locals at once, want %d at most", name, p.LineDefined, locals, mostLocals)
			}
		})
	}
}

// languageNames are the names of Lua and the server that the script may use.
var languageNames = []string{"_G", "ARGV", "KEYS", "ipairs", "math", "pairs", "rawget", "redis", "select", "string", "table", "tonumber"}

// TestScriptUsesNoGlobals checks that each name in the scripts is declared, so a misspelled name
// cannot go unnoticed in a branch that few calls take.
func TestScriptUsesNoGlobals(t *testing.T) {
	for name, source := range map[string]string{
		"script": scriptSource(),
		"peek":   readFile("peek"),
	} {
		used, assigned := globalNames(t, name, source)
		for global := range used {
			if !slices.Contains(languageNames, global) {
				t.Errorf("%s: got the undeclared name %s used, want only names of Lua and the server", name, global)
			}
		}
		for global := range assigned {
			t.Errorf("%s: got the undeclared name %s assigned, want none", name, global)
		}
	}
}

var (
	declaration = regexp.MustCompile(`(?m)^local (?:function )?([\w, ]+)`)
	listOfNames = regexp.MustCompile(`\w+(?:\.lua)?`)
)

// listed returns the names after a word of a part's header, such as "Uses:", up to the end of the
// sentence.
func listed(source, word string) []string {
	header, _, _ := strings.Cut(source, "\n\n")
	_, list, _ := strings.Cut(strings.ReplaceAll(header, "\n--", ""), word)
	list, _, _ = strings.Cut(list+" ", ". ")
	return listOfNames.FindAllString(list, -1)
}

// TestPartsNameWhatTheyUse checks that the header of each part of the script lists the parts that it
// uses, apart from number.lua and the parts that it includes, and the names of other parts that it
// sets.
func TestPartsNameWhatTheyUse(t *testing.T) {
	files, err := scriptFiles.ReadDir("script")
	if err != nil {
		t.Fatal(err)
	}
	sources, declaredIn := make(map[string]string), make(map[string]string)
	for _, f := range files {
		part := f.Name()
		if part == "peek.lua" { // a script of its own
			continue
		}
		sources[part] = readFile(strings.TrimSuffix(part, ".lua"))
		for _, m := range declaration.FindAllStringSubmatch(sources[part], -1) {
			for name := range strings.SplitSeq(strings.TrimSpace(m[1]), ", ") {
				declaredIn[name] = part
			}
		}
	}
	for part, source := range sources {
		used, assigned := globalNames(t, part, source)
		maps.Copy(used, assigned)
		uses, sets := make(map[string]bool), make(map[string]bool)
		for name := range used {
			from := declaredIn[name]
			included := strings.Contains(source, "include '"+strings.TrimSuffix(from, ".lua")+"'")
			if from != "" && from != "number.lua" && !included {
				uses[from] = true
			}
		}
		for name := range assigned {
			if declaredIn[name] != "" {
				sets[name] = true
			}
		}
		for word, want := range map[string]map[string]bool{"Uses:": uses, "Sets:": sets} {
			want := slices.Sorted(maps.Keys(want))
			if got := slices.Sorted(slices.Values(listed(source, word))); !slices.Equal(got, want) {
				t.Errorf("%s: got %s %s, want %s", part, word, strings.Join(got, ", "), strings.Join(want, ", "))
			}
		}
	}
}
