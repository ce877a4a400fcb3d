package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/ietf"
	"github.com/apithrottle/throttle/answers/profiles"
	"github.com/apithrottle/throttle/providers"
)

// An inspectResult is what the last response of an input implies.
type inspectResult struct {
	Status  int      `json:"status"`
	Host    string   `json:"host,omitempty"`
	Presets []string `json:"presets"` // of the host

	Readings []readingResult `json:"readings"`

	Refused bool     `json:"refused"`
	Wait    *float64 `json:"wait_seconds,omitempty"`
	Reason  string   `json:"reason,omitempty"`

	// Unread are headers that look like limits and that no source read.
	Unread []string `json:"unread"`

	// Learn is a policy that finds its rate by refusals, as --policy takes it, if there were some and no
	// response names a limit.
	Learn string `json:"learn,omitempty"`
}

// A readingResult is the state of one quota, as a source reads it.
type readingResult struct {
	Source    string   `json:"source"`
	Ambiguous bool     `json:"ambiguous"` // other APIs have the same headers with other meanings
	Name      string   `json:"name,omitempty"`
	Unit      string   `json:"unit,omitempty"`
	Limit     int64    `json:"limit,omitempty"`
	Remaining *int64   `json:"remaining,omitempty"`
	Window    float64  `json:"window_seconds,omitempty"`
	Reset     *float64 `json:"reset_seconds,omitempty"`
	Policy    string   `json:"policy,omitempty"` // as --policy takes it
}

func (c *command) inspect() *cobra.Command {
	var host string
	cmd := &cobra.Command{
		Use:   "inspect [FILE] [--host HOST]",
		Short: "Show which limits the headers of a response report",
		Long: `Show which limits the headers of a response report: how much is left, when it
resets, and the policy. The input is the output of curl -i or curl -I, or a HAR, in
a file or on the standard input. Of several responses inspect reads the last one,
and compares it with the others: if they name other limits, the policy follows them,
and if some are refusals and none names a limit, it learns its rate. inspect sends
nothing.

With --host the preset of that API reads the headers. Without it, inspect reads the
headers of the IETF drafts, which have one meaning. For other headers it lists the
APIs that have them, each with its own meaning.

Exit codes: 64 bad usage, or an input without a response.`,
		Example: `  curl -sI https://api.github.com/rate_limit | throttle inspect --host api.github.com
  throttle inspect session.har --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("inspect takes one file: got %q, too", args[1])
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			path := "-"
			if len(args) > 0 {
				path = args[0]
			}
			return c.inspectFile(path, host)
		},
	}
	cmd.Flags().StringVar(&host, "host", "", "the `host` of the API, such as api.github.com")
	return cmd
}

// inspectFile writes what a file implies.
func (c *command) inspectFile(path, host string) error {
	f, err := c.open(path)
	if err != nil {
		return usagef("%w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostInput+1))
	if err != nil {
		return usagef("%w", err)
	}
	r, err := inspectText(text, host)
	if err != nil {
		return usagef("%w", err)
	}
	return c.print(r, r.text)
}

// mostInput is how many bytes an input has at most.
const mostInput = 64 << 20

func inspectText(text []byte, host string) (inspectResult, error) {
	if len(text) > mostInput {
		return inspectResult{}, errors.New("the input has more than 64 MB")
	}
	read := readHeads
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		read = readHAR
	}
	all, err := read(text)
	if err != nil {
		return inspectResult{}, err
	}
	in := newInspector(host)
	r := in.inspect(all[len(all)-1])
	r.compare(all, in)
	return r, nil
}

// compare compares the last response with all. The limit of a tier that follows is the lowest that they
// name, so that it refuses nothing until a response names another one.
func (r *inspectResult) compare(all []answers.Response, in *inspector) {
	named, firstRefused := len(r.Presets) > 0, -1
	for i, resp := range all {
		one := in.inspect(resp)
		if one.Refused && firstRefused < 0 {
			firstRefused = i
		}
		named = named || len(one.Unread) > 0
		for _, q := range one.Readings {
			named = named || q.Limit > 0
			for j := range r.Readings {
				if last := &r.Readings[j]; last.Source == q.Source && last.Name == q.Name && last.Unit == q.Unit && last.Window == q.Window {
					last.follow(q.Limit)
				}
			}
		}
	}
	if firstRefused >= 0 && !named {
		rate := rateBefore(all[:firstRefused+1])
		r.Learn = throttle.Tier{Limit: rate, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 100 * rate}}.String()
	}
}

// follow makes the policy of a reading follow another limit.
func (q *readingResult) follow(limit int64) {
	t, err := algorithms.ParseTier(q.Policy)
	if err != nil || limit == 0 || limit == t.Limit && !t.Follows() {
		return
	}
	t.Follow.Most = max(t.Follow.Most, t.Limit, limit)
	t.Limit = min(t.Limit, limit)
	q.Policy = t.String()
}

// rateBefore returns half of the rate of requests in the ten seconds until the last one, in whole requests a
// second, and at least 1. It is 1 if the times are not known.
func rateBefore(all []answers.Response) int64 {
	n, last := int64(0), all[len(all)-1].Sent
	for _, resp := range all {
		if !resp.Sent.IsZero() && !resp.Sent.After(last) && last.Sub(resp.Sent) < 10*time.Second {
			n++
		}
	}
	return max(1, n/20)
}

var statusLine = regexp.MustCompile(`^HTTP/[0-9.]+ ([0-9]{3})( |$)`)

// mostCompared is how many responses of an input are read at most: the last ones.
const mostCompared = 10_000

// lastOf returns the last responses that are read.
func lastOf[T any](all []T) []T { return all[max(0, len(all)-mostCompared):] }

// readHeads returns the responses, each of which begins with a status line.
func readHeads(text []byte) (all []answers.Response, err error) {
	inHead := false
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if m := statusLine.FindStringSubmatch(line); m != nil {
			status, _ := strconv.Atoi(m[1])
			all, inHead = append(all, answers.Response{Status: status, Header: http.Header{}, Got: time.Now()}), true
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		switch {
		case line == "":
			inHead = false
		case inHead && ok && len(all[len(all)-1].Header) < 1000:
			all[len(all)-1].Header.Add(textproto.TrimString(name), textproto.TrimString(value))
		}
	}
	if len(all) == 0 {
		return nil, errors.New("the input has no line such as HTTP/1.1 200 OK: pass what curl -i or curl -I writes, or a HAR")
	}
	return lastOf(all), nil
}

// readHAR returns the responses of a HAR.
func readHAR(text []byte) (all []answers.Response, err error) {
	var har struct {
		Log struct {
			Entries []struct {
				StartedDateTime string
				Response        struct {
					Status  int
					Headers []struct{ Name, Value string }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &har); err != nil {
		return nil, fmt.Errorf("the input is no HAR: %w", err)
	}
	if len(har.Log.Entries) == 0 {
		return nil, errors.New("the HAR has no entries")
	}
	for _, e := range lastOf(har.Log.Entries) {
		resp := answers.Response{Status: e.Response.Status, Header: http.Header{}, Got: time.Now()}
		resp.Sent, _ = time.Parse(time.RFC3339, e.StartedDateTime) // zero if it is not known
		for _, h := range e.Response.Headers[:min(len(e.Response.Headers), 1000)] {
			resp.Header.Add(h.Name, h.Value)
		}
		all = append(all, resp)
	}
	return all, nil
}

// An inspector reads responses of a host, or of any.
type inspector struct {
	host            string
	standard        answers.Profile
	presets, others []source // others are read if nothing else has readings
}

// A source is a profile with the name of its API.
type source struct {
	name    string
	profile answers.Profile
}

func newInspector(host string) *inspector {
	in := &inspector{host: host, standard: answers.Common()}
	in.standard.Quotas = ietf.Profile().Quotas
	for _, p := range providers.Lookup(host) {
		in.presets = append(in.presets, source{p.Name, p.Provider(p.Example()).Profile})
	}
	for _, name := range profiles.Names() {
		if entry, err := profiles.Named(name); err == nil {
			in.others = append(in.others, source{name, entry.Profile})
		}
	}
	return in
}

// inspect returns what a response implies.
func (in *inspector) inspect(resp answers.Response) inspectResult {
	r := inspectResult{Status: resp.Status, Host: in.host, Presets: []string{}, Readings: []readingResult{}, Unread: []string{}}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		resp.Got = date // the input may be old
	}
	answer := in.standard.Read(resp)
	r.add("IETF draft", false, answer.Readings)
	for _, p := range in.presets {
		r.Presets = append(r.Presets, p.name)
		own := p.profile.Read(resp)
		r.add("preset "+p.name, false, own.Readings)
		if own.Kind != answers.Passed {
			answer.Refusal = own.Refusal
		}
	}
	if len(r.Readings) == 0 {
		for _, p := range in.others {
			r.add("as at "+p.name, true, p.profile.Read(resp).Readings)
		}
	}
	if r.Refused = answer.Kind != answers.Passed; r.Refused {
		r.Reason = answer.Reason
		if answer.Known {
			s := answer.Delay.Seconds()
			r.Wait = &s
		}
	}
	if len(r.Readings) == 0 {
		r.Unread = append(r.Unread, limitHeaders(resp.Header)...)
	}
	return r
}

// limitHeaders returns the names of headers that look like limits.
func limitHeaders(h http.Header) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		lower := strings.ToLower(name)
		if strings.Contains(lower, "ratelimit") || strings.Contains(lower, "rate-limit") || strings.Contains(lower, "quota") {
			names = append(names, name)
		}
	}
	return names
}

func (r *inspectResult) add(source string, ambiguous bool, readings []answers.Reading) {
	for _, q := range readings {
		result := readingResult{Source: source, Ambiguous: ambiguous, Name: q.Name, Unit: q.Unit, Limit: q.Limit, Window: q.Window.Seconds()}
		if q.Has&answers.HasRemaining != 0 {
			result.Remaining = &q.Remaining
		}
		if q.Has&answers.HasReset != 0 {
			s := q.Reset.Seconds()
			result.Reset = &s
		}
		unit := q.Unit
		if unit == algorithms.Requests {
			unit = ""
		}
		if t := (throttle.Tier{Limit: q.Limit, Window: q.Window, Unit: unit}); q.Limit > 0 && q.Window > 0 {
			if (throttle.Policy{Tiers: []throttle.Tier{t}}).Validate() == nil {
				result.Policy = t.String()
			}
		}
		r.Readings = append(r.Readings, result)
	}
}

func (r inspectResult) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "status %d\n", r.Status)
	if r.Refused {
		b.WriteString("refused for lack of quota")
		if r.Wait != nil {
			fmt.Fprintf(&b, ", for %v", ofSeconds(*r.Wait))
		}
		b.WriteString("\n")
	}
	if len(r.Presets) > 0 {
		fmt.Fprintf(&b, "presets of %s: %s\n", plain(r.Host), strings.Join(r.Presets, ", "))
	}
	for _, q := range r.Readings {
		b.WriteString(q.text() + "\n")
	}
	switch {
	case len(r.Unread) > 0:
		fmt.Fprintf(&b, "not understood: %s\n", plain(strings.Join(r.Unread, ", ")))
	case len(r.Readings) == 0:
		b.WriteString("no header of limits\n")
		if r.Learn != "" {
			fmt.Fprintf(&b, "to find the rate by refusals: --policy '%s'\n", r.Learn)
		}
	case r.Readings[0].Ambiguous:
		b.WriteString("ambiguous: these APIs have such headers, each with its own meaning; name yours with --host\n")
	}
	return b.String()
}

// text returns the reading in a line.
func (q readingResult) text() string {
	parts := []string{q.Source + ":"}
	if q.Name != "" {
		parts = append(parts, strconv.Quote(q.Name))
	}
	switch {
	case q.Remaining != nil && q.Limit > 0:
		parts = append(parts, fmt.Sprintf("%d of %d left", *q.Remaining, q.Limit))
	case q.Remaining != nil:
		parts = append(parts, fmt.Sprintf("%d left", *q.Remaining))
	case q.Limit > 0:
		parts = append(parts, fmt.Sprintf("limit %d", q.Limit))
	}
	if q.Unit != "" {
		parts = append(parts, "("+plain(q.Unit)+")")
	}
	if q.Reset != nil {
		parts = append(parts, "resets in "+ofSeconds(*q.Reset).String())
	}
	if q.Policy != "" {
		parts = append(parts, "--policy '"+plain(q.Policy)+"'")
	}
	return strings.Join(parts, " ")
}
