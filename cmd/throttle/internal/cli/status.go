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
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/cmd/throttle/internal/alike"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
	"github.com/apithrottle/throttle/store"
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

	// Share is which part of the requests of its pool a member has admitted in the last five minutes.
	Share *float64 `json:"share,omitempty"`

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

	// Forecast is how much of a budget will be used at the end of its period. A quota that was read itself, and not
	// from a page, has that of the mean of its period, and of what top has seen since.
	Forecast *observe.Forecast `json:"forecast,omitempty"`

	Followed int64          `json:"followed,omitempty"` // units per window; if none, those of the tier
	Learned  *learnedResult `json:"learned,omitempty"`
	Origin   string         `json:"origin,omitempty"` // of the rate in force, in a sentence
	Fixed    string         `json:"fixed,omitempty"`  // a tier that has this rate and keeps it, as --policy takes it
}

// A learnedResult is what a tier has learned, in units per window.
type learnedResult struct {
	Rate    float64 `json:"rate"`
	Refused float64 `json:"refused_rate,omitempty"`
	Ago     float64 `json:"refused_seconds_ago,omitempty"`
	Next    float64 `json:"next_rate"` // in a minute, at most
	Noise   float64 `json:"noise"`     // the part of the requests that is refused at any rate
}

// statusFlags are the flags of status and top.
type statusFlags struct {
	quotaFlags
	config, page string
	explain      bool
}

func (f *statusFlags) register(cmd *cobra.Command) {
	f.quotaFlags.register(cmd.Flags())
	cmd.Flags().StringVar(&f.config, "config", "", "the quotas of this configuration `file`")
	cmd.Flags().StringVar(&f.page, "page", "", "the quotas of the live page at this `URL`")
}

const statusHelp = `There are three ways to name quotas. --policy and the names of quotas, in the file
or the server that exec and wait use. --config FILE: all quotas of a configuration
file, or those whose names are arguments. --page URL: the quotas on the live page of
a proxy or a program. Presets, and routes with a key, have a quota for each account,
so only a page shows them. This verb charges nothing and makes no file. A quota that
did not exist stays on the server for a minute at most.`

func (c *command) status() *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status NAME... --policy LIMITS [FLAG...]",
		Short: "Show how much of a quota is used",
		Long: `Show how much of a quota is used, when more is available, and whether it is paused.

` + statusHelp + `

Exit codes: 64 bad usage, 69 the file, server or page does not answer, 78 a bad
policy or configuration file.`,
		Example: `  throttle status --policy '5/s + 10000/h' coinbase
  throttle status --policy '5/s + 10000/h' coinbase --explain
  throttle status --redis redis://localhost:6379 --policy 100/min mail sms
  throttle status --store postgres://app@localhost/app --policy 100/min mail
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
			if err := c.print(r, r.text); err != nil {
				return err
			}
			for _, q := range r.Quotas {
				if q.err != nil {
					return q.err
				}
			}
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.explain, "explain", false, "explain what the next request would wait for")
	return cmd
}

// A statusReader reads the state of quotas.
type statusReader func(context.Context) (statusResult, error)

// statusReader returns what reads the state that flags name.
func (c *command) statusReader(verb string, f statusFlags, names []string) (read statusReader, closer func(), err error) {
	if f.name != "" {
		names = append([]string{f.name}, names...)
	}
	switch place, err := f.place(verb); {
	case err != nil:
		return nil, nil, err
	case place == "page" && f.explain:
		return nil, nil, usagef("--explain needs --policy or --config: a page has no forecasts")
	case place == "page":
		return f.pageReader(names)
	}
	quotas, err := c.quotasOf(verb, f, names)
	if err != nil {
		return nil, nil, err
	}
	opened, closer, err := c.openQuotas(quotas)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) (statusResult, error) {
		r := statusResult{Time: time.Now().UTC(), Quotas: []quotaResult{}}
		for _, q := range opened {
			r.Quotas = append(r.Quotas, q.read(ctx, f.explain))
		}
		return r, nil
	}, closer, nil
}

// place returns where the quotas are: policy, config or page.
func (f *statusFlags) place(verb string) (place string, err error) {
	given := map[string]string{"policy": f.policy, "config": f.config, "page": f.page}
	for _, name := range []string{"policy", "config", "page"} {
		switch {
		case given[name] == "":
		case place != "":
			return "", usagef("--%s and --%s are two places: %s needs one of --policy, --config and --page", place, name, verb)
		default:
			place = name
		}
	}
	if place == "" {
		return "", usagef("%s needs one of --policy, --config and --page", verb)
	}
	return place, nil
}

// quotas are some quotas of a store.
type quotas struct {
	store place
	all   []keyed
}

// A keyed is the policy of a quota, and the key of a quota of a Group.
type keyed struct {
	throttle.Policy
	key string
}

// quotasOf returns the quotas that --policy or --config name.
func (c *command) quotasOf(verb string, f statusFlags, names []string) (quotas, error) {
	if f.config != "" {
		return c.configQuotas(f, names)
	}
	in, err := f.store.place()
	q := quotas{store: in}
	if err != nil {
		return q, err
	}
	if len(names) == 0 {
		names = []string{""} // a preset has a name
	}
	for _, name := range names {
		f.name = name
		p, err := f.resolve(verb)
		if err != nil {
			return q, err
		}
		q.all = append(q.all, keyed{p, f.key})
	}
	return q, nil
}

// An openQuota is a quota with its name.
type openQuota struct {
	label string
	store *place
	*throttle.Limiter
	one     throttle.Cost // of what the policy counts
	budgets *observe.Budgets
}

// openQuotas opens quotas in their store. It makes no file.
func (c *command) openQuotas(q quotas) (opened []openQuota, closer func(), err error) {
	if !q.store.isServer() {
		path, err := c.path(q.store)
		if err != nil {
			return nil, nil, err
		}
		// A file without contents would become a store.
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			return nil, nil, &storeError{path, errors.New("there is no such file: nothing has used a quota yet")}
		}
	}
	s, closing, err := c.openStore(q.store)
	if err != nil {
		return nil, nil, err
	}
	closer = func() { closing.Close() }
	for _, p := range q.all {
		label := p.Name
		if p.key != "" && !strings.HasSuffix(label, ":"+p.key) { // the name of a client's limits ends with it
			label += "/" + p.key
		}
		l, err := q.store.limiter(p.Policy, p.key, s)
		if err != nil {
			closer()
			return nil, nil, err
		}
		var one throttle.Cost
		if units := countedUnits(p.Policy); !slices.Contains(units, algorithms.Requests) {
			one = throttle.Cost{units[0]: 1}
		}
		opened = append(opened, openQuota{label, &q.store, l, one, new(observe.Budgets)})
	}
	return opened, closer, nil
}

// read returns the state of the quota.
func (q openQuota) read(ctx context.Context, explain bool) quotaResult {
	var r quotaResult
	r.err = q.store.patiently(func() error {
		status, err := q.Status(ctx)
		r = newQuotaResult(q.label, status)
		q.forecast(status, r.Tiers)
		if explain && err == nil {
			var e throttle.Explanation
			e, err = q.Explain(ctx, q.one)
			r.Text = e.String()
		}
		return err
	})
	if r.err != nil {
		r.Failure, r.Text = r.err.Error(), ""
	}
	return r
}

// forecast adds the forecasts of budgets to the results of their tiers.
func (q openQuota) forecast(status throttle.Status, tiers []tierResult) {
	for i, t := range status.Tiers {
		tiers[i].Forecast = q.budgets.Read(strconv.Itoa(i), t)
	}
}

// configQuotas returns the quotas of a configuration file, or those that names and --key name.
func (c *command) configQuotas(f statusFlags, names []string) (q quotas, err error) {
	loaded, err := c.loadConfig(f.config, false)
	if err != nil {
		return q, &configError{err}
	}
	q.store = place{loaded.Store}
	if !q.store.isServer() && q.store.File == "" {
		return q, &configError{fmt.Errorf("%s has no store: its quotas are in the proxy, so use its page, with --page", f.config)}
	}
	var known []string
	for _, p := range quotasIn(loaded) {
		known = append(known, p.Name)
		if (len(names) == 0 || slices.Contains(names, p.Name)) && (f.key == "" || f.key == p.key) {
			q.all = append(q.all, p)
		}
	}
	for _, name := range names {
		if slices.Contains(known, name) {
			continue
		}
		if near := alike.Nearest(name, known); near != "" {
			return q, usagef("%s has no quota %q: did you mean %s?", f.config, name, near)
		}
		return q, usagef("%s has no quota %q outside presets, whose quotas are on the page of the proxy, with --page: it has %s", f.config, name, strings.Join(known, ", "))
	}
	switch {
	case len(q.all) == 0 && f.key != "":
		return q, usagef("%s has no such quota with the key %q", f.config, f.key)
	case len(q.all) == 0:
		return q, usagef("%s has no quotas outside presets: use the page of the proxy, with --page", f.config)
	}
	return q, nil
}

// quotasIn returns the quotas of a configuration file outside of presets, each once. The accounts of a key
// are not known.
func quotasIn(loaded *config.Config) (all []keyed) {
	add := func(p throttle.Policy, key string) {
		if !slices.ContainsFunc(all, func(other keyed) bool { return other.Name == p.Name }) {
			all = append(all, keyed{p, key})
		}
	}
	for _, prefix := range slices.Sorted(maps.Keys(loaded.Routes)) {
		r := loaded.Routes[prefix]
		if r.Limits().IsPreset() {
			continue // its budget is among its own quotas
		}
		if r.Key.Header == "" && len(r.Pool) == 0 {
			add(r.Limits().Policies()[0], "")
		}
		for _, m := range r.Pool {
			if !m.Limits().IsPreset() {
				add(m.Limits().Policies()[0], "")
			}
		}
		if p, err := throttle.ParsePolicy(r.Name+":budget", r.Budget); r.Budget != "" && err == nil {
			add(p, "")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(loaded.Clients)) {
		if p, ok := loaded.Clients[name].Limits(); ok {
			add(p, name)
		}
	}
	return all
}

// mostPage is how many bytes the state of a page has at most.
const mostPage = 16 << 20

// pageReader returns what reads the state of a live page.
func (f *statusFlags) pageReader(names []string) (statusReader, func(), error) {
	u, err := parsePage(f.page)
	if err != nil {
		return nil, nil, err
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
				r.Quotas = append(r.Quotas, pageResults(p, s.Time)...)
			}
		}
		return r, nil
	}, client.CloseIdleConnections, nil
}

// parsePage returns the address of a live page. The error has no password.
func parsePage(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usagef("--page is no URL of a live page: write it as http://127.0.0.1:7411/_throttle/")
	}
	if err := checkPort("--page", u); err != nil {
		return nil, err
	}
	return u, nil
}

// checkPort returns an error for a port that does not exist.
func checkPort(flag string, u *url.URL) error {
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return usagef("%s has the port %s: it must be from 1 to 65535", flag, port)
		}
	}
	return nil
}

func get(ctx context.Context, client *http.Client, u *url.URL, s *page.State) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return withoutURL(err)
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

// withoutURL returns the error of a client without the URL, which may have a password.
func withoutURL(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
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
			Followed: t.Followed, Origin: t.Origin(), Fixed: fixedTier(t),
		}
		if l := t.Learned; l != nil {
			r.Learned = &learnedResult{l.Rate, l.Refused, l.Ago.Seconds(), l.Next, l.Noise}
		}
		if t.RetryAfter < math.MaxInt64 {
			after := t.RetryAfter.Seconds()
			r.RetryAfter = &after
		}
		q.Tiers = append(q.Tiers, r)
	}
	return q
}

// pageResults returns the state of a policy on a page. A pool is followed by its members.
func pageResults(p page.Policy, now time.Time) []quotaResult {
	all := []quotaResult{pageResult(p, now)}
	if n := len(p.Members); n > 0 {
		all[0].Text = strings.TrimSpace("A pool of " + plural(int64(n), "member") + ". " + all[0].Text)
	}
	for _, m := range p.Members {
		q := pageResult(page.Policy{
			Name: p.Name + "/" + m.Name, Failure: m.Failure, Tiers: m.Tiers, Paused: m.Paused, Closed: m.Closed, Guard: m.Guard,
		}, now)
		if p.Counted {
			q.Share = &m.Share
		}
		all = append(all, q)
	}
	return all
}

// pageResult returns the state of a policy on a page.
func pageResult(p page.Policy, now time.Time) quotaResult {
	s := throttle.Status{Waiting: p.Waiting, Paused: ofSeconds(p.Paused), Closed: ofSeconds(p.Closed), Guard: ofSeconds(p.Guard)}
	for _, t := range p.Tiers {
		state := throttle.TierStatus{Limit: t.Limit, Used: t.Used, Remaining: t.Remaining, Limited: t.RetryAfter != 0, RetryAfter: math.MaxInt64}
		if t.RetryAfter >= 0 {
			state.RetryAfter = ofSeconds(t.RetryAfter)
		}
		state.Tier, _ = algorithms.ParseTier(t.Tier)
		state.Followed, state.Learned = t.Followed, learnedAt(t.Learned, now)
		s.Tiers = append(s.Tiers, state)
	}
	q := newQuotaResult(p.Name, s)
	for i, t := range p.Tiers {
		q.Tiers[i].Tier, q.Tiers[i].Unit, q.Tiers[i].Origin, q.Tiers[i].Forecast = t.Tier, t.Unit, t.Origin, t.Forecast
	}
	if n := len(p.History.Admitted); n > 1 { // the last second has not ended
		q.Admitted = &p.History.Admitted[n-2]
	}
	q.Failure = p.Failure
	return q
}

// learnedAt returns what a page has of a tier that learns, at the time of the page.
func learnedAt(s *observe.LearnedSnapshot, now time.Time) *store.Learned {
	if s == nil {
		return nil
	}
	l := &store.Learned{Rate: s.Rate, Refused: s.Refused, Next: s.Next, Noise: s.Noise}
	if s.RefusedAt != nil {
		l.Ago = max(0, now.Sub(*s.RefusedAt))
	}
	return l
}

// ofSeconds returns a time of some seconds, at least zero.
func ofSeconds(s float64) time.Duration {
	return time.Duration(math.Round(min(max(s, 0)*1e9, math.MaxInt64/2)))
}

// text returns a table of the tiers, and below it the quotas in sentences.
func (r statusResult) text() string {
	var b strings.Builder
	rows := [][]string{{"QUOTA", "TIER", "USED", "LIMIT", "LEFT", "NEXT"}}
	for _, q := range r.Quotas {
		for _, t := range q.Tiers {
			rows = append(rows, []string{plain(q.Name), plain(t.Tier), t.amount(t.Used), t.amount(t.Limit), t.amount(t.Remaining), q.next(t)})
		}
	}
	if len(rows) > 1 {
		b.WriteString(aligned("", rows))
	}
	for _, q := range r.Quotas {
		b.WriteByte('\n')
		wrap(&b, width, plain(q.Name)+": ", plain(withFixes(q.text(), q.Tiers)))
	}
	return b.String()
}

// text returns the quota in sentences.
func (q quotaResult) text() string {
	switch {
	case q.Failure != "":
		return "the state is not known: " + q.Failure
	case q.Text == "":
		return "Nothing is known of its tiers."
	}
	text := q.Text
	for _, t := range q.Tiers {
		if t.Forecast != nil {
			text += " " + t.Tier + ": " + t.Forecast.Text + "."
		}
	}
	return text
}

// amount returns an amount of the tier's unit.
func (t tierResult) amount(n int64) string { return algorithms.FormatAmount(n, t.Unit) }

// next returns when the quota admits one more unit of a tier.
func (q quotaResult) next(t tierResult) string {
	if t.RetryAfter != nil && max(q.Paused, q.Closed) > *t.RetryAfter {
		return shortTime(ofSeconds(max(q.Paused, q.Closed)))
	}
	return t.next()
}

// next returns when the tier itself admits one more unit.
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
	d = (d + unit - 1) / unit * unit
	if unit == time.Minute {
		return withoutZeros(d)
	}
	return d.String()
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
