package redistest

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/internal/soak"
)

// A Cluster is a Redis Cluster with its slots evenly distributed over its masters.
type Cluster struct {
	// Nodes are the original masters, followed by the replicas.
	Nodes []*Server

	t   testing.TB
	ids map[*Server]string
}

// StartCluster starts a cluster with masters masters and replicas replicas for each. With three
// masters and a replica each, a lost master is replaced within seconds. Without replicas, a master that
// a busy machine stops for seconds is not taken for lost.
func StartCluster(t testing.TB, masters, replicas int) *Cluster {
	t.Helper()
	soak.Long(t, "needs several servers")
	const slots = 16384
	c := &Cluster{t: t, ids: make(map[*Server]string)}
	lost := 30 * time.Second
	if replicas > 0 {
		lost = time.Second
	}
	for i := range masters * (1 + replicas) {
		n := Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", strconv.FormatInt(lost.Milliseconds(), 10))
		c.Nodes = append(c.Nodes, n)
		c.ids[n] = n.do("CLUSTER", "MYID").(string)
		// Otherwise the nodes would need some time to agree on distinct epochs.
		n.do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i < masters {
			add := []any{"CLUSTER", "ADDSLOTS"}
			for slot := slots * i / masters; slot < slots*(i+1)/masters; slot++ {
				add = append(add, slot)
			}
			n.do(add...)
		}
	}
	c.introduce()
	for i, n := range c.Nodes[masters:] {
		n.do("CLUSTER", "REPLICATE", c.ids[c.Nodes[i%masters]])
	}
	c.untilAll("cluster_state", "ok")
	for _, n := range c.Nodes[masters:] {
		n.untilSynced()
	}
	return c
}

// introduce lets all nodes meet. On a busy machine an introduction may time out, so they meet again
// after a while.
func (c *Cluster) introduce() {
	c.t.Helper()
	var met time.Time
	for _, n := range c.Nodes {
		until(c.t, n.Addr()+" knows all nodes", func() bool {
			if time.Since(met) > 5*time.Second {
				met = time.Now()
				for _, other := range c.Nodes[1:] {
					c.Nodes[0].do("CLUSTER", "MEET", host, other.port)
				}
			}
			return field(n.do("CLUSTER", "INFO").(string), "cluster_known_nodes") == strconv.Itoa(len(c.Nodes))
		})
	}
}

// untilAll waits until a field of CLUSTER INFO has the value at all nodes.
func (c *Cluster) untilAll(name, value string) {
	c.t.Helper()
	for _, n := range c.Nodes {
		until(c.t, n.Addr()+" has "+name+" "+value, func() bool {
			return field(n.do("CLUSTER", "INFO").(string), name) == value
		})
	}
}

// untilSynced waits until a replica has all data of its master.
func (s *Server) untilSynced() {
	s.t.Helper()
	until(s.t, s.Addr()+" is in sync with its master", func() bool {
		return s.Info("replication", "master_link_status") == "up"
	})
}

// Client returns a new client of the cluster with short timeouts, which is closed with the test.
// The client has the addresses of all nodes and looks for new masters every second.
func (c *Cluster) Client() *redis.ClusterClient { return c.client(timeout) }

// PatientClient is like Client, but the client waits for each reply without a timeout.
func (c *Cluster) PatientClient() *redis.ClusterClient { return c.client(-1) }

func (c *Cluster) client(timeout time.Duration) *redis.ClusterClient {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr())
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      addrs,
		ClusterStateReloadInterval: time.Second,
		DialTimeout:                dialTimeout,
		DialerRetries:              1,
		ReadTimeout:                timeout,
		WriteTimeout:               timeout,
	})
	c.t.Cleanup(func() { client.Close() })
	return client
}

// Master returns the master of a key's slot, according to most of the nodes that are alive.
func (c *Cluster) Master(key string) *Server {
	c.t.Helper()
	slot := c.slot(key)
	votes := make(map[*Server]int)
	var master *Server
	for _, asked := range c.Nodes {
		for _, n := range c.Nodes {
			if asked.follows(n, slot) {
				if votes[n]++; votes[n] > votes[master] {
					master = n
				}
			}
		}
	}
	if master == nil {
		c.t.Fatalf("no node has a master of %q", key)
	}
	return master
}

// follows reports whether s is alive and has n as the master of a slot.
func (s *Server) follows(n *Server, slot int) bool {
	//lint:ignore SA1019 Servers before Redis 7 have no CLUSTER SHARDS.
	slots, _ := s.admin.ClusterSlots(context.Background()).Result()
	return slices.ContainsFunc(slots, func(r redis.ClusterSlot) bool {
		return r.Start <= slot && slot <= r.End && len(r.Nodes) > 0 && r.Nodes[0].Addr == n.Addr() // the master comes first
	})
}

func (c *Cluster) slot(key string) int {
	c.t.Helper()
	for _, n := range c.Nodes {
		if slot, err := n.admin.ClusterKeySlot(context.Background(), key).Result(); err == nil {
			return int(slot)
		}
	}
	c.t.Fatal("no node is alive")
	return 0
}

// MoveSlot moves a key's slot with all its keys to another master while clients continue. If during
// is not nil, MoveSlot calls it twice during the move: before and after it moves the keys.
func (c *Cluster) MoveSlot(key string, to *Server, during func(moved bool)) {
	c.t.Helper()
	if during == nil {
		during = func(bool) {}
	}
	from, slot := c.Master(key), c.slot(key)
	to.do("CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[from])
	from.do("CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[to])
	during(false)
	for {
		keys := from.do("CLUSTER", "GETKEYSINSLOT", slot, 100).([]any)
		if len(keys) == 0 {
			break
		}
		from.do(append([]any{"MIGRATE", host, to.port, "", 0, timeout.Milliseconds(), "KEYS"}, keys...)...)
	}
	during(true)
	to.do("CLUSTER", "SETSLOT", slot, "NODE", c.ids[to])
	from.do("CLUSTER", "SETSLOT", slot, "NODE", c.ids[to])
	for _, n := range c.Nodes {
		until(c.t, n.Addr()+" has the new master of the slot", func() bool { return n.follows(to, slot) })
	}
}
