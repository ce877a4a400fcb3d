package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/apithrottle/throttle"
)

func (c *command) wait() *cobra.Command {
	var f turnFlags
	cmd := &cobra.Command{
		Use:   "wait --policy LIMITS --name NAME",
		Short: "Wait for a turn in a quota",
		Long: `Wait for a turn in a quota, and charge it. The script sends its request then.

` + turnHelp + `

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
				return &configError{fmt.Errorf("policy %q counts until the end of a request: use exec, which knows it", t.policy.Name)}
			}
			began := time.Now()
			permit, err := t.wait(cmd.Context())
			if r, ok := t.refusal(err, time.Since(began)); ok && c.json {
				if err := json.NewEncoder(c.Stdout).Encode(r); err != nil {
					return err
				}
				return &exitError{exitRefused}
			}
			if err != nil {
				return err
			}
			permit.Release()
			r := waitResult{Admitted: true, Waited: time.Since(began).Seconds(), Name: t.policy.Name}
			return c.print(r, func(io.Writer) error { return nil })
		},
	}
	f.register(cmd)
	return cmd
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
