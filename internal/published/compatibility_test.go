package published

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestCompatibilityPage checks that docs/compatibility.md names each published package and each server that
// the workflow tests with.
func TestCompatibilityPage(t *testing.T) {
	page := readFile(t, "../../docs/compatibility.md")
	servers := regexp.MustCompile(`name: ((?:Redis|Valkey|PostgreSQL) [0-9.]+)`).FindAllStringSubmatch(readFile(t, "../../.github/workflows/ci.yml"), -1)
	if len(servers) == 0 {
		t.Error("the workflow names no server")
	}
	for _, server := range servers {
		if !strings.Contains(page, server[1]) {
			t.Errorf("docs/compatibility.md does not name %s, which .github/workflows/ci.yml tests", server[1])
		}
	}
	for name := range modules {
		api := readFile(t, path.Join("testdata/api", name+".txt"))
		for _, p := range regexp.MustCompile(`(?m)^package \w+ // "(.*)"$`).FindAllStringSubmatch(api, -1) {
			of := strings.TrimPrefix(strings.TrimPrefix(p[1], throttle), "/")
			if of != "" && !strings.HasPrefix(of, "internal/") && !strings.Contains(page, "`"+of+"`") {
				t.Errorf("docs/compatibility.md does not say what is promised of package %s", of)
			}
		}
	}
}
