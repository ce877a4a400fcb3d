package providers

import (
	"net/http"
	"path"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var slackPreset = Preset{Name: "slack", Constructor: "Slack()", kind: "Messages", New: Slack}

// Slack is the Web API of Slack and its incoming webhooks, with the limits of one app in one
// workspace. For an app in several workspaces, set Account to a function that returns the
// workspace. Each method has a quota of its own, by the tier that Slack's Java SDK lists for it: 1,
// 20, 50 or 100 calls a minute, and 600 for three methods. A method that the SDK does not list has
// 20. The method chat.postMessage has one message a second for each channel, and a webhook one
// message a second. Slack tolerates bursts beyond that. It doesn't document how it counts, so
// minutes roll.
//
// Two limits are not included. A workspace takes several hundred messages a minute, a number that
// Slack doesn't publish: to limit them, append a Scope with a Key that counts chat.postMessage. New
// apps that are sold outside the Marketplace have one call a minute of conversations.history and of
// conversations.replies: let the Keys of the scopes count these two in "tier1".
//
// The channel is read from a JSON or form body. Requests without a readable channel share one
// quota. A refusal may have status 200.
func Slack() Provider {
	const page, sdk = "https://docs.slack.dev/apis/web-api/rate-limits", "https://github.com/slackapi/java-slack-sdk/blob/02a29a7/slack-api-client/src/main/java/com/slack/api/methods/MethodsRateLimits.java"
	return Provider{
		Name: "slack",
		Scopes: []Scope{
			some("webhook", "https://api.slack.com/changelog/2018-03-great-rate-limits", slackWebhook, throttle.PerSecond(1)),
			some("message", page, slackChannel, throttle.PerSecond(1)),
			some("hundreds", sdk, slackMethods(600), throttle.PerMinute(600)),
			some("tier4", sdk, slackMethods(100), throttle.PerMinute(100)),
			some("status", sdk, slackStatus, throttle.PerMinute(60)),
			some("tier3", sdk, slackMethods(50), throttle.PerMinute(50)),
			some("tier1", sdk, slackMethods(1), throttle.PerMinute(1)),
			some("method", page, slackMethods(0), throttle.PerMinute(20)),
		},
		Profile: answers.Profile{Rules: []answers.Rule{{Status: http.StatusOK, Path: "error", Text: "ratelimited", Kind: answers.Limited}}},
		Hosts:   []string{"slack.com", "hooks.slack.com", "slack-gov.com", "hooks.slack-gov.com"},
	}
}

const slackPost = "chat.postMessage"

// slackLimits are the calls a minute of the methods that have not 20, as in MethodsRateLimits of
// Slack's Java SDK.
var slackLimits = table(map[int]string{
	1: `
		admin.conversations.restrictAccess.removeGroup admin.conversations.whitelist.remove
		admin.teams.create admin.usergroups.addChannels admin.users.unsupportedVersions.export
		admin.apps.uninstall apps.manifest.create apps.manifest.delete apps.manifest.update
		tooling.tokens.rotate apps.connections.open apps.uninstall conversations.acceptSharedInvite
		conversations.approveSharedInvite conversations.declineSharedInvite
		conversations.listConnectInvites rtm.connect rtm.start team.externalTeams.disconnect`,
	50: `
		apps.manifest.export apps.manifest.validate assistant.threads.setSuggestedPrompts
		assistant.threads.setTitle auth.revoke bookmarks.list bots.info canvases.access.delete
		canvases.access.set canvases.delete canvases.edit canvases.sections.lookup chat.delete
		chat.deleteScheduledMessage chat.meMessage chat.scheduleMessage chat.unfurl chat.update
		chat.scheduledMessages.list conversations.history conversations.info conversations.invite
		conversations.join conversations.kick conversations.leave conversations.open
		conversations.replies conversations.mark dnd.info files.delete files.list
		files.revokePublicURL files.sharedPublicURL functions.completeSuccess functions.completeError
		oauth.v2.exchange openid.connect.userInfo reactions.add reactions.get slackLists.access.delete
		slackLists.access.set slackLists.items.create slackLists.items.update stars.list team.info
		team.profile.get team.billing.info team.preferences.list users.getPresence users.identity
		users.lookupByEmail users.profile.set admin.roles.listAssignments admin.teams.admins.list
		admin.teams.list admin.teams.owners.list admin.teams.settings.info
		admin.teams.settings.setName admin.users.list admin.apps.activities.list admin.apps.config.set
		admin.functions.permissions.lookup admin.functions.permissions.set`,
	60: "assistant.threads.setStatus",
	100: `
		api.test apps.event.authorizations.list chat.appendStream chat.postEphemeral
		conversations.members dialog.open files.info files.getUploadURLExternal
		files.completeUploadExternal im.open oauth.access oauth.token oauth.v2.access
		openid.connect.token slackLists.download.get users.info users.profile.get views.open
		views.publish views.push views.update admin.users.getExpiration
		admin.users.session.getSettings admin.users.session.setSettings
		admin.users.session.clearSettings admin.auth.policy.assignEntities
		admin.auth.policy.getEntities admin.auth.policy.removeEntities`,
	600: "auth.test chat.getPermalink blocks.validate",
})

// slackMethods returns the Key of the methods with a limit. Limit 0 is the methods that slackLimits
// lacks.
func slackMethods(limit int) func(*http.Request) (string, bool) {
	return func(req *http.Request) (string, bool) {
		method, api := strings.CutPrefix(req.URL.Path, "/api/")
		return method, api && method != slackPost && slackLimits[method] == limit
	}
}

// slackWebhook returns the webhook of a request.
func slackWebhook(req *http.Request) (webhook string, counts bool) {
	return req.URL.Path, strings.HasPrefix(req.URL.Path, "/services/")
}

// slackChannel returns the channel of a message.
func slackChannel(req *http.Request) (channel string, counts bool) {
	if path.Base(req.URL.Path) != slackPost {
		return "", false
	}
	return param(req, "channel"), true
}

// slackStatus returns the direct message of a status.
func slackStatus(req *http.Request) (channel string, counts bool) {
	if path.Base(req.URL.Path) != "assistant.threads.setStatus" {
		return "", false
	}
	return param(req, "channel_id"), true
}
