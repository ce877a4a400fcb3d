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

// On a full disk, here one that lets files grow no longer, who can't be written down
// is not admitted, and nothing is lost.
func TestFullDisk(t *testing.T) {
	const asChild = "THROTTLE_TEST_FULL_DISK"
	if os.Getenv(asChild) == "" { // another process, which alone has the disk full
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
			t.Errorf("quota %d: %d go, want %d", key, more, fresh-n)
		}
	}
}

// onFullDisk does what while no file can grow beyond this one.
func onFullDisk(t *testing.T, path string, what func()) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Skip(err)
	}
	full := was
	full.Cur = uint64(info.Size())
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full); err != nil {
		t.Skip(err)
	}
	what()
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
}
