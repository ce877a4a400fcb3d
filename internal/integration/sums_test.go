// Package integration_test tests the packages of this module together, and the module from the view
// of its importers.
package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program that imports these packages gets no third-party lines in its go.sum. It is not enough
// that the packages link no third-party code, because "go mod tidy" also records the imports of
// their tests. Tests with such imports are therefore in packages that no program imports, such as
// this one.
func TestNoThirdPartySums(t *testing.T) {
	const module = "github.com/apithrottle/throttle"
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/user\n\ngo 1.25.0\n\nrequire "+module+" v0.0.0\n\nreplace "+module+" => "+root+"\n")
	main := "package main\n\nimport (\n"
	for _, pkg := range []string{"", "/algorithms", "/answers", "/local", "/providers", "/store", "/throttletest"} {
		main += "\t_ \"" + module + pkg + "\"\n"
	}
	write("main.go", main+")\n\nfunc main() {}\n")

	cmd := exec.Command("go", "mod", "tidy")
	cmd.Dir = dir
	// All modules to be recorded are in the module cache, because this package's tests import them.
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOSUMDB=off", "GOTOOLCHAIN=local", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go mod tidy: %v\n%s", err, out)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if lines := strings.TrimSpace(string(sums)); lines != "" {
		t.Errorf("go.sum of a program that imports only packages without dependencies has %d lines:\n%s",
			strings.Count(lines, "\n")+1, lines)
	}
}
