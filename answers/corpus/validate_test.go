package corpus_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/answers"
)

func TestValidate(t *testing.T) {
	for name, p := range profiles {
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	quota := func(q Quota) Profile { return Profile{Quotas: []Quota{q}} }
	rules := func(rs ...Rule) Profile { return Profile{Rules: rs} }
	reads := func(Response) []Reading { return nil }
	for _, c := range []struct {
		profile Profile
		want    string // all problems, one in each line
	}{
		{quota(Quota{}), "Quotas[0] reads nothing: set a Field or Read"},
		{quota(Quota{Read: reads}), ""},
		{quota(Quota{Read: reads, Limit: num("L")}), "Quotas[0].Read is set together with Fields, which are then ignored: use one Quota for each"},
		{quota(Quota{Reset: num("R")}), "Quotas[0].Reset has the Format Number: set a format of times, such as Seconds or EpochSeconds"},
		{quota(Quota{Length: at("R", Pairs)}), "Quotas[0].Length has the Format Pairs: set a format of times, such as Seconds or EpochSeconds"},
		{quota(Quota{Limit: at("L", Seconds)}), "Quotas[0].Limit has the Format Seconds: clear it, because this field is a Number"},
		{quota(Quota{Reset: at("R", 99)}), "Quotas[0].Reset has the Format 99: set a format of times, such as Seconds or EpochSeconds"},
		{quota(Quota{Combined: num("L")}), "Quotas[0].Combined has the Format Number: set a format of combined values, such as Pairs"},
		{quota(Quota{Combined: in("a", Pairs)}), "Quotas[0].Combined has a Path: clear it and set a Header, the only place of combined values"},
		{quota(Quota{Combined: Field{Header: "L", Path: "a", Format: Pairs}}), "Quotas[0].Combined has a Path: clear it and set a Header, the only place of combined values"},
		{quota(Quota{Combined: Field{Header: "L", Item: 1, Format: Pairs}}), "Quotas[0].Combined has an Item or After: clear both, because Combined reads the whole value"},
		{quota(Quota{Limit: Field{Header: "L", Item: -1}}), "Quotas[0].Limit has the Item -1: it must be at least 1, or 0 if the value is not a list"},
		{quota(Quota{Share: at("L", Percent)}), ""},
		{quota(Quota{Share: at("L", Minutes)}), "Quotas[0].Share has the Format Minutes: set Percent, or clear it for a fraction"},
		{quota(Quota{Used: at("L", Percent)}), "Quotas[0].Used has the Format Percent: clear it, because this field is a Number"},
		{quota(Quota{Reset: at("L", Percent)}), "Quotas[0].Reset has the Format Percent: set a format of times, such as Seconds or EpochSeconds"},
		{rules(Rule{Delay: []Field{at("A", Minutes), at("B", PerSecond), at("C", Evident)}}), ""},
		{quota(Quota{Combined: at("L", UsedPerWindow)}), `Quotas[0].Combined has the Header "L": it must end in *, in the place of the window`},
		{quota(Quota{Used: num("L*")}), `Quotas[0].Used has the Header "L*": only the Header of Combined may end in *`},
		{quota(Quota{Remaining: Field{Header: "L", Path: "a"}}), ""},
		{quota(Quota{Remaining: Field{Header: "L", Path: "a."}}), `Quotas[0].Remaining.Path is "a.": it must be keys with points between them, and * for the elements of an array or the values of an object, as in "errors.*.code"`},
		{quota(Quota{Share: Field{After: "x"}}), "Quotas[0].Share has neither a Header nor a Path: set one"},
		{quota(Quota{Rate: num("R"), Window: -1}), "Quotas[0].Window is -1ns: it must be at least 0"},
		{quota(Quota{Limit: in("a..b", Number)}), `Quotas[0].Limit.Path is "a..b": it must be keys with points between them, and * for the elements of an array or the values of an object, as in "errors.*.code"`},
		{quota(Quota{Limit: in("$.a", Number)}), `Quotas[0].Limit.Path is "$.a": it must be keys with points between them, and * for the elements of an array or the values of an object, as in "errors.*.code"`},
		{quota(Quota{Limit: in("a.b*", Number)}), `Quotas[0].Limit.Path is "a.b*": it must be keys with points between them, and * for the elements of an array or the values of an object, as in "errors.*.code"`},
		{quota(Quota{Limit: in(strings.Repeat("a.", 63)+"a", Number)}), "Quotas[0].Limit.Path has 64 steps: the most is 63"},
		{quota(Quota{Limit: in(strings.Repeat("a.", 62)+"a", Number)}), ""},
		{Profile{Charges: []Charge{{Or: at("C", Seconds)}}}, "Charges[0].Field is empty: set its Header or Path, or set ByStatus\nCharges[0].Or has the Format Seconds: clear it, because this field is a Number"},
		{Profile{Charges: []Charge{{Field: num("C"), Times: -1}}}, "Charges[0].Times is -1: it must be at least 0"},
		{Profile{Charges: []Charge{{ByStatus: map[int]int64{304: 0, 0: 1}}}}, ""},
		{Profile{Charges: []Charge{{Field: in("issues.*.id", Elements)}, {Field: at("Bucket", Hash)}}}, ""},
		{Profile{Charges: []Charge{{Field: at("C", Elements), Or: num("D")}}}, "Charges[0].Field has the Format Elements, but no Path alone: set a Path, and no Header"},
		{Profile{Charges: []Charge{{Field: in("a.*", Elements), Or: num("D")}}}, "Charges[0].Or is set, but the Format Elements counts the values at one Path: use a Charge for each"},
		{quota(Quota{Remaining: at("R", Hash)}), "Quotas[0].Remaining has the Format Hash: clear it, because this field is a Number"},
		{Profile{Charges: []Charge{{ByStatus: map[int]int64{304: 0}, Field: num("C")}}}, "Charges[0].ByStatus is set together with Fields, which are then ignored: use one Charge for each"},
		{Profile{Charges: []Charge{{ByStatus: map[int]int64{42: 0, 200: -1}}}}, "Charges[0].ByStatus has the status 42: it must be from 100 to 999, or 0 for every other\n" +
			"Charges[0].ByStatus charges -1 for status 200: it must be from 0 to 999999999999999"},
		{rules(Rule{Event: "error", Kind: Limited}, Rule{Event: "message", Path: "error", Text: "*"}, Rule{Kind: Limited}), ""},
		{rules(Rule{Event: "message", Text: "*limit*"}), `Rules[0].Event is "message", the type of all events of many streams: set the Path of a value that only errors have`},
		{rules(Rule{Event: "*", Header: "Retry-After"}), `Rules[0].Event is "*", the type of all events of many streams: set the Path of a value that only errors have`},
		{rules(Rule{Event: "a*b", Path: "a", Text: "b"}), `Rules[0].Event is "a*b": a * may only begin or end it`},
		{rules(Rule{Event: "error"}, Rule{Event: "error", Path: "a", Text: "b"}), "Rules[1] can't match: Rules[0] matches the same responses first; move this rule before it"},
		{Profile{RetryAfter: []Field{num("R"), in(".a", Seconds)}}, "RetryAfter[0] has the Format Number: set a format of times, such as Seconds or EpochSeconds\n" +
			`RetryAfter[1].Path is ".a": it must be keys with points between them, and * for the elements of an array or the values of an object, as in "errors.*.code"`},
		{Profile{Reasons: []Field{num("R"), in("a.*", Number)}}, ""},
		{Profile{Reasons: []Field{{}, at("R", Seconds), {Path: "a", After: "b"}}}, "Reasons[0] has neither a Header nor a Path: set one\n" +
			"Reasons[1] has the Format Seconds: clear it, because a reason is text\n" +
			"Reasons[2] has an After: clear it, because the whole value is the reason"},
		{rules(Rule{Status: 42}, Rule{Status: 1000}), "Rules[0].Status is 42: it must be from 100 to 999, or 0 for any\nRules[1].Status is 1000: it must be from 100 to 999, or 0 for any"},
		{rules(Rule{Value: "v"}), "Rules[0].Header is empty: set the header that has the Value, or clear Value"},
		{rules(Rule{Path: "a"}), `Rules[0].Text is empty: set the text that the value at Path must match, or "*" for any`},
		{rules(Rule{Kind: 9, Wait: -time.Second}), "Rules[0].Kind is 9: it must be Passed, Limited, Banned or Other\nRules[0].Wait is -1s: it must be at least 0"},
		{rules(Rule{Wide: true, Unit: "a"}), "Rules[0].Unit is set together with Wide: clear one, because each names the scope that pauses"},
		{rules(Rule{Cost: map[string]int64{"a": 1, "b": -1, "c": 1e15}}), "Rules[0].Cost is -1 b: it must be from 0 to 999999999999999\n" +
			"Rules[0].Cost is 1000000000000000 c: it must be from 0 to 999999999999999"},
		{rules(Rule{Until: "Local"}), `Rules[0].Until is "Local": it must be an IANA time zone, such as "UTC" (not an IANA time zone)`},
		{rules(Rule{Until: "PST8PST"}), `Rules[0].Until is "PST8PST": it must be an IANA time zone, such as "UTC" (unknown time zone PST8PST)`},
		{rules(Rule{Header: "H", Value: "a*b", Text: "*a*b*"}), `Rules[0].Value is "a*b": a * may only begin or end it` + "\n" + `Rules[0].Text is "*a*b*": a * may only begin or end it`},
		{rules(Rule{Delay: []Field{at("R", Seconds), num("R")}, Asked: at("R", Seconds)}), "Rules[0].Delay[1] has the Format Number: set a format of times, such as Seconds or EpochSeconds\n" +
			"Rules[0].Asked has the Format Seconds: clear it, because this field is a Number"},
		{rules(Rule{Status: 429}, Rule{Status: 429, Text: "a"}), "Rules[1] can't match: Rules[0] matches the same responses first; move this rule before it"},
		{rules(Rule{Header: "x-a"}, Rule{Status: 429, Header: "X-A", Value: "b"}), "Rules[1] can't match: Rules[0] matches the same responses first; move this rule before it"},
		{rules(Rule{Status: 429, Text: "a"}, Rule{Status: 429}, Rule{Status: 403}), ""},
		{rules(Rule{Status: 429}, Rule{}), ""},
		{rules(Rule{Method: "post"}), `Rules[0].Method is "post": it must be "POST", in capital letters`},
		{rules(Rule{Method: "POST"}, Rule{Method: "POST", Status: 429}), "Rules[1] can't match: Rules[0] matches the same responses first; move this rule before it"},
		{rules(Rule{Method: "POST"}, Rule{Status: 429}), ""},
	} {
		got := ""
		if err := c.profile.Validate(); err != nil {
			got = strings.TrimPrefix(err.Error(), "answers: ")
		}
		if got != c.want {
			t.Errorf("problems:\n%s\nwant:\n%s", got, c.want)
		}
	}
}

func TestPeeks(t *testing.T) {
	const json = "Content-Type: application/json"
	for _, c := range []struct {
		name   string
		of     string
		status int
		lines  []string
		want   bool
	}{
		{"a quota in the body", "Shopify GraphQL Admin", 200, []string{json}, true},
		{"a body that is not JSON", "Shopify GraphQL Admin", 200, []string{"Content-Type: text/html"}, false},
		{"a body of unknown type", "Shopify GraphQL Admin", 200, nil, true},
		{"compressed", "Shopify GraphQL Admin", 200, []string{json, "Content-Encoding: br"}, false},
		{"a stream", "Shopify GraphQL Admin", 200, []string{"Content-Type: text/event-stream"}, false},
		{"a rule for the status", "OpenAI", 429, []string{json}, true},
		{"a rule for another status", "OpenAI", 200, []string{json}, false},
		{"an earlier rule that needs no body", "Stripe", 429, []string{json, "Stripe-Rate-Limited-Reason: global-rate"}, false},
		{"an earlier rule for another header", "Stripe", 429, []string{json}, true},
		{"a rule for text anywhere", "CoinGecko", 403, []string{"Content-Type: text/html"}, true},
		{"a rule for events", "Google Gemini API", 200, []string{json}, false},
		{"a charge", "OpenAI", 200, []string{json}, false},
		{"headers only", "SendGrid", 429, []string{json}, false},
		{"a wait in the body", "Mailgun", 429, []string{json}, true},
	} {
		r := response(c.status, "", append([]string{"Content-Type: "}, c.lines...)...)
		if got := profiles[c.of].Peeks(r.Status, r.Header); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	waits := Profile{RetryAfter: []Field{in("retry_after", Seconds)}, Rules: []Rule{{Status: 404}, {Status: 403, Kind: Banned}}}
	if h := response(0, "").Header; !waits.Peeks(429, h) || !waits.Peeks(403, h) || waits.Peeks(200, h) || waits.Peeks(404, h) {
		t.Error("Peeks must be true for refusals with a wait in the body, and only for them")
	}
}
