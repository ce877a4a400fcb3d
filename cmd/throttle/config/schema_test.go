package config_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/providers"
	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"
)

var update = flag.Bool("update", false, "write throttle.schema.json")

const schemaFile = "throttle.schema.json"

// TestSchema compares throttle.schema.json with the types of the package and their comments.
func TestSchema(t *testing.T) {
	var want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(schema(t)); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(schemaFile, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s does not have the types as they are: go test ./config -run TestSchema -update", schemaFile)
	}
}

// schema returns the schema of a file.
func schema(t *testing.T) *jsonschema.Schema {
	of := func(text string) *jsonschema.Schema {
		s := new(jsonschema.Schema)
		if err := json.Unmarshal([]byte(text), s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	root, err := jsonschema.For[config.Config](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[config.Secret]():     of(`{"type": "string", "minLength": 1}`),
		reflect.TypeFor[time.Duration]():     of(`{"type": "string", "pattern": "^[0-9.]+[a-zµ]", "examples": ["30s", "5m"]}`),
		reflect.TypeFor[config.Size]():       of(`{"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9_]+ *([KkMmGg][Bb])?$"}], "examples": ["64KB"]}`),
		reflect.TypeFor[map[string]string](): of(`{"type": "object", "additionalProperties": {"type": ["string", "number"]}}`),
		reflect.TypeFor[map[string]int64]():  of(`{"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}`),
		reflect.TypeFor[*bool]():             of(`{"type": "boolean"}`),
		reflect.TypeFor[[]string]():          of(`{"type": "array", "items": {"type": "string"}}`),
	}})
	if err != nil {
		t.Fatal(err)
	}
	comments := fieldComments(t)
	describe(root, reflect.TypeFor[config.Config](), comments)
	enum := func(s *jsonschema.Schema, values ...string) {
		s.Enum = nil
		for _, v := range values {
			s.Enum = append(s.Enum, v)
		}
	}
	root.Schema, root.Title = "https://json-schema.org/draft/2020-12/schema", "throttle.yaml"
	root.Properties["version"].Enum = []any{config.Version}
	enum(root.Properties["observability"].Properties["log"], "debug", "info", "warn", "error", "off")
	client, route := root.Properties["clients"].AdditionalProperties, root.Properties["routes"].AdditionalProperties
	enum(client.Properties["class"], "interactive", "normal", "batch")
	enum(route.Properties["class"], "interactive", "normal", "batch")
	one, members, none, least, ranks, most := 1, 64, 0.0, 1.0, 1e3, 1e6
	workers := root.Properties["store"].Properties["fallback"]
	workers.Required, workers.Properties["workers"].Minimum = []string{"workers"}, &least
	key := route.Properties["key"].Properties["max_keys"]
	key.Minimum, key.Maximum = &least, &most
	client.Properties["max_queue"].Minimum, route.Properties["max_queue"].Minimum = &least, &least
	route.Properties["query"].MinProperties = &one
	root.Properties["clients"].MinProperties, root.Properties["routes"].MinProperties = &one, &one
	root.Properties["routes"].PropertyNames = of(`{"pattern": "^/([A-Za-z0-9_.~-]+(/[A-Za-z0-9_.~-]+)*)?$"}`)
	root.Properties["store"].Not = of(`{"anyOf": [{"required": ["redis", "postgres"]}, {"required": ["redis", "file"]}, {"required": ["postgres", "file"]}]}`)
	member := route.Properties["pool"].Items
	route.Properties["pool"].MinItems, route.Properties["pool"].MaxItems = &one, &members
	member.Properties["name"].Pattern = "^[A-Za-z0-9._-]{1,100}$"
	member.Properties["rank"].Minimum, member.Properties["rank"].Maximum = &none, &ranks
	member.Properties["weight"].Minimum, member.Properties["weight"].Maximum = &least, &most
	member.Properties["query"].MinProperties = &one
	route.Properties["sticky"].OneOf = []*jsonschema.Schema{of(`{"required": ["header"]}`), of(`{"required": ["body"]}`)}
	member.OneOf = []*jsonschema.Schema{of(`{"required": ["preset"]}`), of(`{"required": ["policy"], "properties": {"with": false, "models": false, "any_host": false}}`)}
	route.OneOf = []*jsonschema.Schema{
		of(`{"required": ["to", "preset"], "properties": {"spill": false, "sticky": false}}`),
		of(`{"required": ["to", "policy"], "properties": {"with": false, "models": false, "any_host": false, "spill": false, "sticky": false}}`),
		of(`{"required": ["pool"], "properties": {"to": false, "preset": false, "policy": false, "with": false, "models": false, "any_host": false, "key": false}}`),
	}
	for _, target := range []*jsonschema.Schema{route, member} {
		target.Properties["to"].Pattern = "^https?://[^/@?#$]+(/[^@?#]*)?$"
		presets(target, of)
	}
	return root
}

// presets adds the names of presets and their parameters to the schema of a route or a member.
func presets(target *jsonschema.Schema, of func(string) *jsonschema.Schema) {
	var names []any
	one := 1
	for _, p := range providers.Presets() {
		names = append(names, p.Name)
		parameters := func() *jsonschema.Schema {
			s := of(`{"type": "object", "additionalProperties": false, "properties": {}}`)
			for _, param := range p.Parameters {
				s.Properties[param.Name] = parameter(param)
			}
			return s
		}
		with := parameters()
		for _, param := range p.Parameters {
			if param.Required() {
				with.Required = append(with.Required, param.Name)
			}
		}
		then := &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"with": with, "models": of("false")}}
		if p.Models != "" {
			then.Properties["models"] = &jsonschema.Schema{AdditionalProperties: parameters(), MinProperties: &one}
		}
		if len(with.Required) > 0 {
			then.Required = []string{"with"}
		}
		var name any = p.Name
		target.AllOf = append(target.AllOf, &jsonschema.Schema{
			If:   &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"preset": {Const: &name}}, Required: []string{"preset"}},
			Then: then,
		})
	}
	target.Properties["preset"].Enum = names
}

// parameter returns the schema of a parameter of a preset.
func parameter(p providers.Parameter) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string", Description: p.About}
	if !p.Text {
		least, most := float64(p.Min), float64(algorithms.MaxLimit)
		s.Type, s.Minimum, s.Maximum = "integer", &least, &most
	}
	return s
}

// describe adds the comments of fields, and allows no null.
func describe(s *jsonschema.Schema, t reflect.Type, comments map[string]string) {
	if i := slices.Index(s.Types, "null"); i >= 0 && len(s.Types) == 2 {
		s.Type, s.Types = s.Types[1-i], nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		describe(s, t.Elem(), comments)
	case reflect.Map:
		describe(s.AdditionalProperties, t.Elem(), comments)
	case reflect.Slice:
		describe(s.Items, t.Elem(), comments)
	case reflect.Struct:
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if p := s.Properties[name]; p != nil {
				describe(p, t.Field(i).Type, comments)
				p.Description = comments[t.Name()+"."+t.Field(i).Name]
			}
		}
	}
}

// fieldComments returns the comments of the fields of config.go, by type and field.
func fieldComments(t *testing.T) map[string]string {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := make(map[string]string)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					comments[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
				}
			}
		}
		return true
	})
	return comments
}

// TestSchemaAgrees checks that the schema accepts what Parse accepts, and refuses what Parse refuses
// for its structure.
func TestSchemaAgrees(t *testing.T) {
	resolved, err := schema(t).Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	route := func(settings string) string {
		return "routes: {/x: {to: https://api.example.com, " + settings + "}}"
	}
	pool := func(members ...string) string {
		return "routes: {/x: {pool: [{" + strings.Join(members, "}, {") + "}]}}"
	}
	for _, c := range []struct {
		text string
		ok   bool
	}{
		{string(readExample(t)), true},
		{route("policy: 5/s"), true},
		{route("preset: github, any_host: true"), true},
		{route("preset: infura, any_host: true"), true},
		{route("preset: openai, any_host: true, with: {requests: 1, tokens: 2}"), true},
		{route(`preset: openai, any_host: true, with: {requests: 1, tokens: 2}, models: {"gpt-4o*|o3": {requests: 2}}`), true},
		{route(`preset: openai, any_host: true, with: {requests: 1, tokens: 2}, models: {}`), false},
		{route(`preset: openai, any_host: true, with: {requests: 1, tokens: 2}, models: {o3: {tokns: 2}}`), false},
		{route(`preset: github, any_host: true, models: {o3: {}}`), false},
		{route("preset: hubspot, any_host: true, with: {zone: Europe/Berlin}"), true},
		{route("policy: 5/s, max_body: 1MB, timeout: 1m30s, max_wait: 500ms"), true},
		{route("policy: 5/s, max_body: 1000"), true},
		{route("policy: 5/s, cost: {requests: 2}"), true},
		{"store: {file: q.db}\n" + route("policy: 5/s"), true},
		{"store: {redis: redis://x, timeout: 2s, fallback: {workers: 8}}\n" + route("policy: 5/s"), true},
		{"store: {postgres: postgres://h/d, table: a.b, timeout: 2s, horizon: 1s, lease: 30s, poll_only: true, sync: true}\n" + route("policy: 5/s"), true},
		{"clients: {a: {token: 0123456789abcdef, policy: 5/s, budget: 9/day;budget=true, max_wait: 1s, max_queue: 5}}\n" + route("policy: 5/s"), true},
		{route("policy: 5/s, key: {header: Authorization}"), true},
		{route("policy: 5/s, key: {header: Authorization, max_keys: 5}, query: {a: b}"), true},
		{"routes: {/x: {to: \"https://a.b/bot${env:A}\", policy: 5/s}}", true},
		{pool("name: east, to: https://a.b, policy: 5/s, set: {Api-Key: x}"), true},
		{pool("name: east, to: https://a.b, policy: 5/s, no_credentials: true", "name: west, to: https://c.d, preset: github, any_host: true, rank: 1, weight: 3, quota: w, query: {key: x}"), true},
		{"routes: {/x: {spill: 1s, sticky: {body: user}, pool: [{name: a, to: https://a.b, policy: 5/s, no_credentials: true}]}}", true},

		{"{}", false},
		{"routes: {/x: {pool: []}}", false},
		{"routes: {/x: {sticky: {}, pool: [{name: a, to: https://a.b, policy: 5/s, no_credentials: true}]}}", false},
		{"routes: {/x: {sticky: {header: a, body: b}, pool: [{name: a, to: https://a.b, policy: 5/s, no_credentials: true}]}}", false},
		{"routes: {/x: {to: https://a.b, pool: [{name: a, to: https://a.b, policy: 5/s, no_credentials: true}]}}", false},
		{"routes: {/x: {policy: 5/s, pool: [{name: a, to: https://a.b, policy: 5/s, no_credentials: true}]}}", false},
		{route("policy: 5/s, spill: 1s"), false},
		{route("policy: 5/s, sticky: {header: a}"), false},
		{pool("to: https://a.b, policy: 5/s, no_credentials: true"), false},
		{pool("name: a/b, to: https://a.b, policy: 5/s, no_credentials: true"), false},
		{pool("name: a, policy: 5/s, no_credentials: true"), false},
		{pool("name: a, to: https://a.b, no_credentials: true"), false},
		{pool("name: a, to: https://a.b, policy: 5/s, preset: github, no_credentials: true"), false},
		{pool("name: a, to: https://a.b, policy: 5/s, rank: -1, no_credentials: true"), false},
		{pool("name: a, to: https://a.b, policy: 5/s, weight: 0, no_credentials: true"), false},
		{pool("name: a, to: https://a.b, preset: openai, any_host: true, with: {requests: 1}, no_credentials: true"), false},
		{"routes: {}", false},
		{"version: 2\n" + route("policy: 5/s"), false},
		{"colour: red\n" + route("policy: 5/s"), false},
		{"store: redis://x\n" + route("policy: 5/s"), false},
		{"store: {redis: redis://x, file: y}\n" + route("policy: 5/s"), false},
		{"store: {redis: redis://x, postgres: postgres://h/d}\n" + route("policy: 5/s"), false},
		{"store: {postgres: postgres://h/d, file: y}\n" + route("policy: 5/s"), false},
		{"store: {postgres: postgres://h/d, sync: maybe}\n" + route("policy: 5/s"), false},
		{"clients: {}\n" + route("policy: 5/s"), false},
		{"clients: {a: {class: batch}}\n" + route("policy: 5/s"), false},
		{"store: {fallback: 8}\n" + route("policy: 5/s"), false},
		{"store: {redis: redis://x, fallback: {}}\n" + route("policy: 5/s"), false},
		{"store: {redis: redis://x, fallback: {workers: 0}}\n" + route("policy: 5/s"), false},
		{route("policy: 5/s, key: {}"), false},
		{route("policy: 5/s, key: {header: A, max_keys: 0}"), false},
		{route("policy: 5/s, key: Authorization"), false},
		{route("policy: 5/s, query: {a: 5}"), false},
		{route("policy: 5/s, query: {}"), false},
		{route("policy: 5/s, max_queue: 0"), false},
		{"routes: {/x: {to: \"https://${env:A}/x\", policy: 5/s}}", false},
		{"clients: {a: {token: 0123456789abcdef, policy: 5}}\n" + route("policy: 5/s"), false},
		{"observability: {log: loud}\n" + route("policy: 5/s"), false},
		{"observability: {page: 1}\n" + route("policy: 5/s"), false},
		{"timeouts: {connect: 10}\n" + route("policy: 5/s"), false},
		{"routes: {/x: {policy: 5/s}}", false},
		{"routes: {/x: {to: ftp://a, policy: 5/s}}", false},
		{"routes: {/x: {to: https://u:p@a, policy: 5/s}}", false},
		{"routes: {/x: {to: https://a?b=c, policy: 5/s}}", false},
		{"routes: {x: {to: https://a, policy: 5/s}}", false},
		{"routes: {/x/: {to: https://a, policy: 5/s}}", false},
		{"routes: {/x: null}", false},
		{route("class: batch"), false},
		{route("policy: 5/s, preset: github"), false},
		{route("policy: 5"), false},
		{route("policy: 5/s, with: {requests: 1}"), false},
		{route("policy: 5/s, class: slow"), false},
		{route("policy: 5/s, max_wait: 30"), false},
		{route("policy: 5/s, max_body: 1XB"), false},
		{route("policy: 5/s, max_queue: many"), false},
		{route("policy: 5/s, set: [a]"), false},
		{route("policy: 5/s, remove: a"), false},
		{route("policy: 5/s, cost: {requests: -1}"), false},
		{route("preset: opnai, any_host: true"), false},
		{route("preset: openai, any_host: true"), false},
		{route("preset: openai, any_host: true, with: {requests: 1}"), false},
		{route("preset: openai, any_host: true, with: {requests: 0, tokens: 1}"), false},
		{route("preset: github, any_host: true, with: {requests: 1}"), false},
	} {
		var doc any
		if text, err := yaml.YAMLToJSON([]byte(c.text)); err != nil {
			t.Fatal(err)
		} else if err := json.Unmarshal(text, &doc); err != nil {
			t.Fatal(err)
		}
		if err := resolved.Validate(doc); (err == nil) != c.ok {
			t.Errorf("the schema: %v, want valid %v:\n%s", err, c.ok, c.text)
		}
		if _, err := loader().Parse([]byte(c.text), "t.yaml"); (err == nil) != c.ok {
			t.Errorf("Parse: %v, want valid %v:\n%s", err, c.ok, c.text)
		}
	}
}
