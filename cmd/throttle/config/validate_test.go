package config_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/config"
)

const minimal = "routes: {/x: {to: https://api.example.com, policy: 5/s}}\n"

// problems returns the problems of a file, as "line:column field message".
func problems(t *testing.T, text string) (all []string) {
	t.Helper()
	_, err := loader().Parse([]byte(text), "t.yaml")
	var e *config.Error
	if err != nil && !errors.As(err, &e) {
		t.Fatalf("%v is no *config.Error", err)
	}
	if e == nil {
		return nil
	}
	for _, p := range e.Problems {
		if p.Line < 1 || p.Column < 1 {
			t.Errorf("%v has the position %d:%d", p, p.Line, p.Column)
		}
		all = append(all, fmt.Sprintf("%d:%d %s", p.Line, p.Column, p))
	}
	return all
}

// TestProblemsOfLimitsAndSecrets checks the problems of the limits of clients, of keys, of references in
// addresses, of queries and of what happens while Redis is away.
func TestProblemsOfLimitsAndSecrets(t *testing.T) {
	client := func(settings string) string {
		return "clients: {a: {token: 0123456789abcdef, " + settings + "}}\n" + minimal
	}
	route := func(settings string) string {
		return "routes: {/x: {to: https://api.example.com, " + settings + "}}\n"
	}
	to := func(address string) string { return "routes: {/x: {to: \"" + address + "\", policy: 5/s}}\n" }
	redis := func(settings string) string { return "store: {redis: \"redis://x\", " + settings + "}\n" + minimal }
	for _, c := range []struct{ text, want string }{
		{client(`policy: ""`), "clients.a.policy is empty: write a policy such as 5/s, or remove the field"},
		{client("policy: 5"), "clients.a.policy is a number: it must be a text"},
		{client("policy: 5/x"), `clients.a.policy is "5/x": window: "x" is not a length of time`},
		{client("policy: 5/s | shadow=true"), `clients.a.policy is "5/s | shadow=true": shadow is for a Limiter in a program, not for a file: remove shadow=true`},
		{client("policy: 5/s;unit=tokens"), "clients.a.policy is \"5/s;unit=tokens\": no request costs tokens"},
		{client("policy: 5/s, max_queue: 0"), "clients.a.max_queue is 0: it must be at least 1"},
		{client("policy: 5/s, max_queue: -3"), "clients.a.max_queue is -3: it must be at least 1"},
		{client("policy: 5/s, max_wait: 10"), "clients.a.max_wait is a number: it must be a length of time such as 30s or 5m"},
		{client("policy: 5/s | max_wait=1s, max_wait: 2s"), "clients.a.max_wait is in the policy, too: remove one"},
		{client("policy: 5/s | max_queue=1, max_queue: 2"), "clients.a.max_queue is in the policy, too: remove one"},
		{client("max_wait: 2s"), "clients.a.max_wait needs limits of the client: add a policy such as 5/s or a budget, or set it for the routes"},
		{client("max_queue: 2"), "clients.a.max_queue needs limits of the client"},
		{client("policy: 5/s, budget: 9/day"), `clients.a.budget is "9/day": tier 9/day is not a budget: add ;budget=true`},
		{client(`policy: 5/s, budget: "9/day;budget=true | guard=1s"`), "of the options only alert_at belongs to a budget beside a policy: write the others behind the policy"},
		{client(`policy: "5/s + 9/day;budget=true | alert_at=50", budget: "8/day;budget=true | alert_at=80"`), "alert_at is in the policy, too: remove one"},
		{client("polcy: 5/s"), "clients.a.polcy is not a field: did you mean policy?"},
		{route("policy: 5/s | shadow=true"), "routes./x.policy is \"5/s | shadow=true\": shadow is for a Limiter in a program"},
		{route("policy: 5/s, max_queue: 0"), "routes./x.max_queue is 0: it must be at least 1"},
		{route(`policy: 5/s, name: "client:a"`), `routes./x.name is "client:a": it must have at most 200 characters, no control characters, no :budget at its end, and no client: at its beginning`},

		{route("policy: 5/s, key: Authorization"), "routes./x.key is a text: it must be a mapping of header and max_keys"},
		{route("policy: 5/s, key: {}"), "routes./x.key lacks its header: add header: NAME, such as Authorization"},
		{route(`policy: 5/s, key: {header: ""}`), "routes./x.key lacks its header"},
		{route("policy: 5/s, key: {header: a/b}"), `routes./x.key.header is "a/b", which is not the name of a header`},
		{route("policy: 5/s, key: {header: Host}"), `routes./x.key.header is "Host", which does not reach the API`},
		{route("policy: 5/s, key: {header: x-throttle-token}"), `routes./x.key.header is "x-throttle-token", which does not reach the API`},
		{route("policy: 5/s, key: {header: a}, set: {A: b}"), `routes./x.key.header is "a", which set gives one value, so that there is one account: remove key, or the header from set`},
		{route("policy: 5/s, key: {header: a}, remove: [A]"), `routes./x.key.header is "a", which remove removes: remove key, or the header from remove`},
		{route("policy: 5/s, key: {header: a, max_keys: 0}"), "routes./x.key.max_keys is 0: it must be from 1 to 1000000"},
		{route("policy: 5/s, key: {header: a, max_keys: many}"), "routes./x.key.max_keys is a text: it must be a whole number"},
		{route("policy: 5/s, key: {query: a}"), "routes./x.key.query is not a field: the fields are header and max_keys"},
		{"routes: {/x: {to: https://a.b, policy: 5/s, name: x}, /y: {to: https://a.b, policy: 5/s, name: x, key: {header: a}}}", `routes./y.name is "x", the quota of routes./x, which has other limits`},

		{to("https://${env:HOST}/x"), "routes./x.to has a ${ in its host: only the path may refer to a variable or a file"},
		{to("https://a.b/${env:}"), "routes./x.to refers to a variable whose name is not made of letters, digits and _"},
		{to("https://a.b/${env:A"), "routes./x.to has a ${ without a }: write ${env:NAME} or ${file:PATH}"},
		{to("https://a.b/${vault:A}"), "routes./x.to has a ${…} of neither env: nor file:"},
		{to("https://a.b/${env:BROKEN}"), "routes./x.to has a value with a control character, such as a line end: remove it"},
		{to("https://a.b/${env:DOTS}/x"), `routes./x.to is "https://a.b/${env:DOTS}/x": its path must have no empty parts and no dots alone`},
		{to("https://a.b/x?key=${env:A}"), "routes./x.to has a query or a fragment: remove it: the client's request brings its own, and query: {NAME: VALUE} sets parameters"},
		{route("policy: 5/s, query: {}"), "routes./x.query is empty: write {NAME: VALUE}, or remove the field"},
		{route("policy: 5/s, query: a=b"), "routes./x.query is a text: it must be a mapping"},
		{route("policy: 5/s, query: {a: 5}"), "routes./x.query.a is a number: it must be a text"},
		{route(`policy: 5/s, query: {a: "${env:}"}`), "routes./x.query.a refers to a variable whose name"},
		{route(`policy: "${env:A}"`), "routes./x.policy refers to a variable or a file: only to, token, control_token, store.redis, store.postgres and the values of set and query may"},

		{redis("fallback: {}"), "store.fallback lacks workers: add workers: N, the largest number of processes that share the quotas"},
		{redis("fallback: {workers: 0}"), "store.fallback.workers is 0: it must be at least 1"},
		{redis("fallback: {workers: -1}"), "store.fallback.workers is -1: it must be at least 1"},
		{redis("fallback: 8"), "store.fallback is a number: it must be a mapping of workers"},
		{redis("fallback: {worker: 8}"), "store.fallback.worker is not a field: did you mean workers?"},
		{redis("timeout: 0s"), `store.timeout is "0s": it must be a length of time above zero`},
		{"store: {file: q.db, fallback: {workers: 8}}\n" + minimal, "store.fallback is there, but only redis has one: remove it, or add redis"},
		{"store: {file: q.db, timeout: 1s}\n" + minimal, "store.timeout is there, but only redis or postgres has one: remove it, or add redis or postgres"},
		{"store: {redis: redis://x, sync: true}\n" + minimal, "store.sync is there, but only postgres has one: remove it, or add postgres"},
		{"store: {postgres: postgres://h/d, prefix: p}\n" + minimal, "store.prefix is there, but only redis has one"},
		{"store: {postgres: postgres://h/d, table: a.b.c}\n" + minimal, `store.table is "a.b.c": it must be the name of a table, or schema.table`},
		{"store: {postgres: postgres://h/d, table: ''}\n" + minimal, "store.table is empty: name a table, or remove the field"},
		{"store: {postgres: postgres://h/d, lease: 1us}\n" + minimal, "store.lease is 1µs: it must be at least 1ms"},
		{"store: {postgres: 'postgres://h/d?lease=30s', lease: 5s}\n" + minimal, "store.lease is a parameter of the URL, too: remove one"},
		{"store: {postgres: 'postgres://h/d?lease=1'}\n" + minimal, "store.postgres has a wrong lease: it must be a length of time from 1ms, such as 500ms or 2s"},
		{"store: {postgres: mysql://h/d}\n" + minimal, "store.postgres is not the URL of a PostgreSQL database: use postgres://USER@HOST:PORT/DATABASE"},
		{"store: {redis: redis://x, postgres: postgres://h/d, file: q.db}\n" + minimal, "store has redis, postgres and file: keep one of them"},
	} {
		got := problems(t, c.text)
		found := false
		for _, g := range got {
			found = found || strings.Contains(g, c.want)
		}
		if !found {
			t.Errorf("%s\nhas  %q\nwant %q", c.text, got, c.want)
		}
	}
}

// TestProblems checks that each problem is reported alone, with its position, its field and the fix.
func TestProblems(t *testing.T) {
	route := func(settings string) string {
		return "routes:\n  /x:\n    to: https://api.example.com\n    " + strings.ReplaceAll(settings, "; ", "\n    ") + "\n"
	}
	for _, c := range []struct{ text, want string }{
		{"", "1:1 the file is empty"},
		{"5", "1:1 the file is a number: it must be a mapping of"},
		{"[a]", "1:1 the file is a list"},
		{minimal + "---\n" + minimal, "3:7 a second document begins here"},
		{"a: &a b\n" + minimal, "1:4 anchors, aliases"},
		{"version: !!int 1\n" + minimal, "1:10 anchors, aliases"},
		{"version: 2\n" + minimal, "1:10 version is 2: this release reads version 1"},
		{"version: one\n" + minimal, "1:10 version is a text: it must be a whole number"},
		{"verison: 1\n" + minimal, "1:1 verison is not a field: did you mean version?"},
		{"wishes: 1\n" + minimal, "1:1 wishes is not a field: the fields are allow_public, clients,"},
		{minimal + minimal, "2:1 routes is there twice, first in line 1: remove one"},
		{"? a\n: b\n" + minimal, "1:1 anchors, aliases, merge keys, tags, directives and keys with ?"},
		{"max_body: 1PB\n" + minimal, `1:11 max_body is "1PB": it must be a number of bytes, such as 65536, 64KB or 1MB`},
		{"max_body: 1GB\n" + minimal, "1:11 max_body is 1GB: it must be at most 16MB"},

		{"listen: localhost\n" + minimal, `1:9 listen is "localhost": it must be HOST:PORT such as 127.0.0.1:7411, or unix:/PATH`},
		{"listen: 127.0.0.1:99999\n" + minimal, "1:9 listen is"},
		{"listen: :7411\n" + minimal, `1:9 listen is ":7411", which other machines can reach: use 127.0.0.1:7411, or set allow_public: true`},
		{"listen: 10.0.0.1:80\n" + minimal, "which other machines can reach"},
		{"listen: unix:throttle.sock\n" + minimal, "the path of a socket must begin with /"},
		{"listen: ${env:LISTEN}\n" + minimal, "1:9 listen refers to a variable or a file: only to, token, control_token, store.redis, store.postgres and the values of set and query may"},

		{"store: {redis: redis://x, file: y}\n" + minimal, "1:1 store has redis and file: keep one of them"},
		{"store: {prefix: a}\n" + minimal, "1:17 store.prefix is there, but only redis has one: remove it, or add redis"},
		{"store: {file: \"\"}\n" + minimal, "1:15 store.file is empty"},
		{"store: {redis: \"http://x\"}\n" + minimal, "1:16 store.redis is not the URL of a Redis server: use redis://HOST:PORT/DB"},
		{"store: {redis: 5}\n" + minimal, "1:16 store.redis is a number: it must be a text"},
		{"store:\n" + minimal, "store is empty: it must be a mapping of fallback, file, horizon, lease, poll_only, postgres, prefix, redis, sync, table and timeout"},

		{"clients: {}\n" + minimal, "1:1 clients is empty: name a client, or remove the field"},
		{"clients: {a: {}}\n" + minimal, `1:11 clients.a lacks its token: add token: "${env:NAME}"`},
		{"clients: {a: {token: short}}\n" + minimal, "1:22 clients.a.token has fewer than 16 bytes"},
		{"clients: {a: {token: \"0123456789 0123456789\"}}\n" + minimal, "1:22 clients.a.token has a space"},
		{"clients: {a: {token: 0123456789abcdef}, b: {token: 0123456789abcdef}}\n" + minimal, "clients.b.token is the token of client a, too"},
		{"clients: {a: {token: 0123456789abcdef, class: slow}}\n" + minimal, `clients.a.class is "slow": it must be interactive, normal or batch`},
		{"clients: {a: {token: 0123456789abcdef, budget: 5/s}}\n" + minimal, `clients.a.budget is "5/s": tier 5/s is not a budget: add ;budget=true to it, as in 1000/day;budget=true`},
		{"clients: {a: {token: 0123456789abcdef, budget: 5/day;unit=tokens;budget=true}}\n" + minimal, "no request costs tokens, so this would never be used up: use requests, or add cost: {tokens: N} to the route"},

		{"listen: 127.0.0.1:1\n", `1:1 routes is missing: add a route such as /github`},
		{"routes: {}\n", "1:1 routes is missing"},
		{"routes:\n", "routes is empty: it must be a mapping"},
		{"routes: {/x: }\n", "routes./x is empty: it must be a mapping of any_host"},
		{"routes: {x: {to: https://a.b, policy: 5/s}}", "1:10 routes.x must begin with /: write /x"},
		{"routes: {/x/: {to: https://a.b, policy: 5/s}}", "routes./x/ must have no empty parts, no dots alone and no / at its end: write /x"},
		{"routes: {/x/../y: {to: https://a.b, policy: 5/s}}", "routes./x/../y must have no empty parts"},
		{"routes: {//x: {to: https://a.b, policy: 5/s}}", "write /x"},
		{"routes: {/_throttle/x: {to: https://a.b, policy: 5/s}}", "routes./_throttle/x is where the proxy has its own pages"},
		{"routes: {/: {to: https://a.b, policy: 5/s}}", "routes./ lacks a name: the route of / needs name: NAME"},
		{"routes: {/x: {to: https://a.b, policy: 5/s}, /X: {to: https://a.b, policy: 5/s}}", "differs from /X by case alone: use another prefix"},
		{"routes: {/x: {to: https://a.b, policy: 5/s}, /y: {to: https://a.b, policy: 6/s, name: x}}", `routes./y.name is "x", the quota of routes./x, which has other limits`},

		{"routes: {/x: {policy: 5/s}}", "1:10 routes./x lacks its address: add to: https://HOST"},
		{"routes: {/x: {to: \"\", policy: 5/s}}", "1:19 routes./x.to is empty: write https://HOST"},
		{"routes: {/x: {to: api.example.com, policy: 5/s}}", `1:19 routes./x.to is "api.example.com": it must begin with https:// or http://`},
		{"routes: {/x: {to: \"https://\", policy: 5/s}}", "it lacks a host: write https://HOST"},
		{"routes: {/x: {to: \"https://a:0\", policy: 5/s}}", "its port must be from 1 to 65535"},
		{"routes: {/x: {to: \"https://a:b\", policy: 5/s}}", "routes./x.to is not a URL"},
		{"routes: {/x: {to: https://a/b//c, policy: 5/s}}", "its path must have no empty parts and no dots alone"},
		{"routes: {/x: {to: https://a/../c, policy: 5/s}}", "its path must have no empty parts and no dots alone"},
		{"routes: {/x: {to: https://u@a, policy: 5/s}}", "routes./x.to has a user or a password: remove it"},
		{"public_url: gw.example\nroutes: {/x: {to: https://a, policy: 5/s}}", `public_url is "gw.example": it must begin with https:// or http://`},
		{"public_url: \"\"\nroutes: {/x: {to: https://a, policy: 5/s}}", "public_url is empty: write https://HOST, or remove the field"},
		{"public_url: https://u:p@a\nroutes: {/x: {to: https://a, policy: 5/s}}", "public_url has a user or a password: remove it"},
		{"public_url: https://a?b\nroutes: {/x: {to: https://a, policy: 5/s}}", "public_url has a query or a fragment: remove it"},
		{"public_url: https://a/../b\nroutes: {/x: {to: https://a, policy: 5/s}}", "public_url is \"https://a/../b\": its path must have no empty parts"},
		{"routes: {/x: {to: https://a?b, policy: 5/s}}", "routes./x.to has a query or a fragment: remove it"},
		{"routes: {/x: {to: \"https://a#b\", policy: 5/s}}", "routes./x.to has a query or a fragment: remove it"},

		{route("class: batch"), `2:3 routes./x lacks its limits: add preset: NAME, or a policy such as policy: "5/s + 10000/h"`},
		{route("policy: \"\""), "routes./x lacks its limits"},
		{route("preset: github; policy: 5/s"), "5:13 routes./x.policy is there beside preset: remove one"},
		{route("policy: 5"), "4:13 routes./x.policy is a number: it must be a text"},
		{route("policy: 5/x"), `4:13 routes./x.policy is "5/x": window: "x" is not a length of time`},
		{route("policy: 5/s;burst=9"), "Burst is 9"},
		{route("policy: 5/s; with: {a: b}"), "5:5 routes./x.with belongs to a preset: remove it"},
		{route("policy: 5/s; any_host: true"), "5:15 routes./x.any_host belongs to a preset: remove it"},
		{route("policy: 5/s | max_wait=1s; max_wait: 2s"), "5:15 routes./x.max_wait is in the policy, too: remove one"},
		{route("policy: 5/s;unit=tokens"), "no request costs tokens, so this would never be used up: use requests, or add cost: {tokens: N} to the route"},
		{route("policy: 5/s; max_wait: 30"), "5:15 routes./x.max_wait is a number: it must be a length of time such as 30s or 5m"},
		{route("policy: 5/s; max_wait: soon"), `5:15 routes./x.max_wait is "soon": it must be a length of time above zero, such as 30s or 5m`},
		{route("policy: 5/s; timeout: 0s"), "it must be a length of time above zero"},
		{route("policy: 5/s; max_queue: -1"), "5:16 routes./x.max_queue is -1: it must be at least 1"},
		{route("policy: 5/s; max_queue: 1.5"), "5:16 routes./x.max_queue is a number: it must be a whole number"},

		{route("preset: opnai"), `4:13 routes./x.preset is "opnai": no preset has this name: did you mean openai?`},
		{route("preset: github"), `3:9 routes./x.to is "https://api.example.com": preset github is for api.github.com, uploads.github.com and *.ghe.com: use such a host, or set any_host: true`},
		{route("preset: openai; any_host: true; with: {requests: 1}"), "6:5 routes./x.with.tokens is missing: give the tokens a minute of a model, such as 30000"},
		{route("preset: openai; any_host: true; with: {requests: 0, tokens: 1}"), `6:22 routes./x.with.requests is "0": it must be a whole number from 1 to`},
		{route("preset: openai; any_host: true; with: {requests: 1, tokens: 1, tokns: 1}"), "routes./x.with.tokns is not a parameter of openai: did you mean tokens?"},
		{route("preset: openai:requests=500"), `routes./x.preset is "openai:requests=500": no preset has this name: write openai without its parameters here; in a file they are in with`},
		{route(`preset: openai; any_host: true; with: {requests: 1, tokens: 1}; models: {"gpt[": {tokens: 1}}`), `routes./x.models is not possible: "gpt[" is not a pattern of names`},
		{route(`preset: openai; any_host: true; with: {requests: 1, tokens: 1}; models: {"gpt-*": {tokns: 1}}`), "routes./x.models.gpt-*.tokns is not a parameter of openai: did you mean tokens?"},
		{route(`preset: openai; any_host: true; with: {requests: 1, tokens: 1}; models: {"gpt-*": {tokens: 0}}`), `routes./x.models.gpt-*.tokens is "0": it must be a whole number from 1 to`},
		{route(`preset: openai; any_host: true; with: {requests: 1, tokens: 1}; models: {"a|": {tokens: 1}}`), `routes./x.models is not possible: "a|" is not a pattern of names`},
		{route(`preset: openai; any_host: true; with: {requests: 1, tokens: 1}; models: {}`), `routes./x.models is empty: name a model`},
		{route(`preset: github; any_host: true; models: {"gpt-*": {tokens: 1}}`), "routes./x.models is for presets of language models, and github has no limits of models: remove it"},
		{route(`policy: 5/s; models: {"gpt-*": {tokens: 1}}`), "routes./x.models belongs to a preset: remove it"},
		{route("preset: openai; any_host: true; with: {requests: [1], tokens: 1}"), "routes./x.with.requests is a list: it must be a number or a text"},

		{route("policy: 5/s; budget: 5/day"), "5:13 routes./x.budget is \"5/day\": tier 5/day is not a budget: add ;budget=true"},
		{route("policy: 5/s; budget: 5/day;unit=usd;budget=true"), "5:13 routes./x.budget is \"5/day;unit=usd;budget=true\": no request costs usd"},
		{route("policy: 5/s; budget: \"\""), "5:13 routes./x.budget is empty: write a budget such as 1000/day;budget=true, or remove the field"},
		{route("policy: 5/s; cost: {usd: 5}"), "5:17 routes./x.cost.usd is a unit that nothing limits: add a budget, or a tier with unit=usd"},
		{route("policy: 5/s; cost: {requests: -5}"), "5:22 routes./x.cost.requests is -5: it must be from 0 to"},
		{route("policy: 5/s; class: slow"), `5:12 routes./x.class is "slow": it must be interactive, normal or batch`},
		{route("policy: 5/s; clients: [web]"), `5:15 routes./x.clients[0] is "web": no client has this name: add it to clients`},
		{route("policy: 5/s; clients: web"), "5:14 routes./x.clients is a text: it must be a list such as [a, b]"},
		{route("policy: 5/s; name: \"a:budget\""), "no :budget at its end"},
		{route("policy: 5/s; set: {Content-Length: \"5\"}"), "5:27 routes./x.set.Content-Length is a header of the connection"},
		{route("policy: 5/s; set: {a/b: c}"), "routes./x.set.a/b is not the name of a header"},
		{route("policy: 5/s; set: {A: \"b\\nc\"}"), "5:14 routes./x.set.A has a character that no header may have"},
		{route("policy: 5/s; set: {A: b, a: c}"), "routes./x.set.a is the same header as A: remove one"},
		{route("policy: 5/s; set: {A: b}; remove: [a]"), "6:14 routes./x.remove[0] is the same header as A: remove one"},
		{route("policy: 5/s; set: {A: \"${env:X\"}"), "has a ${ without a }: write ${env:NAME} or ${file:PATH}, or $${"},
		{route("policy: 5/s; set: {A: \"${X}\"}"), "has a ${…} of neither env: nor file:"},
		{route("policy: 5/s; set: {A: \"${env:a b}\"}"), "refers to a variable whose name is not made of"},
		{route("policy: 5/s; set: {A: \"${file:}\"}"), "refers to a file without a path"},
		{"observability: {log: loud}\n" + minimal, `1:22 observability.log is "loud": it must be debug, info, warn, error or off`},
		{"observability: {page: 1}\n" + minimal, "1:23 observability.page is a number: it must be true or false"},
		{"observability: {listen: \":9411\"}\n" + minimal, `1:25 observability.listen is ":9411", without a host: write 127.0.0.1:9411 for this machine alone, or 0.0.0.0:9411 if other`},
		{"observability: {listen: \"9411\"}\n" + minimal, `1:25 observability.listen is "9411": it must be HOST:PORT, such as 127.0.0.1:9411`},
		{"observability: {listen: \"\"}\n" + minimal, `1:25 observability.listen is "": it must be HOST:PORT`},
		{"observability: {listen: \"pod:9411\"}\n" + minimal, `1:25 observability.listen is "pod:9411": its host must be an IP address or localhost`},
		{"observability: {listen: \"127.0.0.1:7411\"}\n" + minimal, `1:25 observability.listen is "127.0.0.1:7411", the address of the proxy: use another port`},
		{"observability: {control_token: canary}\n" + minimal, "1:32 observability.control_token has fewer than 16 bytes: use a longer one"},
		{"observability: {control_token: \"canary canary canary\"}\n" + minimal, "1:32 observability.control_token has a space"},
		{"observability: {control_token: canary-canary-canary}\nclients: {a: {token: canary-canary-canary}}\n" + minimal, "1:32 observability.control_token is the token of client a, too"},
	} {
		got := problems(t, c.text)
		if len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s\nhas %q\nwant %q", c.text, got, c.want)
		}
	}
}

// TestFileKeepsEstimates checks that a file may keep the quotas of a preset with estimates.
func TestFileKeepsEstimates(t *testing.T) {
	text := "store: {file: q.db}\nroutes:\n  /x: {to: https://api.anthropic.com, preset: anthropic, with: {requests: 1, input: 1, output: 1}}"
	if got := problems(t, text); len(got) > 0 {
		t.Errorf("%s\nhas %q", text, got)
	}
}

// Errors of references name the variable or the file, and the field.
func TestReferences(t *testing.T) {
	l := config.Loader{
		LookupEnv: func(name string) (string, bool) { return "", name == "EMPTY" },
		ReadFile:  func(string) ([]byte, error) { return nil, errors.New("canary") },
	}
	for value, want := range map[string]string{
		"${env:NONE}":   "routes./x.set.A needs the variable NONE of the environment, which is not set, or empty: set it",
		"${env:EMPTY}":  "routes./x.set.A needs the variable EMPTY of the environment, which is not set, or empty: set it",
		"${file:/a/b}":  "routes./x.set.A needs the file /a/b, which cannot be read: it is no file of at most 64KB",
		"x${env:NONE}y": "NONE",
	} {
		_, err := l.Parse([]byte(fmt.Sprintf("routes: {/x: {to: https://a.b, policy: 5/s, set: {A: %q}}}", value)), "t.yaml")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
	c, err := loader().Parse([]byte("routes: {/x: {to: https://a.b, policy: 5/s, set: {A: \"Bearer ${env:K} ${file:/f} $${env:K}\"}}}"), "t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Routes["/x"].Set["A"].Reveal(), "Bearer value-of-K-0123456789 content-of-f-0123456789 ${env:K}"; got != want {
		t.Errorf("expanded to %q, want %q", got, want)
	}
	l.WithoutSecrets = true
	if _, err := l.Parse(readExample(t), "example.yaml"); err != nil {
		t.Errorf("without secrets: %v", err)
	}
}

// TestDefaults checks what a minimal file means.
func TestDefaults(t *testing.T) {
	c, err := config.Parse([]byte(minimal), "t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:7411" || c.Version != 1 || c.MaxBody != 64<<10 || c.Timeouts.Connect != 10*time.Second || c.Timeouts.Shutdown != 30*time.Second ||
		!*c.Observability.Metrics || !*c.Observability.Page || c.Observability.Log != "info" {
		t.Errorf("the defaults are %+v", c)
	}
	r := c.Routes["/x"]
	if r.Name != "x" || r.Prefix() != "/x" || r.MaxBody != 64<<10 || r.DefaultClass() != throttle.Normal || !r.Allows("") || r.Upstream().Host != "api.example.com" {
		t.Errorf("the defaults of a route are %+v", r)
	}
}

func TestRouteFor(t *testing.T) {
	c, err := config.Parse([]byte(`{"routes": {
		"/a":   {"to": "https://a.b", "policy": "5/s"},
		"/a/b": {"to": "https://a.b", "policy": "5/s"},
		"/":    {"to": "https://a.b", "policy": "5/s", "name": "rest"}}}`), "t.json")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]string{
		"/a":      {"/a", ""},
		"/a/":     {"/a", "/"},
		"/a/c":    {"/a", "/c"},
		"/a/b/c/": {"/a/b", "/c/"},
		"/ab":     {"/", "/ab"},
		"/":       {"/", "/"},
		"//a":     {"/", "//a"},
		"":        {"/", ""},
		"a":       {"/", "a"},
	} {
		r, rest := c.RouteFor(path)
		if r == nil || r.Prefix() != want[0] || rest != want[1] {
			t.Errorf("%q: %v %q, want %q", path, r, rest, want)
		}
	}
	delete(c.Routes, "/")
	for _, path := range []string{"/", "", "/b", "//a", "x/a"} {
		if r, _ := c.RouteFor(path); r != nil {
			t.Errorf("%q leads to %s", path, r.Prefix())
		}
	}
}

func TestClientFor(t *testing.T) {
	c, err := config.Parse([]byte("clients: {a: {token: 0123456789abcdef}, b: {token: 0123456789abcdeg}}\n"+minimal), "t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]string{"0123456789abcdef": "a", "0123456789abcdeg": "b", "": "", "0123456789abcde": ""} {
		if name, ok := c.ClientFor(token); name != want || ok != (want != "") {
			t.Errorf("%q is of %q, %v", token, name, ok)
		}
	}
}

// A file with very many problems reports the first ones, and how many more there are.
func TestManyProblems(t *testing.T) {
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, "wish%d: 1\n", i)
	}
	got := problems(t, b.String()+minimal)
	if len(got) != 50 || !strings.HasSuffix(got[49], "this is one of 51 more problems") {
		t.Errorf("%d problems: %q", len(got), got[len(got)-1])
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]config.Size{"0": 0, "65536": 64 << 10, "64KB": 64 << 10, "64 kb": 64 << 10, "1MB": 1 << 20, "2GB": 2 << 30, "1_000": 1000} {
		got, err := config.ParseSize(text)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if again, err := config.ParseSize(got.String()); err != nil || again != got {
			t.Errorf("%v reads as %v, %v", got, again, err)
		}
	}
	for _, text := range []string{"", "KB", "-1", "1.5MB", "9999999999GB", "1TB"} {
		if got, err := config.ParseSize(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
