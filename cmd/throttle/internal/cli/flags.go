package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/apithrottle/throttle/cmd/throttle/internal/alike"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagError returns the error of a verb whose flags cannot be read.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && strings.Trim(unknown.GetSpecifiedShortnames(), "0123456789") == "" && unknown.GetSpecifiedShortnames() != "":
		return usagef("%s takes no negative number: got -%s", cmd.CommandPath(), unknown.GetSpecifiedShortnames())
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return usagef("%s has no flag -%s: see %s --help", cmd.CommandPath(), unknown.GetSpecifiedName(), cmd.CommandPath())
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		if near := alike.Nearest(name, flagNames(cmd)); near != "" {
			return usagef("%s has no flag --%s: did you mean --%s?", cmd.CommandPath(), name, near)
		}
		return usagef("%s has no flag --%s: see %s --help", cmd.CommandPath(), name, cmd.CommandPath())
	case errors.As(err, &missing):
		name := missing.GetFlag().Name
		return usagef("--%s needs a value: write --%s %s", name, name, strings.ToUpper(valueName(missing.GetFlag())))
	case errors.As(err, &invalid):
		return usagef("--%s is %q: %s", invalid.GetFlag().Name, invalid.GetValue(), wantedValue(invalid.GetFlag(), invalid.GetValue()))
	}
	return &usageError{err}
}

// flagNames returns the names of all flags of a verb.
func flagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// valueName returns the name of a flag's value, as the help has it.
func valueName(f *pflag.Flag) string {
	name, _ := pflag.UnquoteUsage(f)
	return name
}

// wantedValue returns what a flag wants instead of a value that it cannot read.
func wantedValue(f *pflag.Flag, value string) string {
	switch f.Value.Type() {
	case "duration":
		if _, err := strconv.ParseFloat(value, 64); err == nil {
			return fmt.Sprintf("a unit is missing: write %ss for seconds, or %sm, %sh", value, value, value)
		}
		return "write a length of time such as 500ms, 5s, 10m or 1h30m, of at most 292 years"
	case "int", "int64":
		return "write a whole number"
	case "bool":
		return "write true or false"
	case "stringSlice":
		return "write a unit and a whole number, such as requests=1 or tokens=800"
	}
	return "it is not a " + f.Value.Type()
}

// notFromEnvironment are flags that no variable sets.
var notFromEnvironment = []string{"help", "version"}

// variable returns the variable of the environment that sets a flag.
func variable(flag string) string {
	return "THROTTLE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// readEnvironment sets the flags that the command line does not set from the environment.
func (c *command) readEnvironment(cmd *cobra.Command) (err error) {
	flags := cmd.Flags()
	flags.VisitAll(func(f *pflag.Flag) {
		name := variable(f.Name)
		value := c.Getenv(name)
		if f.Changed || value == "" || err != nil || slices.Contains(notFromEnvironment, f.Name) {
			return
		}
		if flags.Set(f.Name, value) != nil {
			err = usagef("%s is %q: %s", name, value, wantedValue(f, value))
		}
	})
	if err == nil && !strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd) {
		c.warnOfVariables(cmd.Root())
	}
	return err
}

// warnOfVariables warns of variables whose names are almost those of flags of some verb. All other
// variables belong to somebody else: configuration files, for instance, read variables of any name.
func (c *command) warnOfVariables(root *cobra.Command) {
	known := []string{controlToken}
	for _, verb := range root.Commands() {
		for _, name := range flagNames(verb) {
			if !slices.Contains(notFromEnvironment, name) {
				known = append(known, variable(name))
			}
		}
	}
	short := func(name string) string { return strings.TrimPrefix(name, "THROTTLE_") }
	names := make([]string, len(known))
	for i, name := range known {
		names[i] = short(name)
	}
	for _, entry := range c.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "THROTTLE_") || value == "" || slices.Contains(known, name) {
			continue
		}
		if near := alike.Nearest(short(name), names); near != "" && !strings.HasPrefix(near, short(name)) {
			fmt.Fprintf(c.Stderr, "throttle: the variable %s sets nothing: did you mean THROTTLE_%s?\n", plain(name), near)
		}
	}
}

// checkText returns an error for the value of a flag that cannot be a name.
func checkText(flag, text string) error {
	switch {
	case !utf8.ValidString(text):
		return usagef("--%s is %q: it must be UTF-8", flag, text)
	case strings.ContainsFunc(text, unicode.IsControl):
		return usagef("--%s is %q: it must have no control characters", flag, text)
	case len(text) > 200:
		return usagef("--%s has %d bytes: it must have at most 200", flag, len(text))
	}
	return nil
}
