package corpus_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/ietf"
	shipped "github.com/apithrottle/throttle/answers/profiles"
)

func at(header string, f Format) Field { return Field{Header: header, Format: f} }
func in(path string, f Format) Field   { return Field{Path: path, Format: f} }
func num(header string) Field          { return Field{Header: header} }

// profiles are the profiles of the providers in testdata/headers.json, by name.
var profiles = func() map[string]Profile {
	all := map[string]Profile{
		"IETF draft-10 (and master 2025-09)":                       ietf.Profile(),
		"IETF draft-07":                                            ietf.Profile(),
		"IETF draft-06 triple (e.g. Resend)":                       ietf.Profile(),
		"IETF draft-01..03 (RateLimit-Limit with policies inside)": ietf.Profile(),
	}
	for _, name := range shipped.Names() {
		entry, _ := shipped.Named(name)
		all[name] = entry.Profile
	}
	return all
}()

// Each profile that ships has a source and examples, and belongs to its caller.
func TestShippedProfiles(t *testing.T) {
	var known []string
	for _, p := range providers(t) {
		known = append(known, p.Provider)
	}
	for _, name := range shipped.Names() {
		entry, err := shipped.Named(name)
		if err != nil {
			t.Error(err)
		}
		if _, err := time.Parse(time.DateOnly, entry.Read); err != nil || !strings.HasPrefix(entry.Page, "https://") {
			t.Errorf("%s: read on %q, page %q", name, entry.Read, entry.Page)
		}
		if !slices.Contains(known, name) {
			t.Errorf("%s has no entry in testdata/headers.json", name)
		}
		again, _ := shipped.Named(name)
		for i := range entry.Profile.Rules {
			entry.Profile.Rules[i] = Rule{}
		}
		if third, _ := shipped.Named(name); len(again.Profile.Rules) > 0 && !reflect.DeepEqual(again.Profile.Rules, third.Profile.Rules) {
			t.Errorf("%s: two calls share a slice", name)
		}
	}
	if _, err := shipped.Named("gitlab"); err == nil || err.Error() != `profiles: the name is "gitlab": it must be one of Names` {
		t.Error(err)
	}
}
