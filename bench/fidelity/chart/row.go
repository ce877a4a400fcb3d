// Package chart draws the results of the fidelity runs as SVG files.
package chart

// A Row is the result of one run: one client against one provider.
type Row struct {
	Client   string `json:"client"`
	Provider string `json:"provider"`
	Delay    string `json:"delay"`
	Policy   string `json:"policy"`
	// Clock is "real" or "virtual".
	Clock string `json:"clock"`
	// Guard is the client's guard. If empty, the client has none.
	Guard string `json:"guard"`

	Sent     int64 `json:"sent"`
	Accepted int64 `json:"accepted"`
	Refused  int64 `json:"refused"`

	// Utilization is the share of the upper bound that was accepted. It exceeds 1 if the
	// client's requests happened to fit better.
	Utilization float64 `json:"utilization"`

	// Fairness is the smallest number of accepted requests of a worker, or in a fleet of a
	// process, divided by the largest. It is between 0 and 1.
	Fairness float64 `json:"fairness"`

	// WorstWaitMS is the longest wait for admission, in milliseconds.
	WorstWaitMS            float64 `json:"worst_wait_ms"`
	RedisCallsPerAdmission float64 `json:"redis_calls_per_admission,omitempty"`
	Seconds                float64 `json:"seconds"`
}
