package algorithms

// MaxRates returns for each tier how many units a second it admits at most in the long run,
// if each request costs one unit and no response is reported. Every unit is then in flight
// for the whole guard and counts on from there: 100/s with a Burst of 1 and a guard of 50 ms
// admits one request every 60 ms, 16.7 a second. A response that comes sooner raises that. The
// rate of Concurrency and Calendar is zero: they have none. The rate of a tier with a PaceBurst
// is that of its pace, if that is lower.
func (p *Plan) MaxRates() []float64 {
	rates := make([]float64, len(p.tiers))
	for i, t := range p.tiers {
		if rate := t.counter().rate; rate != nil {
			rates[i] = 1e6 * rate(float64(t.Limit), float64(Micros(t.Window)), float64(t.Burst), float64(p.guard))
		}
		if i > 0 && p.declared[i] == p.declared[i-1] { // the pace of the one before
			rates[i-1] = min(rates[i-1], rates[i])
		}
	}
	return rates
}

// rollingRate is the rate of a counter in which each unit counts for the guard and a window.
func rollingRate(limit, window, _, guard float64) float64 { return limit / (window + guard) }
