package proxy

import "testing"

// TestAdmittedOrStopped lets the limiter admit requests in the instants in which the proxy stops them. None is
// canceled after its admission, when it may have been sent.
func TestAdmittedOrStopped(t *testing.T) {
	var admitted, stopped int
	for range 20_000 {
		trip := new(trip)
		trip.begin(t.Context(), -1)
		begun, done := make(chan bool), make(chan bool)
		go func() {
			close(begun)
			trip.stop(stoppedDraining)
			close(done)
		}()
		<-begun
		trip.admit()
		ended := trip.Err() != nil // else the request is sent now
		<-done
		switch canceled := trip.Err() != nil; {
		case canceled && !ended:
			t.Fatalf("a request was canceled after it was admitted; before, %d were admitted and %d stopped", admitted, stopped)
		case canceled:
			stopped++
		default:
			admitted++
		}
		trip.finish()
	}
}
