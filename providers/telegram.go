package providers

import (
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var telegramPreset = Preset{Name: "telegram", Constructor: "Telegram()", kind: "Messages", New: Telegram}

// Telegram is the Bot API of Telegram, with the limits of each bot, chat and group. A bot sends 30
// messages a second in all, one a second to each chat, and 20 a minute to each group or channel.
// Calls of the methods that send, copy, forward or edit count as messages. Of the other methods,
// setWebhook has one call a second, close has one in 10 minutes, and the rest are not limited.
// Telegram tolerates short bursts. It doesn't document how it counts, so windows roll.
//
// The chat_id is read from the query, or from a JSON, form or multipart body. A negative number or
// a @name is a group or channel. A message without a readable chat counts for the bot alone. Paid
// broadcasts have more than 30 a second.
//
// A refusal pauses its chat for as long as the response asks. A refusal of a method that sends
// nothing pauses the bot.
func Telegram() Provider {
	const faq, group = "https://core.telegram.org/bots/faq", "https://github.com/python-telegram-bot/python-telegram-bot/wiki/Avoiding-flood-limits"
	const source = "https://github.com/tdlib/telegram-bot-api/blob/01a3679/telegram-bot-api/Query.cpp"
	messages := func(limit int64, window time.Duration) throttle.Tier {
		return throttle.Tier{Limit: limit, Window: window, Unit: "messages"}
	}
	return Provider{
		Name: "telegram",
		Scopes: []Scope{
			some("setWebhook", source, when(telegramIs("setWebhook")), throttle.PerSecond(1)),
			some("close", source, when(telegramIs("close")), throttle.Tier{Limit: 1, Window: 10 * time.Minute}),
			some("chat", faq, telegramChat, messages(1, time.Second)),
			some("group", group, telegramGroup, messages(20, time.Minute)),
			some("bot", faq, telegramBot, messages(30, time.Second)),
		},
		Cost: func(req *http.Request) throttle.Cost {
			if telegramSends(req) {
				return throttle.Cost{"messages": 1}
			}
			return throttle.Cost{"messages": 0}
		},
		Profile: answers.Profile{RetryAfter: []answers.Field{
			{Header: "Retry-After", Format: answers.RetryAfter},
			{Path: "parameters.retry_after", Format: answers.Seconds},
		}},
		Hosts: []string{"api.telegram.org"},
	}
}

// telegramIs returns a function that reports whether a request calls a method. Telegram ignores the
// case of methods.
func telegramIs(method string) func(*http.Request) bool {
	return func(req *http.Request) bool { return strings.EqualFold(path.Base(req.URL.Path), method) }
}

// telegramSends reports whether the request sends a message.
func telegramSends(req *http.Request) bool {
	method := strings.ToLower(path.Base(req.URL.Path))
	for _, verb := range []string{"send", "copy", "forward", "edit"} {
		if strings.HasPrefix(method, verb) {
			return method != "sendchataction" && !strings.HasSuffix(method, "forumtopic")
		}
	}
	return false
}

// telegramBot returns a name for the bot.
func telegramBot(req *http.Request) (bot string, counts bool) {
	bot, counts = strings.CutPrefix(req.URL.Path, "/bot")
	bot, _, _ = strings.Cut(bot, "/")
	return anonymous(bot), counts
}

// telegramChat returns the chat of a message.
func telegramChat(req *http.Request) (chat string, counts bool) {
	if !telegramSends(req) {
		return "", false
	}
	chat = param(req, "chat_id")
	return chat, chat != ""
}

// telegramGroup returns the group or channel of a message.
func telegramGroup(req *http.Request) (group string, counts bool) {
	group, _ = telegramChat(req)
	return group, strings.HasPrefix(group, "-") || strings.HasPrefix(group, "@")
}
