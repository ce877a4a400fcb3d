package cli

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
)

const (
	mostReasons  = 1_000 // that are told apart
	shownReasons = 5
	shownKeys    = 3 // of a reason
	leastKey     = 4 // bytes of a key that a reason may name, without being another reason
)

// reasons are why items have failed.
type reasons map[string]*failure

// A failure is why some items have failed.
type failure struct {
	Text  string   `json:"reason"`
	Count int      `json:"count"`
	Keys  []string `json:"keys"` // of the first items
}

func (r *reasons) add(text, key string) {
	if *r == nil {
		*r = reasons{}
	}
	if len(key) >= leastKey {
		text = strings.ReplaceAll(text, key, "…")
	}
	if (*r)[text] == nil && len(*r) >= mostReasons {
		text = "other reasons"
	}
	of := (*r)[text]
	if of == nil {
		of = &failure{Text: text}
		(*r)[text] = of
	}
	if of.Count++; len(of.Keys) < shownKeys {
		of.Keys = append(of.Keys, key)
	}
}

// sorted returns the reasons, the most frequent one first.
func (r reasons) sorted() []*failure {
	return slices.SortedFunc(maps.Values(r), func(a, b *failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Text, b.Text))
	})
}

// A batchSummary is the result of batch.
type batchSummary struct {
	Done     int64      `json:"done"`
	Before   int64      `json:"done_before"` // by earlier runs
	Failed   int64      `json:"failed"`
	Left     *int64     `json:"left,omitempty"` // nil if that is not known
	Retried  int64      `json:"retried"`
	Elapsed  float64    `json:"elapsed_seconds"`
	Bound    string     `json:"bound,omitempty"`
	Reasons  []*failure `json:"failures,omitempty"`
	Journal  string     `json:"journal,omitempty"`
	Resume   string     `json:"resume,omitempty"` // the command that goes on
	Error    string     `json:"error,omitempty"`
	ExitCode int        `json:"exit_code"`
}

// summary writes the summary, and returns the error of the job.
func (b *batchJob) summary() error {
	err := b.jobError()
	s := b.summarize(err)
	if b.json {
		if wrong := writeJSON(b.Stderr, s); wrong != nil {
			return wrong
		}
	} else if !b.flags.quiet || err != nil {
		b.write(s)
	}
	var interrupted *exitError
	switch {
	case err == nil || b.json || errors.As(err, &interrupted):
		return codeError(s.ExitCode)
	}
	return err
}

func codeError(code int) error {
	if code == exitOK {
		return nil
	}
	return &exitError{code}
}

// errItemsFailed is the error of a job of which items have failed.
var errItemsFailed = &exitError{exitFailure}

// jobError returns the error of the job, or that items have failed.
func (b *batchJob) jobError() error {
	switch {
	case errors.Is(b.err, throttle.ErrUnavailable):
		return b.turn.store.error(b.err)
	case b.err == nil && b.nFailed > 0:
		return errItemsFailed
	}
	return b.err
}

func (b *batchJob) summarize(err error) batchSummary {
	r := b.report
	s := batchSummary{
		Done: r.Done, Before: r.Skipped, Failed: r.Failed, Retried: r.Retried, Elapsed: r.Elapsed.Seconds(),
		Bound: string(r.Bound), Reasons: b.reasons.sorted(), Journal: b.journal, ExitCode: exitCode(err),
	}
	var code *exitError
	if err != nil && !errors.As(err, &code) {
		s.Error = withoutPasswords(err.Error())
	}
	switch {
	case r.Ended:
		s.Left = &r.Left
	case b.total > 0:
		left := max(0, b.total-r.Done-r.Skipped-r.Failed)
		s.Left = &left
	}
	if b.journal != "" && err != nil {
		s.Resume = withoutPasswords(shellWords(append([]string{"throttle"}, b.args...)))
	}
	return s
}

// write writes a summary for people.
func (b *batchJob) write(s batchSummary) {
	if s.Before > 0 && s.Done == 0 && s.ExitCode == exitOK {
		b.screen.say("all %s items are done: to start anew, remove %s", thousands(s.Before), b.journal)
		return
	}
	text := thousands(s.Done) + " done, " + thousands(s.Failed) + " failed"
	switch {
	case s.Left == nil:
		text += ", others left"
	case *s.Left > 0:
		text += ", " + thousands(*s.Left) + " left"
	}
	if s.Before > 0 {
		text += ", " + thousands(s.Before) + " done before"
	}
	b.screen.say("%s, in %v", text, b.report.Elapsed.Round(time.Millisecond))
	for i, r := range s.Reasons {
		if i == shownReasons {
			b.screen.say("and %d other reasons", len(s.Reasons)-i)
			break
		}
		more := ""
		if r.Count > len(r.Keys) {
			more = ", …"
		}
		keys := make([]string, len(r.Keys))
		for i, key := range r.Keys {
			keys[i] = shorten(key)
		}
		b.screen.say("%d failed: %s (%s%s)", r.Count, r.Text, strings.Join(keys, ", "), more)
	}
	if b.report.Bound == batch.ByAtOnce && b.report.Elapsed > 10*time.Second {
		b.screen.say("--at-once %d has bound it: more commands at the same time use more of the limits, if this machine can run them", b.flags.atOnce)
	}
	switch {
	case s.Resume != "" && b.piped:
		b.screen.say("to go on, give the same input to: %s", s.Resume)
	case s.Resume != "":
		b.screen.say("to go on, and try again what has failed: %s", s.Resume)
	case s.ExitCode != exitOK && b.flags.noJournal:
		b.screen.say("--no-journal keeps nothing: a later run begins at the first item")
	case s.ExitCode != exitOK:
		b.screen.say("nothing is kept without --journal FILE: a later run begins at the first item")
	}
}

// withoutPasswords hides the passwords of URLs.
func withoutPasswords(text string) string { return credentials.ReplaceAllString(text, "${1}xxxxx@") }

// shellWords returns a command as a shell reads it.
func shellWords(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		if words[i] = arg; arg == "" || strings.ContainsFunc(arg, isSpecial) {
			words[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// isSpecial reports whether a character must be quoted in a shell.
func isSpecial(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("@%_+=:,./-", r))
}
