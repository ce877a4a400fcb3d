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

// TestAPI compares what the published modules export, without the comments, with testdata/api. The
// reader of a commit then sees each change of the API.
func TestAPI(t *testing.T) {
	const root = "../.."
	for name, module := range map[string]string{
		"throttle": ".", "awsthrottle": "awsthrottle", "grpcthrottle": "grpcthrottle", "otelthrottle": "otelthrottle", "postgres": "postgres",
		"command": "cmd/throttle",
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			for _, dir := range packageDirs(t, filepath.Join(root, module)) {
				importPath, err := filepath.Rel(root, dir)
				if err != nil {
					t.Fatal(err)
				}
				writeAPI(t, &got, dir, path.Join(throttle, filepath.ToSlash(importPath)))
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

// TestMainModuleLacksPgx checks that users of the library who have no PostgreSQL don't get its driver. What is
// in neither file can't be imported.
func TestMainModuleLacksPgx(t *testing.T) {
	for _, name := range []string{"../../go.mod", "../../go.sum"} {
		if strings.Contains(readFile(t, name), "jackc/") {
			t.Errorf("%s has a module of pgx", name)
		}
	}
}

// TestPostgresImportsPromisedPackages checks that module postgres imports public packages of the library alone.
// Users may get a later library with the same module postgres, and the exported API remains.
func TestPostgresImportsPromisedPackages(t *testing.T) {
	p, err := build.ImportDir("../../postgres", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, imported := range p.Imports {
		if strings.HasPrefix(imported, throttle) && strings.Contains(imported+"/", "/internal/") {
			t.Errorf("postgres imports %s", imported)
		}
	}
	if !slices.Contains(p.Imports, throttle+"/store/kept") {
		t.Errorf("postgres imports %s, without package kept", p.Imports)
	}
}

// compareLines reports the first line that differs.
func compareLines(t *testing.T, golden, want, got string) {
	t.Helper()
	if want == got {
		return
	}
	wants, gots := strings.Split(want, "\n"), strings.Split(got, "\n")
	i := 0
	for i < min(len(wants), len(gots)) && wants[i] == gots[i] {
		i++
	}
	line := func(lines []string) string {
		if i < len(lines) {
			return lines[i]
		}
		return "the end"
	}
	t.Errorf("the exported API has changed: line %d of %s is\n\t%s\nand would be\n\t%s\nIf this is intended, run the test with -update.",
		i+1, golden, line(wants), line(gots))
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
func writeAPI(t *testing.T, w *bytes.Buffer, dir, importPath string) {
	t.Helper()
	context := build.Default
	context.GOOS, context.GOARCH = "linux", "amd64"
	p, err := context.ImportDir(dir, 0)
	var none *build.NoGoError
	switch {
	case errors.As(err, &none) || err == nil && (p.Name == "main" || p.Name == ""): // "" if there are only tests
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
}
