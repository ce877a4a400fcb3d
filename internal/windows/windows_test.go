package windows_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/windows"
)

// The responses of OpenAI are in providers/testdata/fixtures/openai.json.
func TestByReset(t *testing.T) {
	quota := windows.ByReset(answers.Quota{
		Unit: "tokens", Limit: answers.Field{Header: "Limit"}, Remaining: answers.Field{Header: "Remaining"},
		Reset: answers.Field{Header: "Reset", Format: answers.Duration},
	})
	profile := answers.Profile{Quotas: []answers.Quota{quota}}
	if err := profile.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		limit, remaining, reset string
		want                    int64
		window                  time.Duration
	}{
		{"10000", "9999", "8.64s", 10_000, 24 * time.Hour},
		{"10000", "9999", "6ms", 10_000, time.Minute},
		{"500", "499", "120ms", 500, time.Minute},
		{"3500", "3499", "17ms", 3_500, time.Minute},
		{"30000", "29993", "14ms", 30_000, time.Minute},
		{"60000", "55904", "4.096s", 60_000, time.Minute},
		{"10000000", "9999737", "1ms", 10_000_000, time.Minute},
		{"10000", "0", "24h", 10_000, 24 * time.Hour},
		{"500", "0", "1m0s", 500, time.Minute},
		{"10000", "10000", "0s", 0, 0},
		{"10000", "", "", 0, 0},
		{"", "499", "120ms", 0, 0},
	} {
		header := http.Header{"Limit": {c.limit}, "Remaining": {c.remaining}, "Reset": {c.reset}}
		got := answers.Reading{}
		for _, r := range profile.Read(answers.Response{Status: http.StatusOK, Header: header}).Readings {
			got = r
			if r.Unit != "tokens" || !r.Full {
				t.Errorf("%+v: read as %+v", c, r)
			}
		}
		if got.Limit != c.want || got.Window != c.window {
			t.Errorf("%+v: %d in %v", c, got.Limit, got.Window)
		}
	}
}
