package pgtest

import (
	"crypto/rand"
	_ "embed"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

//go:embed guard.sh
var guardScript string

// A home has the directories that hold the servers of this process and all that they write. Its guard, a
// process of its own, ends the servers and removes the directories when the test has ended in any way.
type home struct {
	dir, memory string // on a disk; the same, or a directory in memory if there is room
	uid, gid    int    // who runs the servers
	password    string // of the superuser of all servers

	guard    *exec.Cmd
	alive    io.Closer // the guard acts when it is closed
	template func(bin string) (string, error)
}

// theHome opens the home of this process.
var theHome = sync.OnceValues(openHome)

// current is the home of this process, or nil if no test has opened it.
var current atomic.Pointer[home]

func openHome() (*home, error) {
	h := &home{uid: os.Getuid(), gid: os.Getgid(), password: rand.Text()}
	if h.uid == 0 { // the servers refuse to run as root
		if err := h.becomeNobody(); err != nil {
			return nil, err
		}
	}
	dir, err := h.mkdirIn("")
	if err != nil {
		return nil, err
	}
	// The guard compares directories with those that the system reports.
	if h.dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	h.memory = h.dir
	if in := inMemory(); in != "" {
		if h.memory, err = h.mkdirIn(in); err != nil {
			h.memory = h.dir
		}
	}
	h.template = onceFor(h.initdb)
	current.Store(h)
	return h, h.watch()
}

// watch starts the guard.
func (h *home) watch() (err error) {
	h.guard = exec.Command("/bin/sh", "-c", guardScript, "pgtest-guard", h.dir, h.memory)
	h.guard.Dir = "/"
	h.guard.Stderr = os.Stderr
	h.guard.SysProcAttr = attributes(os.Getuid(), os.Getgid())
	if h.alive, err = h.guard.StdinPipe(); err != nil {
		return err
	}
	return h.guard.Start()
}

// becomeNobody lets nobody run the servers: postgres may own the databases of this machine.
func (h *home) becomeNobody() error {
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return err
	}
	if h.uid, err = strconv.Atoi(nobody.Uid); err != nil {
		return err
	}
	h.gid, err = strconv.Atoi(nobody.Gid)
	return err
}

// close ends all servers and removes the directories.
func (h *home) close() error {
	h.alive.Close()
	return h.guard.Wait()
}

// mkdir makes a directory for a server, on a disk or in memory.
func (h *home) mkdir(onDisk bool) (string, error) {
	if onDisk {
		return h.mkdirIn(h.dir)
	}
	return h.mkdirIn(h.memory)
}

func (h *home) mkdirIn(parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, "pgtest")
	if err != nil {
		return "", err
	}
	return dir, os.Chown(dir, h.uid, h.gid)
}

// command returns a command that runs as the user who runs the servers.
func (h *home) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = h.dir // that user may not be allowed to read the test's directory
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") { // libpq and the server would read it
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.SysProcAttr = attributes(h.uid, h.gid)
	return cmd
}

// do runs a command to its end. Its error contains the command's output.
func (h *home) do(name string, args ...string) error {
	output, err := h.command(name, args...).CombinedOutput()
	if err != nil {
		return errors.New(filepath.Base(name) + ": " + err.Error() + "\n" + string(output))
	}
	return nil
}

// initdb makes the data of an empty server and returns its directory.
func (h *home) initdb(bin string) (string, error) {
	dir, err := h.mkdir(false)
	if err != nil {
		return "", err
	}
	password, data := filepath.Join(dir, "password"), filepath.Join(dir, "data")
	if err := os.WriteFile(password, []byte(h.password), 0o600); err != nil {
		return "", err
	}
	if err := os.Chown(password, h.uid, h.gid); err != nil {
		return "", err
	}
	return data, h.do(filepath.Join(bin, "initdb"), "-D", data, "-U", superuser, "--pwfile", password,
		"-A", "scram-sha-256", "-E", "UTF8", "--locale", "C", "--no-sync")
}

// onceFor returns a function that calls f once for each argument.
func onceFor(f func(string) (string, error)) func(string) (string, error) {
	var results sync.Map
	return func(arg string) (string, error) {
		once, _ := results.LoadOrStore(arg, sync.OnceValues(func() (string, error) { return f(arg) }))
		return once.(func() (string, error))()
	}
}
