package distributed

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/store"
)

// linger is for how long a listener stays after the last one who slept.
const linger = 2 * time.Second

// A listener hears what the fleet is told while somebody sleeps: that there is a
// pause, or that a permit is free. A message may be lost before it listens or while
// its connection is broken, but the state is the truth: whenever it begins to listen
// it looks there.
type listener struct {
	store *Store

	mu     sync.Mutex // guards all below
	pubsub *redis.PubSub
	wanted map[string]map[*quota]time.Time // when somebody last began to sleep, by key
}

// listen makes sure that those who have to wait will be told.
func (q *quota) listen(got []store.Decision) {
	for _, b := range got {
		if b.Wait >= worthWaking {
			q.store.listener.want(q)
			return
		}
	}
}

func (l *listener) want(q *quota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	quotas, subscribed := l.wanted[q.key]
	if !subscribed {
		if l.wanted == nil {
			l.wanted = make(map[string]map[*quota]time.Time)
		}
		quotas = make(map[*quota]time.Time)
		l.wanted[q.key] = quotas
	}
	quotas[q] = time.Now()
	switch {
	case l.pubsub == nil:
		l.pubsub = l.store.rdb.Subscribe(context.Background(), q.key)
		go l.run(l.pubsub)
	case !subscribed:
		go func(ps *redis.PubSub) { _ = ps.Subscribe(context.Background(), q.key) }(l.pubsub) // it blocks; and it tries again by itself
	}
}

// run tells the quotas what is heard, for as long as anybody may sleep.
func (l *listener) run(ps *redis.PubSub) {
	heard := ps.ChannelWithSubscriptions()
	for {
		select {
		case m, ok := <-heard:
			if !ok { // the client is closed, or the subscription
				l.mu.Lock()
				l.close(ps)
				l.mu.Unlock()
				return
			}
			l.tell(m)
		case <-time.After(linger):
		}
		if l.sweep(ps) {
			return
		}
	}
}

func (l *listener) tell(m any) {
	switch m := m.(type) {
	case *redis.Message:
		for _, q := range l.quotas(m.Channel) {
			q.heard(m.Payload)
		}
	case *redis.Subscription:
		if m.Kind == "subscribe" {
			for _, q := range l.quotas(m.Channel) {
				go func() { _, _ = q.Status(context.Background()) }() // it learns of a pause
			}
		}
	}
}

func (l *listener) quotas(key string) []*quota {
	l.mu.Lock()
	defer l.mu.Unlock()
	var quotas []*quota
	for q := range l.wanted[key] {
		quotas = append(quotas, q)
	}
	return quotas
}

// sweep forgets those who have not slept for a while, and closes when none is left.
func (l *listener) sweep(ps *redis.PubSub) (closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, quotas := range l.wanted {
		for q, last := range quotas {
			if time.Since(last) > linger && !q.watched() {
				delete(quotas, q)
			}
		}
		l.unsubscribe(key)
	}
	return l.pubsub != ps
}

// unsubscribe ends the subscription of a key that nobody wants any more. It needs mu.
func (l *listener) unsubscribe(key string) {
	if quotas, subscribed := l.wanted[key]; !subscribed || len(quotas) > 0 {
		return
	}
	delete(l.wanted, key)
	if len(l.wanted) == 0 {
		l.close(l.pubsub)
	} else {
		go func(ps *redis.PubSub) { _ = ps.Unsubscribe(context.Background(), key) }(l.pubsub)
	}
}

// close ends all subscriptions. It needs mu.
func (l *listener) close(ps *redis.PubSub) {
	if l.pubsub == ps {
		l.pubsub = nil
		clear(l.wanted)
	}
	go func() { _ = ps.Close() }()
}

func (l *listener) forget(q *quota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.wanted[q.key], q)
	l.unsubscribe(q.key)
}
