// Package chart draws the results of the fidelity runs as SVG files.
package chart

// Row is what one client reached against one provider: how many requests it
// sent, how many of them the provider refused, and how much of the allowance
// it used.
type Row struct {
	Client   string `json:"client"`
	Provider string `json:"provider"`
	Delay    string `json:"delay"`
	Policy   string `json:"policy"`
	Clock    string `json:"clock"` // "real" or "virtual"
	Guard    string `json:"guard"`

	Sent     int64 `json:"sent"`
	Accepted int64 `json:"accepted"`
	Refused  int64 `json:"refused"`

	// Utilisation is the share of the provider's allowance that was used,
	// from 0 to 1.
	Utilisation float64 `json:"utilisation"`

	// Fairness is what the worker, or in a fleet the process, with the least
	// accepted got, as a share of what the one with the most did, from 0 to 1.
	Fairness float64 `json:"fairness"`

	WorstWaitMS            float64 `json:"worst_wait_ms"`
	RedisCallsPerAdmission float64 `json:"redis_calls_per_admission,omitempty"`
	Seconds                float64 `json:"seconds"`
}
