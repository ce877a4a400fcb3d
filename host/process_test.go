package host_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/host"
	"github.com/apithrottle/throttle/internal/leaktest"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// asWorker is the environment variable that makes this test binary a worker: a process that asks
// repeatedly, from several goroutines, and prints when it was admitted.
const asWorker = "THROTTLE_TEST_HOST_WORKER"

// asStopped is the environment variable that makes this test binary a process that stops inside its
// transaction.
const asStopped = "THROTTLE_TEST_HOST_STOPPED"

// asHolder is the environment variable that makes this test binary a process that holds two places.
const asHolder = "THROTTLE_TEST_HOST_HOLDER"

var stopInside func(path string) // nil on systems without job control

func TestMain(m *testing.M) {
	if arguments := os.Getenv(asWorker); arguments != "" {
		path, spec, _ := strings.Cut(arguments, "\n")
		work(path, spec)
	}
	if path := os.Getenv(asStopped); path != "" {
		stopInside(path)
	}
	if path := os.Getenv(asHolder); path != "" {
		hold(path)
	}
	os.Exit(leaktest.Run(m))
}

func work(path, spec string) {
	go func() { // ends when the test ends, in any way
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	p, err := throttle.ParsePolicy("api", spec)
	must(err)
	s, err := host.Open(path)
	must(err)
	l, err := throttle.New(p, s)
	must(err)
	for range 4 {
		go func() {
			for {
				must(l.Wait(context.Background()))
				_, _ = os.Stdout.WriteString(strconv.FormatInt(time.Now().UnixMicro(), 10) + "\n")
			}
		}()
	}
	busy, err := throttle.New(throttle.Policy{Name: "busy", Tiers: []throttle.Tier{throttle.PerSecond(1e9)}}, s)
	must(err)
	for { // this keeps the file locked for writing most of the time
		_ = busy.Allow()
	}
}

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
}

// A fleet is the processes of one host, and the admissions that they have printed.
type fleet struct {
	t          *testing.T
	path, spec string
	readers    sync.WaitGroup

	mu         sync.Mutex // guards admissions
	admissions []int64    // times of admissions, in Unix µs
}

// start starts a worker. kill kills it with SIGKILL.
func (f *fleet) start() (kill func()) {
	soak.Long(f.t, "needs several processes")
	f.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asWorker+"="+f.path+"\n"+f.spec)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	ended := make(chan struct{})
	f.readers.Go(func() {
		defer close(ended)
		f.read(out)
	})
	return func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
		_ = in.Close()
	}
}

func (f *fleet) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		at, err := strconv.ParseInt(lines.Text(), 10, 64)
		f.mu.Lock()
		if err != nil {
			f.t.Error(lines.Text())
		} else {
			f.admissions = append(f.admissions, at)
		}
		f.mu.Unlock()
	}
}

// Processes that write a file all the time, and are killed at random and restarted, together send
// no more than the provider admits.
func TestProcesses(t *testing.T) {
	// The wide tier covers the time of killed processes. The guard is longer than the time between
	// an admission and its timestamp on any machine.
	f := &fleet{t: t, path: file(t), spec: "300/1s + 1000/3s;algo=token_bucket;burst=700 | guard=3s"}
	p, err := throttle.ParsePolicy("api", f.spec)
	if err != nil {
		t.Fatal(err)
	}
	kills, killed := make([]func(), 3), 0
	for i := range kills {
		kills[i] = f.start()
	}
	enough, end := soak.Times(15), time.Now().Add(time.Duration(soak.Times(2))*time.Minute)
	for ; (killed < enough || f.count() < 10*enough) && time.Now().Before(end); killed++ {
		time.Sleep(rand.N(60 * ms))
		i := rand.IntN(len(kills))
		kills[i]()
		kills[i] = f.start()
	}
	for _, kill := range kills {
		kill()
	}
	f.readers.Wait()

	slices.SortFunc(f.admissions, cmp.Compare)
	provider, err := throttletest.NewCounter(p.Tiers...)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, at := range f.admissions {
		if !provider.Arrive(at, nil) {
			refused++
		}
	}
	if refused > 0 {
		t.Errorf("the provider refuses %d of %d requests", refused, len(f.admissions))
	}
	if killed < enough || len(f.admissions) < 10*enough {
		t.Errorf("only %d requests were admitted, and %d processes killed", len(f.admissions), killed)
	}
}

// count returns the number of admissions so far.
func (f *fleet) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.admissions)
}
