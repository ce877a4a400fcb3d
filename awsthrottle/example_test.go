package awsthrottle_test

import (
	"context"
	"fmt"
	"log"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/awsthrottle"
)

func ExampleAppend() {
	lim, err := throttle.New(throttle.Policy{Name: "sqs", Tiers: []throttle.Tier{throttle.PerSecond(300)}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	// In a program: cfg, err := config.LoadDefaultConfig(ctx)
	cfg := aws.Config{Region: "eu-central-1", HTTPClient: new(api), Credentials: aws.AnonymousCredentials{}}
	awsthrottle.Append(&cfg.APIOptions, awsthrottle.Limits{Limiter: lim})
	client := sqs.NewFromConfig(cfg)
	_, err = client.DeleteMessage(context.Background(), &sqs.DeleteMessageInput{
		QueueUrl: aws.String("https://sqs.eu-central-1.amazonaws.com/1/orders.fifo"), ReceiptHandle: aws.String("handle"),
	}) // waits its turn
	fmt.Println(err)
	// Output: <nil>
}
