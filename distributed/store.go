// Package distributed keeps quotas in Redis or Valkey for any number of processes. One call of a
// script decides about all tiers of a policy, on one key.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	lim, err := throttle.New(policy, distributed.New(rdb, distributed.Options{}))
//
// Most programs need only [New], [Store.Flush] at shutdown, and the section Deployment. The file
// docs/fleet.md has what a fleet can expect, and docs/design.md the protocol.
//
// # Reservations
//
// A caller that must wait receives a start time in one round trip and sleeps until then. All
// callers of a limiter share round trips, and processes take equal turns, so a busy or near process
// does not shut out the others.
//
// A reservation is valid for as long as coordination takes: the uncertainty about Redis's clock
// plus the delay with which callers wake up, both measured recently. A request counts for that much
// longer than Policy.Guard, so a Redis that is 80 ms away costs 8 % of a limit per second. With
// NoGuard it counts at its start time alone. As it may be sent later, up to the end of the
// reservation, 50 ms at least, the provider may count more than a limit.
//
// Lost reservations stay charged and are never admitted twice. A process that dies loses the times
// it has reserved: no more than its callers wait for, and at most 256, or 64 for each millisecond
// of a round trip.
//
// # Clocks
//
// Time is Redis's own, corrected such that it never runs backwards for a quota. A step forward, as
// after a failover to a server whose clock is ahead, can't be told from idle time: it admits at
// most one burst or window too much, besides earlier reservations. Redis's clock decides which
// period of a Calendar tier it is. If the clock of a process differs from it by more than a period,
// the calls of the process fail.
//
// A window ends by Redis's clock. If that clock is faster than the provider's, a window ends too
// early by the difference of their rates times the window: 360 ms for an hour at 100 ppm. A
// Policy.Guard that is longer by as much covers it.
//
// # Concurrency and estimates
//
// A process leases its units of a Concurrency tier for Options.Lease, and renews the lease while it
// holds them. The permits of a process that died are free again when its lease ends. A process that
// is stopped for longer than its lease may exceed the limit with requests that are still open when
// it resumes.
//
// No lease ends because Redis is away, for up to twelve leases. After a loss of the state no place
// and no estimate is granted for a third of a lease, in which each process reports what it holds. But
// a process that has just started may be granted some before another one reports the loss.
//
// Estimated units are leased in the same way, and the next call reports their actual cost. The
// estimates of a process that died are charged when its lease ends. After a call without an answer
// the next one reports its costs again, and Redis charges those that it has not seen from this
// process. So a cost counts twice only if the lease or the state was lost in between. If only one of
// two releases estimates a unit, both count the open estimates. Those of a process that ceases to
// estimate the unit become the cost of their requests.
//
// # Pauses and policy changes
//
// A pause stops hundreds of processes within about 50 ms. Each process keeps a pause until its end,
// even if Redis loses it. After a pause one request of the whole fleet goes first, and the others
// follow its response, after half a minute at the latest, or within two seconds if its process
// dies.
//
// A policy can change while it is in use, and processes with different policies, such as two
// releases, work side by side. Each admits no more than its own policy allows beside the charges of
// both, and waits for no limit that only the other has, but for what was reserved before. Concurrency
// tiers, and units that only one of two releases limits, count for that release alone.
//
// If tiers follow the limits that responses name (Follow of a Tier), the processes of a policy take them
// over from each other. A process that follows a limit makes a call at once. A call of another process
// with earlier limits changes nothing, and the process repeats it with the later ones. Processes whose
// callers wait receive a message. Later is what a response to a later request names. After a loss of the
// state, the limits hold again as soon as a process calls that has them. Such a state has a version of its
// own, so a release of this package before Follow refuses it.
//
// # Shutdown
//
// A process that ends calls [Store.Flush] to return reservations and report actual costs. Otherwise
// unused reservations stay charged, and other processes wait for the end of its leases.
//
//	server.Shutdown(ctx) // the callers return, and responses are read
//	store.Flush(ctx)
//	rdb.Close()
//
// # Deployment
//
// The client connects to a single server, to Sentinel or to a Cluster, of Redis 5 or later, or
// Valkey. Open refuses a [redis.Ring]: it moves a key to another server when one is away, and each
// of the two would admit the whole quota. A quota is one key, with two more for leases in the same
// slot, so Cluster needs no hash tags. On a Cluster set ClusterOptions.ClusterStateReloadInterval
// to a second or two: by default the client looks for a new master once a minute.
//
// The server needs maxmemory-policy noeviction, best on an instance of its own. A quota whose key
// is evicted starts anew, which may admit as much as a step of the clock; Options.OnLost reports
// it. Replication is asynchronous, so a failover may forget the last admissions and admit them once
// more.
//
// A database whose regions all accept writes (Redis Active-Active, CRDB) resolves strings by
// the last write, so each region would admit the whole quota: connect all processes to one region,
// or divide the quota between regions. Options.Log warns of one whose server has a module with a
// name that begins with crdt; Redis documents no way to tell, so no warning proves nothing.
//
// The value of a key has a version. A release that finds a newer version, or another value, does not
// touch it.
//
// If the server has functions (Redis 7, Valkey), the script is loaded as one, because a call then
// costs the server less than half. Its name contains a hash of the script, so releases don't
// disturb each other. It stays when a release is gone: FUNCTION LIST LIBRARYNAME throttle_* lists
// them, FUNCTION DELETE deletes one. Other servers run the same source with EVALSHA.
//
// A user with restricted rights needs the keys and channels of the prefix and these commands:
//
//	ACL SETUSER limiter on >secret ~throttle:* resetchannels &throttle:* +evalsha +eval
//	    +script|load +time +get +set +getrange +setrange +pexpire +publish +subscribe
//	    +unsubscribe +ping
//
// For Concurrency or Estimated tiers add +hget +hmget +hset +hdel +zadd +zrem
// +zrangebyscore +del; for functions +fcall +function|load; on a Cluster +cluster|slots +command
// +asking, and +readonly if the client may read from replicas; for the checks of the server by
// Options.Log +info. Redis 6.0 has no rights to channels: leave out
// resetchannels and &throttle:* there.
package distributed

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/lineage"
	"github.com/apithrottle/throttle/internal/reports"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// Options are the settings of a Store.
type Options struct {
	// Prefix begins the name of every key and channel. The rest of a name is a hash of the policy's
	// name and the Group's key, never the key itself. A prefix with a {tag} keeps all quotas in one
	// slot of a Cluster, and nested limits are then charged in one call. If zero, "throttle:".
	Prefix string

	// Timeout is the longest time that a round trip may take before the Store treats Redis as away.
	// It begins when the trip is sent. The first trip to a server that does not have the script yet
	// is two commands with functions, and four or five without, besides what the client sends on a
	// new connection: Timeout must be longer than all of them take. If zero, 1 s.
	Timeout time.Duration

	// Horizon is how long the turn of a process is: it reserves the times within a Horizon behind the
	// first one, at least one and at most 4,096. Of times that are one instant, it reserves as many
	// as the tier that decides admits in a Horizon. At 50/s, 500 ms are 25 times; at 1/s, one. A turn of
	// requests whose costs differ is a third as long. If zero, 500 ms.
	Horizon time.Duration

	// Lease is how long a process holds permits of a Concurrency tier, and estimates, after its last
	// call. It should be the same in all processes. If zero, 10 s.
	Lease time.Duration

	// Fallback is what limiters do while Redis is away. If zero, callers wait for Redis until their
	// context ends, and then receive ErrUnavailable.
	Fallback Fallback

	// OnLost is called with the name of a key in Redis whose state was lost: evicted, flushed, or
	// forgotten in a failover or restart. The quota has then started anew. It is also called if the
	// state is older than the one that this process has seen, as after a failover to a replica that
	// had not received all writes. OnLost must not block. If nil, losses are only logged.
	OnLost func(key string)

	// Log receives warnings for an operator: Redis is away or answers too late, the state of a
	// quota was lost or is an older one, Redis's clock stepped, its maxmemory-policy may evict
	// quotas, or several regions may accept writes. The store asks for the last two once, if the
	// user may run INFO. It logs each kind of warning at most once a minute. If nil, nothing is logged.
	Log *slog.Logger
}

// A Fallback lets each process go on by itself while Redis is away, with its part of every tier:
// Limit ÷ Workers. Where that is less than one, the process has one unit in a window that is longer
// by as much; the window begins at random, unless the process has just sent something. Requests
// that were admitted in a fallback are charged when Redis is back.
//
// Processes in a fallback don't count each other's requests, so more than the limit may pass. When
// Redis goes away and when it comes back, the excess is one capacity at most. While only some
// processes reach Redis, these use the whole limit and the others their parts besides: at most
// twice the limit in each window. Where there are more processes than the limit has units, the
// limit is kept on average, and a window may contain some more: with 50 workers on 5/s, up to about
// 15.
type Fallback struct {
	// Workers is the largest number of processes that share the quota. If zero, callers wait for
	// Redis.
	Workers int
}

const (
	defaultPrefix  = "throttle:"
	defaultTimeout = time.Second
	defaultHorizon = 500 * time.Millisecond
	defaultLease   = 10 * time.Second
)

// A Store keeps quotas in Redis. It is safe for concurrent use. Its limiters block for a round trip
// and for as long as their callers have to wait. While Redis is away, callers wait until their
// context ends and then receive ErrUnavailable, unless Options.Fallback is set. A problem that only
// an operator can solve is another error at once, which names the key and the fix.
//
// A Store starts no goroutine before the first request or pause, and needs no closing, but see
// Flush. The caller closes the client.
type Store struct {
	rdb      redis.UniversalClient
	options  Options
	nodes    nodes
	clock    *timing.Clock // of the server; nil for a Cluster, which has several
	listener listener
	lines    lineage.Lines
	probes   sync.Map // of *store.Reservation: the probes that wait for their response
	debtors  sync.Map // of *quota: those with requests that were sent and not charged in Redis
	lessees  sync.Map // of *leases: those with units held or amounts to report
	reports  reports.Reports
	journal  *journal
	peeker   peeker
	apart    atomic.Bool // the server is a proxy of several, which runs no call of several keys
}

var _ store.Store = (*Store)(nil)

// New returns a Store on a client. It sends nothing. Open reports errors of the options and the
// client, and the first request reports errors of the server.
func New(rdb redis.UniversalClient, o Options) *Store {
	o.Prefix, o.Timeout = cmp.Or(o.Prefix, defaultPrefix), cmp.Or(o.Timeout, defaultTimeout)
	o.Horizon, o.Lease = cmp.Or(o.Horizon, defaultHorizon), cmp.Or(o.Lease, defaultLease)
	j := &journal{to: o.Log, rdb: rdb}
	s := &Store{rdb: rdb, options: o, nodes: newNodes(rdb, o.Timeout, j), peeker: peeker{rdb: rdb}, journal: j}
	if len(s.nodes) == 1 {
		s.clock = new(timing.Clock)
	}
	s.listener.store = s
	return s
}

// Open returns the quota of a key. It sends nothing and does not block.
func (s *Store) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	if key == "" {
		return nil, errors.New("distributed: the key is empty: give the policy a Name, by which the quota is kept")
	}
	line, version := s.lines.Open(key)
	if newest, n := line.Newest(); newest != nil && newest.Base().Equal(plan.Base()) { // it may have taken over limits
		plan, version = newest, n
	}
	q := newQuota(s, s.name(key), plan, line, version, report)
	q.leases = newLeases(q)
	return q, nil
}

func (s *Store) validate() error {
	var errs []error
	if isNil(s.rdb) {
		errs = append(errs, errors.New("distributed: the client is nil: pass New a redis.UniversalClient"))
	}
	if _, ok := s.rdb.(*redis.Ring); ok {
		errs = append(errs, errors.New("distributed: the client is a redis.Ring, which moves keys to another server when one is away, and each "+
			"server would admit the whole quota: pass a Client, a failover client or a ClusterClient"))
	}
	o := s.options
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"Timeout", o.Timeout}, {"Horizon", o.Horizon}, {"Lease", o.Lease}} {
		if f.value < time.Millisecond || f.value > time.Hour {
			errs = append(errs, fieldError(f.name, f.value, "from 1ms to 1h, or zero for the default"))
		}
	}
	if strings.ContainsAny(o.Prefix, "{}") && slot(o.Prefix+"a") != slot(o.Prefix+"b") { // a tag would make them equal
		errs = append(errs, fieldError("Prefix", strconv.Quote(o.Prefix), `without braces, or with a tag, as in "{team}:"`))
	}
	if o.Fallback.Workers < 0 {
		errs = append(errs, fieldError("Fallback.Workers", o.Fallback.Workers, "the number of processes, or zero to wait for Redis"))
	}
	return errors.Join(errs...)
}

// name returns the name of a key in Redis. It contains a hash, and a list of the names does not
// reveal the keys.
//
// The key of a Group is the policy's name, a zero byte and the Group's own key. If that is the whole
// key of an outer quota, a byte of 1 and more, as package providers makes it, the name has the name of
// the outer quota as its tag, so that both lie in one slot.
func (s *Store) name(key string) string {
	sum := sha256.Sum256([]byte(key))
	name := base64.RawURLEncoding.EncodeToString(sum[:16])
	_, own, _ := strings.Cut(key, "\x00")
	if outer, _, nested := strings.Cut(own, "\x01"); nested && !strings.Contains(s.options.Prefix, "{") {
		name = "{" + s.name(outer) + "}:" + name
	}
	return s.options.Prefix + name
}

// leaseKeys returns the names of the keys that hold the leases of a quota. They begin with the
// prefix and lie in the slot of the quota's key.
func (s *Store) leaseKeys(key string) []string {
	if !strings.Contains(key, "{") { // else it has a tag
		key = s.options.Prefix + "{" + key + "}"
	}
	return []string{key + ":leases", key + ":line"}
}
