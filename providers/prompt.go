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

// mostPrompt is how much of a prompt is looked at, in bytes: the model is often named
// behind it, so this is more than of other bodies. No more than a token of it is kept.
const mostPrompt = 16 << 20

// A prompt is what the JSON body of a request to a model tells.
type prompt struct {
	text   int64             // characters of its strings, keys too, in bytes
	fields map[string]string // strings and numbers of the top level
}

// promptOf reads a request's body; what can't be read is left out. Without GetBody all
// that is known is its length.
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
	d := json.NewDecoder(io.LimitReader(b, mostPrompt))
	d.UseNumber()
	p.read(d)
	return p
}

// read takes the tokens of a JSON text until it ends or is malformed.
func (p *prompt) read(d *json.Decoder) {
	key, depth := "", 0 // key is of the top level, "" where one is to come
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

// isText is false for images and the like, written as letters and digits.
func isText(s string) bool { return len(s) < 1_000 || strings.Contains(s, " ") }

// tokens is the number of tokens of the text, which have four characters or so.
func (p prompt) tokens() int64 { return (p.text + 3) / 4 }

// number is that of the first of the fields that is there, 0 if none is.
func (p prompt) number(fields ...string) int64 {
	for _, name := range fields {
		if n, err := strconv.ParseInt(p.fields[name], 10, 64); err == nil && n > 0 {
			return min(n, algorithms.MaxLimit)
		}
	}
	return 0
}

// minute is a tier of so many units in any minute.
func minute(limit int64, unit string) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: time.Minute, Unit: unit}
}
