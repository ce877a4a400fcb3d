// Package published tests a module of this repository as its users get it: from a module proxy, with
// the throttle that its go.mod names.
package published

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/internal/soak"
)

const throttle = "github.com/apithrottle/throttle"

// ours matches what a go.mod requires of this repository: a module and its version.
var ours = regexp.MustCompile(`\s(` + throttle + `\S*) (v\S+)`)

// Check fails unless the module in the current directory builds without a workspace, from a proxy that
// has the throttle of this repository, and with the go.sum that the module has. It takes all other
// modules from the module cache.
func Check(t *testing.T) {
	t.Helper()
	u := NewUser(t, "")
	if err := os.CopyFS(u.Dir, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(u.Dir, "go.work")); err != nil {
		t.Fatal(err)
	}
	// Since the last release, throttle has changed: its sums are none of this tree's.
	had := ourSums.ReplaceAllString(readFile(t, "go.sum"), "")
	if err := os.WriteFile(filepath.Join(u.Dir, "go.sum"), []byte(had), 0o644); err != nil {
		t.Fatal(err)
	}
	u.Go("list", "-deps", "-test", "./...")

	has := readFile(t, filepath.Join(u.Dir, "go.sum"))
	for line := range strings.Lines(has) {
		if !strings.HasPrefix(line, throttle) && !strings.Contains(had, line) {
			t.Errorf("go.sum lacks %s", line)
		}
	}
	if mod, got := readFile(t, "go.mod"), readFile(t, filepath.Join(u.Dir, "go.mod")); got != mod {
		t.Errorf("go.mod is not tidy. It becomes\n%s", got)
	}
}

// ourSums matches the lines of a go.sum that are about this repository.
var ourSums = regexp.MustCompile(`(?m)^` + throttle + `[/ ].*\n`)

// A User has the go command and no clone of this repository.
type User struct {
	Dir string // where the user works: empty at first
	Bin string // where "go install" writes

	t   *testing.T
	env []string
}

// NewUser returns a User whose module proxy has the modules of this repository that the module in the
// current directory requires, in those versions, and that module itself in a version, if that is not "".
// All other modules come from the module cache.
func NewUser(t *testing.T, version string) *User {
	t.Helper()
	soak.Long(t, "compiles everything anew, from a module proxy")
	mod := readFile(t, "go.mod")
	path, _, _ := strings.Cut(strings.TrimPrefix(mod, "module "), "\n")
	versions := ours.FindAllStringSubmatch(mod, -1)
	if len(versions) == 0 || strings.Contains(mod, "replace") {
		t.Fatalf("go.mod must require a version of throttle, and must not replace it:\n%s", mod)
	}
	if version != "" {
		versions = append(versions, []string{"", path, version})
	}
	p := Proxy{Clone: t.TempDir(), Cache: t.TempDir()}
	root, err := Run(".", nil, "git", "rev-parse", "--show-toplevel")
	others, downloads := Downloads()
	if err := cmp.Or(err, downloads, CopyTree(root, p.Clone), Commit(p.Clone)); err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		tag := strings.TrimPrefix(strings.TrimPrefix(v[1], throttle)+"/"+v[2], "/")
		if _, err := Git(p.Clone, "tag", tag); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Add(v[1], v[2]); err != nil {
			t.Fatal(err)
		}
	}
	u := &User{Dir: t.TempDir(), Bin: t.TempDir(), t: t}
	u.env = append(p.Env(t.TempDir(), others), "GOBIN="+u.Bin, "GOFLAGS=-mod=mod -modcacherw -trimpath")
	return u
}

// Go runs the go command and returns what it writes to its standard output.
func (u *User) Go(args ...string) string {
	u.t.Helper()
	return u.run("go", args...)
}

// Shell runs a command line and returns what it writes to its standard output.
func (u *User) Shell(command string) string {
	u.t.Helper()
	return u.run("sh", "-c", command)
}

func (u *User) run(name string, args ...string) string {
	u.t.Helper()
	out, err := Run(u.Dir, u.env, name, args...)
	if err != nil {
		u.t.Fatal(err)
	}
	return out
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
