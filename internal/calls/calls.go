// Package calls counts what a limiter asks of Redis.
package calls

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// A Counter counts how often a client runs a script: not what it sends to set up a
// connection, nor the subscription of those who wait. It is a hook for that client.
type Counter struct {
	Called func(n int64) // before the n-th. If nil, nobody is told

	n atomic.Int64
}

var _ redis.Hook = (*Counter)(nil)

// Count is how often so far.
func (c *Counter) Count() int64 { return c.n.Load() }

// DialHook changes nothing.
func (c *Counter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook counts a command.
func (c *Counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.see(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook counts the commands of a pipeline.
func (c *Counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.see(cmds...)
		return next(ctx, cmds)
	}
}

func (c *Counter) see(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") || cmd.Name() == "fcall" {
			if n := c.n.Add(1); c.Called != nil {
				c.Called(n)
			}
		}
	}
}
