package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

const output = `goos: linux
BenchmarkScaling/plain/1000-2         	   10000	       454.7 freed-ns	       676.3 join-ns	       472.9 leave-ns	       832.4 refuse-ns
BenchmarkScaling/plain/10000-2        	   10000	       487.7 freed-ns	       802.9 join-ns	      1410 leave-ns	      1409 refuse-ns
PASS
`

func TestTable(t *testing.T) {
	r, err := read(strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	const want = `| µs per event | 1000 waiting | 10000 waiting |
| --- | ---: | ---: |
| join, plain | 0.68 | 0.80 |
| leave, plain | 0.47 | 1.41 |
| refuse, plain | 0.83 | 1.41 |
| freed, plain | 0.45 | 0.49 |
`
	if got := r.table(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	svg := r.plot().SVG()
	if n := strings.Count(svg, "<polyline"); n != len(operations) {
		t.Errorf("the plot has %d lines, want %d", n, len(operations))
	}
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadErrors(t *testing.T) {
	for _, in := range []string{"", "PASS\n", "BenchmarkScaling/plain/x-2 1 2 join-ns\n", "BenchmarkScaling/plain/10-2 1 x join-ns\n"} {
		if _, err := read(strings.NewReader(in)); err == nil {
			t.Errorf("read(%q): no error", in)
		}
	}
}
