package providers

import (
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var alchemyPreset = Preset{Name: "alchemy", Constructor: "Alchemy()", kind: "Exchanges and blockchains", New: Alchemy}

// Alchemy is the API of Alchemy, with the limits of one free account. It has 500 compute units a
// second, judged over 10 seconds: 5,000 may go at once. All keys, apps and chains of an account
// share them. For another plan, change the Policy of the scope "account". The month's compute units
// are not counted here.
//
// A call of JSON-RPC costs the throughput compute units of its method, by Alchemy's table. A method
// that the table lacks costs 150, and so does a request that isn't JSON-RPC. A batch costs the sum
// of its calls; only the first 64 KB of a body are read. A batch that costs more than the compute
// units of 10 seconds can never be sent: split it.
//
// Responses report no limits. A refusal may have status 200, and may refuse only some calls of a
// batch. It pauses the account for a second if it names no wait. When the month's compute units are
// used up, a refusal pauses nothing, because a wait of seconds doesn't help.
func Alchemy() Provider {
	limited := func(path, code string) answers.Rule {
		return answers.Rule{Method: http.MethodPost, Path: path, Text: code, Kind: answers.Limited, Wait: time.Second}
	}
	return Provider{
		Name: "alchemy",
		Scopes: []Scope{every("account", "https://www.alchemy.com/docs/reference/throughput.md",
			throttle.Tier{Limit: 5_000, Window: 10 * time.Second, Unit: "compute-units"})},
		Cost: func(req *http.Request) throttle.Cost {
			n, _ := rpcCost(req, alchemyCosts, 150)
			return throttle.Cost{"compute-units": n}
		},
		Profile: answers.Profile{Rules: []answers.Rule{
			{Path: "error.message", Text: "Monthly capacity limit exceeded*", Kind: answers.Other, Reason: "month"},
			{Path: "*.error.message", Text: "Monthly capacity limit exceeded*", Kind: answers.Other, Reason: "month"},
			limited("error.code", "429"),
			limited("*.error.code", "429"),
			limited("error.code", "-32016"),
			limited("error.code", "-32005"),
			limited("*.error.code", "-32005"),
			{Status: http.StatusTooManyRequests, Kind: answers.Limited, Wait: time.Second},
		}},
		Hosts: []string{"*.g.alchemy.com", "*.alchemyapi.io"},
	}
}

// alchemyCosts are the throughput compute units of methods, from
// https://www.alchemy.com/docs/reference/compute-unit-costs.md, read on 2026-11-22. An example of
// another page has 75 for eth_getLogs.
var alchemyCosts = table(map[int]string{
	0: "net_version eth_chainId eth_syncing eth_protocolVersion net_listening",
	10: `
		eth_uninstallFilter eth_accounts eth_blockNumber eth_subscribe eth_unsubscribe eth_feeHistory
		eth_maxPriorityFeePerGas eth_createAccessList`,
	20: `
		eth_getTransactionReceipt eth_getUncleByBlockHashAndIndex eth_getUncleByBlockNumberAndIndex
		eth_getTransactionByBlockHashAndIndex eth_getTransactionByBlockNumberAndIndex eth_getUncleCountByBlockHash
		eth_getUncleCountByBlockNumber web3_clientVersion web3_sha3 eth_getBlockByNumber eth_getStorageAt
		eth_getTransactionByHash eth_gasPrice eth_getBalance eth_getCode eth_getFilterChanges eth_newBlockFilter
		eth_newFilter eth_newPendingTransactionFilter eth_getBlockTransactionCountByHash
		eth_getBlockTransactionCountByNumber eth_getProof eth_getBlockByHash erigon_forks erigon_getHeaderByHash
		erigon_getHeaderByNumber erigon_getLogsByHash erigon_issuance eth_getTransactionCount eth_estimateGas`,
	26:  "eth_call",
	40:  "eth_simulateV1",
	75:  "eth_getFilterLogs eth_getLogs",
	250: "eth_sendRawTransaction",
	500: "eth_getBlockReceipts",
})
