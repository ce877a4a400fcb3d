package cli

import (
	"runtime/debug"

	"github.com/spf13/cobra"
)

// A versionResult is the result of the verb version.
type versionResult struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
}

func (c *command) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return c.printVersion() },
	}
}

func (c *command) printVersion() error {
	v := readVersion()
	return c.print(v, func() string { return "throttle " + v.Version + ", " + v.Go + "\n" })
}

// readVersion returns the version that the Go command has built into the program.
func readVersion() versionResult {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return versionResult{Version: "unknown"}
	}
	v := versionResult{Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	for _, flag := range []string{"name", "config"} {
		if f := cmd.Flag(flag); f != nil && !f.Changed {
			return usagef("%s takes no arguments: got %q: did you mean --%s %s?", cmd.CommandPath(), args[0], flag, args[0])
		}
	}
	return usagef("%s takes no arguments: got %q", cmd.CommandPath(), args[0])
}
