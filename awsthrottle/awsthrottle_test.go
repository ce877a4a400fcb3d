package awsthrottle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/awsthrottle"
)

// An api is a queue without a network. It answers the first requests with the replies of next, and all
// others with a message id.
type api struct {
	mu       sync.Mutex
	next     []reply
	received []time.Time
	signed   []string // the X-Amz-Date of each request
}

type reply struct {
	status     int
	code       string
	header     string // X-Amz-Retry-After
	retryAfter string
	err        error
}

func (a *api) Do(req *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if req.Body != nil {
		req.Body.Close()
	}
	a.received, a.signed = append(a.received, time.Now()), append(a.signed, req.Header.Get("X-Amz-Date"))
	resp := &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}, "Date": {time.Now().UTC().Format(http.TimeFormat)}},
		Body: io.NopCloser(strings.NewReader(`{"MessageId":"1"}`)), Request: req,
	}
	if len(a.next) == 0 {
		return resp, nil
	}
	r := a.next[0]
	a.next = a.next[1:]
	if r.err != nil {
		return nil, r.err
	}
	resp.StatusCode = r.status
	resp.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"__type":"com.amazonaws.sqs#%s","message":"No."}`, r.code)))
	if r.retryAfter != "" {
		resp.Header.Set(r.header, r.retryAfter)
	}
	return resp, nil
}

// client returns a client of the api inside limits.
func client(a *api, l awsthrottle.Limits, change ...func(*aws.Config)) *sqs.Client {
	cfg := aws.Config{
		Region: "eu-central-1", HTTPClient: a,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: "secret"}, nil
		}),
	}
	for _, f := range change {
		f(&cfg)
	}
	awsthrottle.Append(&cfg.APIOptions, l)
	return sqs.NewFromConfig(cfg, func(o *sqs.Options) { o.DisableMessageChecksumValidation = true })
}

func noRetries(cfg *aws.Config) { cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} } }

func limiter(t *testing.T, spec string) *throttle.Limiter {
	t.Helper()
	p, err := throttle.ParsePolicy("aws", spec)
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttle.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func sendMessage(ctx context.Context, c *sqs.Client) error {
	_, err := c.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: aws.String("https://sqs.eu-central-1.amazonaws.com/1/orders"), MessageBody: aws.String("Hello!")})
	return err
}

// Operations wait before they are signed.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := new(api)
		c := client(a, awsthrottle.Limits{Limiter: limiter(t, "5/s")})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := sendMessage(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i, at := range a.received {
			if i >= 5 && at.Sub(a.received[i-5]) < time.Second {
				t.Errorf("request %d came %v after the fifth before it", i+1, at.Sub(a.received[i-5]))
			}
			if want := at.UTC().Format("20060102T150405Z"); a.signed[i] != want {
				t.Errorf("request %d was signed at %s and sent at %s", i+1, a.signed[i], want)
			}
		}
		if took := a.received[len(a.received)-1].Sub(a.received[0]); len(a.received) != 50 || took != 9*time.Second {
			t.Errorf("%d requests took %v", len(a.received), took)
		}
	})
}

// A refusal pauses the quota for all, and what else fails does not.
func TestRefusals(t *testing.T) {
	const backoff = -1
	for name, test := range map[string]struct {
		reply reply
		wait  time.Duration
	}{
		"ThrottlingException":        {reply{status: 400, code: "ThrottlingException"}, backoff},
		"SlowDown":                   {reply{status: 503, code: "SlowDown"}, backoff},
		"RequestThrottled":           {reply{status: 403, code: "RequestThrottled"}, backoff},
		"another code of status 429": {reply{status: 429, code: "Busy"}, backoff},
		"a wait":                     {reply{status: 400, code: "ThrottlingException", header: "Retry-After", retryAfter: "7"}, 7 * time.Second},
		"a wait in milliseconds":     {reply{status: 400, code: "ThrottlingException", header: "X-Amz-Retry-After", retryAfter: "1500"}, 1500 * time.Millisecond},
		"not of the limit":           {reply{status: 400, code: "QueueDoesNotExist"}, 0},
		"of the server":              {reply{status: 500, code: "InternalError"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &api{next: []reply{test.reply}}
				c := client(a, awsthrottle.Limits{Limiter: limiter(t, "1000/s")}, noRetries)
				if err := sendMessage(t.Context(), c); err == nil {
					t.Fatal("no error")
				}
				start := time.Now()
				if err := sendMessage(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				took := time.Since(start)
				if test.wait == backoff && (took < time.Second || took > 2*time.Second) || test.wait != backoff && took != test.wait {
					t.Errorf("the next operation waited %v, want %v", took, test.wait)
				}
			})
		})
	}
}

// The SDK's retries are admitted and charged, and wait out the pause like all others.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{next: []reply{{status: 400, code: "ThrottlingException", header: "Retry-After", retryAfter: "60"}}}
		lim := limiter(t, "10/h")
		c := client(a, awsthrottle.Limits{Limiter: lim})
		start := time.Now()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := sendMessage(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took < time.Minute || took > 2*time.Minute || len(a.received) != 9 {
			t.Errorf("%d requests in %v", len(a.received), took)
		}
		status, err := lim.Status(t.Context())
		if err != nil || status.Tiers[0].Remaining != 1 {
			t.Errorf("%+v, %v, want 1 of 10 left", status, err)
		}
	})
}

// What the Limiter refuses is not sent, not retried and not charged.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := new(api)
		c := client(a, awsthrottle.Limits{Limiter: limiter(t, "1/min")})
		if err := sendMessage(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		var e *throttle.WaitError
		if err := sendMessage(ctx, c); !errors.As(err, &e) || !errors.Is(err, throttle.ErrDeadline) || time.Since(start) > 0 || len(a.received) != 1 {
			t.Errorf("%v after %v, %d requests", err, time.Since(start), len(a.received))
		}
	})
}

// An attempt that is not sent is refunded. One that gets no response is not.
func TestUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{next: []reply{{err: errors.New("connection reset")}}}
		lim := limiter(t, "2/h;algo=fixed_window + 1;algo=concurrency")
		unknown := client(a, awsthrottle.Limits{Limiter: lim}, noRetries, func(cfg *aws.Config) {
			cfg.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, errors.New("no credentials") })
		})
		known := client(a, awsthrottle.Limits{Limiter: lim}, noRetries)
		for range 3 {
			if err := sendMessage(t.Context(), unknown); err == nil || len(a.received) > 0 {
				t.Fatalf("%v, %d requests", err, len(a.received))
			}
		}
		if err := sendMessage(t.Context(), known); err == nil {
			t.Fatal("no error")
		}
		if err := sendMessage(t.Context(), known); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := sendMessage(ctx, known); !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("the third of two an hour: %v", err)
		}
	})
}

// download is an operation whose output is the body of the response, as S3's GetObject.
func download(ctx context.Context, a *api, l awsthrottle.Limits, retries bool) (io.ReadCloser, error) {
	stack := middleware.NewStack("GetObject", smithyhttp.NewStackRequest)
	steps := []error{
		stack.Serialize.Add(middleware.SerializeMiddlewareFunc("URL", func(ctx context.Context, in middleware.SerializeInput, next middleware.SerializeHandler) (middleware.SerializeOutput, middleware.Metadata, error) {
			in.Request.(*smithyhttp.Request).URL.Host = "example.com"
			return next.HandleSerialize(ctx, in)
		}), middleware.After),
		stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("Output", func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
			out, metadata, err := next.HandleDeserialize(ctx, in)
			if err == nil {
				out.Result = out.RawResponse.(*smithyhttp.Response).Body
			}
			return out, metadata, err
		}), middleware.After),
	}
	if retries {
		steps = append(steps, stack.Finalize.Add(retry.NewAttemptMiddleware(aws.NopRetryer{}, smithyhttp.RequestCloner), middleware.After))
	}
	var options []func(*middleware.Stack) error
	awsthrottle.Append(&options, l)
	if err := errors.Join(append(steps, options[0](stack))...); err != nil {
		return nil, err
	}
	out, _, err := middleware.DecorateHandler(smithyhttp.NewClientHandlerWithOptions(a), stack).Handle(ctx, nil)
	if err != nil {
		return nil, err
	}
	return out.(io.ReadCloser), nil
}

// An attempt holds its place until its body is read or closed. An operation that makes no attempts
// holds none.
func TestBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, l := new(api), awsthrottle.Limits{Limiter: limiter(t, "1;algo=concurrency")}
		start := time.Now()
		for _, end := range []func(io.ReadCloser) error{
			io.ReadCloser.Close,
			func(body io.ReadCloser) error { _, err := io.ReadAll(body); return err },
		} {
			body, err := download(t.Context(), a, l, true)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := download(t.Context(), a, l, false); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(5*time.Second, func() {
				if err := end(body); err != nil {
					t.Error(err)
				}
			})
		}
		body, err := download(t.Context(), a, l, true)
		if err != nil {
			t.Fatal(err)
		}
		body.Close()
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("two bodies of 5s were open for %v", took)
		}
	})
}

// Operations have limits of their own, by what they are.
func TestRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := throttle.NewGroup(throttle.Policy{Name: "queue", Tiers: []throttle.Tier{{Limit: 10, Window: time.Second, Unit: "messages"}}}, nil, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a := new(api)
		c := client(a, awsthrottle.Limits{
			Route: func(op awsthrottle.Operation) *throttle.Limiter {
				if in, ok := op.Input.(*sqs.SendMessageBatchInput); ok && op.Service == "SQS" && op.Name == "SendMessageBatch" && op.Region == "eu-central-1" {
					return g.For(*in.QueueUrl)
				}
				return nil
			},
			Cost: func(op awsthrottle.Operation) throttle.Cost {
				return throttle.Cost{"messages": int64(len(op.Input.(*sqs.SendMessageBatchInput).Entries))}
			},
		})
		start := time.Now()
		for i := range 6 {
			in := &sqs.SendMessageBatchInput{QueueUrl: aws.String(fmt.Sprintf("https://sqs.eu-central-1.amazonaws.com/1/orders%d", i%2)), Entries: make([]types.SendMessageBatchRequestEntry, 5)}
			for i := range in.Entries {
				in.Entries[i] = types.SendMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), MessageBody: aws.String("Hello!")}
			}
			if _, err := c.SendMessageBatch(t.Context(), in); err != nil {
				t.Error(err)
			}
			if err := sendMessage(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took != time.Second { // 15 messages to each
			t.Errorf("took %v", took)
		}
	})
}
