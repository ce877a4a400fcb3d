package awsthrottle

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/apithrottle/throttle"
)

// Limits are the quotas of a client. They may be used for several clients, which then share them.
type Limits struct {
	// Limiter is the quota. If Limiter and Route are nil, nothing is limited.
	Limiter *throttle.Limiter

	// Route chooses the Limiter of an operation. An operation for which it returns nil is not
	// limited. It is called for each attempt. If Route is nil, Limiter is used.
	Route func(Operation) *throttle.Limiter

	// Cost returns what an attempt costs. If Cost is nil, each attempt costs one request.
	Cost func(Operation) throttle.Cost

	// Throttled reports whether an error is a refusal for lack of quota. If nil, the codes of
	// retry.DefaultThrottles and the status 429 are.
	Throttled func(error) bool
}

// An Operation is what a client was called for.
type Operation struct {
	Service string // such as "DynamoDB"
	Name    string // such as "PutItem"
	Region  string // such as "eu-central-1"; empty for a service without regions
	Input   any    // such as a *dynamodb.PutItemInput; not to be changed
}

// Append adds the limits to the options of a client, or to those of a configuration and so of all
// clients that are made from it. Use it once for each.
//
// An attempt occupies its place in a tier of throttle.Concurrency until the body of its response has
// been read, also where the body is part of the output, as of S3's GetObject: close it. An attempt that
// fails before it is sent, for example because there are no credentials, is refunded.
func Append(options *[]func(*middleware.Stack) error, l Limits) {
	*options = append(*options, l.addTo)
}

// addTo adds the middlewares to the stack of an operation. An operation that makes no attempts, because
// it only presigns a request, has no need of them.
func (l Limits) addTo(stack *middleware.Stack) error {
	attempts := (*retry.Attempt)(nil).ID()
	if _, ok := stack.Finalize.Get(attempts); !ok {
		return nil
	}
	if err := stack.Initialize.Add(middleware.InitializeMiddlewareFunc("ThrottleInput", keepInput), middleware.Before); err != nil {
		return err
	}
	if err := stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("Throttle", l.limit), attempts, middleware.After); err != nil {
		return err
	}
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("ThrottleSend", watchSend), middleware.After)
}

type (
	inputKey   struct{}
	attemptKey struct{}
)

// keepInput keeps the input of an operation for Route and Cost.
func keepInput(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
	return next.HandleInitialize(middleware.WithStackValue(ctx, inputKey{}, in.Parameters), in)
}

// limit admits an attempt, passes it on and reports what became of it.
func (l Limits) limit(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (
	out middleware.FinalizeOutput, metadata middleware.Metadata, err error,
) {
	op := Operation{awsmiddleware.GetServiceID(ctx), awsmiddleware.GetOperationName(ctx), awsmiddleware.GetRegion(ctx), middleware.GetStackValue(ctx, inputKey{})}
	limiter := l.Limiter
	if l.Route != nil {
		limiter = l.Route(op)
	}
	if limiter == nil {
		return next.HandleFinalize(ctx, in)
	}
	var cost throttle.Cost
	if l.Cost != nil {
		cost = l.Cost(op)
	}
	permit, err := limiter.Acquire(ctx, cost)
	if err != nil {
		return out, metadata, refusal{err}
	}
	a := &attempt{permit: permit}
	defer func() { a.end(err == nil && out.Result != nil) }()
	out, metadata, err = next.HandleFinalize(middleware.WithStackValue(ctx, attemptKey{}, a), in)
	a.report(ctx, err, l.throttled(err))
	return out, metadata, err
}

func (l Limits) throttled(err error) bool {
	if err == nil || l.Throttled != nil {
		return err != nil && l.Throttled(err)
	}
	var response *smithyhttp.ResponseError
	return retry.IsErrorThrottles(retry.DefaultThrottles).IsErrorThrottle(err) == aws.TrueTernary ||
		errors.As(err, &response) && response.HTTPStatusCode() == http.StatusTooManyRequests
}

// A refusal is an error of the Limiter, which the SDK must not retry.
type refusal struct{ error }

func (r refusal) Unwrap() error      { return r.error }
func (refusal) RetryableError() bool { return false }

// An attempt is an admitted attempt of an operation.
type attempt struct {
	permit   *throttle.Permit
	sent     atomic.Bool  // it was handed to the HTTP client
	answered atomic.Bool  // its response is in
	bodies   atomic.Int32 // bodies that are open
	ended    atomic.Bool  // the operation has its result
}

// watchSend records that an attempt is sent, and follows the body of its response.
func watchSend(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
	a, limited := middleware.GetStackValue(ctx, attemptKey{}).(*attempt)
	if limited {
		a.sent.Store(true)
	}
	out, metadata, err := next.HandleDeserialize(ctx, in)
	if response, ok := out.RawResponse.(*smithyhttp.Response); limited && ok && err == nil {
		a.answered.Store(true)
		if response.Response != nil && response.Body != nil && response.Body != http.NoBody {
			a.bodies.Add(1)
			response.Body = &body{ReadCloser: response.Body, end: sync.OnceFunc(a.bodyEnded)}
		}
	}
	return out, metadata, err
}

// report reports the response of the attempt, if there is one.
func (a *attempt) report(ctx context.Context, err error, throttled bool) {
	ctx = context.WithoutCancel(ctx)
	var api smithy.APIError
	switch {
	case !a.sent.Load():
		_ = a.permit.Cancel(ctx) // if a shared store is not available, the attempt stays charged
	case !a.answered.Load():
	case throttled:
		// If a shared store is not available, the next refusal pauses the quota.
		_ = a.permit.Refused(ctx, waitOf(err))
	case err == nil || errors.As(err, &api) && api.ErrorFault() != smithy.FaultServer:
		a.permit.Passed()
	default:
		a.permit.Arrived()
	}
}

// end ends the attempt, or lets the end of its body do so if the caller has the body.
func (a *attempt) end(hasResult bool) {
	a.ended.Store(true)
	if !hasResult || a.bodies.Load() == 0 {
		a.permit.Release()
	}
}

func (a *attempt) bodyEnded() {
	if a.bodies.Add(-1) == 0 && a.ended.Load() {
		a.permit.Release()
	}
}

// A body reports its end.
type body struct {
	io.ReadCloser
	end func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// waitOf returns the wait that the response of an error names, or zero.
func waitOf(err error) time.Duration {
	var response *smithyhttp.ResponseError
	if !errors.As(err, &response) || response.Response == nil || response.Response.Response == nil {
		return 0
	}
	for header, unit := range map[string]time.Duration{"X-Amz-Retry-After": time.Millisecond, "Retry-After": time.Second} {
		const most = 1 << 30 // seconds
		if n, err := strconv.ParseInt(response.Response.Header.Get(header), 10, 64); err == nil && n > 0 {
			return time.Duration(min(n, most)) * unit
		}
	}
	return 0
}
