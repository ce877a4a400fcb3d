package providers_test

import (
	"strings"
	"testing"

	"github.com/apithrottle/throttle/providers"
)

func read(t *testing.T, text string) providers.PriceList {
	t.Helper()
	l, err := providers.ReadPrices(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A request is rounded up once, to whole nanodollars, after the percentage of a batch.
func TestRequestIsRoundedOnce(t *testing.T) {
	p := read(t, `[{"api":"a","model":"m","input":"0.075","cached_input":"0.0375","output":"0.30","batch":50}]`)[0]
	for _, test := range []struct {
		usage providers.Usage
		want  int64
	}{
		{providers.Usage{}, 0},
		{providers.Usage{Input: 1}, 75},
		{providers.Usage{CachedInput: 1}, 38},
		{providers.Usage{CachedInput: 2}, 75},
		{providers.Usage{Input: 1, CachedInput: 1}, 113},               // 112.5
		{providers.Usage{Input: 1, CachedInput: 1, Batch: true}, 57},   // 56.25
		{providers.Usage{Input: 1, CachedInput: 1, Output: 1}, 413},    // 412.5
		{providers.Usage{Input: 1_001, Output: 0, Batch: true}, 37538}, // 37,537.5
		{providers.Usage{Input: -5, Output: 1}, 300},
	} {
		if got := p.Nanodollars(test.usage); got != test.want {
			t.Errorf("%+v: %d, want %d", test.usage, got, test.want)
		}
	}
}
