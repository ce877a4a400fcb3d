package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
)

// A Secret is a value that is never shown: neither by package fmt, nor in JSON, nor in a log, nor in
// an error of this package. In the file it may refer to variables of the environment and to files:
//
//	token: "${env:WEB_TOKEN}"
//	set: {Authorization: "Bearer ${file:/run/secrets/openai}"}
//
// The spaces and line ends around a file's contents, and line ends behind the whole, are removed.
// $${ stands for ${.
type Secret struct {
	value *string // package fmt does not follow a pointer in a struct
}

// NewSecret returns a Secret with a value.
func NewSecret(value string) Secret { return Secret{&value} }

// Reveal returns the value.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether there is no value.
func (s Secret) IsZero() bool { return s.value == nil }

// Equal reports whether two Secrets have the same value.
func (s Secret) Equal(t Secret) bool { return s.IsZero() == t.IsZero() && s.Reveal() == t.Reveal() }

const hidden = "[secret]"

// String returns "[secret]", or "" if there is no value.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return hidden
}

// GoString returns what String returns.
func (s Secret) GoString() string { return s.String() }

// Format writes what String returns, for every verb.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// MarshalText returns what String returns.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns what String returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// reference matches a reference of a Secret, or an escaped beginning of one.
var reference = regexp.MustCompile(`\$\$\{|\$\{([^}]*)\}?`)

// variable matches the name of a variable of the environment.
var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand returns the text of a Secret with its references replaced. Errors name references, never
// values.
func (l Loader) expand(text string) (s Secret, errs []string) {
	value := reference.ReplaceAllStringFunc(text, func(match string) string {
		if match == "$${" {
			return "${"
		}
		to, closed := strings.CutSuffix(strings.TrimPrefix(match, "${"), "}")
		kind, name, _ := strings.Cut(to, ":")
		var problem string
		switch {
		case !closed:
			problem = "has a ${ without a }: write ${env:NAME} or ${file:PATH}, or $${ for the characters themselves"
		case kind == "env" && !variable.MatchString(name):
			problem = "refers to a variable whose name is not made of letters, digits and _: write ${env:NAME}"
		case kind == "file" && name == "":
			problem = "refers to a file without a path: write ${file:PATH}"
		case kind != "env" && kind != "file":
			problem = "has a ${…} of neither env: nor file: write ${env:NAME} or ${file:PATH}, or $${ for the characters themselves"
		case l.WithoutSecrets:
			return l.each(match)
		case kind == "env":
			if v, ok := l.LookupEnv(name); ok && v != "" {
				return l.each(v)
			}
			problem = fmt.Sprintf("needs the variable %s of the environment, which is not set, or empty: set it", name)
		default:
			content, err := l.ReadFile(name)
			if v := strings.TrimSpace(string(content)); err == nil && v != "" {
				return l.each(v)
			}
			problem = fmt.Sprintf("needs the file %s, which is empty", name)
			if err != nil {
				problem = fmt.Sprintf("needs the file %s, which cannot be read: %s", name, reason(err))
			}
		}
		errs = append(errs, problem)
		return ""
	})
	return NewSecret(strings.TrimRight(value, "\r\n")), errs
}

// reason returns why a file cannot be read, without its path.
func reason(err error) string {
	switch {
	case os.IsNotExist(err):
		return "it does not exist"
	case os.IsPermission(err):
		return "permission is denied"
	}
	return "it is no file of at most 64KB"
}

// readSecret reads the file of a secret.
func readSecret(path string) ([]byte, error) {
	text, err := readAtMost(path, mostSecret+1)
	if len(text) > mostSecret {
		return nil, errors.New("too long")
	}
	return text, err
}

// mostSecret is how many bytes a file of a secret has at most.
const mostSecret = 64 << 10
