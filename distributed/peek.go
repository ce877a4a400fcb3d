package distributed

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/store"
)

// The script that reads the pause in the state of a quota. It writes nothing, so nothing is
// replicated, and it needs no turn of the leases.
var (
	peekSource = readFile("peek")
	peekSHA    = sha(peekSource)
)

// A peeked is the question for the pause of a key, on behalf of some quotas, and its result.
type peeked struct {
	key    string
	quotas []*quota
	news   bool // the answer had a pause, or the end of one, that was new to a quota
	lost   bool // no answer came, and a later question may get one
	closed bool // the client is closed
}

// peek reads the pauses of some keys in one round trip. It blocks for as long as the client does.
func (s *Store) peek(asked []*peeked) {
	ctx := context.Background()
	t := &trip{sent: time.Now()}
	cmds := s.sendPeek(ctx, asked)
	t.got = time.Now()
	for i, p := range asked {
		reply, err := cmds[i].answer()
		made := store.Call{Duration: t.got.Sub(t.sent)}
		if err != nil {
			made.Err = explain(p.key, err)
		}
		p.quotas[0].calls.Made(made)
		if err != nil {
			p.closed = errors.Is(err, redis.ErrClosed)
			p.lost = errors.Is(made.Err, store.ErrUnavailable)
			continue
		}
		if reply[1] == 0 {
			for _, q := range p.quotas {
				q.newest().recordMissing(t)
			}
			continue
		}
		h := parseHeader(reply)
		h.saved = h.written
		for _, q := range p.quotas {
			p.news = q.recordNews(h, t) || p.news
		}
	}
}

func (s *Store) sendPeek(ctx context.Context, asked []*peeked) []once {
	send := func(command, script string) (cmds []once, err error) {
		for _, p := range asked {
			cmd := once{redis.NewIntSliceCmd(ctx, command, script, 1, p.key)}
			cmd.SetFirstKeyPos(3)
			cmds = append(cmds, cmd)
		}
		return cmds, pipelined(ctx, s.rdb, cmds)
	}
	if s.peeked.CompareAndSwap(false, true) {
		cmds, _ := send("eval", peekSource) // the server keeps the script from now on
		return cmds
	}
	cmds, err := send("evalsha", peekSHA)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		s.rdb.ScriptLoad(ctx, peekSource)
		cmds, _ = send("eval", peekSource) // which also runs if the server forgets the script at once
	}
	return cmds
}

// recordNews records an answer, and reports whether it contains a pause, or the end of one, that is
// new to the quota.
func (q *quota) recordNews(h header, t *trip) bool {
	q = q.newest()
	q.mu.Lock()
	epoch, generation := q.state.epoch, q.state.generation
	q.mu.Unlock()
	h.mixed = q.mixed.Load()
	q.recordReply(h, t)
	return h.epoch != epoch || h.generation != generation
}

// askedSince reports whether this process has a reply to a call that was sent at an instant or
// later.
func (q *quota) askedSince(at time.Time) bool {
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.state.sent.Before(at)
}

// wantsNews reports whether callers wait or a pause is in force.
func (q *quota) wantsNews() bool {
	if q.watched() {
		return true
	}
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.Now().Before(q.state.until)
}
