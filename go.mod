module github.com/apithrottle/throttle

go 1.25.0 // the oldest release of Go that is maintained

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/dunglas/httpsfv v1.1.2
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/redis/go-redis/v9 v9.22.0 // the last minor version for Go 1.25
	github.com/yuin/gopher-lua v1.1.1 // runs the script in tests
	go.etcd.io/bbolt v1.4.3
	golang.org/x/sync v0.22.0 // the last minor version for Go 1.25
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.30.0 // indirect
)
