package pagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// axe-core is not part of this repository, because its license is the MPL. npm gets it into a
// directory of the user's caches.
const (
	axeVersion   = "4.14.1"
	axeIntegrity = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)

// axeScript returns the source of axe-core.
var axeScript = sync.OnceValues(func() (string, error) {
	caches, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(caches, "throttle")
	path := filepath.Join(dir, "axe-core-"+axeVersion+".tgz")
	archive, err := os.ReadFile(path)
	if err != nil {
		archive, err = fetchAxe(dir, path)
	}
	if err != nil {
		return "", err
	}
	if sum := sha512.Sum512(archive); base64.StdEncoding.EncodeToString(sum[:]) != axeIntegrity {
		return "", fmt.Errorf("%s is not axe-core %s: remove it", path, axeVersion)
	}
	return unpackAxe(archive)
})

// fetchAxe makes npm write the package to a path, and returns it.
func fetchAxe(dir, path string) ([]byte, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	temporary, err := os.MkdirTemp(dir, "npm")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temporary)
	var failure bytes.Buffer
	npm := exec.Command("npm", "pack", "--silent", "axe-core@"+axeVersion)
	npm.Dir, npm.Stderr = temporary, &failure
	if err := npm.Run(); err != nil {
		return nil, fmt.Errorf("npm does not get axe-core: %v %s", err, failure.String())
	}
	archive, err := os.ReadFile(filepath.Join(temporary, filepath.Base(path)))
	if err != nil {
		return nil, err
	}
	return archive, os.Rename(filepath.Join(temporary, filepath.Base(path)), path)
}

func unpackAxe(archive []byte) (string, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return "", err
	}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return "", errors.New("axe-core has no axe.min.js")
		}
		if err != nil {
			return "", err
		}
		if header.Name == "package/axe.min.js" {
			script, err := io.ReadAll(files)
			return string(script), err
		}
	}
}

// needAxe ends the test if there is no axe-core.
func needAxe(t *testing.T) {
	t.Helper()
	_, err := axeScript()
	need(t, err)
}

// passesAxe checks what axe-core can of WCAG 2.2 AA, and its best practices.
func (w *tab) passesAxe(what string) {
	w.t.Helper()
	script, err := axeScript()
	if err != nil {
		w.t.Fatal(err)
	}
	type finding struct{ ID, Help, Nodes string }
	found := evaluate[struct {
		Passes                 int
		Violations, Incomplete []finding
	}](w, `(async () => {
		if (!window.axe) { `+script+` }
		const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
		const r = await axe.run(document, {runOnly: {type: "tag", values: tags}})
		const short = f => ({ID: f.id, Help: f.help, Nodes: f.nodes.slice(0, 5).map(n => n.html + " " + n.failureSummary).join("\n")})
		return {Passes: r.passes.length, Violations: r.violations.map(short), Incomplete: r.incomplete.map(short)}
	})()`)
	if found.Passes < 10 {
		w.t.Errorf("%s: axe-core found only %d rules to apply", what, found.Passes)
	}
	for _, f := range found.Violations {
		w.t.Errorf("%s: axe-core: %s: %s\n%s", what, f.ID, f.Help, f.Nodes)
	}
	for _, f := range found.Incomplete {
		w.t.Logf("%s: axe-core cannot judge %s: %s\n%s", what, f.ID, f.Help, strings.TrimSpace(f.Nodes))
	}
}
