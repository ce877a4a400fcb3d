package providers

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"text/scanner"
)

// A gqlField is a field of a GraphQL query, or a spread of a fragment.
type gqlField struct {
	name   string
	spread bool              // name is a fragment
	args   map[string]string // numbers as written, and variables as "$name"; other values are ""
	fields []gqlField        // what the field selects
}

// A gqlQuery is the operation that a request runs.
type gqlQuery struct {
	fields    []gqlField
	fragments map[string][]gqlField
	variables map[string]string // the numbers of the variables
}

// graphQL reads the operation of a POST request. It reports false if there is none, or if the query
// is malformed or deeper than maxSelections.
func graphQL(req *http.Request) (q gqlQuery, ok bool) {
	var sent struct {
		Query, OperationName string
		Variables            map[string]json.RawMessage
	}
	if !decode(req, &sent) {
		return q, false
	}
	p := gqlParser{ok: true, query: gqlQuery{fragments: make(map[string][]gqlField), variables: make(map[string]string)}}
	p.Init(strings.NewReader(sent.Query))
	p.Mode = scanner.ScanIdents | scanner.ScanInts | scanner.ScanFloats | scanner.ScanStrings
	p.Error = func(*scanner.Scanner, string) {} // a block string or a comment may look wrong
	p.document(sent.OperationName)
	for name, value := range sent.Variables {
		p.query.variables[name] = string(value)
	}
	return p.query, p.ok && len(p.query.fields) > 0
}

// number returns the value of an argument that is a number or a variable with one.
func (q *gqlQuery) number(value string) string {
	if name, is := strings.CutPrefix(value, "$"); is {
		return q.variables[name]
	}
	return value
}

// selects reports whether fields, or the fragments that they spread, contain one of the names.
func (q *gqlQuery) selects(fields []gqlField, names ...string) bool {
	seen := make(map[string]bool)
	var in func(fields []gqlField) bool
	in = func(fields []gqlField) bool {
		return slices.ContainsFunc(fields, func(f gqlField) bool {
			if !f.spread {
				return slices.Contains(names, f.name)
			}
			known := seen[f.name]
			seen[f.name] = true
			return !known && in(q.fragments[f.name])
		})
	}
	return in(fields)
}

const maxSelections = 50 // selections within each other

// A gqlParser reads a document of GraphQL.
type gqlParser struct {
	scanner.Scanner
	token rune
	query gqlQuery
	ok    bool
}

// next reads the next token that means something.
func (p *gqlParser) next() {
	for p.token = p.Scan(); p.token == ',' || p.token == '#' || p.token == '\ufeff'; p.token = p.Scan() {
		if p.token == '#' {
			for r := p.Next(); r != '\n' && r != scanner.EOF; r = p.Next() {
			}
		}
	}
}

// document reads all operations and fragments. If there is no operation with the name, the last one
// is the query's.
func (p *gqlParser) document(operation string) {
	found := false
	for p.next(); p.ok && p.token != scanner.EOF; {
		switch kind := p.TokenText(); {
		case p.token == '{':
			p.query.fields = p.selection(0)
		case kind == "fragment":
			p.next()
			name := p.TokenText()
			p.until('{')
			p.query.fragments[name] = p.selection(0)
		case p.token == scanner.Ident:
			p.next()
			name := p.TokenText()
			p.until('{')
			if fields := p.selection(0); !found {
				p.query.fields, found = fields, name == operation
			}
		default:
			p.ok = false
		}
	}
}

// until skips what is before a selection: the name, type, variables and directives. It reads the
// default values of variables.
func (p *gqlParser) until(end rune) {
	name, last := "", rune(0)
	for depth := 0; p.ok && (p.token != end || depth > 0); p.next() {
		switch p.token {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		case scanner.Ident:
			if last == '$' {
				name = p.TokenText()
			}
		case scanner.Int:
			if last == '=' {
				p.query.variables[name] = p.TokenText()
			}
		case scanner.EOF:
			p.ok = false
		}
		last = p.token
	}
}

// selection reads the fields between braces.
func (p *gqlParser) selection(depth int) (fields []gqlField) {
	p.ok = p.ok && depth < maxSelections
	for p.next(); p.ok && p.token != '}'; {
		switch p.token {
		case '.':
			fields = append(fields, p.spread(depth)...)
		case scanner.Ident:
			fields = append(fields, p.field(depth))
		default:
			p.ok = false
		}
	}
	p.next()
	return fields
}

// spread reads what follows three points: the name of a fragment, or a selection.
func (p *gqlParser) spread(depth int) []gqlField {
	for p.token == '.' {
		p.next()
	}
	name := p.TokenText()
	if p.token == scanner.Ident && name != "on" {
		p.next()
		p.directives()
		return []gqlField{{name: name, spread: true}}
	}
	p.until('{')
	return p.selection(depth + 1)
}

// field reads a field.
func (p *gqlParser) field(depth int) (f gqlField) {
	f.name = p.TokenText()
	if p.next(); p.token == ':' { // behind an alias
		p.next()
		f.name = p.TokenText()
		p.next()
	}
	f.args = p.arguments()
	p.directives()
	if p.token == '{' {
		f.fields = p.selection(depth + 1)
	}
	return f
}

// directives skips directives.
func (p *gqlParser) directives() {
	for p.ok && p.token == '@' {
		p.next()
		p.next()
		p.arguments()
	}
}

// arguments reads the arguments between parentheses, if there are any.
func (p *gqlParser) arguments() map[string]string {
	if p.token != '(' {
		return nil
	}
	args, name := make(map[string]string), ""
	depth, last := 1, rune(0)
	for p.next(); p.ok && depth > 0; p.next() {
		text := p.TokenText()
		switch {
		case p.token == '(' || p.token == '[' || p.token == '{':
			depth++
		case p.token == ')' || p.token == ']' || p.token == '}':
			depth--
		case p.token == scanner.EOF:
			p.ok = false
		case depth > 1:
		case last == '$':
			args[name] = "$" + text
		case last == ':' && p.token == scanner.Int:
			args[name] = text
		case p.token == scanner.Ident && last != ':':
			name = text
		}
		last = p.token
	}
	return args
}
