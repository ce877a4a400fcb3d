package credentials

import (
	"slices"
	"strings"
)

// The names of header fields are told by their words, because each API has its own.
var (
	// words are whole words of names of credentials.
	words = []string{"cookie2", "credentials", "sig", "sign", "jwt", "dpop", "authent", "oidc"}

	// endings end a word of such a name. Some names have no hyphens: X-MBX-APIKEY, X-Amzn-Oidc-Accesstoken.
	endings = []string{"authorization", "cookie", "token", "secret", "password", "passphrase", "signature", "credential", "apikey", "accesskey", "authkey", "secretkey", "sessionid"}

	// keyOf are the words before "key". The key of an Idempotency-Key or of an encryption is no credential.
	keyOf = []string{"api", "access", "subscription", "auth", "account", "private", "function", "functions", "goog", "rapidapi", "mashape", "master", "application", "app", "admin", "secret", "service", "client", "user", "license", "insert", "query"}

	// tokenOf are the words before "token" that make it a place in a list, a lock or a number, and amountOf
	// the words after it.
	tokenOf  = []string{"page", "next", "continuation", "cursor", "sync", "skip", "delta", "resume", "lock", "consistency", "idempotency", "max"}
	amountOf = []string{"count", "limit", "budget", "usage"}

	// fields are names that tell nothing.
	fields = []string{
		"auth",
		"x-honeycomb-team", // https://docs.honeycomb.io/api/authentication, read on 2026-11-28
	}

	// accounts are fields that are no secrets and name the account of a credential. That of a caller is wrong
	// beside the key of a member: OpenAI answers 401 mismatched_organization
	// (https://github.com/microsoft/foundry-dev-tools/issues/262, read on 2026-11-28), and Google charges the
	// quota of the project in X-Goog-User-Project
	// (https://github.com/googleapis/google-auth-library-python/pull/400, read on 2026-11-28).
	accounts = []string{"openai-organization", "openai-project", "chatgpt-account-id", "x-goog-user-project", "x-auth-email", "x-auth-user", "cf-access-client-id", "x-algolia-application-id"}

	// parameters are the credentials among query parameters, in lower case and without separators. They are a
	// list, because other parameters have names of the same words: page_token, next_token, sort_key.
	parameters = []string{
		"key", "apikey", "xapikey", "xgoogapikey", "apitoken", "apisecret", "apisig", "apisign", "appkey", "hapikey", "subscriptionkey",
		"accesstoken", "accesskey", "accesskeyid", "awsaccesskeyid", "secretkey", "token", "auth", "authkey", "authtoken", "authorization", "bearertoken",
		"idtoken", "refreshtoken", "oauthtoken", "oauthsignature", "oauthconsumerkey", "privatetoken", "jobtoken", "sessiontoken", "sessionid", "securitytoken",
		"sig", "signature", "secret", "clientsecret", "clientassertion", "appsecretproof", "password", "passwd", "passphrase", "jwt", "credential", "credentials",
		"xamzsecuritytoken", "xamzsignature", "xamzcredential", "xgoogsignature", "xgoogcredential",
	}
)

// IsName reports whether a header field of a name has credentials, such as Authorization or X-Api-Key. A field
// such as Idempotency-Key or X-Page-Token has none.
func IsName(name string) bool {
	name = strings.ToLower(name)
	parts := strings.FieldsFunc(name, isSeparator)
	for i, part := range parts {
		before, after := "", ""
		if i > 0 {
			before = parts[i-1]
		}
		if i+1 < len(parts) {
			after = parts[i+1]
		}
		if isCredential(before, part, after) {
			return true
		}
	}
	return slices.Contains(fields, name)
}

// isCredential reports whether a word of a name, between two others, tells that the field has credentials.
func isCredential(before, word, after string) bool {
	if of, isToken := strings.CutSuffix(word, "token"); isToken && (slices.Contains(tokenOf, of) || of == "" && slices.Contains(tokenOf, before) || slices.Contains(amountOf, after)) {
		return false
	}
	if word == "key" {
		return before == "" && after == "" || slices.Contains(keyOf, before)
	}
	return slices.Contains(words, word) || slices.ContainsFunc(endings, func(end string) bool { return strings.HasSuffix(word, end) })
}

// isAccount reports whether a header field names the account of a credential.
func isAccount(name string) bool { return slices.Contains(accounts, strings.ToLower(name)) }

// IsParameter reports whether a query parameter of a name, which is not escaped, has credentials.
func IsParameter(name string) bool {
	plain := strings.Map(func(r rune) rune {
		if isSeparator(r) {
			return -1
		}
		return r
	}, strings.ToLower(name))
	return slices.Contains(parameters, plain)
}

func isSeparator(r rune) bool { return r == '-' || r == '_' || r == '.' }

// schemes are the words before the credentials of an Authorization, in lower case.
var schemes = []string{"bearer", "basic", "token", "apikey", "api-key", "key", "bot", "digest", "negotiate", "dpop", "oauth", "ssws", "geniekey", "splunk", "client-id", "sharedkey", "aws4-hmac-sha256"}

// isEmpty reports whether the value of a field has no credentials: nothing, a scheme alone, the Basic
// authorization of no user and no password, or cookies without values.
func isEmpty(name, value string) bool {
	if strings.EqualFold(name, "Cookie") {
		return !slices.ContainsFunc(strings.Split(value, ";"), func(pair string) bool {
			_, v, _ := strings.Cut(pair, "=")
			return strings.TrimSpace(v) != ""
		})
	}
	parts := strings.Fields(value)
	if len(parts) > 0 && slices.Contains(schemes, strings.ToLower(parts[0])) {
		parts = parts[1:]
	}
	return len(parts) == 0 || len(parts) == 1 && parts[0] == "Og=="
}
