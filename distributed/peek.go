package distributed

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/store"
)

// The script that tells what the state of a quota says of a pause. It writes nothing, so that
// nothing is replicated, and needs no turn of the leases.
var (
	peekSource = readFile("peek")
	peekSHA    = sha(peekSource)
)

// A peeked is a key that is asked for, for some quotas.
type peeked struct {
	key    string
	quotas []*quota
	news   bool // there was a pause, or the end of one, that some quota did not know
	lost   bool // there was no answer, and there may be one later
	closed bool // the client is
}

// peek asks for some keys in one round trip. It blocks for as long as the client does.
func (s *Store) peek(asked []*peeked) {
	ctx := context.Background()
	t := &trip{sent: time.Now()}
	cmds := s.sendPeek(ctx, asked)
	t.got = time.Now()
	for i, p := range asked {
		reply, err := cmds[i].answer()
		if err != nil {
			p.closed = errors.Is(err, redis.ErrClosed)
			p.lost = errors.Is(explain(p.key, err), store.ErrUnavailable) || redis.HasErrorPrefix(err, "NOSCRIPT")
			continue
		}
		if reply[1] == 0 {
			for _, q := range p.quotas {
				q.newest().learnGone(t)
			}
			continue
		}
		h := parseHeader(reply)
		h.saved = h.written
		for _, q := range p.quotas {
			p.news = q.learnNews(h, t) || p.news
		}
	}
}

func (s *Store) sendPeek(ctx context.Context, asked []*peeked) (cmds []once) {
	for range 2 {
		cmds = cmds[:0]
		for _, p := range asked {
			command, script := "evalsha", peekSHA
			if s.peeked.CompareAndSwap(false, true) { // the server may not have it, and keeps it from then on
				command, script = "eval", peekSource
			}
			cmd := once{redis.NewIntSliceCmd(ctx, command, script, 1, p.key)}
			cmd.SetFirstKeyPos(3)
			cmds = append(cmds, cmd)
		}
		if err := pipelined(ctx, s.rdb, cmds); !redis.HasErrorPrefix(err, "NOSCRIPT") || s.rdb.ScriptLoad(ctx, peekSource).Err() != nil {
			break
		}
	}
	return cmds
}

// learnNews takes note of an answer, and reports whether it tells of a pause, or the end of
// one, that the quota did not know.
func (q *quota) learnNews(h header, t *trip) bool {
	q = q.newest()
	q.mu.Lock()
	epoch, generation := q.state.epoch, q.state.generation
	q.mu.Unlock()
	q.learn(h, t)
	return h.epoch != epoch || h.generation != generation
}

// askedSince reports whether this process has learned what Redis says at an instant, or later.
func (q *quota) askedSince(at time.Time) bool {
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.state.sent.Before(at)
}

// wantsNews reports whether anybody waits, or there is a pause.
func (q *quota) wantsNews() bool {
	if q.watched() {
		return true
	}
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.Now().Before(q.state.until)
}
