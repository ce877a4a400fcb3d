package providers

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
)

// maxPrompt is the number of bytes of a prompt that are read. It exceeds maxBody because the
// model often stands after the prompt. At most one JSON token is in memory.
const maxPrompt = 16 << 20

// A prompt is the content of the JSON body of a request to a model.
type prompt struct {
	text   int64             // the length of all strings and keys, in bytes
	fields map[string]string // the strings and numbers of the top level
}

// promptOf reads a request's body, as far as it is well-formed. Without GetBody only the length is
// known.
func promptOf(req *http.Request) prompt {
	p := prompt{text: max(0, req.ContentLength), fields: map[string]string{}}
	if req.GetBody == nil {
		return p
	}
	b, err := req.GetBody()
	if err != nil {
		return p
	}
	defer b.Close()
	p.text = 0
	d := json.NewDecoder(io.LimitReader(b, maxPrompt))
	d.UseNumber()
	p.read(d)
	return p
}

// read reads JSON until its end or malformed text.
func (p *prompt) read(d *json.Decoder) {
	key, depth := "", 0 // key is the current key of the top level; empty before the next one
	for {
		token, err := d.Token()
		if err != nil {
			return
		}
		value := ""
		switch t := token.(type) {
		case json.Delim:
			if key = ""; t == '{' || t == '[' {
				depth++
			} else {
				depth--
			}
			continue
		case json.Number:
			value = t.String()
		case string:
			if value = t; isText(t) {
				p.text += int64(len(t))
			}
		}
		if depth == 1 && key == "" {
			key = value
		} else if depth == 1 {
			p.fields[key], key = value, ""
		}
	}
}

// isText reports whether s is text, rather than encoded data such as an image.
func isText(s string) bool { return len(s) < 1_000 || strings.Contains(s, " ") }

// tokens estimates the number of tokens of the text, at four characters each.
func (p prompt) tokens() int64 { return (p.text + 3) / 4 }

// number returns the number in the first field that has one, or 0.
func (p prompt) number(fields ...string) int64 {
	for _, name := range fields {
		if n, err := strconv.ParseInt(p.fields[name], 10, 64); err == nil && n > 0 {
			return min(n, algorithms.MaxLimit)
		}
	}
	return 0
}

// minute returns a tier of a rolling minute.
func minute(limit int64, unit string) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: time.Minute, Unit: unit}
}
