package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

var operations = []string{"join", "leave", "refuse", "freed"}

// Results has nanoseconds by mix, number of waiters and operation.
type results struct {
	mixes []string
	sizes []float64
	ns    map[key]float64
}

type key struct {
	mix       string
	n         float64
	operation string
}

// read reads lines like
//
//	BenchmarkScaling/plain/1000-2  10000  454.7 freed-ns  676.3 join-ns
func read(in io.Reader) (results, error) {
	r := results{ns: make(map[key]float64)}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "BenchmarkScaling/") {
			continue
		}
		name := strings.Split(fields[0], "/")
		size, _, _ := strings.Cut(name[len(name)-1], "-")
		n, err := strconv.ParseFloat(size, 64)
		if len(name) != 3 || err != nil {
			return r, fmt.Errorf("%q is not a result: want BenchmarkScaling/mix/number", fields[0])
		}
		if !slices.Contains(r.mixes, name[1]) {
			r.mixes = append(r.mixes, name[1])
		}
		if !slices.Contains(r.sizes, n) {
			r.sizes = append(r.sizes, n)
		}
		for i := 2; i+1 < len(fields); i += 2 {
			if r.ns[key{name[1], n, strings.TrimSuffix(fields[i+1], "-ns")}], err = strconv.ParseFloat(fields[i], 64); err != nil {
				return r, err
			}
		}
	}
	if len(r.mixes) == 0 {
		return r, errors.New("the input has no result of BenchmarkScaling: pipe the output of go test -bench Scaling into it")
	}
	return r, lines.Err()
}

// of returns the nanoseconds of an operation, by number of waiters.
func (r results) of(mix, operation string) (ns []float64) {
	for _, n := range r.sizes {
		ns = append(ns, r.ns[key{mix, n, operation}])
	}
	return ns
}

// table returns a table in Markdown.
func (r results) table() string {
	var b strings.Builder
	b.WriteString("| µs per event |")
	for _, n := range r.sizes {
		fmt.Fprintf(&b, " %.0f waiting |", n)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(r.sizes)) + "\n")
	for _, o := range operations {
		for _, m := range r.mixes {
			fmt.Fprintf(&b, "| %s, %s |", o, m)
			for _, ns := range r.of(m, o) {
				fmt.Fprintf(&b, " %.2f |", ns/1000)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}
