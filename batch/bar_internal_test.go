package batch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// running is the state of a job that runs.
var running = Progress{
	Report: Report{Done: 421_297, Failed: 3, Elapsed: 3*time.Minute + 31*time.Second, Nanodollars: 1_240_000_000},
	Total:  1_000_000, Started: 50, Rate: 2000, TimeLeft: 4*time.Minute + 49*time.Second, TimeLeftKnown: true, NanodollarsLeft: 1_700_000_000,
}

// ended is the state of the same job when it has ended.
var ended = Progress{
	Report: Report{Done: 999_985, Failed: 3, Skipped: 12, Ended: true, Elapsed: 500 * time.Second, Nanodollars: 2_950_000_000},
	Total:  1_000_000, Rate: 1999.98, Final: true,
}

func with(p Progress, change func(*Progress)) Progress {
	change(&p)
	return p
}

// TestBarLines draws lines on terminals of some widths. The strings have no escape codes.
func TestBarLines(t *testing.T) {
	hinted := with(running, func(p *Progress) { p.Hint = "AtOnce 1,000 binds: raise it" })
	unknown := with(running, func(p *Progress) { p.Total, p.TimeLeftKnown, p.Nanodollars, p.NanodollarsLeft = 0, false, 0, 0 })
	for _, c := range []struct {
		name  string
		p     Progress
		width int
		ascii bool
		want  string
	}{
		{"wide", running, 120, false, "████████▍             42%  421,300 of 1,000,000  2,000/s  3 failed  4m49s left  $1.24 of $2.94"},
		{"80 columns", running, 80, false, "████▏       42%  421,300 of 1,000,000  2,000/s  3 failed  4m49s left  $1.24"},
		{"60 columns", running, 60, false, "42%  421,300  2,000/s  3 failed  4m49s left  $1.24"},
		{"40 columns", running, 40, false, "42%  2,000/s  3 failed  4m49s left"},
		{"20 columns", running, 20, false, "42%  4m49s left"},
		{"3 columns", running, 3, false, "42"},
		{"no columns", running, 0, false, ""},
		{"ASCII", running, 80, true, "####------  42%  421,300 of 1,000,000  2,000/s  3 failed  4m49s left  $1.24"},
		{"hint", hinted, 120, false, "████▏       42%  421,300 of 1,000,000  2,000/s  3 failed  4m49s left  $1.24 of $2.94  AtOnce 1,000 binds: raise it"},
		{"hint in 80 columns", hinted, 80, false, "42%  421,300  2,000/s  3 failed  4m49s left  $1.24  AtOnce 1,000 binds"},
		{"unknown total", unknown, 80, false, "421,300 done  2,000/s  3 failed"},
		{"end", ended, 80, false, "999,985 done  3 failed  12 skipped  in 8m20s  2,000/s  $2.95"},
		{"end in 40 columns", ended, 40, false, "999,985 done  3 failed  12 skipped"},
		{"stopped", with(ended, func(p *Progress) { p.Ended, p.Report.Left = false, 7 }), 80, false,
			"stopped  999,985 done  3 failed  12 skipped  7 left  in 8m20s  2,000/s  $2.95"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			b := &bar{w: &out, width: func() int { return c.width }, utf8: !c.ascii}
			b.call(c.p)
			end := "\r"
			if c.p.Final {
				end = "\n"
			}
			if want := "\r\x1b[K" + c.want + end; out.String() != want {
				t.Errorf("%q, want %q", out.String(), want)
			}
		})
	}
}

// TestBarNeverWraps draws states in all widths.
func TestBarNeverWraps(t *testing.T) {
	for width := range 200 {
		for _, p := range []Progress{running, ended, with(running, func(p *Progress) { p.Hint = strings.Repeat("é", 150) + "\n" })} {
			var out strings.Builder
			(&bar{w: &out, width: func() int { return width }, utf8: true}).call(p)
			text := strings.TrimPrefix(out.String(), "\r\x1b[K")
			text = text[:len(text)-1]
			if n := utf8.RuneCountInString(text); n > max(0, width-1) || strings.ContainsAny(text, "\r\n\x1b") {
				t.Errorf("%d characters in %d columns: %q", n, width, text)
			}
		}
	}
}

// TestBarColor shows failed items in red, unless the terminal may not know escape codes.
func TestBarColor(t *testing.T) {
	var out strings.Builder
	b := &bar{w: &out, width: func() int { return 40 }, color: true}
	b.call(running)
	if want := "\r\x1b[K42%  2,000/s  \x1b[31m3 failed\x1b[0m  4m49s left\r"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	b.plain = true
	b.call(running)
	if want := "\r" + strings.Repeat(" ", 39) + "\r42%  2,000/s  3 failed  4m49s left\r"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestBarWithoutTerminal writes to a file: the first state, one a minute, and the result, in ASCII.
func TestBarWithoutTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "progress"))
	if err != nil {
		t.Fatal(err)
	}
	call := Bar(f)
	for second := range 150 {
		call(with(running, func(p *Progress) { p.Elapsed = time.Duration(second) * time.Second }))
	}
	call(with(running, func(p *Progress) { p.Hint = "budget 5/é" }))
	call(ended)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(f.Name())
	line := "42%  421,300 of 1,000,000  2,000/s  3 failed  4m49s left  $1.24 of $2.94"
	want := strings.Repeat(line+"\n", 3) + line + "  budget 5/?\n999,985 done  3 failed  12 skipped  in 8m20s  2,000/s  $2.95\n"
	if err != nil || string(got) != want {
		t.Errorf("%v, %s, want %s", err, got, want)
	}
}

func TestLocaleOfTerminal(t *testing.T) {
	for _, c := range []struct {
		all, ctype, lang string
		want             bool
	}{
		{"", "", "en_US.UTF-8", true}, {"", "", "C.utf8", true}, {"C", "", "en_US.UTF-8", false}, {"", "C", "en_US.UTF-8", false}, {"", "", "", false},
	} {
		t.Setenv("LC_ALL", c.all)
		t.Setenv("LC_CTYPE", c.ctype)
		t.Setenv("LANG", c.lang)
		t.Setenv("WT_SESSION", map[bool]string{true: "1"}[c.want]) // on Windows
		if got := writesUTF8(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	t.Setenv("COLUMNS", "33")
	if n := columns(); n != 33 {
		t.Errorf("%d columns", n)
	}
	t.Setenv("COLUMNS", "x")
	if n := columns(); n != 80 {
		t.Errorf("%d columns", n)
	}
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		separated(0):                           "0",
		separated(-1234567):                    "-1,234,567",
		separated(999):                         "999",
		duration(0):                            "0s",
		duration(59600 * time.Millisecond):     "1m00s",
		duration(289 * time.Second):            "4m49s",
		duration(3599600 * time.Millisecond):   "1h00m",
		duration(3*time.Hour + 12*time.Minute): "3h12m",
		duration(24*time.Hour - time.Second):   "1d0h",
		duration(52 * time.Hour):               "2d4h",
		rate(1999.98):                          "2,000/s",
		rate(12.345):                           "12.3/s",
		rate(1.0 / 60):                         "1/min",
		rate(1.0 / 3600):                       "1/h",
		rate(0):                                "0/s",
		rate(2.7777):                           "2.78/s",
		dollars(1_240_000_000):                 "$1.24",
		dollars(1_234_567_890_000):             "$1,234.57",
		dollars(4_200_000):                     "$0.0042",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestReportString groups failed items by their reason, without their keys.
func TestReportString(t *testing.T) {
	r := ended.Report
	r.Failed, r.Left, r.Bound = 1_100, 40, ByLimiter
	for _, key := range []string{"17", "404", "99", "1701"} {
		r.Failures = append(r.Failures, &ItemError{Key: key, Calls: 1, Err: errors.New(`Get "http://api.test/` + key + `": 404 Not Found`)})
	}
	r.Failures = append(r.Failures, &ItemError{Key: "5", Err: errors.New("timeout\x1b[2J\nstack")})
	want := `999,985 done, 1,100 failed, 12 skipped, 40 left in 8m20s, 2,002/s, $2.95
The job was bound by the limits of the API.
4 failed: Get "http://api.test/17": 404 Not Found (items 17, 404, 99, ...)
1 failed: timeout [2J (item 5)
The reasons are those of the first 5 failed items.
Run the job again to do the rest. With the same Journal it leaves out what is done.`
	if got := r.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	r = Report{Done: 5, Ended: true, Elapsed: time.Second, Bound: ByItems}
	if got, want := r.String(), "5 done in 1s, 5/s\nThe job was bound by the iteration over Items."; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
