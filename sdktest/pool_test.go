package sdktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v2"
	"github.com/openai/openai-go/v2/option"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/retry"
	"github.com/apithrottle/throttle/sdktest/internal/azurestand"
	"github.com/apithrottle/throttle/targets"
)

// OpenAI's client runs over a pool of deployments of Azure OpenAI, in virtual time. Its azure package
// would add Azure's SDK to the module, and does no more than set the path and the key, as a pool does.

// A deployment is a member of a pool: the only deployment of a resource.
type deployment struct {
	name     string // of the member
	rpm, tpm int
	rank     int
}

func (d deployment) key() string  { return "key-of-" + d.name + "-0123456789abcdef" }
func (d deployment) host() string { return d.name + ".openai.azure.com" }

// An estate is the resources of a pool, each by its host. It is the Base of the pool's transport:
// requests reach a resource after 5 to 45 ms, which is less than the guard, and are answered 100 ms later.
type estate struct {
	pool      *throttle.Pool
	limiters  map[string]*throttle.Limiter // by the name of the member
	stands    map[string]*azurestand.Server
	transport *throttle.Transport

	// elsewhere receives what goes to any other host.
	elsewhere *azurestand.Server

	// instead answers a request instead of its resource, unless it returns neither a response nor an
	// error.
	instead func(*http.Request, *azurestand.Server) (*http.Response, error)

	arrival func(*http.Request) time.Duration
}

// newEstate returns an estate whose limits are those of the preset.
func newEstate(t *testing.T, deployments ...deployment) *estate {
	t.Helper()
	return limitedEstate(t, func(d deployment) providers.Provider {
		return providers.AzureOpenAI(int64(d.rpm), int64(d.tpm))
	}, deployments...)
}

// limitedEstate returns an estate of deployments. The first scope of the provider that limits returns
// has the limits of a deployment, and the provider of the last deployment the costs and answers of all.
func limitedEstate(t *testing.T, limits func(deployment) providers.Provider, deployments ...deployment) *estate {
	t.Helper()
	e := &estate{
		pool: new(throttle.Pool), limiters: map[string]*throttle.Limiter{}, stands: map[string]*azurestand.Server{},
		elsewhere: azurestand.New(azurestand.Options{}), arrival: fakeapi.Between(5*time.Millisecond, 45*time.Millisecond),
	}
	var p providers.Provider
	to := map[string]targets.Target{}
	for _, d := range deployments {
		e.stands[d.name] = azurestand.New(azurestand.Options{Keys: []string{d.key()}, Deployments: []azurestand.Deployment{{Name: "chat-" + d.name, RPM: d.rpm, TPM: d.tpm}}})
		to[d.name] = targets.Target{
			URL: "https://" + d.host() + "/openai/deployments/chat-" + d.name, Strip: "/v1",
			Header: http.Header{"Api-Key": {d.key()}}, Query: url.Values{"api-version": {"2024-10-21"}},
		}
		p = limits(d)
		policy := p.Scopes[0].Policy
		policy.Name = d.name
		l, err := throttle.New(policy, nil)
		if err != nil {
			t.Fatal(err)
		}
		e.limiters[d.name] = l
		if err := e.pool.Add(throttle.Member{Name: d.name, Limiter: l, Rank: d.rank}); err != nil {
			t.Fatal(err)
		}
	}
	m, err := targets.New(to)
	if err != nil {
		t.Fatal(err)
	}
	if e.transport, err = p.Transport(nil); err != nil {
		t.Fatal(err)
	}
	e.transport.Base, e.transport.Pool, e.transport.Rewrite = e, e.pool, m.Rewrite
	return e
}

func (e *estate) RoundTrip(req *http.Request) (*http.Response, error) {
	name, _ := strings.CutSuffix(req.URL.Host, ".openai.azure.com")
	stand := e.stands[name]
	if stand == nil {
		stand = e.elsewhere
	}
	time.Sleep(e.arrival(req))
	defer time.Sleep(100 * time.Millisecond)
	if e.instead != nil {
		if resp, err := e.instead(req, stand); resp != nil || err != nil {
			return resp, err
		}
	}
	return stand.RoundTrip(req)
}

// client returns OpenAI's client over the pool and package retry, without retries of its own. It has a
// key of its own, which no resource knows.
func (e *estate) client() openai.Client {
	return newOpenAI(retry.NewClient(e.transport), option.WithBaseURL("https://api.pool.example/v1/"))
}

// counts returns what a member has counted.
func (e *estate) counts(member string) azurestand.Counts {
	return e.stands[member].Counts("chat-" + member)
}

// use makes a member refuse as it does if another client uses its quota: n requests of a number of
// tokens go to it directly.
func (e *estate) use(t *testing.T, d deployment, n, tokens int) {
	t.Helper()
	url := "https://" + d.host() + "/openai/deployments/chat-" + d.name + "/chat/completions?api-version=2024-10-21"
	body := fmt.Sprintf(`{"messages":[{"role":"user","content":"Hello"}],"max_tokens":%d}`, tokens)
	sendElsewhere(t, e.stands[d.name], n, http.MethodPost, url, body, "Api-Key", d.key())
}

// question returns a request with a text and the most tokens of its answer.
func question(text string, most int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "gpt-4o", MaxTokens: openai.Int(most), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
	}
}

// ask asks a question, and fails unless it is answered.
func ask(ctx context.Context, client openai.Client, q openai.ChatCompletionNewParams, options ...option.RequestOption) error {
	answer, err := client.Chat.Completions.New(ctx, q, options...)
	if err == nil && !strings.HasPrefix(answer.Choices[0].Message.Content, "Hello!") {
		err = fmt.Errorf("answered %s", answer.RawJSON())
	}
	return err
}

// words returns English prose of n words, which differs by the seed.
func words(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 0))
	var b strings.Builder
	for range n {
		b.WriteString(vocabulary[r.IntN(len(vocabulary))])
		b.WriteByte(' ')
	}
	return b.String()
}

var vocabulary = strings.Fields(`the a of to in and that it is was for on are as with they at be this from have or by
	one not but what all when we there can an your which their said if do will each about how up out then many some
	these would other into has more like see time could make than first people over only way find use water long
	little very after words just where most know government particular following development different between
	information university national important children together something considered experience temperature`)

// saturate lets callers ask one question after the other for a time.
func saturate(t *testing.T, client openai.Client, callers int, lasts time.Duration, q func(i uint64) openai.ChatCompletionNewParams) {
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	began := time.Now()
	atOnce(t, callers, func(caller int) error {
		var refused *openai.Error
		for i := caller; ; i += callers {
			err := ask(ctx, client, q(uint64(i)))
			switch {
			case errors.Is(err, throttle.ErrDeadline) || ctx.Err() != nil:
				return nil
			case time.Since(began) > lasts-time.Minute && errors.As(err, &refused) && refused.StatusCode == http.StatusTooManyRequests:
				return nil // the pause outlasts the context
			case err != nil:
				return err
			}
		}
	})
}

// byCharacters makes a provider count a text by its characters, as Azure does: see
// https://learn.microsoft.com/azure/foundry/openai/how-to/quota, read on 2026-11-28. A message has at least
// three texts: the model, its role and its content.
func byCharacters(p providers.Provider) providers.Provider {
	p.Tokens = func(text string) int64 { return int64(len(text)+3)/4 + 1 }
	return p
}

// TestPoolUsesWhatTwoDeploymentsGrant lets 40 callers ask for five minutes. No deployment refuses
// any of them, and both are used up.
func TestPoolUsesWhatTwoDeploymentsGrant(t *testing.T) {
	const minutes, most = 5, 200
	for _, c := range []struct {
		name       string
		east, west deployment
		words      func(i uint64) int
	}{
		{"requests", deployment{name: "east", rpm: 120, tpm: 1_000_000}, deployment{name: "west", rpm: 300, tpm: 1_000_000}, func(uint64) int { return 10 }},
		{"tokens", deployment{name: "east", rpm: 600, tpm: 60_000}, deployment{name: "west", rpm: 900, tpm: 150_000}, func(uint64) int { return 600 }},
		{"unlike costs", deployment{name: "east", rpm: 600, tpm: 60_000}, deployment{name: "west", rpm: 900, tpm: 150_000}, func(i uint64) int { return int(i%7)*300 + 50 }},
		{"one by requests", deployment{name: "east", rpm: 240, tpm: 1_000_000}, deployment{name: "west", rpm: 900, tpm: 150_000}, func(uint64) int { return 600 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := limitedEstate(t, func(d deployment) providers.Provider {
					return byCharacters(providers.AzureOpenAI(int64(d.rpm), int64(d.tpm)))
				}, c.east, c.west)
				saturate(t, e.client(), 40, minutes*time.Minute, func(i uint64) openai.ChatCompletionNewParams { return question(words(i, c.words(i)), most) })
				for _, d := range []deployment{c.east, c.west} {
					n := e.counts(d.name)
					requests, tokens := float64(n.Accepted)/float64(d.rpm*minutes), float64(n.PromptTokens+n.Accepted*most)/float64(d.tpm*minutes)
					t.Logf("%s: %d answered: %.3f of the requests and %.3f of the tokens", d.name, n.Accepted, requests, tokens)
					if n.Refused > 0 || max(requests, tokens) < 0.95 {
						t.Errorf("%s: %d refused", d.name, n.Refused)
					}
				}
			})
		})
	}
}

// TestPoolWithEstimatesBelowThoseOfAzure counts prompts as the preset does, by the tokens of the model.
// They are a seventh fewer than a quarter of the characters of these texts, so a deployment may refuse
// what seems to fit. Package retry sends that to the other deployment, and the reported rest corrects the count.
func TestPoolWithEstimatesBelowThoseOfAzure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEstate(t, deployment{name: "east", rpm: 600, tpm: 60_000}, deployment{name: "west", rpm: 900, tpm: 150_000})
		saturate(t, e.client(), 40, 5*time.Minute, func(i uint64) openai.ChatCompletionNewParams { return question(words(i, 600), 200) })
		east, west := e.counts("east"), e.counts("west")
		accepted, refused := east.Accepted+west.Accepted, east.Refused+west.Refused
		used := float64(east.PromptTokens+west.PromptTokens+accepted*200) / float64(5*(60_000+150_000))
		t.Logf("%d answered, %d refused, %.3f of the tokens", accepted, refused, used)
		if refused > accepted/100 || used < 0.95 {
			t.Errorf("%d answered, %d refused, %.3f of the tokens", accepted, refused, used)
		}
	})
}

// TestPoolUsesTheLowerRankFirst asks three times as often as the reserved deployment allows.
func TestPoolUsesTheLowerRankFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const minutes, rpm = 10, 300
		e := newEstate(t, deployment{name: "reserved", rpm: rpm, tpm: 1_000_000}, deployment{name: "paid", rpm: 1200, tpm: 1_000_000, rank: 1})
		e.pool.Spill = time.Second
		client := e.client()
		atOnce(t, 3*rpm*minutes, func(i int) error {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			time.Sleep(time.Duration(r.Float64() * minutes * float64(time.Minute)))
			return ask(t.Context(), client, question("Hello", 20))
		})
		reserved, paid := e.counts("reserved"), e.counts("paid")
		t.Logf("reserved: %d of %d, paid: %d", reserved.Accepted, rpm*minutes, paid.Accepted)
		if reserved.Accepted < rpm*minutes*98/100 || reserved.Refused+paid.Refused > 0 {
			t.Errorf("reserved: %+v, paid: %+v", reserved, paid)
		}
	})
}
