package published

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// buildContext is the platform whose API is compared.
var buildContext = func() build.Context {
	c := build.Default
	c.GOOS, c.GOARCH, c.CgoEnabled = "linux", "amd64", false
	return c
}()

// std are the packages of the standard library that a checker reads. They are those that decide about
// constants and fields, and need few others: reading net/http takes seconds.
var std = []string{"errors", "iter", "math", "sync", "sync/atomic", "time"}

// A checker finds the types of the packages of this repository, from their source and without the
// bodies of their functions. Types of other modules, and of packages that are not in std, are invalid.
type checker struct {
	root     string // the directory of the library
	fset     *token.FileSet
	packages map[string]*types.Package
}

func newChecker(root string) *checker {
	return &checker{root, token.NewFileSet(), map[string]*types.Package{"unsafe": types.Unsafe}}
}

// Import implements types.Importer.
func (c *checker) Import(importPath string) (*types.Package, error) {
	if p := c.packages[importPath]; p != nil {
		return p, nil
	}
	dir := filepath.Join(build.Default.GOROOT, "src", filepath.FromSlash(importPath))
	if inside, ok := strings.CutPrefix(importPath+"/", throttle+"/"); ok {
		dir = filepath.Join(c.root, filepath.FromSlash(inside))
	} else if !slices.Contains(std, importPath) {
		empty := types.NewPackage(importPath, path.Base(importPath))
		empty.MarkComplete()
		c.packages[importPath] = empty
		return empty, nil
	}
	p, err := buildContext.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(c.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: c, IgnoreFuncBodies: true, Error: func(error) {}, Sizes: types.SizesFor("gc", "amd64")}
	checked, _ := conf.Check(importPath, c.fset, files, nil) // the errors are those of invalid types
	c.packages[importPath] = checked
	return checked, nil
}

// facts returns a line for each exported name whose declaration in another file, or an unexported one,
// decides what users may do with it: the value of a constant, the type of a variable, whether a struct
// may be compared, and what it has by embedding unexported types.
func (c *checker) facts(importPath string) string {
	p, err := c.Import(importPath)
	if err != nil {
		return ""
	}
	var lines []string
	line := func(format string, args ...any) { lines = append(lines, fmt.Sprintf("// "+format+"\n", args...)) }
	name := func(t types.Type) string {
		return types.TypeString(t, func(p *types.Package) string { return path.Base(p.Path()) })
	}
	for _, id := range p.Scope().Names() {
		if !token.IsExported(id) {
			continue
		}
		switch o := p.Scope().Lookup(id).(type) {
		case *types.Const:
			line("const %s = %s", id, o.Val().ExactString())
		case *types.Var:
			if t := name(o.Type()); t != "error" {
				line("var %s %s", id, t)
			}
		case *types.TypeName:
			if i, ok := o.Type().Underlying().(*types.Interface); ok && embedsUnexported(i) {
				for j := range i.NumMethods() {
					line("type %s has %s", id, types.ObjectString(i.Method(j), types.RelativeTo(p)))
				}
			}
			s, ok := o.Type().Underlying().(*types.Struct)
			if o.IsAlias() || !ok {
				continue
			}
			if isComparable(s) {
				line("type %s is comparable", id)
			}
			for _, promoted := range promoted(p, o.Type(), s) {
				line("type %s has %s", id, promoted)
			}
		}
	}
	return strings.Join(lines, "")
}

func embedsUnexported(i *types.Interface) bool {
	for t := range i.EmbeddedTypes() {
		if named, ok := t.(*types.Named); ok && !named.Obj().Exported() && named.Obj().Pkg() != nil { // error and any have none
			return true
		}
	}
	return false
}

// isComparable reports whether a struct without unexported fields is known to be comparable.
func isComparable(s *types.Struct) bool {
	for i := range s.NumFields() {
		t := s.Field(i).Type()
		if inner, ok := t.Underlying().(*types.Struct); ok && !isTime(t) && !isComparable(inner) {
			return false
		}
		if !s.Field(i).Exported() || t == types.Typ[types.Invalid] || !types.Comparable(t) {
			return false
		}
	}
	return true
}

func isTime(t types.Type) bool { return types.TypeString(t, nil) == "time.Time" }

// promoted returns the exported fields and methods that a struct has from unexported embedded fields.
func promoted(p *types.Package, t types.Type, s *types.Struct) (names []string) {
	for i := range s.NumFields() {
		f := s.Field(i)
		if !f.Embedded() || f.Exported() {
			continue
		}
		add := func(name string) {
			if o, index, _ := types.LookupFieldOrMethod(types.NewPointer(t), true, p, name); o != nil && o.Exported() && len(index) > 1 {
				names = append(names, types.ObjectString(o, types.RelativeTo(p)))
			}
		}
		set := types.NewMethodSet(types.NewPointer(t))
		for j := range set.Len() {
			if m := set.At(j); len(m.Index()) > 1 && m.Index()[0] == i {
				add(m.Obj().Name())
			}
		}
		embedded := f.Type()
		if pointer, ok := embedded.(*types.Pointer); ok {
			embedded = pointer.Elem()
		}
		if inner, ok := embedded.Underlying().(*types.Struct); ok {
			for j := range inner.NumFields() {
				add(inner.Field(j).Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
