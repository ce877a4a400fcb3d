// Package sdktest runs providers' own clients, unchanged, over throttle's transport and
// against strict stand-ins. It is a module of its own, so that they don't become
// dependencies.
package sdktest
