package providers

import (
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var etherscanPreset = Preset{Name: "etherscan", Constructor: "Etherscan()", kind: "Exchanges and blockchains", New: Etherscan}

// Etherscan is the V2 API of Etherscan, with the limits of one account on the free plan. All API
// keys of an account share 3 requests a second and 100,000 a day. The paid plans have 5, 10, 20 and
// 30 a second and 100,000 to 1,500,000 a day. Etherscan doesn't document the kind of window, so
// windows roll.
//
// A refusal has status 200 and names no wait. When the day is used up, callers get
// throttle.ErrBanned and one request tries after each Policy.MaxPause, or they wait for midnight
// UTC if the scope's Policy.MaxPause allows it.
func Etherscan() Provider {
	return Provider{
		Name: "etherscan",
		Scopes: []Scope{every("account", "https://docs.etherscan.io/rate-limits.md",
			throttle.PerSecond(3), throttle.PerDay(100_000))},
		Profile: answers.Profile{Rules: []answers.Rule{
			{Status: http.StatusOK, Path: "result", Text: "Max daily rate limit reached*", Kind: answers.Limited, Until: "UTC"},
			{Status: http.StatusOK, Path: "result", Text: "Too many invalid api key*", Kind: answers.Banned, Wait: 30 * time.Second},
			{Status: http.StatusOK, Path: "result", Text: "*rate limit reached*", Kind: answers.Limited, Wait: time.Second},
		}},
		Hosts: []string{"api.etherscan.io"},
	}
}
