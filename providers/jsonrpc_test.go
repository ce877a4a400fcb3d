package providers_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const (
	alchemy = "https://eth-mainnet.g.alchemy.com/v2/KEY"
	infura  = "https://mainnet.infura.io/v3/KEY"
)

// rpc returns a request with a body.
func rpc(t *testing.T, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// calls returns a batch of calls, or one call.
func calls(methods ...string) string {
	for i, method := range methods {
		methods[i] = `{"jsonrpc":"2.0","id":1,"params":[{"method":"eth_getLogs"},"method",["method"]],"method":"` + method + `"}`
	}
	if len(methods) == 1 {
		return methods[0]
	}
	return "[" + strings.Join(methods, ",") + "]"
}

func TestJSONRPCCosts(t *testing.T) {
	free := providers.Infura(500, 3_000_000)
	big := strings.Replace(calls("eth_sendRawTransaction"), "2.0", strings.Repeat("x", 100_000), 1)
	for _, test := range []struct {
		name, body          string
		units, credits, sec int64
	}{
		{"a call", calls("eth_call"), 26, 80, 80},
		{"a free call", calls("eth_chainId"), 0, 5, 5},
		{"logs", calls("eth_getLogs"), 75, 255, 255},
		{"a transaction", calls("eth_sendRawTransaction"), 250, 720, 500},
		{"receipts", calls("eth_getBlockReceipts"), 500, 1_000, 500},
		{"an unknown method", calls("zks_new"), 150, 80, 80},
		{"a batch", calls("eth_call", "eth_blockNumber", "zks_new"), 186, 320, 320},
		{"a batch of one", "[" + calls("eth_call") + "]", 26, 160, 160},
		{"an empty batch", "[]", 150, 160, 160},
		{"no body", "", 150, 80, 80},
		{"malformed", calls("eth_call") + "]", 26, 80, 80},
		{"broken off", `[{"method":"eth_call","params":[`, 26, 160, 160},
		{"longer than is read", big, 150, 80, 80},
		{"a method that is not text", `{"method":{"method":"eth_call"}}`, 150, 80, 80},
		{"text", `"method"`, 150, 80, 80},
	} {
		if c := providers.Alchemy().Cost(rpc(t, alchemy, test.body)); c["compute-units"] != test.units {
			t.Errorf("%s costs %v at Alchemy, want %d", test.name, c, test.units)
		}
		if c := free.Cost(rpc(t, infura, test.body)); c["credits"] != test.credits || c["throughput"] != test.sec {
			t.Errorf("%s costs %v at Infura, want %d and %d", test.name, c, test.credits, test.sec)
		}
	}
}

func TestJSONRPCQuotas(t *testing.T) {
	for _, test := range []struct {
		name      string
		preset    providers.Provider
		url, body string
		want      int // at once
	}{
		{"Alchemy", providers.Alchemy(), alchemy, calls("eth_blockNumber"), 500},
		{"Alchemy, free calls", providers.Alchemy(), alchemy, calls("eth_chainId"), 2_000},
		{"Infura", providers.Infura(500, 3_000_000), infura, calls("eth_blockNumber"), 6},
		{"Infura, a transaction", providers.Infura(500, 3_000_000), infura, calls("eth_sendRawTransaction"), 1},
		{"Infura, without days", providers.Infura(40_000, 0), infura, calls("eth_blockNumber"), 500},
		{"Infura, the day", providers.Infura(40_000, 800), infura, calls("eth_blockNumber"), 10},
		{"IPFS, uploads", providers.Infura(500, 3_000_000), "https://ipfs.infura.io:5001/api/v0/add", "", 150},
		{"IPFS", providers.Infura(500, 3_000_000), "https://ipfs.infura.io:5001/api/v0/cat", "", 1_500},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if n := atOnce(t, test.preset, 2_000, func() *http.Request { return rpc(t, test.url, test.body) }); n != test.want {
					t.Errorf("%d at once, want %d", n, test.want)
				}
			})
		})
	}
}

// The metadata of a token, which anyone writes, is no refusal.
func TestAlchemyMetadata(t *testing.T) {
	checkRefusals(t, providers.Alchemy, []refusalTest{{
		name: "metadata", first: to(t, "GET", "https://eth-mainnet.g.alchemy.com/nft/v2/KEY/getNFTMetadata"),
		reply: fakeapi.Reply{Header: map[string]string{"Content-Type": "application/json"}, Body: `{"metadata":{"error":{"code":429}}}`},
	}})
}

func TestJSONRPCRefusals(t *testing.T) {
	free := func() providers.Provider { return providers.Infura(500, 3_000_000) }
	midnight, trial := time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC), time.Date(2000, 1, 1, 0, 15, 0, 0, time.UTC)
	for _, test := range []struct {
		name   string
		preset func() providers.Provider
		status int
		body   string
		want   time.Duration
		until  time.Time // the quota is closed
	}{
		{"Alchemy", providers.Alchemy, 429, `{"error":{"code":429,"message":"Your app has exceeded its compute units per second capacity."}}`, time.Second, time.Time{}},
		{"Alchemy, a part of a batch", providers.Alchemy, 200, `[{"id":1,"result":"0x1"},{"id":2,"error":{"code":429,"message":"Your app has exceeded"}}]`, time.Second, time.Time{}},
		{"Alchemy, another code", providers.Alchemy, 200, `{"error":{"code":-32005,"message":"rate limit exceeded"}}`, time.Second, time.Time{}},
		{"Alchemy, the month", providers.Alchemy, 429, `{"error":{"code":429,"message":"Monthly capacity limit exceeded. Visit https://dashboard.alchemy.com"}}`, 0, time.Time{}},
		{"Alchemy, a contract's text", providers.Alchemy, 200, `{"error":{"code":3,"message":"execution reverted: Your app has exceeded 429","data":"0x429"}}`, 0, time.Time{}},
		{"Infura", free, 429, `{"error":{"code":429,"event":-33200,"message":"Too Many Requests"}}`, time.Second, time.Time{}},
		{"Infura, the day", free, 402, `{"error":{"code":402,"event":-33000,"message":"Payment Required"}}`, 0, midnight},
		{"Infura, a key's day", free, 429, `{"error":{"code":429,"event":-33400,"message":"Too Many Requests"}}`, 0, trial},
		{"Infura, a wait", free, 429, `{"error":{"code":-32005,"message":"daily request count exceeded, request rate limited","data":{"rate":{"backoff_seconds":30}}}}`, 30 * time.Second, time.Time{}},
		{"Infura, no wait", free, 429, `{"error":{"code":-32005,"message":"project ID request rate exceeded","data":{"rate":{"backoff_seconds":0}}}}`, time.Second, time.Time{}},
		{"Infura, status 200", free, 200, `{"error":{"code":-32005,"message":"project ID request rate exceeded","data":{"rate":{"backoff_seconds":2}}}}`, 2 * time.Second, time.Time{}},
		{"Infura, too many results", free, 200, `{"error":{"code":-32005,"message":"query returned more than 10000 results"}}`, 0, time.Time{}},
		{"Infura, a contract's text", free, 200, `{"error":{"code":3,"message":"execution reverted: project ID request rate exceeded","data":"0x"}}`, 0, time.Time{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := test.preset()
				api := &scripted{}
				rt := over(t, p, api)
				url := "https://" + strings.Replace(p.Hosts[0], "*", "mainnet", 1) + "/v3/KEY"
				api.refuse(test.status, test.body)
				send(t, rt, rpc(t, url, calls("eth_chainId")))
				if !test.until.IsZero() {
					_, err := rt.RoundTrip(rpc(t, url, calls("eth_chainId")))
					var e *throttle.WaitError
					if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || !e.Until.Equal(test.until) {
						t.Errorf("%v, want ErrBanned until %v", err, test.until)
					}
					return
				}
				if _, _, took := send(t, rt, rpc(t, url, calls("eth_chainId"))); took != test.want {
					t.Errorf("waited %v, want %v", took, test.want)
				}
			})
		})
	}
}
