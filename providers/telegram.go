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
// Each picture of an album is a message, and so is each that forwardMessages or copyMessages names. An
// album goes to a person as soon as one message may, and the next message then waits a second for each
// picture. To a group and for the bot all of an album must find room, but at most 20 and 30 messages:
// keep these tiers that large. An album that can't be read has 10 pictures.
//
// The chat_id is read from the query, or from a JSON, form or multipart body. A negative number or
// a @name is a group or channel. A message without a readable chat counts for the bot alone. Paid
// broadcasts have more than 30 a second.
//
// A refusal pauses its chat for as long as the response asks. The refusal of an album has status 400
// and names the wait in its description. A refusal of a method that sends nothing pauses the bot.
func Telegram() Provider {
	const faq, group = "https://core.telegram.org/bots/faq", "https://github.com/python-telegram-bot/python-telegram-bot/wiki/Avoiding-flood-limits"
	const source = "https://github.com/tdlib/telegram-bot-api/blob/01a3679/telegram-bot-api/Query.cpp"
	chat := bucket(1, time.Second, 1)
	chat.Unit, chat.Estimated = "chat", true // an album is one message until it is sent
	return Provider{
		Name: "telegram",
		Scopes: []Scope{
			some("setWebhook", source, when(telegramIs("setWebhook")), throttle.PerSecond(1)),
			some("close", source, when(telegramIs("close")), throttle.Tier{Limit: 1, Window: 10 * time.Minute}),
			some("chat", faq, telegramChat, chat),
			some("group", group, telegramGroup, minute(telegramGroupMost, "group")),
			some("bot", faq, telegramBot, throttle.Tier{Limit: telegramBotMost, Window: time.Second, Unit: "messages"}),
		},
		Cost: telegramCost,
		Settle: func(req *http.Request) func(throttle.Cost) throttle.Cost {
			n := telegramMessages(req)
			_, isGroup := telegramGroup(req)
			return func(reported throttle.Cost) throttle.Cost {
				if reported["sent"] > 0 && !isGroup { // a group has a limit of its own
					reported["chat"] = n
				}
				delete(reported, "sent")
				return reported
			}
		},
		Profile: answers.Profile{
			RetryAfter: []answers.Field{
				{Header: "Retry-After", Format: answers.RetryAfter},
				{Path: "parameters.retry_after", Format: answers.Seconds},
			},
			Charges: []answers.Charge{
				{Unit: "chat", ByStatus: map[int]int64{http.StatusTooManyRequests: 0, 0: 1}},
				{Unit: "sent", ByStatus: map[int]int64{http.StatusOK: 1, 0: 0}},
			},
			// As in https://github.com/rubenlagus/TelegramBots/issues/1520, read on 2026-11-28.
			Rules: []answers.Rule{{
				Status: http.StatusBadRequest, Path: "description", Text: "*Too Many Requests: retry after *", Kind: answers.Limited,
				Delay: []answers.Field{{Path: "description", After: "retry after", Format: answers.Seconds}},
			}, {
				Status: http.StatusTooManyRequests, Path: "description", Text: "Too Many Requests: retry after *", Kind: answers.Limited,
				Delay: []answers.Field{{Path: "parameters.retry_after", Format: answers.Seconds}, {Path: "description", After: "retry after", Format: answers.Seconds}},
			}},
		},
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

// The most messages that a request costs in the limits of a group and of a bot.
const (
	telegramGroupMost = 20
	telegramBotMost   = 30
)

// telegramMessages returns the number of messages that a request sends. A list that can't be read has
// as many as https://core.telegram.org/bots/api, read on 2026-11-28, allows.
func telegramMessages(req *http.Request) int64 {
	if !telegramSends(req) {
		return 0
	}
	name, most := "", int64(0)
	switch strings.ToLower(path.Base(req.URL.Path)) {
	case "sendmediagroup":
		name, most = "media", 10
	case "forwardmessages", "copymessages":
		name, most = "message_ids", 100
	default:
		return 1
	}
	if n := listed(form(req), name); 0 < n && n < most {
		return n
	}
	return most
}

// telegramCost returns the messages of a request, as its chat, its group and its bot count them.
func telegramCost(req *http.Request) throttle.Cost {
	n := telegramMessages(req)
	cost := throttle.Cost{"messages": min(n, telegramBotMost)}
	if _, counts := telegramChat(req); counts {
		cost["chat"] = 1
	}
	if _, counts := telegramGroup(req); counts {
		cost["group"] = min(n, telegramGroupMost)
	}
	return cost
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
