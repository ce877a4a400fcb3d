package throttle

// Parked returns how many quotas of the group are parked.
func (g *Group) Parked() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.entries {
		if e.parked != nil {
			n++
		}
	}
	return n
}
