package redistest

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Cluster is a Redis Cluster whose slots are spread evenly over its masters.
type Cluster struct {
	Nodes []*Server // the masters that it began with, and then the replicas

	t   testing.TB
	ids map[*Server]string
}

// StartCluster starts a cluster of so many masters, each with so many replicas. With
// three masters and a replica each, a master that is lost is replaced in seconds.
func StartCluster(t testing.TB, masters, replicas int) *Cluster {
	t.Helper()
	const slots = 16384
	c := &Cluster{t: t, ids: make(map[*Server]string)}
	for i := range masters * (1 + replicas) {
		n := Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
		c.Nodes = append(c.Nodes, n)
		c.ids[n] = n.do("CLUSTER", "MYID").(string)
		// Else the nodes would need a while to agree on an order of theirs.
		n.do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i < masters {
			add := []any{"CLUSTER", "ADDSLOTS"}
			for slot := slots * i / masters; slot < slots*(i+1)/masters; slot++ {
				add = append(add, slot)
			}
			n.do(add...)
		}
	}
	for _, n := range c.Nodes[1:] {
		c.Nodes[0].do("CLUSTER", "MEET", host, n.port)
	}
	c.untilAll("cluster_known_nodes", strconv.Itoa(len(c.Nodes)))
	for i, n := range c.Nodes[masters:] {
		n.do("CLUSTER", "REPLICATE", c.ids[c.Nodes[i%masters]])
	}
	c.untilAll("cluster_state", "ok")
	for _, n := range c.Nodes[masters:] {
		n.untilSynced()
	}
	return c
}

// untilAll waits until CLUSTER INFO says the same at all nodes.
func (c *Cluster) untilAll(name, value string) {
	c.t.Helper()
	for _, n := range c.Nodes {
		until(c.t, n.Addr()+" has "+name+" "+value, func() bool {
			return field(n.do("CLUSTER", "INFO").(string), name) == value
		})
	}
}

// untilSynced waits until a replica has all that its master has.
func (s *Server) untilSynced() {
	s.t.Helper()
	until(s.t, s.Addr()+" is in step with its master", func() bool {
		return s.Info("replication", "master_link_status") == "up"
	})
}

// Client returns a new client of the cluster with short timeouts, which is closed
// with the test. It knows all nodes and asks every second who is master.
func (c *Cluster) Client() *redis.ClusterClient {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr())
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      addrs,
		ClusterStateReloadInterval: time.Second,
		DialTimeout:                timeout,
		DialerRetries:              1,
		ReadTimeout:                timeout,
		WriteTimeout:               timeout,
	})
	c.t.Cleanup(func() { client.Close() })
	return client
}

// Master returns the node that is master of the slot of a key, as most of the nodes
// see it that are alive.
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
		c.t.Fatalf("no node knows a master of %q", key)
	}
	return master
}

// follows reports whether s, if it is alive, takes n for the master of a slot.
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

// MoveSlot moves the slot of a key with all its keys to another master, while
// clients go on. It calls during, if not nil, twice while the slot is on the move:
// before its keys are moved and after.
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
		until(c.t, n.Addr()+" knows that the slot has moved", func() bool { return n.follows(to, slot) })
	}
}
