package providers_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const twilio = "https://api.twilio.com/2010-04-01/Accounts/AC1/Messages.json"

func TestTwilio(t *testing.T) {
	t.Run("saturated", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("twilio", "account=5;algo=concurrency")
			api.Hold = func(*http.Request) time.Duration { return 100 * time.Millisecond }
			saturate(t, over(t, providers.Twilio(5), api), 50, 30*time.Second, func(int) *http.Request { return post(t, twilio) })
			checkServed(t, api, 5*300-5)
		})
	})
	t.Run("20429 names no wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("twilio", "account=5;algo=concurrency")
			rt := over(t, providers.Twilio(5), api)
			api.Trap(fakeapi.Reply{Status: 429, Body: `{"code":20429,"status":429}`})
			send(t, rt, post(t, twilio))
			if _, _, took := send(t, rt, post(t, twilio)); took < time.Second || took > 2*time.Second {
				t.Errorf("waited %v, want one to two seconds", took)
			}
		})
	})
	t.Run("the header of concurrent requests is not a limit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("twilio", "account=5;algo=concurrency")
			rt := over(t, providers.Twilio(5), api)
			api.Trap(fakeapi.Reply{Header: map[string]string{"Twilio-Concurrent-Requests": "12"}})
			send(t, rt, post(t, twilio))
			if _, _, took := send(t, rt, post(t, twilio)); took != 0 {
				t.Errorf("waited %v", took)
			}
		})
	})
}

// A day without messages left leaves calls and lookups alone, and too many at once concern them all.
func TestTwilioMessages(t *testing.T) {
	const calls = "https://api.twilio.com/2010-04-01/Accounts/AC1/Calls.json"
	for _, test := range []struct {
		code, want string // who waits
	}{
		{"63038", "messages"}, {"60728", "messages"}, {"20429", "all"},
		// These are of one number, check, factor, service of Verify, or sender.
		{"60202", "none"}, {"60203", "none"}, {"60207", "none"}, {"60212", "none"}, {"60308", "none"}, {"60310", "none"}, {"21611", "none"},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := &scripted{}
			rt := over(t, providers.Twilio(5), api)
			api.refuse(429, `{"code":`+test.code+`,"status":429}`)
			send(t, rt, post(t, twilio))
			_, _, call := send(t, rt, post(t, calls))
			_, _, message := send(t, rt, post(t, twilio))
			got := "none"
			switch {
			case call > 0:
				got = "all"
			case message > 0:
				got = "messages"
			}
			if got != test.want {
				t.Errorf("%s pauses %s, want %s: a call %v, a message %v", test.code, got, test.want, call, message)
			}
		})
	}
}

func ExampleTwilio() {
	client, err := providers.Twilio(10).Client(nil) // ten at once
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("twilio", "account=10;algo=concurrency")) // instead of the network

	resp, err := client.Get("https://api.twilio.com/2010-04-01/Accounts/AC1/Messages.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}
