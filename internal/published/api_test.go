package published

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the exported API of the published modules into testdata/api")

const root = "../.."

// modules are the published modules, by the names of their files in testdata/api.
var modules = map[string]string{
	"throttle": ".", "awsthrottle": "awsthrottle", "grpcthrottle": "grpcthrottle", "otelthrottle": "otelthrottle", "postgres": "postgres",
	"command": "cmd/throttle",
}

// unpublished are the modules that nobody imports.
var unpublished = []string{"bench", "examples/asynq", "examples/river", "page/pagetest", "sdktest", "suites", "tools"}

// TestModules checks that each module of this repository is either published or not, and that each
// file in testdata/api belongs to a published one.
func TestModules(t *testing.T) {
	known := slices.Clone(unpublished)
	for _, module := range modules {
		known = append(known, module)
	}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || len(d.Name()) > 2 && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.Name() != "go.mod":
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if i := slices.Index(known, filepath.ToSlash(dir)); i >= 0 {
			known = slices.Delete(known, i, i+1)
		} else {
			t.Errorf("module %s is neither in modules nor in unpublished: add it to one of them in api_test.go", dir)
		}
		return err
	})
	if err != nil || len(known) > 0 {
		t.Errorf("there are no modules %q, %v", known, err)
	}
	files, err := os.ReadDir("testdata/api")
	if err != nil || len(files) != len(modules) {
		t.Errorf("testdata/api has %d files for %d modules, %v", len(files), len(modules), err)
	}
}

// TestAPI compares what the published modules export, without the comments, with testdata/api. The
// reader of a commit then sees each change of the API.
func TestAPI(t *testing.T) {
	checked := newChecker(root)
	for name, module := range modules {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			for _, dir := range packageDirs(t, filepath.Join(root, module)) {
				importPath, err := filepath.Rel(root, dir)
				if err != nil {
					t.Fatal(err)
				}
				writeAPI(t, &got, dir, path.Join(throttle, filepath.ToSlash(importPath)), checked)
			}
			golden := filepath.Join("testdata", "api", name+".txt")
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			compareLines(t, golden, readFile(t, golden), got.String())
		})
	}
}

// TestAPISeesChanges changes a package and expects another text of its API, or the same one if users do
// not see the change.
func TestAPISeesChanges(t *testing.T) {
	sources := map[string]string{
		"": `package throttle

import "` + throttle + `/algorithms"

// A Tier is an alias.
type Tier = algorithms.Tier

const size = 1 << 4

const Size = size

const (
	First = iota
	Second
	Third
)

type Store interface {
	Open(key string) error
}

type hidden struct{ Width int }

func (hidden) Draw() {}

type Policy struct {
	Name  string
	Count int
	hidden
}

func (p Policy) String() string { return p.Name }

func (p *Policy) reset() {}

type Info struct{ Name string }

type Sink interface{ part }

type part interface{ Put() }

func New(p Policy) *Policy { return &p }

var Default = makeDefault()

func makeDefault() int64 { return 1 }
`,
		"algorithms": `package algorithms

type Tier struct {
	Limit int64
}

func (t Tier) Validate() error { return nil }
`,
	}
	text := func(t *testing.T, from, to string) string {
		dir, found := t.TempDir(), from == ""
		var w bytes.Buffer
		for name, source := range sources {
			changed := strings.Replace(source, from, to, 1)
			found = found || changed != source
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, name), 0o755), os.WriteFile(filepath.Join(dir, name, "p.go"), []byte(changed), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if !found {
			t.Fatalf("no source has %q", from)
		}
		checked := newChecker(dir)
		for _, name := range []string{"", "algorithms"} {
			writeAPI(t, &w, filepath.Join(dir, name), path.Join(throttle, name), checked)
		}
		return w.String()
	}
	want := text(t, "", "")
	for _, c := range []struct {
		name, from, to string
		unseen         bool
	}{
		{name: "a removed method", from: "func (p Policy) String() string { return p.Name }\n"},
		{name: "another receiver", from: "func (p Policy) String", to: "func (p *Policy) String"},
		{name: "another type of a field", from: "Count int", to: "Count int64"},
		{name: "a removed field", from: "\tCount int\n"},
		{name: "a new method of an interface", from: "Open(key string) error\n", to: "Open(key string) error\n\tClose() error\n"},
		{name: "an unexported method of an interface", from: "Open(key string) error\n", to: "Open(key string) error\n\tclose() error\n"},
		{name: "another field of an alias' target", from: "Limit int64", to: "Limit int"},
		{name: "a removed method of an alias' target", from: "func (t Tier) Validate() error { return nil }\n"},
		{name: "another target of an alias", from: "type Tier = algorithms.Tier", to: "type Tier = algorithms.Level"},
		{name: "a type instead of an alias", from: "type Tier = ", to: "type Tier "},
		{name: "an unexported constant behind an exported one", from: "1 << 4", to: "1 << 5"},
		{name: "another order of constants", from: "First = iota\n\tSecond", to: "Second = iota\n\tFirst"},
		{name: "an unexported constant between", from: "First = iota\n", to: "First = iota\n\tbetween\n"},
		{name: "a struct that can't be compared any more", from: "type Info struct{ Name string", to: "type Info struct{ Name string; no func()"},
		{name: "a method of an embedded unexported type", from: "func (hidden) Draw", to: "func (hidden) Paint"},
		{name: "a field of an embedded unexported type", from: "Width int", to: "Width int32"},
		{name: "a method of an embedded unexported interface", from: "part interface{ Put()", to: "part interface{ Get()"},
		{name: "another result", from: "*Policy { return &p }", to: "(*Policy, error) { return &p, nil }"},
		{name: "another type of a variable", from: "makeDefault() int64", to: "makeDefault() int32"},
		{name: "a new function", from: "func New(", to: "func Old() {}\n\nfunc New("},

		{name: "another body", from: "return p.Name", to: "return p.Name + p.Name", unseen: true},
		{name: "another comment", from: "is an alias", to: "has another name", unseen: true},
		{name: "a new unexported method", from: "func (p *Policy) reset() {}", to: "func (p *Policy) set() {}", unseen: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := text(t, c.from, c.to); (got == want) != c.unseen {
				t.Errorf("the text is\n%s", got)
			}
		})
	}
}

// TestMainModuleLacksPgx checks that users of the library who have no PostgreSQL don't get its driver. What is
// in neither file can't be imported.
func TestMainModuleLacksPgx(t *testing.T) {
	for _, name := range []string{"../../go.mod", "../../go.sum"} {
		if strings.Contains(readFile(t, name), "jackc/") {
			t.Errorf("%s has a module of pgx", name)
		}
	}
}

// TestModulesImportPublicPackages checks that the modules beside the library import its public packages alone.
// Users may get a later library with the same module, and what is exported remains. The command is built
// with the library that its go.mod names.
func TestModulesImportPublicPackages(t *testing.T) {
	for name, module := range modules {
		if name == "throttle" || name == "command" {
			continue
		}
		var imports []string
		for _, dir := range packageDirs(t, filepath.Join(root, module)) {
			if p, err := buildContext.ImportDir(dir, 0); err == nil {
				imports = append(imports, p.Imports...)
			}
		}
		if !slices.ContainsFunc(imports, func(path string) bool { return strings.HasPrefix(path, throttle) }) {
			t.Errorf("module %s imports %s, without the library", module, imports)
		}
		for _, path := range imports {
			if strings.HasPrefix(path, throttle+"/internal/") {
				t.Errorf("module %s imports %s", module, path)
			}
		}
	}
}

// compareLines reports what was removed and what was added.
func compareLines(t *testing.T, golden, want, got string) {
	t.Helper()
	if want == got {
		return
	}
	lines := func(text string) map[string]int {
		n := make(map[string]int)
		for _, line := range contextLines(text) {
			n[line]++
		}
		return n
	}
	wants, gots := lines(want), lines(got)
	var changes []string
	for _, line := range contextLines(want) {
		if gots[line]--; gots[line] < 0 {
			changes = append(changes, "-\t"+line)
		}
	}
	for _, line := range contextLines(got) {
		if wants[line]--; wants[line] < 0 {
			changes = append(changes, "+\t"+line)
		}
	}
	const most = 20
	more := ""
	if len(changes) > most {
		more = fmt.Sprintf("\nand %d more", len(changes)-most)
		changes = changes[:most]
	}
	if len(changes) == 0 {
		changes = []string{"the order of the declarations"}
	}
	t.Errorf(`the exported API differs from %s:
%s%s
A removal or a change breaks programs, and so does a new method of an interface that users implement. See
docs/compatibility.md for what a release may change. If the change is intended, write it down in
CHANGELOG.md and run

	go test ./internal/published -update`, golden, strings.Join(changes, "\n"), more)
}

// contextLines returns the lines of a file in testdata/api that say something, each with the package
// and, within a declaration, its first line.
func contextLines(text string) (lines []string) {
	pkg, outer := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch trimmed := strings.TrimSpace(line); {
		case trimmed == "" || trimmed == "}" || trimmed == ")":
			continue
		case strings.HasPrefix(line, "package "):
			pkg = strings.Fields(line)[1] + ": "
			lines = append(lines, line)
			continue
		case !strings.HasPrefix(line, "\t"):
			outer = strings.TrimRight(line, " {(") + ": "
			lines = append(lines, pkg+line)
			continue
		}
		// Without the spaces that align a field with its neighbors.
		lines = append(lines, pkg+outer+strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// packageDirs returns the directories of a module whose packages others can import.
func packageDirs(t *testing.T, root string) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		_, noModule := os.Stat(filepath.Join(dir, "go.mod"))
		hidden := strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_")
		if dir != root && (hidden || noModule == nil || d.Name() == "internal" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		dirs = append(dirs, dir)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// writeAPI writes the exported declarations of a package on linux/amd64. It writes nothing for a
// command, and for a directory without a package.
func writeAPI(t *testing.T, w *bytes.Buffer, dir, importPath string, checked *checker) {
	t.Helper()
	p, err := buildContext.ImportDir(dir, 0)
	var none *build.NoGoError
	switch {
	case errors.As(err, &none) || err == nil && (p.Name == "main" || len(p.GoFiles) == 0): // 0 if there are only tests
		return
	case err != nil:
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution) // without comments
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	api, err := doc.NewFromFiles(fset, files, importPath)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(w, "package %s // %q\n\n", api.Name, importPath)
	write := func(decl ast.Decl) {
		if err := format.Node(w, fset, decl); err != nil {
			t.Fatal(err)
		}
		w.WriteString("\n\n")
	}
	values := func(groups ...[]*doc.Value) {
		for _, v := range slices.Concat(groups...) {
			write(v.Decl)
		}
	}
	funcs := func(groups ...[]*doc.Func) {
		for _, f := range slices.Concat(groups...) {
			write(f.Decl)
		}
	}
	values(api.Consts, api.Vars)
	funcs(api.Funcs)
	for _, typ := range api.Types {
		write(typ.Decl)
		values(typ.Consts, typ.Vars)
		funcs(typ.Funcs, typ.Methods)
	}
	if facts := checked.facts(importPath); facts != "" {
		fmt.Fprintf(w, "// What the declarations do not show:\n%s\n", facts)
	}
}
