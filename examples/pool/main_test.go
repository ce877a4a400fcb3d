package main

// The program runs as it is printed in docs/pools.md.
func Example() {
	main()
	// Output:
	// request 0 goes to east
	// request 1 goes to west
	// request 2 goes to east
	// request 3 goes to west
	// request 4 goes to west
	// the next one would wait 1h0m0s <nil>
}
