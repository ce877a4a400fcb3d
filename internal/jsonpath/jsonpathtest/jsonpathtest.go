// Package jsonpathtest finds values in JSON with encoding/json. Tests compare its results with
// those of package jsonpath.
package jsonpathtest

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Values returns every value of doc at the path. The document must be valid.
func Values(doc []byte, path string) []string {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	return values(d, path)
}

func values(d *json.Decoder, path string) (vs []string) {
	t, _ := d.Token()
	delim, nested := t.(json.Delim)
	if !nested {
		if path == "" {
			return scalar(t)
		}
		return nil
	}
	step, rest, _ := strings.Cut(path, ".")
	for d.More() {
		here := step == "*"
		if delim == '{' {
			key, _ := d.Token()
			here = path != "" && (key == step || step == "*")
		}
		if found := values(d, rest); here {
			vs = append(vs, found...)
		}
	}
	d.Token()
	return vs
}

// scalar returns the text of a boolean, number or string, and none for null.
func scalar(t json.Token) []string {
	switch v := t.(type) {
	case bool:
		return []string{map[bool]string{true: "true", false: "false"}[v]}
	case json.Number:
		return []string{v.String()}
	case string:
		return []string{v}
	}
	return nil
}
