package providers

import (
	_ "embed"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var klaviyoPreset = Preset{Name: "klaviyo", Constructor: "Klaviyo()", kind: "Messages", New: Klaviyo}

// Klaviyo is the API of Klaviyo, with the limits of each endpoint for one account. An endpoint,
// which is a method and a path, has a number of requests a second and a number a minute, by its
// size: XS has 1 and 15, S 3 and 60, M 10 and 150, L 75 and 700, XL 350 and 3,500. The scopes have
// the names of the sizes. Other limits have names such as "1/2/225" of reports, which have 1 a
// second, 2 a minute and 225 a day. Requests that ask for counts, predictions, or the lists of a
// profile have less: the scopes "reduced XS" and "reduced M". Endpoints that the API reference
// lacks are assumed to be XS.
//
// All private keys of an account share its limits. An app that uses OAuth has limits of its own in
// each account: set Account to a function that returns the account. Endpoints for browsers, below
// /client/, count for the company_id of the request.
//
// Responses report the limit of a minute, how much of it is left and when the minute ends. The tier
// of the minute takes the limit over, because the API reference also has 750 for L. A refusal
// pauses its endpoint for the time in Retry-After, or in its text. Days are assumed to roll.
func Klaviyo() Provider {
	const page = "https://developers.klaviyo.com/en/docs/rate_limits_and_error_handling"
	const reference = "https://github.com/klaviyo/openapi/blob/f0a30ba/openapi/stable.json"
	p := Provider{
		Name: "klaviyo",
		Profile: answers.Profile{
			Quotas: []answers.Quota{{ // such as 10, 10;w=1, 150;w=60, of which the rest is of the minute
				Window: time.Minute, Limit: answers.Field{Header: "Ratelimit-Limit", After: ";w=1, "},
				Remaining: answers.Field{Header: "Ratelimit-Remaining"}, Reset: answers.Field{Header: "Ratelimit-Reset", Format: answers.Seconds},
			}},
			Rules: []answers.Rule{{Status: http.StatusTooManyRequests, Kind: answers.Limited, Delay: []answers.Field{
				{Path: "errors.*.detail", After: "available in ", Format: answers.Duration},
				{Path: "detail", After: "available in ", Format: answers.Duration},
			}}},
		},
		Hosts: []string{"a.klaviyo.com"},
	}
	for _, size := range []string{"XS", "M"} {
		p.Scopes = append(p.Scopes, some("reduced "+size, reference, klaviyoReduced(size), klaviyoTiers(klaviyoSizes[size])...))
	}
	sizes, _ := klaviyoTables()
	for _, size := range sizes {
		limits, at := klaviyoSizes[size], page
		if limits == "" {
			limits, at = size, reference
		}
		p.Scopes = append(p.Scopes, some(size, at, func(req *http.Request) (string, bool) {
			of, endpoint := klaviyoEndpoint(req)
			return endpoint, of == size
		}, klaviyoTiers(limits)...))
	}
	return p.readOn("2026-11-29")
}

// klaviyoSizes are the limits of the sizes: of a second and a minute.
var klaviyoSizes = map[string]string{"XS": "1/15", "S": "3/60", "M": "10/150", "L": "75/700", "XL": "350/3500"}

// klaviyoTiers returns the limits of a second, a minute and perhaps a day.
func klaviyoTiers(limits string) []throttle.Tier {
	numbers := make([]int64, 3)
	for i, text := range strings.Split(limits, "/") {
		numbers[i], _ = strconv.ParseInt(text, 10, 64)
	}
	steady := numbers[1]
	tiers := []throttle.Tier{
		fixed(numbers[0], time.Second, ""),
		follows(1, 10*steady, fixed(steady, time.Minute, "")),
	}
	if day := numbers[2]; day > 0 {
		tiers = append(tiers, throttle.PerDay(day))
	}
	return tiers
}

// klaviyoEndpoints are the endpoints by size, or by their limits: the methods and the path of each. They
// are those of openapi/stable.json and openapi/beta.json of klaviyo/openapi at f0a30ba, read on 2026-11-29.
//
//go:embed klaviyoendpoints.txt
var klaviyoEndpoints string

// klaviyoTables returns the sizes of endpoints, and a function that returns the size of the endpoint of a
// request.
var klaviyoTables = sync.OnceValues(func() (sizes []string, of func(*http.Request) (size, endpoint string)) {
	sizeOf := make(map[string]string)
	for line := range strings.Lines(klaviyoEndpoints) {
		var size, methods, path string
		if _, err := fmt.Sscan(line, &size, &methods, &path); err != nil {
			panic(fmt.Sprintf("providers: klaviyoendpoints.txt: %q: %v", line, err))
		}
		for method := range strings.SplitSeq(methods, ",") {
			sizeOf[method+" "+path] = size
		}
		if !slices.Contains(sizes, size) {
			sizes = append(sizes, size)
		}
	}
	slices.Sort(sizes)
	return sizes, operationsOf(sizeOf)
})

// klaviyoEndpoint returns the size of the endpoint of a request, and a name for the endpoint and the
// company. The size of other requests is empty.
func klaviyoEndpoint(req *http.Request) (size, name string) {
	path := strings.TrimSuffix(req.URL.Path, "/")
	client := strings.HasPrefix(path, "/client/")
	if !client && !strings.HasPrefix(path, "/api/") {
		return "", ""
	}
	_, of := klaviyoTables()
	size, name = of(&http.Request{Method: req.Method, URL: &url.URL{Path: path}})
	if name == "" {
		size, name = "XS", endpoint(req.Method, path, isNumbered)
	}
	if client {
		name += " " + req.URL.Query().Get("company_id")
	}
	return size, name
}

// klaviyoFewer are the values of parameters with which an endpoint has fewer requests.
var klaviyoFewer = []struct{ size, endpoint, parameter, value string }{
	{"XS", "GET /api/lists/*", "additional-fields[list]", "profile_count"},
	{"XS", "GET /api/segments/*", "additional-fields[segment]", "profile_count"},
	{"XS", "GET /api/profiles/*", "include", "list"},
	{"XS", "GET /api/profiles/*", "include", "segment"},
	{"M", "GET /api/profiles", "additional-fields[profile]", "predictive_analytics"},
	{"M", "GET /api/lists/*/profiles", "additional-fields[profile]", "predictive_analytics"},
	{"M", "GET /api/lists/*/relationships/profiles", "additional-fields[profile]", "predictive_analytics"},
}

// klaviyoReduced returns the Key of requests with a parameter for which an endpoint has only a size.
func klaviyoReduced(size string) func(*http.Request) (string, bool) {
	return func(req *http.Request) (endpoint string, counts bool) {
		_, endpoint = klaviyoEndpoint(req)
		for _, f := range klaviyoFewer {
			if f.size == size && f.endpoint == endpoint && slices.Contains(strings.Split(req.URL.Query().Get(f.parameter), ","), f.value) {
				return endpoint, true
			}
		}
		return "", false
	}
}
