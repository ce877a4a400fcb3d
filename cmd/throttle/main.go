// Throttle keeps to the limits of APIs from the command line: it plans batches, replays logs, lets
// scripts share a quota, and runs a proxy that queues requests instead of refusing them.
//
//	throttle plan '5/s + 10000/h' 10000
//	throttle exec --policy '5/s + 10000/h' --name coinbase -- curl …
//
// See docs/cli.md.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // for machines and images without time zones, which daily limits of some APIs need

	"github.com/apithrottle/throttle/cmd/throttle/internal/cli"
)

func main() { os.Exit(cli.Main(context.Background(), cli.OS(), os.Args[1:])) }
