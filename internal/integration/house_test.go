package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A sourceFile is a product file of the library.
type sourceFile struct {
	path string // from the root of the repository
	*ast.File
}

func (f sourceFile) dir() string { return filepath.ToSlash(filepath.Dir(f.path)) }

// library returns the product files of the root module.
func library(t *testing.T) (*token.FileSet, []sourceFile) {
	t.Helper()
	set, all := token.NewFileSet(), []sourceFile(nil)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			nested, _ := filepath.Glob(filepath.Join(path, "go.mod"))
			if path != "../.." && (len(nested) > 0 || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution|parser.ParseComments)
		all = append(all, sourceFile{strings.TrimPrefix(filepath.ToSlash(path), "../../"), f})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return set, all
}

// receiver returns the name of a method's type, or "".
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.IndexListExpr:
			of = t.X
		case *ast.Ident:
			return t.Name
		default:
			return fmt.Sprintf("%T", of)
		}
	}
}

// isSelector reports whether an expression is pkg.name.
func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}

func TestMethodsOfATypeAreInFewFiles(t *testing.T) {
	_, all := library(t)
	files := make(map[string][]string)
	for _, f := range all {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv != nil {
				name := strings.TrimPrefix(f.dir(), ".") + "." + receiver(d)
				if !slices.Contains(files[name], f.path) {
					files[name] = append(files[name], f.path)
				}
			}
		}
	}
	for name, in := range files {
		if len(in) > 3 {
			t.Errorf("%s has methods in %d files, want 3 at most: %s", name, len(in), strings.Join(in, " "))
		}
	}
}

// stores are the packages whose types are quotas, and those that test them.
var stores = []string{"local", "host", "distributed", "store", "store/kept", "store/storetest", "throttletest", "internal/kepttwin"}

func TestNoTypePretendsToBeAQuota(t *testing.T) {
	_, all := library(t)
	for _, f := range all {
		if slices.Contains(stores, f.dir()) {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			s, ok := n.(*ast.StructType)
			for i := 0; ok && i < len(s.Fields.List); i++ {
				if field := s.Fields.List[i]; len(field.Names) == 0 && isSelector(field.Type, "store", "Quota") {
					t.Errorf("%s: a struct embeds store.Quota", f.path)
				}
			}
			return true
		})
	}
}

func TestFunctionsOfTheRootAreShort(t *testing.T) {
	set, all := library(t)
	for _, f := range all {
		if f.dir() != "." && f.dir() != "internal/admit" {
			continue
		}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok {
				if lines := set.Position(d.End()).Line - set.Position(d.Pos()).Line + 1; lines > 45 {
					t.Errorf("%s: %s has %d lines, want 45 at most", f.path, d.Name.Name, lines)
				}
			}
		}
	}
}

// TestFilesOfTheRootAreFew checks that the root stays a face: few files, none of them long.
func TestFilesOfTheRootAreFew(t *testing.T) {
	set, all := library(t)
	files, lines := 0, 0
	for _, f := range all {
		n := set.File(f.Pos()).LineCount()
		if (f.dir() == "." || f.dir() == "internal/admit") && n > 650 {
			t.Errorf("%s has %d lines, want 650 at most", f.path, n)
		}
		if f.dir() == "." {
			files, lines = files+1, lines+n
		}
	}
	if files > 18 || lines > 3800 {
		t.Errorf("the root has %d lines in %d files, want 3800 in 18 at most", lines, files)
	}
}

func TestAdmitKnowsNoResponses(t *testing.T) {
	_, all := library(t)
	for _, f := range all {
		for _, i := range f.Imports {
			path := strings.TrimPrefix(strings.Trim(i.Path.Value, `"`), "github.com/apithrottle/throttle")
			if f.dir() == "internal/admit" && slices.Contains([]string{"", "net/http", "/answers", "/providers"}, path) {
				t.Errorf("%s imports %s", f.path, i.Path.Value)
			}
		}
	}
}

// TestOneWayToAskAQuota checks that only the admission, the queue and stores ask a quota for an admission. Package
// snooze and the tests of package upgradetest ask a Limiter, and package batch a semaphore.
func TestOneWayToAskAQuota(t *testing.T) {
	_, all := library(t)
	for _, f := range all {
		if slices.Contains(stores, f.dir()) || slices.Contains([]string{"internal/admit", "internal/queue", "internal/upgradetest", "snooze", "batch"}, f.dir()) {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if s, ok := call.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "TryAcquire" || s.Sel.Name == "Reserve") {
					t.Errorf("%s calls %s: ask in internal/admit", f.path, s.Sel.Name)
				}
			}
			return true
		})
	}
}

// TestOnePlaceSleeps checks that callers sleep in the queue only. A Transport, which reads the beginning of a
// body for a while, has a timer, too.
func TestOnePlaceSleeps(t *testing.T) {
	_, all := library(t)
	for _, f := range all {
		admits := slices.Contains([]string{".", "internal/admit", "internal/queue", "internal/order"}, f.dir())
		if !admits || f.path == "internal/queue/sleep.go" || f.path == "response.go" {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			for _, name := range []string{"After", "NewTicker", "NewTimer", "Sleep", "Tick"} {
				if e, ok := n.(ast.Expr); ok && isSelector(e, "time", name) {
					t.Errorf("%s uses time.%s: sleep in internal/queue", f.path, name)
				}
			}
			return true
		})
	}
}
