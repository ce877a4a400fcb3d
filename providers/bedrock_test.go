package providers_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const (
	claude = "anthropic.claude-sonnet-4-5-20250929-v1:0"
	llama  = "meta.llama3-70b-instruct-v1:0"
)

// converse returns a request with a prompt of about prompt tokens, and most tokens of output.
func converse(t *testing.T, model string, prompt, most int) *http.Request {
	t.Helper()
	return postJSON(t, "https://bedrock-runtime.us-east-1.amazonaws.com/model/"+strings.NewReplacer(":", "%3A", "/", "%2F").Replace(model)+"/converse",
		fmt.Sprintf(`{"messages":[{"role":"user","content":[{"text":"%s"}]}],"inferenceConfig":{"maxTokens":%d}}`, strings.Repeat("one ", prompt), most))
}

// A model is in the scope of the rate at which its output counts.
func TestBedrockModels(t *testing.T) {
	p := providers.Bedrock(1, 1)
	const host = "bedrock-runtime.us-east-1.amazonaws.com/"
	for _, test := range []struct{ url, body, scope, key string }{
		{host + "model/" + claude + "/invoke", "{}", "x5", "us-east-1 " + claude},
		{host + "model/us." + claude + "/converse-stream", "{}", "x5", "us-east-1 us." + claude},
		{host + "model/arn:aws:bedrock:us-east-1:123:inference-profile%2Fus." + claude + "/converse", "{}", "x5", "us-east-1 us." + claude},
		{host + "model/arn:aws:bedrock:us-east-1::foundation-model/" + claude + "/converse", "{}", "x5", "us-east-1 " + claude},
		{host + "model/arn:aws:bedrock:us-east-1:123:application-inference-profile/a1b2c3/converse", "{}", "x5", "us-east-1 a1b2c3"},
		{"bedrock-runtime-fips.us-west-2.amazonaws.com/model/" + llama + "/invoke-with-response-stream", "{}", "x1", "us-west-2 " + llama},
		{host + "openai/v1/chat/completions", `{"model":"openai.gpt-oss-120b-1:0"}`, "x1", "us-east-1 openai.gpt-oss-120b-1:0"},
		{host + "openai/v1/responses", `{"model":"openai.gpt-5.6"}`, "x10", "us-east-1 openai.gpt-5.6"},

		{host + "model/anthropic.claude-v2:1/invoke", "{}", "x1", "us-east-1 anthropic.claude-v2:1"},
		{host + "model/anthropic.claude-3-5-haiku-20241022-v1:0/invoke", "{}", "x1", "us-east-1 anthropic.claude-3-5-haiku-20241022-v1:0"},
		{host + "model/anthropic.claude-3-7-sonnet-20250219-v1:0/invoke", "{}", "x5", "us-east-1 anthropic.claude-3-7-sonnet-20250219-v1:0"},
		{host + "model/anthropic.claude-sonnet-4-20250514-v1:0/invoke", "{}", "x5", "us-east-1 anthropic.claude-sonnet-4-20250514-v1:0"},
		{host + "model/anthropic.claude-opus-4-6-v1/invoke", "{}", "x5", "us-east-1 anthropic.claude-opus-4-6-v1"},
		{host + "model/anthropic.claude-opus-4-8/invoke", "{}", "x15", "us-east-1 anthropic.claude-opus-4-8"},
		{host + "model/anthropic.claude-sonnet-5/invoke", "{}", "x10", "us-east-1 anthropic.claude-sonnet-5"},
		{host + "model/anthropic.claude-fable-5-1-v1:0/invoke", "{}", "x10", "us-east-1 anthropic.claude-fable-5-1-v1:0"},
		{host + "model/ai21.jamba-1-5-large-v1:0/invoke", "{}", "x1", "us-east-1 ai21.jamba-1-5-large-v1:0"},

		{host + "model/" + claude + "/count-tokens", "{}", "", ""},
		{host + "model/arn:aws:bedrock:us-east-1:123:provisioned-model/abc/invoke", "{}", "", ""},
		{host + "guardrail/g/version/1/apply", "{}", "", ""},
		{host + "async-invoke", "{}", "", ""},
		{host + "invoke", "{}", "", ""},
	} {
		scope, key := "", ""
		for i := range p.Scopes {
			if k, counts := p.Scopes[i].Key(postJSON(t, "https://"+test.url, test.body)); counts {
				scope += p.Scopes[i].Name
				key = k
			}
		}
		if scope != test.scope || key != test.key {
			t.Errorf("%s: scope %q, key %q, want %q and %q", test.url, scope, key, test.scope, test.key)
		}
	}
	transport, err := p.Transport(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"bedrock.us-east-1.amazonaws.com", "s3.amazonaws.com", "bedrock-runtime.evil.example"} {
		if transport.Route(postJSON(t, "https://"+host+"/model/"+claude+"/invoke", "{}")) != nil {
			t.Errorf("limits %s", host)
		}
	}
}

func TestBedrockCost(t *testing.T) {
	cost := providers.Bedrock(1, 1).Cost
	data := strings.Repeat("AbC4", 1_000) // 3,000 bytes
	for _, test := range []struct {
		name, model, op, body, unit string
		tokens                      int64
	}{
		{"Claude", claude, "invoke", `{"max_tokens":100,"messages":[]}`, "tokens-x5", 500},
		{"Claude without max_tokens", claude, "converse", `{"messages":[]}`, "tokens-x5", 128_000},
		{"a profile without max_tokens", "a1b2c3", "converse", `{}`, "tokens-x5", 128_000},
		{"GPT-5 without max_tokens", "openai.gpt-5.6", "converse", `{}`, "tokens-x10", 128_000},
		{"Llama without max_gen_len", llama, "invoke", `{"prompt":"a"}`, "tokens-x1", 512},
		{"Llama's stream without max_gen_len", "us.meta.llama3-1-8b-instruct-v1:0", "invoke-with-response-stream", `{"prompt":"a"}`, "tokens-x1", 512},
		{"Llama without maxTokens", llama, "converse", `{}`, "tokens-x1", 4_096},
		{"Llama's stream without maxTokens", llama, "converse-stream", `{}`, "tokens-x1", 4_096},
		{"Titan without maxTokenCount", "amazon.titan-text-premier-v1:0", "invoke", `{"inputText":"a"}`, "tokens-x1", 512},
		{"Titan without maxTokens", "amazon.titan-text-premier-v1:0", "converse", `{}`, "tokens-x1", 3_072},
		{"Nova without maxTokens", "us.amazon.nova-lite-v1:0", "converse", `{}`, "tokens-x1", 5_000},
		{"Nova Premier without maxTokens", "us.amazon.nova-premier-v1:0", "invoke", `{}`, "tokens-x1", 25_000},
		{"Mistral without max_tokens", "mistral.mixtral-8x7b-instruct-v0:1", "invoke", `{"prompt":"a"}`, "tokens-x1", 512},
		{"Mistral Large without maxTokens", "mistral.mistral-large-2407-v1:0", "converse", `{}`, "tokens-x1", 8_192},
		{"Cohere without maxTokens", "cohere.command-r-plus-v1:0", "converse", `{}`, "tokens-x1", 4_096},
		{"AI21 without max_tokens", "ai21.jamba-1-5-mini-v1:0", "invoke", `{}`, "tokens-x1", 4_096},
		{"gpt-oss without max_completion_tokens", "openai.gpt-oss-20b-1:0", "invoke", `{}`, "tokens-x1", 16_384},
		{"another maker's without max_tokens", "us.deepseek.r1-v1:0", "converse", `{}`, "tokens-x1", 32_768},
		{"converse", llama, "converse", `{"inferenceConfig":{"maxTokens":100,"temperature":0.5},"messages":[{"content":[{"text":"` + strings.Repeat("one ", 100) + `"}]}]}`, "tokens-x1", 200},
		{"Nova", "amazon.nova-pro-v1:0", "invoke", `{"inferenceConfig":{"max_new_tokens":100}}`, "tokens-x1", 100},
		{"Llama", llama, "invoke", `{"prompt":"a","max_gen_len":100}`, "tokens-x1", 100},
		{"Titan", "amazon.titan-text-express-v1", "invoke", `{"inputText":"a","textGenerationConfig":{"maxTokenCount":100}}`, "tokens-x1", 100},
		{"embeddings", "amazon.titan-embed-text-v2:0", "invoke", `{"inputText":"a"}`, "tokens-x1", 2},
		{"an image", claude, "converse", `{"inferenceConfig":{"maxTokens":1},"messages":[{"content":[{"image":{"format":"png","source":{"bytes":"iVBORw0KGgo` + data + `"}}}]}]}`, "tokens-x5", 1_601},
		{"a PDF", claude, "converse", `{"inferenceConfig":{"maxTokens":1},"messages":[{"content":[{"document":{"format":"pdf","name":"a","source":{"bytes":"` + data + `"}}}]}]}`, "tokens-x5", 62},
		{"a CSV file", claude, "converse", `{"inferenceConfig":{"maxTokens":1},"messages":[{"content":[{"document":{"format":"csv","name":"a","source":{"bytes":"` + data + `"}}}]}]}`, "tokens-x5", 752},
		{"a file in S3", claude, "converse", `{"inferenceConfig":{"maxTokens":1},"messages":[{"content":[{"image":{"format":"png","source":{"s3Location":{"uri":"s3://a/b"}}}}]}]}`, "tokens-x5", 1_601},
	} {
		got := cost(postJSON(t, "https://bedrock-runtime.us-east-1.amazonaws.com/model/"+test.model+"/"+test.op, test.body))
		if n := got[test.unit]; len(got) != 1 || n < test.tokens || n > test.tokens+24 { // keys count, too
			t.Errorf("%s: %v, want about %d %s", test.name, got, test.tokens, test.unit)
		}
	}
}

func TestBedrockLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if n := atOnce(t, providers.Bedrock(10, 1e9), 20, func() *http.Request { return converse(t, claude, 1, 1) }); n != 10 {
			t.Errorf("%d requests at once, want 10", n)
		}
		for model, want := range map[string]int{llama: 5, claude: 1} { // the output of Claude counts five times
			if n := atOnce(t, providers.Bedrock(0, 10_000), 20, func() *http.Request { return converse(t, model, 880, 1_000) }); n != want {
				t.Errorf("%s: %d requests of 880 and 1,000 tokens at once, want %d", model, n, want)
			}
		}
		if n := atOnce(t, providers.Bedrock(0, 200_000), 20, func() *http.Request { return converse(t, claude, 10, 150_000) }); n != 1 {
			t.Errorf("%d requests at once whose max_tokens is near the quota, want 1", n)
		}
		models := 0
		if n := atOnce(t, providers.Bedrock(1, 1e9), 20, func() *http.Request {
			models++
			return converse(t, fmt.Sprint("maker.model", models), 1, 1)
		}); n != 20 {
			t.Errorf("%d models at once, want 20", n)
		}
	})
}

// A request is charged what its answer may cost in the end, by the rate of the model, even if AWS
// reserves less. That is learned from answers.
func TestBedrockExpectsOutput(t *testing.T) {
	for _, test := range []struct {
		model               string
		quota               int64
		most                int
		first, learned, few int64 // the cost before an answer, after many, and within
	}{
		{llama, 1e6, 200, 200, 200, 30},
		{claude, 1e6, 200, 5 * 200, 5 * 40, 50},
		{claude, 1e6, 10_000, 5 * 4_000, 10_000, 50},
		{"anthropic.claude-opus-4-8", 1e6, 200, 15 * 200, 15 * 40, 50},
		{claude, 600, 200, 5 * 200, 5 * 40, 50}, // the quota bounds the charge, not the cost
	} {
		p := providers.Bedrock(1, test.quota)
		cost := func() (n int64) {
			for _, n = range p.Cost(converse(t, test.model, 10, test.most)) {
			}
			return n
		}
		if n := cost(); n < test.first || n > test.first+test.few {
			t.Errorf("%s, max_tokens %d, quota %d: %d at first, want %d", test.model, test.most, test.quota, n, test.first)
		}
		for range 60 {
			p.Settle(converse(t, test.model, 10, test.most))(throttle.Cost{"output-tokens": 40})
		}
		if n := cost(); n < max(test.learned, int64(test.most)) || n > max(test.learned, int64(test.most))+test.few {
			t.Errorf("%s, max_tokens %d, quota %d: %d after answers of 40, want %d", test.model, test.most, test.quota, n, test.learned)
		}
	}
}

// A model that writes nothing is not expected to.
func TestBedrockExpectsNoOutput(t *testing.T) {
	cost := providers.Bedrock(1, 1e6).Cost(postJSON(t, "https://bedrock-runtime.us-east-1.amazonaws.com/model/amazon.titan-embed-text-v2:0/invoke", `{"inputText":"a"}`))
	if n := cost["tokens-x1"]; n < 1 || n > 10 {
		t.Errorf("an embedding of a letter costs %v", cost)
	}
}

// What a request cost replaces what was reserved, with output times the rate of the model.
func TestBedrockSettles(t *testing.T) {
	const usage = `{"usage":{"inputTokens":10,"outputTokens":40,"cacheReadInputTokens":9000,"cacheWriteInputTokens":5}}`
	stream := func(payload string) replying {
		b := binary.BigEndian.AppendUint32(nil, uint32(16+len(payload)))
		return replying{Header: map[string]string{"Content-Type": "application/vnd.amazon.eventstream"}, Body: string(b) + "\x00\x00\x00\x00crc1" + payload + "crc2"}
	}
	for name, reply := range map[string]replying{
		"invoke":          {Header: map[string]string{"X-Amzn-Bedrock-Input-Token-Count": "10", "X-Amzn-Bedrock-Output-Token-Count": "40", "X-Amzn-Bedrock-Cache-Read-Input-Token-Count": "9000", "X-Amzn-Bedrock-Cache-Write-Input-Token-Count": "5"}},
		"converse":        {Body: usage},
		"converse stream": stream(usage),
		"invoke stream":   stream(`{"amazon-bedrock-invocationMetrics":{"inputTokenCount":10,"outputTokenCount":40,"cacheReadInputTokenCount":9000,"cacheWriteInputTokenCount":5}}`),
	} {
		// A request costs 15 tokens and 40 times the rate. The quota has room for 20 of these beside a
		// reservation.
		for model, rate := range map[string]int64{llama: 1, claude: 5, "anthropic.claude-sonnet-5": 10, "anthropic.claude-opus-4-8": 15} {
			synctest.Test(t, func(t *testing.T) {
				const reserved = 5_100
				rt, n := over(t, providers.Bedrock(0, 20*(15+40*rate)+reserved), &reply), 0
				for ; n < 100; n++ {
					if _, _, took := send(t, rt, converse(t, model, 10, 5_000)); took > 0 {
						break
					}
				}
				if n < 20 || n > 22 {
					t.Errorf("%s, %s: %d requests before one waited, want 21", name, model, n)
				}
			})
		}
	}
}

func TestBedrockRefusals(t *testing.T) {
	coral := func(kind string) map[string]string {
		return map[string]string{"x-amzn-ErrorType": kind + ":http://internal.amazon.com/coral/com.amazon.bedrock/"}
	}
	for _, test := range []struct {
		name   string
		reply  fakeapi.Reply
		pauses bool
	}{
		{"requests", fakeapi.Reply{Status: 429, Header: coral("ThrottlingException"), Body: `{"message":"Too many requests, please wait before trying again."}`}, true},
		{"with status 400", fakeapi.Reply{Status: 400, Header: coral("ThrottlingException")}, true},
		{"not ready", fakeapi.Reply{Status: 429, Header: coral("ModelNotReadyException")}, false},
		{"a standing quota", fakeapi.Reply{Status: 400, Header: coral("ServiceQuotaExceededException")}, false},
		{"an outage", fakeapi.Reply{Status: 503, Header: coral("ServiceUnavailableException")}, false},
		{"no access", fakeapi.Reply{Status: 403, Header: coral("AccessDeniedException")}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := openAI(100_000, 1e9)
				rt := over(t, providers.Bedrock(1_000, 1_000_000), api)
				api.Trap(test.reply)
				send(t, rt, converse(t, claude, 1, 1))
				if _, _, took := send(t, rt, converse(t, "us."+claude, 1, 1)); took > 0 {
					t.Errorf("another profile waited %v", took)
				}
				if _, _, took := send(t, rt, converse(t, claude, 1, 1)); test.pauses != (took >= time.Second && took <= 2*time.Second) || !test.pauses && took > 0 {
					t.Errorf("waited %v", took)
				}
			})
		})
	}
}

// AWS documents no end of the day of tokens: a model waits an hour, or is closed if that is too long.
func TestBedrockDay(t *testing.T) {
	for _, most := range []time.Duration{0, 2 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			api := openAI(100_000, 1e9)
			p := providers.Bedrock(1_000, 1_000_000)
			p.Scope("x5").Policy.MaxPause = most
			rt := over(t, p, api)
			api.Trap(fakeapi.Reply{Status: 429, Header: map[string]string{"x-amzn-ErrorType": "ThrottlingException"}, Body: `{"message":"Too many tokens per day, please wait before trying again."}`})
			send(t, rt, converse(t, claude, 1, 1))
			if _, _, took := send(t, rt, converse(t, "us."+claude, 1, 1)); took > 0 {
				t.Errorf("another profile waited %v", took)
			}
			if most == 0 {
				if _, err := rt.RoundTrip(converse(t, claude, 1, 1)); !errors.Is(err, throttle.ErrBanned) {
					t.Errorf("%v, want ErrBanned", err)
				}
			} else if _, _, took := send(t, rt, converse(t, claude, 1, 1)); took != time.Hour {
				t.Errorf("waited %v, want an hour", took)
			}
		})
	}
}

// Without max_gen_len Llama uses its quota: AWS reserves 512 tokens and not the most of any model.
func TestBedrockDefaultOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reply := &stay{hold: 2 * time.Second, replies: []fakeapi.Reply{{Header: map[string]string{"X-Amzn-Bedrock-Input-Token-Count": "100", "X-Amzn-Bedrock-Output-Token-Count": "300"}}}}
		var n atomic.Int64
		d := 3 * time.Minute
		saturate(t, over(t, providers.Bedrock(0, 200_000), reply), 20, d, func(int) *http.Request {
			n.Add(1)
			return postJSON(t, "https://bedrock-runtime.us-east-1.amazonaws.com/model/"+llama+"/invoke", `{"prompt":"`+strings.Repeat("one ", 100)+`"}`)
		})
		if want := int64(0.9 * d.Minutes() * 200_000 / 400); n.Load() < want {
			t.Errorf("%d requests, want at least %d", n.Load(), want)
		}
	})
}

// Auto and Lookup know the hosts of Bedrock by their beginning and end.
func TestBedrockHosts(t *testing.T) {
	transport := auto(t, providers.Auto{Providers: []providers.Provider{providers.Bedrock(1, 1_000)}}, nil, accepting{})
	bedrock := transport.ProfileFor(get(t, "https://bedrock-runtime.us-west-2.amazonaws.com/"))
	for host, want := range map[string]int{
		"bedrock-runtime.us-east-1.amazonaws.com": 1, "bedrock-runtime-fips.us-gov-west-1.amazonaws.com": 1, "Bedrock-Runtime.us-east-1.api.aws": 1,
		"bedrock.us-east-1.amazonaws.com": 0, "s3.amazonaws.com": 0,
	} {
		if found := providers.Lookup(host); len(found) != want {
			t.Errorf("%s: %v", host, found)
		}
		if is := transport.ProfileFor(get(t, "https://"+host+"/")) == bedrock; is != (want == 1) {
			t.Errorf("%s: Auto reads its responses as Bedrock's: %v", host, is)
		}
	}
}

// A request is not sent after its signature has expired.
func TestBedrockSignature(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.Bedrock(1, 1_000_000)
		p.Scope("x5").Policy.Tiers[1].Window = 10 * time.Minute
		rt := over(t, p, accepting{})
		send(t, rt, converse(t, claude, 1, 1))
		req := converse(t, claude, 1, 1)
		req.Header.Set("X-Amz-Date", time.Now().UTC().Format("20060102T150405Z"))
		if _, err := rt.RoundTrip(req); !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("%v, want ErrDeadline", err)
		}
	})
}
