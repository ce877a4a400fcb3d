package published

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// A Proxy is a module proxy with versions of the modules of this repository. The go command makes them from
// the tags of a clone, as it does from those that are pushed, so that zips and sums are the same.
type Proxy struct {
	Clone string // its directory
	Cache string // a directory, empty at first: a module cache with nothing but these versions
}

// A Version is one version of a module, as "go mod download -json" prints it.
type Version struct{ Path, Version, Zip, Sum, GoModSum string }

// Add adds a version, whose tag the clone has.
func (p Proxy) Add(path, version string) (v Version, err error) {
	env := []string{
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url." + fileURL(p.Clone) + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + throttle,
		"GOPROXY=direct", "GOVCS=*:git", "GOMODCACHE=" + p.Cache,
	}
	out, err := Run(p.Cache, append(isolated, env...), "go", "mod", "download", "-json", path+"@"+version)
	if err == nil {
		err = json.Unmarshal([]byte(out), &v)
	}
	return v, err
}

// Env returns the environment of a user who asks this proxy first and then others, and whose module cache is in
// a directory.
func (p Proxy) Env(cache string, others ...string) []string {
	downloads := fileURL(filepath.Join(p.Cache, "cache", "download"))
	return append(slices.Clip(isolated), "GOPROXY="+strings.Join(append([]string{downloads}, others...), ","), "GOMODCACHE="+cache)
}

// isolated are settings of a go command and a git that neither depend on this machine's nor ask for checksums. With
// -trimpath, what one of these commands compiled is in the build cache for the next one. GONOPROXY is empty because
// any other value makes "go get" of a nested module fail once the module above is in the module cache.
var isolated = []string{
	"GOENV=off", "GOPRIVATE=", "GONOPROXY=", "GOWORK=off", "GOSUMDB=off", "GOTOOLCHAIN=local", "GOFLAGS=-modcacherw -trimpath",
	"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
}

// Downloads returns the URL of this machine's module cache, which is a proxy of what is in it.
func Downloads() (string, error) {
	dir, err := Run(".", nil, "go", "env", "GOMODCACHE")
	return fileURL(filepath.Join(dir, "cache", "download")), err
}

// Git runs git in a clone that no maintainer owns, without the settings of this machine.
func Git(clone string, args ...string) (string, error) {
	args = append([]string{"-c", "user.name=release", "-c", "user.email=release@example.com"}, args...)
	return Run(clone, isolated, "git", args...)
}

// Run runs a command and returns what it writes to its standard output, without spaces around it.
func Run(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GIT_") }) // such as those of a hook
	cmd.Env = append(cmd.Env, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, &stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// CopyTree writes the files that a clone has, as they are now, to an empty directory.
func CopyTree(clone, to string) error {
	names, err := Run(clone, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return fmt.Errorf("the tree is no clone: %w", err)
	}
	for _, name := range strings.Split(strings.TrimSuffix(names, "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(clone, name))
		if os.IsNotExist(err) {
			continue // deleted since the last commit
		}
		file := filepath.Join(to, name)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(file), 0o755)
		}
		if err == nil {
			err = os.WriteFile(file, text, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Commit commits all files of a directory, which becomes a clone if it is none.
func Commit(dir string) error {
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A", "-f"}, {"commit", "-q", "--allow-empty", "-m", "release"}} {
		if _, err := Git(dir, args...); err != nil {
			return err
		}
	}
	return nil
}

func fileURL(dir string) string {
	dir = filepath.ToSlash(dir)
	if runtime.GOOS == "windows" {
		dir = "/" + dir
	}
	return (&url.URL{Scheme: "file", Path: dir}).String()
}
