package sdktest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v2"

	"github.com/apithrottle/throttle"
	throttleanswers "github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/providers"
)

const conversations = 50

// promptCacheKey is a StickyKey: that which a request gives its prompt's cache.
func promptCacheKey(req *http.Request) string {
	b, err := req.GetBody()
	if err != nil {
		return ""
	}
	var body struct {
		Key string `json:"prompt_cache_key"`
	}
	_ = json.NewDecoder(b).Decode(&body)
	return body.Key
}

// converse holds conversations of a number of turns, each with a prompt that begins as the one before,
// with at least 1,024 tokens. A turn follows the one before after a time that is every on average.
func (e *estate) converse(t *testing.T, turns int, every time.Duration) {
	client := e.client()
	atOnce(t, conversations, func(i int) error {
		r := rand.New(rand.NewPCG(uint64(i), 1))
		prompt := words(uint64(i), 1_000)
		for turn := range turns {
			time.Sleep(time.Duration(2 * r.Float64() * float64(every)))
			q := question(prompt, 20)
			q.PromptCacheKey = openai.String(fmt.Sprint("conversation ", i))
			if err := ask(t.Context(), client, q); err != nil {
				return err
			}
			prompt += words(uint64(turn), 10)
		}
		return nil
	})
}

// cached returns the share of the prompts that came from the members' caches.
func (e *estate) cached() float64 {
	cached, all := 0, 0
	for name := range e.stands {
		n := e.counts(name)
		cached, all = cached+n.CachedTokens, all+n.PromptTokens
	}
	return float64(cached) / float64(all)
}

// A turn is one request of a conversation.
type turn struct {
	member string
	after  time.Duration
}

// turns returns the requests of each conversation, from the beginning of the test, in order.
func (e *estate) turns(start time.Time) map[string][]turn {
	all := map[string][]turn{}
	for name, stand := range e.stands {
		for _, r := range stand.Requests() {
			var body struct {
				Key string `json:"prompt_cache_key"`
			}
			_ = json.Unmarshal([]byte(r.Body), &body) // the stand-in has answered a body that is none
			all[body.Key] = append(all[body.Key], turn{name, r.At.Sub(start)})
		}
	}
	for _, turns := range all {
		slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.after, b.after) })
	}
	return all
}

// atMost returns the member that received most of some turns, and how many those are.
func atMost(turns []turn) (member string, n int) {
	counts := map[string]int{}
	for _, t := range turns {
		if counts[t.member]++; counts[t.member] > n {
			member, n = t.member, counts[t.member]
		}
	}
	return member, n
}

// TestPoolKeepsConversationsWithTheirCaches compares the caches of two deployments to that of one which
// is twice as large.
func TestPoolKeepsConversationsWithTheirCaches(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const turns, every = 6, 20 * time.Second
		shares := map[string]float64{}
		for _, c := range []struct {
			name   string
			sticky func(*http.Request) string
			of     []deployment
		}{
			{"one", nil, []deployment{{name: "both", rpm: 480, tpm: 1_000_000}}},
			{"sticky", promptCacheKey, []deployment{{name: "east", rpm: 240, tpm: 500_000}, {name: "west", rpm: 240, tpm: 500_000}}},
			{"not sticky", nil, []deployment{{name: "east", rpm: 240, tpm: 500_000}, {name: "west", rpm: 240, tpm: 500_000}}},
		} {
			e := newEstate(t, c.of...)
			e.pool.Spill, e.transport.StickyKey = time.Second, c.sticky
			start, kept, members := time.Now(), 0, map[string]int{}
			e.converse(t, turns, every)
			for _, turns := range e.turns(start) {
				member, n := atMost(turns)
				kept += n
				members[member]++
			}
			shares[c.name] = e.cached()
			t.Logf("%s: %.3f of the tokens were cached, %.3f of the requests of a key at one member, keys at %v", c.name, e.cached(), float64(kept)/(conversations*turns), members)
			if c.sticky != nil && (kept < conversations*turns*95/100 || len(members) != 2) {
				t.Errorf("%d of %d requests at the member of their key, keys at %v", kept, conversations*turns, members)
			}
		}
		if shares["sticky"] < 0.95*shares["one"] || shares["not sticky"] >= shares["sticky"] {
			t.Errorf("cached shares: %v", shares)
		}
	})
}

// TestPoolMovesConversationsDuringAPause pauses one member for 30 seconds.
func TestPoolMovesConversationsDuringAPause(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const from, to = 60 * time.Second, 90 * time.Second
		e := newEstate(t, deployment{name: "east", rpm: 900, tpm: 1_500_000}, deployment{name: "west", rpm: 900, tpm: 1_500_000})
		e.pool.Spill, e.transport.StickyKey = time.Second, promptCacheKey
		start := time.Now()
		paused := time.AfterFunc(from, func() {
			if err := e.limiters["east"].Pause(t.Context(), to-from); err != nil {
				t.Error(err)
			}
		})
		defer paused.Stop()
		e.converse(t, 30, 6*time.Second)
		var moved, away, later, back int
		for key, turns := range e.turns(start) {
			before := slices.IndexFunc(turns, func(t turn) bool { return t.after >= from })
			home, _ := atMost(turns[:before])
			for _, turn := range turns[before:] {
				switch {
				case turn.after < from+50*time.Millisecond: // it was sent before
				case turn.after < to:
					if turn.member == "east" {
						t.Errorf("%s came to the paused member %v after the beginning", key, turn.after)
					}
					if moved++; home == "east" {
						away++
					}
				case turn.after > to+2*time.Second:
					if later++; turn.member == home {
						back++
					}
				}
			}
		}
		t.Logf("%d of %d requests during the pause were away from home; %d of %d were at home after it", away, moved, back, later)
		if away < moved/4 || back < later*95/100 || later == 0 {
			t.Errorf("%d of %d requests during the pause were away from home; %d of %d were at home after it", away, moved, back, later)
		}
	})
}

// settling returns the preset with an estimate that the usage in a response replaces, as for hosts that
// count the tokens of the answer. It reports what settles.
func settling(settled func(throttle.SettledInfo)) func(deployment) providers.Provider {
	return func(d deployment) providers.Provider {
		p := providers.AzureOpenAI(int64(d.rpm), int64(d.tpm))
		policy := &p.Scopes[0].Policy
		for i := range policy.Tiers {
			policy.Tiers[i].Estimated = policy.Tiers[i].Unit == "tokens"
		}
		policy.Observer = &throttle.Observer{Settled: settled}
		p.Profile.Charges = []throttleanswers.Charge{{Unit: "tokens", Field: throttleanswers.Field{Path: "usage.total_tokens"}}}
		return p
	}
}

// TestPoolSettlesStreamsWhereTheyCameFrom streams answers, of which one member refuses some. The usage
// at the end of a stream replaces the estimate at the member that answered.
func TestPoolSettlesStreamsWhereTheyCameFrom(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var mu sync.Mutex
		settled := map[string][]int64{}
		east, west := deployment{name: "east", rpm: 600, tpm: 40_000}, deployment{name: "west", rpm: 600, tpm: 400_000}
		e := limitedEstate(t, settling(func(i throttle.SettledInfo) {
			mu.Lock()
			defer mu.Unlock()
			settled[i.Policy] = append(settled[i.Policy], i.Actual)
		}), east, west)
		client := e.client()
		streams := func(n int) {
			atOnce(t, n, func(i int) error {
				q := question(words(uint64(i), 50), 500)
				q.StreamOptions.IncludeUsage = openai.Bool(true)
				return stream(t, client, q)
			})
		}
		streams(40)
		e.use(t, east, 1, 25_000)
		streams(40)
		for _, d := range []deployment{east, west} {
			n, free, sum := e.counts(d.name), 0, int64(0)
			for _, actual := range settled[d.name] {
				if sum += actual; actual == 0 { // it was refused
					free++
				}
			}
			accepted, prompt := n.Accepted, n.PromptTokens
			if d == east { // without the other client's
				accepted, prompt = accepted-1, prompt-5
			}
			t.Logf("%s: %d answered, %d refused, %d settled with %d tokens", d.name, n.Accepted, n.Refused, len(settled[d.name]), sum)
			if len(settled[d.name]) != accepted+n.Refused || free != n.Refused || sum != int64(prompt+10*accepted) {
				t.Errorf("%s: settled %v, want %d with %d tokens and %d with none", d.name, settled[d.name], accepted, prompt+10*accepted, n.Refused)
			}
		}
		if e.counts("east").Refused == 0 {
			t.Error("east refused nothing")
		}
	})
}

// stream asks for a stream and reads it to its end.
func stream(t *testing.T, client openai.Client, q openai.ChatCompletionNewParams) error {
	s := client.Chat.Completions.NewStreaming(t.Context(), q)
	defer s.Close()
	all := openai.ChatCompletionAccumulator{}
	for s.Next() {
		all.AddChunk(s.Current())
	}
	if s.Err() == nil && (len(all.Choices) == 0 || all.Choices[0].Message.Content == "" || all.Usage.TotalTokens == 0) {
		return fmt.Errorf("streamed %+v", all)
	}
	return s.Err()
}
