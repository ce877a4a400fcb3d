package providers

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var metaPreset = Preset{
	Name: "meta", Constructor: "Meta(perHour int64)", kind: "Social and data",
	Parameters: []Parameter{{Name: "per_hour", About: "calls an hour of the app, 200 for each of its daily users", Min: 1, Example: "200"}},
	call:       func(a arguments) Provider { return Meta(a.number("per_hour")) },
}

// Meta is the Graph API of Meta (Facebook, Instagram, WhatsApp, Threads and ads), with the limits
// of one app and of each account. An app has perHour calls in any hour: 200 for each of its daily
// users. Calls for an ad account, whose paths begin with act_ and its id, count in the account
// instead: reading costs 1 point and writing 3, of 60 in 5 minutes, or of 9,000 with full access to
// the Marketing API. Instagram has 100 messages a second for each account, 10 with audio or video.
// An entry of a batch and each of several ids count as a call.
//
// WhatsApp's Cloud API has 80 messages a second for each phone number, sent and received together, and
// one in 6 seconds from a number to a recipient. They don't count for the app, so perHour does not
// matter to a client that only sends messages. Numbers that use the WhatsApp Business app as well have
// 20 a second, and large ones 1,000: change the scope "number". Meta accepts up to 45 messages to a
// recipient at once, if the number then sends it none for as many times 6 seconds. The preset does not
// send such bursts: a second message to a recipient waits. The recipient is read from the body.
//
//	p := providers.Meta(200)
//	p.Scope("number").Policy.Tiers = []throttle.Tier{throttle.PerSecond(1_000)}
//
// Limits that depend on ads, impressions or engaged users are not included. Responses report their
// use as percentages, which can't correct a quota.
//
// A refusal has status 400 or 403 and pauses the account, or else the app, for the time that the
// response reports: X-Business-Use-Case-Usage has minutes. Changing a budget or a spending limit
// too often pauses nothing. A block for going too fast closes the quota with throttle.ErrBanned. A
// batch with refused entries has status 200 and pauses nothing. A refusal of WhatsApp, which names no
// wait, pauses the recipient or, for throughput and spam, the number.
func Meta(perHour int64) Provider {
	const page, ads = "https://developers.facebook.com/docs/graph-api/overview/rate-limiting", "https://developers.facebook.com/docs/marketing-api/overview/rate-limiting"
	const whatsApp = "https://developers.facebook.com/documentation/business-messaging/whatsapp/throughput"
	points := throttle.Tier{Limit: 60, Window: 5 * time.Minute, Unit: "points"}
	p := Provider{
		Name: "meta",
		Scopes: []Scope{
			some("recipient", whatsApp, metaRecipient, throttle.Tier{Limit: 1, Window: 6 * time.Second}),
			some("number", whatsApp, metaNumber, throttle.PerSecond(80)),
			some("account", ads, metaAccount, points),
			some("messages", page, metaMessages, throttle.PerSecond(100)),
			some("app", page, when(metaApp), throttle.PerHour(perHour)),
		},
		Cost:    metaCost,
		Profile: metaProfile(),
		Hosts:   []string{"graph.facebook.com", "graph.instagram.com", "graph-video.facebook.com", "graph.whatsapp.com", "graph.threads.net"},
	}
	for i := range p.Scopes {
		p.Scopes[i].Policy.MaxPause = time.Hour + time.Minute
	}
	return p
}

// metaProfile returns the profile of Meta's APIs.
func metaProfile() answers.Profile {
	const business = "X-Business-Use-Case-Usage"
	share := func(name, header, path string) answers.Quota {
		return answers.Quota{Name: name, Share: answers.Field{Header: header, Path: path, Format: answers.Percent}}
	}
	p := answers.Profile{Quotas: []answers.Quota{
		share("app", "X-App-Usage", "call_count"),
		share("app time", "X-App-Usage", "total_time"),
		share("app CPU", "X-App-Usage", "total_cputime"),
		share("account", "X-Ad-Account-Usage", "acc_id_util_pct"),
		share("insights app", "X-Fb-Ads-Insights-Throttle", "app_id_util_pct"),
		share("insights account", "X-Fb-Ads-Insights-Throttle", "acc_id_util_pct"),
		share("business", business, "*.*.call_count"),
	}}
	regain := []answers.Field{
		{Header: business, Path: "*.*.estimated_time_to_regain_access", Format: answers.Minutes},
		{Header: "X-Ad-Account-Usage", Path: "reset_time_duration", Format: answers.Seconds},
	}
	const code, subcode = "error.code", "error.error_subcode"
	for _, status := range []int{http.StatusBadRequest, http.StatusForbidden, http.StatusTooManyRequests} {
		p.Rules = append(p.Rules,
			answers.Rule{Status: status, Path: subcode, Text: "1487632", Kind: answers.Other, Reason: "ad set budget"},
			answers.Rule{Status: status, Path: subcode, Text: "1885172", Kind: answers.Other, Reason: "spending limit"},
			answers.Rule{Status: status, Path: subcode, Text: "1390008", Kind: answers.Banned, Reason: "too fast"},
			answers.Rule{Status: status, Path: subcode, Text: "1487742", Kind: answers.Limited, Delay: regain, Wait: 5 * time.Minute, Reason: "account"},
		)
		// The codes of https://developers.facebook.com/documentation/business-messaging/whatsapp/support/error-codes,
		// read on 2026-11-28: of throughput, spam, the business account, and of a number and a recipient.
		for _, text := range []string{"130429", "131048", "80007"} {
			p.Rules = append(p.Rules, answers.Rule{Status: status, Path: code, Text: text, Kind: answers.Limited, Delay: regain, Wide: true})
		}
		p.Rules = append(p.Rules, answers.Rule{Status: status, Path: code, Text: "131056", Kind: answers.Limited, Delay: regain})
		for _, text := range []string{"4", "17", "32", "613", "8000*", "8001*"} {
			p.Rules = append(p.Rules, answers.Rule{Status: status, Path: code, Text: text, Kind: answers.Limited, Delay: regain})
		}
	}
	return p
}

// metaCost returns the number of calls in a request, and its points in the Marketing API.
func metaCost(req *http.Request) throttle.Cost {
	n := int64(1)
	if req.Method == http.MethodPost && strings.Count(strings.Trim(req.URL.Path, "/"), "/") == 0 { // to the version alone
		n = max(n, listed(form(req), "batch"))
	} else if ids := req.URL.Query().Get("ids"); ids != "" {
		n = int64(strings.Count(ids, ",") + 1)
	}
	if _, ads := metaAccount(req); !ads {
		return throttle.Cost{"requests": n}
	}
	if req.Method != http.MethodGet {
		n *= 3
	}
	return throttle.Cost{"points": n}
}

// metaAccount returns the ad account of a request, if its path begins with one.
func metaAccount(req *http.Request) (account string, counts bool) {
	for part := range strings.SplitSeq(req.URL.Path, "/") {
		if strings.HasPrefix(part, "act_") {
			return part, true
		}
	}
	return "", false
}

// metaApp reports whether a request counts for the app.
func metaApp(req *http.Request) bool {
	_, ads := metaAccount(req)
	_, whatsApp := metaNumber(req)
	return !ads && !whatsApp
}

// metaNumber returns the id of the phone number that sends a message with WhatsApp.
func metaNumber(req *http.Request) (number string, counts bool) {
	path := strings.TrimPrefix(req.URL.Path, "/")
	if strings.HasPrefix(path, "v") {
		_, path, _ = strings.Cut(path, "/") // the version
	}
	number, call, _ := strings.Cut(path, "/")
	if req.Method != http.MethodPost || !isDigits(number) || call != "messages" && call != "marketing_messages" {
		return "", false
	}
	return number, param(req, "messaging_product") == "whatsapp"
}

// metaRecipient returns a name for the recipient of a message, a phone number in any form or an id. A
// receipt has none.
func metaRecipient(req *http.Request) (recipient string, counts bool) {
	if _, counts := metaNumber(req); !counts {
		return "", false
	}
	q := form(req)
	recipient = cmp.Or(q.Get("to"), q.Get("recipient"))
	return anonymous(strings.Map(func(r rune) rune {
		if strings.ContainsRune("+-() ", r) {
			return -1
		}
		return r
	}, recipient)), recipient != ""
}

// metaMessages returns the Instagram account that sends a message.
func metaMessages(req *http.Request) (account string, counts bool) {
	return req.URL.Path, req.Method == http.MethodPost && hostOf(req) == "graph.instagram.com" && strings.HasSuffix(req.URL.Path, "/messages")
}
