//go:build !linux

package host

// holder describes the process that holds the file. Only Linux reports which process that is.
func holder(string) string { return "other processes hold the file" }
