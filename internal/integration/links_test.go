package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	fencedBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	inlineCode  = regexp.MustCompile("`[^`\n]*`")
	pageLink    = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"`)
	linkText    = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
)

// TestLinks checks that each relative link of the pages leads to a file and, if it has a fragment, to a
// heading of that page.
func TestLinks(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../../*.md", "../../docs/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	links, headings := 0, make(map[string][]string)
	for _, page := range pages {
		headings[page] = anchors(readPage(t, page))
	}
	for _, page := range pages {
		text := inlineCode.ReplaceAllString(fencedBlock.ReplaceAllString(readPage(t, page), ""), "")
		for _, m := range pageLink.FindAllStringSubmatch(text, -1) {
			if link := m[1] + m[2]; !strings.Contains(link, ":") {
				links++
				if err := follow(headings, page, link); err != nil {
					t.Errorf("%s links to %s: %v", page, link, err)
				}
			}
		}
	}
	if links < 100 {
		t.Errorf("%d links in %d pages: the test misses some", links, len(pages))
	}
}

// follow returns an error if a link of a page leads nowhere. The map has the headings of each page.
func follow(headings map[string][]string, page, link string) error {
	path, fragment, _ := strings.Cut(link, "#")
	target := page
	if path != "" {
		target = filepath.Join(filepath.Dir(page), filepath.FromSlash(path))
		if _, err := os.Stat(target); err != nil {
			return err
		}
	}
	if has, isPage := headings[target]; isPage && fragment != "" && !slices.Contains(has, fragment) {
		return fmt.Errorf("%s has no heading #%s", target, fragment)
	}
	return nil
}

// anchors returns the fragments of a page's headings as GitHub derives them: in lower case, without
// punctuation, with a hyphen for each space, and with a number from the second heading of a text on.
func anchors(page string) (all []string) {
	seen := make(map[string]int)
	for line := range strings.Lines(fencedBlock.ReplaceAllString(page, "")) {
		level, heading, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found || strings.Trim(level, "#") != "" || len(level) > 6 {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linkText.ReplaceAllString(strings.TrimSpace(heading), "$1"))
		n := seen[anchor]
		if seen[anchor]++; n > 0 {
			anchor = fmt.Sprintf("%s-%d", anchor, n)
		}
		all = append(all, anchor)
	}
	return all
}

func TestAnchors(t *testing.T) {
	const page = "# The page\n```sh\n# no heading\n```\n## What's in `a_b.go`?\n## [Redis](x.md), and I/O\n## Redis, and IO\n####### no\n"
	want := []string{"the-page", "whats-in-a_bgo", "redis-and-io", "redis-and-io-1"}
	if got := anchors(page); !slices.Equal(got, want) {
		t.Errorf("anchors are %q, want %q", got, want)
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
