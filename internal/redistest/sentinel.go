package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/internal/soak"
)

const masterName = "throttle"

// A Sentinel is a master and its replica. The replica takes over when two of three sentinels have
// not reached the master for half a second.
type Sentinel struct {
	Master, Replica *Server // the original roles
	Sentinels       []*Server

	t testing.TB
}

// StartSentinel starts all five processes and waits until the sentinels have found each other,
// which takes two or three seconds.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	soak.Long(t, "needs several servers")
	s := &Sentinel{t: t, Master: Start(t)}
	s.Replica = Start(t, "--replicaof", host, strconv.Itoa(s.Master.port))
	s.Replica.untilSynced()
	for range 3 {
		// A sentinel writes its state to its configuration file.
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
		until(t, "a sentinel has found the others", func() bool { return n.Info("sentinel", "master0") == want })
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
		DialTimeout:   dialTimeout,
		DialerRetries: 1,
		ReadTimeout:   timeout,
		WriteTimeout:  timeout,
	})
	s.t.Cleanup(func() { client.Close() })
	return client
}

// KillMaster kills the original master. The replica then takes over.
func (s *Sentinel) KillMaster() { s.Master.Kill() }
