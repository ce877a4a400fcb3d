package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const scalingOutput = `goos: linux
BenchmarkScaling/plain/1000-2         	   10000	       454.7 freed-ns	       676.3 join-ns	       472.9 leave-ns	       832.4 refuse-ns
BenchmarkScaling/plain/10000-2        	   10000	       487.7 freed-ns	       802.9 join-ns	      1410 leave-ns	      1409 refuse-ns
PASS
`

func TestScaling(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "output"), filepath.Join(dir, "scaling.svg")
	if err := os.WriteFile(from, []byte(scalingOutput), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = `| µs per event  | 1000 waiting | 10000 waiting |
| ------------- | -----------: | ------------: |
| join, plain   |         0.68 |          0.80 |
| leave, plain  |         0.47 |          1.41 |
| refuse, plain |         0.83 |          1.41 |
| freed, plain  |         0.45 |          0.49 |
`
	var out strings.Builder
	if err := run([]string{"-from", from, "-svg", to}, &out, io.Discard); err != nil || out.String() != want {
		t.Errorf("got %v\n%swant\n%s", err, out.String(), want)
	}
	svg, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, cell := range []string{">0.68<", ">1.41<", ">leave, plain<", ">10000<"} {
		if !strings.Contains(string(svg), cell) {
			t.Errorf("the chart does not contain %q", cell)
		}
	}
	for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadErrors(t *testing.T) {
	for _, in := range []string{"", "PASS\n", "BenchmarkScaling/plain/10-2 1 x join-ns\n"} {
		var r results
		if err := r.parse(strings.NewReader(in)); err == nil && r.write(io.Discard, groups...) == nil {
			t.Errorf("read(%q): no error", in)
		}
	}
}
