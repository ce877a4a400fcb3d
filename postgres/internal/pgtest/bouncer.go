package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/apithrottle/throttle/internal/servertest"
)

const bouncerConfig = `
[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = %s
listen_port = %s
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
admin_users = %s
pool_mode = transaction
`

// PgBouncer starts a PgBouncer in transaction mode in front of the database's server and returns the
// database there. Each setting is a line of the section pgbouncer of its configuration, such as
// "default_pool_size = 4". If PgBouncer is not installed, the test is skipped, or fails if
// THROTTLE_REQUIRE_POSTGRES is 1.
func (d *Database) PgBouncer(settings ...string) *Database {
	d.t.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		bin, err = exec.LookPath("/usr/sbin/pgbouncer") // which is on the PATH of root only
	}
	if err != nil {
		servertest.SkipOrFail(d.t, require, "no PgBouncer: "+err.Error())
	}
	h := theHomeOf(d.t)
	dir, err := h.mkdir(false)
	if err != nil {
		d.t.Fatal(err)
	}
	b := *d
	for range 5 { // another process may take the free port
		b.addr = freeAddr(d.t)
		b.restart = func() bool { return b.bounce(h, bin, dir, d.Port(), settings) }
		if b.restart() {
			return &b
		}
	}
	log, _ := os.ReadFile(filepath.Join(dir, "log"))
	d.t.Fatalf("PgBouncer ended at once:\n%s", log)
	return nil
}

// bounce runs PgBouncer at the address of d and waits until it answers. If it ends instead, bounce
// returns false.
func (d *Database) bounce(h *home, bin, dir, to string, settings []string) bool {
	d.t.Helper()
	users := filepath.Join(dir, "users.txt")
	config := fmt.Sprintf(bouncerConfig, host, to, host, d.Port(), users, d.user) + strings.Join(settings, "\n") + "\n"
	for name, content := range map[string]string{
		"users.txt":     fmt.Sprintf("%q %q\n", d.user, d.password),
		"pgbouncer.ini": config,
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			d.t.Fatal(err)
		}
		if err := os.Chown(file, h.uid, h.gid); err != nil {
			d.t.Fatal(err)
		}
	}
	cmd := h.command(bin, filepath.Join(dir, "pgbouncer.ini"))
	p := runProcess(d.t, cmd, filepath.Join(dir, "log"))
	d.bouncer = p
	d.t.Cleanup(func() {
		_ = p.Kill() // it may have ended
		<-p.exited
	})
	return p.answers(d.t, func() bool {
		// Another one that took the port would not know the password.
		_, err := d.try("SELECT 1", timeout)
		return err == nil
	})
}

// RestartPgBouncer kills the PgBouncer of a database that PgBouncer has returned, and starts it again on the
// same port.
func (d *Database) RestartPgBouncer() {
	d.t.Helper()
	_ = d.bouncer.Kill()
	<-d.bouncer.exited
	if !d.restart() {
		d.t.Fatal("can't restart PgBouncer")
	}
}
