package providers_test

import (
	"testing"

	"github.com/apithrottle/throttle/providers"
)

// Limits are read as the APIs list them, failures say what to do, and the key goes nowhere else.
func TestFetchStandIn(t *testing.T) {
	checkFetching(t, providers.FetchAnthropic, providers.FetchOpenAI)
}
