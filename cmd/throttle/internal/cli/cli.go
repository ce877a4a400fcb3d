// Package cli is the command throttle. Each verb has a file of its own.
//
// Results go to Stdout, everything else to Stderr. With --json each verb writes JSON. Each flag can be
// set by an environment variable: --max-wait by THROTTLE_MAX_WAIT.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/alike"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// The exit codes, those of sysexits.h: a command that exec runs has its own below them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 64 // a bad flag or argument
	exitUnavailable = 69 // the store is away
	exitRefused     = 75 // refused for now: a later call may succeed
	exitConfig      = 78 // a bad policy or configuration
)

// A System is what the command uses of the process that it runs in.
type System struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Environ        func() []string // each as name=value
}

// OS returns the System of this process.
func OS() System { return System{os.Stdin, os.Stdout, os.Stderr, os.Getenv, os.Environ} }

// isTerminal reports whether a writer is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colors reports whether output to a writer may have colors.
func (s System) colors(w io.Writer) bool {
	return isTerminal(w) && s.Getenv("NO_COLOR") == "" && s.Getenv("TERM") != "dumb"
}

// A command is one run of the command.
type command struct {
	System
	json bool
	args []string // of the command line, for a verb that says how to run it again
	stop func()   // of the signals of a verb in tidy
}

// Main runs the command and returns its exit code.
func Main(ctx context.Context, s System, args []string) int {
	c := &command{System: s, args: args, stop: func() {}}
	root := c.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	c.stop()
	code := exitCode(err)
	var exited *exitError
	if err != nil && !errors.As(err, &exited) {
		text := credentials.ReplaceAllString(err.Error(), "${1}xxxxx@")
		fmt.Fprintln(s.Stderr, "throttle:", strings.TrimPrefix(text, "throttle: "))
	}
	return code
}

// credentials matches those of a URL. It may be in the place of another argument, which an error shows.
var credentials = regexp.MustCompile(`(://[^\s/:@]*:)\S*@`)

// A group is a part of the list of verbs.
type group struct {
	title string
	verbs []*cobra.Command
}

// groups returns the verbs.
func (c *command) groups() []group {
	return []group{
		{"Send requests in turn:", []*cobra.Command{c.exec(), c.wait(), c.lines(), c.batch(), c.proxy()}},
		{"See and control quotas:", []*cobra.Command{c.status(), c.top(), c.pause(), c.resume(), c.forget()}},
		{"Plan and check limits:", []*cobra.Command{c.plan(), c.replay(), c.providers(), c.inspect(), c.validate()}},
		{"Other verbs:", []*cobra.Command{c.postgres(), c.help(), c.version()}},
	}
}

// root returns the command with all of its verbs.
func (c *command) root() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "throttle VERB [FLAG...] [ARGUMENT...]",
		Short: "Keep requests within the limits of APIs",
		Long: `Throttle keeps the requests of scripts and programs within the limits of APIs. A
request waits for its turn, so the API does not refuse it.

Limits are a text such as '5/s + 10000/h', or the name of an API, such as github.`,
		Example: `  throttle plan '5/s + 10000/h' 40000
  throttle exec --policy '5/s + 10000/h' --name coinbase -- curl -fsS https://…
  throttle status --policy '5/s + 10000/h' coinbase`,
		DisableFlagsInUseLine: true,
		SilenceUsage:          true,
		SilenceErrors:         true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownVerb(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return c.printVersion()
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if slices.Contains(tidy, cmd.Name()) {
				c.catchSignals(cmd)
			}
			return c.readEnvironment(cmd)
		},
	}
	root.SetIn(c.Stdin)
	root.SetOut(c.Stdout)
	root.SetErr(c.Stderr)
	root.SetUsageTemplate(usageTemplate)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().BoolVar(&c.json, "json", false, "write the result as JSON")
	root.Flags().BoolVar(&version, "version", false, "print the version")
	c.addVerbs(root)
	return root
}

// addVerbs adds the verbs in their groups, and the completion of their flags.
func (c *command) addVerbs(root *cobra.Command) {
	for _, g := range c.groups() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, verb := range g.verbs {
			verb.GroupID, verb.DisableFlagsInUseLine = g.title, true
			root.AddCommand(verb)
			if verb.Name() == "help" {
				root.SetHelpCommand(verb)
				root.SetCompletionCommandGroupID(g.title)
			}
		}
	}
	root.InitDefaultCompletionCmd()
	for _, verb := range root.Commands() {
		if verb.Name() == "completion" {
			verb.Use, verb.Short = "completion SHELL", "Write the completion script of a shell"
			verb.Long = `Write the script that makes a shell complete verbs, flags and their values.
"throttle help completion bash" shows how to load it; so do the others.`
			verb.DisableFlagsInUseLine = true
			verb.Args, verb.RunE = cobra.ArbitraryArgs, completionOfNoShell
		}
		c.completeFlags(verb)
	}
}

// tidy are verbs whose context a signal ends, so that they end what they have begun. Verbs that wait for
// a turn catch signals while they wait. A signal ends all others at once, as it ends most programs.
var tidy = []string{"proxy", "top"}

// catchSignals makes a signal end the context of a verb. A second signal ends the program at once.
func (c *command) catchSignals(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	c.stop = stop
	cmd.SetContext(ctx)
}

const usageTemplate = `Usage:
  {{.UseLine}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{$cmds := .Commands}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if and .HasAvailableSubCommands (not .Groups)}}

{{if eq .Name "completion"}}Shells{{else}}Verbs{{end}}:{{range $cmds}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{if .HasAvailableInheritedFlags}}
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .Groups}}

"throttle help VERB" shows the flags of a verb, with examples.{{end}}
`

// unknownVerb returns the error of a verb that does not exist.
func unknownVerb(root *cobra.Command, name string) error {
	names := make(map[string]string) // of verbs, by what may stand for them
	for _, verb := range root.Commands() {
		names[verb.Name()] = verb.Name()
		for _, other := range verb.SuggestFor {
			names[other] = verb.Name()
		}
	}
	if near := alike.Nearest(name, slices.Sorted(maps.Keys(names))); near != "" {
		return usagef("unknown verb %q: did you mean %s?", name, names[near])
	}
	return usagef("unknown verb %q: throttle --help lists all verbs", name)
}

// completionOfNoShell is the verb completion without a shell that it knows.
func completionOfNoShell(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return usagef("completion knows no shell %q: use bash, zsh, fish or powershell", args[0])
}

func (c *command) help() *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "Show the help of a verb",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (verbs []string, _ cobra.ShellCompDirective) {
			for _, verb := range cmd.Root().Commands() {
				if len(args) == 0 && !verb.Hidden {
					verbs = append(verbs, cobra.CompletionWithDesc(verb.Name(), verb.Short))
				}
			}
			return verbs, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			verb, rest, err := cmd.Root().Find(args)
			if err != nil || verb == cmd.Root() && len(rest) > 0 {
				return unknownVerb(cmd.Root(), args[0])
			}
			verb.InitDefaultHelpFlag()
			return verb.Help()
		},
	}
}

// print writes a result: v as JSON with --json, or else the text.
func (c *command) print(v any, text func() string) error {
	if c.json {
		return writeJSON(c.Stdout, v)
	}
	_, err := io.WriteString(c.Stdout, text())
	return err
}

// writeJSON writes a value in a line.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// open opens a file, or the standard input for "-".
func (c *command) open(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(c.Stdin), nil
	}
	return os.Open(path)
}

// A usageError is the error of a bad flag or argument.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// A configError is the error of a bad policy or configuration.
type configError struct{ error }

func (e *configError) Unwrap() error { return e.error }

// An exitError ends the command with a code and without a message.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// exitCode returns the exit code for an error.
func exitCode(err error) int {
	var usage *usageError
	var config *configError
	var exited *exitError
	var refused *throttle.WaitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exited):
		return exited.code
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &config):
		return exitConfig
	case errors.Is(err, throttle.ErrUnavailable):
		return exitUnavailable
	case errors.As(err, &refused):
		return exitRefused
	}
	return exitFailure
}
