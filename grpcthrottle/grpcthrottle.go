package grpcthrottle

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/apithrottle/throttle"
)

// Limits are the quotas of a client. Its methods Unary and Stream are interceptors. They block until a
// call is admitted or its context ends. Limits may be used for several clients, which then share the
// quotas. They are safe for concurrent use, as long as the fields are not changed.
type Limits struct {
	// Limiter is the quota. If Limiter and Route are nil, nothing is limited.
	Limiter *throttle.Limiter

	// Route chooses the Limiter of a call to a method such as
	// "/google.pubsub.v1.Publisher/Publish". A call for which it returns nil is not limited. If
	// Route is nil, Limiter is used.
	Route func(ctx context.Context, method string) *throttle.Limiter

	// Cost returns what a call costs. The request is nil for a stream. If Cost is nil, each call
	// costs one request.
	Cost func(ctx context.Context, method string, request any) throttle.Cost

	// Messages chooses a Limiter for the messages that a stream sends: SendMsg waits for one
	// request of it before each. The Limiter must have no tier of throttle.Concurrency. If Messages
	// is nil or returns nil, messages are not limited.
	Messages func(ctx context.Context, method string) *throttle.Limiter
}

var (
	_ grpc.UnaryClientInterceptor  = Limits{}.Unary
	_ grpc.StreamClientInterceptor = Limits{}.Stream
)

// Unary is a grpc.UnaryClientInterceptor.
func (l Limits) Unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	permit, err := l.acquire(ctx, method, request)
	if err != nil {
		return err
	}
	defer permit.Release()
	err = invoke(ctx, method, request, reply, conn, opts...)
	report(ctx, permit, err)
	return err
}

// Stream is a grpc.StreamClientInterceptor.
func (l Limits) Stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, start grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	permit, err := l.acquire(ctx, method, nil)
	if err != nil {
		return nil, err
	}
	end := func(err error) {
		report(ctx, permit, err)
		permit.Release()
	}
	s := &stream{ctx: ctx, permit: permit}
	if l.Messages != nil {
		s.messages = l.Messages(ctx, method)
	}
	started := false
	defer func() {
		if !started { // also after a panic
			permit.Release()
		}
	}()
	s.ClientStream, err = start(ctx, desc, conn, method, append(opts[:len(opts):len(opts)], grpc.OnFinish(end))...)
	if err != nil {
		report(ctx, permit, err)
		return nil, err
	}
	started = true
	return s, nil
}

// acquire waits for the Limiter of a call. If there is none, the permit is nil, which does nothing.
func (l Limits) acquire(ctx context.Context, method string, request any) (*throttle.Permit, error) {
	limiter := l.Limiter
	if l.Route != nil {
		limiter = l.Route(ctx, method)
	}
	if limiter == nil {
		return nil, nil
	}
	var cost throttle.Cost
	if l.Cost != nil {
		cost = l.Cost(ctx, method, request)
	}
	permit, err := limiter.Acquire(ctx, cost)
	if err != nil {
		return nil, refusal{err}
	}
	return permit, nil
}

// A stream is a stream that was admitted.
type stream struct {
	grpc.ClientStream
	ctx      context.Context
	permit   *throttle.Permit
	messages *throttle.Limiter // nil if messages are not limited
}

// SendMsg waits until the message is admitted. As its contract says, it returns the stream's own
// errors unchanged.
func (s *stream) SendMsg(m any) error {
	if s.messages != nil {
		if err := s.messages.Wait(s.ctx); err != nil {
			return refusal{err}
		}
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg reports the first message, because the provider has counted the call by then.
func (s *stream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.permit.Passed()
	}
	return err
}

const mostUnavailable = time.Minute // the longest pause that an Unavailable may impose

// report reports the end of a call to its permit. Of a call that may have got no answer it reports
// nothing.
func report(ctx context.Context, permit *throttle.Permit, err error) {
	st, _ := status.FromError(err)
	wait, told := retryDelay(st)
	ctx = context.WithoutCancel(ctx)
	switch st.Code() {
	case codes.ResourceExhausted:
		if !isTooLarge(st) {
			// If a shared store is not available, the next refusal pauses the quota.
			_ = permit.Refused(ctx, wait)
		}
	case codes.Unavailable:
		if told {
			_ = permit.Refused(ctx, min(wait, mostUnavailable))
		}
	case codes.Canceled, codes.DeadlineExceeded:
	case codes.Unknown, codes.Internal, codes.DataLoss:
		permit.Arrived()
	default:
		permit.Passed()
	}
}

// retryDelay returns the delay in the details of a status.
func retryDelay(st *status.Status) (delay time.Duration, told bool) {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay() != nil {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// isTooLarge reports whether a ResourceExhausted is grpc's own, about the size of a message.
func isTooLarge(st *status.Status) bool {
	return strings.Contains(st.Message(), "larger than max") || strings.Contains(st.Message(), "message too large")
}

// A refusal is an error of the Limiter, with a status.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// GRPCStatus returns the status, for package status.
func (r refusal) GRPCStatus() *status.Status {
	switch {
	case errors.Is(r.error, context.Canceled):
		return status.New(codes.Canceled, r.Error())
	case errors.Is(r.error, context.DeadlineExceeded):
		return status.New(codes.DeadlineExceeded, r.Error())
	}
	return status.New(codes.ResourceExhausted, r.Error())
}
