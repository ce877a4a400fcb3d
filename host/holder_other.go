//go:build !linux

package host

// holder returns who has the file. No system but Linux tells.
func holder(string) string { return "others have the file" }
