package upgradetest

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var (
	recordTo = flag.String("record", "", "write testdata/upgrade/NAME.json with the code that is checked out")
	recordBy = flag.String("commit", "", "the commit that is checked out, and its date")
	teaches  = flag.Bool("teaches", true, "the commit has Learn and Follow")
)

// A File is what a commit recorded of a store.
type File struct {
	// Commit is the commit whose code wrote the values, and its date.
	Commit string  `json:"commit"`
	States []State `json:"states"`
}

// Recorded returns the commit that is recorded, and its date, if the flag -record names a file.
func Recorded() (commit string, ok bool) { return *recordBy, *recordTo != "" }

// path returns the path of a file, from the directory of the package that is tested.
func path(name string) string { return filepath.Join("testdata", "upgrade", name+".json") }

// Write writes the file that is recorded.
func Write(t testing.TB, file any) {
	t.Helper()
	text, err := json.MarshalIndent(file, "", "\t")
	if err == nil {
		err = os.WriteFile(path(*recordTo), append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Names returns the names of all files, at least one.
func Names(t testing.TB) (names []string) {
	t.Helper()
	files, err := filepath.Glob(path("*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no files, %v", path("*"), err)
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	return names
}

// Read reads a file.
func Read(t testing.TB, name string, file any) {
	t.Helper()
	text, err := os.ReadFile(path(name))
	if err == nil {
		err = json.Unmarshal(text, file)
	}
	if err != nil {
		t.Fatalf("%s: %v", path(name), err)
	}
}

// States returns the states of a store's file, at least one.
func States(t testing.TB, name string) []State {
	t.Helper()
	var f File
	if Read(t, name, &f); len(f.States) == 0 {
		t.Fatalf("%s has no states", path(name))
	}
	return f.States
}
