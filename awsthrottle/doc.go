// Package awsthrottle keeps the clients of aws-sdk-go-v2 inside limits.
//
//	lim, err := throttle.New(policy, nil)
//	cfg, err := config.LoadDefaultConfig(ctx)
//	awsthrottle.Append(&cfg.APIOptions, awsthrottle.Limits{Limiter: lim})
//	client := sqs.NewFromConfig(cfg)
//
// Every attempt of an operation waits for its admission, also those that the SDK makes again. The wait
// comes before the SDK fetches credentials and signs, so that no signature ages in the queue. An
// http.Client with a throttle.Transport would wait after that.
//
// An attempt that AWS refuses, with ThrottlingException, SlowDown or another code of the SDK's
// retry.DefaultThrottles, pauses the quota for all callers, in a fleet too. If the response names no
// wait, as most, the pause is a back-off: a second or two, doubled until an attempt passes. Then one
// attempt tries, and the others follow when its response is in.
//
// # The SDK's own retries
//
// Keep the SDK's standard retries: each is admitted and charged as any attempt is, so they break no
// limit. The delays between them pass while the attempt would wait anyway. The adaptive mode limits
// again what is limited here; it is not needed. A refusal by the Limiter is not retried: an operation
// whose wait would outlast its context fails at once with a [throttle.WaitError].
//
// # Limits per table, queue or region
//
// [Limits.Route] chooses the Limiter of an operation by its service, name, region and input, for
// example with the For of a throttle.Group. The page Service Quotas of AWS's console has the limits of
// an account.
package awsthrottle
