package providers

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
)

// endpointLimits are the limits of some endpoints of a provider, with the scopes' names.
type endpointLimits struct {
	// path returns the path of a request as patterns have it, and whether it is of the API.
	path func(*http.Request) (path string, api bool)
	of   []endpointLimit
}

// An endpointLimit is a limit of the endpoints of its patterns, which are methods and paths.
type endpointLimit struct {
	name     string
	page     string
	per      int // perEndpoint, together, or for each object: the number of segments that name it
	tier     throttle.Tier
	patterns []string
}

const (
	perEndpoint = 0  // each endpoint has the limit
	together    = -1 // the endpoints share it
)

// scopes returns a scope for each limit.
func (ls *endpointLimits) scopes() (scopes []Scope) {
	for i := range ls.of {
		l := &ls.of[i]
		scopes = append(scopes, some(l.name, l.page, func(req *http.Request) (string, bool) {
			path, api := ls.path(req)
			if !api {
				return "", false
			}
			return l.key(req.Method, path)
		}, l.tier))
	}
	return scopes
}

// key returns the key of a request in the limit's scope.
func (l *endpointLimit) key(method, path string) (key string, counts bool) {
	i := slices.IndexFunc(l.patterns, func(pattern string) bool {
		verb, pattern, _ := strings.Cut(pattern, " ")
		return verb == method && matches(pattern, path)
	})
	if i < 0 {
		return "", false
	}
	switch {
	case l.per == together:
		return "", true
	case l.per == perEndpoint:
		return l.patterns[i], true
	}
	return strings.Join(strings.SplitN(path, "/", l.per+1)[:l.per], "/"), true
}

// match reports whether a request has a limit in the table.
func (ls *endpointLimits) match(method, path string) bool {
	return slices.ContainsFunc(ls.of, func(l endpointLimit) bool { _, counts := l.key(method, path); return counts })
}

// pathLimits are limits that each of their paths has. A limit without paths is that of all others.
type pathLimits []struct {
	name   string
	limit  int64
	window time.Duration
	paths  string
}

// scopes returns a scope for each limit. The function of returns the path of a request, its key, and
// whether it has one of the limits.
func (ls pathLimits) scopes(page, unit string, of func(*http.Request) (path, key string, limited bool)) (scopes []Scope) {
	names, others := make(map[string]string), ""
	for _, l := range ls {
		if l.paths == "" {
			others = l.name
		}
		for path := range strings.FieldsSeq(l.paths) {
			names[path] = l.name
		}
	}
	for _, l := range ls {
		scopes = append(scopes, some(l.name, page, func(req *http.Request) (string, bool) {
			path, key, limited := of(req)
			return key, limited && cmp.Or(names[path], others) == l.name
		}, throttle.Tier{Limit: l.limit, Window: l.window, Unit: unit}))
	}
	return scopes
}

// operationsOf returns a function that returns the value of the operation of a request, and the operation
// as the map has it: a method and a path, in which * stands for a segment. Of several, the one with fewer
// stars wins. If there is none, the operation is empty.
func operationsOf[V any](values map[string]V) func(*http.Request) (value V, operation string) {
	mux, operations := http.NewServeMux(), make(map[string]string)
	for operation := range values {
		segments := strings.Split(operation, "*")
		pattern := segments[0]
		for i, segment := range segments[1:] {
			pattern += fmt.Sprintf("{%c}", 'a'+i) + segment
		}
		mux.Handle(pattern, http.NotFoundHandler())
		operations[pattern] = operation
	}
	return func(req *http.Request) (value V, operation string) {
		_, pattern := mux.Handler(req)
		operation = operations[pattern]
		return values[operation], operation
	}
}

// matches reports whether a path has the form of a pattern, in which * stands for a segment, and # for
// one of digits alone: an id, and not a word such as update_many.
func matches(pattern, path string) bool {
	for {
		want, restWant, moreWant := strings.Cut(pattern, "/")
		got, restGot, moreGot := strings.Cut(path, "/")
		same := want == got || want == "*" && got != "" || want == "#" && isDigits(got)
		if !same || moreWant != moreGot {
			return false
		}
		if !moreWant {
			return true
		}
		pattern, path = restWant, restGot
	}
}

// endpoint returns a method and a path, with * for the segments that are ids.
func endpoint(method, path string, isID func(segment string) bool) string {
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		if isID(segment) {
			segments[i] = "*"
		}
	}
	return method + " " + strings.Join(segments, "/")
}

// isDigits reports whether a segment of a path is a number.
func isDigits(segment string) bool {
	return segment != "" && strings.Trim(segment, "0123456789") == ""
}

// isNumbered reports whether a segment of a path is an id, because it has a digit and is no version
// such as v2, or has capital letters and no small ones.
func isNumbered(segment string) bool {
	if len(segment) == 2 && segment[0] == 'v' {
		return false
	}
	return strings.ContainsAny(segment, "0123456789") || strings.ToUpper(segment) == segment && strings.ToLower(segment) != segment
}
