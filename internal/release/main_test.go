package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/published"
	"github.com/apithrottle/throttle/internal/soak"
)

var full = flag.Bool("full", false, "rehearse with this repository instead of a small one")

// TestRehearsal releases v0.1.0 and then v0.1.1, which retracts v0.1.0, and does what users of either do.
func TestRehearsal(t *testing.T) {
	soak.Long(t, "builds two releases")
	dir := smallRepository(t)
	if *full {
		dir = t.TempDir()
		must(t, published.CopyTree("../..", dir))
		must(t, published.Commit(dir))
	}
	for _, setting := range []string{"user.name=release", "user.email=release@example.com", "tag.gpgSign=false"} {
		name, value, _ := strings.Cut(setting, "=")
		_, err := published.Git(dir, "config", name, value)
		must(t, err)
	}
	release := func(version string) {
		t.Helper()
		for _, mode := range []string{prepare, ""} {
			if err := run(t.Output(), dir, version, mode); err != nil {
				t.Fatalf("%s %s: %v", version, mode, err)
			}
			must(t, published.Commit(dir))
		}
	}
	release("v0.1.0")
	paths := map[string]string{throttle: ".", throttle + "/cmd/throttle": "cmd/throttle"}
	for _, module := range paths {
		change(t, dir, filepath.Join(module, "go.mod"), "\ngo 1.25.0", "\nretract v0.1.0 // Quotas of a day are wrong.\n\ngo 1.25.0")
	}
	change(t, dir, changelogFile, "## [Unreleased]\n", "## [Unreleased]\n\n### Fixed\n\n- Quotas of a day. Version 0.1.0 is retracted.\n")
	must(t, published.Commit(dir))
	release("v0.1.1")

	p := published.Proxy{Clone: dir, Cache: t.TempDir()}
	for _, path := range []string{throttle, throttle + "/postgres", throttle + "/cmd/throttle"} {
		for _, version := range []string{"v0.1.0", "v0.1.1"} {
			if _, err := p.Add(path, version); err != nil {
				t.Fatal(err)
			}
		}
	}
	proxies, err := others(dir)
	must(t, err)
	cache := t.TempDir()
	for path := range paths {
		user, bin := t.TempDir(), t.TempDir()
		shell := func(command string) string {
			t.Helper()
			out, err := published.Run(user, append(p.Env(cache, proxies...), "GOBIN="+bin), "sh", "-c", command+" 2>&1")
			if t.Logf("$ %s\n%s", command, out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		expect := func(command string, wants ...string) {
			t.Helper()
			out := shell(command)
			for _, want := range wants {
				if !strings.Contains(out+"\n", want) {
					t.Errorf("%s prints\n%s\nwant %q in it", command, out, want)
				}
			}
		}
		const retracted = "retracted by module author: Quotas of a day are wrong."
		shell("go mod init example.com/user")
		expect("go get "+path+"@v0.1.0", path+"@v0.1.0: "+retracted)
		expect("go list -m -retracted -versions "+path, path+" v0.1.0 v0.1.1\n")
		expect("go list -m -versions "+path, path+" v0.1.1\n")
		expect("go list -m -u "+path, path+" v0.1.0 (retracted) [v0.1.1]\n")
		expect("go list -m -u -f '{{.Path}} {{.Version}} {{.Retracted}}' all", path+" v0.1.0 [Quotas of a day are wrong.]\n")
		expect("go get "+path+"@latest", "upgraded "+path+" v0.1.0 => v0.1.1\n")
		if strings.Contains(path, "/cmd/") {
			expect("go install "+path+"@latest && '"+bin+"/throttle' version", "throttle v0.1.1,")
		}
	}
}

// TestRefusals attacks a release that could be made. Each error must name what is wrong.
func TestRefusals(t *testing.T) {
	soak.Long(t, "clones a repository many times")
	good := smallRepository(t)
	for name, test := range map[string]struct {
		version, mode string                       // if "", v0.1.0 and --dry-run
		do            func(t *testing.T, d string) // before the commit
		dirty         bool                         // without a commit
		want          string
	}{
		"no semver":         {version: "0.1.0", want: `version "0.1.0" must have the form v1.2.3 or v1.2.3-rc.1`},
		"leading zero":      {version: "v0.01.0", want: "must have the form"},
		"other prerelease":  {version: "v0.1.0-beta", want: "must have the form"},
		"a command":         {version: "--dry-run", want: "must have the form"},
		"another major":     {version: "v2.0.0", mode: prepare, want: "module path must match major version"},
		"dirty tree":        {do: changed("throttle.go", "7", "8"), dirty: true, want: "changes that are not committed: commit or stash them\nM throttle.go"},
		"new file":          {do: write("new.go", "package throttle\n"), dirty: true, want: "?? new.go"},
		"tag exists":        {do: tagged("cmd/throttle/v0.1.0"), want: "tag cmd/throttle/v0.1.0 exists"},
		"no section":        {do: changed(changelogFile, "- `Limit`.", ""), want: `CHANGELOG.md has no section "## [0.1.0] - 2006-01-02", and nothing under ## [Unreleased]`},
		"no changelog":      {do: remove(changelogFile), want: "CHANGELOG.md"},
		"no date":           {do: changed(changelogFile, "## [Unreleased]", "## [0.1.0]"), want: "CHANGELOG.md has no date of v0.1.0"},
		"leftovers":         {do: changed(changelogFile, "## [Unreleased]", "## [0.1.0] - 2026-12-01\n\n- A.\n\n## [Unreleased]"), want: "more under ## [Unreleased]: move it"},
		"replace directive": {do: changed("postgres/go.mod", "\nrequire", "\nreplace "+throttle+" => ..\n\nrequire"), want: `postgres/go.mod has "replace ` + throttle + ` => .."`},
		"replace block":     {do: changed("go.mod", "\ngo", "\nreplace (\n\texample.com/a => ./a\n)\n\ngo"), want: `go.mod has "replace ("`},
		"a workspace":       {do: write("go.work", "go 1.25.0\nuse .\n"), want: "go.work is committed"},
		"another version":   {version: "v0.1.1", want: "cmd/throttle/go.mod requires " + throttle + "/postgres v0.1.0 instead of v0.1.1"},
		"unused require":    {do: changed("go.mod", "\ngo 1.25.0", "\ngo 1.25.0\n\nrequire golang.org/x/mod v0.37.0"), want: "module " + throttle + " is not tidy"},
		"unused sum":        {do: write("postgres/go.sum", "example.com/a v1.0.0/go.mod h1:lLcsQk4oRjA6UQrYdtOYcsQmHgZdfNvxfuPAgL8qv8I=\n"), want: "module " + throttle + "/postgres is not tidy"},
		"no license":        {do: remove("LICENSE"), want: "module " + throttle + " has no LICENSE"},
		"not prepared":      {mode: "tag", want: "lacks what \"tools/release.sh v0.1.0 --prepare\" writes: CHANGELOG.md, cmd/throttle/go.sum, postgres/go.sum"},
		"does not compile":  {do: changed("postgres/postgres.go", "throttle.Limit", "throttle.Limits"), want: "undefined: throttle.Limits"},
		"another change": {mode: "tag", want: "writes: cmd/throttle/go.sum, postgres/go.sum", do: func(t *testing.T, dir string) {
			must(t, run(t.Output(), dir, "v0.1.0", prepare))
			change(t, dir, "throttle.go", "7", "8")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, published.CopyTree(good, dir))
			must(t, published.Commit(dir))
			if test.do != nil {
				test.do(t, dir)
			}
			if !test.dirty {
				must(t, published.Commit(dir))
			}
			version, mode := test.version, test.mode
			if version == "" {
				version = "v0.1.0"
			}
			switch mode {
			case "":
				mode = dryRun
			case "tag":
				mode = ""
			}
			err := run(t.Output(), dir, version, mode)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is\n%v\nwant %q in it", err, test.want)
			}
			if tags, err := published.Git(dir, "tag"); err != nil || tags != "" && name != "tag exists" {
				t.Errorf("there are the tags %q, %v", tags, err)
			}
		})
	}
}

// TestCommitMeanwhile commits while a release is proven or prepared. The tags are of the commit that was proven, and
// nothing is written over a later one.
func TestCommitMeanwhile(t *testing.T) {
	soak.Long(t, "proves a release")
	dir := smallRepository(t)
	for _, setting := range []string{"user.name", "user.email"} {
		_, err := published.Git(dir, "config", setting, "release@example.com")
		must(t, err)
	}
	must(t, run(t.Output(), dir, "v0.1.0", prepare))
	must(t, published.Commit(dir))
	proven, err := published.Git(dir, "rev-parse", "HEAD")
	must(t, err)
	must(t, run(writeFunc(func() { must(t, published.Commit(dir)) }), dir, "v0.1.0", ""))
	for _, tag := range []string{"v0.1.0", "postgres/v0.1.0", "cmd/throttle/v0.1.0"} {
		if commit, err := published.Git(dir, "rev-parse", tag+"^{commit}"); err != nil || commit != proven {
			t.Errorf("%s is of commit %s, %v, want %s", tag, commit, err, proven)
		}
	}

	r := &release{w: t.Output(), root: dir, clone: dir, commit: proven, version: "v0.1.1"}
	if err := r.copyBack([]string{"go.mod"}); err == nil || !strings.Contains(err.Error(), "a new commit meanwhile") {
		t.Errorf("the error is %v", err)
	}
	write("new.go", "package throttle\n")(t, dir)
	if err := r.copyBack([]string{"go.mod"}); err == nil || !strings.Contains(err.Error(), "?? new.go") {
		t.Errorf("the error is %v", err)
	}
}

// TestKilledWhileTagging kills a release while it signs its n-th tag: there is none then. If nothing kills it, all tags
// have their names and signatures. If one of them exists already, the release adds no other.
func TestKilledWhileTagging(t *testing.T) {
	soak.Long(t, "clones a repository several times")
	modules := []module{{"cmd/throttle"}, {"postgres"}, {"."}} // sorted by their tags

	if dir := os.Getenv("RELEASE_TEST_DIR"); dir != "" { // the release that is killed
		must(t, os.Setenv("RELEASE_TEST_PID", strconv.Itoa(os.Getpid())))
		r := &release{w: t.Output(), root: dir, clone: dir + "/clone", commit: "HEAD", version: "v0.1.0", modules: modules}
		must(t, r.tag())
		return
	}
	if runtime.GOOS == "windows" {
		t.Skip("the program that signs is a shell script")
	}
	for n := 1; n <= len(modules)+1; n++ {
		dir, tags := t.TempDir(), ""
		must(t, os.WriteFile(filepath.Join(dir, "gpg"), fmt.Appendf(nil, `#!/bin/sh
cat >/dev/null
echo >>%[1]s/calls
[ $(wc -l <%[1]s/calls) -ne %[2]d ] || { kill -KILL "$RELEASE_TEST_PID"; exit 1; }
echo '[GNUPG:] SIG_CREATED ' >&2
echo '-----BEGIN PGP SIGNATURE-----'
`, dir, n), 0o755))
		must(t, published.Commit(dir))
		for _, args := range [][]string{
			{"config", "user.name", "release"}, {"config", "user.email", "release@example.com"},
			{"config", "tag.gpgSign", "true"}, {"config", "gpg.program", filepath.Join(dir, "gpg")},
			{"clone", "-q", dir, filepath.Join(dir, "clone")},
		} {
			_, err := published.Git(dir, args...)
			must(t, err)
		}
		_, err := published.Run(dir, []string{"RELEASE_TEST_DIR=" + dir}, os.Args[0], "-test.run=^TestKilledWhileTagging$")
		if killed := n <= len(modules); (err != nil) != killed {
			t.Fatalf("signature %d: got %v", n, err)
		} else if !killed {
			for _, m := range modules {
				tags += m.name("v0.1.0") + " signed\n"
			}
		}
		got, err := published.Git(dir, "for-each-ref", "--format=%(tag) %(if)%(contents:signature)%(then)signed%(end)", "refs/tags")
		if err != nil || got != strings.TrimSpace(tags) {
			t.Errorf("killed at signature %d: got the tags %q, %v, want %q", n, got, err, tags)
		}
		if n > 1 {
			continue
		}
		_, err = published.Git(dir, "update-ref", "refs/tags/postgres/v0.1.0", "HEAD")
		must(t, err)
		r := &release{w: t.Output(), root: dir, clone: filepath.Join(dir, "clone"), commit: "HEAD", version: "v0.1.0", modules: modules}
		if err := r.tag(); err == nil || !strings.Contains(err.Error(), "postgres/v0.1.0") {
			t.Errorf("got %v beside another tag postgres/v0.1.0, want an error that names it", err)
		}
		if got, err := published.Git(dir, "tag"); err != nil || got != "postgres/v0.1.0" {
			t.Errorf("got the tags %q, %v beside another tag postgres/v0.1.0, want that alone", got, err)
		}
	}
}

// A writeFunc is called for each write.
type writeFunc func()

func (f writeFunc) Write(p []byte) (int, error) { f(); return len(p), nil }

func TestChangelog(t *testing.T) {
	day := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	const text = "# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [0.1.0] - 2026-11-30\n\n- Old.\n"
	for version, want := range map[string]string{
		"v0.1.1":      "# Changelog\n\n## [Unreleased]\n\n## [0.1.1] - 2026-12-01\n\n- New.\n\n## [0.1.0] - 2026-11-30\n\n- Old.\n",
		"v0.2.0-rc.1": text,
	} {
		got, err := changelog(text, version, day)
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", version, got, err, want)
		}
		if again, err := changelog(got, version, day.AddDate(0, 0, 1)); again != want || err != nil {
			t.Errorf("%s again: %q, %v", version, again, err)
		}
	}
}

// smallRepository returns a repository with the layout of this one, the modules of which can be released.
func smallRepository(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"LICENSE":              "MIT\n",
		changelogFile:          "# Changelog\n\n## [Unreleased]\n\n- `Limit`.\n",
		"Makefile":             "BESIDE = postgres cmd/throttle\n",
		"go.mod":               "module " + throttle + "\n\ngo 1.25.0\n",
		"throttle.go":          "package throttle\n\nconst Limit = 7\n",
		"postgres/go.mod":      "module " + throttle + "/postgres\n\ngo 1.25.0\n\nrequire " + throttle + " v0.1.0\n",
		"postgres/postgres.go": "package postgres\n\nimport \"" + throttle + "\"\n\nconst Limit = throttle.Limit\n",
		"cmd/throttle/go.mod":  "module " + throttle + "/cmd/throttle\n\ngo 1.25.0\n\nrequire (\n\t" + throttle + " v0.1.0\n\t" + throttle + "/postgres v0.1.0\n)\n",
		"postgres/go.sum":      "",
		"cmd/throttle/go.sum":  "",
		"go.sum":               "",
		"cmd/throttle/main.go": `package main

import (
	"fmt"
	"runtime/debug"

	"` + throttle + `"
	"` + throttle + `/postgres"
)

func main() {
	info, _ := debug.ReadBuildInfo()
	fmt.Println("throttle "+info.Main.Version+",", throttle.Limit+postgres.Limit)
}
`,
	} {
		write(name, text)(t, dir)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("../../tools", name))
		must(t, err)
		write("tools/"+name, string(text))(t, dir)
	}
	must(t, published.Commit(dir))
	return dir
}

func write(name, text string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		name := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must(t, os.WriteFile(name, []byte(text), 0o644))
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, name))) }
}

func tagged(tag string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		_, err := published.Git(dir, "tag", tag)
		must(t, err)
	}
}

func changed(name, before, after string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { change(t, dir, name, before, after) }
}

func change(t *testing.T, dir, name, before, after string) {
	t.Helper()
	must(t, edit(filepath.Join(dir, name), func(text string) (string, error) {
		if !strings.Contains(text, before) {
			t.Fatalf("%s has no %q:\n%s", name, before, text)
		}
		return strings.Replace(text, before, after, 1), nil
	}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
