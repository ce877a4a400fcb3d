package providers_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const etherscan = "https://api.etherscan.io/v2/api?chainid=1&module=account&action=balance"

func TestEtherscan(t *testing.T) {
	t.Run("saturated", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("etherscan")
			api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
			saturate(t, over(t, providers.Etherscan(), api), 4, 5*time.Minute, func(int) *http.Request { return get(t, etherscan) })
			checkServed(t, api, 0.95*3*300)
		})
	})
	t.Run("a refusal with status 200 and no wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("etherscan")
			rt := over(t, providers.Etherscan(), api)
			for range 3 { // another program with the same account
				send(t, api, get(t, etherscan))
			}
			if status, body, _ := send(t, rt, get(t, etherscan)); status != 200 || body[:12] != `{"status":"0` {
				t.Errorf("%d %s", status, body)
			}
			if _, body, took := send(t, rt, get(t, etherscan)); took != time.Second || body[:12] != `{"status":"1` {
				t.Errorf("%s after %v, want a balance after a second", body, took)
			}
		})
	})
	t.Run("a wrong key is not a refusal", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("etherscan")
			rt := over(t, providers.Etherscan(), api)
			api.Trap(fakeapi.Reply{Body: `{"status":"0","message":"NOTOK","result":"Invalid API Key"}`})
			send(t, rt, get(t, etherscan))
			if _, _, took := send(t, rt, get(t, etherscan)); took != 0 {
				t.Errorf("waited %v", took)
			}
		})
	})
}

// When the day is used up, requests wait for midnight UTC if MaxPause allows it. If not, they fail,
// and one tries after each MaxPause, instead of one a second.
func TestEtherscanDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight UTC
		time.Sleep(20 * time.Hour)
		api := &scripted{}
		rt := over(t, providers.Etherscan(), api)
		const balance = "https://api.etherscan.io/v2/api?chainid=1&module=account&action=balance"
		api.refuse(200, `{"status":"0","message":"NOTOK","result":"Max daily rate limit reached. 110000 (100%) of 100000 day/limit"}`)
		send(t, rt, get(t, balance))
		_, err := rt.RoundTrip(get(t, balance))
		var e *throttle.WaitError
		if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || time.Until(e.Until) != 15*time.Minute {
			t.Errorf("%v, want ErrBanned for 15 minutes", err)
		}
		time.Sleep(4 * time.Hour)
		if status, _, took := send(t, rt, get(t, balance)); status != 200 || took != 0 {
			t.Errorf("after midnight: %d after %v", status, took)
		}
		p := providers.Etherscan()
		p.Scope("account").Policy.MaxPause = 24 * time.Hour
		rt = over(t, p, api)
		api.refuse(200, `{"status":"0","message":"NOTOK","result":"Max daily rate limit reached. 110000 (100%) of 100000 day/limit"}`)
		send(t, rt, get(t, balance))
		if _, _, took := send(t, rt, get(t, balance)); took < 23*time.Hour || time.Now().UTC().Hour() != 0 {
			t.Errorf("waited %v, until %v; want midnight", took, time.Now().UTC())
		}
	})
}

func ExampleEtherscan() {
	p := providers.Etherscan()
	p.Scope("account").Policy.Tiers[0].Limit = 5 // a paid plan
	client, err := p.Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("etherscan")) // instead of the network

	resp, err := client.Get("https://api.etherscan.io/v2/api?chainid=1&module=account&action=balance")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}
