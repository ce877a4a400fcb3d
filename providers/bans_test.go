package providers_test

import (
	"net/http"
	"testing"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/providers"
)

// TestBanTexts checks that texts which others may have written, such as names and ids within the
// provider's JSON, are not taken for bans.
func TestBanTexts(t *testing.T) {
	for _, test := range []struct {
		name       string
		profile    answers.Profile
		status     int
		kind, body string
		want       answers.Kind
	}{
		{"Discord, a page of Cloudflare", providers.Discord().Profile, 429, "text/html; charset=UTF-8", "<html>error 1015</html>", answers.Banned},
		{"Discord, a text of Cloudflare", providers.Discord().Profile, 429, "text/plain", "error code: 1015", answers.Banned},
		{"Discord, an id", providers.Discord().Profile, 429, "application/json", `{"message":"Too many uses of 1015","code":31015}`, answers.Limited},
		{"Discord, a name", providers.Discord().Profile, 429, "application/json", `{"message":"Too many","name":"You are being blocked from accessing our API"}`, answers.Limited},
		{"Google, its page", providers.GoogleWorkspace(nil).Profile, 429, "text/html; charset=UTF-8", "<html>your network may be sending automated queries</html>", answers.Banned},
		{"Google, a name", providers.GoogleWorkspace(nil).Profile, 429, "application/json", `{"error":{"message":"Too many changes of 'may be sending automated queries'"}}`, answers.Limited},
		{"Kraken, an echo", providers.Kraken().Profile, 200, "application/json", `{"error":["EGeneral:Invalid arguments:EGeneral:Temporary lockout"]}`, answers.Passed},
		{"Etherscan, a contract", providers.Etherscan().Profile, 200, "application/json", `{"result":"[{\"name\":\"Too many invalid api key\"}]"}`, answers.Passed},
		{"Binance, a name", providers.Binance().Profile, 400, "application/json", `{"code":-1100,"msg":"Illegal characters in 'IP banned until 1'"}`, answers.Passed},
	} {
		r := answers.Response{Status: test.status, Header: http.Header{"Content-Type": {test.kind}}, Body: []byte(test.body)}
		if !test.profile.Peeks(r.Status, r.Header) {
			r.Body = nil
		}
		if got := test.profile.Read(r).Refusal; got.Kind != test.want {
			t.Errorf("%s: %+v, want kind %d", test.name, got, test.want)
		}
	}
}
