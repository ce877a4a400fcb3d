// Package distributed keeps quotas in Redis or Valkey, so that any number of
// processes share one: all tiers of a policy are one decision, made by one script
// on one key.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	lim, err := throttle.New(policy, distributed.New(rdb, distributed.Options{}))
//
// # Reservations
//
// A caller that has to wait is told in one round trip when it may go, and sleeps until
// then. All callers of a limiter share round trips: 64 to a call of the script, and at
// least four calls to a trip. A process asks again shortly before the last of its times.
// It receives one time, however far ahead, and at most as many as the fastest tier admits
// in Options.Horizon: equal numbers for each in turn, so that a busy or near process does
// not shut out another.
//
// A reserved time is good for as long as coordination takes: what is unknown of Redis's
// clock and how late a caller wakes up, both as measured of late. A time that is reserved
// for now is good for as long as the reply takes, too. The request counts for so much
// longer than Policy.Guard. So a late answer does not void the times to come that it
// names, and a Redis that is 80 ms away costs 8 % of a limit per second. A time that
// expires before its caller runs is returned, and the caller is first again. If several answers in
// a row take longer than a second, or than half of the shortest window if that is more, callers
// receive an error.
//
// A Store has at most 16 trips in flight to a server. Keys take turns, and calls of
// several keys travel together when more of them wait. Options.Timeout begins when a trip
// does. After an answer of which nothing can be used, a process asks for one request,
// later each time.
//
// A Batch request that has waited for less than Policy.Aging is booked some milliseconds
// ahead at most, so that it holds nobody up. Where it can't go, its process is told when to ask
// again: the processes that have such requests take turns, at the pace of the slowest tier. So a
// request costs two or three calls, however many processes wait. A turn that nobody takes goes to
// those of other classes, or is lost.
//
// What is lost is charged, never admitted twice: a process that dies loses the times it
// has reserved, no more than its callers and at most 256, or 64 for each millisecond of a
// round trip. So does a process whose calls got no answer, for each such trip.
//
// # Clocks
//
// Time is Redis's own, made such that it never runs backwards for a quota. When it
// steps forward, as after a failover to a server whose clock is ahead, at most one
// burst or window too much passes, besides what was booked before, as nobody can
// tell the step from idleness.
//
// Scripts know no time zones: what the days and months of a Calendar tier are is told with
// each call. The clock of a process may be up to a period away from Redis's; farther,
// its calls are errors. Which period it is, Redis's clock decides.
//
// # Concurrency and estimates
//
// What a process holds of a Concurrency tier is leased to it for Options.Lease and
// renewed while it is held. The permits of a process that died come back when its
// lease ends; a process that is stopped for longer than that may exceed the limit
// with what it still has open when it wakes.
//
// Where a tier is full, processes stand in a line, each for its first caller, behind those that
// wait longer. A place that comes free is kept for the first of the line for a second, and that
// process alone receives a message. So a request costs two calls, one that asks and one that
// tells its end, and a process that stands in the line one in some four seconds besides, by which
// the others know that it lives. What a call costs does not grow with the number of processes.
//
// What is Estimated is leased alike, and what it really cost is told with the next call or
// with one of its own. What a process that died had estimated is charged when its lease
// ends. A call whose answer was lost is taken for one that was not made, so that a cost may
// count twice, but is never lost. Change a tier's Estimated while no process runs: those
// that have the one policy don't count what is open under the other.
//
// # Responses
//
// What responses say is left is told to Redis at most every 100 ms for each limiter, or at
// once where nothing is. After a pause one request of the whole fleet goes first, and the
// others follow its response. Its process tells every second that it waits for that, for half
// a minute at most; if the process dies, the next request goes within two seconds.
//
// A process that has just begun to wait subscribes aside: until then, for up to four trips to
// Redis, it admits what was answered before a pause.
//
// # Pauses
//
// What ends a sleep early is published on a channel that has the name of the key: a pause, its
// early end, a permit that is free. A message is only a reason to ask, because anybody who may
// publish can send one: nothing that it says is believed, not even for the time until the
// answer is in. A process asks once, at a random instant within 20 ms of the message, so that
// a pause stops a fleet of hundreds within some 50 ms; of a thousand processes each takes
// Redis some 20 µs more. What was admitted meanwhile is still sent. Messages that bring no
// news are asked about less and less, once a second or so in the end. Where messages do not
// come through, the next reply tells.
//
// A pause or ban goes on, until its end, in each process that knows it, also when Redis has
// forgotten it or was away when it began. That process tells Redis again, and the others learn
// of it there. While it knows a pause of some seconds it stays subscribed, and so finds out
// when its connection breaks that the server came back without it. A Resume ends the pause in
// all of them.
//
// # Changes of a policy
//
// A policy can change while it is in use. What is charged stays charged, and what this
// process holds is held under the new policy too. Other processes keep theirs until they
// change it: the state is converted with each call under another policy, as while a new
// release replaces an old one. What the policy of the caller has no tier for is kept beside it,
// and what the caller is granted is charged there, too. So of two releases side by side each
// admits what its own policy has room for, behind what both have admitted, and neither less nor
// more. Up to eight tiers are kept so, each until no release that has it has called for a window,
// an hour at least and two days at most. A tier that is not known, of another algorithm or window,
// starts with the largest use of the tiers of its unit. Concurrency tiers, and the costs of units
// that one of the two releases does not limit, are known to the other release only.
//
// # Shutdown
//
// A process that ends tells Redis with [Store.Flush] what it gives back and what requests
// really cost. Without it nothing is admitted twice, but times that were reserved stay charged,
// and the others wait for the end of its leases.
//
//	server.Shutdown(ctx) // the callers return, and responses are read
//	store.Flush(ctx)
//	rdb.Close()
//
// # Deployment
//
// The client is one of a single server, of Sentinel or of a Cluster; Redis 5 or later, or
// Valkey. A [redis.Ring] is refused: it moves a key to another server when one is away, and
// each of the two admits the whole quota. A quota is one key, so Cluster needs no hash tags. What
// is leased of it are two more, a hash and a sorted set in the slot of that key: those of
// throttle:q are throttle:{throttle:q}:leases and throttle:{throttle:q}:line. A process that stands
// in a line listens to a channel that begins with the name of the first. On a Cluster set
// ClusterOptions.ClusterStateReloadInterval to a second or two, because by default
// the client looks for a new master once a minute. The server needs maxmemory-policy
// noeviction, best on an instance of its own: a key that is evicted is a quota that
// starts anew, so that as much may pass as after a step of the clock; Options.OnLost
// reports it. Replication is asynchronous: a failover
// may forget the last admissions, and then admits them once more.
//
// Where the server has functions (Redis 7, Valkey), the script is loaded as one of them,
// because a call then costs it less than half. Its name has a hash of the script, so releases
// don't disturb each other, and stays when a release is gone: FUNCTION LIST LIBRARYNAME
// throttle_* lists them, FUNCTION DELETE deletes one. Older servers, and those that refuse
// functions, run the same source with EVALSHA; they are asked again once a minute.
//
// A user with restricted rights needs the keys and channels of the prefix and the
// commands that the script runs for it:
//
//	ACL SETUSER limiter on >secret ~throttle:* resetchannels &throttle:* +evalsha +eval
//	    +script|load +time +get +set +getrange +setrange +pexpire +publish +subscribe
//	    +unsubscribe +ping
//
// Where a policy has Concurrency or Estimated tiers, add +hget +hmget +hgetall +hset +hdel +zadd
// +zrem +zrangebyscore +del.
//
// Redis 6.0 has no rights to channels: leave out resetchannels and what follows it there.
// Options.Log asks for the maxmemory-policy where +info is allowed, too.
//
// On a Cluster add +cluster|slots +command +asking, and +readonly if the client may read
// from replicas. For functions, where there are some, add +fcall +function|load.
//
// The value of a key has a version. A release that finds a newer one, or something
// else, refuses to touch it.
package distributed

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/lineage"
	"github.com/apithrottle/throttle/store"
)

// Options are the settings of a Store.
type Options struct {
	// Prefix begins the name of every key and channel. What follows is a hash of the
	// policy's name and the Group's key, never the key itself. With a {tag}, a Cluster keeps all
	// quotas in one slot, and charges limits inside limits in one call. If zero, "throttle:".
	Prefix string

	// Timeout is the longest that a call may take before its callers are told that
	// Redis is away. If zero, a second.
	Timeout time.Duration

	// Horizon is for how long, at the pace of the fastest tier, a process books ahead
	// at once: 500 ms of 50/s are 25 times, of 1/s one, and never more than 4,096. If
	// zero, 500 ms.
	Horizon time.Duration

	// Lease is how long a process holds permits of a Concurrency tier after it was
	// last heard of. If zero, 10 s.
	Lease time.Duration

	// Outage is what limiters do while Redis is away. If zero, callers wait for it
	// until their context ends, and then get ErrUnavailable.
	Outage Outage

	// OnLost is called when a quota's state was found to be lost: evicted, flushed,
	// or forgotten in a failover or restart, so that the quota has started anew; or to be
	// older than what this process has seen, as after a failover to a replica that had not
	// received all. key is its name in Redis. It must not block. If nil, nobody is told.
	OnLost func(key string)

	// Log receives what an operator should know of: Redis is away or answers too late, the
	// state of a quota was lost or is an older one, the clock of Redis stepped, or its
	// maxmemory-policy is one that evicts quotas, which is asked once if the user may run
	// INFO. It reports each of these at most once a minute. If nil, nothing is reported.
	Log *slog.Logger
}

// An Outage lets each process go on by itself while Redis is away, with its share
// of every tier: Limit ÷ Workers, or where that is less than one, one in a window
// that is longer by as much and begins at random, unless the process has just sent something.
// What was admitted so is charged when Redis is back.
//
// The shares know nothing of each other, so that more than the limit may pass. When an outage
// begins and when it ends, it is one capacity at most. Where some processes reach Redis and others
// don't, those take the whole limit and these their shares besides: twice the limit at most, in each
// window. Where there are more processes than the limit has units, the limit is kept on average, and a
// window has some more now and then: with 50 workers on 5/s, up to about 15.
type Outage struct {
	Workers int // how many processes share the quota at most. If zero, callers wait
}

const (
	defaultPrefix  = "throttle:"
	defaultTimeout = time.Second
	defaultHorizon = 500 * time.Millisecond
	defaultLease   = 10 * time.Second
)

// A Store keeps quotas in Redis. It is safe for concurrent use. It starts nothing
// before somebody waits or a pause begins, and needs no closing, but see Flush; the client is the
// caller's to close.
type Store struct {
	rdb      redis.UniversalClient
	options  Options
	nodes    []*node
	clock    *clock // of the server; nil for a Cluster, which has several
	listener listener
	lines    lineage.Lines
	probes   sync.Map // of *store.Reservation: the probes whose response is waited for
	debtors  sync.Map // of *quota: those that have sent what Redis has not charged
	lessees  sync.Map // of *leases: those that hold something or have something to tell
	reports  reports
	journal  *journal
	peeked   atomic.Bool // somebody has asked what a state says of a pause
	apart    atomic.Bool // the server, a proxy of several, runs no call of several keys
}

var _ store.Store = (*Store)(nil)

// New returns a Store on a client. Nothing is sent before the first request; what
// is wrong with the client or the server is the error of Open or of that request.
func New(rdb redis.UniversalClient, o Options) *Store {
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	o.Timeout = orDefault(o.Timeout, defaultTimeout)
	o.Horizon = orDefault(o.Horizon, defaultHorizon)
	o.Lease = orDefault(o.Lease, defaultLease)
	j := &journal{to: o.Log, rdb: rdb}
	s := &Store{rdb: rdb, options: o, nodes: newNodes(rdb, o.Timeout, j), journal: j}
	if len(s.nodes) == 1 {
		s.clock = new(clock)
	}
	s.listener.store = s
	return s
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// Open returns the quota of a key. It does not block.
func (s *Store) Open(key string, plan *algorithms.Plan) (store.Quota, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	if key == "" {
		return nil, errors.New("distributed: the key is empty: quotas are kept by name, so give the policy a Name")
	}
	line, version := s.lines.Open(key)
	q := s.newQuota(s.name(key), plan, line, version)
	q.leases = newLeases(q)
	return q, nil
}

func (s *Store) validate() error {
	var errs []error
	if isNil(s.rdb) {
		errs = append(errs, errors.New("distributed: the client is nil: pass New a redis.UniversalClient"))
	}
	if _, ok := s.rdb.(*redis.Ring); ok {
		errs = append(errs, errors.New("distributed: the client is a redis.Ring: it moves keys to another server when one is away, and each "+
			"would admit the whole quota: pass a Client, a failover client or a ClusterClient"))
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
	if o.Outage.Workers < 0 {
		errs = append(errs, fieldError("Outage.Workers", o.Outage.Workers, "the number of processes, or zero to wait for Redis"))
	}
	return errors.Join(errs...)
}

// name is that of a key in Redis: nobody who can list keys learns what was passed.
func (s *Store) name(key string) string {
	sum := sha256.Sum256([]byte(key))
	return s.options.Prefix + base64.RawURLEncoding.EncodeToString(sum[:16])
}

// leaseKeys returns the names of the keys that hold the leases of a quota. They begin with the
// prefix, and a Cluster has them in the slot of the quota's key.
func (s *Store) leaseKeys(key string) []string {
	if slot(s.options.Prefix) == slot(key) { // the prefix has a tag
		return []string{key + ":leases", key + ":line"}
	}
	key = s.options.Prefix + "{" + key + "}"
	return []string{key + ":leases", key + ":line"}
}
