package batch

// A Journal is a file that has what is done.
type Journal struct{ forgetful }
