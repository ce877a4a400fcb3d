package batch

import (
	"regexp"
	"strings"

	"github.com/apithrottle/throttle/internal/credentials"
)

const (
	maxReason = 300
	maxText   = 16 << 10 // bytes of an error that are looked at
)

var (
	// urlUser matches the user of a URL.
	urlUser = regexp.MustCompile(`(://)[^\s/?#"'<>]*@`)
	// query matches the query of a URL, or of the path of one.
	query = regexp.MustCompile(`\?[^\s?"'<>` + "`" + `)]*=[^\s"'<>` + "`" + `]*`)
	// field matches a name and a value, as header fields, parameters and JSON have them.
	field = regexp.MustCompile(`([A-Za-z][\w.-]*)(["']?\s*[:=]\s*)((?:\[|["'])?(?:(?i:bearer|basic|token|apikey|key|bot|digest)\s+)?[^\s"',;&\]}]+)`)
	// scheme matches the credentials of an Authorization without its name.
	scheme = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}`)
	// known matches keys that are known by how they begin.
	known = regexp.MustCompile(`\b(sk-|rk_|sk_|pk_|AIza|AKIA|gh[a-z]_|github_pat_|xox[a-z]-|ya29\.|eyJ)[\w.-]{8,}`)
)

// reasonOf returns the text of an error for a file: at most 300 bytes, without users and queries of URLs and
// without credentials.
func reasonOf(err error) string {
	s := cutText(err.Error(), maxText)
	s = urlUser.ReplaceAllString(s, "$1")
	s = query.ReplaceAllString(s, "?…")
	s = field.ReplaceAllStringFunc(s, hideField)
	s = scheme.ReplaceAllString(s, "$1 …")
	s = known.ReplaceAllString(s, "$1…")
	return cutText(s, maxReason)
}

// hideField returns a name and a value, without the value if it has credentials.
func hideField(s string) string {
	part := field.FindStringSubmatch(s)
	if credentials.IsName(part[1]) || credentials.IsParameter(part[1]) {
		return part[1] + part[2] + "…"
	}
	return s
}

// cutText returns the first n bytes of a text, in whole characters.
func cutText(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}
