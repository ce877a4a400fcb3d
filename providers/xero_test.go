package providers_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// xeroTo returns a function that makes a call to an organization, or to none.
func xeroTo(t *testing.T, path, organization string) func() *http.Request {
	return func() *http.Request {
		req := get(t, "https://api.xero.com"+path)
		if organization != "" {
			req.Header.Set("Xero-Tenant-Id", organization)
		}
		return req
	}
}

func TestXero(t *testing.T) {
	core := func() providers.Provider { return providers.Xero(5_000) }
	const path = "/api.xro/2.0/Invoices"
	a, b := xeroTo(t, path, "a"), xeroTo(t, path, "b")
	checkAtOnce(t, core, []atOnceTest{
		{"an organization", 60, []func() *http.Request{a, xeroTo(t, "/payroll.xro/2.0/employees", "A")}},
		{"two organizations", 120, []func() *http.Request{a, b}},
		{"a custom connection", 60, []func() *http.Request{xeroTo(t, path, "")}},
		{"the connections", 2_500, []func() *http.Request{xeroTo(t, "/connections", "")}},
	})
	checkAtOnce(t, func() providers.Provider {
		p := core()
		p.Scope("app").Policy.Tiers[0].Limit = 100
		return p
	}, []atOnceTest{{"the app", 100, []func() *http.Request{a, b, xeroTo(t, "/connections", "")}}})
	checkAtOnce(t, func() providers.Provider {
		p := core()
		p.Scope("organization").Policy.Tiers[1].Limit = 10_000
		return p
	}, []atOnceTest{{"a day", 5_000, []func() *http.Request{a}}})
	for p, want := range map[string]string{"app": "10000/m", "organization": "60/m"} {
		found := false
		for _, tier := range core().Scope(p).Policy.Tiers {
			found = found || tier.Window == time.Minute && fmt.Sprintf("%d/m", tier.Limit) == want
		}
		if !found {
			t.Errorf("the scope %q lacks %s", p, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		next := alternate(a, b)
		if n := atATime(t, core(), 20, func() *http.Request { return next().WithContext(t.Context()) }); n != 10 {
			t.Errorf("%d calls to two organizations in flight, want 5 to each", n)
		}
	})

	problem := func(limit string, more ...string) fakeapi.Reply {
		h := map[string]string{"X-Rate-Limit-Problem": limit}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = more[i+1]
		}
		return fakeapi.Reply{Status: 429, Header: h}
	}
	checkRefusals(t, core, []refusalTest{
		{name: "the minute", first: a, reply: problem("minute", "Retry-After", "41"), want: 41 * time.Second},
		{name: "the minute without a wait", reply: problem("Minute"), want: time.Minute},
		{name: "another organization", next: b, reply: problem("minute", "Retry-After", "41")},
		{name: "too many at once", reply: problem("concurrent"), want: backoff},
		{name: "the app", next: b, reply: problem("appminute", "Retry-After", "30"), want: 30 * time.Second},
		{name: "the app without a wait", next: b, reply: problem("AppMinute"), want: time.Minute},
		{name: "the day", reply: problem("day", "Retry-After", "66183", "X-DayLimit-Remaining", "0"), want: closed},
		{name: "the day of another organization", next: b, reply: problem("Daily", "Retry-After", "66183")},
		{name: "an outage", reply: fakeapi.Reply{Status: 503}},
		{name: "others used the minute", reply: problem("minute", "Retry-After", "41", "X-MinLimit-Remaining", "0"), want: 41 * time.Second},
		{name: "none left of the minute", reply: fakeapi.Reply{Header: map[string]string{"X-MinLimit-Remaining": "0"}}, want: time.Minute},
		{name: "none left of the app's minute", next: b, reply: fakeapi.Reply{Header: map[string]string{"X-AppMinLimit-Remaining": "0"}}, want: time.Minute},
	})
}

// The end of a day that others have used up ends the wait of those who wait for it.
func TestXeroEndOfDay(t *testing.T) {
	checkRefusals(t, func() providers.Provider {
		p := providers.Xero(5_000)
		p.Scope("organization").Policy.MaxPause = 24 * time.Hour
		return p
	}, []refusalTest{{
		name: "the day", first: xeroTo(t, "/api.xro/2.0/Invoices", "a"), want: 66_183 * time.Second,
		reply: fakeapi.Reply{Status: 429, Header: map[string]string{
			"X-Rate-Limit-Problem": "day", "Retry-After": "66183", "X-DayLimit-Remaining": "0", "X-MinLimit-Remaining": "60", "X-AppMinLimit-Remaining": "9998",
		}},
	}})
}

// What is left of the day shows which limit the day has.
func TestXeroDay(t *testing.T) {
	for _, test := range []struct {
		name    string
		perDay  int64
		replies []string // what is left, in turn; then no more is reported
		wait    time.Duration
		want    int // calls that go at once after them
	}{
		{"the Starter plan", 1_000, []string{"999"}, 0, 999},
		{"the Starter plan, set too high", 5_000, []string{"999"}, 0, 999},
		{"more than Starter", 1_000, []string{"4999", "4998"}, 0, 4_998},
		{"one response", 1_000, []string{"4999"}, 0, 1_000},
		{"others use it", 1_000, []string{"4999", "4998", "700"}, 0, 700},
		{"the end of the day", 1_000, []string{"3", "4999", "4998"}, 0, 4_998},
		{"no number", 1_000, []string{"unknown"}, 0, 999},
		{"the next day", 1_000, []string{"4999", "4998"}, 25 * time.Hour, 5_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 3)
			synctest.Test(t, func(t *testing.T) {
				p := providers.Xero(test.perDay)
				p.Scope("organization").Policy.Tiers[1].Limit = 10_000
				server := new(replying)
				rt := over(t, p, server)
				next := xeroTo(t, "/api.xro/2.0/Invoices", "a")
				for _, left := range test.replies {
					server.Header = map[string]string{"X-DayLimit-Remaining": left}
					send(t, rt, next())
				}
				server.Header = nil
				time.Sleep(test.wait)
				n := 0
				for ; n <= test.want; n++ {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					resp, err := rt.RoundTrip(next().WithContext(ctx))
					cancel()
					if err != nil {
						break
					}
					resp.Body.Close()
				}
				if n != test.want {
					t.Errorf("%d calls at once, want %d", n, test.want)
				}
			})
		})
	}
}

func ExampleXero() {
	client, err := providers.Xero(5_000).Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://api.xero.com/api.xro/2.0/Invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
