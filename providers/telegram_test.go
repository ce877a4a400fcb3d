package providers_test

import (
	"bytes"
	"fmt"
	"mime/multipart"
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

const telegram = "https://api.telegram.org/bot123:abc/"

// telegramForm returns a message as a form.
func telegramForm(t *testing.T, method, chat string) func() *http.Request {
	return func() *http.Request {
		req := to(t, "POST", telegram+method, url.Values{"chat_id": {chat}, "text": {"hello"}}.Encode())()
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return req
	}
}

// telegramPhoto returns a photo as a multipart body, with the chat behind another part.
func telegramPhoto(t *testing.T, chat string) func() *http.Request {
	return func() *http.Request {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		w.WriteField("caption", "chat_id=7")
		w.WriteField("chat_id", chat)
		photo, err := w.CreateFormFile("photo", "photo.jpg")
		if err != nil {
			t.Fatal(err)
		}
		photo.Write(bytes.Repeat([]byte{0xff}, 100_000)) // longer than what is read
		w.Close()
		req := to(t, "POST", telegram+"sendPhoto", body.String())()
		req.Header.Set("Content-Type", w.FormDataContentType())
		return req
	}
}

func TestTelegram(t *testing.T) {
	message := func(chat string) func() *http.Request {
		return to(t, "POST", telegram+"sendMessage", fmt.Sprintf(`{"chat_id":%s,"text":"hello"}`, chat))
	}
	var many []func() *http.Request
	for i := range 40 {
		many = append(many, message(fmt.Sprint(i+1)))
	}
	checkAtOnce(t, providers.Telegram, []atOnceTest{
		{"one chat, in every form", 1, []func() *http.Request{message("42"), message(`"42"`), telegramForm(t, "sendMessage", "42"), telegramPhoto(t, "42"), to(t, "GET", telegram+"sendMessage?chat_id=42")}},
		{"one chat, in a form", 1, []func() *http.Request{telegramForm(t, "copyMessage", "42"), message("42")}},
		{"one chat, in a query", 1, []func() *http.Request{to(t, "GET", telegram+"sendMessage?chat_id=42"), message("42")}},
		{"one chat, in parts", 1, []func() *http.Request{telegramPhoto(t, "42"), message("42")}},
		{"many chats", 30, many},
		{"messages without a chat", 30, []func() *http.Request{to(t, "POST", telegram+"editMessageText", `{"inline_message_id":"a"}`)}},
		{"methods that send nothing", 2_500, []func() *http.Request{to(t, "POST", telegram+"getUpdates", `{"timeout":50}`), to(t, "POST", telegram+"sendChatAction", `{"chat_id":42}`)}},
		{"setWebhook", 1, []func() *http.Request{to(t, "POST", telegram+"setwebhook", `{"url":"https://example.org"}`)}},
		{"two bots", 2, []func() *http.Request{message("42"), to(t, "GET", "https://api.telegram.org/bot456:def/sendMessage?chat_id=42")}},
	})
	for chat, want := range map[string]int{"42": 60, "-100123": 20, `"@channel"`: 20} {
		synctest.Test(t, func(t *testing.T) {
			rt, n, start := over(t, providers.Telegram(), accepting{}), 0, time.Now()
			for ; time.Since(start) < time.Minute; n++ {
				send(t, rt, message(chat)().WithContext(t.Context()))
			}
			if n != want && n != want+1 { // the last one waited for the next minute
				t.Errorf("chat %s: %d messages in a minute, want %d", chat, n, want)
			}
		})
	}
	refused := func(wait int, header ...string) fakeapi.Reply {
		return fakeapi.Reply{
			Status: 429, Header: map[string]string{strings.Join(header, ""): fmt.Sprint(wait)},
			Body: fmt.Sprintf(`{"ok":false,"error_code":429,"description":"Too Many Requests: retry after %d","parameters":{"retry_after":%[1]d}}`, wait),
		}
	}
	checkRefusals(t, providers.Telegram, []refusalTest{
		{name: "the chat waits", first: message("-100"), reply: refused(90, "Retry-After"), want: 90 * time.Second},
		{name: "the wait in the body", reply: refused(90, "X"), want: 90 * time.Second},
		{name: "other chats go on", next: message("-200"), reply: refused(90, "Retry-After")},
		{name: "hours close the chat", reply: refused(9_000, "X"), want: closed},
		{name: "a chat that moved", reply: fakeapi.Reply{Status: 400, Body: `{"ok":false,"error_code":400,"parameters":{"migrate_to_chat_id":-1001}}`}, want: time.Second},
		{name: "an album is refused", first: to(t, "POST", telegram+"sendMediaGroup", `{"chat_id":-100,"media":[{},{}]}`), next: message("-100"), want: 8 * time.Second,
			reply: fakeapi.Reply{Status: 400, Body: `{"ok":false,"error_code":400,"description":"Bad Request: failed to send message #1 with the error message \"Too Many Requests: retry after 8\""}`}},
		{name: "other chats go on after an album", next: message("-200"),
			reply: fakeapi.Reply{Status: 400, Body: `{"ok":false,"error_code":400,"description":"Bad Request: failed to send message #1 with the error message \"Too Many Requests: retry after 8\""}`}},
		{name: "close alone waits", first: to(t, "POST", telegram+"close"), next: message("1"), reply: refused(540, "Retry-After")},
		{name: "getMe waits for the bot", first: to(t, "POST", telegram+"getMe"), next: message("1"), reply: refused(61, "Retry-After"), want: 61 * time.Second},
	})
}

// An album goes at once to a chat that may have one message, and costs as many messages as it has
// pictures.
func TestTelegramCountsEachMessage(t *testing.T) {
	album := func(chat string, pictures int) func() *http.Request {
		list := strings.TrimSuffix(strings.Repeat(`{"type":"photo","media":"a"},`, pictures), ",")
		return to(t, "POST", telegram+"sendMediaGroup", fmt.Sprintf(`{"chat_id":%s,"media":[%s]}`, chat, list))
	}
	form := func() *http.Request {
		req := to(t, "POST", telegram+"sendMediaGroup", url.Values{"chat_id": {"-1"}, "media": {`[{"media":"a"},{"media":"b"}]`}}.Encode())()
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return req
	}
	forward := func(chat string, messages int) func() *http.Request {
		list := strings.TrimSuffix(strings.Repeat("7,", messages), ",")
		return to(t, "POST", telegram+"forwardMessages", fmt.Sprintf(`{"chat_id":%s,"from_chat_id":1,"message_ids":[%s]}`, chat, list))
	}
	message := func(chat string) func() *http.Request {
		return to(t, "POST", telegram+"sendMessage", fmt.Sprintf(`{"chat_id":%s,"text":"hello"}`, chat))
	}
	for _, test := range []struct {
		name        string
		first, next func() *http.Request
		chat        time.Duration // the next message to the chat waits
		group       int64         // messages that count for the group
		bot         int64
	}{
		{"an album to a chat", album("42", 10), message("42"), 10 * time.Second, 0, 10},
		{"an album to a group", album("-1", 10), message("-1"), time.Second, 10, 10},
		{"an album in a form", form, message("-1"), time.Second, 2, 2},
		{"an album that can't be read", to(t, "POST", telegram+"sendMediaGroup?chat_id=-1"), message("-1"), time.Second, 10, 10},
		{"three messages", forward("42", 3), message("42"), 3 * time.Second, 0, 3},
		{"a hundred messages", forward("42", 100), message("42"), 100 * time.Second, 0, 30},
		{"a hundred messages to a group", forward("-1", 100), message("-1"), time.Minute, 20, 30},
		{"a message", message("-1"), message("-1"), time.Second, 1, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if cost := providers.Telegram().Cost(test.first()); cost["group"] != test.group || cost["messages"] != test.bot {
					t.Errorf("%v, want %d for the group and %d for the bot", cost, test.group, test.bot)
				}
				rt := over(t, providers.Telegram(), accepting{})
				if _, _, took := send(t, rt, test.first().WithContext(t.Context())); took != 0 {
					t.Errorf("waited %v", took)
				}
				if _, _, took := send(t, rt, test.next().WithContext(t.Context())); took < test.chat || took > test.chat+time.Second {
					t.Errorf("the next message waited %v, want %v", took, test.chat)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		rt, start := over(t, providers.Telegram(), accepting{}), time.Now()
		for range 3 {
			send(t, rt, album("-1", 10)().WithContext(t.Context()))
		}
		if took := time.Since(start); took < time.Minute {
			t.Errorf("30 pictures to a group in %v, want a minute", took)
		}
	})
}

func ExampleTelegram() {
	client, err := providers.Telegram().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.PostForm("https://api.telegram.org/bot123:abc/sendMessage", url.Values{"chat_id": {"42"}, "text": {"Hello!"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
