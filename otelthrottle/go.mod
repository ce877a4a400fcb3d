module github.com/apithrottle/throttle/otelthrottle

go 1.25.0

require (
	github.com/apithrottle/throttle v0.1.0
	go.opentelemetry.io/contrib/instrumentation/net/http/httptrace/otelhttptrace v0.71.0 // for tests
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.71.0 // for tests
	go.opentelemetry.io/otel v1.46.0 // the last minor version for Go 1.25
	go.opentelemetry.io/otel/metric v1.46.0
	go.opentelemetry.io/otel/sdk v1.46.0 // for tests
	go.opentelemetry.io/otel/sdk/metric v1.46.0 // for tests
	go.opentelemetry.io/otel/trace v1.46.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/felixge/httpsnoop v1.1.0 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
