package answers

import (
	"net/http"
	"strings"

	"github.com/apithrottle/throttle/internal/jsonpath"
	"github.com/apithrottle/throttle/internal/retryafter"
)

// A Meter reads what the body of a response reports, while the caller reads the body: the cost of the
// request, and in a stream the event that refuses it. Write each portion to the Meter. The body is
// JSON, or a stream of server-sent events with JSON as their data, or of Amazon's messages with JSON as
// their payloads. Of several costs at one path the last counts, because language models send running
// totals. A Meter keeps at most 4 KB of the body at a time, and of an event 16 KB. It serves one
// response and is not safe for concurrent use.
type Meter struct {
	charges  []Charge
	scanner  jsonpath.Scanner
	refusals *eventFinder   // nil if no rule is of the events
	events   *eventReader   // of an event stream; nil if the body is none
	amazon   *messageReader // of Amazon's messages; nil if the body has none
}

// Meter returns a Meter for the body of r. It uses only the Method, Status and Header of r. It returns
// nil if the body adds nothing to the header: if no Charge has a Path and no Rule is of the events of
// the body, or if the body is neither JSON nor a stream, is compressed, or comes from a cache.
func (p Profile) Meter(r Response) *Meter {
	if !p.readsBodies(&r) {
		return nil
	}
	kind := mediaType(r.Header)
	if encoded(r.Header) || cached(r.Header) || kind != eventStream && kind != amazonStream && !isJSON(kind) {
		return nil
	}
	m := new(Meter)
	m.addCharges(&p, r)
	if kind != amazonStream {
		m.refusals = newEventFinder(&p, r, kind != eventStream)
	}
	switch {
	case m.charges == nil && m.refusals == nil:
		return nil
	case kind == eventStream:
		m.events = &eventReader{scanner: &m.scanner, refusals: m.refusals}
	case kind == amazonStream:
		m.amazon = &messageReader{scanner: &m.scanner}
	case m.refusals != nil:
		m.scanner.Element = m.refusals.element
	}
	m.scanner.Reset()
	return m
}

// readsBodies reports whether the profile has a charge in bodies, or a rule of the events of a response.
func (p *Profile) readsBodies(r *Response) bool {
	for i := range p.Charges {
		if c := &p.Charges[i]; c.Field.inBody() || c.Or.inBody() {
			return true
		}
	}
	for i := range p.Rules {
		if rule := &p.Rules[i]; rule.Event != "" && rule.matchesHead(r) {
			return true
		}
	}
	return false
}

// addCharges adds the charges in the body.
func (m *Meter) addCharges(p *Profile, r Response) {
	e := event{Response: r}
	for i := range p.Charges {
		c := &p.Charges[i]
		if _, known := c.inHead(&e); known || len(c.ByStatus) > 0 {
			continue
		}
		if c.Field.inBody() || c.Or.inBody() {
			m.charges = append(m.charges, *c)
			m.scanner.Queries = c.Or.addQuery(c.Field.addQuery(m.scanner.Queries, true), true)
		}
	}
}

// Write reads the next portion of the body. It never fails.
func (m *Meter) Write(p []byte) (int, error) {
	switch {
	case m.amazon != nil:
		m.amazon.write(p)
	case m.events != nil:
		m.events.write(p)
	default:
		m.scanner.Write(p)
	}
	return len(p), nil
}

// Refused returns the first event of a stream, or of a body of JSON, that a Rule with Event takes for a
// refusal. Set the Got of the event to the time at which it came, and Read it: what follows from it
// is in the Refusal of the answer. ok is false while no such event has come.
func (m *Meter) Refused() (event Response, ok bool) {
	if m.refusals == nil || !m.refusals.found {
		return Response{}, false
	}
	return m.refusals.event, true
}

// Charged returns the costs read so far, in the order of Profile.Charges. Costs of one unit are
// added up. After the end of the body the costs are final.
func (m *Meter) Charged() (as []Amount) {
	for i := range m.charges {
		c := &m.charges[i]
		field := &c.Field
		if field.Format == Elements {
			if n, ok := m.scanner.Count(field.Path); ok {
				as = addCharge(as, c, n)
			}
			continue
		}
		value, nth := m.scanner.Find(field.Path, "")
		if or, n := m.scanner.Find(c.Or.Path, ""); n > nth {
			field, value = &c.Or, or
		}
		if n, ok := field.number(field.trim(string(value)), up); ok {
			as = addCharge(as, c, n)
		}
	}
	return as
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
