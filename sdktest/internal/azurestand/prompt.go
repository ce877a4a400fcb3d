package azurestand

import (
	"crypto/sha256"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"time"
)

// A chat is the body of a request, as far as it matters here.
type chat struct {
	Model               string                       `json:"model"`
	Messages            []map[string]json.RawMessage `json:"messages"`
	Tools               json.RawMessage              `json:"tools"`
	ResponseFormat      json.RawMessage              `json:"response_format"`
	MaxTokens           *int                         `json:"max_tokens"`
	MaxCompletionTokens *int                         `json:"max_completion_tokens"`
	N                   *int                         `json:"n"`
	BestOf              *int                         `json:"best_of"`
	Stream              bool                         `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	PromptCacheKey string `json:"prompt_cache_key"`
}

// readChat reads a body. The fault is "" if it is a good one.
func readChat(body []byte) (c chat, fault string) {
	if err := json.Unmarshal(body, &c); err != nil {
		return c, "We could not parse the JSON body of your request."
	}
	for name, n := range map[string]*int{
		"max_tokens": c.MaxTokens, "max_completion_tokens": c.MaxCompletionTokens, "n": c.N, "best_of": c.BestOf,
	} {
		if n != nil && *n < 1 {
			return c, "Invalid '" + name + "': integer below minimum value."
		}
	}
	switch {
	case len(c.Messages) == 0:
		return c, "Missing required parameter: 'messages'."
	case c.StreamOptions != nil && !c.Stream:
		return c, "The 'stream_options' parameter is only allowed when 'stream' is enabled."
	}
	return c, ""
}

// limit returns the number of tokens that an answer may have, or 0 if the request doesn't say.
func (c *chat) limit() int {
	return max(or(c.MaxTokens, 0), or(c.MaxCompletionTokens, 0))
}

func or(n *int, otherwise int) int {
	if n == nil {
		return otherwise
	}
	return *n
}

// estimate returns what a request takes of the tokens a minute: the prompt, max_tokens for each of
// the n answers, and all of it best_of times ("each increment of best_of multiplies the token count
// against your rate limit", the quota page). The text counts by its characters, as the page says,
// not by the tokens of a model. A body that cannot be read counts by its size.
func (d *deployment) estimate(c call, size int) int {
	if c.fault != "" {
		return quarter(size)
	}
	answer := c.chat.limit()
	if answer == 0 {
		answer = d.Unbounded
	}
	return (len(c.chat.prompt()) + answer*or(c.chat.N, 1)) * or(c.chat.BestOf, 1)
}

// quarter returns the tokens of n characters: one for each four, rounded up.
func quarter(n int) int { return (n + 3) / 4 }

// prompt returns the tokens of a prompt: four characters each, and three more for each message. That
// is the estimate of the capture of 2024-11-09 (apim-request-id bea1796b-ad97-45dc-a586-b31cd1e94b1b):
// three messages of 52, 30 and 61 characters, with max_tokens 800, took 846 of 10,000. Tools and a
// schema come before the messages (the caching page).
func (c *chat) prompt() []string {
	tokens := append(split(string(c.Tools)), split(string(c.ResponseFormat))...)
	for _, m := range c.Messages {
		role := "<|" + string(m["role"]) + "|>"
		tokens = append(tokens, role, role, role)
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if name == "role" {
				continue
			}
			for _, text := range texts(m[name]) {
				tokens = append(tokens, split(text)...)
			}
		}
	}
	return tokens
}

// texts returns the texts of a field of a message: a string, the text of each part, or the JSON.
func texts(raw json.RawMessage) []string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []string{text}
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return []string{string(raw)}
	}
	var all []string
	for _, part := range parts {
		var p struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}
		if json.Unmarshal(part, &p) != nil || p.Type != "text" {
			p.Text = string(part)
		}
		all = append(all, p.Text)
	}
	return all
}

// split cuts a text into tokens of four characters.
func split(text string) []string {
	runes := []rune(text)
	tokens := make([]string, 0, quarter(len(runes)))
	for len(runes) > 0 {
		n := min(4, len(runes))
		tokens = append(tokens, string(runes[:n]))
		runes = runes[n:]
	}
	return tokens
}

// A cache holds the beginnings of the prompts that a deployment has seen: the first 1,024 tokens and
// each 128 more, since "after the first 1,024 tokens cache hits will occur for every 128 additional
// identical tokens" (the caching page). That requests are routed by a hash of the first 256 tokens
// makes no difference here: prompts that share 1,024 share those too. The requests of one prefix that
// overflow to further machines, "approximately" beyond 15 a minute, are not modeled. A use keeps a
// beginning for another while; the hour after the last use, at which it is gone always, is longer.
//
// The page says that caches aren't shared between subscriptions and nothing about deployments; here
// each deployment has its own.
type cache struct {
	idle time.Duration
	seen map[prefix]time.Time // when it was used last
}

// A prefix is the hash of the beginning of a prompt and of its prompt_cache_key, with which it "is
// combined" (the caching page).
type prefix [sha256.Size]byte

const cacheLeast, cacheStep = 1024, 128

// use returns the number of tokens of a prompt that the cache holds, and puts the prompt in it.
func (c *cache) use(now time.Time, key string, prompt []string) (cached int) {
	h := sha256.New()
	_, _ = io.WriteString(h, key+"\x00") // a hash never fails
	for i, token := range prompt {
		_, _ = io.WriteString(h, token+"\x00")
		n := i + 1
		if n < cacheLeast || (n-cacheLeast)%cacheStep != 0 {
			continue
		}
		p := prefix(h.Sum(nil))
		if used, ok := c.seen[p]; ok && now.Sub(used) < c.idle {
			cached = n
		}
		c.seen[p] = now
	}
	return cached
}
