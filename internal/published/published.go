// Package published tests a module of this repository as its users get it: from a module proxy, with
// the throttle that its go.mod names.
package published

import (
	"archive/zip"
	"bytes"
	"cmp"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
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
	u.Go("list", "-deps", "-test", "./...")

	had, has := readFile(t, "go.sum"), readFile(t, filepath.Join(u.Dir, "go.sum"))
	for line := range strings.Lines(has) {
		if !strings.HasPrefix(line, throttle) && !strings.Contains(had, line) {
			t.Errorf("go.sum lacks %s", line)
		}
	}
	if mod, got := readFile(t, "go.mod"), readFile(t, filepath.Join(u.Dir, "go.mod")); got != mod {
		t.Errorf("go.mod is not tidy. It becomes\n%s", got)
	}
}

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
	required := ours.FindAllStringSubmatch(mod, -1)
	if len(required) == 0 || strings.Contains(mod, "replace") {
		t.Fatalf("go.mod must require a version of throttle, and must not replace it:\n%s", mod)
	}
	proxy := t.TempDir()
	for _, m := range required {
		publish(t, proxy, m[1], run(t, ".", nil, "list", "-m", "-f", "{{.Dir}}", m[1]), m[2])
	}
	if version != "" {
		publish(t, proxy, path, ".", version)
	}
	u := &User{Dir: t.TempDir(), Bin: t.TempDir(), t: t}
	downloads := run(t, ".", nil, "env", "GOMODCACHE") + "/cache/download"
	u.env = []string{
		"GOPROXY=" + fileURL(proxy) + "," + fileURL(downloads), "GOMODCACHE=" + t.TempDir(), "GOBIN=" + u.Bin,
		// With -trimpath, what a test compiled is in the build cache for the next one.
		"GOWORK=off", "GOSUMDB=off", "GOTOOLCHAIN=local", "GOFLAGS=-mod=mod -modcacherw -trimpath",
	}
	return u
}

// Go runs the go command and returns what it writes to its standard output.
func (u *User) Go(args ...string) string {
	u.t.Helper()
	return run(u.t, u.Dir, u.env, args...)
}

// Shell runs a command line and returns what it writes to its standard output.
func (u *User) Shell(command string) string {
	u.t.Helper()
	return runCommand(u.t, u.Dir, u.env, "sh", "-c", command)
}

// publish writes a version of the module in a directory to a proxy.
func publish(t *testing.T, proxy, module, root, version string) {
	t.Helper()
	dir := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"list": version + "\n", version + ".info": `{"Version":"` + version + `"}`, version + ".mod": readFile(t, filepath.Join(root, "go.mod")),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	archive := zip.NewWriter(file)
	err = fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			_, err := os.Stat(filepath.Join(root, name, "go.mod"))
			if name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || err == nil) {
				return fs.SkipDir // no package that a user builds, or another module
			}
			return nil
		case !d.Type().IsRegular() || strings.HasPrefix(name, "go.work"):
			return nil
		}
		w, err := archive.Create(module + "@" + version + "/" + name)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
	if err := cmp.Or(err, archive.Close()); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func run(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	return runCommand(t, dir, env, "go", args...)
}

func runCommand(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, &stderr)
	}
	return strings.TrimSpace(string(out))
}

func fileURL(dir string) string {
	dir = filepath.ToSlash(dir)
	if runtime.GOOS == "windows" {
		dir = "/" + dir
	}
	return (&url.URL{Scheme: "file", Path: dir}).String()
}
