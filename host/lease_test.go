package host_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/host"
	"github.com/apithrottle/throttle/internal/soak"
)

// shared is a policy of three places and estimated tokens.
var shared = throttle.Policy{Name: "shared", Guard: 20 * time.Millisecond, Tiers: []throttle.Tier{
	{Limit: 3, Algorithm: throttle.Concurrency}, {Limit: 1000, Window: 24 * time.Hour, Unit: "tokens", Estimated: true},
}}

// hold holds two places and an estimate until the test ends.
func hold(path string) {
	s, err := host.Open(path)
	must(err)
	l, err := throttle.New(shared, s)
	must(err)
	for range 2 {
		_, err = l.Acquire(context.Background(), throttle.Cost{"requests": 1, "tokens": 100})
		must(err)
	}
	_, _ = os.Stdout.WriteString("held\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// The places of a process that is killed are free when its lease ends, and not before, and its estimates are charged.
func TestKilledProcessHoldsPlaces(t *testing.T) {
	soak.Long(t, "needs the time of a lease")
	t.Parallel()
	path := file(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asHolder+"="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	s, err := host.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttle.New(shared, s)
	if err != nil {
		t.Fatal(err)
	}
	cost := throttle.Cost{"requests": 1, "tokens": 10}
	own, err := l.TryAcquire(t.Context(), cost)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAcquire(t.Context(), cost); err == nil {
		t.Error("got a fourth place of three")
	}
	time.Sleep(5 * time.Second) // it renews its lease
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, out)
	_, _ = cmd.Process.Wait()
	_ = in.Close()
	killed := time.Now()
	more, err := l.Acquire(t.Context(), cost)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(killed); took < 7*time.Second || took > 12*time.Second {
		t.Errorf("got the place of a killed process after %v, want 7.5s to 10s", took)
	}
	for _, p := range []*throttle.Permit{own, more} {
		if err := p.Settle(throttle.Cost{"tokens": 7}); err != nil {
			t.Error(err)
		}
		p.Release()
	}
	time.Sleep(time.Second)
	status, err := l.Status(t.Context())
	if err != nil || status.Tiers[0].Used != 0 || status.Tiers[1].Used != 214 || status.Tiers[1].InFlight != 0 {
		t.Errorf("got %v, %v; want no place used, and 214 tokens, none in flight", status, err)
	}
}
