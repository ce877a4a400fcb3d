package algorithms

// MaxRates returns for each tier how many units a second it admits at most in the long run,
// if each request costs one unit and no response is reported. Every unit is then in flight
// for the whole guard and counts on from there: 100/s with a Burst of 1 and a guard of 50 ms
// admits one request every 60 ms, 16.7 a second. A response that comes sooner raises that. It
// is zero for Concurrency and Calendar, which have no rate. That of a spread tier is that of
// its pace, if it is less.
func (p *Plan) MaxRates() []float64 {
	rates := make([]float64, len(p.tiers))
	guard := float64(p.guard)
	for i, t := range p.tiers {
		limit, window := float64(t.Limit), float64(Micros(t.Window))
		var perMicro float64
		switch t.Algorithm {
		case Concurrency, Calendar:
		case TokenBucket, LeakyBucket, GCRA:
			// A unit of the burst is in flight for the guard, and then takes window/limit to
			// come back, one after the other.
			perMicro = min(limit/window, float64(t.Burst)/(guard+window/limit))
		case FixedWindow:
			// What leaves as a window opens counts to the end of the one in which it lands.
			perMicro = limit / (window * float64(1+p.guard/Micros(t.Window)))
		case WeightedWindow:
			perMicro = limit / window
		default:
			perMicro = limit / (window + guard)
		}
		rates[i] = perMicro * 1e6
		if i > 0 && p.declared[i] == p.declared[i-1] { // the pace of the one before
			rates[i-1] = min(rates[i-1], rates[i])
		}
	}
	return rates
}
