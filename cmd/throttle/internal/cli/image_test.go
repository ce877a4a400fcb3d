package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/internal/soak"
)

// fakeDocker builds an image whose digest is that of $BUILDS. The registry is a directory.
const fakeDocker = `#!/bin/sh
echo "$*; $SOURCE_DATE_EPOCH" >>"$REGISTRY/calls"
[ "$2" != build ] || echo "some progress"
case "$*" in
*"--output type=local,dest="*)
	to=${*#*type=local,dest=} to=${to%% *}
	for arch in amd64 arm64; do
		mkdir -p "$to/linux_$arch" && printf %s "$PROGRAM" >"$to/linux_$arch/throttle"
	done ;;
*"--metadata-file "*)
	file=${*#*--metadata-file } file=${file%% *}
	echo "{\"containerimage.digest\": \"sha256:$BUILDS\"}" >"$file" ;;
"buildx imagetools create --tag ghcr.io/a/b:0.2.0 ghcr.io/a/b@"*)
	printf %s "${*#*@}" >"$REGISTRY/tag" ;;
"buildx imagetools inspect ghcr.io/a/b:0.2.0 --format {{json .Manifest}}")
	if [ "$BUILDS" = unavailable ]; then
		echo "ERROR: unexpected status: 503 Service Unavailable" >&2
		exit 1
	elif [ ! -e "$REGISTRY/tag" ]; then
		echo "ERROR: ghcr.io/a/b:0.2.0: not found" >&2
		exit 1
	fi
	echo "{\"digest\": \"$(cat "$REGISTRY/tag")\"}" ;;
*)
	echo "unexpected: $*" >&2
	exit 2 ;;
esac
`

// A rerun of a release goes on with the image that the first run pushed, and never moves its tag to another one.
func TestReleaseImage(t *testing.T) {
	soak.Long(t, "runs a script many times")
	script, err := filepath.Abs("../../../../tools/image.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"sh", "jq", "git"} {
		if _, err := exec.LookPath(program); err != nil || runtime.GOOS == "windows" {
			t.Skip("needs sh, jq and git")
		}
	}
	commit, err := exec.Command("git", "log", "-1", "--format=%ct").Output()
	if err != nil {
		t.Skip("the tree is no clone")
	}
	for name, test := range map[string]struct {
		tag, builds, program string // tag is what the registry has, if anything
		want, wantTag        string // want is the output, or what the error contains
		fails                bool
	}{
		"first run":          {builds: "one", want: "sha256:one\n", wantTag: "sha256:one"},
		"rerun":              {tag: "sha256:one", builds: "one", want: "sha256:one\n", wantTag: "sha256:one"},
		"another image":      {tag: "sha256:one", builds: "two", fails: true, want: "0.2.0 is sha256:one, which is left as it is, and this run has built sha256:two", wantTag: "sha256:one"},
		"no registry":        {tag: "sha256:one", builds: "unavailable", fails: true, want: "503 Service Unavailable", wantTag: "sha256:one"},
		"no registry, fresh": {builds: "unavailable", fails: true, want: "503 Service Unavailable"},
		"another program":    {builds: "one", program: "another", fails: true, want: "throttle-linux-amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			write("docker", fakeDocker)
			write("throttle-linux-amd64", "program")
			write("throttle-linux-arm64", "program")
			if test.tag != "" {
				write("tag", test.tag)
			}
			if test.program == "" {
				test.program = "program"
			}
			var stderr strings.Builder
			cmd := exec.Command("sh", script, "ghcr.io/a/b", "v0.2.0", "1.26.8", dir)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "REGISTRY="+dir, "BUILDS="+test.builds, "PROGRAM="+test.program,
				"GITHUB_SERVER_URL=https://github.com", "GITHUB_REPOSITORY=a/b")
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if got := string(out) + stderr.String(); (err != nil) != test.fails || !strings.Contains(got, test.want) || err == nil && string(out) != test.want {
				t.Errorf("got %v, %q, want %q", err, got, test.want)
			}
			if tag, _ := os.ReadFile(filepath.Join(dir, "tag")); string(tag) != test.wantTag {
				t.Errorf("the tag is %q, want %q", tag, test.wantTag)
			}
			calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
			for line := range strings.Lines(string(calls)) {
				if strings.Contains(line, "buildx build") &&
					(!strings.HasSuffix(line, "; "+string(commit)) || strings.Contains(line, "type=image") && !strings.Contains(line, "rewrite-timestamp=true")) {
					t.Errorf("the image has other times than those of the commit: %s", line)
				}
			}
		})
	}
}
