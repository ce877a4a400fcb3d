package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apithrottle/throttle/cmd/throttle/internal/alike"
	"github.com/apithrottle/throttle/providers"
)

// FindPreset returns the preset of a name. Case, hyphens and underscores don't count. The error suggests
// names that are alike.
func FindPreset(name string) (providers.Preset, error) {
	p, fix := findPreset(name)
	if fix != "" {
		return p, fmt.Errorf("no preset has the name %q: %s", name, fix)
	}
	return p, nil
}

// findPreset returns the preset of a name, or what to do.
func findPreset(name string) (p providers.Preset, fix string) {
	var names []string
	for _, p := range providers.Presets() {
		if alike.Fold(p.Name) == alike.Fold(name) {
			return p, ""
		}
		names = append(names, p.Name)
	}
	if before, _, has := strings.Cut(name, ":"); has && slices.ContainsFunc(names, func(n string) bool { return alike.Fold(n) == alike.Fold(before) }) {
		return p, fmt.Sprintf("write %s without its parameters here; in a file they are in with", before)
	}
	return p, alike.Suggest(name, names, "throttle providers lists all presets")
}

// PresetText returns a preset with arguments as ParseLimits reads it.
func PresetText(p providers.Preset, args map[string]string) string {
	text, separator := p.Name, ":"
	for _, param := range p.Parameters {
		if value, ok := args[param.Name]; ok {
			text += separator + param.Name + "=" + value
			separator = ","
		}
	}
	return text
}

// parseNumber reads a whole number. Underscores may group its digits.
func parseNumber(text string) (int64, error) {
	return strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
}

// A badArgument is a problem of an argument, or of a parameter that lacks one.
type badArgument struct{ name, message string }

// presetArguments checks the values of a preset's parameters and fills in the defaults.
func presetArguments(p providers.Preset, given map[string]string) (args map[string]string, bad []badArgument) {
	args = map[string]string{}
	var names []string
	for _, param := range p.Parameters {
		names = append(names, param.Name)
		value, ok := given[param.Name]
		if !ok {
			if args[param.Name] = param.Default; param.Required() {
				bad = append(bad, badArgument{param.Name, fmt.Sprintf("is missing: give the %s, such as %s", param.About, param.Example)})
			}
			continue
		}
		var err error
		if args[param.Name], err = param.Parse(value); err != nil {
			bad = append(bad, badArgument{param.Name, fmt.Sprintf("is %q: %v", value, err)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if slices.Contains(names, name) {
			continue
		}
		fix := alike.Suggest(name, names, "it has "+cmp.Or(list(names, "and"), "none"))
		bad = append(bad, badArgument{name, fmt.Sprintf("is not a parameter of %s: %s", p.Name, fix)})
	}
	return args, bad
}

// list returns names in a sentence: "a, b and c".
func list(names []string, word string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + word + " " + names[last]
}
