package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/apithrottle/throttle"
)

func (c *command) wait() *cobra.Command {
	var f turnFlags
	cmd := &cobra.Command{
		Use:        "wait --policy LIMITS --name NAME [FLAG...]",
		Short:      "Wait for a turn, before a step of a script",
		SuggestFor: []string{"sleep", "acquire"},
		Long: `Wait for a turn in a quota, and charge the turn. Then the script sends its request.

` + turnHelp + `

` + exitHelp + `

With --json, wait writes {"admitted": true, "waited_seconds": …}, or for a
refusal {"admitted": false, "wait_seconds": …} with the time after which a
request might be admitted.`,
		Example: `  throttle wait --policy '5/s + 10000/h' --name coinbase && curl …
  throttle wait --policy 100/min --name mail --cost requests=20 --max-wait 30s
  throttle wait --policy 5/s --name coinbase --max-wait 0s --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := c.turn(cmd, &f)
			if err != nil {
				return err
			}
			defer t.close()
			if t.holds() {
				return t.errHolds()
			}
			began := time.Now()
			permit, err := t.wait(cmd.Context())
			if err != nil {
				return t.refusedOn(c.Stdout, err, began)
			}
			permit.Release()
			r := waitResult{Admitted: true, Waited: time.Since(began).Seconds(), Name: t.policy.Name}
			return c.print(r, func() string { return "" })
		},
	}
	f.register(cmd)
	return cmd
}

// errHolds returns the error of a verb that does not know when the request ends.
func (t *turn) errHolds() error {
	return &configError{fmt.Errorf("policy %q counts until the end of a request: use exec, which knows it", t.policy.Name)}
}

// holds reports whether a request counts until its end, which somebody must report.
func (t *turn) holds() bool {
	for _, tier := range t.policy.Tiers {
		if tier.Algorithm == throttle.Concurrency || tier.Estimated {
			return true
		}
	}
	return false
}
