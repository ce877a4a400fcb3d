// Package grpcthrottle keeps the clients of grpc-go inside limits.
//
//	lim, err := throttle.New(policy, nil)
//	limits := grpcthrottle.Limits{Limiter: lim}
//	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds),
//		grpc.WithUnaryInterceptor(limits.Unary), grpc.WithStreamInterceptor(limits.Stream))
//
// Every call waits for its admission. If interceptors are chained, those that call again, such as one
// that retries, go before these, and those that sign go after these.
//
// A ResourceExhausted from the server pauses the quota for all callers, in a fleet too: for the delay of
// the google.rpc.RetryInfo in its details, as Google's APIs send it, or else for a back-off of a second
// or two, doubled until a call passes. Then one call tries, and the others follow when it is answered.
// An Unavailable with RetryInfo pauses for at most a minute. A message that is larger than a client or a
// server allows is a ResourceExhausted, too, and pauses nothing.
//
// A call that the Limiter refuses is not sent. Its error has a status: DeadlineExceeded if the wait
// would outlast the context, and ResourceExhausted otherwise. It also matches the errors of package
// throttle.
//
// # Streams
//
// A stream is one call. It occupies its place in a tier of throttle.Concurrency until it ends, so follow
// grpc's rules: receive until an error, or cancel the context. Its messages are not limited, unless
// [Limits.Messages] says so.
//
// # The retries of grpc
//
// What grpc itself sends again, it sends below the interceptors, where these don't see it. That is
// harmless where the server has not processed the call, which is when grpc retries without being asked.
// A retryPolicy in the service configuration sends more than is charged: use grpc.WithDisableRetry.
package grpcthrottle
