// Package integration_test tests what the packages of this module do together, and what the
// module means to those who import it.
package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program that imports these packages gets no line of a third party in its go.sum. Linking
// nothing of them is not enough: "go mod tidy" also records what the tests of imported packages
// import. So those tests stand in packages that no program imports, such as this one.
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
	// What is to be recorded is in the module cache, for this package's tests import it.
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
