package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/token"
)

// An Error is the problems of a file. It contains no value of a Secret.
type Error struct {
	// File is the name of the file.
	File string

	// Problems are in the order of the file.
	Problems []Problem
}

// A Problem is a problem of a file.
type Problem struct {
	// Line and Column begin with 1.
	Line, Column int

	// Field is the path of the field, such as "routes./openai.with.requests". It is empty for the
	// whole file.
	Field string

	// Message says what is wrong with the field, its value, and what to do.
	Message string

	// Excerpt is the line of the file, with … for everything that may be secret, and a mark below
	// the problem.
	Excerpt string
}

// Error returns all problems, each with its line, its column and its excerpt.
func (e *Error) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s:%d:%d: %s", e.File, p.Line, p.Column, p)
		if p.Excerpt != "" {
			b.WriteString("\n" + p.Excerpt)
		}
	}
	return b.String()
}

// String returns the field and the message.
func (p Problem) String() string {
	if p.Field == "" {
		return p.Message
	}
	return p.Field + " " + p.Message
}

// report adds a problem at a token.
func (d *decoder) report(at *token.Token, field, format string, args ...any) {
	p := Problem{Line: 1, Column: 1, Field: field, Message: fmt.Sprintf(format, args...)}
	if at != nil && at.Position != nil {
		p.Line, p.Column = max(1, at.Position.Line), max(1, at.Position.Column)
	}
	d.problems = append(d.problems, p)
}

// mostProblems is how many problems an Error has. The last one may count the others.
const mostProblems = 50

// sorted returns the problems in the order of the file, with their excerpts.
func (d *decoder) sorted() []Problem {
	slices.SortStableFunc(d.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Field, b.Field))
	})
	d.problems = slices.Compact(d.problems)
	more := len(d.problems) - mostProblems
	d.problems = d.problems[:min(len(d.problems), mostProblems)]
	for i, p := range d.problems {
		d.problems[i].Excerpt = d.excerpt(p)
	}
	if last := len(d.problems) - 1; more > 0 {
		d.problems[last] = Problem{Line: d.problems[last].Line, Column: d.problems[last].Column, Message: fmt.Sprintf("this is one of %d more problems", more+1)}
	}
	return d.problems
}

// A place is where a token begins, and its value. The parser copies tokens, so their addresses don't
// identify them.
type place struct {
	line, column int
	value        string
}

func placeOf(t *token.Token) place { return place{t.Position.Line, t.Position.Column, t.Value} }

// widest is how long a line of an excerpt may be.
const widest = 72

// excerpt writes the line of a problem anew from its tokens. A token that is not known to be public
// becomes …, and comments are left out. So nothing of a Secret can show, wherever it stands.
func (d *decoder) excerpt(p Problem) string {
	var line []rune
	mark, masked := -1, false
	for _, t := range d.tokens {
		if t.Position == nil || t.Position.Line != p.Line || t.Type == token.CommentType {
			continue
		}
		for !masked && len(line) < t.Position.Column-1 { // behind a masked token, spaces would tell its length
			line = append(line, ' ')
		}
		if t.Position.Column == p.Column {
			mark = len(line)
		}
		shown := d.shown(t)
		if masked = masked || shown == "…"; masked && len(line) > 0 && line[len(line)-1] != ' ' && !strings.Contains(":,]}", shown) {
			line = append(line, ' ')
			if mark == len(line)-1 {
				mark++
			}
		}
		line = append(line, []rune(shown)...)
	}
	if len(line) == 0 {
		return ""
	}
	from := 0
	if mark > widest*2/3 {
		from = mark - widest*2/3
	}
	line = line[from:]
	if len(line) > widest {
		line = append([]rune(strings.TrimRight(string(line[:widest-1]), "…")), '…')
	}
	head := fmt.Sprintf("%5d | ", p.Line)
	text := head + strings.TrimRight(string(line), " ")
	if mark >= 0 {
		text += "\n" + strings.Repeat(" ", len(head)-2) + "| " + strings.Repeat(" ", mark-from) + "^"
	}
	return text
}

// shown returns how a token shows in an excerpt.
func (d *decoder) shown(t *token.Token) string {
	switch t.Type {
	case token.MappingValueType, token.SequenceEntryType, token.CollectEntryType, token.MappingStartType, token.MappingEndType,
		token.SequenceStartType, token.SequenceEndType:
		return strings.TrimSpace(t.Value)
	}
	if !d.public[placeOf(t)] && !(d.broken && isField(t.Value)) {
		return "…"
	}
	value := t.Value
	if i := strings.IndexFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		value = value[:i] + "…"
	}
	switch t.Type {
	case token.DoubleQuoteType:
		return `"` + value + `"`
	case token.SingleQuoteType:
		return "'" + value + "'"
	}
	return value
}
