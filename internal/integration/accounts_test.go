package integration_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

const (
	accountHeader = "X-Test-Account"
	accounts      = 5
)

// An accountFleet is two processes of five accounts at one address. Accounts with even numbers are in one
// process, and the others in the other one.
type accountFleet [2]*throttle.Transport

func newAccountFleet(t *testing.T, preset func() providers.Provider, api http.RoundTripper) (f accountFleet) {
	server := redismem.New()
	t.Cleanup(server.Close)
	for i := range f {
		p := preset()
		p.Account = func(r *http.Request) string { return r.Header.Get(accountHeader) }
		transport, err := p.Transport(distributed.New(nearClient(t, server), distributed.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = api
		f[i] = transport
	}
	return f
}

// send sends a request of an account.
func (f accountFleet) send(ctx context.Context, account, worker int, url string) error {
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	req.Header.Set(accountHeader, fmt.Sprint(account))
	req.Header.Set(fakeapi.Worker, fmt.Sprint(worker))
	resp, err := f[account%2].RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// An accountCase is a public endpoint, whose limit is that of the address in the rule file.
type accountCase struct {
	rules  string
	preset func() providers.Provider
	url    string
	d      time.Duration
	want   int // what a perfect client gets in d
}

var accountCases = []accountCase{
	{"binance", providers.Binance, "https://api.binance.com/api/v3/depth?symbol=BTCUSDT&limit=500", 10 * time.Minute, 10 * 6_000 / 25},
	{"bybit", providers.Bybit, "https://api.bybit.com/v5/market/tickers?category=linear", 20 * time.Second, 4 * 600},
	{"coinbaseexchange", providers.CoinbaseExchange, "https://api.exchange.coinbase.com/products/BTC-USD/ticker", 60 * time.Second, 15 + 60*10},
	{"okx", providers.OKX, "https://www.okx.com/api/v5/market/ticker?instId=BTC-USDT", 60 * time.Second, 60 * 10},
}

// The accounts of two processes on one Redis are never refused for what their address sends, and use
// most of what it may. A reservation may be sent 50 ms after its start, which windows of seconds pay for.
func TestAccountsShareAnAddress(t *testing.T) {
	soak.Long(t, "it plays fleets of each preset, whose accounts a test of package providers plays in one process")
	for _, test := range accountCases {
		t.Run(test.rules, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := fakeapi.New("../../providers/testdata", test.rules)
				api.Hold = fakeapi.Between(0, 50*time.Millisecond)
				fleet := newAccountFleet(t, test.preset, api)
				ctx, cancel := context.WithTimeout(t.Context(), test.d)
				defer cancel()
				var wg sync.WaitGroup
				var each [accounts]atomic.Int64
				for w := range 4 * accounts {
					wg.Go(func() {
						for ctx.Err() == nil {
							if fleet.send(ctx, w%accounts, w, test.url) != nil {
								time.Sleep(time.Second)
							} else {
								each[w%accounts].Add(1)
							}
						}
					})
				}
				wg.Wait()
				served := api.Served()
				if t.Logf("%d of %d served", served, test.want); len(api.Refused()) > 0 || float64(served) < 0.92*float64(test.want) {
					t.Errorf("%d served, want at least 0.92 of %d; refused %v", served, test.want, api.Refused())
				}
				for account := range each {
					if n := each[account].Load(); float64(n) < 0.15*float64(served) {
						t.Errorf("account %d: %d of %d", account, n, served)
					}
				}
			})
		})
	}
}

// A ban that one account receives stops the accounts of both processes.
func TestBanOfAnAddressStopsAllAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New("../../providers/testdata", "binance")
		fleet := newAccountFleet(t, providers.Binance, api)
		url := accountCases[0].url
		for n := range accounts {
			if err := fleet.send(t.Context(), n, n, url); err != nil {
				t.Fatal(err)
			}
		}
		before := len(api.Arrivals())
		api.Trap(fakeapi.Reply{Status: http.StatusTeapot, Header: map[string]string{"Retry-After": "120"}, Body: `{"code":-1003,"msg":"Way too much request weight used; IP banned until 946684920000. Please use WebSocket Streams for live updates to avoid bans."}`})
		if err := fleet.send(t.Context(), 0, 0, url); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(10 * time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			for n := range accounts {
				if err := fleet.send(ctx, n, n, url); !errors.Is(err, throttle.ErrBanned) {
					t.Errorf("account %d during the ban: %v", n, err)
				}
			}
			cancel()
		}
		if sent := len(api.Arrivals()) - before; sent > 0 {
			t.Errorf("%d requests were sent during the ban", sent)
		}
		time.Sleep(time.Minute)
		for n := range accounts {
			if err := fleet.send(t.Context(), n, n, url); err != nil {
				t.Errorf("account %d after the ban: %v", n, err)
			}
		}
	})
}
