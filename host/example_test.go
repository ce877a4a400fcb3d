package host_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/host"
)

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	// The second process continues with the quota of the first.
	for range 2 {
		quotas, err := host.Open(filepath.Join(dir, "quotas.db"))
		if err != nil {
			log.Fatal(err)
		}
		lim, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(1000)}}, quotas)
		if err != nil {
			log.Fatal(err)
		}
		if err := lim.WaitN(context.Background(), 300); err != nil {
			log.Fatal(err)
		}
		s, err := lim.Status(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(s.Tiers[0].Used, "used of", s.Tiers[0].Limit)
		quotas.Close()
	}
	// Output:
	// 300 used of 1000
	// 600 used of 1000
}
