package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
)

// batchFlags are the flags of batch.
type batchFlags struct {
	turnFlags
	csv, jsonl, stdin bool
	keyField          string
	atOnce, retries   int
	maxFailed         int
	grace             time.Duration
	journal, results  string
	noJournal         bool
	inOrder           bool
}

func (f *batchFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.registerCharge(flags, throttle.Batch)
	flags.BoolVar(&f.csv, "csv", false, "read records of CSV; the first line has the names of the columns")
	flags.BoolVar(&f.jsonl, "jsonl", false, "read a JSON value from each line")
	flags.StringVar(&f.keyField, "key-field", "", "the `field` of a record that is its key (default its text)")
	flags.BoolVar(&f.stdin, "stdin", false, "write the item to the standard input of the command")
	flags.IntVar(&f.atOnce, "at-once", 100, "`n` commands at the same time, with those that wait for the limits")
	flags.IntVar(&f.retries, "retries", 0, "call a command that fails up to `n` more times")
	flags.IntVar(&f.maxFailed, "max-failed", 100, "end when more than `n` items have failed; -1 allows any number")
	flags.DurationVar(&f.grace, "grace", 10*time.Second, "the `time` that commands have to end after Ctrl-C")
	flags.StringVar(&f.journal, "journal", "", "keep what is done in this `file` (default FILE.journal; of the standard input and pipes none)")
	flags.BoolVar(&f.noJournal, "no-journal", false, "keep nothing: a later run begins at the first item")
	flags.StringVar(&f.results, "results", "", "append the results to this `file`: as JSON lines, or as TSV if its name ends so")
	flags.BoolVar(&f.inOrder, "in-order", false, "write results in the order of the items")
}

func (c *command) batch() *cobra.Command {
	var f batchFlags
	cmd := &cobra.Command{
		Use:        "batch FILE --policy LIMITS [FLAG...] -- COMMAND [ARG...]",
		Short:      "Run a command for each line of a file, resumable",
		SuggestFor: []string{"parallel", "map", "each"},
		Long:       batchHelp + batchExits,
		Example: `  throttle batch urls.txt --policy 5/s -- curl -fsS -O {}
  throttle batch orders.csv --csv --policy stripe --scope search -- ./refund --id {id} --cents {amount}
  throttle batch mails.jsonl --jsonl --stdin --policy 100/min --name mail --results sent.jsonl -- ./send {user.email}`,
		Args: batchArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return c.runBatch(cmd, &f, args[0], args[1:]) },
	}
	f.register(cmd)
	return cmd
}

// batchArgs returns an error for arguments that are not a file and a command.
func batchArgs(cmd *cobra.Command, args []string) error {
	const example = "throttle batch urls.txt --policy 5/s -- curl -fsS {}"
	switch dash := cmd.ArgsLenAtDash(); {
	case len(args) == 0 || dash == 0:
		return usagef("batch needs a file of items, or - for the standard input: %s", example)
	case dash < 0 && len(args) > 1:
		return usagef("batch needs -- before the command: %s", example)
	case dash > 1:
		return usagef("batch takes one file: got %q, too", args[1])
	case len(args) == 1:
		return usagef("batch needs a command behind --: %s", example)
	}
	return nil
}

// batchHelp is what the help of batch says.
const batchHelp = `Run a command for each line of a file, each in its turn. FILE may be - for the
standard input. When it is run again, batch goes on where it was after it was stopped
or killed, and tries again what has failed. Blank lines are skipped.

{} in an argument stands for the line. With --csv {name} stands for a column, and with
--jsonl {a.b} for a field; {} is the whole record. Without a placeholder the item
becomes the last argument, as xargs does it. With --stdin the command reads it from
its standard input instead, which is empty otherwise. No shell reads an item: it stays
a part of one argument, whatever it has. \{name} stands for the text {name}.

An item is done if its command exits with 0. 75 says that the API refused it for lack
of quota: the limits pause, and the command is called again, at least four times. With
any other code it has failed. Its standard error is shown, and --retries calls it
again.

The outputs of commands are written whole when they end. --results appends lines with
key, exit_code and stdout instead: an item that is tried again has a second line,
which counts. A command may write 16 MB.

A journal has the key of each item that is done: its text, or the field that
--key-field names. Lines may be appended, removed or moved meanwhile. A line that
changes is another item. Commands have $THROTTLE_ITEM_KEY, $THROTTLE_TRY (1, 2, …) and
$THROTTLE_IDEMPOTENCY_KEY, which is the same whenever an item is tried again.

After Ctrl-C no command starts, and those that run have --grace to end. Then they
receive SIGTERM, and two seconds later SIGKILL. A second Ctrl-C ends them at once.

Without --name, the limits are for this command alone. With --name, it shares the
quota with exec, wait and all other programs that give that name. Commands are in the
class batch, which leaves the headroom of the limits to others.

`

// batchExits lists the exit codes of batch.
const batchExits = `Exit codes: 64 bad usage, 69 the store of the limits cannot be used, 75 refused for now,
such as by a used-up budget or because the journal is in use, 78 a bad policy, 126 the
command cannot be run, 127 there is no such command, 130 ended by Ctrl-C, 128 + n by
signal n. 1: items have failed, or the file cannot be read. 0: all items are done.`

// A batchJob is a run of batch.
type batchJob struct {
	*command
	flags   *batchFlags
	turn    *turn
	file    string // of the items
	piped   bool   // the items come from the standard input or a pipe
	journal string // empty for none
	sink    sink
	screen  *screen

	report  batch.Report
	total   int64
	nFailed int
	reasons reasons
	end     context.CancelCauseFunc
	err     error // that ended the job
}

// runBatch runs a command for each item of a file.
func (c *command) runBatch(cmd *cobra.Command, f *batchFlags, file string, args []string) error {
	b := &batchJob{command: c, flags: f, file: file, piped: file == "-", screen: newScreen(c)}
	in, err := b.openItems()
	if err != nil {
		return err
	}
	defer in.Close()
	r, err := newReader(in, b.file, f)
	if err != nil {
		return err
	}
	commands, err := b.commands(args, r.columns)
	if err != nil {
		return err
	}
	f.private = f.name == "" && !f.store.given()
	if f.private && f.key != "" {
		return usagef("--key is of --name: add --name, or leave --key out")
	}
	f.class = cmp.Or(f.class, throttle.Batch.String())
	if b.turn, err = c.turn(cmd, &f.turnFlags); err != nil {
		return err
	}
	defer b.turn.close()
	if err := b.turn.answers(cmd.Context()); err != nil {
		return err
	}
	journal, err := b.openJournal()
	if err != nil {
		return err
	}
	if err := b.checkResults(); err != nil {
		return err
	}
	var closer io.Closer
	if b.sink, closer, err = c.openSink(f.results, b.screen.out()); err != nil {
		return err
	}
	defer closer.Close()
	b.run(cmd.Context(), r, commands, journal)
	if journal != nil {
		if err := journal.Close(); b.err == nil {
			b.err = err
		}
	}
	return b.summary()
}

// openItems opens the file of items, and counts them if it can be read twice.
func (b *batchJob) openItems() (io.ReadCloser, error) {
	if err := b.flags.check(); err != nil {
		return nil, err
	}
	in, err := b.open(b.file)
	if err != nil || b.piped {
		b.file = "the standard input"
		return in, inputError(err)
	}
	info, err := os.Stat(b.file)
	switch {
	case err != nil:
	case info.IsDir():
		err = usagef("%s is a directory: name a file of items", b.file)
	case info.Mode().IsRegular():
		b.total, err = b.countItems()
	default:
		b.piped = true // such as <(command) in a shell, whose name is another file in the next run
	}
	if err != nil {
		in.Close()
	}
	return in, err
}

// checkResults returns an error for results that would go to a file that the job itself reads or writes.
func (b *batchJob) checkResults() error {
	results, err := os.Stat(b.flags.results)
	if err != nil {
		return nil // openSink creates it, or tells why not
	}
	for _, path := range []string{b.file, b.journal} {
		if other, err := os.Stat(path); err == nil && os.SameFile(results, other) {
			return usagef("--results is %s, which has the items or is the journal: name another file", b.flags.results)
		}
	}
	return nil
}

// inputError returns the error of a file that cannot be opened.
func inputError(err error) error {
	if err != nil {
		return &usageError{err}
	}
	return nil
}

func (b *batchJob) countItems() (int64, error) {
	in, err := os.Open(b.file)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	r, err := newReader(in, b.file, b.flags)
	if err != nil {
		return 0, err
	}
	return r.count(), nil
}

// check returns an error for flags that no job has.
func (f *batchFlags) check() error {
	switch {
	case f.atOnce < 1:
		return usagef("--at-once is %d: it must be at least 1", f.atOnce)
	case f.retries < 0:
		return usagef("--retries is %d: it must be at least 0", f.retries)
	case f.maxFailed < -1:
		return usagef("--max-failed is %d: it must be at least 0, or -1 for any number", f.maxFailed)
	case f.grace < 0:
		return usagef("--grace is %v: it must be at least 0s", f.grace)
	case f.journal != "" && f.noJournal:
		return usagef("--journal and --no-journal exclude each other: leave one out")
	}
	return nil
}

// commands returns what runs the command. The command is found at once if it is the same for all items.
func (b *batchJob) commands(args, fields []string) (*commands, error) {
	t, err := parseTemplate(args, fields, b.flags.stdin)
	if err != nil {
		return nil, err
	}
	c := &commands{template: t, byStdin: b.flags.stdin}
	if t.isStatic(0) {
		c.path, err = b.find(t[0][0].text)
	}
	return c, err
}

// answers returns an error for a store that does not answer.
func (t *turn) answers(ctx context.Context) error {
	return t.store.patiently(func() error {
		_, err := t.limiter.Status(ctx)
		return err
	})
}

// openJournal opens the journal, if there is to be one.
func (b *batchJob) openJournal() (*batch.Journal, error) {
	if b.journal = b.flags.journal; b.journal == "" && !b.piped {
		b.journal = b.file + ".journal"
	}
	if b.flags.noJournal || b.journal == "" {
		b.journal = ""
		return nil, nil
	}
	j, err := batch.OpenJournal(b.journal, batch.JournalOptions{})
	switch {
	case errors.Is(err, batch.ErrJournalInUse):
		b.screen.say("%s is in use: another run does the same items", b.journal)
		return nil, &exitError{exitRefused}
	case err != nil:
		return nil, errors.New(strings.TrimPrefix(err.Error(), "batch: "))
	}
	if done := j.Done(); done > 0 && !b.isQuiet() {
		b.screen.say("%s has %s items that are done, which are skipped: to start anew, remove it", b.journal, thousands(done))
	}
	return j, nil
}

// isQuiet reports whether only the summary is shown.
func (b *batchJob) isQuiet() bool { return b.flags.quiet || b.json }

// run runs the job.
func (b *batchJob) run(ctx context.Context, r *reader, c *commands, journal *batch.Journal) {
	ctx, killing, stop := b.untilSignals(throttle.WithClass(ctx, b.turn.class))
	defer stop()
	ctx, b.end = context.WithCancelCause(ctx)
	defer b.end(nil)
	c.turn, c.ending, c.killing = b.turn, ctx, killing
	for result, err := range batch.Results(ctx, b.job(ctx, r, c, journal)) {
		switch failed, ok := err.(*batch.ItemError); {
		case ok:
			err = b.fail(failed)
		case err == nil:
			err = b.sink(newOutcome(result.Key, new(int), result.Value, ""))
		}
		if err != nil {
			b.err = cmp.Or(b.err, err)
			break // the item is not done
		}
	}
}

// job returns the job of the package.
func (b *batchJob) job(ctx context.Context, r *reader, c *commands, journal *batch.Journal) batch.Job[string, *record, []byte] {
	bar := func(batch.Progress) {}
	if !b.isQuiet() {
		bar = b.screen.progress()
	}
	grace := b.flags.grace
	if grace == 0 {
		grace = -1
	}
	return batch.Job[string, *record, []byte]{
		Items: r.items(ctx, c.template, b.end), Total: b.total, Do: c.do,
		Limiter: b.turn.limiter, Cost: b.turn.costOf,
		InOrder: b.flags.inOrder, AtOnce: b.flags.atOnce, Grace: grace, Journal: journal,
		Retries: max(leastRetries, b.flags.retries), Retry: retries(b.flags.retries),
		MaxInARow: -1, // fail alone ends the job, because a zero MaxFailed allows any number
		Progress: func(p batch.Progress) {
			if bar(p); p.Final {
				b.report = p.Report
			}
		},
	}
}

// leastRetries is how often a refused command is called again at least.
const leastRetries = 4

// fail shows that an item has failed.
func (b *batchJob) fail(e *batch.ItemError) error {
	reason := reasonOf(e.Err)
	b.reasons.add(reason, e.Key)
	var failed *commandError
	var stdout []byte
	if errors.As(e.Err, &failed) {
		stdout = failed.stdout
	}
	b.screen.failed(e.Key, reason, failed)
	if b.nFailed++; b.flags.maxFailed >= 0 && b.nFailed > b.flags.maxFailed {
		b.end(fmt.Errorf("more than %d items have failed, see --max-failed", b.flags.maxFailed))
	}
	return b.sink(newOutcome(e.Key, exitOf(e.Err), stdout, reason))
}

// untilSignals returns a context that a signal ends, with an exitError as its cause, and one that a second
// signal ends. A third one ends the process.
func (b *batchJob) untilSignals(ctx context.Context) (_, killing context.Context, stop func()) {
	killing, kill := context.WithCancel(context.WithoutCancel(ctx))
	ctx, end := context.WithCancelCause(killing)
	signals := make(chan os.Signal, 2)
	for _, s := range endSignals {
		if !signal.Ignored(s) { // as nohup does
			signal.Notify(signals, s)
		}
	}
	uncatch := catchPipe()
	go func() {
		select {
		case s := <-signals:
			b.screen.say("ending: the commands that run have %v to end; again ends them at once", b.flags.grace)
			end(&exitError{128 + int(s.(syscall.Signal))})
		case <-killing.Done():
			return
		}
		select {
		case <-signals:
			signal.Stop(signals)
			kill()
		case <-killing.Done():
		}
	}()
	return ctx, killing, func() { signal.Stop(signals); uncatch(); end(nil); kill() }
}
