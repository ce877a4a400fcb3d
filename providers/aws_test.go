package providers_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

func TestAWSProfile(t *testing.T) {
	const table = `{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}`
	xml := func(code string) string {
		return "<ErrorResponse><Error><Code>" + code + "</Code></Error></ErrorResponse>"
	}
	for _, test := range []struct {
		name   string
		status int
		header map[string]string
		body   string
		kind   answers.Kind // without limiters for each object
		object bool
		delay  time.Duration
	}{
		{"JSON", 400, nil, `{"__type":"ThrottlingException","message":"Rate exceeded"}`, answers.Limited, false, 0},
		{"JSON with a namespace", 400, nil, `{"__type":"com.amazonaws.dynamodb.v20120810#RequestLimitExceeded"}`, answers.Limited, false, 0},
		{"a code", 400, nil, `{"code":"TooManyRequestsException"}`, answers.Limited, false, 0},
		{"a header", 400, map[string]string{"x-amzn-errortype": "ThrottlingException:http://internal.amazon.com/coral/"}, "{}", answers.Limited, false, 0},
		{"EC2", 503, nil, xml("RequestLimitExceeded"), answers.Limited, false, 0},
		{"EC2, older", 503, nil, xml("EC2ThrottledException"), answers.Limited, false, 0},
		{"SQS", 403, nil, xml("RequestThrottled"), answers.Limited, false, 0},
		{"CloudSearch", 509, nil, xml("BandwidthLimitExceeded"), answers.Limited, false, 0},
		{"milliseconds", 429, map[string]string{"x-amz-retry-after": "1500"}, `{"__type":"ThrottlingException"}`, answers.Limited, false, 1500 * time.Millisecond},
		{"seconds in the body", 429, nil, `{"__type":"ThrottlingException","retryAfterSeconds":3}`, answers.Limited, false, 3 * time.Second},
		{"429", 429, nil, "", answers.Limited, false, 0},

		{"a table", 400, nil, table, answers.Other, true, 0},
		{"a prefix", 503, nil, xml("SlowDown"), answers.Other, true, 0},
		{"a zone", 400, nil, xml("PriorRequestNotComplete"), answers.Other, true, 0},
		{"a function", 429, nil, `{"Reason":"ReservedFunctionConcurrentInvocationLimitExceeded"}`, answers.Other, true, 0},
		{"all functions", 429, nil, `{"Reason":"ConcurrentInvocationLimitExceeded"}`, answers.Limited, false, 0},

		{"the attempts of one user", 400, nil, `{"__type":"LimitExceededException","message":"Attempt limit exceeded, please try after some time."}`, answers.Passed, false, 0},
		{"a message that names a code", 400, nil, `{"__type":"ValidationException","message":"ThrottlingException is not valid"}`, answers.Passed, false, 0},
		{"a message that quotes XML", 400, nil, `{"__type":"ValidationException","message":"Value '<Code>Throttling</Code>' at 'tableName' failed to satisfy constraint"}`, answers.Passed, false, 0},
		{"an object that names a code", 200, nil, xml("SlowDown"), answers.Passed, false, 0},
		{"an outage", 503, nil, "", answers.Passed, false, 0},
		{"the clock", 408, nil, `{"__type":"RequestTimeoutException"}`, answers.Passed, false, 0},
		{"a bad signature", 403, nil, xml("SignatureDoesNotMatch"), answers.Passed, false, 0},
	} {
		for _, perObject := range []bool{false, true} {
			p := providers.AWSProfile()
			if perObject {
				p = providers.AWSObjectProfile()
			}
			if err := p.Validate(); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1_000)}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				api := openAI(1_000, 1_000)
				rt := &throttle.Transport{Base: api, Limiter: l, Profile: &p}
				header := map[string]string{"Content-Type": "application/x-amz-json-1.0"}
				for name, value := range test.header {
					header[name] = value
				}
				if test.body != "" && test.body[0] == '<' {
					header["Content-Type"] = "text/xml"
				}
				api.Trap(fakeapi.Reply{Status: test.status, Header: header, Body: test.body})
				send(t, rt, get(t, "https://dynamodb.us-east-1.amazonaws.com/"))
				_, _, took := send(t, rt, get(t, "https://dynamodb.us-east-1.amazonaws.com/"))
				limited := test.kind == answers.Limited || test.object && perObject
				if limited != (took > 0) || limited && test.delay > 0 && took != test.delay {
					t.Errorf("%s, perObject %v: the next request waited %v", test.name, perObject, took)
				}
			})
		}
	}
}
