package corpus_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/ietf"
)

func TestIETF(t *testing.T) {
	runWith(t, ietf.Profile(), []readTest{
		{name: "policies by name", lines: []string{`RateLimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400`, `RateLimit: "daily";r=7;t=9, "burst";r=50;t=30`},
			want: `["daily" limit 1000 left 7 window 24h0m0s reset 9s] ["burst" limit 100 left 50 window 1m0s reset 30s]`},
		{name: "over two lines", lines: []string{`RateLimit: "daily";r=7`, `RateLimit: "burst";r=50`}, want: `["daily" left 7] ["burst" left 50]`},
		{name: "partitions apart", lines: []string{`RateLimit-Policy: "p";q=9;pk=:YQ==:, "p";q=8;pk=:Yg==:`, `RateLimit: "p";r=7;pk=:Yg==:`},
			want: `["p" key 62 limit 8 left 7] ["p" key 61 limit 9]`},
		{name: "another unit", lines: []string{`RateLimit-Policy: "p";q=9;qu="content-bytes";w=1`, `RateLimit: "p";r=7`}, want: `["p" content-bytes limit 9 left 7 window 1s]`},
		{name: "a name as a token", lines: []string{`RateLimit-Policy: p;q=9;w=1`, `RateLimit: p;r=7`}, want: `["p" limit 9 left 7 window 1s]`},
		{name: "the draft's trap: no rate follows from r and t", lines: []string{`RateLimit-Policy: "p";q=10000;w=1000`, `RateLimit: "p";r=10000;t=10`}, want: `["p" limit 10000 left 10000 window 16m40s reset 10s]`},
		{name: "more remaining than the quota", lines: []string{`RateLimit-Policy: "p";q=9`, `RateLimit: "p";r=700`}, want: `["p" limit 9 left 9]`},
		{name: "negative r", lines: []string{`RateLimit: "q";r=1, "p";r=-5`}, want: "nothing"},
		{name: "decimal t", lines: []string{`RateLimit: "p";r=5;t=30.5`}, want: "nothing"},
		{name: "trailing comma", lines: []string{`RateLimit: "p";r=5,`}, want: "nothing"},
		{name: "16 digits", lines: []string{`RateLimit: "p";r=1000000000000000`}, want: "nothing"},
		{name: "a window of zero", lines: []string{`RateLimit-Policy: "p";q=9;w=0`}, want: "nothing"},
		{name: "a quota of zero", lines: []string{`RateLimit-Policy: "p";q=0;w=9`}, want: "nothing"},
		{name: "a policy without q", lines: []string{`RateLimit-Policy: "d";q=5, "p";w=9`}, want: "nothing"},
		{name: "pk of another type", lines: []string{`RateLimit: "p";r=5;pk="x"`}, want: "nothing"},
		{name: "inner lists", lines: []string{`RateLimit: ("p");r=5`, `RateLimit-Policy: (5);w=1`}, want: "nothing"},
		{name: "t out of range", lines: []string{`RateLimit: "p";r=5;t=999999999999999`}, want: `["p" left 5]`},
		{name: "-07 with junk", lines: []string{`RateLimit: limit=100, remaining="x"`}, want: "nothing"},
		{name: "-07 with a policy of the same limit twice", lines: []string{`RateLimit: limit=100, remaining=5`, `RateLimit-Policy: 100;w=1, 100;w=60`}, want: "[limit 100 left 5] [limit 100 window 1s] [limit 100 window 1m0s]"},
		{name: "-06", lines: []string{`RateLimit-Limit: 100`, `RateLimit-Remaining: 5`, `RateLimit-Reset: 50`, `RateLimit-Policy: 10;w=1, 100;w=60`}, want: "[limit 100 left 5 window 1m0s reset 50s] [limit 10 window 1s]"},
		{name: "-03", lines: []string{`RateLimit-Limit: 100, 100;w=60, 5000;w=3600`, `RateLimit-Remaining: 5`, `RateLimit-Reset: 50`}, want: "[limit 100 left 5 window 1m0s reset 50s] [limit 5000 window 1h0m0s]"},
		{name: "the window on the only item", lines: []string{`RateLimit-Limit: 100;w=21600`, `RateLimit-Remaining: 76;w=21600`}, want: "[limit 100 left 76 window 6h0m0s]"},
		{name: "the new shape beside the old", lines: []string{`RateLimit: "p";r=5;t=9`, `RateLimit-Limit: 100`, `RateLimit-Remaining: 5`}, want: `["p" left 5 reset 9s]`},
		{name: "malformed, beside the old", lines: []string{`RateLimit: "p";r=-5`, `RateLimit-Limit: 100`, `RateLimit-Remaining: 5`}, want: "[limit 100 left 5]"},
		{name: "an epoch for a reset", lines: []string{`RateLimit-Remaining: 5`, `RateLimit-Reset: 1777896000`}, want: "[left 5]"},
		{name: "seconds that overflow a Duration into half of one", lines: []string{`RateLimit: "p";r=5;t=18446744073710`}, want: `["p" left 5]`},
		{name: "the policy's partition", lines: []string{`RateLimit-Policy: "p";q=9;pk=:YQ==:`, `RateLimit: "p";r=7`}, want: `["p" key 61 limit 9 left 7]`},
		{name: "a partition of a policy without one", lines: []string{`RateLimit-Policy: "p";q=9`, `RateLimit: "p";r=7;pk=:YQ==:`}, want: `["p" key 61 limit 9 left 7]`},
		{name: "an unknown parameter", lines: []string{`RateLimit: "p";r=5;x="y"`}, want: `["p" left 5]`},
		{name: "a unit that is not a string", lines: []string{`RateLimit-Policy: "p";q=9;qu=7`}, want: "nothing"},
		{name: "-06 with a limit of zero", lines: []string{`RateLimit-Limit: 0`, `RateLimit-Remaining: 5`}, want: "nothing"},
	})
}

// The readings of a Quota.Read are named, bounded and marked like those of Fields.
func TestQuotaRead(t *testing.T) {
	returning := func(rs ...Reading) Profile {
		return Profile{Quotas: []Quota{{
			Name: "a", Unit: "u", Window: time.Minute, Full: true, Authoritative: true,
			Read: func(Response) []Reading { return rs },
		}}}
	}
	run(t, []readTest{
		{name: "nothing", profile: returning(), want: "nothing"},
		{name: "empty", profile: returning(Reading{}), want: "nothing"},
		{name: "values of the quota", profile: returning(Reading{Limit: 5}), want: `["a" u limit 5 window 1m0s full authoritative]`},
		{name: "values of the reading", profile: returning(Reading{Name: "b", Unit: "v", Window: time.Hour, Limit: 5}), want: `["a/b" v limit 5 window 1h0m0s full authoritative]`},
		{name: "marks of the reading", want: "[limit 5 full authoritative]", profile: Profile{Quotas: []Quota{{
			Read: func(Response) []Reading { return []Reading{{Limit: 5, Full: true, Authoritative: true}} },
		}}}},
		{name: "below the bounds", profile: returning(Reading{Limit: -1, Remaining: -1, Has: HasRemaining | HasReset, Reset: -1, Window: -1}), want: `["a" u left 0 window 1m0s full authoritative]`},
		{name: "above the bounds", profile: returning(Reading{Limit: 1e15, Remaining: 2e15, Has: HasRemaining | HasReset, Reset: 366 * 24 * time.Hour}), want: `["a" u limit 999999999999999 left 999999999999999 window 1m0s full authoritative]`},
		{name: "a reset without HasReset", profile: returning(Reading{Limit: 1, Reset: time.Hour}), want: `["a" u limit 1 window 1m0s full authoritative]`},
		{name: "a nanosecond", profile: returning(Reading{Has: HasReset, Reset: 1}), want: `["a" u window 1m0s reset 1µs full authoritative]`},
	})
}

// A response makes at most 32 readings, which bounds the memory they take.
func TestMostReadings(t *testing.T) {
	p := Profile{Quotas: []Quota{{Read: func(Response) []Reading {
		return slices.Repeat([]Reading{{Limit: 5}}, 40)
	}}}}
	if n := len(p.Read(Response{}).Readings); n != 32 {
		t.Errorf("%d readings, want 32", n)
	}
}

// Package answers links only packages of this module. The parser of structured fields is in package
// ietf for this reason.
func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "..").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	const module = "github.com/apithrottle/throttle/"
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, module+"answers") {
		t.Fatalf("go list doesn't list package answers:\n%s", out)
	}
	for _, p := range packages {
		if !strings.HasPrefix(p, module) {
			t.Errorf("answers links %s", p)
		}
	}
}
