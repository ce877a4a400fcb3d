package answers

import (
	"net/http"
	"strings"

	"github.com/apithrottle/throttle/internal/retryafter"
)

// Peeks reports whether Read could learn more from a response with such a status and
// header if it were given the beginning of the body: to see it takes time and memory. A
// compressed body, a stream of events and an upgraded connection tell nothing; nor, where
// values are wanted by their Path, does what says that it isn't JSON.
func (p Profile) Peeks(status int, h http.Header) bool {
	kind := media(h)
	if encoded(h) || kind == eventStream || status == http.StatusSwitchingProtocols {
		return false
	}
	wants, whole := p.wants(status, h)
	return whole || len(wants) > 0 && (kind == "" || isJSON(kind))
}

// wants lists what is looked for in the body of such a response: values at paths, and,
// if whole, texts anywhere.
func (p *Profile) wants(status int, h http.Header) (ws []want, whole bool) {
	for i := range p.Quotas {
		for _, f := range p.Quotas[i].fields() {
			ws = f.want(ws, false)
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
			ws = rule.Delay[j].want(ws, false)
		}
		if ws = rule.Asked.want(ws, false); rule.Text == "" {
			break // it matches, so that none behind it counts
		}
		if rule.Path == "" {
			whole = true
		} else {
			ws = append(ws, want{path: rule.Path, text: rule.Text})
		}
	}
	for i := range p.RetryAfter {
		if refused {
			ws = p.RetryAfter[i].want(ws, false)
		}
	}
	return ws, whole
}

// cached reports whether the response is an old one from a cache, which tells of old times.
func cached(h http.Header) bool {
	age, ok := retryafter.Seconds(h.Get("Age"))
	return ok && age > 0
}

const eventStream = "text/event-stream"

// media is the type of the body, "" if it is not told.
func media(h http.Header) string {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.Trim(kind, " \t"))
}

// isJSON knows application/json, application/problem+json and application/x-amz-json-1.1.
func isJSON(media string) bool {
	return strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json") || strings.Contains(media, "-json-")
}

func encoded(h http.Header) bool {
	coding := h.Get("Content-Encoding")
	return coding != "" && !strings.EqualFold(coding, "identity")
}
