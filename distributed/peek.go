package distributed

import (
	"context"
	"errors"
	"sync/atomic"
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

// A peeker asks a server for pauses.
type peeker struct {
	rdb redis.UniversalClient
	has atomic.Bool // the server may have the script
}

// peek reads the pauses of some keys in one round trip. It blocks for as long as the client does.
func (p *peeker) peek(asked []*peeked) {
	ctx := context.Background()
	t := &trip{sent: time.Now()}
	cmds := p.send(ctx, asked)
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
				q = q.newest()
				q.spread(q.record.missing(t))
			}
			continue
		}
		p.record(parseHeader(reply), t)
		p.follow(reply[headerLen:])
	}
}

// record records an answer for all quotas.
func (p *peeked) record(h header, t *trip) {
	h.saved = h.written
	for _, q := range p.quotas {
		q = q.newest()
		before := q.record.get()
		h.mixed = q.mixed.Load()
		q.recordReply(h, t)
		p.news = p.news || h.epoch != before.epoch || h.generation != before.generation
	}
}

// follow takes over limits that responses have named, for all quotas.
func (p *peeked) follow(named []int64) {
	for _, q := range p.quotas {
		if q = q.newest(); q.hasNews(named) {
			p.news = q.follow(named) || p.news
		}
	}
}

func (p *peeker) send(ctx context.Context, asked []*peeked) []once {
	send := func(command, script string) (cmds []once, err error) {
		for _, a := range asked {
			cmd := once{redis.NewIntSliceCmd(ctx, command, script, 1, a.key)}
			cmd.SetFirstKeyPos(3)
			cmds = append(cmds, cmd)
		}
		return cmds, pipelined(ctx, p.rdb, cmds)
	}
	if p.has.CompareAndSwap(false, true) {
		cmds, _ := send("eval", peekSource) // the server keeps the script from now on
		return cmds
	}
	cmds, err := send("evalsha", peekSHA)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		p.rdb.ScriptLoad(ctx, peekSource)
		cmds, _ = send("eval", peekSource) // which also runs if the server forgets the script at once
	}
	return cmds
}
