package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
)

// controlToken is the variable with the token for a proxy.
const controlToken = "THROTTLE_CONTROL_TOKEN"

// controlFlags are the flags of pause, resume and forget.
type controlFlags struct {
	statusFlags
	tokenFile string

	length time.Duration
	reason string
}

func (f *controlFlags) register(cmd *cobra.Command) {
	f.statusFlags.register(cmd)
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "", "read the token for --page from this `file` (default $"+controlToken+")")
}

// A controlResult is the result of pause, resume and forget, which is that of the proxy for every quota.
type controlResult proxy.Paused

const controlHelp = `A quota is one of a file or a server, as exec and wait use it: give the policy that
they give, and the name. --config FILE finds both in a configuration file. Or it
is a quota of a running proxy, whose page is --page: that needs the proxy's
control token, in a file or in $` + controlToken + `.

Exit codes: 64 bad usage, 69 the file, server or proxy does not answer, 78 a bad
policy or configuration, 1 the proxy refuses.`

func (c *command) pause() *cobra.Command {
	var f controlFlags
	cmd := &cobra.Command{
		Use:        "pause --policy LIMITS --name NAME [--for TIME] [FLAG...]",
		Short:      "Pause a quota: its requests wait",
		SuggestFor: []string{"stop", "suspend"},
		Long: `Pause a quota. All requests that share it wait until the pause ends, in all
processes and on all hosts. Requests that may not wait so long are refused. A
longer pause that is in force stays as it is.

` + controlHelp,
		Example: `  throttle pause --policy '5/s + 10000/h' --name coinbase --for 5m
  throttle pause --redis redis://localhost:6379 --policy 100/min --name mail
  throttle pause --page http://127.0.0.1:7411/_throttle/ --name acme --for 1h --reason 'incident 7'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.length < time.Millisecond || f.length > algorithms.MaxWindow {
				return usagef("--for is %v: it must be at least 1ms and at most %d years", f.length, algorithms.MaxWindow/(365*24*time.Hour))
			}
			return c.control(cmd, &f)
		},
	}
	f.register(cmd)
	cmd.Flags().DurationVar(&f.length, "for", time.Hour, "the `time` that the pause takes")
	cmd.Flags().StringVar(&f.reason, "reason", "", "a `text` for the page of the proxy, and for the result; a file and a server do not keep it")
	return cmd
}

func (c *command) resume() *cobra.Command {
	var f controlFlags
	cmd := &cobra.Command{
		Use:        "resume --policy LIMITS --name NAME [FLAG...]",
		Short:      "End the pause of a quota",
		SuggestFor: []string{"continue", "unpause"},
		Long: `End the pause or the ban of a quota: its requests go on, within the limits, in all
processes and on all hosts.

` + controlHelp,
		Example: `  throttle resume --policy '5/s + 10000/h' --name coinbase
  throttle resume --page http://127.0.0.1:7411/_throttle/ --name acme`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.control(cmd, &f) },
	}
	f.register(cmd)
	return cmd
}

func (c *command) forget() *cobra.Command {
	var f controlFlags
	cmd := &cobra.Command{
		Use:        "forget --policy LIMITS --name NAME [FLAG...]",
		Short:      "Forget what a quota has learned and followed",
		SuggestFor: []string{"unlearn", "reset"},
		Long: `Forget the rates that tiers with learn have found by refusals, and the limits that
tiers with follow have taken over from responses. Both start again at the limits of
the policy, in all processes and on all hosts. What is used stays used.

To fix a rate instead, write it into the policy without learn or follow: throttle
status prints the tier to paste.

` + controlHelp,
		Example: `  throttle forget --policy '5/s;algo=gcra;burst=1;learn=1000' --name acme
  throttle forget --config throttle.yaml --name acme
  throttle forget --page http://127.0.0.1:7411/_throttle/ --name acme`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.control(cmd, &f) },
	}
	f.register(cmd)
	return cmd
}

// control changes the quota that flags name, and writes what it is now.
func (c *command) control(cmd *cobra.Command, f *controlFlags) error {
	verb := cmd.Name()
	place, err := f.place(verb)
	if err == nil {
		err = errors.Join(checkText("name", f.name), checkText("reason", f.reason))
	}
	switch {
	case err != nil:
		return err
	case f.name == "" && place != "policy":
		return usagef("%s needs --name: the name of the quota", verb)
	case place != "page" && f.tokenFile != "":
		return usagef("--token-file is of --page: leave it out")
	}
	change := c.controlStore
	if place == "page" {
		change = c.controlProxy
	}
	done, err := change(cmd.Context(), verb, f)
	if err != nil {
		return err
	}
	r := controlResult(done)
	return c.print(r, func() string { return r.text(verb) })
}

// controlStore changes a quota of a store.
func (c *command) controlStore(ctx context.Context, verb string, f *controlFlags) (done proxy.Paused, err error) {
	var names []string
	if f.name != "" {
		names = []string{f.name}
	}
	all, err := c.quotasOf(verb, f.statusFlags, names)
	if err != nil {
		return done, err
	}
	opened, closer, err := c.openQuotas(all)
	if err != nil {
		return done, err
	}
	defer closer()
	q := opened[0]
	err = q.store.patiently(func() (err error) {
		first := done
		done, err = proxy.Change(ctx, q.Limiter, verb, f.length)
		done.Was = cmp.Or(first.Was, done.Was)
		if first.Forgot != nil {
			done.Forgot = first.Forgot
		}
		return err
	})
	done.Name, done.Reason = q.label, f.reason
	return done, err
}

// text returns the result in a sentence.
func (r controlResult) text(verb string) string {
	text := "is not paused"
	switch {
	case verb == "forget" && r.Forgot == nil:
		text = "had nothing to forget"
	case verb == "forget":
		text = "has forgotten this: " + strings.Join(r.Forgot, ". ")
	case r.Until != nil:
		text = fmt.Sprintf("is paused for %s, until %s", shortTime(ofSeconds(r.Paused)), r.Until.Format("2006-01-02 15:04:05 UTC"))
	case r.Was != nil && *r.Was > 0:
		text = fmt.Sprintf("goes on: its pause had %s left", shortTime(ofSeconds(*r.Was)))
	case r.Was != nil:
		text = "was not paused"
	}
	return plain(r.Name) + " " + text + "\n"
}

// controlProxy changes a quota of a proxy.
func (c *command) controlProxy(ctx context.Context, verb string, f *controlFlags) (done proxy.Paused, err error) {
	u, err := parsePage(f.page)
	if err != nil {
		return done, err
	}
	token, err := c.controlToken(f.tokenFile)
	if err != nil {
		return done, err
	}
	body := proxy.Wish{Name: f.name, Reason: f.reason}
	if f.length > 0 {
		body.For = f.length.String()
	}
	text, err := json.Marshal(body)
	if err != nil {
		return done, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.JoinPath(verb).String(), bytes.NewReader(text))
	if err != nil {
		return done, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{
		Timeout:       10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it would receive the token
	}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return done, &storeError{"proxy " + u.Redacted(), withoutURL(err)}
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return done, refusedByProxy(u.Redacted(), resp)
	}
	done = proxy.Paused{Name: f.name, Paused: f.length.Seconds()}
	_ = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&done)
	done.Name, done.Reason = cmp.Or(done.Name, f.name), f.reason
	done.Lasts(ofSeconds(done.Paused)) // a longer pause stays
	return done, nil
}

// controlToken returns the token for a proxy. Errors do not contain it.
func (c *command) controlToken(path string) (string, error) {
	token := c.Getenv(controlToken)
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", usagef("--token-file: %w", err)
		}
		token = string(text)
	}
	token = strings.TrimSpace(token)
	switch {
	case token == "" && path != "":
		return "", usagef("--token-file %s is empty: write the control token of the proxy into it", path)
	case token == "":
		return "", usagef("--page needs the control token of the proxy: set $%s, or name a file with --token-file", controlToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", usagef("the control token has blanks or characters outside of ASCII: it must be one word")
	}
	return token, nil
}

// refusedByProxy returns the error of a response that is no success.
func refusedByProxy(where string, resp *http.Response) error {
	var problem struct{ Detail, Title string }
	_ = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&problem)
	text := cmp.Or(problem.Detail, problem.Title)
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		text = cmp.Or(text, "the control token is wrong, or the proxy has none")
	case http.StatusNotFound:
		text = cmp.Or(text, "there is no such page: the proxy is too old, or --page is not its page")
	}
	err := fmt.Errorf("%s: %s", resp.Status, plain(text))
	if resp.StatusCode >= 500 {
		return &storeError{"proxy " + where, err}
	}
	return fmt.Errorf("the proxy %s refuses: %w", where, err)
}
