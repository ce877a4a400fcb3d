package cli

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/providers"
)

// A completion returns the values that a shell may complete an argument to.
type completion = cobra.CompletionFunc

const (
	noFiles = cobra.ShellCompDirectiveNoFileComp
	noSpace = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
)

// completeFlags makes shells complete the values of a verb's flags. Shells complete names of files only
// where a flag has one.
func (c *command) completeFlags(verb *cobra.Command) {
	values := map[string]completion{
		"policy":        completePolicy,
		"scope":         completeScope,
		"cost":          completeCost,
		"name":          c.completeName,
		"host":          completeHost,
		"config":        filesOf("yaml", "yml", "json"),
		"file":          anyFile,
		"token-file":    anyFile,
		"journal":       anyFile,
		"results":       anyFile,
		"class":         fixed("interactive\tbefore all others", "normal\tthe default", "batch\tafter all others; leaves the headroom"),
		"format":        fixed("jsonl\tJSON lines", "clf\tan access log of nginx or Apache", "har\tan HTTP archive"),
		"duration-unit": fixed("s", "ms", "us", "ns"),
		"redis":         fixed("redis://localhost:6379/0"),
		"store":         fixed("postgres://", "redis://localhost:6379/0"),
		"page":          fixed("http://" + config.DefaultListen + "/_throttle/"),
	}
	verb.Flags().VisitAll(func(f *pflag.Flag) {
		complete := values[f.Name]
		if complete == nil {
			complete = cobra.NoFileCompletions
		}
		_ = verb.RegisterFlagCompletionFunc(f.Name, complete) // fails only if there is no such flag
	})
	if verb.ValidArgsFunction == nil && !verb.HasSubCommands() {
		verb.ValidArgsFunction = c.argumentsOf(verb.Name())
	}
}

// argumentsOf returns what completes the arguments of a verb.
func (c *command) argumentsOf(verb string) completion {
	switch verb {
	case "status", "top":
		return c.completeName
	case "plan", "lines":
		return completePolicy
	case "providers":
		return completePreset
	case "validate":
		return completeLimitsOrFile
	case "replay", "inspect", "batch":
		return anyFile
	case "exec":
		return c.completeCommand
	}
	return cobra.NoFileCompletions
}

func fixed(values ...string) completion { return cobra.FixedCompletions(values, noFiles) }

func anyFile(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

func filesOf(extensions ...string) completion {
	return cobra.FixedCompletions(extensions, cobra.ShellCompDirectiveFilterFileExt)
}

// completePreset completes the name of a preset.
func completePreset(_ *cobra.Command, given []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	for _, p := range providers.Presets() {
		if !slices.Contains(given, p.Name) {
			names = append(names, cobra.CompletionWithDesc(p.Name, constructorOf(p)))
		}
	}
	return names, noFiles
}

// completePolicy completes a preset, and after its colon the parameters.
func completePolicy(_ *cobra.Command, _ []string, typed string) (values []string, _ cobra.ShellCompDirective) {
	if name, rest, ok := strings.Cut(typed, ":"); ok {
		return completeParameters(name, rest)
	}
	directive := noFiles
	for _, p := range providers.Presets() {
		text := p.Name
		if !strings.HasPrefix(text, typed) {
			continue
		}
		if slices.ContainsFunc(p.Parameters, providers.Parameter.Required) {
			text, directive = text+":", noSpace // which follow
		}
		values = append(values, cobra.CompletionWithDesc(text, constructorOf(p)))
	}
	if len(values) > 1 {
		directive = noFiles
	}
	return values, directive
}

// completeParameters completes the parameters of a preset that are not given yet.
func completeParameters(name, typed string) (values []string, _ cobra.ShellCompDirective) {
	p, err := config.FindPreset(name)
	if err != nil {
		return nil, noFiles
	}
	before := name + ":"
	if i := strings.LastIndexByte(typed, ','); i >= 0 {
		before, typed = before+typed[:i+1], typed[i+1:]
	}
	if strings.Contains(typed, "=") {
		return nil, noSpace
	}
	for _, parameter := range p.Parameters {
		if !strings.Contains(before, ":"+parameter.Name+"=") && !strings.Contains(before, ","+parameter.Name+"=") {
			values = append(values, cobra.CompletionWithDesc(before+parameter.Name+"=", parameter.About))
		}
	}
	return values, noSpace
}

// completeLimitsOrFile completes a preset whose name begins as the text does, or else a file.
func completeLimitsOrFile(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if values, directive := completePolicy(cmd, args, typed); typed != "" && len(values) > 0 {
		return values, directive
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// completeScope completes the limits of the preset that --policy names.
func completeScope(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	policy, _, _ := strings.Cut(cmd.Flag("policy").Value.String(), ":")
	p, err := config.FindPreset(policy)
	if err != nil {
		return nil, noFiles
	}
	for _, s := range p.Provider(p.Example()).Scopes {
		names = append(names, cobra.CompletionWithDesc(s.Name, strings.Join(tierTexts(s.Policy), " + ")))
	}
	return names, noFiles
}

// completeCost completes the units of the policy.
func completeCost(cmd *cobra.Command, _ []string, typed string) (units []string, _ cobra.ShellCompDirective) {
	if strings.Contains(typed, "=") {
		return nil, noSpace
	}
	units = []string{algorithms.Requests + "="}
	if f := cmd.Flag("policy"); f != nil {
		if l, err := config.ParseLimits("", f.Value.String()); err == nil {
			units = nil
			for _, p := range l.Policies() {
				for _, unit := range countedUnits(p) {
					if !slices.Contains(units, unit+"=") {
						units = append(units, unit+"=")
					}
				}
			}
		}
	}
	return units, noSpace
}

// completeHost completes the host of an API.
func completeHost(*cobra.Command, []string, string) (hosts []string, _ cobra.ShellCompDirective) {
	for _, p := range providers.Presets() {
		for _, host := range p.Provider(p.Example()).Hosts {
			if !strings.Contains(host, "*") {
				hosts = append(hosts, cobra.CompletionWithDesc(host, constructorOf(p)))
			}
		}
	}
	return hosts, noFiles
}

// completeName completes the names of quotas: those of the configuration file that --config names, or of
// the page that --page names. A file of quotas and Redis have hashes of names only.
func (c *command) completeName(cmd *cobra.Command, given []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	value := func(name string) string {
		if f := cmd.Flag(name); f != nil {
			return f.Value.String()
		}
		return ""
	}
	switch {
	case value("config") != "":
		loaded, err := c.loadConfig(value("config"), true)
		if err != nil {
			break
		}
		for _, q := range quotasIn(loaded) {
			names = append(names, cobra.CompletionWithDesc(q.Name, q.Policy.String()))
		}
	case value("page") != "":
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		read, closer, err := (&statusFlags{page: value("page")}).pageReader(nil)
		if err != nil {
			break
		}
		defer closer()
		r, _ := read(ctx)
		for _, q := range r.Quotas {
			names = append(names, plain(q.Name))
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		name, _, _ = strings.Cut(name, "\t")
		return slices.Contains(given, name)
	}), noFiles
}

// completeCommand completes the command of exec, from $PATH, and the names of files after it.
func (c *command) completeCommand(_ *cobra.Command, args []string, typed string) (names []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 || typed == "" || strings.ContainsRune(typed, filepath.Separator) {
		return nil, cobra.ShellCompDirectiveDefault
	}
	for _, dir := range filepath.SplitList(c.Getenv("PATH")) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), typed) {
				continue
			}
			if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), noFiles
}
