package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The page of a release has the section of its version, one line for each paragraph, and links that work
// outside of the repository.
func TestReleaseNotes(t *testing.T) {
	script, err := filepath.Abs("../../../../tools/notes.sh")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no sh")
	}
	changelog := filepath.Join(t.TempDir(), "CHANGELOG.md")
	if err := os.WriteFile(changelog, []byte(`# Changelog

## [Unreleased]

- Not yet.

## [0.2.0] - 2027-01-02

About the
version.

### Added

- A [page](docs/a.md#b) and
  [another](https://example.com/c).
- A [part](#part).

`+"```"+`
one
  two
`+"```"+`

## [0.2.0-rc.1] - 2027-01-01

- Earlier.

[0.2.0]: https://example.com
`), 0o600); err != nil {
		t.Fatal(err)
	}
	notes := func(args ...string) (string, error) {
		cmd := exec.Command("sh", append([]string{script}, args...)...)
		cmd.Env = append(os.Environ(), "CHANGELOG="+changelog)
		out, err := cmd.CombinedOutput()
		return strings.ReplaceAll(string(out), "\r\n", "\n"), err
	}

	const files = "https://github.com/apithrottle/throttle/blob/v0.2.0/"
	want := `About the version.

### Added

- A [page](` + files + `docs/a.md#b) and [another](https://example.com/c).
- A [part](` + files + `CHANGELOG.md#part).

` + "```\none\n  two\n```\n"
	if got, err := notes("v0.2.0"); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	image := "ghcr.io/apithrottle/throttle@sha256:0123"
	got, err := notes("v0.2.0", "go1.26.8", image)
	if err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	for _, s := range []string{"go1.26.8", "oci://" + image, "release.yml@refs/tags/v0.2.0"} {
		if !strings.Contains(got, s) {
			t.Errorf("%q is missing in %q", s, got)
		}
	}
	for version, want := range map[string]string{"v0.2.0-rc.1": "- Earlier.\n", "v0.3.0-rc.1": "- Not yet.\n"} {
		if got, err := notes(version); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", version, got, err, want)
		}
	}
	for _, version := range []string{"v0.1.0", "0.2.0", "v2", "main"} {
		if got, err := notes(version); err == nil || !strings.Contains(got, version[1:]) {
			t.Errorf("%s: got %q, %v", version, got, err)
		}
	}
}
