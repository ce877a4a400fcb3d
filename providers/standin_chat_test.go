package providers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// fields returns the fields of a body in JSON, as a form, or in parts.
func (r arrivedRequest) fields() map[string]string {
	fields := map[string]string{}
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "application/json":
		var values map[string]json.RawMessage
		if json.Unmarshal(r.body, &values) == nil {
			for name, v := range values {
				fields[name] = strings.Trim(string(v), `"`)
			}
		}
	case "multipart/form-data":
		for parts := multipart.NewReader(bytes.NewReader(r.body), params["boundary"]); ; {
			part, err := parts.NextPart()
			if err != nil {
				break
			}
			text, _ := io.ReadAll(part)
			fields[part.FormName()] = string(text)
		}
	default:
		values, _ := url.ParseQuery(string(r.body))
		for name := range values {
			fields[name] = values.Get(name)
		}
	}
	return fields
}

// newTelegram is the Bot API, as core.telegram.org/bots/faq describes it (read 2026-11-28): 20 messages a
// minute to a group, about one a second to a chat, and about 30 a second in all; "we may allow short
// bursts" in a chat, so that an album to a person counts once there. An album is as many messages as it
// has pictures, and forwardMessages and copyMessages send one for each id:
// core.telegram.org/bots/api#sendmediagroup returns "an array of Message objects that were sent".
func newTelegram() *pageAPI {
	group := regexp.MustCompile(`^(-|@)`)
	chat := func(groups bool) func(arrivedRequest) (string, bool) {
		return func(r arrivedRequest) (string, bool) {
			id := r.fields()["chat_id"]
			return id, group.MatchString(id) == groups
		}
	}
	return &pageAPI{
		limits: []pageLimit{
			{name: "group", tier: tierOf("20/m"), key: chat(true), cost: telegramMessages, refusal: telegramRefusal},
			{name: "person", tier: tierOf("1/s"), key: chat(false), refusal: telegramRefusal},
			{name: "bot", tier: tierOf("30/s"), cost: telegramMessages, refusal: telegramRefusal},
		},
		answer: func(*pageAPI, arrivedRequest) fakeapi.Reply { return fakeapi.Reply{Body: `{"ok":true,"result":{}}`} },
	}
}

// telegramMessages returns how many messages a request sends.
func telegramMessages(r arrivedRequest) int64 {
	fields := r.fields()
	for _, list := range []string{fields["media"], fields["message_ids"]} {
		var entries []json.RawMessage
		if json.Unmarshal([]byte(list), &entries) == nil && len(entries) > 0 {
			return int64(len(entries))
		}
	}
	return 1
}

// telegramRefusal is the response of github.com/tdlib/telegram-bot-api@01a3679, and for an album that
// of github.com/rubenlagus/TelegramBots/issues/1520 (read 2026-11-28).
func telegramRefusal(r arrivedRequest, wait time.Duration) fakeapi.Reply {
	if strings.HasSuffix(r.URL.Path, "/sendMediaGroup") {
		return telegramAlbumRefusal(wait)
	}
	s := seconds(wait)
	return fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": s},
		Body: `{"ok":false,"error_code":429,"description":"Too Many Requests: retry after ` + s + `","parameters":{"retry_after":` + s + `}}`}
}

func telegramAlbumRefusal(wait time.Duration) fakeapi.Reply {
	return fakeapi.Reply{Status: 400, Body: `{"ok":false,"error_code":400,"description":"Bad Request: failed to send message #1 with the error message \"Too Many Requests: retry after ` + seconds(wait) + `\""}`}
}

// A telegramBody writes the fields of a request as some library does.
type telegramBody struct {
	name  string
	write func(chat, list string, values []any) (contentType, body string)
}

var telegramBodies = []telegramBody{
	{"JSON", func(chat, list string, values []any) (string, string) {
		body, _ := json.Marshal(map[string]any{"chat_id": json.Number(chat), list: values})
		return "application/json", string(body)
	}},
	{"form", func(chat, list string, values []any) (string, string) {
		text, _ := json.Marshal(values)
		return "application/x-www-form-urlencoded", url.Values{"chat_id": {chat}, list: {string(text)}}.Encode()
	}},
	{"parts", func(chat, list string, values []any) (string, string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		text, _ := json.Marshal(values)
		_ = w.WriteField("chat_id", chat)
		_ = w.WriteField(list, string(text))
		_ = w.Close()
		return w.FormDataContentType(), b.String()
	}},
}

// telegramBatch returns a request that sends ten messages to a chat.
func telegramBatch(t *testing.T, b telegramBody, method, chat string) *http.Request {
	t.Helper()
	var values []any
	list := "message_ids"
	for i := range 10 {
		values = append(values, 100+i)
	}
	if method == "sendMediaGroup" {
		list = "media"
		for i := range values {
			values[i] = map[string]string{"type": "photo", "media": fmt.Sprint("https://example.com/", i, ".jpg")}
		}
	}
	contentType, body := b.write(chat, list, values)
	return withBody(t, "POST", "https://api.telegram.org/bot123:abc/"+method, contentType, body)
}

// Albums and lists of ids count as many messages as they send: two of ten fill a group's minute.
func TestBatchOfMessagesCountsEach(t *testing.T) {
	for _, b := range telegramBodies {
		for _, method := range []string{"sendMediaGroup", "forwardMessages", "copyMessages"} {
			t.Run(method+" as "+b.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := newTelegram()
					took := sendAll(t, over(t, providers.Telegram(), api), 4, 4, func(int) *http.Request {
						return telegramBatch(t, b, method, "-100123")
					})
					checkNoneRefused(t, api)
					checkTook(t, "four lists of ten to a group", took, shortest(t, tierOf("20/m"), 10, 4), 0.95)
				})
			})
		}
	}
}

// The messages of albums to many people count for the bot.
func TestAlbumsCountForTheBot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newTelegram()
		took := sendAll(t, over(t, providers.Telegram(), api), 60, 60, func(i int) *http.Request {
			return telegramBatch(t, telegramBodies[i%len(telegramBodies)], "sendMediaGroup", fmt.Sprint(1_000+i))
		})
		checkNoneRefused(t, api)
		checkTook(t, "sixty albums of ten", took, shortest(t, tierOf("30/s"), 10, 60), 0.9)
	})
}

// Single messages to groups and people go as fast as each chat and the bot allow.
func TestMessagesToGroupsAndPeople(t *testing.T) {
	soak.Long(t, "it plays many chats")
	synctest.Test(t, func(t *testing.T) {
		api := newTelegram()
		const d = 3 * time.Minute
		start := time.Now()
		keepBusy(t, over(t, providers.Telegram(), api), 20, d, func(worker int) *http.Request {
			chat := fmt.Sprint(worker) // a person
			if worker < 10 {
				chat = fmt.Sprint("-100", worker)
			}
			req := withBody(t, "POST", "https://api.telegram.org/bot123:abc/sendMessage", "application/json", `{"chat_id":`+chat+`,"text":"hi"}`)
			req.Header.Set(accountHeader, map[bool]string{true: "groups", false: "people"}[worker < 10])
			return req
		})
		checkNoneRefused(t, api)
		served, _ := api.outcomes(start)
		for _, want := range []struct {
			who  string
			tier string
		}{{"groups", "20/m"}, {"people", "1/s"}} {
			n := 10 * possible(t, tierOf(want.tier), 1, d)
			if t.Logf("%s: %d of %d", want.who, served[want.who], n); float64(served[want.who]) < 0.9*float64(n) {
				t.Errorf("%s got %d messages, want at least 0.9 of %d", want.who, served[want.who], n)
			}
		}
	})
}

// The refusal of an album has status 400 and its wait in the text. It stops its chat and no other. A
// 400 for another reason stops nothing.
func TestRefusedAlbumStopsItsChat(t *testing.T) {
	for _, test := range []struct {
		name  string
		reply fakeapi.Reply
		wait  time.Duration
	}{
		{"message of an album", telegramAlbumRefusal(8 * time.Second), 8 * time.Second},
		{"group became a supergroup", fakeapi.Reply{Status: 400, Body: `{"ok":false,"error_code":400,"description":"Bad Request: group chat is migrated to a supergroup chat","parameters":{"migrate_to_chat_id":-1001234567890}}`}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newTelegram()
				rt := over(t, providers.Telegram(), api)
				send := func(chat string) time.Duration {
					start := time.Now()
					if err := fetch(rt, telegramBatch(t, telegramBodies[0], "sendMediaGroup", chat)); err != nil {
						t.Fatal(err)
					}
					return time.Since(start)
				}
				api.trap(test.reply)
				send("-100123")
				other := make(chan time.Duration)
				go func() { other <- send("-100456") }()
				took := send("-100123")
				if took < test.wait {
					t.Errorf("the chat got its next album %v after a refusal for %v", took, test.wait)
				}
				checkTook(t, "the chat's next album", took, test.wait+time.Second, 0.95)
				checkTook(t, "an album of another chat", <-other, 0, 1)
			})
		})
	}
}

// newDiscordBuckets is the API of Discord with routes of a guild that share a bucket:
// docs.discord.com/developers/topics/rate-limits (read 2026-11-28) has "per-route limits will be shared
// across a set of similar endpoints, indicated in the X-RateLimit-Bucket header", and counts apart for
// each top-level resource. The numbers of buckets are not published.
func newDiscordBuckets() *pageAPI {
	guild := func(r arrivedRequest) (string, bool) {
		_, rest, _ := strings.Cut(r.URL.Path, "/guilds/")
		id, _, _ := strings.Cut(rest, "/")
		return id, true
	}
	const bucket = "80c17d2f203122d936070c88c8d10f33"
	headers := func(left int64, wait time.Duration) map[string]string {
		return map[string]string{
			"X-RateLimit-Bucket": bucket, "X-RateLimit-Limit": "5", "X-RateLimit-Remaining": fmt.Sprint(left),
			"X-RateLimit-Reset":       fmt.Sprintf("%.3f", float64(time.Now().Add(wait).UnixMilli())/1e3),
			"X-RateLimit-Reset-After": fmt.Sprintf("%.3f", float64(wait.Milliseconds()+1)/1e3),
		}
	}
	return &pageAPI{
		limits: []pageLimit{
			{name: "bot", tier: tierOf("50/s"), refusal: discordGlobal},
			{name: "bucket", tier: tierOf("5/5s;algo=anchored_window"), key: guild, refusal: func(_ arrivedRequest, wait time.Duration) fakeapi.Reply {
				h := headers(0, wait)
				h["Retry-After"], h["X-RateLimit-Scope"] = seconds(wait), "user"
				return fakeapi.Reply{Status: 429, Header: h, Body: fmt.Sprintf(`{"message":"You are being rate limited.","retry_after":%.3f,"global":false}`, wait.Seconds())}
			}},
		},
		answer: func(api *pageAPI, r arrivedRequest) fakeapi.Reply {
			left, _ := api.left("bucket", r)
			_, c := api.counted("bucket", r)
			now := time.Now()
			full, _ := c.Earliest(now.UnixMicro(), map[string]int64{"requests": 5})
			return fakeapi.Reply{Header: headers(left, time.UnixMicro(full).Sub(now)), Body: "[]"}
		},
	}
}

// Routes that name the same bucket wait for each other, and those of another guild do not.
func TestRoutesShareABucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newDiscordBuckets()
		const d = 10 * time.Minute
		start := time.Now()
		keepBusy(t, over(t, providers.Discord(), api), 12, d, func(worker int) *http.Request {
			route := []string{"roles", "channels", "emojis"}[worker%3]
			guild := 1 + worker/3%2
			return withBody(t, "GET", fmt.Sprintf("https://discord.com/api/v10/guilds/%d/%s", guild, route), "", "",
				"Authorization: Bot x", fmt.Sprintf("%s: guild%d", accountHeader, guild))
		})
		// The first responses tell what the routes share.
		if _, refused := api.outcomes(start.Add(6 * time.Second)); sum(refused) > 0 {
			t.Errorf("refused %v after the first responses", refused)
		}
		served, _ := api.outcomes(start)
		want := possible(t, tierOf("5/5s;algo=anchored_window"), 1, d)
		for guild := 1; guild <= 2; guild++ {
			got := served[fmt.Sprint("guild", guild)]
			if t.Logf("guild %d: %d of %d", guild, got, want); float64(got) < 0.9*float64(want) {
				t.Errorf("guild %d: %d served, want at least 0.9 of %d", guild, got, want)
			}
		}
	})
}

// newWhatsApp is the Cloud API, as developers.facebook.com/documentation/business-messaging/whatsapp/
// throughput describes it (read 2026-11-28): 80 messages a second for each business number, else code
// 130429. A recipient gets one message in 6 seconds, else code 131056: dev.to/wapgrowai_org/
// whatsapp-cloud-api-rate-limits-in-practice (read 2026-11-28) quotes the page of error codes. Other calls
// of the Graph API have 200 an hour for each daily user: developers.facebook.com/docs/graph-api/overview/
// rate-limiting. The text of 131056 was captured by clients.
func newWhatsApp() *pageAPI {
	path := regexp.MustCompile(`^/v[0-9.]+/([0-9]+)/messages$`)
	refusal := func(code int, title, details string) func(arrivedRequest, time.Duration) fakeapi.Reply {
		return says(400, fmt.Sprintf(`{"error":{"message":"(#%d) %s","type":"OAuthException","code":%d,"error_data":{"messaging_product":"whatsapp","details":%q},"fbtrace_id":"Az8or2yhqkZfEZ"}}`, code, title, code, details))
	}
	return &pageAPI{
		limits: []pageLimit{
			{name: "pair", tier: tierOf("1/6s"), refusal: refusal(131056, "(Business Account, Consumer Account) pair rate limit hit", "Message failed to send because there were too many messages sent from this phone number to the same phone number in a short period of time."),
				key: func(r arrivedRequest) (string, bool) {
					m := path.FindStringSubmatch(r.URL.Path)
					return fmt.Sprint(m) + r.fields()["to"], m != nil
				}},
			{name: "number", tier: tierOf("80/s"), refusal: refusal(130429, "Rate limit hit", "Cloud API message throughput has been reached."),
				key: func(r arrivedRequest) (string, bool) {
					m := path.FindStringSubmatch(r.URL.Path)
					return fmt.Sprint(m), m != nil
				}},
			{name: "graph", tier: tierOf("200/h"), refusal: says(400, `{"error":{"message":"(#4) Application request limit reached","type":"OAuthException","code":4}}`),
				key: func(r arrivedRequest) (string, bool) { return "", !path.MatchString(r.URL.Path) }},
		},
		answer: func(*pageAPI, arrivedRequest) fakeapi.Reply {
			return fakeapi.Reply{Body: `{"messaging_product":"whatsapp","contacts":[{"input":"1","wa_id":"1"}],"messages":[{"id":"wamid.1"}]}`}
		},
	}
}

func toWhatsApp(t *testing.T, number, to int) *http.Request {
	t.Helper()
	return withBody(t, "POST", fmt.Sprintf("https://graph.facebook.com/v21.0/10654035224294%d/messages", number), "application/json",
		fmt.Sprintf(`{"messaging_product":"whatsapp","recipient_type":"individual","to":"1650555%04d","type":"text","text":{"body":"hi"}}`, to),
		"Authorization: Bearer x", fmt.Sprintf("%s: to%d", accountHeader, to))
}

// A business number sends 80 messages a second to different people.
func TestWhatsAppMessagesToMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newWhatsApp()
		took := sendAll(t, over(t, providers.Meta(200), api), 100, 400, func(i int) *http.Request { return toWhatsApp(t, 1, i) })
		checkNoneRefused(t, api)
		checkTook(t, "400 messages to 400 people", took, shortest(t, tierOf("80/s"), 1, 400), 0.4) // 10 s
	})
}

// Messages to one person take 6 seconds each and hold up nobody else's.
func TestWhatsAppMessagesToOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newWhatsApp()
		rt := over(t, providers.Meta(200), api)
		done := make(chan time.Duration)
		go func() { done <- sendAll(t, rt, 10, 10, func(int) *http.Request { return toWhatsApp(t, 1, 7) }) }()
		time.Sleep(time.Second) // they wait by now
		others := sendAll(t, rt, 20, 50, func(i int) *http.Request { return toWhatsApp(t, 1, 100+i) })
		took := <-done
		checkNoneRefused(t, api)
		checkTook(t, "ten messages to one person", took, shortest(t, tierOf("1/6s"), 1, 10), 0.9)
		checkTook(t, "fifty messages to others meanwhile", others, time.Second, 1)
	})
}

// Messages do not count with the other calls of the Graph API, which have 200 an hour here.
func TestWhatsAppBesideOtherCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newWhatsApp()
		rt := over(t, providers.Meta(200), api)
		graph := func(int) *http.Request {
			return withBody(t, "GET", "https://graph.facebook.com/v21.0/me?access_token=1|x", "", "")
		}
		checkTook(t, "100 messages", sendAll(t, rt, 100, 100, func(i int) *http.Request { return toWhatsApp(t, 1, i) }), 2*time.Second, 1)
		checkTook(t, "200 other calls", sendAll(t, rt, 50, 200, graph), time.Second, 1)
		checkTook(t, "100 more messages", sendAll(t, rt, 100, 100, func(i int) *http.Request { return toWhatsApp(t, 1, 200+i) }), 2*time.Second, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := fetch(rt, graph(0).WithContext(ctx)); err == nil {
			t.Error("the 201st other call of an hour was sent")
		}
		checkNoneRefused(t, api)
	})
}

// The refusals of WhatsApp have status 400. One for throughput stops the number, and one for a pair the
// recipient.
func TestWhatsAppRefusals(t *testing.T) {
	for _, test := range []struct {
		name        string
		limit       int
		stops, goes [][2]int // numbers and recipients
	}{
		{"throughput", 1, [][2]int{{1, 1}, {1, 2}}, [][2]int{{2, 1}, {2, 3}}},
		{"pair", 0, [][2]int{{1, 1}}, [][2]int{{1, 2}, {2, 1}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newWhatsApp()
				rt := over(t, providers.Meta(200), api)
				api.trap(api.limits[test.limit].refusal(arrivedRequest{}, time.Second))
				if err := fetch(rt, toWhatsApp(t, 1, 1)); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
				defer cancel()
				for _, m := range test.goes {
					if err := fetch(rt, toWhatsApp(t, m[0], m[1]).WithContext(ctx)); err != nil {
						t.Errorf("number %d to %d: %v", m[0], m[1], err)
					}
				}
				for _, m := range test.stops {
					if err := fetch(rt, toWhatsApp(t, m[0], m[1]).WithContext(ctx)); err == nil {
						t.Errorf("number %d to %d was sent within a second of the refusal", m[0], m[1])
					}
				}
			})
		})
	}
}
