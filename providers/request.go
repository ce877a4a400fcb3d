package providers

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
)

// compiled is the day when the pages were read, unless a scope names another day.
const compiled = "2026-11-22"

// every returns a scope for all requests. The delivery delay depends on the caller's network, so
// the guard is AutoGuard, which measures it.
func every(name, page string, tiers ...throttle.Tier) Scope {
	return Scope{
		Name: name, Page: page, Read: compiled, preset: slices.Clone(tiers),
		Policy: throttle.Policy{Tiers: tiers, Guard: throttle.AutoGuard},
	}
}

// some returns a scope for the requests that count according to key.
func some(name, page string, key func(*http.Request) (string, bool), tiers ...throttle.Tier) Scope {
	s := every(name, page, tiers...)
	s.Key = key
	return s
}

// readOn returns p with the day when the pages of its limits were read.
func (p Provider) readOn(day string) Provider {
	for _, scopes := range [][]Scope{p.Scopes, p.Sockets} {
		for i := range scopes {
			scopes[i].Read = day
		}
	}
	return p
}

// socket returns a limit of WebSocket connections or messages, as one of the Sockets of the provider.
// Nothing reports when a message arrives, so that AutoGuard can't measure it. TCP keeps messages in order,
// but one that is lost is sent again after 200 ms or more, and those behind it arrive with it. The guard is
// therefore a quarter of the window, 250 ms for a limit of a second, and at most a second.
func socket(provider, name, page string, per Per, tiers ...throttle.Tier) Scope {
	s := every(name, page, tiers...)
	s.Per, s.Policy.Name, s.Policy.Guard = per, provider+"/"+name, time.Second
	for _, t := range tiers {
		s.Policy.Guard = min(s.Policy.Guard, t.Window/4)
	}
	return s
}

// readOn returns the scope with the day when its page was read.
func (s Scope) readOn(day string) Scope {
	s.Read = day
	return s
}

// byAddress returns a scope that counts the requests of an IP address, of all accounts.
func byAddress(s Scope) Scope {
	s.Per = PerAddress
	return s
}

// when returns the Key of a scope with one quota for the requests for which counts is true.
func when(counts func(*http.Request) bool) func(*http.Request) (string, bool) {
	return func(req *http.Request) (string, bool) { return "", counts(req) }
}

// hostOf returns the host of a request in lower case, without its port and the dot of a full domain
// name.
func hostOf(req *http.Request) string {
	return strings.TrimSuffix(strings.ToLower(req.URL.Hostname()), ".")
}

const maxBody = 64 << 10 // bytes of a request's body that are read

// body returns the beginning of the request's body, or nil if the request has no GetBody.
func body(req *http.Request) []byte {
	if req.GetBody == nil {
		return nil
	}
	b, err := req.GetBody()
	if err != nil {
		return nil
	}
	defer b.Close()
	text, err := io.ReadAll(io.LimitReader(b, maxBody))
	if err != nil {
		return nil
	}
	return text
}

// decode reads the request's JSON body into v. It returns false if there is no body, or if the body
// is malformed or longer than maxBody.
func decode(req *http.Request, v any) bool {
	b := body(req)
	return len(b) > 0 && json.Unmarshal(b, v) == nil
}

// anonymous returns a name for a text that must not be stored as it is.
func anonymous(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16] }

// form returns the request's parameters: those in its query, then those in its body, which is a form,
// in parts or a JSON object. A list or an object in JSON, which has names for others, is its JSON text.
// What lies beyond maxBody is missing, and so is JSON that is longer.
func form(req *http.Request) url.Values {
	all := req.URL.Query()
	for name, values := range sent(req.Header.Get("Content-Type"), body(req)) {
		all[name] = append(all[name], values...)
	}
	return all
}

// sent returns the parameters in a body. A body that begins with a brace is JSON, whatever its type,
// because a text in it may look like a form.
func sent(contentType string, body []byte) url.Values {
	kind, params, _ := mime.ParseMediaType(contentType)
	switch text := bytes.TrimSpace(body); {
	case kind == "multipart/form-data":
		return parts(body, params["boundary"])
	case len(text) > 0 && text[0] == '{':
		return members(text)
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil
	}
	return values
}

// members returns the members of a JSON object that are not null.
func members(text []byte) url.Values {
	var all map[string]json.RawMessage
	if json.Unmarshal(text, &all) != nil {
		return nil
	}
	values := url.Values{}
	for name, raw := range all {
		value := string(raw)
		if value == "null" {
			continue
		}
		if raw[0] == '"' {
			_ = json.Unmarshal(raw, &value)
		}
		values.Set(name, value)
	}
	return values
}

// parts returns the parts of a multipart body that are no files, up to one that is cut off.
func parts(body []byte, boundary string) url.Values {
	values := url.Values{}
	for r := multipart.NewReader(bytes.NewReader(body), boundary); boundary != ""; {
		p, err := r.NextPart()
		if err != nil {
			break
		}
		value, err := io.ReadAll(p)
		if err != nil {
			break
		}
		if p.FileName() == "" {
			values.Add(p.FormName(), string(value))
		}
	}
	return values
}

// param returns a parameter of a request, as form does, that is a name or a number: no list and no
// object. It returns "" if there is none. A longer text than any name has a name of its own instead,
// because quotas keep their keys.
func param(req *http.Request, name string) string {
	const longest = 128 // bytes
	value := form(req).Get(name)
	switch {
	case strings.HasPrefix(value, "{"), strings.HasPrefix(value, "["):
		return ""
	case len(value) > longest:
		return anonymous(value)
	}
	return value
}

// listed returns the number of elements of a list: JSON text, or a parameter for each of its elements,
// such as "orders[0][type]". It returns 0 if there is no such list.
func listed(params url.Values, name string) int64 {
	var list []json.RawMessage
	if json.Unmarshal([]byte(params.Get(name)), &list) == nil {
		return int64(len(list))
	}
	indexes := map[string]bool{}
	for key := range params {
		if index, is := strings.CutPrefix(key, name+"["); is {
			index, _, _ = strings.Cut(index, "]")
			indexes[index] = true
		}
	}
	return int64(len(indexes))
}

// table returns the number of each name, from lists of the names that share a number.
func table(names map[int]string) map[string]int {
	numbers := make(map[string]int)
	for n, list := range names {
		for name := range strings.FieldsSeq(list) {
			numbers[name] = n
		}
	}
	return numbers
}

// inHeaders returns a quota whose limit and remaining count are in headers.
func inHeaders(unit, limit, remaining string, reset answers.Field) answers.Quota {
	return answers.Quota{Unit: unit, Limit: answers.Field{Header: limit}, Remaining: answers.Field{Header: remaining}, Reset: reset}
}

// within returns a quota with its window.
func within(window time.Duration, q answers.Quota) answers.Quota {
	q.Window = window
	return q
}

// named returns a quota with its name.
func named(name string, q answers.Quota) answers.Quota {
	q.Name = name
	return q
}

// bucket returns a tier of a token bucket that gains limit in each window and holds size.
func bucket(limit int64, window time.Duration, size int64) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: window, Algorithm: throttle.TokenBucket, Burst: size}
}

// minute returns a tier of a rolling minute.
func minute(limit int64, unit string) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: time.Minute, Unit: unit}
}

// follows returns a tier that takes over the limit that responses name, from least to most. If least is
// 0, from a tenth of the tier's own.
func follows(least, most int64, t throttle.Tier) throttle.Tier {
	t.Follow = throttle.Follow{Least: least, Most: most}
	return t
}

// tenfold returns a tier that takes over the limit that responses name, up to most or to ten times its own,
// whichever is more. It is for limits that an account is given without a page that names the highest.
func tenfold(most int64, t throttle.Tier) throttle.Tier {
	return follows(0, min(max(most, 10*min(max(t.Limit, t.Burst), algorithms.MaxLimit)), algorithms.MaxLimit), t)
}

// fixed returns a tier of fixed windows, whose boundaries follow the provider's clock.
func fixed(limit int64, window time.Duration, unit string) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: window, Unit: unit, Algorithm: throttle.FixedWindow, Phase: throttle.UnknownPhase}
}

// noLimit is the tier of a scope that only refusals pause. It counts a unit of which every request
// takes 0, as costsNothing says.
var noLimit = throttle.Tier{Limit: 1, Window: time.Second, Unit: "nothing", Algorithm: throttle.TokenBucket}

func costsNothing(*http.Request) throttle.Cost { return throttle.Cost{"nothing": 0} }

// costsOne returns a Cost of one unit, beside its request, of each request that counts according to key.
func costsOne(unit string, key func(*http.Request) (string, bool)) func(*http.Request) throttle.Cost {
	return func(req *http.Request) throttle.Cost {
		if _, counts := key(req); !counts {
			return nil
		}
		return throttle.Cost{unit: 1}
	}
}

// headerMillis returns the time in a header, in milliseconds since 1970, or the zero time if there
// is none.
func headerMillis(req *http.Request, name string) time.Time {
	n, err := strconv.ParseInt(req.Header.Get(name), 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(n)
}
