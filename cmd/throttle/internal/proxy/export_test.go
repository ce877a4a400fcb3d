package proxy

import "time"

// SetBodyBounds sets how long a client may send nothing of a body, and how long net/http may read what
// remains of one.
func (h *Handler) SetBodyBounds(idle, drain time.Duration) { h.idle, h.drain = idle, drain }
