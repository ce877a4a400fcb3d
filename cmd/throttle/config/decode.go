package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// A decoder reads one file. Package yaml parses it. Its own decoder would end at the first problem
// and quote lines with secrets, so the decoder walks over the nodes itself.
type decoder struct {
	loader   Loader
	file     string
	tokens   token.Tokens
	problems []Problem
	public   map[place]bool          // the tokens that may be shown
	places   map[string]*token.Token // of the values, by field
	failed   map[string]bool         // the fields whose values have another type
	broken   bool                    // the text is not YAML
}

// mostBytes and mostDepth bound a file. Package yaml parses nested nodes recursively.
const (
	mostBytes = 1 << 20
	mostDepth = 100
)

// config reads the text of a file.
func (d *decoder) config(text []byte) *Config {
	d.public = make(map[place]bool)
	d.places = make(map[string]*token.Token)
	d.failed = make(map[string]bool)
	c := new(Config)
	if len(text) > mostBytes {
		d.report(nil, "", "the file is too large: it must have at most %d bytes", mostBytes)
		return nil
	}
	root := d.parse(text)
	if len(d.problems) > 0 {
		return nil
	}
	if root == nil {
		d.report(nil, "", `the file is empty: it needs routes, such as routes: {/github: {to: "https://api.github.com", preset: github}}`)
		return nil
	}
	d.value(root, reflect.ValueOf(c).Elem(), "")
	d.places[""] = nil // the beginning
	if !d.failed[""] {
		d.validate(c)
	}
	return c
}

// parse returns the root of the file, nil if there is none.
func (d *decoder) parse(text []byte) (root ast.Node) {
	defer func() {
		if recover() != nil {
			d.broken = true
			d.report(nil, "", "the file cannot be read as YAML")
		}
	}()
	d.tokens = lexer.Tokenize(string(text))
	for _, t := range d.tokens {
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType, token.TagType, token.DirectiveType, token.MappingKeyType:
			d.report(t, "", "anchors, aliases, merge keys, tags, directives and keys with ? are not supported: write the value out")
		}
	}
	if t := tooDeep(d.tokens); t != nil {
		d.report(t, "", "the file has more than %d levels", mostDepth)
	}
	if len(d.problems) > 0 {
		return nil
	}
	file, err := parser.Parse(d.tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.broken = true
		var syntax yaml.Error
		if errors.As(err, &syntax) {
			d.report(syntax.GetToken(), "", "this is not YAML: %s", d.masked(syntax.GetMessage()))
		} else {
			d.report(nil, "", "the file cannot be read as YAML")
		}
		return nil
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc != nil && doc.Body != nil {
			bodies = append(bodies, doc.Body)
		}
	}
	if len(bodies) > 1 {
		d.report(bodies[1].GetToken(), "", "a second document begins here: a file has one")
	}
	if len(bodies) == 0 {
		return nil
	}
	return bodies[0]
}

// tooDeep returns the token at which brackets, or the dashes of one line, have too many levels. It
// returns nil if there is none.
func tooDeep(tokens token.Tokens) *token.Token {
	brackets, dashes, line := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			brackets++
		case token.MappingEndType, token.SequenceEndType:
			brackets--
		case token.SequenceEntryType:
			if t.Position.Line != line {
				dashes, line = 0, t.Position.Line
			}
			dashes++
		}
		if max(brackets, dashes) > mostDepth {
			return t
		}
	}
	return nil
}

// masked returns a message of package yaml without the values of the file.
func (d *decoder) masked(message string) string {
	for _, t := range d.tokens {
		for _, part := range append(strings.Fields(t.Value), strings.TrimSpace(t.Value)) {
			if len(part) > 1 && !isField(part) {
				message = strings.ReplaceAll(message, part, "…")
			}
		}
	}
	return message
}

// value reads a node into a value of the Config.
func (d *decoder) value(n ast.Node, v reflect.Value, field string) {
	if t := n.GetToken(); t != nil {
		d.places[field] = t
	}
	switch v.Interface().(type) {
	case Secret:
		if text, ok := d.scalar(n, field, "a text", isText); ok {
			secret, errs := d.loader.expand(text)
			for _, e := range errs {
				d.report(n.GetToken(), field, "%s", e)
			}
			v.Set(reflect.ValueOf(secret))
		}
		return
	case time.Duration:
		if text, ok := d.plain(n, field, "a length of time such as 30s or 5m", isText); ok {
			length, err := algorithms.ParseDuration(text)
			if err != nil || length <= 0 {
				d.report(n.GetToken(), field, "is %q: it must be a length of time above zero, such as 30s or 5m", text)
			}
			v.SetInt(int64(length))
		}
		return
	case Size:
		if text, ok := d.plain(n, field, "a size such as 64KB or 1MB", isScalar); ok {
			size, err := ParseSize(text)
			if err != nil {
				d.report(n.GetToken(), field, "%v", err)
			}
			v.SetInt(int64(size))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), field)
	case reflect.Struct:
		d.structure(n, v, field)
	case reflect.Map:
		d.mapping(n, v, field)
	case reflect.Slice:
		d.sequence(n, v, field)
	case reflect.String:
		if text, ok := d.plain(n, field, "a text", isText); ok {
			v.SetString(text)
		}
	case reflect.Bool:
		if text, ok := d.plain(n, field, "true or false", isBool); ok {
			v.SetBool(text == "true")
		}
	case reflect.Int, reflect.Int64:
		if text, ok := d.plain(n, field, "a whole number", isNumber); ok {
			number, err := parseNumber(text)
			if err != nil || v.OverflowInt(number) {
				d.report(n.GetToken(), field, "is %q: it must be a whole number", text)
			}
			v.SetInt(number)
		}
	default:
		panic("config: no decoder of " + v.Type().String())
	}
}

func isText(n ast.Node) bool {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return true
	}
	return false
}

func isBool(n ast.Node) bool { _, ok := n.(*ast.BoolNode); return ok }

func isNumber(n ast.Node) bool { _, ok := n.(*ast.IntegerNode); return ok }

func isScalar(n ast.Node) bool {
	switch n.(type) {
	case *ast.FloatNode:
		return true
	}
	return isText(n) || isNumber(n) || isBool(n)
}

// scalar returns the text of a node, if it is of a kind.
func (d *decoder) scalar(n ast.Node, field, want string, is func(ast.Node) bool) (text string, ok bool) {
	if !is(n) {
		d.wrongType(n, field, want)
		return "", false
	}
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.BoolNode:
		return strconv.FormatBool(n.Value), true
	}
	return n.GetToken().Value, true
}

// plain is like scalar for a value that is not secret. It is shown in excerpts.
func (d *decoder) plain(n ast.Node, field, want string, is func(ast.Node) bool) (text string, ok bool) {
	text, ok = d.scalar(n, field, want, is)
	if ok {
		d.public[placeOf(n.GetToken())] = true
		if strings.Contains(text, "${") {
			d.report(n.GetToken(), field, "refers to a variable or a file: only token, store.redis and the values of set may")
			d.failed[field] = true
			return "", false
		}
	}
	return text, ok
}

// wrongType reports a node of another type. The value may be a misplaced secret, so it is not shown.
func (d *decoder) wrongType(n ast.Node, field, want string) {
	d.failed[field] = true
	if field == "" {
		field = "the file"
	}
	d.report(n.GetToken(), field, "is %s: it must be %s", typeName(n), want)
}

func typeName(n ast.Node) string {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return "a text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.NullNode:
		return "empty"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	}
	return "of an unknown type"
}

// pairs returns the keys and values of a mapping, without those that are there twice.
func (d *decoder) pairs(n ast.Node, field, want string) (all []*ast.MappingValueNode) {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		d.wrongType(n, field, want)
		return nil
	}
	lines := make(map[string]int)
	for _, pair := range values {
		key, ok := keyOf(pair)
		at := pair.Key.GetToken()
		if _, null := pair.Value.(*ast.NullNode); null && !isField(key) && !strings.HasPrefix(key, "/") {
			ok = false // the rest of a secret behind a comma looks like this
		}
		if !ok || pair.Value == nil {
			d.report(at, field, "has a key that is not a name, or a key without a value: write name: value")
			continue
		}
		d.public[placeOf(at)] = true
		if line, twice := lines[key]; twice {
			d.report(at, join(field, key), "is there twice, first in line %d: remove one", line)
			continue
		}
		lines[key] = at.Position.Line
		all = append(all, pair)
	}
	return all
}

// keyName matches the keys of a file: names of fields, clients, headers and units, and prefixes.
var keyName = regexp.MustCompile(`^\$?[A-Za-z0-9/_.~-]{1,100}$`)

// keyOf returns the key of a pair. A key that is not a name may be a misplaced secret, so it is not
// shown.
func keyOf(pair *ast.MappingValueNode) (key string, ok bool) {
	switch k := pair.Key.(type) {
	case *ast.StringNode:
		key = k.Value
	case *ast.IntegerNode, *ast.BoolNode, *ast.FloatNode:
		key = k.GetToken().Value
	}
	return key, keyName.MatchString(key)
}

func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

// structure reads a mapping into a struct. A key that is no field is a problem.
func (d *decoder) structure(n ast.Node, v reflect.Value, field string) {
	fields := fieldsOf(v.Type())
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(fields)), func(name string) bool { return name[0] == '$' })
	for _, pair := range d.pairs(n, field, "a mapping of "+list(names, "and")) {
		key, _ := keyOf(pair)
		if i, ok := fields[key]; ok {
			d.value(pair.Value, v.Field(i), join(field, key))
			d.placeAtKey(pair, join(field, key))
			continue
		}
		fix := "the fields are " + list(names, "and")
		if near := nearest(key, names); near != "" {
			fix = "did you mean " + near + "?"
		}
		d.report(pair.Key.GetToken(), join(field, key), "is not a field: %s", fix)
	}
}

// placeAtKey makes the key the place of a mapping.
func (d *decoder) placeAtKey(pair *ast.MappingValueNode, field string) {
	switch pair.Value.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		d.places[field] = pair.Key.GetToken()
	}
}

// fieldsOf returns the indices of a struct's fields by their names in the file.
func fieldsOf(t reflect.Type) map[string]int {
	fields := make(map[string]int)
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = i
		}
	}
	return fields
}

// isField reports whether a text is the name of any field.
func isField(text string) bool { _, ok := allFields()[text]; return ok }

var allFields = sync.OnceValue(func() map[string]int {
	all := make(map[string]int)
	for _, v := range []any{Config{}, Store{}, Route{}, Client{}, Timeouts{}, Observability{}} {
		maps.Copy(all, fieldsOf(reflect.TypeOf(v)))
	}
	return all
})

// mapping reads a mapping of any keys.
func (d *decoder) mapping(n ast.Node, v reflect.Value, field string) {
	v.Set(reflect.MakeMap(v.Type()))
	for _, pair := range d.pairs(n, field, "a mapping") {
		key, _ := keyOf(pair)
		to := join(field, key)
		element := reflect.New(v.Type().Elem()).Elem()
		if v.Type() == reflect.TypeFor[map[string]string]() { // parameters of presets
			if text, ok := d.plain(pair.Value, to, "a number or a text", isScalar); ok {
				element.SetString(text)
			}
			d.places[to] = pair.Value.GetToken()
		} else {
			d.value(pair.Value, element, to)
			d.placeAtKey(pair, to)
		}
		v.SetMapIndex(reflect.ValueOf(key), element)
	}
}

// sequence reads a list.
func (d *decoder) sequence(n ast.Node, v reflect.Value, field string) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		d.wrongType(n, field, "a list such as [a, b]")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(list.Values), len(list.Values)))
	for i, element := range list.Values {
		d.value(element, v.Index(i), fmt.Sprintf("%s[%d]", field, i))
	}
}

// bad reports a problem of a field, or of the nearest field around it that is in the file.
func (d *decoder) bad(field, format string, args ...any) {
	at, around := d.places[field], field
	for at == nil && around != "" {
		cut := max(0, strings.LastIndexAny(around, ".["))
		around = around[:cut]
		at = d.places[around]
	}
	d.report(at, field, format, args...)
}

// ParseSize reads a number of bytes: 65536, "64KB", "1MB". KB is 1024 bytes.
func ParseSize(text string) (Size, error) {
	digits := strings.TrimSpace(text)
	factor := int64(1)
	for i, unit := range []string{"KB", "MB", "GB"} {
		if n := len(digits) - len(unit); n >= 0 && strings.EqualFold(digits[n:], unit) {
			digits, factor = strings.TrimSpace(digits[:n]), int64(1)<<(10*(i+1))
			break
		}
	}
	n, err := parseNumber(digits)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("is %q: it must be a number of bytes, such as 65536, 64KB or 1MB", text)
	}
	return Size(n * factor), nil
}

// String returns the size as ParseSize reads it.
func (s Size) String() string {
	for _, unit := range []struct {
		name  string
		bytes Size
	}{{"GB", 1 << 30}, {"MB", 1 << 20}, {"KB", 1 << 10}} {
		if s >= unit.bytes && s%unit.bytes == 0 {
			return strconv.FormatInt(int64(s/unit.bytes), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
