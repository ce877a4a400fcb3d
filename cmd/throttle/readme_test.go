package main_test

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/published"
	"github.com/apithrottle/throttle/internal/soak"
)

// root is the directory of the library.
const root = "../.."

// TestReadme runs each command of README.md as a reader of it does: those for a clone in one, those for
// users of a published version with a module proxy that has this tree, and those of the command as the
// README installs it. They have no network: modules come from the module cache, and it sends no request
// through the proxy. Of "make test", of which it is a part, it runs one package.
func TestReadme(t *testing.T) {
	soak.Long(t, "compiles what users install, and runs a batch")
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := commandsOf(string(text))
	r := &reader{T: t, clone: clone(t), dir: t.TempDir(), bin: t.TempDir(), state: t.TempDir(), user: published.NewUser(t, "v0.1.1")}
	r.user.Go("mod", "init", "example.com/user")
	for _, c := range commands {
		r.run(c)
	}
	if len(commands) < 7 {
		t.Errorf("README.md has only the commands %q", commands)
	}
}

// clone returns a directory that has what a clone has. That is the tree, of which the go command has
// compiled most for other tests, or a copy if the tree has files that git ignores, such as a go.work.
func clone(t *testing.T) string {
	t.Helper()
	ignored, err := published.Run(root, nil, "git", "ls-files", "--others", "--ignored", "--exclude-standard")
	if err != nil {
		t.Fatal(err)
	}
	if ignored == "" {
		return root
	}
	t.Logf("compiles a copy of the tree anew, because git ignores %q", strings.Fields(ignored))
	dir := t.TempDir()
	if err := published.CopyTree(root, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

var (
	commandBlock = regexp.MustCompile("(?ms)^```(sh|console)\n(.*?)^```$")
	inClone      = regexp.MustCompile(`^(go|make|env .* make) `)
	commandText  = regexp.MustCompile("`(go (?:get|run|install) [^`]+)`")
)

// commandsOf returns the commands in a page: the lines of its sh blocks, the lines of its console blocks
// that begin with a dollar, and those of the go command in its text.
func commandsOf(page string) (commands []string) {
	for _, b := range commandBlock.FindAllStringSubmatch(page, -1) {
		for line := range strings.Lines(b[2]) {
			command, found := strings.CutPrefix(line, "$ ")
			if found || b[1] == "sh" {
				command, _, _ = strings.Cut(command, " #")
				commands = append(commands, strings.TrimSpace(command))
			}
		}
	}
	for _, m := range commandText.FindAllStringSubmatch(page, -1) {
		commands = append(commands, m[1])
	}
	return commands
}

// A reader types the commands of the README: those of go and make in the clone, and others in dir.
type reader struct {
	*testing.T
	clone, dir, bin, state string
	user                   *published.User
}

// shows has what some commands must print. On a busy machine a request may reach the example's stand-in
// later than the guard, and be refused: that it is not is tested in virtual time.
var shows = map[string]string{
	"go run ./examples/coinbase": "utilization  ",
	"make test":                  "\nskipped:\nTest",
	"go -C bench run":            "\n| redis_rate ",
	"go -C bench test":           "PASS: TestPeersCallsOfRedis/redis_rate",
	"throttle plan":              "takes 34m 59s, ",
	"seq 10":                     "10\n",
}

func (r *reader) run(command string) {
	r.Helper()
	var out string
	switch {
	case command == "kill $!", strings.HasPrefix(command, "curl "):
		return
	case command == "make test":
		out = r.makeTest()
	case strings.Contains(command, " github.com/apithrottle/"): // once published
		out = r.user.Shell(command)
	case strings.HasPrefix(command, "throttle proxy "):
		r.proxy(command)
		return
	default:
		out = r.shell(command)
	}
	for prefix, want := range shows {
		if strings.HasPrefix(command, prefix) && !strings.Contains(out, want) {
			r.Errorf("%s prints\n%s\nwant %q in it", command, out, want)
		}
	}
}

// command returns a command, which installs to r.bin.
func (r *reader) command(ctx context.Context, command string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+command)
	cmd.Dir = r.dir
	if inClone.MatchString(command) {
		cmd.Dir = r.clone
	}
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=", "GOBIN="+r.bin, "XDG_STATE_HOME="+r.state,
		"PATH="+r.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return cmd
}

func (r *reader) shell(command string) string {
	r.Helper()
	var stderr bytes.Buffer
	cmd := r.command(r.Context(), command)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.Fatalf("%s: %v\n%s%s", command, err, out, &stderr)
	}
	return string(out)
}

// makeTest runs "make test" with the tests of one package, where there is neither a redis-server nor an
// apt-get that installs one.
func (r *reader) makeTest() string {
	r.Helper()
	path := r.TempDir()
	for _, name := range []string{"cat", "dirname", "git", "go", "id", "make", "mktemp", "rm", "sh", "sort", "uname"} {
		if program, err := exec.LookPath(name); err != nil {
			r.Log(err)
		} else if err := os.Symlink(program, filepath.Join(path, name)); err != nil {
			r.Fatal(err)
		}
	}
	const one = "github.com/apithrottle/throttle/internal/redistest"
	return r.shell(`env -u THROTTLE_REDIS_SERVER -u THROTTLE_REQUIRE_REDIS PATH="` + path + `" make test "SHORT=go test -vet=off -short ` + one + ` && :"`)
}

// proxy runs the proxy until it listens, with the file that a command has written.
func (r *reader) proxy(command string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Minute)
	defer cancel()
	cmd := r.command(ctx, strings.TrimSuffix(command, " &")+" --listen 127.0.0.1:0")
	log, err := cmd.StderrPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	var lines []string
	for s := bufio.NewScanner(log); s.Scan(); {
		if lines = append(lines, s.Text()); strings.Contains(s.Text(), "the proxy listens") {
			cancel()
			_ = cmd.Wait() // killed
			return
		}
	}
	r.Errorf("%s ends: %v\n%s", command, cmd.Wait(), strings.Join(lines, "\n"))
}
