package batch

import "io"

func Bar(io.Writer) func(Progress) { return nil }
