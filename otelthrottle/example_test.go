package otelthrottle_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/otelthrottle"
)

func Example() {
	reader := metric.NewManualReader() // in a program, a PeriodicReader with an exporter
	opts := otelthrottle.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}

	observer, err := otelthrottle.New(opts)
	if err != nil {
		log.Fatal(err)
	}
	lim, err := throttle.New(throttle.Policy{Name: "mail", Tiers: []throttle.Tier{throttle.PerHour(1000)}, Observer: observer}, nil)
	if err != nil {
		log.Fatal(err)
	}
	stop, err := otelthrottle.Watch(opts, lim)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()

	client := &http.Client{Transport: &throttle.Transport{
		Limiter: lim,
		Base:    otelhttp.NewTransport(http.DefaultTransport), // inside: it measures the requests without their waits
	}}
	_ = client // give it to the provider's SDK
	if err := lim.Wait(context.Background()); err != nil {
		log.Fatal(err)
	}

	var metrics metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &metrics); err != nil {
		log.Fatal(err)
	}
	for _, m := range metrics.ScopeMetrics[0].Metrics {
		fmt.Println(m.Name)
	}
	// Output:
	// throttle.requests
	// throttle.tier.usage
	// throttle.tier.limit
	// throttle.tier.utilization
	// throttle.closed
	// throttle.guard.time
}
