package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/spf13/cobra"
)

// A validateResult is the result of the verb validate.
type validateResult struct {
	OK      bool        `json:"ok"`
	Results []validated `json:"results"`
}

// A validated is one argument of the verb validate: a file or limits.
type validated struct {
	Input    string    `json:"input"`
	OK       bool      `json:"ok"`
	Limits   string    `json:"limits,omitempty"` // in normal form
	Policies []policy  `json:"policies,omitempty"`
	Routes   int       `json:"routes,omitempty"`
	Clients  int       `json:"clients,omitempty"`
	Store    string    `json:"store,omitempty"` // redis, postgres, file or process
	Pools    []pool    `json:"pools,omitempty"`
	Problems []problem `json:"problems,omitempty"`

	err error
}

// A policy is a policy with its name.
type policy struct {
	Name   string `json:"name"`
	Policy string `json:"policy"`
}

// A pool is the pool of a route.
type pool struct {
	Route   string       `json:"route"`
	Spill   float64      `json:"spill_seconds,omitempty"`
	Members []poolMember `json:"members"`
}

// A poolMember is a member of a pool.
type poolMember struct {
	Name   string `json:"name"`
	Host   string `json:"host"`
	Limits string `json:"limits"`
	Quota  string `json:"quota"`
	Rank   int    `json:"rank"`
	Weight int    `json:"weight"`
}

// text returns the members as lines.
func (p pool) text() string {
	rows := [][]string{{"member", "host", "limits", "quota", "rank", "weight"}}
	for _, m := range p.Members {
		rows = append(rows, []string{m.Name, m.Host, m.Limits, m.Quota, strconv.Itoa(m.Rank), strconv.Itoa(m.Weight)})
	}
	spill := ""
	if p.Spill > 0 {
		spill = fmt.Sprintf(", spills after %v", ofSeconds(p.Spill))
	}
	return fmt.Sprintf("  %s: a pool of %s%s\n%s", p.Route, plural(int64(len(p.Members)), "member"), spill, aligned("    ", rows))
}

// poolsOf returns the pools of a file.
func poolsOf(loaded *config.Config) (all []pool) {
	for _, prefix := range slices.Sorted(maps.Keys(loaded.Routes)) {
		r := loaded.Routes[prefix]
		if len(r.Pool) == 0 {
			continue
		}
		p := pool{Route: prefix, Spill: r.Spill.Seconds()}
		for _, m := range r.Pool {
			p.Members = append(p.Members, poolMember{m.Name, m.Upstream().Host, m.Limits().String(), m.Quota, m.Rank, m.Weight})
		}
		all = append(all, p)
	}
	return all
}

// A problem is a problem of an argument.
type problem struct {
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

func (c *command) validate() *cobra.Command {
	var withoutSecrets bool
	cmd := &cobra.Command{
		Use:        "validate FILE|LIMITS...",
		Short:      "Check limits and configuration files",
		SuggestFor: []string{"check", "lint", "test"},
		Long: `Check configuration files, policies and presets.

An argument is a file if it ends in .yaml, .yml or .json, or if there is a file
of that name; - is the standard input. All other arguments are policies such as
'5/s + 10000/h', or presets with their parameters. validate writes their normal
form.

validate writes problems to the standard error, each with its line, its column and
the fix. It shows no secret.

Exit codes: 64 bad usage, 78 a file or limits with a problem.`,
		Example: `  throttle validate throttle.yaml
  throttle validate --without-secrets throttle.yaml   # where they are not set
  throttle validate '5/sec + 10000/hour' openai:requests=500,tokens=30000`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("validate needs a file, a policy or a preset, such as throttle.yaml or '5/s + 10000/h'")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return c.validateAll(args, withoutSecrets) },
	}
	cmd.Flags().BoolVar(&withoutSecrets, "without-secrets", false, "don't read the variables and files that secrets refer to")
	return cmd
}

// validateAll checks files and limits.
func (c *command) validateAll(args []string, withoutSecrets bool) error {
	result := validateResult{OK: true}
	var errs []error
	for _, arg := range args {
		v := c.validateOne(arg, withoutSecrets)
		v.OK = v.err == nil
		result.OK = result.OK && v.OK
		result.Results = append(result.Results, v)
		errs = append(errs, v.err)
	}
	err := c.print(result, result.text)
	switch {
	case err != nil || result.OK:
		return err
	case c.json:
		return &exitError{exitConfig}
	}
	return &configError{errors.Join(errs...)}
}

// text returns a line for each argument that is valid.
func (r validateResult) text() string {
	var b strings.Builder
	for _, v := range r.Results {
		switch {
		case !v.OK:
		case v.Limits != "":
			b.WriteString(v.Limits + "\n")
		default:
			fmt.Fprintf(&b, "%s: ok: %s, %s, quotas in %s\n", v.Input, plural(int64(v.Routes), "route"), plural(int64(v.Clients), "client"),
				map[string]string{"redis": "Redis", "postgres": "PostgreSQL", "file": "a file", "process": "this process"}[v.Store])
			for _, p := range v.Pools {
				b.WriteString(p.text())
			}
		}
	}
	return b.String()
}

// validateOne checks a file or limits.
func (c *command) validateOne(arg string, withoutSecrets bool) validated {
	v := validated{Input: arg}
	if !isFile(arg) {
		_, unknown := config.FindPreset(arg)
		if info, err := os.Stat(arg); err == nil && info.IsDir() && unknown != nil {
			v.err = fmt.Errorf("%s is a directory: name a file", arg)
			v.Problems = []problem{{Message: v.err.Error()}}
			return v
		}
		return validateLimits(arg)
	}
	loaded, err := c.loadConfig(arg, withoutSecrets)
	var bad *config.Error
	switch {
	case errors.As(err, &bad):
		for _, p := range bad.Problems {
			v.Problems = append(v.Problems, problem{p.Line, p.Column, p.Field, p.Message})
		}
	case err != nil:
		v.Problems = []problem{{Message: err.Error()}}
	default:
		v.Routes, v.Clients, v.Store, v.Pools = len(loaded.Routes), len(loaded.Clients), "process", poolsOf(loaded)
		for name, there := range map[string]bool{
			"redis": !loaded.Store.Redis.IsZero(), "postgres": !loaded.Store.Postgres.IsZero(), "file": loaded.Store.File != "",
		} {
			if there {
				v.Store = name
			}
		}
	}
	v.err = err
	return v
}

// loadConfig reads a configuration file, or the standard input if path is "-".
func (c *command) loadConfig(path string, withoutSecrets bool) (*config.Config, error) {
	f, err := c.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 2<<20)) // more than a file may have
	if err != nil {
		return nil, err
	}
	return config.Loader{
		LookupEnv:      func(name string) (string, bool) { v := c.Getenv(name); return v, v != "" },
		WithoutSecrets: withoutSecrets,
	}.Parse(text, path)
}

func validateLimits(text string) validated {
	v := validated{Input: text}
	l, err := config.ParseLimits("", text)
	if err != nil {
		v.err = err
		v.Problems = []problem{{Message: err.Error()}}
		return v
	}
	v.Limits = l.String()
	if l.IsPreset() {
		for _, p := range l.Policies() {
			v.Policies = append(v.Policies, policy{p.Name, p.String()})
		}
	}
	return v
}

// isFile reports whether an argument is the name of a file rather than limits.
func isFile(arg string) bool {
	switch filepath.Ext(arg) {
	case ".yaml", ".yml", ".json":
		return true
	}
	info, err := os.Stat(arg)
	return arg == "-" || err == nil && !info.IsDir()
}
