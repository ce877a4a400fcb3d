package cli

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
)

// TestComplete asks for completions as the scripts of all shells do. A command is split at spaces, and its
// last word is the one to complete.
func TestComplete(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("throttle.yaml", []byte("routes: {/acme: {to: 'https://api.example.com', policy: 5/s}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "send-mail")
	if err := os.WriteFile(bin, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	stats := observe.NewStats()
	l, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(5)}, Observer: stats.Observer()}, nil)
	if err == nil {
		err = stats.Watch("api", l)
	}
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(page.New(page.Options{Stats: stats}))
	defer server.Close()

	const files, noFiles, noSpace, extensions = ":0", ":4", ":6", ":8"
	for _, tt := range []struct {
		command   string
		want      string // some of the values
		directive string
	}{
		{"", "exec wait lines batch proxy status top pause resume forget plan replay providers inspect validate help version completion", noFiles},
		{"help ", "exec pause", noFiles},
		{"wait --policy ", "github openai: stripe", noFiles},
		{"wait --policy opena", "openai: openai-compatible:", noFiles},
		{"wait --policy openai:", "openai:requests= openai:tokens=", noSpace},
		{"wait --policy openai:tokens=5,", "openai:tokens=5,requests=", noSpace},
		{"exec --policy ", "github", noFiles},
		{"lines --policy ", "github", noFiles},
		{"lines ", "github", noFiles},
		{"status --policy ", "github", noFiles},
		{"top --policy ", "github", noFiles},
		{"pause --policy ", "github", noFiles},
		{"resume --policy ", "github", noFiles},
		{"forget --policy ", "github", noFiles},
		{"plan ", "github", noFiles},
		{"replay access.log --policy ", "github", noFiles},
		{"providers ", "github openai", noFiles},
		{"validate gith", "github", noFiles},
		{"validate ", "", files},
		{"replay ", "", files},
		{"inspect ", "", files},
		{"batch ", "", files},
		{"batch urls.txt --journal ", "", files},
		{"batch urls.txt --results ", "", files},
		{"batch urls.txt --policy ", "github", noFiles},
		{"batch urls.txt --class ", "interactive normal batch", noFiles},
		{"inspect --host ", "api.github.com api.openai.com", noFiles},
		{"wait --policy github --scope ", "core search graphql", noFiles},
		{"wait --policy openai:requests=5,tokens=5 --scope ", "model vector_store", noFiles},
		{"wait --policy 5/s;unit=points --cost ", "points=", noSpace},
		{"wait --policy openai:requests=5,tokens=5 --cost ", "requests= tokens=", noSpace},
		{"wait --class ", "interactive normal batch", noFiles},
		{"exec --class ", "interactive normal batch", noFiles},
		{"replay --format ", "jsonl clf har", noFiles},
		{"replay --duration-unit ", "s ms us ns", noFiles},
		{"proxy --config ", "yaml yml json", extensions},
		{"status --config ", "yaml yml json", extensions},
		{"wait --file ", "", files},
		{"pause --token-file ", "", files},
		{"wait --redis ", "redis://localhost:6379/0", noFiles},
		{"status --page ", "http://127.0.0.1:7411/_throttle/", noFiles},
		{"wait --max-wait ", "", noFiles},
		{"wait --name ", "", noFiles},
		{"status --config throttle.yaml ", "acme", noFiles},
		{"pause --config throttle.yaml --name ", "acme", noFiles},
		{"top --page " + server.URL + " ", "api", noFiles},
		{"pause --page " + server.URL + " --name ", "api", noFiles},
		{"exec --name a send-m", "send-mail", noFiles},
		{"exec --name a -- send-mail ", "", files},
		{"version ", "", noFiles},
		{"completion ", "bash zsh fish powershell", noFiles},
	} {
		args := append([]string{"__complete"}, strings.Split(tt.command, " ")...)
		env := map[string]string{"PATH": filepath.Dir(bin), "THROTTLE_POLCY": "no completion warns"}
		out, talk, code := runWith(t, "", env, args...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		var values []string
		for _, line := range lines {
			value, _, _ := strings.Cut(line, "\t")
			values = append(values, value)
		}
		for _, want := range strings.Fields(tt.want) {
			if !slices.Contains(values, want) {
				t.Errorf("%q completes to %q, without %s", tt.command, values, want)
			}
		}
		if tt.want == "" && len(lines) > 1 || lines[len(lines)-1] != tt.directive || code != 0 || strings.Contains(talk, "POLCY") {
			t.Errorf("%q completes to %q, want %s; %q", tt.command, values, tt.directive, talk)
		}
	}
}
