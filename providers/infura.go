package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var infuraPreset = Preset{
	Name: "infura", Constructor: "Infura(second, day int64)", kind: "Exchanges and blockchains",
	Parameters: []Parameter{
		{Name: "second", About: "credits a second of the account", Min: 1, Default: "500", Example: "4000"},
		{Name: "day", About: "credits a day of the account; 0: not limited", Default: "3000000", Example: "15000000"},
	},
	call: func(a arguments) Provider { return Infura(a.number("second"), a.number("day")) },
	known: func() []map[string]string { // the free plan
		return []map[string]string{{"second": "500", "day": "3000000"}}
	},
}

// Infura is the API of Infura, with the limits of one account. Its plan decides how many credits it
// has a second and a day: 500 and 3,000,000 in the free plan, 4,000 and 15,000,000 in the plan
// Developer. If day is zero, days are not limited. The day ends at midnight UTC, and all keys of
// the account share the credits. Infura doesn't document whether the second rolls, so it does. If
// the owner of a key has set limits for it, pass those.
//
// A call of JSON-RPC costs the credits of its method, by Infura's table, or 80 if the table lacks
// it. A batch costs the sum of its calls plus 80. Only the first 64 KB of a body are read. A
// request that costs more than a second's credits waits until a whole second is unused.
//
// Uploads to IPFS have 150 requests a second and its other requests 1,500, for a key. The client is
// assumed to use one key of IPFS. They cost no credits.
//
// Responses report no limits. When the day's credits are used up, requests wait for midnight UTC. A
// refusal for them closes the account until then with throttle.ErrBanned, unless the
// Policy.MaxPause of the scope "account" allows such a wait. After a refusal for the day of a key,
// one request tries after each MaxPause. A refusal for the second's credits pauses the account for a
// second if it names no wait.
func Infura(second, day int64) Provider {
	const page, ipfs = "https://docs.metamask.io/services/get-started/pricing.md", "https://docs.metamask.io/services/how-to/use-ipfs/request-rate-limits.md"
	const spent, throttled = http.StatusPaymentRequired, http.StatusTooManyRequests
	backoff := []answers.Field{{Path: "error.data.rate.backoff_seconds", Format: answers.Seconds}}
	tiers := []throttle.Tier{{Limit: second, Window: time.Second, Unit: "throughput"}}
	if day > 0 {
		tiers = append(tiers, throttle.Tier{Limit: day, Algorithm: throttle.Calendar, Period: throttle.Day, Unit: "credits"})
	}
	return Provider{
		Name: "infura",
		Scopes: []Scope{
			some("ipfs-write", ipfs, when(func(req *http.Request) bool { return infuraIPFS(req) == "write" }), throttle.PerSecond(150)),
			some("ipfs-read", ipfs, when(func(req *http.Request) bool { return infuraIPFS(req) == "read" }), throttle.PerSecond(1_500)),
			some("account", page, when(func(req *http.Request) bool { return infuraIPFS(req) == "" }), tiers...),
		},
		Cost: func(req *http.Request) throttle.Cost {
			if infuraIPFS(req) != "" {
				return nil
			}
			const unlisted = 80
			n, batch := rpcCost(req, infuraCosts, unlisted)
			if batch {
				n += unlisted
			}
			cost := throttle.Cost{"throughput": min(n, second)}
			if day > 0 {
				cost["credits"] = n
			}
			return cost
		},
		Profile: answers.Profile{Rules: []answers.Rule{
			{Status: spent, Kind: answers.Limited, Until: "UTC", Reason: "day"},
			{Status: throttled, Path: "error.event", Text: "-33400", Kind: answers.Limited, Until: "UTC", Reason: "day of the key"},
			{Status: throttled, Kind: answers.Limited, Delay: backoff, Wait: time.Second},
			{Path: "error.message", Text: "project ID request rate exceeded*", Kind: answers.Limited, Delay: backoff, Wait: time.Second},
			{Path: "error.message", Text: "daily request count exceeded*", Kind: answers.Limited, Delay: backoff, Wait: time.Second},
		}},
		Hosts: []string{"*.infura.io"},
	}
}

// infuraCosts are the credits of methods, from
// https://docs.metamask.io/services/get-started/pricing/credit-cost.md, read on 2026-11-22.
var infuraCosts = table(map[int]string{
	5:   "eth_chainId net_version eth_syncing eth_subscribe",
	10:  "eth_unsubscribe",
	140: "eth_getFilterChanges",
	150: `
		eth_getProof eth_getUncleByBlockHashAndIndex eth_getUncleByBlockNumberAndIndex eth_getUncleCountByBlockHash
		eth_getUncleCountByBlockNumber eth_getBlockTransactionCountByHash eth_getBlockTransactionCountByNumber`,
	255: "eth_getLogs eth_getFilterLogs",
	300: `
		eth_estimateGas eth_blobBaseFee trace_block trace_call trace_callMany trace_filter trace_get trace_transaction
		trace_replayTransaction trace_replayBlockTransactions trace_rawTransaction`,
	720: "eth_sendRawTransaction",
	1_000: `
		eth_getBlockReceipts debug_traceBlock debug_traceBlockByHash debug_traceBlockByNumber debug_traceCall
		debug_traceTransaction debug_getBadBlocks debug_getTrieFlushInterval debug_storageRangeAt`,
})

// infuraIPFS returns "write" or "read" for a request to IPFS, and "" for others.
func infuraIPFS(req *http.Request) string {
	call, api := strings.CutPrefix(req.URL.Path, "/api/v0/")
	if !api || !strings.HasPrefix(hostOf(req), "ipfs.") {
		return ""
	}
	switch call {
	case "add", "block/put", "dag/put", "pin/add":
		return "write"
	}
	return "read"
}
