package distributed

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// An incident is a kind of warning in Options.Log.
type incident int

const (
	redisAway incident = iota
	redisLate
	stateLost
	mayEvict
	replicatesWrites
	clockStepped
	incidents
)

var incidentText = [incidents]string{
	"distributed: Redis is away",
	"distributed: Redis answers too late",
	"distributed: the state of a quota was lost, or is an older one",
	"distributed: Redis may evict quotas: set maxmemory-policy to noeviction",
	"distributed: Redis seems to accept writes in several regions: each of them admits the whole quota",
	"distributed: the clock of Redis stepped",
}

const (
	reportEvery = time.Minute // the shortest time between two warnings of a kind
	stepped     = time.Second // the shortest step of the clock that is logged
)

// A journal logs incidents to Options.Log.
type journal struct {
	to  *slog.Logger // nil if Options.Log is
	rdb redis.UniversalClient

	mu       sync.Mutex // guards all below
	reported [incidents]time.Time
	asked    bool // whether the server was asked for its properties
}

func (j *journal) report(i incident, args ...any) {
	if j.to == nil {
		return
	}
	j.mu.Lock()
	last := j.reported[i]
	due := last.IsZero() || time.Since(last) >= reportEvery
	if due {
		j.reported[i] = time.Now()
	}
	j.mu.Unlock()
	if due {
		j.to.Warn(incidentText[i], args...)
	}
}

// trips logs trips that failed. After the first that succeeded it asks whether Redis may evict
// keys, or replicates between regions.
func (j *journal) trips(errs []error) {
	for _, err := range errs {
		if _, away := err.(*unavailableError); away {
			j.report(redisAway, "error", err)
		} else if err == nil {
			j.askServer()
		}
	}
}

// askServer asks once, in a goroutine that ends with the calls, for the maxmemory-policy, and for a
// module of replicated data types. It ignores errors, for example of a user without the right to INFO.
func (j *journal) askServer() {
	j.mu.Lock()
	asked := j.asked || j.to == nil
	j.asked = true
	j.mu.Unlock()
	if asked {
		return
	}
	go func() {
		info, err := j.rdb.Info(context.Background(), "memory").Result()
		policy := infoField(info, "maxmemory_policy")
		if err == nil && policy != "" && policy != "noeviction" && infoField(info, "maxmemory") != "0" {
			j.report(mayEvict, "maxmemory-policy", policy)
		}
		info, _ = j.rdb.Info(context.Background(), "modules").Result()
		for line := range strings.Lines(info) {
			if strings.HasPrefix(line, "module:name=crdt") {
				j.report(replicatesWrites, "module", strings.TrimSpace(line))
			}
		}
	}()
}

// infoField returns a field of a reply to INFO, empty if the reply does not contain it.
func infoField(info, name string) string {
	_, value, _ := strings.Cut("\n"+info, "\n"+name+":")
	value, _, _ = strings.Cut(value, "\n")
	return strings.TrimSpace(value)
}
