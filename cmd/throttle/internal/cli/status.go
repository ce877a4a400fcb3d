package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/page"
)

// A statusResult is the result of the verb status.
type statusResult struct {
	Time   time.Time     `json:"time"`
	Quotas []quotaResult `json:"quotas"`
}

// A quotaResult is the state of a quota.
type quotaResult struct {
	Name   string       `json:"name"`
	Shared string       `json:"shared,omitempty"` // through what
	Tiers  []tierResult `json:"tiers"`

	Waiting  int     `json:"waiting"`                       // callers, if a page was read
	Admitted *uint64 `json:"admitted_per_second,omitempty"` // in the last second, if a page was read

	Paused float64 `json:"paused_seconds"`
	Closed float64 `json:"closed_seconds"`
	Guard  float64 `json:"guard_seconds"`

	Text    string `json:"text"`              // in sentences
	Failure string `json:"failure,omitempty"` // why the state is not known

	err error
}

// A tierResult is the state of a tier.
type tierResult struct {
	Tier      string `json:"tier"`
	Unit      string `json:"unit"`
	Limit     int64  `json:"limit"`
	Used      int64  `json:"used"`
	InFlight  int64  `json:"in_flight"`
	Others    int64  `json:"others"`
	Remaining int64  `json:"remaining"`

	// RetryAfter is the time until one more unit is admitted. It is nil where only the end of
	// a request helps.
	RetryAfter *float64 `json:"retry_after_seconds"`
}

// statusFlags are the flags of status and top.
type statusFlags struct {
	quotaFlags
	config, page string
	explain      bool
}

func (f *statusFlags) register(cmd *cobra.Command) {
	f.quotaFlags.register(cmd.Flags())
	cmd.Flags().StringVar(&f.config, "config", "", "all quotas of this configuration `file`")
	cmd.Flags().StringVar(&f.page, "page", "", "all quotas of the live page at this `URL`")
}

const statusHelp = `A quota is one of a file or a Redis, as exec and wait use it: its limits are
--policy, and its names the arguments. Or all quotas of a configuration file are
shown, or those of the live page of a proxy or program. Quotas of presets are
counted for each account, so only a page shows them. Nothing is charged and no
file is made. Redis keeps a quota that was not there for a minute at most.`

func (c *command) status() *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status [NAME...]",
		Short: "Show how much of quotas is used",
		Long: `Show how much of quotas is used, when there is more, and what is paused.

` + statusHelp + `

Exit codes: 64 bad usage, 69 the file, Redis or page does not answer, 78 a bad
policy or configuration.`,
		Example: `  throttle status --policy '5/s + 10000/h' coinbase
  throttle status --policy '5/s + 10000/h' coinbase --explain
  throttle status --redis redis://localhost:6379 --policy 100/min mail sms
  throttle status --config throttle.yaml --json
  throttle status --page http://127.0.0.1:7411/_throttle/`,
		RunE: func(cmd *cobra.Command, names []string) error {
			read, closer, err := c.statusReader(cmd.Name(), f, names)
			if err != nil {
				return err
			}
			defer closer()
			r, err := read(cmd.Context())
			if err != nil {
				return err
			}
			if err := c.print(r, r.write); err != nil {
				return err
			}
			for _, q := range r.Quotas {
				if q.err != nil {
					return &storeError{q.Name, q.err}
				}
			}
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.explain, "explain", false, "explain what a request would wait for")
	return cmd
}

// A statusReader reads the state of quotas.
type statusReader func(context.Context) (statusResult, error)

// statusReader returns what reads the state that flags name.
func (c *command) statusReader(verb string, f statusFlags, names []string) (read statusReader, closer func(), err error) {
	if f.name != "" {
		names = append([]string{f.name}, names...)
	}
	places := 0
	for _, place := range []string{f.policy, f.config, f.page} {
		if place != "" {
			places++
		}
	}
	switch {
	case places != 1:
		return nil, nil, usagef("%s needs one of --policy, --config and --page", verb)
	case f.page != "" && f.explain:
		return nil, nil, usagef("--explain needs --policy or --config: a page has no forecasts")
	case f.page != "":
		return f.pageReader(names)
	case f.config != "":
		return c.configReader(f, names)
	}
	if err := f.store.check(); err != nil {
		return nil, nil, err
	}
	var policies []throttle.Policy
	if len(names) == 0 {
		names = []string{""} // a preset has a name
	}
	for _, name := range names {
		f.name = name
		p, err := f.resolve(verb)
		if err != nil {
			return nil, nil, err
		}
		policies = append(policies, p)
	}
	return c.storeReader(f, policies, nil)
}

// storeReader returns what reads policies in a store. A policy of a Group has a key.
func (c *command) storeReader(f statusFlags, policies []throttle.Policy, keys []string) (read statusReader, closer func(), err error) {
	if f.store.redis == "" {
		path, err := c.path(f.store)
		if err != nil {
			return nil, nil, err
		}
		// A file without contents would become a store.
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			return nil, nil, &storeError{path, errors.New("there is no such file: nothing has used a quota yet")}
		}
	}
	s, closing, err := c.openStore(f.store)
	if err != nil {
		return nil, nil, err
	}
	closer = func() { closing.Close() }
	type named struct {
		label string
		*throttle.Limiter
		one throttle.Cost // of what the policy counts
	}
	var limiters []named
	for i, p := range policies {
		f, label := f.quotaFlags, p.Name
		if keys != nil {
			if f.key = keys[i]; f.key != "" {
				label += "/" + f.key
			}
		}
		l, err := f.limiter(p, s)
		if err != nil {
			closer()
			return nil, nil, err
		}
		var one throttle.Cost
		if units := countedUnits(p); !slices.Contains(units, algorithms.Requests) {
			one = throttle.Cost{units[0]: 1}
		}
		limiters = append(limiters, named{label, l, one})
	}
	return func(ctx context.Context) (statusResult, error) {
		r := statusResult{Time: time.Now().UTC(), Quotas: []quotaResult{}}
		for _, l := range limiters {
			status, err := l.Status(ctx)
			q := newQuotaResult(l.label, status)
			if f.explain && err == nil {
				var e throttle.Explanation
				if e, err = l.Explain(ctx, l.one); err == nil {
					q.Text = e.String()
				}
			}
			if err != nil {
				q.err, q.Failure, q.Text = err, strings.TrimPrefix(err.Error(), "throttle: "), ""
			}
			r.Quotas = append(r.Quotas, q)
		}
		return r, nil
	}, closer, nil
}

// configReader returns what reads the quotas of a configuration file.
func (c *command) configReader(f statusFlags, names []string) (read statusReader, closer func(), err error) {
	loaded, err := c.loadConfig(f.config, false)
	if err != nil {
		return nil, nil, &configError{err}
	}
	f.store = storeFlags{redis: loaded.Store.Redis.Reveal(), prefix: loaded.Store.Prefix, file: loaded.Store.File}
	if f.store.redis == "" && f.store.file == "" {
		return nil, nil, &configError{fmt.Errorf("%s has no store: its quotas are in the proxy, so read its page with --page", f.config)}
	}
	var policies []throttle.Policy
	var keys []string
	add := func(p throttle.Policy, key string) {
		known := func(o throttle.Policy) bool { return o.Name == p.Name }
		if (len(names) == 0 || slices.Contains(names, p.Name)) && (key != "" || !slices.ContainsFunc(policies, known)) {
			policies, keys = append(policies, p), append(keys, key)
		}
	}
	for _, prefix := range slices.Sorted(maps.Keys(loaded.Routes)) {
		r := loaded.Routes[prefix]
		if !r.Limits().IsPreset() {
			add(r.Limits().Policies()[0], "")
		}
		if p, err := throttle.ParsePolicy(r.Name+":budget", r.Budget); r.Budget != "" && err == nil {
			add(p, "")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(loaded.Clients)) {
		if p, err := throttle.ParsePolicy("clients", loaded.Clients[name].Budget); err == nil {
			add(p, name)
		}
	}
	if len(policies) == 0 {
		return nil, nil, usagef("%s has no such quotas outside presets: read the page of the proxy with --page", f.config)
	}
	return c.storeReader(f, policies, keys)
}

// mostPage is how many bytes the state of a page has at most.
const mostPage = 16 << 20

// pageReader returns what reads the state of a live page.
func (f *statusFlags) pageReader(names []string) (statusReader, func(), error) {
	u, err := url.Parse(f.page)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, nil, usagef("--page is no URL such as http://127.0.0.1:7411/_throttle/")
	}
	if !strings.HasSuffix(u.Path, "/state.json") {
		u = u.JoinPath("state.json")
	}
	client := &http.Client{Timeout: 10 * time.Second}
	return func(ctx context.Context) (statusResult, error) {
		var s page.State
		if err := get(ctx, client, u, &s); err != nil {
			return statusResult{}, &storeError{"page " + u.Redacted(), err}
		}
		r := statusResult{Time: s.Time, Quotas: []quotaResult{}}
		for _, p := range s.Policies {
			if len(names) == 0 || slices.Contains(names, p.Name) {
				r.Quotas = append(r.Quotas, pageResult(p))
			}
		}
		return r, nil
	}, client.CloseIdleConnections, nil
}

func get(ctx context.Context, client *http.Client, u *url.URL, s *page.State) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		if inner := errors.Unwrap(err); inner != nil {
			err = inner // without the URL
		}
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, mostPage)).Decode(s); err != nil {
		return fmt.Errorf("this is no live page: %w", err)
	}
	return nil
}

func newQuotaResult(name string, s throttle.Status) quotaResult {
	q := quotaResult{
		Name: name, Shared: s.Shared, Tiers: []tierResult{}, Waiting: s.Waiting,
		Paused: s.Paused.Seconds(), Closed: s.Closed.Seconds(), Guard: s.Guard.Seconds(), Text: s.String(),
	}
	for _, t := range s.Tiers {
		r := tierResult{
			Tier: t.Tier.String(), Unit: cmp.Or(t.Tier.Unit, algorithms.Requests), Limit: t.Limit, Used: t.Used,
			InFlight: t.InFlight, Others: t.Others, Remaining: t.Remaining,
		}
		if t.RetryAfter < math.MaxInt64 {
			after := t.RetryAfter.Seconds()
			r.RetryAfter = &after
		}
		q.Tiers = append(q.Tiers, r)
	}
	return q
}

// pageResult returns the state of a policy on a page.
func pageResult(p page.Policy) quotaResult {
	q := quotaResult{
		Name: p.Name, Tiers: []tierResult{}, Waiting: p.Waiting, Failure: p.Failure,
		Paused: p.Paused, Closed: p.Closed, Guard: p.Guard,
	}
	if n := len(p.History.Admitted); n > 1 { // the last second has not ended
		q.Admitted = &p.History.Admitted[n-2]
	}
	var s throttle.Status
	for _, t := range p.Tiers {
		r := tierResult{Tier: t.Tier, Unit: t.Unit, Limit: t.Limit, Used: t.Used, Remaining: t.Remaining}
		state := throttle.TierStatus{Limit: t.Limit, Used: t.Used, Remaining: t.Remaining, Limited: t.RetryAfter != 0, RetryAfter: math.MaxInt64}
		if t.RetryAfter >= 0 {
			r.RetryAfter, state.RetryAfter = &t.RetryAfter, ofSeconds(t.RetryAfter)
		}
		state.Tier, _ = parseTier(t.Tier)
		q.Tiers, s.Tiers = append(q.Tiers, r), append(s.Tiers, state)
	}
	s.Waiting, s.Paused, s.Closed = p.Waiting, ofSeconds(p.Paused), ofSeconds(p.Closed)
	q.Text = s.String()
	return q
}

// parseTier reads a tier.
func parseTier(text string) (t throttle.Tier, err error) {
	p, err := throttle.ParsePolicy("", text)
	if err == nil {
		t = p.Tiers[0]
	}
	return t, err
}

// ofSeconds returns a time of some seconds.
func ofSeconds(s float64) time.Duration {
	switch d := s * float64(time.Second); {
	case d > math.MaxInt64/2:
		return math.MaxInt64 / 2
	case d > 0:
		return time.Duration(d)
	}
	return 0
}

// write writes a table of the tiers, and below it the quotas in sentences.
func (r statusResult) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "QUOTA\tTIER\tUSED\tLIMIT\tLEFT\tNEXT")
	for _, q := range r.Quotas {
		for _, tier := range q.Tiers {
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\n", plain(q.Name), plain(tier.Tier), tier.Used, tier.Limit, tier.Remaining, tier.next())
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var b strings.Builder
	for _, q := range r.Quotas {
		b.WriteByte('\n')
		wrap(&b, plain(q.Name)+": ", plain(q.text()))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text returns the quota in sentences.
func (q quotaResult) text() string {
	switch {
	case q.Failure != "":
		return "the state is not known: " + q.Failure
	case q.Text == "":
		return "Nothing is known of its tiers."
	}
	return q.Text
}

// next returns when the tier admits one more unit.
func (t tierResult) next() string {
	switch {
	case t.RetryAfter == nil:
		return "at an end"
	case *t.RetryAfter <= 0:
		return "now"
	}
	return shortTime(ofSeconds(*t.RetryAfter))
}

// shortTime returns a time with three digits or so, rounded up.
func shortTime(d time.Duration) string {
	unit := time.Millisecond
	switch {
	case d >= 10*time.Minute:
		unit = time.Minute
	case d >= 10*time.Second:
		unit = time.Second
	case d >= time.Second:
		unit = 10 * time.Millisecond
	}
	text := ((d + unit - 1) / unit * unit).String()
	if unit == time.Minute {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// plain returns a text without control characters, which others may have chosen.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, text)
}
