package alike

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	names := []string{"exec", "wait", "lines", "proxy", "openai", "binance-futures", "coinbase-app"}
	for name, want := range map[string]string{
		"exce": "exec", "exc": "exec", "wiat": "wait", "prxy": "proxy", "opnai": "openai", "Binance_Futures": "binance-futures",
		"coinbas": "coinbase-app", "": "", "x": "", "wish": "", "status": "", strings.Repeat("x", 100): "",
	} {
		if got := Nearest(name, names); got != want {
			t.Errorf("Nearest(%q) returns %q; want %q", name, got, want)
		}
	}
}
