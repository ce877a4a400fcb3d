package answers

import (
	"net/http"
	"strings"

	"github.com/apithrottle/throttle/internal/jsonpath"
	"github.com/apithrottle/throttle/internal/retryafter"
)

// Peeks reports whether Read needs the beginning of the body of a response with this status and
// header. Reading a body early takes time and memory. Peeks reports false for compressed bodies,
// event streams and upgraded connections, and, if the profile reads values only by Path, for bodies
// whose Content-Type is not JSON.
func (p Profile) Peeks(status int, h http.Header) bool {
	kind := mediaType(h)
	if encoded(h) || kind == eventStream || status == http.StatusSwitchingProtocols {
		return false
	}
	qs, whole := p.queries(status, h)
	return whole || len(qs) > 0 && (kind == "" || isJSON(kind))
}

// queries returns the queries for the body of a response with this status and header. It reports
// in whole whether a rule matches text anywhere in the body.
func (p *Profile) queries(status int, h http.Header) (qs []jsonpath.Query, whole bool) {
	for i := range p.Quotas {
		for _, f := range p.Quotas[i].fields() {
			qs = f.addQuery(qs, false)
		}
	}
	refused := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
	for i := range p.Rules {
		rule := &p.Rules[i]
		if !rule.matchesHead(status, h) {
			continue
		}
		refused = refused || rule.Kind != Passed
		for j := range rule.Delay {
			qs = rule.Delay[j].addQuery(qs, false)
		}
		qs = rule.Asked.addQuery(qs, false)
		if rule.Text == "" && rule.Method == "" {
			break // this rule matches, whatever the body: later rules don't count
		}
		switch {
		case rule.Text == "":
		case rule.Path == "":
			whole = true
		default:
			qs = append(qs, jsonpath.Query{Path: rule.Path, Pattern: rule.Text})
		}
	}
	for _, fields := range [...][]Field{p.RetryAfter, p.Reasons} {
		for i := range fields {
			if refused {
				qs = fields[i].addQuery(qs, false)
			}
		}
	}
	return qs, whole
}

// cached reports whether the response comes from a cache. Its values are out of date.
func cached(h http.Header) bool {
	age, ok := retryafter.Seconds(h.Get("Age"))
	return ok && age > 0
}

const eventStream = "text/event-stream"

// mediaType returns the media type of the body, or "" if there is no Content-Type.
func mediaType(h http.Header) string {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.Trim(kind, " \t"))
}

// isJSON reports whether a media type is JSON, such as application/json, application/problem+json
// and application/x-amz-json-1.1.
func isJSON(media string) bool {
	return strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json") || strings.Contains(media, "-json-")
}

// encoded reports whether the body is compressed.
func encoded(h http.Header) bool {
	coding := h.Get("Content-Encoding")
	return coding != "" && !strings.EqualFold(coding, "identity")
}
