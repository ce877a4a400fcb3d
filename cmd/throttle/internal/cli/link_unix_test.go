//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFileIsLink keeps quotas in a file whose name is a symbolic link. A link of another user is refused:
// in a directory that others may write, it could lead to any file of this user.
func TestFileIsLink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "quotas.db"), filepath.Join(dir, "link.db")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if _, talk, code := run(t, "", "wait", "--policy", "5/h", "--name", "q", "--file", link); code != 0 {
		t.Fatalf("%q, %d", talk, code)
	}
	if out, talk, code := run(t, "", "status", "--policy", "5/h", "q", "--file", file); code != 0 || !strings.Contains(out, "1 of 5 used") {
		t.Errorf("%q, %q, %d", out, talk, code)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can give a link to another user")
	}
	if err := os.Lchown(link, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"wait", "status", "pause"} {
		out, talk, code := run(t, "", verb, "--policy", "5/h", "--name", "q", "--file", link)
		want := "throttle: " + link + " is a symbolic link of another user: name the file that it leads to, or use another path\n"
		if talk != want || out != "" || code != exitConfig {
			t.Errorf("%s: %q, %q, %d; want %q", verb, out, talk, code, want)
		}
	}
}
