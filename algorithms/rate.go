package algorithms

// MaxRates returns for each tier how many units a second it admits at most in the long run, if
// each request costs one unit and responses are not reported. Every unit is then in flight for the
// whole guard, and its window starts after that: 100/s with a Burst of 1 and a guard of 50 ms
// admits one request every 60 ms, 16.7 a second. Responses that come sooner raise the rate. The
// rate of Concurrency and Calendar is zero, which stands for none. The rate of a tier with a
// PaceBurst is the rate of its pace, if that is lower.
func (p *Plan) MaxRates() []float64 {
	rates := make([]float64, len(p.tiers))
	for i, t := range p.tiers {
		if rate := t.counter().rate; rate != nil {
			rates[i] = 1e6 * rate(float64(t.Limit), float64(Micros(t.Window)), float64(t.Burst), float64(p.guard))
		}
		if p.IsPace(i) {
			rates[i-1] = min(rates[i-1], rates[i])
		}
	}
	return rates
}

// rollingRate returns the rate of a counter in which each unit counts for the guard and a window.
func rollingRate(limit, window, _, guard float64) float64 { return limit / (window + guard) }
