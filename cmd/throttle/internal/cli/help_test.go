package cli

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestHelp checks that the help of each verb fits a terminal, shows an example, and lists the exit codes.
func TestHelp(t *testing.T) {
	c := &command{System: System{Getenv: func(string) string { return "" }}}
	for _, verb := range c.root().Commands() {
		help, talk, code := run(t, "", "help", verb.Name())
		if again, _, _ := run(t, "", verb.Name(), "--help"); code != 0 || talk != "" || again != help {
			t.Errorf("help %s: %q, %d; it differs from --help:\n%s\n%s", verb.Name(), talk, code, help, again)
		}
		text, _, _ := strings.Cut(help, "\nExamples:\n")
		for line := range strings.Lines(text) {
			if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 88 {
				t.Errorf("help %s: a long line: %s", verb.Name(), line)
			}
		}
		switch verb.Name() {
		case "help", "version", "completion":
			continue
		}
		if !strings.Contains(help, "\nExamples:\n") || !strings.Contains(help, "Exit codes: 64 ") {
			t.Errorf("help %s lacks examples or exit codes:\n%s", verb.Name(), help)
		}
	}
	if out, _, code := run(t, "", "--version"); !strings.HasPrefix(out, "throttle ") || code != 0 {
		t.Errorf("--version prints %q, %d", out, code)
	}
	if out, _, code := run(t, "", "--version", "--json"); !strings.HasPrefix(out, `{"version":`) || code != 0 {
		t.Errorf("--version --json prints %q, %d", out, code)
	}
}
