package throttle

// Parked returns how many quotas of the group are parked.
func (g *Group) Parked() int { return g.keys.Parked() }
