package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write what the commands of the pages print into the pages")

// pages are the pages with commands that users type.
var pages = []string{"README.md", "docs/cli.md", "docs/batch.md", "docs/proxy.md"}

// block matches a block of code: its language, the name of a file, and its text.
var block = regexp.MustCompile("(?ms)^```(\\w+) ?(\\S*)\n(.*?)^```$")

// TestDocs runs what the console blocks of the pages have after "$ ", and compares what it prints. A
// block with the name of a file is that file. In a block, … stands for what varies, or for lines that
// are left out.
func TestDocs(t *testing.T) {
	dir := t.TempDir()
	texts := make(map[string]string) // of the pages, by the name of the script
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		texts[name] = readRoot(t, page)
		if err := os.WriteFile(filepath.Join(dir, name+".txtar"), []byte(scriptOf(name, texts[name])), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("scripts", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir: dir, RequireExplicitExec: true,
			Setup: func(env *testscript.Env) error {
				env.Setenv("TZ", "UTC")
				env.Setenv("XDG_STATE_HOME", env.WorkDir)
				return nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){
				"shows": func(ts *testscript.TestScript, _ bool, args []string) {
					got, want := ts.ReadFile("stdout"), ts.ReadFile(args[0])
					if *update && !isAlike(got, want) {
						head := ts.ReadFile(args[2])
						texts[args[1]] = strings.Replace(texts[args[1]], head+want, head+got, 1)
					} else if !isAlike(got, want) {
						ts.Fatalf("%s shows\n%s\nbut the command prints\n%s", args[1], want, got)
					}
				},
			},
		})
	})
	for _, page := range pages {
		if text := texts[strings.TrimSuffix(filepath.Base(page), ".md")]; *update && text != readRoot(t, page) {
			if err := os.WriteFile(filepath.Join(rootDir, page), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// isAlike reports whether a text is another in which … stands for a text in a line, or for lines.
func isAlike(got, want string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "\n…\n", "\n(?s:.*\n)?")
	pattern = strings.ReplaceAll(pattern, "…", ".*")
	return regexp.MustCompile(`^` + pattern + `$`).MatchString(got)
}

// withoutClone is how users without a clone run the command.
const withoutClone = "go run github.com/apithrottle/throttle/cmd/throttle@latest"

// started matches the beginning of a batch that was planned now.
var started = regexp.MustCompile(`from \w+ (\d{4}-\d\d-\d\d) 00:00:00 UTC`)

// scriptOf returns the script of a page with a name.
func scriptOf(name, page string) string {
	var script, files strings.Builder
	n := 0
	for _, b := range block.FindAllStringSubmatch(page, -1) {
		language, file, text := b[1], b[2], b[3]
		if file != "" {
			fmt.Fprintf(&files, "-- %s --\n%s", file, text)
		}
		if language != "console" {
			continue
		}
		for _, step := range strings.Split("\n"+text, "\n$ ")[1:] {
			command, output, _ := strings.Cut(step, "\n")
			head := "$ " + command + "\n"
			if output != "" && !strings.HasSuffix(output, "\n") {
				output += "\n" // the next step has begun with it
			}
			if rest, ok := strings.CutPrefix(command, withoutClone); ok {
				command = "throttle" + rest
			}
			if day := started.FindStringSubmatch(output); day != nil && !strings.Contains(command, "--start") {
				command += " --start " + day[1]
			}
			n++
			fmt.Fprintf(&script, "exec sh %d.sh\nshows %d.out %s %d.head\n", n, n, name, n)
			fmt.Fprintf(&files, "-- %d.sh --\nexec 2>&1\n%s\n-- %d.out --\n%s-- %d.head --\n%s", n, command, n, output, n, head)
		}
	}
	return script.String() + files.String()
}

// TestDocsConfig checks the configurations that the pages have.
func TestDocsConfig(t *testing.T) {
	n := 0
	for _, page := range pages {
		for _, b := range block.FindAllStringSubmatch(readRoot(t, page), -1) {
			if b[1] != "yaml" {
				continue
			}
			n++
			c, err := config.Loader{WithoutSecrets: true}.Parse([]byte(b[3]), page)
			if err != nil {
				t.Error(err)
				continue
			}
			for prefix := range c.Routes {
				if _, err := c.Transport(prefix, nil); err != nil {
					t.Errorf("%s: %v", page, err)
				}
			}
		}
	}
	if n == 0 {
		t.Error("no page has a configuration")
	}
}

// TestDocsProblems checks that the page about the proxy has what its problems lead to, and their
// reasons.
func TestDocsProblems(t *testing.T) {
	page := readRoot(t, "docs/proxy.md")
	files, err := filepath.Glob("../proxy/*.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`typePrefix \+ "(\w+)"|badRequest\([\w.]+, "(\w+)"`).FindAllSubmatch(source, -1) {
			n++
			if heading := string(m[1]); heading != "" && !strings.Contains(strings.ToLower(page), "# "+heading+"\n") {
				t.Errorf("%s leads to #%s, which the page lacks", file, heading)
			}
			if reason := string(m[2]); reason != "" && !strings.Contains(page, "`"+reason+"`") {
				t.Errorf("%s has the reason %s, which the page lacks", file, reason)
			}
		}
	}
	if n == 0 {
		t.Error("the proxy has no problems")
	}
}

// provenBy has the functions of sdktest that call an API as the clients of docs/proxy.md do.
var provenBy = map[string]string{
	"openai-go": "viaOpenAI", "anthropic-sdk-go": "viaAnthropic", "stripe-go": "viaStripe", "go-github": "viaGitHub",
	"slack-go": "viaSlack", "genai": "viaGemini", "Python's urllib": "viaPython", "Node's fetch": "viaNode", "curl": "viaCurl",
}

// TestDocsBaseURLs checks that TestProxyBaseURLs of sdktest has each client of the table of base URLs,
// with the setting that the table names.
func TestDocsBaseURLs(t *testing.T) {
	source := readRoot(t, "sdktest/proxytraffic_test.go")
	_, test, _ := strings.Cut(source, "\nfunc TestProxyBaseURLs(")
	test, _, _ = strings.Cut(test, "\n}\n")
	_, table, _ := strings.Cut(readRoot(t, "docs/proxy.md"), "## Base URLs\n\n| client | setting |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		for client := range strings.SplitSeq(cells[1], ",") {
			if call := provenBy[strings.TrimSpace(client)]; call == "" || !strings.Contains(test, "{"+call+"(") {
				t.Errorf("no test proves the line of %s", client)
			}
		}
		setting := strings.Split(cells[2], "`")[1]
		if name := strings.FieldsFunc(setting, func(c rune) bool { return strings.ContainsRune("({:", c) })[0]; name != "http" && !strings.Contains(source, name) {
			t.Errorf("no test has the setting %s", name)
		}
	}
}
