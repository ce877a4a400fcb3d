package providers

import (
	"net/http"
	"strconv"
	"time"

	"github.com/apithrottle/throttle/answers"
)

// AWSProfile returns the Profile of the refusals of AWS's services, for a [throttle.Transport] with
// limits of the caller's. A refusal may have the status 400, 403, 429, 503 or 509. Its code stands
// in the header X-Amzn-Errortype, in the JSON fields __type or code, or in XML. Responses don't
// report what is left.
//
// Some codes refuse one object alone: a DynamoDB table, a prefix of an S3 bucket, a Lambda
// function, a hosted zone. These pause nothing, because they would pause the other objects, too; see
// [AWSObjectProfile]. A throttled S3 copy or upload with status 200 is not recognized, because its body
// looks like the body of an object.
//
// SDKs sign a request before it waits, so set Transport.SendBy to [AWSSendBy].
//
// Sources: the retry rules of the SDKs,
// https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html, read on 2026-11-22.
func AWSProfile() answers.Profile { return awsProfile(answers.Other) }

// AWSObjectProfile is like [AWSProfile] for a Transport whose Route chooses a limiter for each object.
// Refusals of one object pause its limiter like all others.
func AWSObjectProfile() answers.Profile { return awsProfile(answers.Limited) }

// awsProfile returns the Profile with the kind of a refusal of one object.
func awsProfile(object answers.Kind) answers.Profile {
	p := answers.Profile{
		RetryAfter: []answers.Field{
			{Header: "X-Amz-Retry-After", Format: answers.Millis},
			{Header: "Retry-After", Format: answers.RetryAfter},
			{Path: "retryAfterSeconds", Format: answers.Seconds},
		},
		Rules: []answers.Rule{
			{Status: http.StatusTooManyRequests, Path: "Reason", Text: "*Function*", Kind: object, Reason: "function"}, // Lambda
			{Status: http.StatusBadRequest, Path: "__type", Text: "com.amazonaws.dynamodb.v20120810#LimitExceededException", Kind: answers.Limited, Reason: "LimitExceededException"},
		},
	}
	for _, code := range []struct {
		name string // a part of codes
		kind answers.Kind
	}{
		{"ProvisionedThroughputExceeded", object}, {"TransactionInProgress", object}, {"PriorRequestNotComplete", object}, {"SlowDown", object},
		{"Throttl", answers.Limited}, {"TooManyRequests", answers.Limited}, {"RequestLimitExceeded", answers.Limited}, {"BandwidthLimitExceeded", answers.Limited},
	} {
		rule := answers.Rule{Kind: code.kind, Reason: code.name}
		inHeader := rule
		inHeader.Header, inHeader.Value = "X-Amzn-Errortype", "*"+code.name+"*"
		p.Rules = append(p.Rules, inHeader)
		for _, rule.Status = range []int{http.StatusBadRequest, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable, 509} {
			for _, rule.Path = range []string{"__type", "code"} {
				rule.Text = "*" + code.name + "*"
				p.Rules = append(p.Rules, rule)
			}
			for _, before := range []string{"", "Request", "EC2"} { // as in EC2ThrottledException
				inXML := rule // only XML escapes the < of a text from the request that a message repeats
				inXML.Header, inXML.Value, inXML.Path, inXML.Text = "Content-Type", "*xml*", "", "*<Code>"+before+code.name+"*"
				if before == "" || code.name == "Throttl" {
					p.Rules = append(p.Rules, inXML)
				}
			}
		}
	}
	return p
}

// AWSSendBy returns the time when the AWS Signature Version 4 of a request expires, for
// [throttle.Transport.SendBy]. A presigned URL is valid for X-Amz-Expires seconds after its
// X-Amz-Date. A URL without X-Amz-Expires, and a request with an X-Amz-Date header, are valid for
// five minutes. Amazon S3 accepts a header for fifteen minutes; AWSSendBy uses five for it too. For
// a request without a date AWSSendBy returns the zero time.
//
// Sources, read on 2026-11-22:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_aws-signing.html and
// https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html.
func AWSSendBy(req *http.Request) time.Time {
	const format, inHeader = "20060102T150405Z", 5 * time.Minute
	query := req.URL.Query()
	date, good := query.Get("X-Amz-Date"), inHeader
	if date == "" {
		date = req.Header.Get("X-Amz-Date")
	} else if expires, err := strconv.ParseUint(query.Get("X-Amz-Expires"), 10, 31); err == nil {
		good = time.Duration(expires) * time.Second
	}
	signed, err := time.Parse(format, date)
	if err != nil {
		return time.Time{}
	}
	return signed.Add(good)
}
