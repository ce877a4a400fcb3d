package providers_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const slack = "https://slack.com/api/"

// slackForm returns a call in the form of Slack's clients.
func slackForm(t *testing.T, method, channel string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, slack+method, strings.NewReader(url.Values{"channel": {channel}, "text": {"hello"}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return req
}

func TestSlack(t *testing.T) {
	d := long(5 * time.Minute)
	for _, load := range []struct {
		name string
		next func(*testing.T, int) *http.Request
		want float64 // a minute
	}{
		{"methods of three tiers", func(t *testing.T, w int) *http.Request {
			return slackForm(t, []string{"conversations.list", "conversations.history", "users.info", "users.list"}[w%4], "C1")
		}, 20 + 50 + 100 + 20},
		{"messages as forms", func(t *testing.T, w int) *http.Request {
			return slackForm(t, "chat.postMessage", fmt.Sprintf("C%d", w%2))
		}, 2 * 60},
		{"messages as JSON", func(t *testing.T, w int) *http.Request {
			return postJSON(t, slack+"chat.postMessage", fmt.Sprintf(`{"channel":"C%d","text":"hello"}`, w%2))
		}, 2 * 60},
	} {
		t.Run(load.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("slack")
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				saturate(t, over(t, providers.Slack(), api), 8, d, func(w int) *http.Request { return load.next(t, w) })
				checkServed(t, api, 0.95*d.Minutes()*load.want)
			})
		})
	}
}

func TestSlackRefusals(t *testing.T) {
	for _, test := range []struct {
		name  string
		reply fakeapi.Reply
	}{
		{"429", fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "30"}, Body: `{"ok":false,"error":"ratelimited"}`}},
		{"200", fakeapi.Reply{Header: map[string]string{"Retry-After": "30"}, Body: `{"ok":false,"error":"ratelimited"}`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("slack")
				rt := over(t, providers.Slack(), api)
				api.Trap(test.reply)
				send(t, rt, slackForm(t, "users.list", ""))
				if _, _, took := send(t, rt, slackForm(t, "users.info", "")); took != 0 {
					t.Errorf("another method waited %v", took)
				}
				if status, _, took := send(t, rt, slackForm(t, "users.list", "")); status != 200 || took != 30*time.Second {
					t.Errorf("%d after %v, want 200 after 30 s", status, took)
				}
			})
		})
	}
}

// TestSlackMethods checks how many calls of a method go at once: a modal must open within three
// seconds of the click, and a webhook has one message a second.
func TestSlackMethods(t *testing.T) {
	for url, want := range map[string]int{
		"https://slack.com/api/views.open": 100, "https://slack.com/api/chat.appendStream": 100, "https://slack.com/api/reactions.add": 50,
		"https://slack.com/api/auth.test": 600, "https://slack.com/api/apps.connections.open": 1, "https://slack.com/api/users.list": 20,
		"https://hooks.slack.com/services/T0/B0/x": 1, "https://slack.com/oauth/v2/authorize": 1000,
		"https://slack-gov.com/api/views.open": 100, "https://hooks.slack-gov.com/services/T0/B0/x": 1,
	} {
		synctest.Test(t, func(t *testing.T) {
			if n := atOnce(t, providers.Slack(), 1_000, func() *http.Request { return get(t, url) }); n != want {
				t.Errorf("%s: %d at once, want %d", url, n, want)
			}
		})
	}
}

// The limits of the methods that most apps call, as Slack's Java SDK lists them.
func TestSlackTiers(t *testing.T) {
	for want, methods := range map[int]string{
		1: `apps.connections.open rtm.connect apps.manifest.create apps.manifest.update apps.manifest.delete admin.teams.create
			conversations.acceptSharedInvite conversations.approveSharedInvite conversations.declineSharedInvite`,
		20: `users.list conversations.list conversations.create search.messages usergroups.list pins.add reminders.add`,
		50: `reactions.add reactions.get conversations.open conversations.join conversations.invite conversations.kick
			conversations.leave conversations.mark conversations.history conversations.replies conversations.info chat.update
			chat.delete chat.scheduleMessage chat.unfurl chat.meMessage users.lookupByEmail users.getPresence users.profile.set
			bots.info bookmarks.list canvases.edit functions.completeSuccess functions.completeError assistant.threads.setTitle files.list`,
		100: `views.open views.push views.update views.publish chat.postEphemeral chat.appendStream dialog.open users.info
			users.profile.get files.info files.getUploadURLExternal files.completeUploadExternal oauth.v2.access im.open api.test
			conversations.members`,
		600: `auth.test chat.getPermalink blocks.validate`,
	} {
		for method := range strings.FieldsSeq(methods) {
			checkBurst(t, providers.Slack, method, want, to(t, "POST", slack+method))
		}
	}
}

// A status counts for its direct message, and a cap of a workspace is a scope that the caller adds.
func TestSlackQuotas(t *testing.T) {
	call := func(method, body string) func() *http.Request { return to(t, "POST", slack+method, body) }
	var messages []func() *http.Request
	for i := range 400 {
		messages = append(messages, call("chat.postMessage", fmt.Sprintf(`{"channel":"C%d","text":"hello"}`, i)))
	}
	checkAtOnce(t, func() providers.Provider {
		p := providers.Slack()
		p.Scopes = append(p.Scopes, providers.Scope{
			Name: "workspace", Policy: throttle.Policy{Tiers: []throttle.Tier{throttle.PerMinute(300)}},
			Key: func(req *http.Request) (string, bool) {
				return "", strings.HasSuffix(req.URL.Path, "/chat.postMessage")
			},
		})
		p.Account = func(req *http.Request) string { return req.Header.Get("Team") }
		return p
	}, []atOnceTest{
		{"statuses", 120, []func() *http.Request{call("assistant.threads.setStatus", `{"channel_id":"D1"}`), call("assistant.threads.setStatus", `{"channel_id":"D2"}`)}},
		{"messages to a workspace", 300, messages},
		{"two workspaces", 40, []func() *http.Request{call("users.list", ""), func() *http.Request {
			req := call("users.list", "")()
			req.Header.Set("Team", "T2")
			return req
		}}},
	})
}

func ExampleSlack() {
	client, err := providers.Slack().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("slack")) // instead of the network

	for _, channel := range []string{"C1", "C2"} { // each channel has one message a second
		resp, err := client.PostForm("https://slack.com/api/chat.postMessage", url.Values{"channel": {channel}, "text": {"Hello!"}})
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(channel, resp.Status)
	}
	// Output:
	// C1 200 OK
	// C2 200 OK
}
