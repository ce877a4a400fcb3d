// Table runs the benchmarks of the current directory and prints their results as tables in
// Markdown. Package table describes the tables.
package main

import (
	"fmt"
	"os"

	"github.com/apithrottle/throttle/bench/table"
)

func main() {
	if err := table.Run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}
