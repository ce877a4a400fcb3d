package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wrongFiles are the files that wrong inputs name.
var wrongFiles = map[string]string{
	"empty":      "",
	"text.txt":   "hello\n",
	"urls.txt":   "https://api.example.com/1\n",
	"people.csv": "id,name\n1,ann\n",
	"twins.csv":  "id,name,id\n1,ann,2\n",
	"ok.yaml":    "routes: {/x: {to: 'https://api.example.com', policy: 5/s}}\n",
	"redis.yaml": "store: {redis: 'redis://127.0.0.1:1'}\nroutes: {/acme: {to: 'https://api.example.com', policy: 5/s}}\n",
	"clients.yaml": "store: {redis: 'redis://127.0.0.1:1'}\nroutes: {/acme: {to: 'https://api.example.com', policy: 5/s}}\n" +
		"clients: {a: {token: 0123456789abcdef, budget: 5/day;budget=true}, b: {token: 1123456789abcdef, budget: 5/day;budget=true}}\n",
	"bytes.yaml": "routes: {/x: {to: 'https://api.example.com', policy: \"\xff\xfe\"}}\n",
	"field.yaml": "routes: {/x: {to: 'https://api.example.com', policy: 5/s, max_wiat: 5s}}\n",
	"unit.yaml":  "routes: {/x: {to: 'https://api.example.com', policy: 5/s, max_wait: 5}}\n",
	"port.yaml":  "listen: 127.0.0.1:99999\nroutes: {/x: {to: 'https://api.example.com', policy: 5/s}}\n",
	"twice.yaml": "routes: {/x: {to: 'https://api.example.com', policy: 5/s, policy: 6/s}}\n",
	"both.yaml":  "routes: {/x: {to: 'https://api.github.com', policy: 5/s, preset: github}}\n",
	"token":      "one two\n",
}

// wrongInputs are commands with a mistake, what they print, and their exit codes. A command is split at
// "|". Each message names the mistake and the fix.
var wrongInputs = []struct {
	args    string
	message string
	code    int
}{
	// Verbs and flags.
	{"exce", `unknown verb "exce": did you mean exec?`, exitUsage},
	{"help|nosuch", `unknown verb "nosuch": throttle --help lists all verbs`, exitUsage},
	{"help|exce", `unknown verb "exce": did you mean exec?`, exitUsage},
	{"run", `unknown verb "run": did you mean exec?`, exitUsage},
	{"stop", `unknown verb "stop": did you mean pause?`, exitUsage},
	{"presets", `unknown verb "presets": did you mean providers?`, exitUsage},
	{"--verison", "throttle has no flag --verison: did you mean --version?", exitUsage},
	{"wait|--polcy|5/s", "throttle wait has no flag --polcy: did you mean --policy?", exitUsage},
	{"wait|--wish", "throttle wait has no flag --wish: see throttle wait --help", exitUsage},
	{"wait|-x", "throttle wait has no flag -x: see throttle wait --help", exitUsage},
	{"wait|--policy", "--policy needs a value: write --policy LIMITS", exitUsage},
	{"wait|--json=perhaps", `--json is "perhaps": write true or false`, exitUsage},
	{"completion|ksh", `completion knows no shell "ksh": use bash, zsh, fish or powershell`, exitUsage},
	{"version|now", `throttle version takes no arguments: got "now"`, exitUsage},
	{"pause|coinbase", `throttle pause takes no arguments: got "coinbase": did you mean --name coinbase?`, exitUsage},
	{"proxy|ok.yaml", `throttle proxy takes no arguments: got "ok.yaml": did you mean --config ok.yaml?`, exitUsage},

	// Limits.
	{"wait|--name|a", "wait needs --policy: limits such as '5/s + 10000/h'", exitUsage},
	{"wait|--policy|5/s 10000/h|--name|a", `"5/s 10000/h": join limits with +, such as 5/s + 10000/h`, exitConfig},
	{"wait|--policy|5/s, 10000/h|--name|a", `"5/s, 10000/h": join limits with +`, exitConfig},
	{"wait|--policy|5/s;10000/h|--name|a", `"5/s;10000/h": join limits with +`, exitConfig},
	{"wait|--policy|5/s +|--name|a", `"5/s +": tier 2 is empty: write limit/window, such as 5/s`, exitConfig},
	{"wait|--policy|5/s + 3/x|--name|a", `tier "3/x": window: "x" is not a length of time: use s, min, h, d, or a length such as 500ms`, exitConfig},
	{"wait|--policy|5|--name|a", `"5": window: it is missing: write 5/s, 5/min, 5/h or 5/d`, exitConfig},
	{"wait|--policy|5 per second|--name|a", `limit: "5 per second" is not a whole number: write limit/window, such as 5/s`, exitConfig},
	{"wait|--policy|0/s|--name|a", `"0/s": Limit is 0: it must be from 1`, exitConfig},
	{"wait|--policy|-5/s|--name|a", `limit: "-5" is not a whole number: write limit/window`, exitConfig},
	{"wait|--policy|5.5/s|--name|a", `limit: "5.5" is not a whole number: write limit/window`, exitConfig},
	{"wait|--policy|99999999999999999999/s|--name|a", `limit: "99999999999999999999" is too large`, exitConfig},
	{"wait|--policy|5/0s|--name|a", "Window is 0s: it must be from 1µs", exitConfig},
	{"wait|--policy|5/s;algo=leaky|--name|a", `algorithm "leaky" is not known: use one of sliding_log`, exitConfig},
	{"wait|--policy|5/s;brust=3|--name|a", `option "brust": is not an option of a tier: use unit, algo, burst`, exitConfig},
	{"wait|--policy|5/s @ max_wait=3|--name|a", `window: "s @ max_wait=3" is not a length of time`, exitConfig},
	{"wait|--policy|5/s;burst|--name|a", `option "burst": write name=value`, exitConfig},

	// Presets.
	{"wait|--policy|opnai", `no preset has the name "opnai": did you mean openai?`, exitConfig},
	{"wait|--policy|wish", `no preset has the name "wish": throttle providers lists all presets`, exitConfig},
	{"wait|--policy|openai:requests=5", "preset openai: tokens is missing: give the tokens a minute of a model, such as 30000", exitConfig},
	{"wait|--policy|openai:requests=x,tokens=5", `preset openai: requests is "x": it must be a whole number from 1`, exitConfig},
	{"wait|--policy|openai:requests=-1,tokens=5", `preset openai: requests is "-1": it must be a whole number from 1`, exitConfig},
	{"wait|--policy|openai:", `preset openai: "" is not a parameter with a value: write openai:requests=500,tokens=30000`, exitConfig},
	{"wait|--policy|hubspot:zone=Mars", `preset hubspot: zone is "Mars": it must be a time zone such as Europe/Berlin`, exitConfig},
	{"wait|--policy|github:plan=pro", "preset github: plan is not a parameter of github: it has none", exitConfig},
	{"wait|--policy|github", "github has several limits: choose one with --scope: content, ", exitUsage},
	{"wait|--policy|github|--scope|coer", `github has no limit "coer": it has content, `, exitUsage},
	{"wait|--policy|5/s|--name|a|--scope|core", "--scope is of a preset: leave it out", exitUsage},
	{"providers|opnai", `no preset has the name "opnai": did you mean openai?`, exitUsage},

	// Names, classes, costs and times.
	{"wait|--policy|5/s", "wait needs --name: programs that give the same name share the quota", exitUsage},
	{"wait|--policy|5/s|--name|", "wait needs --name: ", exitUsage},
	{"wait|--policy|5/s|--name|a\nb", `--name is "a\nb": it must have no control characters`, exitUsage},
	{"wait|--policy|5/s|--name|a\xff", `--name is "a\xff": it must be UTF-8`, exitUsage},
	{"wait|--policy|5/s|--name|a|--key|\x1b[2J", `--key is "\x1b[2J": it must have no control characters`, exitUsage},
	{"wait|--policy|5/s|--name|" + strings.Repeat("n", 201), "--name has 201 bytes: it must have at most 200", exitUsage},
	{"wait|--policy|5/s|--name|a|--class|slow", `--class is "slow": it must be interactive, normal or batch`, exitUsage},
	{"wait|--policy|5/s|--name|a|--cost|5", `--cost is "5": write a unit and a whole number, such as tokens=800`, exitUsage},
	{"wait|--policy|5/s|--name|a|--cost|requests=-1", `--cost is "requests=-1": write a unit and a whole number`, exitUsage},
	{"wait|--policy|5/s|--name|a|--cost|requests=1,requests=2", "--cost names requests twice", exitUsage},
	{"wait|--policy|5/s|--name|a|--cost|requests=6", "cost of 6 requests exceeds the capacity of tier 5/s", exitUsage},
	{"wait|--policy|5/s|--name|a|--cost|tokens=1", `cost names the unit "tokens": the policy counts requests`, exitUsage},
	{"wait|--policy|5/s;unit=points|--name|a", "counts points: name what the request costs with --cost points=n", exitUsage},
	{"wait|--policy|5/s + $1/day|--name|a", "has a limit in dollars: name what the request costs with --cost nanodollars=n", exitUsage},
	{"wait|--policy|5/s|--name|a|--max-wait|5", `--max-wait is "5": a unit is missing: write 5s for seconds, or 5m, 5h`, exitUsage},
	{"wait|--policy|5/s|--name|a|--max-wait|1d", `--max-wait is "1d": write a length of time such as 500ms, 5s, 10m or 1h30m`, exitUsage},
	{"wait|--policy|5/s|--name|a|--max-wait|-5s", "--max-wait is -5s: it must be at least 0s", exitUsage},
	{"wait|--policy|5/s|--name|a|--guard|-1s", "--guard is -1s: it must be at least 0s", exitUsage},
	{"wait|--policy|5;algo=concurrency|--name|a|--redis|redis://127.0.0.1:1", "counts until the end of a request: use exec", exitConfig},

	// Stores.
	{"wait|--policy|5/s|--name|a|--redis|localhost:6379", "--redis is not the URL of a Redis server: write it as redis://localhost:6379/0", exitUsage},
	{"wait|--policy|5/s|--name|a|--redis|http://localhost:6379", "--redis is not the URL of a Redis server: write it as redis://", exitUsage},
	{"wait|--policy|5/s|--name|a|--redis|redis://:secret@localhost:99999", "--redis has the port 99999: it must be from 1 to 65535", exitUsage},
	{"wait|--policy|5/s|--name|a|--redis|redis://:secret@localhost/first", "it may have the number of a database, as in redis://localhost:6379/0", exitUsage},
	{"wait|--policy|5/s|--name|a|--redis|redis://:secret@127.0.0.1:1", "Redis at 127.0.0.1:1 cannot be used: dial tcp 127.0.0.1:1: connect: connection refused", exitUnavailable},
	{"wait|--policy|5/s|--name|a|--redis|redis://localhost|--file|q.db", "--redis and --file are two places: leave one out", exitUsage},
	{"wait|--policy|5/s|--name|a|--store|quotas.db", "--store is not the URL of a PostgreSQL or Redis server: write it as postgres://USER@HOST:PORT/DATABASE, or redis://", exitUsage},
	{"wait|--policy|5/s|--name|a|--store|redis://:secret@127.0.0.1:1", "Redis at 127.0.0.1:1 cannot be used: dial tcp 127.0.0.1:1: connect: connection refused", exitUnavailable},
	{"wait|--policy|5/s|--name|a|--store|redis://:secret@localhost:99999", "--store has the port 99999: it must be from 1 to 65535", exitUsage},
	{"wait|--policy|5/s|--name|a|--store|postgres://u:secret@127.0.0.1:1/d", "PostgreSQL at 127.0.0.1:1 cannot be used: dial tcp 127.0.0.1:1: connect: connection refused", exitUnavailable},
	{"wait|--policy|5/s|--name|a|--store|postgres://u:secret@h:port/d", "--store is not the URL of a PostgreSQL database: check its port and its parameters, such as sslmode", exitUsage},
	{"wait|--policy|5/s|--name|a|--store|postgres://u:secret@h/d?sync=perhaps", "--store has a wrong sync: it must be true or false", exitUsage},
	{"wait|--policy|5/s|--name|a|--store|postgres://h/d|--redis|redis://h", "--store and --redis are two places: leave one out", exitUsage},
	{"wait|--policy|5/s|--name|a|--store|postgres://h/d|--prefix|mine:", "--prefix is of --redis: leave it out, or add --redis", exitUsage},
	{"wait|--policy|postgres://u:secret@h/d|--name|a", `"postgres://u:xxxxx@h/d" is neither a policy`, exitConfig},
	{"postgres|wish", `postgres does not know "wish": it has schema and migrate`, exitUsage},
	{"postgres|schema|--table|a.b.c", `--table is "a.b.c": it must be the name of a table, or schema.table`, exitUsage},
	{"postgres|migrate", "migrate needs --store: the URL of a PostgreSQL database", exitUsage},
	{"postgres|migrate|--store|redis://h", "migrate needs --store: the URL of a PostgreSQL database", exitUsage},
	{"postgres|migrate|--store|postgres://u:secret@127.0.0.1:1/d", "PostgreSQL at 127.0.0.1:1 cannot be used: dial tcp 127.0.0.1:1: connect: connection refused", exitUnavailable},
	{"wait|--policy|5/s|--name|a|--prefix|mine:", "--prefix is of --redis: leave it out, or add --redis", exitUsage},
	{"wait|--policy|5/s|--name|a|--file|missing/q.db", "the file of the quotas cannot be used: open missing/q.db: no such file or directory", exitUnavailable},
	{"wait|--policy|5/s|--name|a|--file|dir", "the file of the quotas cannot be used: open dir: is a directory", exitUnavailable},
	{"wait|--policy|5/s|--name|a|--file|text.txt", "the file of the quotas cannot be used: text.txt: not a quota file", exitUnavailable},

	// Commands and lines.
	{"exec|--policy|5/s|--name|a", "exec needs a command: throttle exec --policy 5/s --name coinbase -- curl …", exitUsage},
	{"exec|--policy|5/s|--name|a|--|./missing", "./missing: no such file or directory", exitNotFound},
	{"exec|--policy|5/s|--name|a|--|./text.txt", "./text.txt: permission denied", exitNotExecutable},
	{"lines", "lines needs --policy: limits such as '5/s + 10000/h'", exitUsage},
	{"lines|5/s|6/s", `lines takes one argument, the limits: got "6/s", too`, exitUsage},
	{"lines|--policy|5/s|6/s", `lines has --policy 5/s and the argument "6/s": leave one out`, exitUsage},
	{"lines|urls.txt", "lines reads the standard input: write throttle lines --policy 5/s < urls.txt", exitUsage},
	{"lines|5;algo=concurrency", "counts until the end of a request: use exec", exitConfig},
	{"lines|5/s;algo=gcra;learn=1000", "a rate is learned from refusals, of which lines knows none: write a limit without learn", exitConfig},
	{"lines|5/s|--key|a", "--key is of --name: add --name, or leave --key out", exitUsage},
	{"lines|5/s|--file|q.db", "lines needs --name: ", exitUsage},

	// Files of items.
	{"batch", "batch needs a file of items, or - for the standard input: throttle batch urls.txt --policy 5/s -- curl", exitUsage},
	{"batch|--policy|5/s|--|echo", "batch needs a file of items, or -", exitUsage},
	{"batch|urls.txt|--policy|5/s", "batch needs a command behind --: throttle batch urls.txt", exitUsage},
	{"batch|urls.txt|--policy|5/s|echo", "batch needs -- before the command: ", exitUsage},
	{"batch|urls.txt|text.txt|--policy|5/s|--|echo", `batch takes one file: got "text.txt", too`, exitUsage},
	{"batch|missing|--policy|5/s|--|echo", "open missing: no such file or directory", exitUsage},
	{"batch|dir|--policy|5/s|--|echo", "dir is a directory: name a file of items", exitUsage},
	{"batch|urls.txt|--|echo", "batch needs --policy: limits such as '5/s + 10000/h'", exitUsage},
	{"batch|urls.txt|--policy|5/s|--key|a|--|echo", "--key is of --name: add --name, or leave --key out", exitUsage},
	{"batch|urls.txt|--policy|5/s|--|./missing", "./missing: no such file or directory", exitNotFound},
	{"batch|urls.txt|--policy|5/s|--|./text.txt", "./text.txt: permission denied", exitNotExecutable},
	{"batch|urls.txt|--policy|5/s|--|echo|{url}", `{url} is no placeholder: lines have {} alone, and fields need --csv or --jsonl (a text in braces is written \{url})`, exitUsage},
	{"batch|urls.txt|--policy|5/s|--csv|--jsonl|--|echo", "--csv and --jsonl are two formats: leave one out", exitUsage},
	{"batch|urls.txt|--policy|5/s|--key-field|id|--|echo", "--key-field needs --csv or --jsonl: a line has no fields", exitUsage},
	{"batch|people.csv|--policy|5/s|--csv|--key-field|no|--|echo", `--key-field is "no": people.csv has the columns id, name`, exitUsage},
	{"batch|people.csv|--policy|5/s|--csv|--|echo|{nmae}", "{nmae} is no column: did you mean {name}, of {id}, {name}?", exitUsage},
	{"batch|people.csv|--policy|5/s|--csv|--|echo|{wish}", "{wish} is no column: there are {id}, {name}", exitUsage},
	{"batch|twins.csv|--policy|5/s|--csv|--key-field|id|--|echo", `--key-field is "id": twins.csv has two columns of that name`, exitUsage},
	{"batch|twins.csv|--policy|5/s|--csv|--|echo|{id}", "{id} may be two columns: give them different names", exitUsage},
	{"batch|empty|--policy|5/s|--csv|--|echo", "empty is empty: --csv needs a first line with the names of the columns", exitUsage},
	{"batch|urls.txt|--policy|5/s|--at-once|0|--|echo", "--at-once is 0: it must be at least 1", exitUsage},
	{"batch|urls.txt|--policy|5/s|--retries|-1|--|echo", "--retries is -1: it must be at least 0", exitUsage},
	{"batch|urls.txt|--policy|5/s|--max-failed|-2|--|echo", "--max-failed is -2: it must be at least 0, or -1 for any number", exitUsage},
	{"batch|urls.txt|--policy|5/s|--grace|-1s|--|echo", "--grace is -1s: it must be at least 0s", exitUsage},
	{"batch|urls.txt|--policy|5/s|--max-wait|1s|--|echo", "throttle batch has no flag --max-wait", exitUsage},
	{"batch|urls.txt|--policy|5/s|--journal|a|--no-journal|--|echo", "--journal and --no-journal exclude each other: leave one out", exitUsage},
	{"batch|urls.txt|--policy|5/s|--results|dir|--|echo", "--results: open dir: is a directory", exitUsage},
	{"batch|urls.txt|--policy|5/s|--journal|dir|--|echo", "journal dir: is a directory: give the path of a file in it", exitFailure},
	{"batch|urls.txt|--policy|5/s|--name|a|--redis|redis://:secret@127.0.0.1:1|--|echo", "Redis at 127.0.0.1:1 cannot be used: dial tcp 127.0.0.1:1: connect: connection refused", exitUnavailable},

	// Status, top, pause, resume and forget.
	{"status|a", "status needs one of --policy, --config and --page", exitUsage},
	{"status|--policy|5/s|--config|ok.yaml", "--policy and --config are two places: status needs one of", exitUsage},
	{"status|--policy|5/s|a|--file|missing.db", "missing.db cannot be used: there is no such file: nothing has used a quota yet", exitUnavailable},
	{"status|--config|missing.yaml", "open missing.yaml: no such file or directory", exitConfig},
	{"status|--config|dir", "read dir: is a directory", exitConfig},
	{"status|--config|ok.yaml", "ok.yaml has no store: its quotas are in the proxy, so use its page, with --page", exitConfig},
	{"status|--config|redis.yaml|acm", `redis.yaml has no quota "acm": did you mean acme?`, exitUsage},
	{"status|--config|redis.yaml|other", `redis.yaml has no quota "other" outside presets`, exitUsage},
	{"status|--page|127.0.0.1:7411", "--page is no URL of a live page: write it as http://127.0.0.1:7411/_throttle/", exitUsage},
	{"status|--page|http://127.0.0.1:70000/", "--page has the port 70000: it must be from 1 to 65535", exitUsage},
	{"status|--page|http://u:secret@127.0.0.1:1/", "cannot be used: dial tcp 127.0.0.1:1: connect: connection refused", exitUnavailable},
	{"status|--page|http://127.0.0.1:1/|--explain", "--explain needs --policy or --config: a page has no forecasts", exitUsage},
	{"top|--policy|5/s|a|--interval|1ms", "--interval is 1ms: it must be at least 100ms", exitUsage},
	{"top|--policy|5/s|a|--count|x", `--count is "x": write a whole number`, exitUsage},
	{"pause|--policy|5/s", "pause needs --name: ", exitUsage},
	{"pause|--policy|5/s|--name|a|--for|5", `--for is "5": a unit is missing: write 5s for seconds, or 5m, 5h`, exitUsage},
	{"pause|--policy|5/s|--name|a|--for|0s", "--for is 0s: it must be at least 1ms and at most 100 years", exitUsage},
	{"pause|--policy|5/s|--name|a|--for|9999999h", `--for is "9999999h": write a length of time such as 500ms, 5s, 10m or 1h30m, of at most 292 years`, exitUsage},
	{"pause|--policy|5/s|--name|a|--reason|\x07", `--reason is "\a": it must have no control characters`, exitUsage},
	{"pause|--config|clients.yaml|--name|clients", `clients.yaml has no quota "clients": did you mean client:a?`, exitUsage},
	{"pause|--config|clients.yaml|--name|client:b|--key|c", `clients.yaml has no such quota with the key "c"`, exitUsage},
	{"pause|--config|clients.yaml|--name|client:b", "Redis at 127.0.0.1:1 cannot be used: dial tcp", exitUnavailable},
	{"pause|--policy|5/s|--name|a|--token-file|token", "--token-file is of --page: leave it out", exitUsage},
	{"pause|--page|http://127.0.0.1:1/", "pause needs --name: the name of the quota", exitUsage},
	{"pause|--page|http://127.0.0.1:1/|--name|a", "--page needs the control token of the proxy: set $THROTTLE_CONTROL_TOKEN, or name a file with --token-file", exitUsage},
	{"pause|--page|http://127.0.0.1:1/|--name|a|--token-file|missing", "--token-file: open missing: no such file or directory", exitUsage},
	{"pause|--page|http://127.0.0.1:1/|--name|a|--token-file|empty", "--token-file empty is empty: write the control token of the proxy into it", exitUsage},
	{"pause|--page|http://127.0.0.1:1/|--name|a|--token-file|token", "the control token has blanks or characters outside of ASCII: it must be one word", exitUsage},
	{"resume|--policy|5/s|--name|a|--for|5m", "throttle resume has no flag --for: see throttle resume --help", exitUsage},
	{"forget", "forget needs one of --policy, --config and --page", exitUsage},
	{"forget|--policy|5/s;algo=gcra;learn=9|--name|a|--reason|x", "throttle forget has no flag --reason: see throttle forget --help", exitUsage},
	{"forget|--policy|5/s;learn=9|--name|a", "Learn is 9: a rate can only be learned of a bucket", exitConfig},
	{"forget|--page|http://127.0.0.1:1/", "forget needs --name: the name of the quota", exitUsage},

	// Plans and logs.
	{"plan|5/s", "plan needs a policy and a number of requests, such as '5/s + 10000/h' 40000", exitUsage},
	{"plan|5/s|ten", `the number of requests is "ten": it must be a whole number from 0 to 1000000000000`, exitUsage},
	{"plan|10|5/s", `the number of requests is "5/s": it must be a whole number from 0 to 1000000000000, after the policies`, exitUsage},
	{"plan|5/s|-5", "throttle plan takes no negative number: got -5", exitUsage},
	{"plan|5/s|99999999999999999999", `the number of requests is "99999999999999999999": it must be`, exitUsage},
	{"plan|5/s|10|--workers|1.5", `--workers is "1.5": write a whole number`, exitUsage},
	{"plan|5/s|10|--answers|-1s", "--answers is -1s: it must be at least 0s and at most 10000h", exitUsage},
	{"plan|5/s|10|--start|tomorrow", `--start is "tomorrow": write it as 2006-01-02`, exitUsage},
	{"plan|5/s|10|--cost|tokens=5", "no policy counts tokens, which --cost names", exitUsage},
	{"plan|github|10", "github has several quotas, ", exitUsage},
	{"plan|github|10|--request|nonsense", `--request is "nonsense": write a method and an address, such as 'GET https://`, exitUsage},
	{"replay|text.txt", "replay needs a policy to play, such as --policy '5/s + 10000/h'", exitUsage},
	{"replay|missing.log|--policy|5/s", "open missing.log: no such file or directory", exitFailure},
	{"replay|dir|--policy|5/s", "read dir: is a directory", exitFailure},
	{"replay|empty|--policy|5/s", "empty: no request in it", exitFailure},
	{"replay|text.txt|--policy|5/s|--format|xml", `--format is "xml": it must be jsonl, clf or har`, exitUsage},
	{"replay|text.txt|--policy|5/s|--duration-unit|days", `--duration-unit is "days": it must be s, ms, us or ns`, exitUsage},
	{"inspect|missing", "open missing: no such file or directory", exitUsage},
	{"inspect|dir", "read dir: is a directory", exitUsage},
	{"inspect|text.txt", "the input has no line such as HTTP/1.1 200 OK: pass what curl -i or curl -I writes, or a HAR", exitUsage},

	// Configuration files.
	{"validate", "validate needs a file, a policy or a preset, such as throttle.yaml or '5/s + 10000/h'", exitUsage},
	{"validate|missing.yaml", "open missing.yaml: no such file or directory", exitConfig},
	{"validate|dir", "dir is a directory: name a file", exitConfig},
	{"validate|empty", "empty:1:1: the file is empty: it needs routes", exitConfig},
	{"validate|bytes.yaml", "bytes.yaml:1:54: routes./x.policy is ", exitConfig},
	{"validate|field.yaml", "routes./x.max_wiat is not a field: did you mean max_wait?", exitConfig},
	{"validate|unit.yaml", "routes./x.max_wait is a number: it must be a length of time such as 30s or 5m", exitConfig},
	{"validate|port.yaml", `listen is "127.0.0.1:99999": it must be HOST:PORT such as 127.0.0.1:7411`, exitConfig},
	{"validate|twice.yaml", "routes./x.policy is there twice, first in line 1: remove one", exitConfig},
	{"validate|both.yaml", "routes./x.policy is there beside preset: remove one", exitConfig},
	{"proxy", "proxy needs --config FILE", exitUsage},
	{"proxy|--config|missing.yaml", "open missing.yaml: no such file or directory", exitConfig},
	{"proxy|--config|ok.yaml|--listen|127.0.0.1:99999", `--listen is "127.0.0.1:99999": it must be HOST:PORT such as 127.0.0.1:7411, or unix:/PATH`, exitUsage},
	{"proxy|--config|ok.yaml|--listen|nonsense", `--listen is "nonsense": it must be HOST:PORT such as 127.0.0.1:7411, or unix:/PATH`, exitUsage},
	{"proxy|--config|ok.yaml|--listen|unix:sock", `--listen is "unix:sock": the path of a socket must begin with /, such as unix:/run/throttle.sock`, exitUsage},
	{"proxy|--config|ok.yaml|--check|--listen|:7411", `--listen is ":7411", which other machines can reach: use 127.0.0.1:7411, or set allow_public: true`, exitUsage},
	{"proxy|--config|ok.yaml|--shutdown|5", `--shutdown is "5": a unit is missing: write 5s for seconds, or 5m, 5h`, exitUsage},
}

// TestWrongInput runs wrongInputs. None prints a result, and none shows a password.
func TestWrongInput(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range wrongFiles {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir("dir", 0o700); err != nil {
		t.Fatal(err)
	}
	state, err := filepath.Abs("state")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range wrongInputs {
		stdout, stderr, code := runWith(t, "", map[string]string{"XDG_STATE_HOME": state}, strings.Split(tt.args, "|")...)
		if !strings.HasPrefix(stderr, "throttle: ") || !strings.Contains(stderr, tt.message) || code != tt.code {
			t.Errorf("%q prints %q, exit code %d;\nwant %q, %d", tt.args, stderr, code, tt.message, tt.code)
		}
		if stdout != "" || strings.Contains(stderr, "secret") {
			t.Errorf("%q prints %q and %q", tt.args, stdout, stderr)
		}
	}
}

// runWith runs the command in this process, in an environment.
func runWith(t *testing.T, stdin string, env map[string]string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, talk bytes.Buffer
	var environ []string
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	s := System{
		Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &talk,
		Getenv:  func(name string) string { return env[name] },
		Environ: func() []string { return environ },
	}
	code = Main(t.Context(), s, args)
	return out.String(), talk.String(), code
}

// TestVariables checks which variables set flags, and which warn.
func TestVariables(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		stderr      string
		code        int
	}{
		{"THROTTLE_POLCY", "5/s", "throttle: the variable THROTTLE_POLCY sets nothing: did you mean THROTTLE_POLICY?\n", 0},
		{"THROTTLE_MAXWAIT", "5s", "throttle: the variable THROTTLE_MAXWAIT sets nothing: did you mean THROTTLE_MAX_WAIT?\n", 0},
		{"THROTTLE_CONTROL_TOKN", "secret", "throttle: the variable THROTTLE_CONTROL_TOKN sets nothing: did you mean THROTTLE_CONTROL_TOKEN?\n", 0},
		{"THROTTLE_JSON", "perhaps", "throttle: THROTTLE_JSON is \"perhaps\": write true or false\n", exitUsage},
		// Variables of other verbs, of tests, of configuration files and of images.
		{"THROTTLE_POLICY", "5/s", "", 0},
		{"THROTTLE_REDIS_SERVER", "x", "", 0},
		{"THROTTLE_REQUIRE_REDIS", "1", "", 0},
		{"THROTTLE_SOAK", "1", "", 0},
		{"THROTTLE_STRIPE_API_KEY", "secret", "", 0},
		{"THROTTLE_TOKEN", "secret", "", 0},
		{"THROTTLE_VERSION", "0.1.0", "", 0},
		{"THROTTLE_POLCY", "", "", 0},
	} {
		_, stderr, code := runWith(t, "", map[string]string{tt.name: tt.value}, "version")
		if stderr != tt.stderr || code != tt.code {
			t.Errorf("%s=%s: %q, exit code %d; want %q, %d", tt.name, tt.value, stderr, code, tt.stderr, tt.code)
		}
	}
}
