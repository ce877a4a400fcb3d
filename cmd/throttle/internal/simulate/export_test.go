package simulate

import "context"

// PlayAll is Play without skipping what recurs.
func (b Batch) PlayAll(ctx context.Context) (*Run, error) { return b.play(ctx, false) }

// Skipped reports whether the run has skipped what recurs.
func (r *Run) Skipped() bool { return r.repeat.times > 0 }
