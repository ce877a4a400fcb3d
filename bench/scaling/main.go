// Scaling turns the output of the queue's benchmark into a table and a plot:
//
//	go test -run - -bench Scaling -benchtime 10000x ../internal/queue | go run ./scaling -svg ../docs/scaling.svg
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/apithrottle/throttle/bench/fidelity/chart"
)

func main() {
	svg := flag.String("svg", "", "write the plot to this `file`. If empty, there is no plot")
	flag.Parse()
	r, err := read(os.Stdin)
	if err == nil && *svg != "" {
		err = os.WriteFile(*svg, []byte(r.plot().SVG()), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scaling:", err)
		os.Exit(1)
	}
	fmt.Print(r.table())
}

func (r results) plot() chart.Plot {
	p := chart.Plot{
		Title: "Time per event while others wait",
		About: "Both scales are logarithmic. Time proportional to the number of waiters would rise at 45 degrees.",
	}
	for _, o := range operations {
		panel := chart.Panel{Name: o}
		for _, m := range r.mixes {
			panel.Lines = append(panel.Lines, chart.Line{Name: m, X: r.sizes, Y: r.of(m, o)})
		}
		p.Panels = append(p.Panels, panel)
	}
	return p
}
