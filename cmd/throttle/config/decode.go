package config

import (
	"cmp"
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
	"github.com/apithrottle/throttle/cmd/throttle/internal/alike"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// A decoder reads one file. Package yaml parses it. Its own strict decoder would end at the first
// problem and quote lines with secrets, so the decoder reads the nodes into the Config itself.
type decoder struct {
	loader   Loader
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
	d.public, d.places, d.failed = make(map[place]bool), make(map[string]*token.Token), make(map[string]bool)
	if len(text) > mostBytes {
		d.report(nil, "", "the file is too large: it must have at most %d bytes", mostBytes)
		return nil
	}
	root := d.parse(text)
	if root == nil || len(d.problems) > 0 {
		if len(d.problems) == 0 {
			d.report(nil, "", `the file is empty: it needs routes, such as routes: {/github: {to: "https://api.github.com", preset: github}}`)
		}
		return nil
	}
	c := new(Config)
	d.value(root, nil, reflect.ValueOf(c).Elem(), "")
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
	d.checkTokens()
	if len(d.problems) > 0 {
		return nil
	}
	file, err := parser.Parse(d.tokens, 0, parser.AllowDuplicateMapKey())
	var syntax yaml.Error
	switch {
	case errors.As(err, &syntax):
		d.broken = true
		d.report(syntax.GetToken(), "", "this is not YAML: %s", d.masked(syntax.GetMessage()))
		return nil
	case err != nil:
		panic(err) // see above
	}
	for _, doc := range file.Docs {
		switch {
		case doc == nil || doc.Body == nil:
		case root != nil:
			d.report(doc.Body.GetToken(), "", "a second document begins here: a file has one")
			return nil
		default:
			root = doc.Body
		}
	}
	return root
}

// checkTokens reports tokens of what a file must not have: what is not supported, and brackets, or
// dashes in one line, of too many levels.
func (d *decoder) checkTokens() {
	brackets, dashes, line := 0, 0, 0
	for _, t := range d.tokens {
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType, token.TagType, token.DirectiveType, token.MappingKeyType:
			d.report(t, "", "anchors, aliases, merge keys, tags, directives and keys with ? are not supported: write the value out")
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
			d.report(t, "", "the file has more than %d levels", mostDepth)
			return
		}
	}
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

// An argument is a value of Route.With: a text, or another scalar.
type argument string

// A kind is a type of scalars: what the file may have for it, and how a text becomes its value.
type kind struct {
	want  string
	nodes []ast.NodeType
	set   func(v reflect.Value, text string) error // nil for a Secret
}

var (
	texts   = []ast.NodeType{ast.StringType, ast.LiteralType}
	scalars = []ast.NodeType{ast.StringType, ast.LiteralType, ast.IntegerType, ast.FloatType, ast.BoolType}
	whole   = kind{"a whole number", []ast.NodeType{ast.IntegerType}, setNumber}
)

var kinds = map[reflect.Type]kind{
	reflect.TypeFor[Secret]():        {"a text", texts, nil},
	reflect.TypeFor[string]():        {"a text", texts, setText},
	reflect.TypeFor[argument]():      {"a number or a text", scalars, setText},
	reflect.TypeFor[bool]():          {"true or false", []ast.NodeType{ast.BoolType}, setBool},
	reflect.TypeFor[int]():           whole,
	reflect.TypeFor[int64]():         whole,
	reflect.TypeFor[Size]():          {"a size such as 64KB or 1MB", scalars, setSize},
	reflect.TypeFor[time.Duration](): {"a length of time such as 30s or 5m", texts, setDuration},
}

func setText(v reflect.Value, text string) error { v.SetString(text); return nil }

func setBool(v reflect.Value, text string) error { v.SetBool(text == "true"); return nil }

func setNumber(v reflect.Value, text string) error {
	number, err := parseNumber(text)
	if err != nil || v.OverflowInt(number) {
		return fmt.Errorf("is %q: it must be a whole number", text)
	}
	v.SetInt(number)
	return nil
}

func setSize(v reflect.Value, text string) error {
	size, err := ParseSize(text)
	v.SetInt(int64(size))
	return err
}

func setDuration(v reflect.Value, text string) error {
	length, err := algorithms.ParseDuration(text)
	if err != nil || length <= 0 {
		return fmt.Errorf("is %q: it must be a length of time above zero, such as 30s or 5m", text)
	}
	v.SetInt(int64(length))
	return nil
}

// value reads a node into a value of the Config. If the node has a key and is a mapping, its place is
// that of the key.
func (d *decoder) value(n ast.Node, key *token.Token, v reflect.Value, field string) {
	if d.places[field] = n.GetToken(); key != nil && typeNames[n.Type()] == "a mapping" {
		d.places[field] = key
	}
	if k, ok := kinds[v.Type()]; ok {
		d.scalar(n, k, v, field)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, key, v.Elem(), field)
	case reflect.Struct:
		d.structure(n, v, field)
	case reflect.Map:
		d.mapping(n, v, field)
	case reflect.Slice:
		d.sequence(n, v, field)
	default:
		panic("config: no decoder of " + v.Type().String())
	}
}

// scalar reads a text, a number or a boolean. A value that cannot be secret is shown in excerpts.
func (d *decoder) scalar(n ast.Node, k kind, v reflect.Value, field string) {
	if !slices.Contains(k.nodes, n.Type()) {
		d.wrongType(n, field, k.want)
		return
	}
	text := n.GetToken().Value
	switch n := n.(type) {
	case *ast.StringNode:
		text = n.Value
	case *ast.LiteralNode:
		text = n.Value.Value
	case *ast.BoolNode:
		text = strconv.FormatBool(n.Value)
	}
	if k.set == nil {
		v.Set(reflect.ValueOf(d.expand(d.loader, field, text)))
		return
	}
	refers := strings.Contains(text, "${")
	if address := strings.HasPrefix(field, "routes.") && strings.HasSuffix(field, ".to"); !refers || !address {
		d.public[placeOf(n.GetToken())] = true
		if refers {
			d.failed[field] = true
			d.bad(field, "refers to a variable or a file: only to, token, control_token, store.redis, store.postgres and the values of set and query may")
			return
		}
	}
	if err := k.set(v, text); err != nil {
		d.bad(field, "%v", err)
	}
}

// expand returns a text with its references replaced, and reports what is wrong with them.
func (d *decoder) expand(l Loader, field, text string) Secret {
	secret, errs := l.expand(text)
	for _, e := range errs {
		d.bad(field, "%s", e)
	}
	return secret
}

// wrongType reports a node of another type. The value may be a misplaced secret, so it is not shown.
func (d *decoder) wrongType(n ast.Node, field, want string) {
	d.failed[field] = true
	name := cmp.Or(typeNames[n.Type()], "of an unknown type")
	d.report(n.GetToken(), cmp.Or(field, "the file"), "is %s: it must be %s", name, want)
}

var typeNames = map[ast.NodeType]string{
	ast.StringType: "a text", ast.LiteralType: "a text",
	ast.IntegerType: "a number", ast.FloatType: "a number", ast.InfinityType: "a number", ast.NanType: "a number",
	ast.BoolType: "true or false", ast.NullType: "empty", ast.SequenceType: "a list",
	ast.MappingType: "a mapping", ast.MappingValueType: "a mapping",
}

// keyName matches the keys of a file: names of fields, clients, headers and units, and prefixes. A key
// that is not a name may be a misplaced secret, so it is not shown.
var keyName = regexp.MustCompile(`^\$?[A-Za-z0-9/_.~-]{1,100}$`)

// noWildcards returns a key without the characters that only patterns of models have.
func noWildcards(field, key string) string {
	if strings.HasPrefix(field, "routes.") && strings.HasSuffix(field, ".models") {
		key = strings.NewReplacer("*", "_", "?", "_", "|", "_", ":", "_", "[", "_", "]", "_", " ", "_").Replace(key)
	}
	return key
}

// pairs calls read with the keys and values of a mapping, but for those that are there twice.
func (d *decoder) pairs(n ast.Node, field, want string, read func(key string, at *token.Token, value ast.Node)) {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		d.wrongType(n, field, want)
	}
	lines := make(map[string]int)
	for _, pair := range values {
		at, key := pair.Key.GetToken(), ""
		switch k := pair.Key.(type) {
		case *ast.StringNode:
			key = k.Value
		case *ast.IntegerNode, *ast.BoolNode, *ast.FloatNode:
			key = at.Value
		}
		_, null := pair.Value.(*ast.NullNode)
		// The rest of a secret behind a comma looks like a key without a value.
		switch rest := null && !isField(key) && !strings.HasPrefix(key, "/"); {
		case rest || pair.Value == nil || !keyName.MatchString(noWildcards(field, key)):
			d.report(at, field, "has a key that is not a name, or a key without a value: write name: value")
			continue
		case lines[key] > 0:
			d.report(at, join(field, key), "is there twice, first in line %d: remove one", lines[key])
		default:
			lines[key] = at.Position.Line
			read(key, at, pair.Value)
		}
		d.public[placeOf(at)] = true
	}
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
	d.pairs(n, field, "a mapping of "+list(names, "and"), func(key string, at *token.Token, value ast.Node) {
		if i, ok := fields[key]; ok {
			d.value(value, at, v.Field(i), join(field, key))
			if fix := empty[v.Type().Name()+"."+key]; fix != "" && v.Field(i).Len() == 0 && !d.failed[join(field, key)] {
				d.bad(join(field, key), "is empty: %s, or remove the field", fix)
			}
			return
		}
		d.report(at, join(field, key), "is not a field: %s", alike.Suggest(key, names, "the fields are "+list(names, "and")))
	})
}

// empty says what to do about fields that are there and empty.
var empty = map[string]string{
	"Config.public_url":    "write https://HOST",
	"Config.clients":       "name a client",
	"Store.file":           "name a file",
	"Store.table":          "name a table",
	"Route.models":         "name a model, such as gpt-4o",
	"Route.budget":         "write a budget such as 1000/day;budget=true",
	"Route.query":          "write {NAME: VALUE}",
	"Prices.file":          "name a file",
	"Prices.unknown_model": `write {input: "3", output: "15"}`,
	"Route.pool":           "name its members",
	"Member.models":        "name a model, such as gpt-4o",
	"Member.query":         "write {NAME: VALUE}",
	"Member.quota":         "name the quota",
	"Client.policy":        "write a policy such as 5/s",
	"Client.budget":        "write a budget such as 1000/day;budget=true",
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
	for _, v := range []any{Config{}, Store{}, Fallback{}, Route{}, Member{}, Sticky{}, Key{}, Prices{}, Client{}, Timeouts{}, Observability{}} {
		maps.Copy(all, fieldsOf(reflect.TypeOf(v)))
	}
	return all
})

// mapping reads a mapping of any keys.
func (d *decoder) mapping(n ast.Node, v reflect.Value, field string) {
	v.Set(reflect.MakeMap(v.Type()))
	of := v.Type().Elem()
	if of.Kind() == reflect.String {
		of = reflect.TypeFor[argument]()
	}
	d.pairs(n, field, "a mapping", func(key string, at *token.Token, value ast.Node) {
		element := reflect.New(of).Elem()
		d.value(value, at, element, join(field, key))
		v.SetMapIndex(reflect.ValueOf(key), element.Convert(v.Type().Elem()))
	})
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
		d.value(element, nil, v.Index(i), fmt.Sprintf("%s[%d]", field, i))
	}
}

// bad reports a problem of a field, or of the nearest field around it that is in the file.
func (d *decoder) bad(field, format string, args ...any) {
	at, around := d.places[field], field
	for at == nil && around != "" {
		around = around[:max(0, strings.LastIndexAny(around, ".["))]
		at = d.places[around]
	}
	d.report(at, field, format, args...)
}

// sizes are the units of a Size, each 1024 times the one before.
var sizes = []string{"KB", "MB", "GB"}

// ParseSize reads a number of bytes: 65536, "64KB", "1MB". KB is 1024 bytes.
func ParseSize(text string) (Size, error) {
	digits, factor := strings.TrimSpace(text), int64(1)
	for i, unit := range sizes {
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
	for i, unit := range slices.Backward(sizes) {
		if bytes := Size(1) << (10 * (i + 1)); s >= bytes && s%bytes == 0 {
			return strconv.FormatInt(int64(s/bytes), 10) + unit
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
