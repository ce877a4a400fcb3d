package cli

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/apithrottle/throttle/cmd/throttle/internal/alike"
)

// A template is a command whose arguments may have placeholders: {} for the whole item, {name} for a field of
// it. An argument stays one argument, whatever the item has.
type template [][]piece

// A piece is a part of an argument: a placeholder, or else a text.
type piece struct {
	text  string // of a placeholder, the name of the field; empty for the whole item
	field bool
}

var (
	// bracketed matches what may be a placeholder, with the character before it. In $ {name} a shell has a variable.
	bracketed = regexp.MustCompile(`([$\\]?)\{([^{}]*)\}`)
	// nameLike matches what is meant as the name of a field, and not as a text such as {print $1}.
	nameLike = regexp.MustCompile(`^[\pL_][\pL\pN_. -]*$`)
)

// parseTemplate reads a command. The fields are those that items have: nil if each item may have others. Without any
// placeholder, the item becomes the last argument, unless the command reads it from its standard input.
func parseTemplate(args, fields []string, byStdin bool) (template, error) {
	t, placed := make(template, len(args)), false
	for i, arg := range args {
		pieces, err := parseArgument(arg, fields)
		if err != nil {
			return nil, err
		}
		t[i] = pieces
		placed = placed || slices.ContainsFunc(pieces, func(p piece) bool { return p.field })
	}
	if !placed && !byStdin {
		t = append(t, []piece{{field: true}})
	}
	return t, nil
}

func parseArgument(arg string, fields []string) (pieces []piece, err error) {
	rest := 0 // of arg begins here
	add := func(text string) {
		if text != "" {
			pieces = append(pieces, piece{text: text})
		}
	}
	for _, m := range bracketed.FindAllStringSubmatchIndex(arg, -1) {
		before, name := arg[m[2]:m[3]], arg[m[4]:m[5]]
		switch {
		case before == "$" || !isPlaceholder(name, fields):
			continue
		case before == `\`:
			add(arg[rest:m[2]])
			rest = m[3]
			continue
		case name != "" && fields != nil && !slices.Contains(fields, name):
			return nil, unknownField(name, fields)
		case isTwice(name, fields):
			return nil, usagef("{%s} may be two columns: give them different names", name)
		}
		add(arg[rest:m[0]])
		pieces = append(pieces, piece{name, true})
		rest = m[1]
	}
	if add(arg[rest:]); pieces == nil {
		pieces = []piece{{}}
	}
	return pieces, nil
}

func isPlaceholder(name string, fields []string) bool {
	return name == "" || nameLike.MatchString(name) || slices.Contains(fields, name)
}

// isTwice reports whether two fields have a name.
func isTwice(name string, fields []string) bool {
	return slices.Contains(fields, name) && slices.Contains(fields[slices.Index(fields, name)+1:], name)
}

// unknownField returns the error of a placeholder that no item has.
func unknownField(name string, fields []string) error {
	const literal = ` (a text in braces is written \{%s})`
	if len(fields) == 0 {
		return usagef("{%s} is no placeholder: lines have {} alone, and fields need --csv or --jsonl"+literal, name, name)
	}
	known := "there are {" + strings.Join(fields, "}, {") + "}"
	if near := alike.Nearest(name, fields); near != "" {
		known = "did you mean {" + near + "}, of {" + strings.Join(fields, "}, {") + "}?"
	}
	return usagef("{%s} is no column: %s"+literal, name, known, name)
}

// isStatic reports whether an argument is the same for all items.
func (t template) isStatic(i int) bool {
	return !slices.ContainsFunc(t[i], func(p piece) bool { return p.field })
}

// expand returns the arguments for an item.
func (t template) expand(r *record) ([]string, error) {
	args := make([]string, len(t))
	for i, pieces := range t {
		for _, p := range pieces {
			text := p.text
			if p.field {
				var err error
				if text, err = r.field(p.text); err != nil {
					return nil, err
				}
			}
			args[i] += text
		}
		if strings.ContainsRune(args[i], 0) {
			return nil, fmt.Errorf("argument %d has a NUL byte, which no command can receive: use --stdin", i)
		}
	}
	return args, nil
}
