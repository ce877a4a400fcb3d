package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/internal/simulate"
	"github.com/spf13/cobra"
)

// mostRequests is the largest number of requests that can be planned.
const mostRequests = 1_000_000_000_000

func (c *command) plan() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:        "plan LIMITS... COUNT [FLAG...]",
		Short:      "Compute how long a batch takes, and which limit decides",
		SuggestFor: []string{"simulate", "estimate"},
		Long: `Compute how long a batch of COUNT requests takes, which limit decides when, and how
many requests go in an hour. plan sends nothing: it plays the limiter in virtual
time.

LIMITS is a text such as '5/s + 10000/h', or a preset such as github. plan compares
several of them. With --pool they are the members of one pool: each request goes
to the one that admits it first.

--price adds what the batch costs in dollars, for requests with the numbers of tokens
in --tokens: input from no cache, cached, written to a cache, and output. A budget
such as $500/month is compared with that. The tokens are also what policies count
as tokens, input_tokens and output_tokens, if --cost does not name them.

Exit codes: 64 bad usage, 78 a bad policy.`,
		Example: `  throttle plan '5/s + 10000/h' 40000
  throttle plan '5/s + 10000/h' '5/s + 20000/h' 40000 --workers 8 --answers 300ms
  throttle plan etherscan 100000
  throttle plan openai:requests=500,tokens=30000 2000 --cost tokens=800 \
    --request 'POST https://api.openai.com/v1/responses'
  throttle plan github 20000 --request 'GET https://api.github.com/repos/o/r'
  throttle plan 300/min 100/min 40000 --pool
  throttle plan '500/min + $500/month' 2000 --price openai/gpt-4o --tokens input=600,cached=200,output=300
  throttle plan '$20/day' 100000 --prices ours.json --price our-model --tokens input=600,output=300 --batch`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usagef("plan needs a policy and a number of requests, such as '5/s + 10000/h' 40000")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			result, err := f.play(cmd.Context(), args[:len(args)-1], args[len(args)-1])
			if err != nil {
				return err
			}
			return c.print(result, func() string { return result.text(c.width()) })
		},
	}
	flags := cmd.Flags()
	flags.Int64Var(&f.workers, "workers", 0, "the largest `number` of requests at the same time (default as many as the policy admits)")
	flags.DurationVar(&f.answers, "answers", 100*time.Millisecond, "the `time` that a response takes")
	flags.StringSliceVar(&f.costs, "cost", nil, "what a request costs, as `unit=n`, with commas between several")
	flags.StringVar(&f.start, "start", "", "the `time` at which the batch begins, as 2006-01-02T15:04:05Z (default now)")
	flags.StringVar(&f.request, "request", "", "the `request` to play, for a preset with several quotas, as 'GET https://host/path'")
	f.price.register(flags)
	flags.BoolVar(&f.pool, "pool", false, "plan one batch over all of the policies, as the members of a pool")
	return cmd
}

type planFlags struct {
	pool           bool
	workers        int64
	answers        time.Duration
	costs          []string
	start, request string
	price          priceFlags
}

// A planResult is the result of the verb plan.
type planResult struct {
	Requests int64     `json:"requests"`
	Workers  int64     `json:"workers,omitempty"` // if none, any number
	Answers  float64   `json:"answers_seconds"`
	Start    time.Time `json:"start"`
	Plans    []*plan   `json:"plans"`

	Price *priceResult `json:"price,omitempty"`

	Pool *poolPlan `json:"pool,omitempty"` // whose members have the plans
}

// A poolPlan is how the batch goes over the policies of a pool.
type poolPlan struct {
	Admitted int64     `json:"admitted"`
	Seconds  float64   `json:"duration_seconds"`
	End      time.Time `json:"end"`
	Average  float64   `json:"requests_per_second"`
	Refused  bool      `json:"refused,omitempty"` // the budgets refuse the others
}

// A plan is how the batch goes under one policy.
type plan struct {
	Policy   string       `json:"policy"`
	Limits   string       `json:"limits,omitempty"` // of a preset
	Admitted int64        `json:"admitted"`
	Seconds  float64      `json:"duration_seconds"`
	End      time.Time    `json:"end"`
	Average  float64      `json:"requests_per_second"`
	Bound    []bound      `json:"bound"`
	Segments []segment    `json:"segments"`
	Every    float64      `json:"interval_seconds"` // of Counts
	Counts   []int64      `json:"requests_per_interval"`
	Enough   int64        `json:"enough_workers,omitempty"` // if the workers bind
	Fastest  float64      `json:"enough_workers_duration_seconds,omitempty"`
	Refused  *planRefusal `json:"refused,omitempty"`

	Budgets []budgetResult `json:"budgets,omitempty"` // in dollars, compared with what the batch costs

	run *simulate.Run
}

// A bound is how long a reason makes requests wait, if that is a thousandth of the time at least.
type bound struct {
	By      string  `json:"by"`
	Seconds float64 `json:"seconds"`
	Share   float64 `json:"share"` // of the time until the last request goes
}

// A segment is a time in which one reason binds.
type segment struct {
	From     float64 `json:"from_seconds"`
	To       float64 `json:"to_seconds"`
	By       string  `json:"by"`
	Requests int64   `json:"requests"`
}

// A planRefusal is the request that a budget refuses.
type planRefusal struct {
	Request int64     `json:"request"`
	After   float64   `json:"after_seconds"`
	Tier    string    `json:"tier"`
	Until   time.Time `json:"until"`
}

func (f *planFlags) play(ctx context.Context, policies []string, count string) (*planResult, error) {
	result, cost, err := f.read(count)
	if err != nil {
		return nil, err
	}
	if result.Price, err = f.price.read(policies); err != nil {
		return nil, err
	}
	named := cost
	if result.Price != nil {
		cost = result.Price.add(cost)
		result.Price.Total = float64(result.Requests) * result.Price.Request
	}
	counted := map[string]bool{algorithms.Requests: true}
	var all []played
	var batches []simulate.Batch
	for _, text := range policies {
		p, err := parsePlayed(text, f.request, cost)
		if err != nil {
			return nil, err
		}
		for _, t := range p.policy.Tiers {
			counted[cmp.Or(t.Unit, algorithms.Requests)] = true
		}
		all = append(all, p)
		batches = append(batches, simulate.Batch{Policy: p.policy, Count: result.Requests, Cost: p.cost, Workers: f.workers, Answers: f.answers, Start: result.Start})
	}
	if f.pool {
		if result.Pool, err = share(ctx, batches); err != nil {
			return nil, err
		}
	}
	for i, p := range all {
		one, err := playOne(ctx, batches[i], p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.text, err)
		}
		if result.Price != nil {
			result.Price.compare(one, p.policy, batches[i].Count)
		}
		result.Plans = append(result.Plans, one)
	}
	for unit := range named {
		if !counted[unit] {
			return nil, usagef("no policy counts %s, which --cost names", unit)
		}
	}
	return result, nil
}

// read checks the flags. It returns a result without plans, and what a request costs.
func (f *planFlags) read(count string) (*planResult, throttle.Cost, error) {
	n, err := strconv.ParseInt(strings.NewReplacer(",", "", "_", "").Replace(count), 10, 64)
	switch {
	case err != nil || n < 0 || n > mostRequests:
		return nil, nil, usagef("the number of requests is %q: it must be a whole number from 0 to %d, after the policies", count, int64(mostRequests))
	case f.workers < 0:
		return nil, nil, usagef("--workers is %d: it must be at least 1, or 0 for as many as the policy admits", f.workers)
	case f.pool && f.workers > 0:
		return nil, nil, usagef("--pool plans for as many workers as the policies admit: leave --workers out")
	}
	if err := checkAnswers(f.answers); err != nil {
		return nil, nil, err
	}
	start, err := parseStart(f.start)
	if err != nil {
		return nil, nil, err
	}
	cost, err := parseCosts(f.costs)
	return &planResult{Requests: n, Workers: f.workers, Answers: f.answers.Seconds(), Start: start}, cost, err
}

// share makes batches the parts of one batch that goes over the policies of all.
func share(ctx context.Context, batches []simulate.Batch) (*poolPlan, error) {
	pooled, err := simulate.PlayPool(ctx, batches)
	if err != nil {
		var never *simulate.NeverError
		if errors.As(err, &never) {
			err = &usageError{err}
		}
		return nil, err
	}
	p := &poolPlan{Seconds: pooled.Length.Seconds(), End: batches[0].Start.Add(pooled.Length), Refused: pooled.Refused}
	for i, n := range pooled.Shares {
		p.Admitted += n
		if batches[i].Count = n; n == 0 {
			batches[i].Cost = nil // which the policy may never admit
		}
	}
	if p.Seconds > 0 {
		p.Average = float64(p.Admitted) / p.Seconds
	}
	return p, nil
}

// parseStart parses an instant. If empty, it is now.
func parseStart(text string) (time.Time, error) {
	if text == "" {
		return time.Now().Truncate(time.Second), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			if at.Year() < 1970 || at.Year() > 2099 {
				return at, usagef("--start is %q: it must be in the years from 1970 to 2099", text)
			}
			return at, nil
		}
	}
	return time.Time{}, usagef("--start is %q: write it as 2006-01-02, 2006-01-02T15:04 or 2006-01-02T15:04:05Z", text)
}

// mostAnswers is the longest time that a response can take.
const mostAnswers = 10_000 * time.Hour

// checkAnswers returns an error for a time that no response can take.
func checkAnswers(d time.Duration) error {
	if d < 0 || d > mostAnswers {
		return usagef("--answers is %v: it must be at least 0s and at most %.0fh", d, mostAnswers.Hours())
	}
	return nil
}

// parseCosts parses amounts, each as unit=n.
func parseCosts(costs []string) (throttle.Cost, error) {
	var cost throttle.Cost
	for _, text := range costs {
		unit, amount, ok := strings.Cut(text, "=")
		n, err := strconv.ParseInt(amount, 10, 64)
		if !ok || err != nil || n < 0 {
			return nil, usagef("--cost is %q: write a unit and a whole number, such as tokens=800", text)
		}
		if _, twice := cost[unit]; twice {
			return nil, usagef("--cost names %s twice", unit)
		}
		if cost == nil {
			cost = throttle.Cost{}
		}
		cost[unit] = n
	}
	return cost, nil
}

func playOne(ctx context.Context, b simulate.Batch, p played) (*plan, error) {
	run, err := b.Play(ctx)
	if err != nil {
		var never *simulate.NeverError
		if errors.As(err, &never) {
			err = &usageError{err}
		}
		return nil, err
	}
	one := &plan{
		Policy: p.text, Admitted: run.Total(), Seconds: run.Length().Seconds(), End: run.End(),
		run: run, Bound: []bound{}, Segments: []segment{}, Counts: []int64{},
	}
	if limits := p.policy.String(); limits != p.text {
		one.Limits = limits
	}
	if one.Seconds > 0 {
		one.Average = float64(one.Admitted) / one.Seconds
	}
	workers := one.bounds()
	for _, s := range run.Segments() {
		one.Segments = append(one.Segments, segment{s.From.Seconds(), s.To.Seconds(), reason(run, s.By), s.Requests})
	}
	every := interval(run.Length())
	one.Every = every.Seconds()
	for at, done := time.Duration(0), int64(0); done < run.Total(); at += every {
		n := run.Admitted(at + every - 1)
		one.Counts, done = append(one.Counts, n-done), n
	}
	if r := run.Refused; r != nil {
		one.Refused = &planRefusal{r.Request, r.At.Seconds(), run.Tiers()[r.Tier], r.Until}
	}
	if workers > 1.0/200 && b.Workers > 0 {
		if n, length := b.Enough(ctx, run); n > 0 {
			one.Enough, one.Fastest = n, length.Seconds()
		}
	}
	return one, nil
}

// bounds fills in what requests wait for, and returns the share of the workers.
func (p *plan) bounds() (workers float64) {
	all, waits := time.Duration(0), p.run.Waited(0, p.run.Length())
	for _, waited := range waits {
		all += waited
	}
	for i, waited := range waits {
		if waited > all/1000 {
			p.Bound = append(p.Bound, bound{reason(p.run, i-1), waited.Seconds(), float64(waited) / float64(all)})
		}
	}
	return float64(waits[0]) / float64(max(1, all))
}

// reason returns what requests wait for: the workers, which are below zero, or a tier.
func reason(run *simulate.Run, by int) string {
	if by < 0 {
		return "workers"
	}
	return run.Tiers()[by]
}

// interval returns the time for which requests are counted: a second, minute, hour or day, of which
// there are a few at least and not too many.
func interval(length time.Duration) time.Duration {
	const day = 24 * time.Hour
	for _, every := range []time.Duration{day, time.Hour, time.Minute} {
		if length > 2*every {
			return every
		}
	}
	return time.Second
}
