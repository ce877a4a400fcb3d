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

// secrets matches what has credentials in a text, and what is left of that.
var secrets = []struct {
	*regexp.Regexp
	left string
}{
	// The user of a URL, and the query of a URL or of the path of one.
	{regexp.MustCompile(`(://)[^\s/?#"'<>]*@`), "$1"},
	{regexp.MustCompile(`\?[^\s?"'<>)]*=[^\s"'<>]*`), "?…"},
	// Header fields with more than a word.
	{regexp.MustCompile(`(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(["']?\s*[:=]\s*)(\[[^\]\n]*|"[^"\n]*|[^"\r\n]+)`), "$1$2…"},
	// Authorization without its name, and keys that are known by how they begin.
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}`), "$1 …"},
	{regexp.MustCompile(`\b(sk-|[rsp]k_|AIza|AKIA|gh[a-z]_|github_pat_|xox[a-z]-|ya29\.|eyJ)[\w.-]{8,}`), "$1…"},
}

// field matches a name and a value, as header fields, parameters and JSON have them.
var field = regexp.MustCompile(`([A-Za-z][\w.-]*)(["']?\s*[:=]\s*[\["']*)([^\s"',;&\]}]+)`)

// reasonOf returns the text of an error for a file: at most 300 bytes, without users and queries of URLs and
// without credentials.
func reasonOf(err error) string {
	s := cutText(err.Error(), maxText)
	for _, secret := range secrets {
		s = secret.ReplaceAllString(s, secret.left)
	}
	return cutText(field.ReplaceAllStringFunc(s, hideField), maxReason)
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
