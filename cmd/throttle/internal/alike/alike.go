// Package alike finds the name that somebody meant who has typed another one.
package alike

import (
	"math"
	"strings"
)

// Fold returns a name as Nearest compares it: in lower case, without hyphens, underscores and spaces.
func Fold(name string) string {
	return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(name))
}

// Nearest returns the name that is most like another, or "" if none is like it. The beginning of a
// name is like it.
func Nearest(name string, names []string) (near string) {
	name = Fold(name)
	least := math.MaxInt
	for _, n := range names {
		d := distance(name, Fold(n))
		if len(name) >= 3 && strings.HasPrefix(Fold(n), name) {
			d = min(d, 1)
		}
		if d < least {
			near, least = n, d
		}
	}
	if least > max(1, len(name)/3) {
		return ""
	}
	return near
}

// Suggest asks for the name that is most like another. If none is like it, Suggest returns what else to do.
func Suggest(name string, names []string, otherwise string) string {
	if near := Nearest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	return otherwise
}

// distance returns how many bytes of a must be inserted, deleted, replaced, or swapped with the next one,
// to make it b.
func distance(a, b string) int {
	if len(a) > 64 {
		return math.MaxInt
	}
	var before []int // the row before the last one
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
