// Package published tests a module of this repository as its users get it: from a module proxy, with
// the throttle that its go.mod names.
package published

import (
	"archive/zip"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const throttle = "github.com/apithrottle/throttle"

// Check fails unless the module in the current directory builds without a workspace, from a proxy that
// has the throttle of this repository, and with the go.sum that the module has. It takes all other
// modules from the module cache.
func Check(t *testing.T) {
	t.Helper()
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(mod), throttle+" ")
	version, _, _ := strings.Cut(after, "\n")
	if !found || strings.Contains(string(mod), "replace") {
		t.Fatalf("go.mod must require a version of throttle, and must not replace it:\n%s", mod)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	proxy, user, cache := t.TempDir(), t.TempDir(), t.TempDir()
	publish(t, proxy, root, version)
	if err := os.CopyFS(user, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(user, "go.work")); err != nil {
		t.Fatal(err)
	}
	downloads := run(t, ".", nil, "env", "GOMODCACHE") + "/cache/download"
	run(t, user, []string{
		"GOPROXY=" + fileURL(proxy) + "," + fileURL(downloads), "GOMODCACHE=" + cache,
		"GOWORK=off", "GOSUMDB=off", "GOTOOLCHAIN=local", "GOFLAGS=-mod=mod -modcacherw",
	}, "list", "-deps", "-test", "./...")

	had, has := readFile(t, "go.sum"), readFile(t, filepath.Join(user, "go.sum"))
	for line := range strings.Lines(has) {
		if !strings.HasPrefix(line, throttle+" ") && !strings.Contains(had, line) {
			t.Errorf("go.sum lacks %s", line)
		}
	}
	if got := readFile(t, filepath.Join(user, "go.mod")); got != string(mod) {
		t.Errorf("go.mod is not tidy. It becomes\n%s", got)
	}
}

// publish writes a version of the module in root to a proxy.
func publish(t *testing.T, proxy, root, version string) {
	t.Helper()
	dir := filepath.Join(proxy, filepath.FromSlash(throttle), "@v")
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
			if name != "." && (strings.HasPrefix(d.Name(), ".") || err == nil) {
				return fs.SkipDir // another module
			}
			return nil
		case path.Ext(name) != ".go" && path.Ext(name) != ".lua" && name != "go.mod":
			return nil
		}
		w, err := archive.Create(throttle + "@" + version + "/" + name)
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
	if err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
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
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
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
