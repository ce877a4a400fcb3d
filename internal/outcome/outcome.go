// Package outcome tells who sends a request what the Transport took its response for.
package outcome

import (
	"context"

	"github.com/apithrottle/throttle/answers"
)

type key struct{}

// Into returns a context with whose request a Transport writes its verdict to r, before
// it returns.
func Into(ctx context.Context, r *answers.Refusal) context.Context {
	return context.WithValue(ctx, key{}, r)
}

// Tell writes the verdict on the response to a request with that context.
func Tell(ctx context.Context, r answers.Refusal) {
	if to, ok := ctx.Value(key{}).(*answers.Refusal); ok {
		*to = r
	}
}
