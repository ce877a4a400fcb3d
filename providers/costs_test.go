package providers_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/providers"
)

// An estimate goes up to the quota of the model itself, whatever quota other models have.
func TestBedrockEstimateGoesUpToTheModelsQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := func(p providers.Provider) (n int) {
			p.Scope("x5").Policy.MaxWait = time.Nanosecond
			rt := over(t, p, accepting{})
			for ; n < 100; n++ {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-sonnet-4-5-v1:0/converse",
					strings.NewReader(`{"inferenceConfig":{"maxTokens":4000},"messages":[]}`))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := rt.RoundTrip(req)
				if err != nil {
					break
				}
				resp.Body.Close() // it reports no cost, so the estimate counts
			}
			return n
		}
		listed := providers.Bedrock(0, 10_000) // of other models
		listed.Scope("x5").Models = providers.NewModels(map[string][]throttle.Tier{
			"us-east-1 anthropic.claude-sonnet-4-5*": providers.Bedrock(0, 100_000).Scope("x5").Policy.Tiers})
		if want, got := sent(providers.Bedrock(0, 100_000)), sent(listed); got != want {
			t.Errorf("%d requests with a quota among the Models, want %d as with that of the constructor", got, want)
		}
	})
}

// A batch is read about once for each request, whatever its entries and the token are.
func TestGraphBatchIsReadOnce(t *testing.T) {
	transport, err := providers.MicrosoftGraph().Transport(nil)
	if err != nil {
		t.Fatal(err)
	}
	entry := `{"method":"GET","url":"/me/events"}`
	body := `{"requests":[` + strings.Repeat(entry+",", 499) + entry + `]}`
	req, err := http.NewRequest(http.MethodPost, "https://graph.microsoft.com/v1.0/$batch", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer a.e30.c")
	allocated := testing.AllocsPerRun(1, func() {
		transport.Route(req)
		transport.Cost(req)
	})
	if allocated > 20_000 { // 40 for each entry
		t.Errorf("%.0f allocations for a batch of 500", allocated)
	}
}
