// Package sdktest runs the clients of providers, unchanged, over throttle's transport and against
// strict fake APIs. It is a separate module because the clients must not become dependencies of
// throttle.
package sdktest
