package proxy

import (
	"fmt"
	"strings"
	"testing"
)

// TestTokens compares the search with strings.Contains, for tokens of different lengths, of which some
// begin alike.
func TestTokens(t *testing.T) {
	var clients []Client
	for i := range 100 {
		clients = append(clients, Client{Token: fmt.Sprintf("token-of-a-client-%03d%s", i, strings.Repeat("x", i))})
	}
	clients = append(clients, Client{Token: "token-of-a-client-"}, Client{}) // that the others begin with, and none
	for _, some := range [][]Client{clients[:1], clients[:100], clients} {
		s := newTokens(some)
		for _, c := range clients {
			for _, text := range []string{c.Token, "a" + c.Token, c.Token + "b", "1 " + c.Token + " 2", c.Token[:max(0, len(c.Token)-1)], strings.ToUpper(c.Token), ""} {
				want := false
				for _, c := range some {
					want = want || c.Token != "" && strings.Contains(text, c.Token)
				}
				if got := s.in(text); got != want {
					t.Errorf("%d clients: %q has a token: %v, want %v", len(some), text, got, want)
				}
			}
		}
	}
	if newTokens(nil) != nil || newTokens([]Client{{}}) != nil {
		t.Error("no token needs a search")
	}
}

// BenchmarkTokens searches the headers of a request for the tokens of a hundred clients.
func BenchmarkTokens(b *testing.B) {
	var clients []Client
	for i := range 100 {
		clients = append(clients, Client{Token: fmt.Sprintf("%03d-%s", i, strings.Repeat("x", 40))})
	}
	s, text := newTokens(clients), strings.Repeat("Mozilla/5.0 (X11; Linux x86_64) ", 32)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if s.in(text) {
			b.Fatal("found")
		}
	}
}
