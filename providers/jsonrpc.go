package providers

import (
	"encoding/json"
	"io"
	"net/http"
)

// rpcMethods returns the methods of the calls in a JSON-RPC request, and whether it is a batch. If
// the body can't be read, or not to its end, it returns the methods up to there.
func rpcMethods(req *http.Request) (methods []string, batch bool) {
	if req.GetBody == nil {
		return nil, false
	}
	b, err := req.GetBody()
	if err != nil {
		return nil, false
	}
	defer b.Close()
	d := json.NewDecoder(io.LimitReader(b, maxBody))
	depth, key := 0, "" // key is the name of the next value, in a call
	for named := false; ; {
		token, err := d.Token()
		if err != nil {
			return methods, batch
		}
		call := depth == 1 && !batch || depth == 2 && batch
		switch v := token.(type) {
		case json.Delim:
			if depth == 0 {
				batch = v == '['
			}
			if named = false; v == '{' || v == '[' {
				depth++
			} else {
				depth--
			}
		case string:
			if call && !named {
				key, named = v, true
				continue
			}
			if call && key == "method" {
				methods = append(methods, v)
			}
			named = false
		default:
			named = false
		}
	}
}

// rpcCost returns the sum of the costs of the calls in a JSON-RPC request. A method that costs
// lacks, and a request whose body has no method, cost unlisted.
func rpcCost(req *http.Request, costs map[string]int, unlisted int64) (cost int64, batch bool) {
	methods, batch := rpcMethods(req)
	for _, method := range methods {
		if n, listed := costs[method]; listed {
			cost += int64(n)
		} else {
			cost += unlisted
		}
	}
	if len(methods) == 0 {
		return unlisted, batch
	}
	return cost, batch
}
