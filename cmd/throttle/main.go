// Throttle keeps to the limits of APIs from the command line: it plans batches, replays logs, lets
// scripts share a quota, and runs a proxy that queues requests instead of refusing them.
//
//	go run github.com/apithrottle/throttle/cmd/throttle@latest plan '5/s + 10000/h' 10000
//
// See docs/cli.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // for machines and images without time zones, which daily limits of some APIs need

	"github.com/apithrottle/throttle/cmd/throttle/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(cli.Main(ctx, cli.OS(), os.Args[1:]))
}
