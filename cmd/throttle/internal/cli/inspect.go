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
a file or on the standard input. Of several responses inspect reads the last one.
inspect sends nothing.

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
	resp, err := read(text)
	if err != nil {
		return inspectResult{}, err
	}
	return inspectResponse(resp, host), nil
}

var statusLine = regexp.MustCompile(`^HTTP/[0-9.]+ ([0-9]{3})( |$)`)

// readHeads returns the last response that begins with a status line.
func readHeads(text []byte) (resp answers.Response, err error) {
	resp.Got = time.Now()
	found, inHead := false, false
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if m := statusLine.FindStringSubmatch(line); m != nil {
			resp.Status, _ = strconv.Atoi(m[1])
			resp.Header, found, inHead = http.Header{}, true, true
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		switch {
		case line == "":
			inHead = false
		case inHead && ok && len(resp.Header) < 1000:
			resp.Header.Add(textproto.TrimString(name), textproto.TrimString(value))
		}
	}
	if !found {
		return resp, errors.New("the input has no line such as HTTP/1.1 200 OK: pass what curl -i or curl -I writes, or a HAR")
	}
	return resp, nil
}

// readHAR returns the last response of a HAR.
func readHAR(text []byte) (resp answers.Response, err error) {
	var har struct {
		Log struct {
			Entries []struct {
				Response struct {
					Status  int
					Headers []struct{ Name, Value string }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &har); err != nil {
		return resp, fmt.Errorf("the input is no HAR: %w", err)
	}
	n := len(har.Log.Entries)
	if n == 0 {
		return resp, errors.New("the HAR has no entries")
	}
	last := har.Log.Entries[n-1].Response
	resp = answers.Response{Status: last.Status, Header: http.Header{}, Got: time.Now()}
	for _, h := range last.Headers[:min(len(last.Headers), 1000)] {
		resp.Header.Add(h.Name, h.Value)
	}
	return resp, nil
}

// inspectResponse returns what a response implies.
func inspectResponse(resp answers.Response, host string) inspectResult {
	r := inspectResult{Status: resp.Status, Host: host, Presets: []string{}, Readings: []readingResult{}, Unread: []string{}}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		resp.Got = date // the input may be old
	}
	standard := answers.Common()
	standard.Quotas = ietf.Profile().Quotas
	answer := standard.Read(resp)
	r.add("IETF draft", false, answer.Readings)
	for _, p := range providers.Lookup(host) {
		r.Presets = append(r.Presets, p.Name)
		own := p.Provider(p.Example()).Profile.Read(resp)
		r.add("preset "+p.Name, false, own.Readings)
		if own.Kind != answers.Passed {
			answer.Refusal = own.Refusal
		}
	}
	if len(r.Readings) == 0 {
		for _, name := range profiles.Names() {
			if entry, err := profiles.Named(name); err == nil {
				r.add("as at "+name, true, entry.Profile.Read(resp).Readings)
			}
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
