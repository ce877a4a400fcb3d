package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

const masterName = "throttle"

// A Sentinel is a master and its replica, which takes over when two of three
// sentinels have missed the master for half a second.
type Sentinel struct {
	Master, Replica *Server // as they began
	Sentinels       []*Server

	t testing.TB
}

// StartSentinel starts all five and waits until they know each other, which takes
// two seconds or three.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t, Master: Start(t)}
	s.Replica = Start(t, "--replicaof", host, strconv.Itoa(s.Master.port))
	s.Replica.untilSynced()
	for range 3 {
		// A sentinel keeps what it learns in its file.
		conf := filepath.Join(t.TempDir(), "sentinel.conf")
		if err := os.WriteFile(conf, fmt.Appendf(nil,
			"sentinel monitor %[1]s %[2]s %[3]d 2\n"+
				"sentinel down-after-milliseconds %[1]s 500\n"+
				"sentinel failover-timeout %[1]s 2000\n",
			masterName, host, s.Master.port), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Sentinels = append(s.Sentinels, start(t, nil, conf, "--sentinel"))
	}
	want := fmt.Sprintf("name=%s,status=ok,address=%s,slaves=1,sentinels=3", masterName, s.Master.Addr())
	for _, n := range s.Sentinels {
		until(t, "a sentinel knows everyone", func() bool { return n.Info("sentinel", "master0") == want })
	}
	return s
}

// Client returns a new client that asks the sentinels for the master. It has short
// timeouts and is closed with the test.
func (s *Sentinel) Client() *redis.Client {
	var addrs []string
	for _, n := range s.Sentinels {
		addrs = append(addrs, n.Addr())
	}
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:    masterName,
		SentinelAddrs: addrs,
		DialTimeout:   timeout,
		DialerRetries: 1,
		ReadTimeout:   timeout,
		WriteTimeout:  timeout,
	})
	s.t.Cleanup(func() { client.Close() })
	return client
}

// KillMaster kills the master that s began with, so that the replica takes over.
func (s *Sentinel) KillMaster() { s.Master.Kill() }
