package providers

import (
	"net/http"
	"strconv"
	"time"

	"github.com/apithrottle/throttle/internal/retryafter"
)

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

// binanceSendBy returns the time when a signed request expires: recvWindow after its timestamp. The
// timestamp is in milliseconds or microseconds. recvWindow may be a decimal number of milliseconds;
// its default is 5,000. A parameter in the query replaces the same parameter in the form. For a
// request that is not signed, or that Binance would not understand, binanceSendBy returns the zero
// time.
//
// Sources:
// https://github.com/binance/binance-spot-api-docs/blob/a5e0bc3/rest-api.md#timing-security and
// https://developers.binance.com/docs/binance-spot-api-docs/rest-api/request-security, read on
// 2026-11-22.
func binanceSendBy(req *http.Request) time.Time {
	const leastMicros = 100_000_000_000_000 // as milliseconds, the year 5138
	q := form(req)
	n, err := strconv.ParseInt(q.Get("timestamp"), 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	signed := time.UnixMilli(n)
	if n >= leastMicros {
		signed = time.UnixMicro(n)
	}
	window := 5 * time.Second
	if q.Has("recvWindow") {
		d, ok := retryafter.Seconds(q.Get("recvWindow"))
		if !ok {
			return time.Time{}
		}
		window = d / 1000
	}
	return signed.Add(window)
}

// coinbaseSendBy returns the time when a request to Coinbase Exchange expires: 30 seconds after its
// CB-ACCESS-TIMESTAMP.
//
// Source: https://docs.cdp.coinbase.com/exchange/rest-api/authentication, read on 2026-11-22.
func coinbaseSendBy(req *http.Request) time.Time {
	signed, ok := retryafter.Seconds(req.Header.Get("CB-ACCESS-TIMESTAMP"))
	if !ok {
		return time.Time{}
	}
	return time.Unix(0, int64(signed)).Add(30 * time.Second)
}

// bybitSendBy returns the time when a signed request expires: X-BAPI-RECV-WINDOW after its
// X-BAPI-TIMESTAMP, both in milliseconds. Without a window, 5 seconds after it.
//
// Source: https://bybit-exchange.github.io/docs/v5/guide, read on 2026-11-22.
func bybitSendBy(req *http.Request) time.Time {
	signed := headerMillis(req, "X-BAPI-TIMESTAMP")
	if signed.IsZero() {
		return signed
	}
	if window, err := strconv.ParseUint(req.Header.Get("X-BAPI-RECV-WINDOW"), 10, 31); err == nil {
		return signed.Add(time.Duration(window) * time.Millisecond)
	}
	return signed.Add(5 * time.Second)
}

// okxSendBy returns the time when a signed request expires: 30 seconds after its
// OK-ACCESS-TIMESTAMP, or the expTime of an order if that is earlier.
//
// Source: https://www.okx.com/docs-v5/en/#overview-transaction-timeouts, read on 2026-11-22.
func okxSendBy(req *http.Request) time.Time {
	by := headerMillis(req, "expTime")
	signed, err := time.Parse(time.RFC3339, req.Header.Get("OK-ACCESS-TIMESTAMP"))
	if end := signed.Add(30 * time.Second); err == nil && (by.IsZero() || end.Before(by)) {
		return end
	}
	return by
}

// headerMillis returns the time in a header, in milliseconds since 1970, or the zero time if there
// is none.
func headerMillis(req *http.Request, name string) time.Time {
	n, err := strconv.ParseInt(req.Header.Get(name), 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(n)
}
