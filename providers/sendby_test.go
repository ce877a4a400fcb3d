package providers_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/providers"
)

func TestAWSSendBy(t *testing.T) {
	const url = "https://bucket.s3.amazonaws.com/key"
	signed := time.Date(2026, 11, 22, 4, 0, 0, 0, time.UTC)
	header := get(t, url)
	header.Header.Set("X-Amz-Date", "20261122T040000Z")
	both := get(t, url+"?X-Amz-Date=20261122T040000Z&X-Amz-Expires=60")
	both.Header.Set("X-Amz-Date", "20261122T035000Z")
	wrong := get(t, url)
	wrong.Header.Set("X-Amz-Date", signed.Format(http.TimeFormat))
	for _, test := range []struct {
		name string
		req  *http.Request
		want time.Time
	}{
		{"not signed", get(t, url), time.Time{}},
		{"a header", header, signed.Add(5 * time.Minute)},
		{"a URL", get(t, url+"?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20261122T040000Z&X-Amz-Expires=86400"), signed.Add(24 * time.Hour)},
		{"a URL without X-Amz-Expires", get(t, url+"?X-Amz-Date=20261122T040000Z"), signed.Add(5 * time.Minute)},
		{"a URL and a header", both, signed.Add(time.Minute)},
		{"a date in another format", wrong, time.Time{}},
		{"a negative number", get(t, url+"?X-Amz-Date=20261122T040000Z&X-Amz-Expires=-1"), signed.Add(5 * time.Minute)},
		{"more seconds than a Duration holds", get(t, url+"?X-Amz-Date=20261122T040000Z&X-Amz-Expires=99999999999999"), signed.Add(5 * time.Minute)},
	} {
		if by := providers.AWSSendBy(test.req); !by.Equal(test.want) {
			t.Errorf("%s: %v, want %v", test.name, by, test.want)
		}
	}
}

func TestExchangesSendBy(t *testing.T) {
	signed := time.UnixMilli(1_700_000_000_000)
	exchange, bybit, okx := providers.CoinbaseExchange().SendBy, providers.Bybit().SendBy, providers.OKX().SendBy
	for _, test := range []struct {
		name   string
		sendBy func(*http.Request) time.Time
		header map[string]string
		want   time.Time
	}{
		{"Coinbase", exchange, map[string]string{"CB-ACCESS-TIMESTAMP": "1700000000"}, signed.Add(30 * time.Second)},
		{"Coinbase, a decimal", exchange, map[string]string{"CB-ACCESS-TIMESTAMP": "1700000000.5"}, signed.Add(30500 * time.Millisecond)},
		{"Coinbase, not signed", exchange, nil, time.Time{}},
		{"Bybit", bybit, map[string]string{"X-BAPI-TIMESTAMP": "1700000000000"}, signed.Add(5 * time.Second)},
		{"Bybit, a window", bybit, map[string]string{"X-BAPI-TIMESTAMP": "1700000000000", "X-BAPI-RECV-WINDOW": "20000"}, signed.Add(20 * time.Second)},
		{"OKX", okx, map[string]string{"OK-ACCESS-TIMESTAMP": "2023-11-14T22:13:20.000Z"}, signed.Add(30 * time.Second)},
		{"OKX, an end", okx, map[string]string{"OK-ACCESS-TIMESTAMP": "2023-11-14T22:13:20.000Z", "expTime": "1700000001000"}, signed.Add(time.Second)},
		{"OKX, a late end", okx, map[string]string{"OK-ACCESS-TIMESTAMP": "2023-11-14T22:13:20.000Z", "expTime": "1700000100000"}, signed.Add(30 * time.Second)},
		{"OKX, not signed", okx, map[string]string{"OK-ACCESS-TIMESTAMP": "now"}, time.Time{}},
		{"Bybit, not signed", bybit, map[string]string{"X-BAPI-RECV-WINDOW": "20000"}, time.Time{}},
	} {
		req := get(t, "https://example.com/")
		for name, value := range test.header {
			req.Header.Set(name, value)
		}
		if by := test.sendBy(req); !by.Equal(test.want) {
			t.Errorf("%s: %v, want %v", test.name, by, test.want)
		}
	}
}

func ExampleAWSSendBy() {
	lim, err := throttle.New(throttle.Policy{Name: "s3", Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	transport := &throttle.Transport{Limiter: lim, SendBy: providers.AWSSendBy}

	req, err := http.NewRequest(http.MethodGet, "https://bucket.s3.amazonaws.com/key?X-Amz-Date=20261122T040000Z&X-Amz-Expires=60", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("not sent after", transport.SendBy(req))
	// Output: not sent after 2026-11-22 04:01:00 +0000 UTC
}
