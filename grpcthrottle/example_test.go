package grpcthrottle_test

import (
	"context"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/grpcthrottle"
)

func Example() {
	publish, err := throttle.New(throttle.Policy{Name: "publish", Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	limits := grpcthrottle.Limits{Route: func(_ context.Context, method string) *throttle.Limiter {
		if method == "/google.pubsub.v1.Publisher/Publish" {
			return publish
		}
		return nil // not limited
	}}
	conn, err := grpc.NewClient("pubsub.googleapis.com:443", grpc.WithTransportCredentials(credentials.NewTLS(nil)),
		grpc.WithUnaryInterceptor(limits.Unary), grpc.WithStreamInterceptor(limits.Stream))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	// Output:
}
