// Package calls counts the calls of a limiter to Redis.
package calls

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// A Counter counts how often a client runs a script. It does not count commands that set up a
// connection, nor subscriptions. It is a hook for that client.
type Counter struct {
	// Called is called before the n-th script. If nil, nothing is called.
	Called func(n int64)

	n atomic.Int64
}

var _ redis.Hook = (*Counter)(nil)

// Count returns the number of calls so far.
func (c *Counter) Count() int64 { return c.n.Load() }

// DialHook returns next.
func (c *Counter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook counts a command.
func (c *Counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook counts the commands of a pipeline.
func (c *Counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count(cmds...)
		return next(ctx, cmds)
	}
}

func (c *Counter) count(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") || cmd.Name() == "fcall" {
			if n := c.n.Add(1); c.Called != nil {
				c.Called(n)
			}
		}
	}
}
