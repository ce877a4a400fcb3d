// Package outcome passes a Transport's classification of a response to the caller that sent the
// request.
package outcome

import (
	"context"

	"github.com/apithrottle/throttle/answers"
)

type key struct{}

// Into returns a context for a request. A Transport writes its classification of the response to r
// before it returns.
func Into(ctx context.Context, r *answers.Refusal) context.Context {
	return context.WithValue(ctx, key{}, r)
}

// Tell stores the classification of the response to a request with that context.
func Tell(ctx context.Context, r answers.Refusal) {
	if to, ok := ctx.Value(key{}).(*answers.Refusal); ok {
		*to = r
	}
}
