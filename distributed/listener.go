package distributed

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/store"
)

const (
	linger        = 2 * time.Second        // how long a listener stays after the last caller who slept
	hearWithin    = 20 * time.Millisecond  // a process asks so long after a message at most, at a random instant
	askAgain      = 500 * time.Millisecond // after a question that got no answer
	mostDoubled   = 6                      // how often that is doubled while messages bring no news
	askedTogether = 64                     // keys of one trip
	mostChannels  = 512                    // of one command
)

// A listener receives what is published to the fleet while callers sleep or a pause is known:
// that there is a pause, that it ended early, or that a permit is free. A message is no more
// than a reason to ask: anybody who may publish could send it. One may also be lost before the
// listener has subscribed or while its connection is broken. So it asks too whenever a
// subscription begins.
//
// Nothing waits for it: one goroutine receives, one subscribes and unsubscribes, and one at a
// time asks for keys of which there was a message, one for keys to which a subscription has
// begun. They end when nobody sleeps.
type listener struct {
	store *Store

	mu        sync.Mutex // guards all below
	pubsub    *redis.PubSub
	topics    map[string]*topic   // by key
	changed   map[string]struct{} // keys to subscribe to, or to unsubscribe from
	changing  bool                // a goroutine does so
	receiving bool                // and one receives
	news      inquiry             // for keys of which there was a message
	begun     inquiry             // for keys to which a subscription has begun
}

// A topic is a key that somebody listens for.
type topic struct {
	quotas     map[*quota]time.Time // when somebody last began to sleep
	isOwn      bool                 // it is the channel of one process, see lease.lua
	subscribed bool                 // as far as it was asked for
	heard      time.Time            // when the message came because of which it is asked for; zero if none
	idle       int                  // how often in a row that brought no news
}

// An inquiry is the keys to ask for, and whether a goroutine does.
type inquiry struct {
	keys    []string
	running bool
}

// listen makes sure that those who have to wait hear of a pause, its end and of free places.
func (q *quota) listen(got []store.Decision) {
	for _, b := range got {
		if b.Wait >= worthWaking {
			q.store.listener.want(q)
			return
		}
	}
}

// want makes sure, soon, that a quota hears of messages for a while. It does not block.
func (l *listener) want(q *quota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pubsub == nil {
		l.topics, l.changed = make(map[string]*topic), make(map[string]struct{})
		l.pubsub = l.store.rdb.Subscribe(context.Background()) // to nothing: it does not connect
	}
	for i, channel := range q.channels() {
		t := l.topics[channel]
		if t == nil {
			t = &topic{quotas: make(map[*quota]time.Time), isOwn: i > 0}
			l.topics[channel] = t
		}
		t.quotas[q] = time.Now()
		if !t.subscribed {
			l.change(channel)
		}
	}
}

// channels are where a quota hears of what it waits for: that of the key, and its own.
func (q *quota) channels() []string {
	if q.leases == nil {
		return []string{q.key}
	}
	return []string{q.key, q.leases.channel()}
}

// change has a key subscribed to, or unsubscribed from. It needs mu.
func (l *listener) change(key string) {
	l.changed[key] = struct{}{}
	if !l.changing {
		l.changing = true
		go l.follow(l.pubsub)
	}
}

// follow has the subscriptions follow what is wanted, one command after the other: each may
// block for as long as the client does. A command that fails is repeated by the client when it
// connects again.
func (l *listener) follow(ps *redis.PubSub) {
	for {
		more, less, ok := l.due(ps)
		if !ok {
			return
		}
		for keys := range slices.Chunk(more, mostChannels) {
			_ = ps.Subscribe(context.Background(), keys...)
		}
		for keys := range slices.Chunk(less, mostChannels) {
			_ = ps.Unsubscribe(context.Background(), keys...)
		}
		l.begin(ps)
	}
}

// begin receives once there was something to subscribe to.
func (l *listener) begin(ps *redis.PubSub) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pubsub == ps && !l.receiving {
		l.receiving = true
		go l.run(ps)
	}
}

// due returns the keys to subscribe to and to unsubscribe from; ok is false if there are none,
// or others see to them.
func (l *listener) due(ps *redis.PubSub) (more, less []string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pubsub != ps {
		return nil, nil, false
	}
	for key := range l.changed {
		t := l.topics[key]
		switch {
		case t == nil:
		case len(t.quotas) > 0 && !t.subscribed:
			t.subscribed = true
			more = append(more, key)
		case len(t.quotas) == 0 && t.subscribed:
			less = append(less, key)
			delete(l.topics, key)
		case len(t.quotas) == 0:
			delete(l.topics, key)
		}
	}
	clear(l.changed)
	if len(l.topics) == 0 {
		l.close(ps)
		return nil, nil, false
	}
	l.changing = len(more)+len(less) > 0
	return more, less, l.changing
}

// run receives for as long as anybody may sleep.
func (l *listener) run(ps *redis.PubSub) {
	heard := ps.ChannelWithSubscriptions()
	tick := time.NewTicker(linger / 2)
	defer tick.Stop()
	for {
		select {
		case m, ok := <-heard:
			if !ok { // the client is closed, or the subscription
				l.mu.Lock()
				l.close(ps)
				l.mu.Unlock()
				return
			}
			l.receive(m)
		case <-tick.C:
			if l.sweep(ps) {
				return
			}
		}
	}
}

func (l *listener) receive(m any) {
	switch m := m.(type) {
	case *redis.Message:
		if m.Payload == "freed" { // then the next in the queue asks
			quotas, own := l.quotas(m.Channel)
			for _, q := range quotas {
				if q.freed(); own {
					q.leave()
				}
			}
			return
		}
		if strings.HasPrefix(m.Payload, "pause ") || strings.HasPrefix(m.Payload, "resume ") {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.askSoon(m.Channel)
		}
	case *redis.Subscription:
		if m.Kind == "subscribe" {
			if quotas, own := l.quotas(m.Channel); own {
				for _, q := range quotas {
					q.freed()
				}
				return
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.ask(&l.begun, m.Channel)
		}
	}
}

// quotas returns those that listen to a channel, and whether it is the channel of one process.
func (l *listener) quotas(channel string) (quotas []*quota, own bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.topics[channel]; t != nil {
		own = t.isOwn
		for q := range t.quotas {
			quotas = append(quotas, q)
		}
	}
	return quotas, own
}

// askSoon asks for a key because of a message, at a random instant: a thousand processes have
// received it too. While messages bring no news it takes longer and longer, up to a second or
// so. Messages that come meanwhile ask nothing more. It needs mu.
func (l *listener) askSoon(key string) {
	t := l.topics[key]
	if t == nil {
		return
	}
	asked := !t.heard.IsZero()
	if t.heard = time.Now(); asked {
		return
	}
	time.AfterFunc(rand.N(hearWithin<<t.idle), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ask(&l.news, key)
	})
}

// ask has a key asked for with the next trip of an inquiry. It needs mu.
func (l *listener) ask(i *inquiry, key string) {
	i.keys = append(i.keys, key)
	if !i.running {
		i.running = true
		go l.inquire(i)
	}
}

// inquire asks for keys, one trip after the other. Where a subscription has begun, as for all
// keys when the connection is new, it rests after each for about as long as that took: a
// process with many keys must not keep the others from Redis.
func (l *listener) inquire(i *inquiry) {
	for {
		asked := l.next(i)
		if asked == nil {
			return
		}
		began := time.Now()
		l.store.peek(asked)
		l.answered(i, asked)
		if i == &l.begun {
			time.Sleep(rand.N(2*time.Since(began) + 10*time.Millisecond))
		}
	}
}

// next returns what to ask with the next trip, nil if that was all. Where a reply has come to
// a question of after the message, there is nothing to ask.
func (l *listener) next(i *inquiry) (asked []*peeked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(i.keys) > 0 && len(asked) < askedTogether {
		key := i.keys[0]
		i.keys = i.keys[1:]
		t := l.topics[key]
		if t == nil {
			continue
		}
		var heard time.Time
		if i == &l.news {
			heard, t.heard = t.heard, heard
		}
		p := &peeked{key: key}
		for q := range t.quotas {
			if heard.IsZero() || !q.askedSince(heard) {
				p.quotas = append(p.quotas, q)
			}
		}
		if len(p.quotas) > 0 {
			asked = append(asked, p)
		}
	}
	i.running = len(asked) > 0
	return asked
}

// answered takes note of which messages brought news, and repeats those without an answer.
func (l *listener) answered(i *inquiry, asked []*peeked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var again []string
	for _, p := range asked {
		if t := l.topics[p.key]; t != nil && p.news {
			t.idle = 0
		} else if t != nil && i == &l.news {
			t.idle = min(t.idle+1, mostDoubled)
		}
		if p.closed {
			l.close(l.pubsub)
			return
		}
		if p.lost {
			again = append(again, p.key)
		}
	}
	if again != nil {
		time.AfterFunc(askAgain/2+rand.N(askAgain), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, key := range again {
				l.ask(&l.begun, key)
			}
		})
	}
}

// sweep forgets the quotas for which nobody has slept for a while, unless there is a pause.
func (l *listener) sweep(ps *redis.PubSub) (closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pubsub != ps {
		return true
	}
	for key, t := range l.topics {
		for q, last := range t.quotas {
			if time.Since(last) > linger && !q.wantsNews() {
				delete(t.quotas, q)
			}
		}
		if len(t.quotas) == 0 {
			l.change(key)
		}
	}
	return false
}

// close ends all subscriptions. It needs mu.
func (l *listener) close(ps *redis.PubSub) {
	if l.pubsub == ps {
		l.pubsub, l.receiving, l.changing = nil, false, false
		clear(l.topics)
		clear(l.changed)
	}
	if ps != nil {
		go func() { _ = ps.Close() }()
	}
}

func (l *listener) forget(q *quota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, channel := range q.channels() {
		if t := l.topics[channel]; t != nil {
			delete(t.quotas, q)
			if len(t.quotas) == 0 {
				l.change(channel)
			}
		}
	}
}
