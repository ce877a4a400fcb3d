//go:build linux || darwin

package host_test

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/apithrottle/throttle"
)

// A full disk is simulated by a limit on file size. A request that can't be recorded is not
// admitted, and all recorded charges remain.
func TestFullDisk(t *testing.T) {
	const asChild = "THROTTLE_TEST_FULL_DISK"
	if os.Getenv(asChild) == "" { // run in another process, since the limit applies to a whole process
		child := exec.Command(os.Args[0], "-test.run=^TestFullDisk$")
		child.Env = append(os.Environ(), asChild+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	path := file(t)
	s := openFile(t, path)
	quota := func(key int) *throttle.Limiter {
		p := exact(throttle.PerHour(fresh))
		p.Name = strconv.Itoa(key)
		return limiter(t, p, s)
	}
	admitted := map[int]int{0: allowed(quota(0), 5)}
	onFullDisk(t, path, func() {
		for key := range 1000 {
			if err := quota(key).Wait(background); err != nil {
				t.Logf("after %d quotas: %v", len(admitted), err)
				return
			}
			admitted[key]++
		}
		t.Error("the disk is not full")
	})
	for key, n := range admitted {
		if more := allowed(quota(key), 20); n+more != fresh {
			t.Errorf("quota %d: %d more requests are admitted, want %d", key, more, fresh-n)
		}
	}
}

// onFullDisk calls f while no file can grow beyond the size of the one at path.
func onFullDisk(t *testing.T, path string, f func()) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Skip(err)
	}
	full := before
	full.Cur = uint64(info.Size())
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full); err != nil {
		t.Skip(err)
	}
	f()
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
}
