//go:build !unix

package cli

import "os"

// resizes returns no signals: the next second brings the new size.
func resizes() (<-chan os.Signal, func()) { return nil, func() {} }
