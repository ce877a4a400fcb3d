package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const output = `goos: linux
pkg: example/bench
BenchmarkLocal/throttle/wait1-2   	 1000	        75.0 ns/op	       0 B/op	       0 allocs/op
BenchmarkLocal/other/wait1-2      	 1000	       100 ns/op	     248 B/op	       3 allocs/op
BenchmarkLocal/throttle/wait2-2   	 1000	        80 ns/op	       0 B/op	       0 allocs/op
BenchmarkLocal/throttle/wait1-2   	 1000	        50 ns/op	       0 B/op	       0 allocs/op
BenchmarkLocal/throttle/wait1-2   	 1000	       999 ns/op	       0 B/op	       0 allocs/op
BenchmarkLocal/floor/wait1-2      	 1000	        30 ns/op	       0 B/op	       0 allocs/op
BenchmarkLocal/floor/wait1-2      	 1000	        20 ns/op	       0 B/op	       0 allocs/op
BenchmarkRedis/throttle/one/c1-2  	 1000	     20000 ns/op	        10.25 server-µs/op	       4 allocs/op
BenchmarkRedis/other/one/c1-2     	 1000	     40000 ns/op	        20.00 server-µs/op	       0 allocs/op
BenchmarkRedis/floor/ping/c1-2    	 1000	     10000 ns/op	         5.00 server-µs/op	       0 allocs/op
BenchmarkRedis/floor/noop/c1-2    	 1000	     12500 ns/op	         6.00 server-µs/op	       0 allocs/op
BenchmarkRedis/floor/noop/c16-2   	 1000	      5000 ns/op	         6.00 server-µs/op	       0 allocs/op
BenchmarkIdle-2                   	    1	4032159545 ns/op	       339.96 B/quota	 12.5 a-metric
PASS
ok  	example/bench	7.195s
`

const tables = `| ns per call | throttle | other          | floor | throttle/other | throttle/floor |
| ----------- | -------: | -------------: | ----: | -------------: | -------------: |
| wait1       |       75 | 100 (3 allocs) |    25 |           0.75 |           3.00 |
| wait2       |       80 |                |       |                |                |

| ns per call | throttle                         | other                  | floor                 | throttle/other | throttle/floor |
| ----------- | -------------------------------: | ---------------------: | --------------------: | -------------: | -------------: |
| one/c1      | 20000 (4 allocs, 10.2 server-µs) | 40000 (20.0 server-µs) | 10000 (5.0 server-µs) |           0.50 |           2.00 |
| ping/c1     |                                  |                        | 10000 (5.0 server-µs) |                |                |
| noop/c1     |                                  |                        | 12500 (6.0 server-µs) |                |                |
| noop/c16    |                                  |                        |  5000 (6.0 server-µs) |                |                |

| measured | median | unit     |
| -------- | -----: | -------: |
| Idle     |  340.0 |  B/quota |
| Idle     |   12.5 | a-metric |
`

func TestMarkdown(t *testing.T) {
	var r results
	half := strings.Index(output, "BenchmarkLocal/throttle/wait2")
	for _, part := range []string{output[:half], output[half:]} { // two runs
		if err := r.parse(strings.NewReader(part)); err != nil {
			t.Fatal(err)
		}
	}
	var got strings.Builder
	if err := r.write(&got, "Local", "Redis"); err != nil {
		t.Fatal(err)
	}
	if got.String() != tables {
		t.Errorf("got\n%s\nwant\n%s", got.String(), tables)
	}
}

func TestParseOneProcessor(t *testing.T) {
	var r results
	if err := r.parse(strings.NewReader("BenchmarkIdle 1 5 ns/op\n")); err != nil {
		t.Fatal(err)
	}
	if m, ok := r.median("Idle", "ns/op"); m != 5 || !ok {
		t.Errorf("Median = %v, %v, want 5, true", m, ok)
	}
}

func TestParseErrors(t *testing.T) {
	for name, in := range map[string]string{
		"failed package":     "BenchmarkIdle 1 5 ns/op\nFAIL example/bench 1s\n",
		"failed benchmark":   "--- FAIL: BenchmarkIdle\n",
		"not a number":       "BenchmarkIdle 1 five ns/op\n",
		"value without unit": "BenchmarkIdle 1 5\n",
		"line too long":      strings.Repeat("x", 1<<20),
	} {
		if err := new(results).parse(strings.NewReader(in)); err == nil {
			t.Errorf("%s: parse returned no error", name)
		}
	}
}

func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "output.txt")
	if err := os.WriteFile(file, []byte(output), 0o600); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if err := run([]string{"-from", file}, &got, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got.String() != tables {
		t.Errorf("got\n%s\nwant\n%s", got.String(), tables)
	}
}

func TestRunErrors(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.txt")
	if err := os.WriteFile(empty, []byte("PASS\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"-from", empty},
		{"-from", empty + ".missing"},
		{"-count", "0"},
		{"-unknown"},
		{"extra"},
	} {
		if err := run(args, io.Discard, io.Discard); err == nil {
			t.Errorf("run(%q): no error", args)
		}
	}
}
