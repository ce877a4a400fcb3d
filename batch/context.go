package batch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/apithrottle/throttle"
)

// An item is what the context of a call of Do tells.
type item struct {
	book   book
	key    string
	permit *throttle.Permit
}

type itemKey struct{}

func withItem(ctx context.Context, i *item) context.Context {
	return context.WithValue(ctx, itemKey{}, i)
}

// IdempotencyKey returns a key for the field Idempotency-Key of the request of an item, given the context of Do.
// It is the same in each call for the item, and in a later run with the same Journal. It is 32 hexadecimal
// digits, and empty in any other context.
func IdempotencyKey(ctx context.Context) string {
	i, ok := ctx.Value(itemKey{}).(*item)
	if !ok {
		return ""
	}
	id := i.book.id()
	sum := sha256.Sum256(append(id[:], i.key...))
	return hex.EncodeToString(sum[:16])
}

// Permit returns the Permit of a call of Do, given its context: to Settle what the request has really cost, or
// to know the Member of a Pool. It is nil, whose methods do nothing, for a job with a Transport. Run reports
// the arrival and the end of the request.
func Permit(ctx context.Context) *throttle.Permit {
	if i, ok := ctx.Value(itemKey{}).(*item); ok {
		return i.permit
	}
	return nil
}
