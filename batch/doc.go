// Package batch calls a function for each of up to many millions of items, within the limits of an API, and
// goes on where it was after it was stopped or killed.
//
//	journal, err := batch.OpenJournal("orders.journal", batch.JournalOptions{})
//	…
//	defer journal.Close()
//	transport := &throttle.Transport{Limiter: limiter}
//	client := &http.Client{Transport: transport}
//	report, err := batch.Run(ctx, batch.Job[string, Order, Receipt]{
//		Items:     orders,
//		Transport: transport,
//		Do:        func(ctx context.Context, o Order) (Receipt, error) { return send(ctx, client, o) },
//		Result:    save,
//		Journal:   journal,
//		Progress:  batch.Bar(os.Stderr),
//	})
//
// # What limits the requests
//
// With a Limiter or a Pool, Run acquires a Permit for each call of Do, which sends one request. With a
// Transport, Do sends its requests by a client of that Transport, which waits by itself: so costs that the
// Transport computes, reports of responses and package retry work as without Run. To leave Headroom to
// others, give Run a context of [throttle.WithClass] with throttle.Batch.
//
// # Errors
//
// An item whose Do returns an error has failed, after Job.Retries more calls where Job.Retry allows them. After
// a *RefusedError, Run calls Do again without asking Job.Retry, because the API did not process the request. An
// http.Client returns a 429 as a response and not as an error: Do must return a *RefusedError for it, also with
// a Transport, unless package retry sends it again. Failed items are in the Report and in the Journal, and a
// later run tries them again. Job.MaxInARow and Job.MaxFailed end a job of which too many fail.
//
// # Stopping
//
// Run ends cleanly when its context ends; see Run. After a program was killed, the next run calls Do again at
// most for the items that were in flight or whose Result had not returned, and with a Transport for those
// that waited in it. IdempotencyKey returns the same key for both calls. An API that accepts such keys then
// does the work once.
package batch
