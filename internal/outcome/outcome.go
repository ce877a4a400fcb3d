// Package outcome passes what becomes of a request from its Transport to the caller that sent it.
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

type spendingKey struct{}

// Spending returns a context for requests. Each attempt to send one that costs dollars calls spent with its
// cost, once, when it has ended: also from another goroutine if the context ended first. The caller may have
// read the whole response before. Listeners of outer contexts are called, too.
func Spending(ctx context.Context, spent func(nanodollars int64)) context.Context {
	outer := ctx
	return context.WithValue(ctx, spendingKey{}, func(n int64) {
		Spent(outer, n)
		spent(n)
	})
}

// Spent calls the functions of Spending with the cost of a request with that context.
func Spent(ctx context.Context, nanodollars int64) {
	if spent, ok := ctx.Value(spendingKey{}).(func(int64)); ok {
		spent(nanodollars)
	}
}

type admittedKey struct{}

// OnAdmitted returns a context for requests. A Transport calls admitted when it sends one.
func OnAdmitted(ctx context.Context, admitted func()) context.Context {
	return context.WithValue(ctx, admittedKey{}, admitted)
}

// Admitted reports that a request with that context is sent.
func Admitted(ctx context.Context) {
	if admitted, ok := ctx.Value(admittedKey{}).(func()); ok {
		admitted()
	}
}
