package kept

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/states anew")

// states returns a value of each subject, with bookings, owners and a second plan, and one of format 2.
func states(t testing.TB) map[string][]byte {
	values := make(map[string][]byte)
	for i, s := range subjects {
		q := s.quota(t)
		value := s.value(t, q, 20, 3)
		other := subjects[(i+1)%len(subjects)]
		p := other.part(t, other.quota(t), value, start+1_000_500)
		p.changed = true
		values[s.name] = p.finish().Value

		p = s.part(t, q, nil, start)
		p.birth = 0
		p.take(requests(q.plan, 1)[0])
		p.owners = nil
		values[s.name+"-plain"] = p.encode()
	}
	return values
}

// TestOldStates checks that values stay readable that were written by this format's releases. With -update it writes
// them anew, which is right only before a release.
func TestOldStates(t *testing.T) {
	dir := filepath.Join("testdata", "states")
	if *update {
		for name, value := range states(t) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(hex.EncodeToString(value)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) < 2*len(subjects) {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		value, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		again, err := Reencode(value)
		if err != nil || !bytes.Equal(again, value) {
			t.Errorf("%s: error %v, encoded as\n%x", f.Name(), err, again)
		}
		want := byte(format)
		if strings.HasSuffix(f.Name(), "-plain") {
			want = oldFormat
		}
		if value[0] != want {
			t.Errorf("%s has format %d, want %d", f.Name(), value[0], want)
		}
	}
}

// TestUnsoundValueStays checks that a value that cannot be read is an error, and not replaced.
func TestUnsoundValueStays(t *testing.T) {
	q := subjects[0].quota(t)
	value := subjects[0].value(t, q, 10, 0)
	newer := bytes.Clone(value)
	newer[0] = format + 1
	for want, value := range map[error][]byte{ErrNewer: newer, ErrUnsound: value[:len(value)-1]} {
		x := &transaction{quotas: []*quota{q}}
		writes, err := x.change(View{Values: [][]byte{value}, Wall: start}, []int{0})
		if !errors.Is(err, want) || writes != nil {
			t.Errorf("%d writes, error %v, want %v", len(writes), err, want)
		}
	}
}

// TestMutatedValues checks that values with a few changed bytes, under a right checksum, are refused or sound, and take
// no more memory than a full book.
func TestMutatedValues(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, value := range states(t) {
		checkMutated(t, r, name, value)
	}
}

func checkMutated(t testing.TB, r *rand.Rand, name string, value []byte) {
	t.Helper()
	for range 200 {
		b := bytes.Clone(value)
		for range 1 + r.IntN(4) {
			b[1+r.IntN(len(b)-1)] = byte(r.Uint32())
		}
		if r.IntN(4) == 0 {
			b = b[:1+r.IntN(len(b))]
		}
		checkValue(t, name, b)
	}
}

// checkValue checks that a value is refused, or decodes to one that encodes and decodes alike.
func checkValue(t testing.TB, name string, b []byte) {
	t.Helper()
	sign(b)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	again, err := Reencode(b)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > uint64(4<<20+1000*len(b)) {
		t.Errorf("%s: %d bytes take %d", name, len(b), n)
	}
	if err != nil {
		if !errors.Is(err, ErrUnsound) && !errors.Is(err, ErrNewer) {
			t.Errorf("%s: %v", name, err)
		}
		return
	}
	if last, err := Reencode(again); err != nil || !bytes.Equal(last, again) {
		t.Errorf("%s: %x is encoded as %x, and that, with error %v, as %x", name, b, again, err, last)
	}
}

func FuzzState(f *testing.F) {
	for _, value := range states(f) {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, b []byte) { checkValue(t, "fuzz", bytes.Clone(b)) })
}

// TestSizes checks the sizes of values with much in them.
func TestSizes(t *testing.T) {
	var table strings.Builder
	for _, s := range subjects {
		q := s.quota(t)
		fmt.Fprintf(&table, "%-10s", s.name)
		for _, of := range [][2]int{{0, 0}, {64, 0}, {500, 0}, {mostRuns * 8, 0}, {0, 100}, {0, 400}} {
			n := len(s.value(t, q, of[0], of[1]))
			if fmt.Fprintf(&table, "%7d", n); n > MostBytes {
				t.Errorf("%s with %d bookings and %d owners has %d bytes", s.name, of[0], of[1], n)
			}
		}
		table.WriteByte('\n')
	}
	t.Logf("bytes with 0, 64, 500 and %d bookings, and 100 and 400 owners:\n%s", mostRuns*8, &table)
}
