package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var gitlabPreset = Preset{Name: "gitlab", Constructor: "GitLab()", kind: "Code and work", New: GitLab}

// GitLab is the API of GitLab, in REST and GraphQL, with the limits of one user of gitlab.com. A
// user has 2,000 requests a minute. Some endpoints also have smaller limits, such as 400 a minute
// for a project, or 5 for an archive of each project. Other pages of gitlab.com are not limited.
//
// For an instance of your own, change Hosts. Its limit is 7,200 an hour if the administrator has only
// switched it on. Responses name the limit as that of a minute, and the tier of the scope "user" takes it
// over, up to 20,000. If the limit is not of a minute, set the tier, because an hour's may be used at once.
//
// Responses report the state of the user's limit. Some endpoints, such as those of packages and
// files, may have a limit of their own, which they report instead. If it is used up, only these
// endpoints pause. A refusal by the limit of an endpoint names no wait, and pauses the endpoint for
// a minute. Path segments that have a digit or an escape such as %2F are assumed to be ids.
func GitLab() Provider {
	const page = "https://docs.gitlab.com/user/gitlab_com/rate_limits/"
	const name, often = "RateLimit-Name", "This endpoint has been requested too many times*"
	p := Provider{
		Name: "gitlab",
		Cost: func(*http.Request) throttle.Cost { return throttle.Cost{gitlabUser: 1} },
		Profile: answers.Profile{
			Quotas: []answers.Quota{{ // the reported limit is that of a minute, whatever the window
				UnitIn: name, Unit: gitlabUser, Window: time.Minute, Limit: answers.Field{Header: "RateLimit-Limit"},
			}, {
				UnitIn: name, Unit: gitlabUser,
				Remaining: answers.Field{Header: "RateLimit-Remaining"},
				Used:      answers.Field{Header: "RateLimit-Observed"},
				Reset:     answers.Field{Header: "RateLimit-Reset", Format: answers.EpochSeconds},
			}},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Path: "message.error", Text: often, Kind: answers.Limited, Wait: time.Minute, Reason: "endpoint"},
				{Status: http.StatusTooManyRequests, Path: "message", Text: often, Kind: answers.Limited, Wait: time.Minute, Reason: "endpoint"},
				{Method: http.MethodPost, Status: http.StatusOK, Path: "errors.*.message", Text: often, Kind: answers.Limited, Wait: time.Minute, Reason: "endpoint"},
				{Status: http.StatusTooManyRequests, Header: name, Value: gitlabUser, Kind: answers.Limited, Wide: true, Reason: gitlabUser},
				{Status: http.StatusTooManyRequests, Header: name, Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Header: "Retry-After", Kind: answers.Limited, Wide: true},
			},
		},
		Hosts: []string{"gitlab.com"},
	}
	p.Scopes = append(gitlabLimits.scopes(),
		some("endpoint", page, gitlabEndpoint, throttle.PerMinute(2_000)), // the user's, for refusals of the endpoint alone
		some("user", page, when(func(req *http.Request) bool { _, api := gitlabPath(req); return api }), tenfold(0, fixed(2_000, time.Minute, gitlabUser))))
	return p
}

// gitlabUser is GitLab's name of the limit of a user.
const gitlabUser = "throttle_authenticated_api"

var gitlabLimits = endpointLimits{path: gitlabPath, of: []endpointLimit{
	{"jobs", gitlabInstance, perEndpoint, throttle.PerMinute(600), []string{"GET projects/*/jobs"}},
	{"projects", gitlabProjects, perEndpoint, throttle.Tier{Limit: 2_000, Window: 10 * time.Minute}, []string{"GET projects"}},
	{"project", gitlabProjects, perEndpoint, throttle.PerMinute(400), []string{"GET projects/*"}},
	{"user projects", gitlabProjects, perEndpoint, throttle.PerMinute(300), []string{"GET users/*/projects"}},
	{"contributed", gitlabProjects, perEndpoint, throttle.PerMinute(100), []string{"GET users/*/contributed_projects", "GET users/*/starred_projects"}},
	{"groups", gitlabGroups, perEndpoint, throttle.PerMinute(200), []string{"GET groups"}},
	{"group", gitlabGroups, perEndpoint, throttle.PerMinute(400), []string{"GET groups/*"}},
	{"group projects", gitlabGroups, perEndpoint, throttle.PerMinute(600), []string{"GET groups/*/projects"}},
	{"followers", gitlabUsers, perEndpoint, throttle.PerMinute(100), []string{"GET users/*/followers", "GET users/*/following"}},
	{"status", gitlabUsers, perEndpoint, throttle.PerMinute(240), []string{"GET users/*/status"}},
	{"keys", gitlabUsers, perEndpoint, throttle.PerMinute(120), []string{"GET users/*/keys", "GET users/*/keys/*", "GET users/*/gpg_keys", "GET users/*/gpg_keys/*"}},
	{"archive", gitlabSource, 2, throttle.PerMinute(5), []string{"GET projects/*/repository/archive", "GET projects/*/repository/changelog"}},
	{"schedule", gitlabSource, 4, throttle.PerMinute(1), []string{"POST projects/*/pipeline_schedules/*/play"}},
	{"hook", gitlabSource, 2, throttle.PerMinute(5), []string{"POST projects/*/hooks/*/test/*"}},
}}

const (
	gitlabInstance = "https://docs.gitlab.com/administration/settings/user_and_ip_rate_limits/"
	gitlabProjects = "https://docs.gitlab.com/administration/settings/rate_limit_on_projects_api.html"
	gitlabGroups   = "https://docs.gitlab.com/ee/administration/settings/rate_limit_on_groups_api"
	gitlabUsers    = "https://docs.gitlab.com/administration/settings/rate_limit_on_users_api"
	gitlabSource   = "https://github.com/gitlabhq/gitlabhq/blob/0286e4c/lib/gitlab/application_rate_limiter.rb"
)

// gitlabPath returns the path of a request below /api/v4/, with ids as they were sent. An archive
// is without its format, such as archive.tar.gz.
func gitlabPath(req *http.Request) (path string, api bool) {
	_, path, api = strings.Cut(req.URL.EscapedPath(), "/api/")
	path = strings.TrimSuffix(strings.TrimPrefix(path, "v4/"), "/")
	if begin, _, ok := strings.Cut(path, "/repository/archive."); ok {
		path = begin + "/repository/archive"
	}
	return path, api
}

// gitlabEndpoint is the Key of endpoints without a documented limit.
func gitlabEndpoint(req *http.Request) (key string, counts bool) {
	path, api := gitlabPath(req)
	switch {
	case !api || gitlabLimits.match(req.Method, path):
		return "", false
	case strings.Contains(path, "/packages/"):
		return "packages", true
	case strings.Contains(path, "/repository/files/"):
		return "files", true
	}
	return endpoint(req.Method, path, func(segment string) bool { return isNumbered(segment) || strings.Contains(segment, "%") }), true
}
