package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle/cmd/throttle/internal/simulate"
	"github.com/apithrottle/throttle/cmd/throttle/internal/traffic"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// sorted is how many requests of a log are kept to put them in order. An access log is in the order
// in which requests end.
const sorted = 1 << 16

const replayHelp = `Compute what each policy would have done to the requests of a log: how long they
would have waited, for which limit, and how many a strict API would have refused
without throttle. replay sends nothing: it plays the limiter in virtual time. Each
request arrives at the time in the log, whatever happened to those before it.

FILE is one of these, plain or compressed by gzip; - is the standard input:

  jsonl  a JSON object on each line, with a time (RFC 3339, or Unix time in s, ms,
         µs or ns) and, if known, a duration
  clf    an access log of nginx or Apache, in common or combined format, with or
         without $request_time at the end
  har    an HTTP archive, as browsers save it

The time of a line is when the request was sent, except in lines that end in
nginx's $request_time: those are written when the request ends. Access logs have
whole seconds, so waits of up to a second may come from the log.

Lines that can't be read are left out, and the first five are named. If none can
be read, or with --strict the first one can't, replay exits with 1. Requests may
be out of order by 65,536 places. replay counts those that are further out of order.

Exit codes: 64 bad usage, 78 a bad policy, 1 a log that cannot be read.`

func (c *command) replay() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay FILE --policy LIMITS... [FLAG...]",
		Short: "Compute how long the requests of a log would have waited",
		Long:  replayHelp,
		Example: `  throttle replay requests.jsonl --policy '5/s + 10000/h'
  throttle replay access.log.1.gz --policy 10/s --policy '20/s;algo=token_bucket;burst=60'
  jq -c 'select(.model == "large")' calls.jsonl | throttle replay - \
    --policy '500/m + 30000/m;unit=tokens' --cost-field tokens=usage.total_tokens
  throttle replay calls.har --policy github --request 'GET https://api.github.com/repos/o/r'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("replay needs one log, such as access.log, or - for the standard input: got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			result, err := f.play(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return c.print(result, func() string { return result.text(c.width()) })
		},
	}
	f.register(cmd.Flags())
	return cmd
}

type replayFlags struct {
	policies, costs                       []string
	format, time, duration, unit, request string
	answers, maxWait                      time.Duration
	strict                                bool
}

func (f *replayFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.policies, "policy", nil, "a policy or a preset to play; repeat it to compare")
	flags.StringVar(&f.format, "format", "", "the format of the log: jsonl, clf or har (default found by the first line)")
	flags.StringVar(&f.time, "time-field", "", "the JSON field with the time, such as request.started_at (default one of the usual names)")
	flags.StringVar(&f.duration, "duration-field", "", "the JSON field with the duration (default one of the usual names)")
	flags.StringVar(&f.unit, "duration-unit", "", "the unit of durations: s, ms, us or ns (default s, or what the field's name ends in)")
	flags.StringArrayVar(&f.costs, "cost-field", nil, "a JSON field with a cost, as unit=field, such as tokens=usage.total_tokens; repeat it for several units")
	flags.DurationVar(&f.answers, "answers", 100*time.Millisecond, "how long a response takes whose duration is not in the log")
	flags.DurationVar(&f.maxWait, "max-wait", 0, "refuse requests that would wait for longer (default what the policy says)")
	flags.StringVar(&f.request, "request", "", "the request to play, for a preset with several quotas, as 'GET https://host/path'")
	flags.BoolVar(&f.strict, "strict", false, "stop at the first line that can't be read")
}

// A replayResult is the result of the verb replay.
type replayResult struct {
	File     string      `json:"file"`
	Format   string      `json:"format"`
	Requests int64       `json:"requests"`
	BadLines int64       `json:"bad_lines"`
	Bad      []string    `json:"first_bad_lines,omitempty"`
	Moved    int64       `json:"moved_requests,omitempty"` // too far out of order
	Assumed  int64       `json:"assumed_durations"`        // requests whose duration is not in the log
	From     time.Time   `json:"from"`
	To       time.Time   `json:"to"`
	Policies []*replayed `json:"policies"`
}

// A replayed is what a policy does to the requests.
type replayed struct {
	Policy   string      `json:"policy"`
	Limits   string      `json:"limits,omitempty"` // of a preset
	Waited   int64       `json:"waited"`
	Wait     waits       `json:"wait"`
	Queue    int         `json:"longest_queue"`
	QueueAt  *time.Time  `json:"longest_queue_at,omitempty"`
	Bound    []tierCount `json:"waited_for"`
	Refused  refusals    `json:"refused"`
	Provider provider    `json:"without_throttle"`
	End      time.Time   `json:"end"`

	played  played
	traffic *simulate.Traffic
}

// A waits describes the waits of all admitted requests, those that did not wait included.
type waits struct {
	P50   float64 `json:"p50_seconds"`
	P95   float64 `json:"p95_seconds"`
	P99   float64 `json:"p99_seconds"`
	Max   float64 `json:"max_seconds"`
	Total float64 `json:"total_seconds"`
}

// A tierCount is a number of requests for a tier.
type tierCount struct {
	Tier     string `json:"tier"`
	Requests int64  `json:"requests"`
}

// A refusals is how many requests the policy refuses.
type refusals struct {
	Late      int64 `json:"max_wait"`
	Full      int64 `json:"max_queue"`
	Exhausted int64 `json:"budget"`
	TooLarge  int64 `json:"too_large"`
}

// A provider is how many requests a strict provider refuses, and for which of its limits.
type provider struct {
	Refused int64       `json:"refused"`
	By      []tierCount `json:"by"`
}

func (f *replayFlags) play(ctx context.Context, c *command, path string) (*replayResult, error) {
	o, units, err := f.options()
	if err != nil {
		return nil, err
	}
	result := &replayResult{File: path, Policies: []*replayed{}}
	for _, text := range f.policies {
		p, err := parsePlayed(text, f.request, nil)
		if err != nil {
			return nil, err
		}
		if f.maxWait > 0 {
			p.policy.MaxWait = f.maxWait
		}
		result.Policies = append(result.Policies, &replayed{Policy: p.text, played: p})
	}
	file, err := c.open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sorter := traffic.NewSorter(sorted, func(r traffic.Request) error { return result.arrive(r, units, f.answers) })
	if err := result.read(ctx, file, o, sorter, c.Stderr, f.strict); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if result.BadLines > mostNamed {
		fmt.Fprintf(c.Stderr, "throttle: %s: %d lines can't be read\n", path, result.BadLines)
	}
	if result.Moved = sorter.Moved; result.Moved > 0 {
		fmt.Fprintf(c.Stderr, "throttle: %s: %d requests are out of order by more than %d places: they arrive with those before them\n", path, result.Moved, sorted)
	}
	if result.Requests == 0 {
		return nil, fmt.Errorf("%s: no request in it, read as %s: choose another --format, or see --time-field", path, result.Format)
	}
	for _, p := range result.Policies {
		p.finish()
	}
	return result, nil
}

// mostNamed is how many of the lines that can't be read are named.
const mostNamed = 5

// read reads a log into a sorter. It names the first lines that can't be read, or with strict ends at one.
func (r *replayResult) read(ctx context.Context, file io.Reader, o traffic.Options, sorter *traffic.Sorter, stderr io.Writer, strict bool) error {
	format, err := traffic.Read(file, o, func(q traffic.Request) error {
		if r.Requests++; r.Requests%(1<<12) == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		return sorter.Add(q)
	}, func(bad *traffic.LineError) error {
		if strict {
			return bad
		}
		if r.BadLines++; r.BadLines <= mostNamed {
			r.Bad = append(r.Bad, bad.Error())
			fmt.Fprintf(stderr, "throttle: %s: %v\n", r.File, bad)
		}
		return nil
	})
	r.Format = string(format)
	if err != nil {
		return err
	}
	return sorter.Flush()
}

var durationUnits = map[string]time.Duration{"": 0, "s": time.Second, "ms": time.Millisecond, "us": time.Microsecond, "µs": time.Microsecond, "ns": time.Nanosecond}

// options returns how to read the log, and the units of the costs.
func (f *replayFlags) options() (o traffic.Options, units []string, err error) {
	switch unit, ok := durationUnits[f.unit]; {
	case len(f.policies) == 0:
		return o, nil, usagef("replay needs a policy to play, such as --policy '5/s + 10000/h'")
	case !slices.Contains([]string{"", "jsonl", "clf", "har"}, f.format):
		return o, nil, usagef("--format is %q: it must be jsonl, clf or har", f.format)
	case !ok:
		return o, nil, usagef("--duration-unit is %q: it must be s, ms, us or ns", f.unit)
	case f.maxWait < 0:
		return o, nil, usagef("--max-wait is %v: it must be at least 0", f.maxWait)
	default:
		o = traffic.Options{Format: traffic.Format(f.format), Time: f.time, Duration: f.duration, Unit: unit}
	}
	if err := checkAnswers(f.answers); err != nil {
		return o, nil, err
	}
	for _, text := range f.costs {
		unit, field, ok := strings.Cut(text, "=")
		if !ok || field == "" || slices.Contains(units, unit) {
			return o, nil, usagef("--cost-field is %q: write a unit and a JSON field, each unit once, such as tokens=usage.total_tokens", text)
		}
		units, o.Amounts = append(units, unit), append(o.Amounts, field)
	}
	return o, units, nil
}

// arrive plays a request under each policy.
func (r *replayResult) arrive(q traffic.Request, units []string, answers time.Duration) error {
	if at := time.Unix(0, q.At); r.From.IsZero() {
		r.From, r.To = at, at
	} else {
		r.To = at
	}
	a := simulate.Arrival{At: q.At, Answers: q.Took, Cost: q.Amount}
	if q.Took < 0 {
		a.Answers = answers
		r.Assumed++
	}
	for _, p := range r.Policies {
		if p.traffic == nil {
			t, err := simulate.NewTraffic(p.played.policy, p.played.cost, r.From, units, nil)
			if err != nil {
				return playError(p.Policy, err)
			}
			p.traffic = t
		}
		if err := p.traffic.Arrive(a); err != nil {
			return playError(p.Policy, err)
		}
	}
	return nil
}

// playError names the policy of an error, which is one of usage if no request can ever be played.
func playError(policy string, err error) error {
	err = fmt.Errorf("%s: %w", policy, err)
	var never *simulate.NeverError
	if errors.As(err, &never) {
		return &usageError{err}
	}
	return err
}

// finish counts what has become of the requests.
func (p *replayed) finish() {
	t := p.traffic
	if limits := p.played.policy.String(); limits != p.Policy {
		p.Limits = limits
	}
	slices.Sort(t.Waits)
	p.Waited = int64(len(t.Waits))
	admitted := t.Fates[simulate.Admitted]
	at := func(percent int64) float64 {
		rank := (admitted*percent + 99) / 100 // from 1
		if i := rank - 1 - (admitted - p.Waited); i >= 0 && i < p.Waited {
			return time.Duration(t.Waits[i]).Seconds()
		}
		return 0
	}
	p.Wait = waits{P50: at(50), P95: at(95), P99: at(99), Max: at(100)}
	total := int64(0) // in microseconds: in nanoseconds it might be too large
	for _, w := range t.Waits {
		total += w / 1000
	}
	p.Wait.Total = float64(total) / 1e6
	if p.Queue = t.Longest; p.Queue > 0 {
		p.QueueAt = &t.LongestAt
	}
	tiers := t.Tiers()
	p.Bound, p.Provider.By = []tierCount{}, []tierCount{}
	for i, n := range t.ByTier {
		p.Bound = append(p.Bound, tierCount{tiers[i], n})
	}
	for i, n := range t.Provider {
		p.Provider.Refused += n
		p.Provider.By = append(p.Provider.By, tierCount{tiers[i], n})
	}
	p.Refused = refusals{t.Fates[simulate.Late], t.Fates[simulate.Full], t.Fates[simulate.Exhausted], t.Fates[simulate.TooLarge]}
	p.End = t.End
}

// text returns the result for people, in lines of a width.
func (r *replayResult) text(width int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s\n%s to %s", plural(r.Requests, "request"), r.File, clock(r.From), clock(r.To))
	if span := r.To.Sub(r.From); span > 0 {
		fmt.Fprintf(&b, "\n%s, %s on average", length(span), rate(float64(r.Requests)/span.Seconds()))
	}
	b.WriteString("\n")
	for rest := r.Policies; len(rest) > 0; {
		n := len(rest)
		table := r.table(rest)
		for ; n > 1 && widest("  ", table) > width; n-- {
			table = r.table(rest[:n-1])
		}
		b.WriteString("\n" + aligned("  ", table))
		rest = rest[n:]
	}
	return b.String()
}

// widest returns the width of a table.
func widest(indent string, rows [][]string) (width int) {
	for _, line := range strings.Split(aligned(indent, rows), "\n") {
		width = max(width, len([]rune(line)))
	}
	return width
}

// table returns policies side by side.
func (r *replayResult) table(policies []*replayed) [][]string {
	row := func(name string, cell func(*replayed) string) []string {
		cells := []string{name}
		for _, p := range policies {
			cells = append(cells, cell(p))
		}
		return cells
	}
	part := func(n int64) string {
		if n == 0 {
			return "0"
		}
		return fmt.Sprintf("%s, %s", thousands(n), percent(float64(n)/float64(r.Requests)))
	}
	rows := [][]string{
		row("", func(p *replayed) string { return p.Policy }),
		row("waited", func(p *replayed) string { return part(p.Waited) }),
	}
	rows = append(rows, tierRows(policies, "  for ", func(p *replayed) []tierCount { return p.Bound })...)
	rows = append(rows,
		row("half waited up to", func(p *replayed) string { return length(ofSeconds(p.Wait.P50)) }),
		row("95 % waited up to", func(p *replayed) string { return length(ofSeconds(p.Wait.P95)) }),
		row("99 % waited up to", func(p *replayed) string { return length(ofSeconds(p.Wait.P99)) }),
		row("longest wait", func(p *replayed) string { return length(ofSeconds(p.Wait.Max)) }),
		row("all waits together", func(p *replayed) string { return length(ofSeconds(p.Wait.Total)) }),
		row("longest queue", func(p *replayed) string { return thousands(int64(p.Queue)) }),
	)
	for _, f := range []struct {
		name string
		n    func(refusals) int64
	}{
		{"refused for max_wait", func(r refusals) int64 { return r.Late }},
		{"refused for max_queue", func(r refusals) int64 { return r.Full }},
		{"refused by a budget", func(r refusals) int64 { return r.Exhausted }},
		{"refused as too large", func(r refusals) int64 { return r.TooLarge }},
	} {
		if slices.ContainsFunc(policies, func(p *replayed) bool { return f.n(p.Refused) > 0 }) {
			rows = append(rows, row(f.name, func(p *replayed) string { return part(f.n(p.Refused)) }))
		}
	}
	rows = append(rows, row("without throttle,", func(*replayed) string { return "" }),
		row("a provider refuses", func(p *replayed) string { return part(p.Provider.Refused) }))
	return append(rows, tierRows(policies, "  by ", func(p *replayed) []tierCount { return p.Provider.By })...)
}

// short returns a short name of a tier.
func (p *replayed) short(tier string) string { return shortTier(tier, p.traffic.Tiers()) }

// tierRows returns a row for each tier of the policies, if a policy has several.
func tierRows(policies []*replayed, lead string, counts func(*replayed) []tierCount) (rows [][]string) {
	var tiers []string
	several := false
	for _, p := range policies {
		several = several || len(counts(p)) > 1
		for _, c := range counts(p) {
			if name := p.short(c.Tier); !slices.Contains(tiers, name) {
				tiers = append(tiers, name)
			}
		}
	}
	if !several {
		return nil
	}
	for _, tier := range tiers {
		row := []string{lead + tier}
		for _, p := range policies {
			cell := ""
			for _, c := range counts(p) {
				if p.short(c.Tier) == tier {
					cell = thousands(c.Requests)
				}
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return rows
}
