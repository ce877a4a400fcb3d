package providers

import (
	"bytes"
	"net/http"

	"github.com/apithrottle/throttle/internal/jsonpath"
)

// rpcCost returns the sum of the costs of the calls in a JSON-RPC request, and whether it is a batch. A
// method that costs lacks, and a request whose body has no method, cost unlisted. If the body is
// malformed or too long, the calls up to there count.
func rpcCost(req *http.Request, costs map[string]int, unlisted int64) (cost int64, batch bool) {
	text, path, calls := bytes.TrimSpace(body(req)), "method", 0
	if batch = bytes.HasPrefix(text, []byte("[")); batch {
		path = "*.method"
	}
	s := jsonpath.Scanner{
		Queries: []jsonpath.Query{{Path: path, Last: true}},
		Each: func(method []byte) {
			calls++
			if n, listed := costs[string(method)]; listed {
				cost += int64(n)
			} else {
				cost += unlisted
			}
		},
	}
	if s.Scan(text); calls == 0 {
		return unlisted, batch
	}
	return cost, batch
}
