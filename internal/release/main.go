// Release prepares, proves and tags a release of the published modules: see docs/releasing.md.
package main

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle/internal/published"
)

const usage = "usage: tools/release.sh VERSION [--prepare | --dry-run]\n       tools/release.sh --rehearse"

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	args := append(os.Args[1:], "", "")
	if n := len(os.Args); n < 2 || n > 3 || !slices.Contains([]string{"", prepare, dryRun}, args[1]) {
		log.Fatal(usage)
	}
	root, err := os.Getwd()
	if err == nil {
		err = run(os.Stdout, root, args[0], args[1])
	}
	if err != nil {
		log.Fatal(err)
	}
}

// What run does beside its checks: it tags the commit if that is neither.
const (
	prepare = "--prepare"
	dryRun  = "--dry-run"
)

const throttle = "github.com/apithrottle/throttle"

// A release is one of all modules, with one version.
type release struct {
	w             io.Writer
	root, version string
	modules       []module // in the order of their tags: a module requires earlier ones only
	temp, clone   string   // of the last commit, to which prepare may add some
	commit        string   // the last commit
	others        []string // proxies of other people's modules
}

// A module is a directory of the repository. That of the library is ".".
type module struct{ dir string }

func (m module) path() string { return strings.TrimSuffix(throttle+"/"+m.dir, "/.") }

// name returns the name of one of its files, or tags, in the repository.
func (m module) name(base string) string { return strings.TrimPrefix(m.dir+"/"+base, "./") }

func run(w io.Writer, root, version, mode string) error {
	r := &release{w: w, root: root, version: version}
	if err := r.check(mode); err != nil {
		return err
	}
	var err error
	if r.temp, err = os.MkdirTemp("", "release"); err != nil {
		return err
	}
	defer os.RemoveAll(r.temp)
	r.clone = filepath.Join(r.temp, "clone")
	if _, err := published.Git(r.temp, "clone", "-q", root, r.clone); err != nil {
		return err
	}
	if r.commit, err = published.Git(r.clone, "rev-parse", "HEAD"); err != nil {
		return err
	}
	if r.others, err = others(root); err != nil {
		return err
	}
	changed, err := r.prepare(mode)
	if err != nil {
		return err
	}
	if mode == prepare {
		return r.copyBack(changed)
	}
	if len(changed) > 0 {
		lack := "the last commit lacks what \"tools/release.sh " + version + " --prepare\" writes: " + strings.Join(changed, ", ")
		if mode != dryRun {
			return errors.New(lack)
		}
		fmt.Fprintf(w, "note: %s.\n      What follows is about a copy that has it.\n", lack)
	}
	if err := r.prove(); err != nil {
		return err
	}
	if mode != dryRun {
		if err := r.tag(); err != nil {
			return err
		}
	}
	r.printSteps(mode, len(changed) > 0)
	return nil
}

// others returns the proxies that have other people's modules.
func others(root string) ([]string, error) {
	downloads, err := published.Downloads()
	if err != nil {
		return nil, err
	}
	ordinary, err := published.Run(root, nil, "go", "env", "GOPROXY")
	return []string{downloads, ordinary}, err
}

var (
	versionText  = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-rc\.[1-9]\d*)?$`)
	moduleList   = regexp.MustCompile(`(?m)^BESIDE = (.+)$`)
	requirement  = regexp.MustCompile(`(?m)^((?:require)?\s+` + throttle + `\S* )(v\S+)`)
	replacement  = regexp.MustCompile(`(?m)^replace\b.*`)
	sumsOfOurs   = regexp.MustCompile(`(?m)^` + throttle + `[/ ].*\n`)
	noDependency = "v0.0.0" // the version of ours in modules that replace it by the directory
)

// check reports what a look at the clone shows, all at once.
func (r *release) check(mode string) error {
	if !versionText.MatchString(r.version) {
		return fmt.Errorf("version %q must have the form v1.2.3 or v1.2.3-rc.1\n%s", r.version, usage)
	}
	makefile, err := os.ReadFile(filepath.Join(r.root, "Makefile"))
	list := moduleList.FindSubmatch(makefile)
	if err != nil || list == nil {
		return fmt.Errorf("the Makefile has no list BESIDE of the published modules: %w", err)
	}
	for _, dir := range append([]string{"."}, strings.Fields(string(list[1]))...) {
		r.modules = append(r.modules, module{dir})
	}
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	git := func(args ...string) string {
		out, err := published.Run(r.root, nil, "git", args...)
		if err != nil {
			bad("%w", err)
		}
		return out
	}
	if dirty := git("status", "--porcelain"); dirty != "" {
		bad("the tree has changes that are not committed: commit or stash them\n%s", dirty)
	}
	if git("ls-files", "go.work") != "" {
		bad("go.work is committed: it would rule every module that has none of its own; remove it")
	}
	for _, m := range r.modules {
		if git("tag", "--list", m.name(r.version)) != "" {
			bad("tag %s exists: choose another version; a published one never changes", m.name(r.version))
		}
		mod, err := os.ReadFile(filepath.Join(r.root, m.name("go.mod")))
		if err != nil {
			bad("%w", err)
		}
		if line := replacement.Find(mod); line != nil {
			bad("%s has %q, which \"go install\" refuses: move it to go.work", m.name("go.mod"), line)
		}
		for _, q := range requirement.FindAllSubmatch(mod, -1) {
			if path := strings.Fields(string(q[1])); mode != prepare && string(q[2]) != r.version {
				bad("%s requires %s %s instead of %s: run \"tools/release.sh %[4]s --prepare\"", m.name("go.mod"), path[len(path)-1], q[2], r.version)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(r.root, changelogFile))
	if err == nil {
		_, err = changelog(string(text), r.version, time.Now())
	}
	if err != nil {
		bad("%w", err)
	}
	return errors.Join(problems...)
}

const changelogFile = "CHANGELOG.md"

// changelog returns a changelog with a dated section of a version, which has what is under Unreleased unless
// there is one. Release candidates have no section.
func changelog(text, version string, now time.Time) (string, error) {
	const unreleased = "## [Unreleased]"
	number := strings.TrimPrefix(version, "v")
	section := func(heading string) (heads []string, body string) {
		at := regexp.MustCompile(`(?ms)^` + regexp.QuoteMeta(heading) + `([^\n]*)\n(.*?)(?:\n## |\z)`)
		for _, m := range at.FindAllStringSubmatch(text, -1) {
			heads, body = append(heads, m[1]), strings.TrimSpace(m[2])
		}
		return heads, body
	}
	_, next := section(unreleased)
	heads, body := section("## [" + number + "]")
	switch dated := len(heads) == 1 && regexp.MustCompile(`^ - \d{4}-\d\d-\d\d$`).MatchString(heads[0]); {
	case strings.Contains(version, "-"):
		if next == "" {
			return "", fmt.Errorf("%s has nothing under %s: write what %s changes", changelogFile, unreleased, version)
		}
		return text, nil
	case len(heads) > 1:
		return "", fmt.Errorf("%s has %d sections of %s", changelogFile, len(heads), version)
	case len(heads) == 1 && !dated:
		return "", fmt.Errorf("%s has no date of %s: the heading must be \"## [%s] - 2006-01-02\"", changelogFile, version, number)
	case len(heads) == 1 && body == "":
		return "", fmt.Errorf("the section of %s in %s is empty: write what it changes", version, changelogFile)
	case len(heads) == 1 && next != "":
		return "", fmt.Errorf("%s has a section of %s and more under %s: move it to that section", changelogFile, version, unreleased)
	case len(heads) == 1:
		return text, nil
	case next == "":
		return "", fmt.Errorf("%s has no section \"## [%s] - 2006-01-02\", and nothing under %s that --prepare could make one of", changelogFile, number, unreleased)
	}
	return strings.Replace(text, unreleased, unreleased+"\n\n## ["+number+"] - "+now.UTC().Format(time.DateOnly), 1), nil
}

// prepare writes to the clone what the commit of the release needs and returns the names of the files that
// changed. Each module comes after those that it requires, whose sums its go.sum gets. A commit that changes only
// modules below a directory leaves the zip of the module above as it is, so that one commit can have all.
func (r *release) prepare(mode string) (changed []string, err error) {
	if err := edit(filepath.Join(r.clone, changelogFile), func(text string) (string, error) {
		return changelog(text, r.version, time.Now())
	}); err != nil {
		return nil, err
	}
	mods, err := published.Git(r.clone, "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Fields(mods) {
		if err := edit(filepath.Join(r.clone, name), func(text string) (string, error) {
			return requirement.ReplaceAllStringFunc(text, func(line string) string {
				if strings.HasSuffix(line, " "+noDependency) {
					return line
				}
				return requirement.ReplaceAllString(line, "${1}"+r.version)
			}), nil
		}); err != nil {
			return nil, err
		}
	}
	p, env, err := r.newProxy("prepare")
	if err != nil {
		return nil, err
	}
	for _, m := range r.modules {
		if err := r.tidy(m, env, mode); err != nil {
			return nil, err
		}
		if err := published.Commit(r.clone); err != nil {
			return nil, err
		}
		if _, err := published.Git(r.clone, "tag", m.name(r.version)); err != nil {
			return nil, err
		}
		if _, err := p.Add(m.path(), r.version); err != nil {
			return nil, err
		}
	}
	out, err := published.Git(r.clone, "diff", "--name-only", r.commit)
	return strings.Fields(out), err
}

// tidy tidies a module of the clone. Unless the mode is prepare, it reports a change of other lines than the sums of our
// modules.
func (r *release) tidy(m module, env []string, mode string) error {
	var before, after [2]string
	files := [2]string{filepath.Join(r.clone, m.name("go.mod")), filepath.Join(r.clone, m.name("go.sum"))}
	for i, name := range files {
		if err := edit(name, func(text string) (string, error) {
			before[i] = sumsOfOurs.ReplaceAllString(text, "") // they may be of another commit
			return before[i], nil
		}); err != nil {
			return err
		}
	}
	if _, err := published.Run(filepath.Join(r.clone, m.dir), env, "go", "mod", "tidy"); err != nil {
		return err
	}
	for i, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		after[i] = sumsOfOurs.ReplaceAllString(string(text), "")
	}
	if mode != prepare && before != after {
		diff, err := published.Git(r.clone, "diff", "--", m.dir)
		return errors.Join(fmt.Errorf("module %s is not tidy: \"tools/release.sh %s --prepare\" writes\n%s", m.path(), r.version, diff), err)
	}
	return nil
}

// newProxy returns an empty proxy, and the environment of a maintainer who uses it.
func (r *release) newProxy(name string) (p published.Proxy, env []string, err error) {
	p = published.Proxy{Clone: r.clone, Cache: filepath.Join(r.temp, name)}
	return p, p.Env(filepath.Join(r.temp, "maintainer"), r.others...), os.Mkdir(p.Cache, 0o755)
}

// copyBack writes changed files of the clone to the tree of the maintainer, who may have changed it meanwhile.
func (r *release) copyBack(changed []string) error {
	dirty, err := published.Run(r.root, nil, "git", "status", "--porcelain")
	if err == nil && dirty != "" {
		err = fmt.Errorf("the tree has changed meanwhile, and nothing was written: commit, and prepare again\n%s", dirty)
	}
	if err != nil {
		return err
	}
	if commit, err := published.Run(r.root, nil, "git", "rev-parse", "HEAD"); err != nil || commit != r.commit {
		return errors.Join(errors.New("there is a new commit meanwhile, and nothing was written: prepare again"), err)
	}
	for _, name := range changed {
		text, err := os.ReadFile(filepath.Join(r.clone, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(r.root, name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	if len(changed) == 0 {
		fmt.Fprintf(r.w, "The last commit is prepared. Next: tools/release.sh %s --dry-run\n", r.version)
		return nil
	}
	fmt.Fprintf(r.w, "wrote %s\n\nNext: git commit -am 'all: release %s'\n      tools/release.sh %[2]s --dry-run\n"+
		"A later change of the library's own files makes the sums wrong: prepare again then.\n", strings.Join(changed, ", "), r.version)
	return nil
}

// prove tags the last commit of the clone and does with each module what its users do.
func (r *release) prove() error {
	for _, m := range r.modules {
		if _, err := published.Git(r.clone, "tag", "-f", m.name(r.version)); err != nil {
			return err
		}
	}
	p, env, err := r.newProxy("proxy")
	if err != nil {
		return err
	}
	stranger := p.Env(filepath.Join(r.temp, "stranger"), r.others...)
	var sums []string // lines of the go.sum of a module that requires the earlier ones
	for _, m := range r.modules {
		if err := r.compare(m, p, env); err != nil {
			return err
		}
		if err := r.proveSums(m, env, sums); err != nil {
			return err
		}
		v, err := p.Add(m.path(), r.version)
		if err != nil {
			return err
		}
		files, err := filesOf(v)
		if err != nil {
			return err
		}
		fmt.Fprintf(r.w, "%s %s %s, %d files with LICENSE\n", v.Path, v.Version, v.Sum, files)
		sums = append(sums, v.Path+" "+v.Version+" "+v.Sum, v.Path+" "+v.Version+"/go.mod "+v.GoModSum)
		if err := r.use(m, stranger); err != nil {
			return err
		}
	}
	return nil
}

// proveSums checks that the go.sum of a module has the sums of those of ours that it requires.
func (r *release) proveSums(m module, env, sums []string) error {
	mod, err := os.ReadFile(filepath.Join(r.clone, m.name("go.mod")))
	if err != nil {
		return err
	}
	sum, err := os.ReadFile(filepath.Join(r.clone, m.name("go.sum")))
	if err != nil {
		return err
	}
	for _, q := range requirement.FindAllSubmatch(mod, -1) {
		of := strings.TrimSpace(strings.TrimPrefix(string(q[1]), "require")) + " "
		n := 0
		for _, line := range sums {
			if strings.HasPrefix(line, of) {
				n++
				if !strings.Contains(string(sum), line+"\n") {
					return fmt.Errorf("%s lacks %q", m.name("go.sum"), line)
				}
			}
		}
		if n == 0 {
			return fmt.Errorf("%s requires %s, whose tag comes later: change the order in the Makefile", m.name("go.mod"), of)
		}
		fmt.Fprintf(r.w, "%s has the sums of %s\n", m.name("go.sum"), strings.TrimSpace(of))
	}
	_, err = published.Run(filepath.Join(r.clone, m.dir), env, "go", "mod", "tidy", "-diff")
	return err
}

// compare runs gorelease, which compares the module with its last release, if there is one. It must not find the new
// version in the proxy.
func (r *release) compare(m module, p published.Proxy, env []string) error {
	tags, err := published.Git(r.clone, "tag", "--merged", "HEAD", "--sort=-version:refname", "--list", m.name("v*"))
	if err != nil {
		return err
	}
	for _, tag := range strings.Fields(tags) {
		base := tag[len(m.name("")):]
		if base == r.version || !versionText.MatchString(base) || strings.Contains(base, "-") {
			continue
		}
		if _, err := p.Add(m.path(), base); err != nil {
			return err
		}
		tool, err := published.Run(filepath.Join(r.clone, "tools"), []string{"GOWORK=off"}, "go", "tool", "-n", "gorelease")
		if err != nil {
			return err
		}
		out, err := published.Run(filepath.Join(r.clone, m.dir), env, tool, "-base="+base, "-version="+r.version)
		if err == nil {
			fmt.Fprintf(r.w, "gorelease of %s since %s:\n%s\n", m.path(), base, out)
		}
		return err
	}
	return nil
}

// filesOf returns how many files the zip of a version has. One must be the LICENSE.
func filesOf(v published.Version) (int, error) {
	z, err := zip.OpenReader(v.Zip)
	if err != nil {
		return 0, err
	}
	defer z.Close()
	prefix := v.Path + "@" + v.Version + "/"
	if !slices.ContainsFunc(z.File, func(f *zip.File) bool { return f.Name == prefix+"LICENSE" }) {
		return 0, fmt.Errorf("module %s has no LICENSE, nor has the root of the repository: nobody may use it", v.Path)
	}
	return len(z.File), nil
}

// use does in an empty module what a user does who has nothing of ours.
func (r *release) use(m module, env []string) error {
	dir, err := os.MkdirTemp(r.temp, "user")
	if err != nil {
		return err
	}
	bin, name := filepath.Join(dir, "bin"), filepath.Base(m.dir)
	goes := func(args ...string) (out string) {
		if err == nil {
			out, err = published.Run(dir, append(slices.Clip(env), "GOWORK=", "GOBIN="+bin), "go", args...)
		}
		return out
	}
	at := m.path() + "@" + r.version
	goes("mod", "init", "example.com/user")
	goes("get", at)
	goes("build", m.path())
	if err != nil {
		return err
	}
	if !strings.HasPrefix(m.dir, "cmd/") {
		fmt.Fprintf(r.w, "ok  go get %s\n", at)
		return nil
	}
	goes("install", at)
	ran := goes("run", at, "version")
	if err != nil {
		return err
	}
	installed, err := published.Run(dir, nil, filepath.Join(bin, name), "version")
	for _, out := range []string{ran, installed} {
		if err == nil && !strings.HasPrefix(out, name+" "+r.version+",") {
			return fmt.Errorf("%s prints version %q", at, out)
		}
	}
	fmt.Fprintf(r.w, "ok  go get, go install, go run %s: %s\n", at, installed)
	return err
}

// tag tags the commit that was proven, even if there is a later one by now. It makes the tags in the clone, and a single
// transaction adds all of them to the tree of the maintainer. After an error, or if the process is killed before the
// transaction, the tree has none.
func (r *release) tag() error {
	env, err := r.tagger()
	if err != nil {
		return err
	}
	fetch := []string{"fetch", "-q", "--atomic", "--no-tags", "--no-write-fetch-head", r.clone}
	for _, m := range r.modules {
		tag := m.name(r.version)
		if _, err := published.Run(r.clone, env, "git", "tag", "-f", "-a", "-m", m.path()+" "+r.version, tag, r.commit); err != nil {
			return err
		}
		fetch = append(fetch, "refs/tags/"+tag+":refs/tags/"+tag)
	}
	_, err = published.Run(r.root, nil, "git", fetch...)
	return err
}

// tagger returns an environment in which git, in the clone, has the name of the maintainer, and signs tags if the
// maintainer has configured that, in whichever file.
func (r *release) tagger() (env []string, err error) {
	list, err := published.Run(r.root, nil, "git", "config", "--list", "-z")
	n := 0
	for _, setting := range strings.Split(list, "\x00") {
		key, value, found := strings.Cut(setting, "\n")
		if section, _, _ := strings.Cut(key, "."); !slices.Contains([]string{"committer", "gpg", "tag", "user"}, section) {
			continue
		}
		if !found {
			value = "true"
		}
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", n, key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n, value))
		n++
	}
	return append(env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", n)), err
}

// printSteps prints what the maintainer does next.
func (r *release) printSteps(mode string, unprepared bool) {
	p := func(format string, args ...any) { fmt.Fprintf(r.w, format+"\n", args...) }
	p("")
	if mode == dryRun {
		if unprepared {
			p("The release can be made. Nothing was written. Next:")
			p("  tools/release.sh %s --prepare   # then commit, and run --dry-run again", r.version)
		} else {
			p("The commit can be released. Nothing was written. Next:")
		}
		p("  git push origin HEAD                # then wait until its checks have passed")
		p("  tools/release.sh %s             # makes the tags, which you push in this order:", r.version)
	} else {
		p("The tags are made, and nothing is pushed. When the checks of the commit have passed:")
	}
	for _, m := range r.modules {
		p("  git push origin %s", m.name(r.version))
	}
	p("Then make the proxy fetch each module, in an empty directory, and compare the Sum with that above:")
	for _, m := range r.modules {
		p("  go mod download -json %s@%s", m.path(), r.version)
	}
	p("The last tag starts the workflow release, which publishes the programs: see docs/releasing.md.")
}

// edit changes a file.
func edit(name string, change func(text string) (string, error)) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	changed, err := change(string(text))
	if err != nil || changed == string(text) {
		return err
	}
	return os.WriteFile(name, []byte(changed), 0o644)
}
