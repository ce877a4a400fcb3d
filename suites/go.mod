module github.com/apithrottle/throttle/suites

go 1.25.0

require (
	connectrpc.com/connect v1.20.0
	github.com/apithrottle/throttle v0.0.0
	github.com/coder/websocket v1.8.15
	github.com/google/go-github/v74 v74.0.0
	golang.org/x/oauth2 v0.36.0
)

require (
	github.com/google/go-querystring v1.1.0 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)

replace github.com/apithrottle/throttle => ../
