package alarm

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// An Alarm is a timer of the kernel. One goroutine sleeps on it, and any may call Stop.
type Alarm struct {
	file *os.File
	conn syscall.RawConn
	// set is a.arm, made once.
	set  func(fd uintptr) (done bool)
	spec [2]syscall.Timespec // the interval, which is zero, and the time until the alarm
	// armed reports that the kernel's timer is set.
	armed bool
}

// alarms are the alarms that are not in use. Those that are nil have no descriptor yet.
var alarms = func() chan *Alarm {
	c := make(chan *Alarm, Most)
	for range Most {
		c <- nil
	}
	return c
}()

// Get returns an Alarm, or nil if there is none. The caller returns it with Put.
func Get() *Alarm {
	select {
	case a := <-alarms:
		if a == nil {
			return newAlarm() // if it fails, there is one less from now on
		}
		return a
	default:
		return nil
	}
}

func newAlarm() *Alarm {
	const monotonic = 1
	fd, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, monotonic, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errno != 0 {
		return nil
	}
	a := &Alarm{file: os.NewFile(fd, "timerfd")}
	var err error
	if a.conn, err = a.file.SyscallConn(); err != nil || a.file.SetReadDeadline(time.Time{}) != nil { // the runtime can't wait for it
		a.file.Close()
		return nil
	}
	a.set = a.arm
	return a
}

// Put returns an Alarm on which no goroutine sleeps.
func (a *Alarm) Put() { alarms <- a }

// Start makes an Alarm ready for Sleep. A Stop from then on counts for that Sleep.
func (a *Alarm) Start() { _ = a.file.SetReadDeadline(time.Time{}) }

// Sleep returns after d, or when Stop has been called. A late Stop for an earlier use of the Alarm
// ends it too.
func (a *Alarm) Sleep(d time.Duration) {
	a.spec[1], a.armed = syscall.NsecToTimespec(max(1, int64(d))), false
	_ = a.conn.Read(a.set)
}

// arm sets the kernel's timer when the runtime is ready to hear of it. It is called again when that
// has fired. System calls that block would wake the runtime's monitor, which takes more time than
// the rest; these don't block.
func (a *Alarm) arm(fd uintptr) (done bool) {
	if a.armed {
		return true
	}
	a.armed = true
	_, _, errno := syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&a.spec)), 0, 0, 0)
	return errno != 0
}

// Stop ends Sleep.
func (a *Alarm) Stop() { _ = a.file.SetReadDeadline(time.Unix(1, 0)) }
