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
	linger        = 2 * time.Second        // how long a subscription lasts after the last caller began to sleep
	askWithin     = 20 * time.Millisecond  // the longest random delay between a message and the question
	askAgain      = 500 * time.Millisecond // the mean delay before a question without an answer is repeated
	worthWaking   = 5 * time.Millisecond   // callers that sleep for less receive no messages
	mostDoubled   = 6                      // how often askWithin doubles while messages bring no news
	askedTogether = 64                     // the most keys of a round trip
	mostChannels  = 512                    // the most channels of a command
)

// A listener receives the fleet's messages while callers sleep or a pause is in force: a pause has
// begun, a pause has ended early, tiers follow other limits, or a permit is free. A message is only a reason to ask Redis,
// because any client that may publish can send one. A message may also be lost, before the listener
// has subscribed or while its connection is broken. So the listener asks whenever a subscription
// begins, too.
//
// No caller waits for the listener. One goroutine receives messages, one subscribes and
// unsubscribes, one asks about keys that had a message, and one asks about keys with a new
// subscription. They end when no caller sleeps.
type listener struct {
	store *Store

	mu        sync.Mutex // guards all below
	pubsub    *redis.PubSub
	topics    map[string]*topic   // by channel
	changed   map[string]struct{} // channels to subscribe to, or to unsubscribe from
	changing  bool                // a goroutine subscribes and unsubscribes
	receiving bool                // a goroutine receives
	news      inquiry             // about keys that had a message
	begun     inquiry             // about keys with a new subscription
}

// A topic is a channel to which quotas listen.
type topic struct {
	quotas     map[*quota]time.Time // when a caller last began to sleep
	isOwn      bool                 // it is the channel of one process, see lease.lua
	subscribed bool                 // the command to subscribe was sent, or is about to be
	messageAt  time.Time            // when the last message came about which is still to be asked; zero if none
	idle       int                  // questions in a row that brought no news
	wakes      wakes
}

// Wakes are the times at which the first waiters were woken by messages of a release that any client
// may have sent.
type wakes struct {
	last    time.Time
	pending bool // another one follows soon
	doubled int  // how often the time to the next one has doubled
}

// An inquiry is a list of keys to ask about.
type inquiry struct {
	keys    []string
	running bool // a goroutine asks
}

// wantFor subscribes to the messages of a quota if a caller has to wait for long enough.
func (l *listener) wantFor(q *quota, got []store.Decision) {
	if slices.ContainsFunc(got, func(d store.Decision) bool { return d.Wait >= worthWaking }) {
		l.want(q)
	}
}

// want subscribes to the messages of a quota for a while. It does not block.
func (l *listener) want(q *quota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pubsub == nil {
		l.topics, l.changed = make(map[string]*topic), make(map[string]struct{})
		l.pubsub = l.store.rdb.Subscribe(context.Background()) // without channels, so it does not connect
	}
	for i, channel := range q.leases.channels(q.key) {
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

// change starts a change of the subscription to a channel. It needs mu.
func (l *listener) change(key string) {
	l.changed[key] = struct{}{}
	if !l.changing {
		l.changing = true
		go l.follow(l.pubsub)
	}
}

// follow subscribes and unsubscribes, one command after the other. Each may block for as long as
// the client does. The client repeats a failed command when it connects again.
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

// begin starts the goroutine that receives, if it does not run.
func (l *listener) begin(ps *redis.PubSub) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pubsub == ps && !l.receiving {
		l.receiving = true
		go l.run(ps)
	}
}

// due returns the channels to subscribe to and to unsubscribe from. It returns false if there are
// none, or if the subscriptions were closed.
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

// run receives messages until the subscriptions are closed.
func (l *listener) run(ps *redis.PubSub) {
	received := ps.ChannelWithSubscriptions()
	tick := time.NewTicker(linger / 2)
	defer tick.Stop()
	for {
		select {
		case m, ok := <-received:
			if !ok { // the client or the subscription is closed
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
		if strings.HasPrefix(m.Payload, "freed") {
			l.freed(m.Channel, m.Payload)
			return
		}
		if strings.HasPrefix(m.Payload, "pause ") || strings.HasPrefix(m.Payload, "resume ") || m.Payload == "follow" {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.askSoon(m.Channel)
		}
	case *redis.Subscription:
		if m.Kind == "subscribe" {
			if quotas, own := l.quotas(m.Channel); own {
				for _, q := range quotas {
					q.notifyFreed()
				}
				return
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.ask(&l.begun, m.Channel)
		}
	}
}

// freed wakes the first waiters of the quotas of a channel, which then ask, because of a message. It
// wakes them at once if the message can only be the script's. While other messages follow each other,
// the time to the next wake doubles, up to about a second.
func (l *listener) freed(channel, message string) {
	quotas, own := l.quotas(channel)
	if own && slices.ContainsFunc(quotas, func(q *quota) bool { return q.leases.isKept(message) }) {
		wake(quotas, own)
		return
	}
	l.mu.Lock()
	t := l.topics[channel]
	if t == nil || t.wakes.pending {
		l.mu.Unlock()
		return
	}
	t.wakes.pending = true
	wait := t.wakes.delay()
	l.mu.Unlock()
	wakeAll := func() {
		l.mu.Lock()
		t.wakes.last, t.wakes.pending = time.Now(), false
		l.mu.Unlock()
		wake(l.quotas(channel))
	}
	if wait > 0 {
		time.AfterFunc(wait, wakeAll)
	} else {
		wakeAll()
	}
}

// delay returns how long after now the next wake is. Whether callers are admitted does not matter,
// because that has other reasons.
func (w *wakes) delay() time.Duration {
	since := time.Since(w.last)
	if since > 2*askWithin<<mostDoubled {
		w.doubled = 0
		return 0
	}
	w.doubled = min(w.doubled+1, mostDoubled)
	return askWithin<<w.doubled - since
}

// wake lets the first waiters of quotas ask. A process that has none any more gives up its place in
// the queue, if the message was on its own channel.
func wake(quotas []*quota, own bool) {
	for _, q := range quotas {
		if q.notifyFreed(); own {
			q.leave(0)
		}
	}
}

// quotas returns the quotas that listen to a channel, and whether it is the channel of one process.
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

// askSoon asks about a key because of a message. It waits for a random time, because a thousand
// processes may have received the message too. The longest wait doubles while messages bring no
// news, up to about a second. Messages that come meanwhile start no further question. It needs mu.
func (l *listener) askSoon(key string) {
	t := l.topics[key]
	if t == nil {
		return
	}
	asked := !t.messageAt.IsZero()
	if t.messageAt = time.Now(); asked {
		return
	}
	time.AfterFunc(rand.N(askWithin<<t.idle), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ask(&l.news, key)
	})
}

// ask adds a key to an inquiry. It needs mu.
func (l *listener) ask(i *inquiry, key string) {
	i.keys = append(i.keys, key)
	if !i.running {
		i.running = true
		go l.inquire(i)
	}
}

// inquire asks about keys, one round trip after the other. A new connection begins the
// subscriptions of all keys at once. After each trip for these, inquire rests for about the
// duration of the trip, but for two seconds at most, so a process with many keys does not block
// Redis for the others.
func (l *listener) inquire(i *inquiry) {
	for {
		asked := l.next(i)
		if asked == nil {
			return
		}
		began := time.Now()
		l.store.peeker.peek(asked)
		l.answered(i, asked)
		if i == &l.begun {
			time.Sleep(rand.N(min(2*time.Since(began), 2*defaultTimeout) + 10*time.Millisecond))
		}
	}
}

// next returns the questions of the next trip, nil if there are none left. It skips a quota that
// has a reply to a call sent after the message.
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
		var since time.Time
		if i == &l.news {
			since, t.messageAt = t.messageAt, since
		}
		p := &peeked{key: key}
		for q := range t.quotas {
			if since.IsZero() || q.newest().record.get().sent.Before(since) {
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

// answered records which messages brought news, and repeats questions without an answer.
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

// sweep drops the quotas without a sleeping caller for a while, unless a pause is in force. It
// reports whether the subscriptions were closed.
func (l *listener) sweep(ps *redis.PubSub) (closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pubsub != ps {
		return true
	}
	for key, t := range l.topics {
		for q, last := range t.quotas {
			s := q.newest().record.get()
			if time.Since(last) > linger && !q.watchers.any() && !s.isPaused() {
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

// forget drops a quota.
func (l *listener) forget(q *quota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, channel := range q.leases.channels(q.key) {
		if t := l.topics[channel]; t != nil {
			delete(t.quotas, q)
			if len(t.quotas) == 0 {
				l.change(channel)
			}
		}
	}
}
