// Package sdktest runs the clients of providers, unchanged, over throttle's transport and against
// strict fake APIs. It also runs the proxy of the command throttle as a process, between clients in
// several languages and APIs on the loopback interface. It is a separate module because the clients
// must not become dependencies of throttle.
package sdktest
