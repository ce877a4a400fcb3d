package providers_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const elevenLabs = "https://api.elevenlabs.io/v1/"

func TestElevenLabsAtOnce(t *testing.T) {
	speak := func(model string) func() *http.Request {
		return to(t, "POST", elevenLabs+"text-to-speech/JBFqnCBsd6RMkjVDRZzb/stream", `{"text":"hello","model_id":"`+model+`"}`)
	}
	transcribe := func(size int) func() *http.Request {
		return to(t, "POST", elevenLabs+"speech-to-text", strings.Repeat("a", size))
	}
	unknown := func() *http.Request {
		req := postJSON(t, elevenLabs+"speech-to-text", "")
		req.Body, req.GetBody, req.ContentLength = io.NopCloser(strings.NewReader("audio")), nil, -1
		return req
	}
	other := func(path string) func() *http.Request { return to(t, "POST", elevenLabs+path, `{"text":"hello"}`) }
	const most = 100 // of requests that are sent
	for _, test := range []struct {
		name     string
		plan     int64
		want     int
		requests []func() *http.Request
	}{
		{"Free", 2, 2, []func() *http.Request{speak("eleven_multilingual_v2")}},
		{"Creator", 5, 5, []func() *http.Request{speak("eleven_multilingual_v2"), other("sound-generation"), other("text-to-dialogue"), other("speech-to-speech/1"), other("audio-isolation"), other("text-to-voice/design")}},
		{"Flash", 5, 10, []func() *http.Request{speak("eleven_flash_v2_5")}},
		{"Turbo", 5, 10, []func() *http.Request{speak("eleven_turbo_v2_5")}},
		{"Flash and Multilingual", 6, 18, []func() *http.Request{speak("eleven_flash_v2_5"), speak("eleven_multilingual_v2")}},
		{"Flash and Turbo", 5, 10, []func() *http.Request{speak("eleven_flash_v2"), speak("eleven_turbo_v2")}},
		{"v4 Turbo", 5, 5, []func() *http.Request{speak("eleven_v4_turbo"), speak("eleven_v3")}},
		{"no model", 5, 5, []func() *http.Request{other("text-to-speech/1")}},
		{"short transcripts", 5, 25, []func() *http.Request{transcribe(100_000), to(t, "POST", elevenLabs+"speech-to-text")}},
		{"transcripts of 12 minutes", 5, 12, []func() *http.Request{transcribe(1_500_000)}},
		{"long transcripts", 5, 6, []func() *http.Request{transcribe(8_000_000)}},
		{"transcripts of unknown length", 5, 6, []func() *http.Request{unknown}},
		{"transcripts of an address", 5, 6, []func() *http.Request{to(t, "POST", elevenLabs+"speech-to-text", `{"cloud_storage_url":"https://example.com/a.mp3"}`)}},
		{"channels", 5, 5, []func() *http.Request{to(t, "POST", elevenLabs+"speech-to-text", `{"use_multi_channel":true}`)}},
		{"channels of a small plan", 2, 1, []func() *http.Request{to(t, "POST", elevenLabs+"speech-to-text", `{"use_multi_channel":true,"cloud_storage_url":"https://example.com/a.mp3"}`)}},
		{"one channel", 5, 25, []func() *http.Request{to(t, "POST", elevenLabs+"speech-to-text", `{"use_multi_channel":false}`)}},
		{"long transcripts of a small plan", 1, 1, []func() *http.Request{transcribe(8_000_000)}},
		{"music", 10, 2, []func() *http.Request{other("music"), other("music/detailed")}},
		{"music of Scale", 15, 3, []func() *http.Request{other("music/stream")}},
		{"kinds apart", 2, 18, []func() *http.Request{speak(""), transcribe(10), other("music"), speak("eleven_flash_v2_5")}},
		{"other requests", 2, most, []func() *http.Request{to(t, "GET", elevenLabs+"text-to-speech/1"), to(t, "GET", "https://api.elevenlabs.io/v2/voices"), other("dubbing")}},
		{"residency", 2, 2, []func() *http.Request{to(t, "POST", "https://api.eu.residency.elevenlabs.io/v1/sound-generation", "{}")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if n := atATime(t, providers.ElevenLabs(test.plan), most, alternate(test.requests...)); n != test.want {
					t.Errorf("%d at once, want %d", n, test.want)
				}
			})
		})
	}
}

func TestElevenLabsRefusals(t *testing.T) {
	speak, other := to(t, "POST", elevenLabs+"text-to-speech/1", `{"text":"hello"}`), to(t, "POST", elevenLabs+"sound-generation", `{"text":"rain"}`)
	detail := func(status int, detail string) fakeapi.Reply {
		return fakeapi.Reply{Status: status, Body: `{"detail":` + detail + `}`}
	}
	checkRefusals(t, func() providers.Provider { return providers.ElevenLabs(5) }, []refusalTest{
		{name: "too many at once", first: speak, next: other, reply: detail(429, `{"status":"too_many_concurrent_requests","message":"Too many concurrent requests."}`), want: backoff},
		{name: "too many at once, as a code", next: other, reply: detail(429, `{"type":"rate_limit_error","code":"concurrent_limit_exceeded"}`), want: backoff},
		{name: "too many", next: other, reply: detail(429, `{"code":"rate_limit_exceeded"}`), want: backoff},
		{name: "busy", next: other, reply: detail(429, `{"status":"system_busy"}`)},
		{name: "busy, as a code", next: other, reply: detail(429, `{"code":"system_busy"}`)},
		{name: "music goes on", next: to(t, "POST", elevenLabs+"music", "{}"), reply: detail(429, `{"status":"too_many_concurrent_requests"}`)},
		{name: "Flash goes on", next: to(t, "POST", elevenLabs+"text-to-speech/1", `{"model_id":"eleven_flash_v2_5"}`), reply: detail(429, `{"status":"too_many_concurrent_requests"}`)},
		{name: "unusual activity", next: other, reply: detail(401, `{"status":"detected_unusual_activity","message":"Unusual activity detected. Free Tier usage disabled."}`), want: closed},
		{name: "no credits", reply: detail(401, `{"status":"quota_exceeded","message":"This request exceeds your quota."}`)},
		{name: "no credits, as a code", reply: detail(429, `{"code":"quota_exceeded"}`)},
		{name: "no credits, as a status", reply: detail(429, `{"status":"quota_exceeded"}`)},
		{name: "a wrong key", reply: detail(401, `{"status":"invalid_api_key"}`)},
	})
}

// Responses report how many requests are at once, and why one was refused.
func TestElevenLabsReports(t *testing.T) {
	h := http.Header{"Content-Type": {"application/json"}, "Current-Concurrent-Requests": {"5"}, "Maximum-Concurrent-Requests": {"5"}}
	for _, test := range []struct{ body, reason string }{
		{`{"detail":{"status":"too_many_concurrent_requests"}}`, "too_many_concurrent_requests"},
		{`{"detail":{"code":"rate_limit_exceeded"}}`, "rate_limit_exceeded"},
		{`{"detail":{"status":"system_busy"}}`, "system_busy"},
	} {
		answer := providers.ElevenLabs(5).Profile.Read(answers.Response{Status: 429, Header: h, Body: []byte(test.body)})
		if len(answer.Readings) != 1 || answer.Readings[0].Limit != 5 || answer.Readings[0].Used != 5 || answer.Reason != test.reason {
			t.Errorf("%s is %+v", test.body, answer)
		}
	}
}

func ExampleElevenLabs() {
	client, err := providers.ElevenLabs(10).Client(nil) // the plan Pro
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Post("https://api.elevenlabs.io/v1/sound-generation", "application/json", strings.NewReader(`{"text":"rain"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
