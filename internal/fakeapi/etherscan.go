package fakeapi

import "github.com/apithrottle/throttle/algorithms"

// Etherscan is Etherscan on its free plan.
func Etherscan() *Server {
	account := newCounters(algorithms.PerSecond(3), algorithms.PerDay(100_000))
	return newServer(func(c *Call) Reply {
		if by, _ := charge(c.Now, limit{"account", account.of(""), nil}); by != "" {
			return Reply{Refused: by, Body: `{"status":"0","message":"NOTOK","result":"Max rate limit reached, please use API Key for higher rate limit"}`}
		}
		return Reply{Body: `{"status":"1","message":"OK","result":"40891626854930000000000"}`}
	})
}
