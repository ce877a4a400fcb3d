package batch

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"
)

// TestJournalRefusesOtherFiles opens files that are no journals. They are left as they are.
func TestJournalRefusesOtherFiles(t *testing.T) {
	header := newHeader([16]byte{1})
	newer := append([]byte(magic), version+1)
	for name, c := range map[string]struct{ data, want string }{
		"text":           {"id,name\n", "is no journal: give"},
		"long text":      {strings.Repeat("id,name\n", 100), "is no journal: give"},
		"other magic":    {strings.ToUpper(string(header)), "is no journal: give"},
		"newer":          {string(newer), "has version 2 of the format, and this program knows 1: use a newer one"},
		"broken header":  {string(header[:30]) + strings.Repeat("x", 100), "is damaged at offset 0"},
		"zeros":          {strings.Repeat("\x00", headerLen+1), "is no journal"},
		"begin of magic": {magic[:5], ""},
		"begin":          {string(header[:30]), ""},
		"few zeros":      {strings.Repeat("\x00", headerLen), ""},
		"empty":          {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			if err := os.WriteFile(path, []byte(c.data), 0o600); err != nil {
				t.Fatal(err)
			}
			j, err := OpenJournal(path, JournalOptions{})
			if c.want == "" {
				if err != nil || j.size != int64(headerLen) {
					t.Error(err)
				}
				_ = j.Close()
				return
			}
			after, _ := os.ReadFile(path)
			if err == nil || !strings.Contains(err.Error(), "batch: journal "+path+": "+c.want) || string(after) != c.data {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestJournalRefusesOtherPaths(t *testing.T) {
	folder := t.TempDir()
	for path, want := range map[string]string{
		folder:                              "is a directory: give the path of a file in it",
		filepath.Join(folder, "no", "such"): "such: open ",
		os.DevNull:                          "is no regular file: give the path of one",
	} {
		if _, err := OpenJournal(path, JournalOptions{}); err == nil || !strings.Contains(err.Error(), path+": ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if left, _ := os.ReadDir(folder); len(left) > 0 {
		t.Errorf("%v was created", left)
	}
	err := openError("journal", &fs.PathError{Op: "open", Path: "journal", Err: fs.ErrPermission})
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "this user must be able to read and write the file") {
		t.Error(err)
	}
}

func TestJournalIsOfItsOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := OpenJournal(path, JournalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 && os.PathSeparator == '/' {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestJournalHidesCredentials writes reasons that quote URLs and header fields, as clients of APIs do.
func TestJournalHidesCredentials(t *testing.T) {
	request := &url.Error{Op: "Get", URL: "https://api.test/v1/x?key=SECRET&page=2", Err: errors.New("timeout")}
	for in, want := range map[string]string{
		request.Error(): `Get "https://api.test/v1/x?…": timeout`,
		`Post "https://me:SECRET@api.test/v1": EOF`:                            `Post "https://api.test/v1": EOF`,
		`dial postgres://me:SE@CRET@db/x failed`:                               `dial postgres://db/x failed`,
		`GET /v1/x?q=a%20b&sig=SECRET: 403`:                                    `GET /v1/x?… 403`,
		`https://a.test/?key=SECRET and http://b.test/p?token=SECRET.`:         `https://a.test/?… and http://b.test/p?…`,
		`googleapi: Error 400: API key not valid. key=SECRET`:                  `googleapi: Error 400: API key not valid. key=…`,
		"Authorization: Bearer SECRET-abc\nX-Api-Key: SECRET":                  "Authorization: …\nX-Api-Key: …",
		`headers: map[Authorization:[Bearer SECRET] Accept:[*/*]]`:             `headers: map[Authorization:…] Accept:[*/*]]`,
		`{"error":"denied","access_token":"SECRET","code":7}`:                  `{"error":"denied","access_token":"…","code":7}`,
		"Cookie: a=SECRET; b=SECRET\nend":                                      "Cookie: …\nend",
		`bad header "Bearer SECRETSECRET"`:                                     `bad header "Bearer …"`,
		`401: Incorrect API key provided: sk-proj-SECRETSECRET.`:               `401: Incorrect API key provided: sk-…`,
		`status 429: {"message":"Rate limit of 60 is reached","type":"limit"}`: `status 429: {"message":"Rate limit of 60 is reached","type":"limit"}`,
		`What? No = here`: `What? No = here`,
		`order 17: the field "name" is missing (code: 12, tokens=4)`: `order 17: the field "name" is missing (code: 12, tokens=4)`,
	} {
		if got := reasonOf(errors.New(in)); got != want || strings.Contains(got, "SECRET") {
			t.Errorf("%s\n is %s\nwant %s", in, got, want)
		}
	}
}

func TestJournalCutsReasons(t *testing.T) {
	for n := range 4 {
		in := strings.Repeat("x", n) + strings.Repeat("ä…", 10_000)
		if got := reasonOf(errors.New(in)); !strings.HasPrefix(in, got) || !utf8.ValidString(got) || len(got) > 300 || len(got) < 297 {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
	if got := reasonOf(errors.New("a\xffb")); got != "ab" {
		t.Errorf("%q", got)
	}
}

// TestJournalKeepsKeys writes keys as they are, up to a length.
func TestJournalKeepsKeys(t *testing.T) {
	f := &memFile{}
	j := openFile(t, f, time.Hour)
	run, _ := j.enter()
	keys := []string{"", "https://a.test/?key=1", "\xff\n", strings.Repeat("k", maxKey)}
	for _, key := range keys {
		n, _, err := run.begin(key)
		if err = errors.Join(err, run.fail(n, key, errors.New(strings.Repeat("r", 1000)))); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := run.begin(strings.Repeat("k", maxKey+1)); err == nil || !strings.Contains(err.Error(), "a key has 65537 bytes") {
		t.Error(err)
	}
	for i, f := range failures(t, openFile(t, f, time.Hour)) {
		if f.Key != keys[i] || len(f.Reason) != maxReason {
			t.Errorf("%.20q, %d", f.Key, len(f.Reason))
		}
	}
}

// TestJournalReportsReadErrors reads a file that fails.
func TestJournalReportsReadErrors(t *testing.T) {
	f := &memFile{}
	j := openFile(t, f, time.Hour)
	run, _ := j.enter()
	for i := range 3 {
		n, _, _ := run.begin(fmt.Sprint(i))
		if err := run.fail(n, fmt.Sprint(i), errors.New("reason")); err != nil {
			t.Fatal(err)
		}
	}
	run.leave()
	j.file = brokenFile{f}
	run, _ = j.enter()
	if _, _, err := run.begin("0"); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("begin: %v", err)
	}
	for failure, err := range j.Failed() {
		if failure != (Failure{}) || !errors.Is(err, iotest.ErrTimeout) {
			t.Errorf("%v, %v", failure, err)
		}
	}
	size := len(f.data)
	if err := newJournal("x", j.file, JournalOptions{}).open(); !errors.Is(err, iotest.ErrTimeout) || len(f.data) != size {
		t.Errorf("open: %v", err)
	}
}

// A brokenFile has a header alone that can be read.
type brokenFile struct{ *memFile }

func (f brokenFile) ReadAt(p []byte, at int64) (int, error) {
	if at >= int64(headerLen) {
		return 0, iotest.ErrTimeout
	}
	return f.memFile.ReadAt(p, at)
}
