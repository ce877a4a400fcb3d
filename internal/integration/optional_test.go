package integration_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOptionalInterfaces checks that package store declares no other interfaces that a Quota may
// implement than those of its package comment, and that outside of stores one file asserts them.
func TestOptionalInterfaces(t *testing.T) {
	const root = "../.."
	optional := []string{"store.Bundler", "store.FastQuota", "store.Feedback", "store.Lifecycle", "store.Reserver"}
	declared := []string{"store.Bundle", "store.Forecast", "store.Quota", "store.Store"}
	if got, want := interfaces(t, filepath.Join(root, "store/*.go")), slices.Sorted(slices.Values(slices.Concat(optional, declared))); !slices.Equal(got, want) {
		t.Errorf("package store declares the interfaces %v, want %v", got, want)
	}
	asserted := append(optional, "order.Ordered", "parker")
	asserts := make(map[string][]string)
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ = filepath.Rel(root, name)
		name = filepath.ToSlash(name)
		switch {
		case d.IsDir() && slices.Contains([]string{"bench", "distributed", "host", "internal/kepttwin", "local", "store"}, name):
			return fs.SkipDir
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			for _, what := range assertions(t, filepath.Join(root, name)) {
				if slices.Contains(asserted, what) {
					asserts[name] = append(asserts[name], what)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, what := range asserts {
		if name != "internal/admit/optional.go" {
			t.Errorf("%s asserts %v: add a function to internal/admit/optional.go", name, what)
		}
	}
	if len(asserts) != 1 {
		t.Errorf("the assertions are %v", asserts)
	}
}

// interfaces returns the exported interfaces that the files of a pattern declare, sorted.
func interfaces(t *testing.T, pattern string) (names []string) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f := parse(t, name)
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.IsExported() {
				if _, ok := spec.Type.(*ast.InterfaceType); ok {
					names = append(names, f.Name.Name+"."+spec.Name.Name)
				}
			}
			return true
		})
	}
	slices.Sort(names)
	return names
}

// assertions returns the types that a file asserts, also in switches.
func assertions(t *testing.T, name string) (types []string) {
	add := func(e ast.Expr) {
		switch e := e.(type) {
		case *ast.Ident:
			types = append(types, e.Name)
		case *ast.SelectorExpr:
			if pkg, ok := e.X.(*ast.Ident); ok {
				types = append(types, pkg.Name+"."+e.Sel.Name)
			}
		}
	}
	ast.Inspect(parse(t, name), func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeAssertExpr:
			add(n.Type)
		case *ast.TypeSwitchStmt:
			for _, c := range n.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					add(e)
				}
			}
		}
		return true
	})
	return types
}

func parse(t *testing.T, name string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
