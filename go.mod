module github.com/apithrottle/throttle

go 1.25.0

require (
	github.com/hashicorp/go-retryablehttp v0.7.8
	golang.org/x/sync v0.22.0
)

require github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
