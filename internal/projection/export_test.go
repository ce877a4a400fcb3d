package projection

// Len returns how many hours are kept.
func (h *Hours) Len() int { return len(h.sums) }
