package distributed

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/store"
)

func fieldError(field string, value any, allowed string) error {
	return fmt.Errorf("distributed: Options.%s is %v: it must be %s", field, value, allowed)
}

// isNil reports whether there is no client, a typed nil included.
func isNil(rdb redis.UniversalClient) bool {
	return rdb == nil || reflect.ValueOf(rdb).Kind() == reflect.Pointer && reflect.ValueOf(rdb).IsNil()
}

// An outage is an error that may be gone the next time: it is store.ErrUnavailable.
type outage struct{ cause error }

func (e *outage) Error() string        { return e.cause.Error() }
func (e *outage) Unwrap() error        { return e.cause }
func (e *outage) Is(target error) bool { return target == store.ErrUnavailable }

// What a server says when another, or the same one later, may do what was asked.
var transient = []string{
	"BUSY ", "CLUSTERDOWN ", "LOADING ", "MASTERDOWN ", "MISCONF ", "NOREPLICAS ", "OOM ", "READONLY ",
	"TRYAGAIN ", "MOVED ", "ASK ", "UNKILLABLE ", "ERR max number of clients reached",
}

const lacksRight = "the user lacks a right: the package documentation lists those it needs"

// What a server says that will not change by itself, and what to do about it.
var permanent = []struct{ reply, fix string }{
	{"WRONGTYPE", "something else is stored under the name: use another Options.Prefix"},
	{"THROTTLE version", "a newer release keeps this quota: upgrade this one"},
	{"THROTTLE foreign", "something else is stored under the name: use another Options.Prefix"},
	{"THROTTLE corrupt", "the value was damaged: delete the key, and the quota starts anew"},
	{"THROTTLE clocks", "set them: a tier counts by the calendar"},
	{"NOPERM", lacksRight},
	{"The user executing the script can't ", lacksRight}, // Redis 6 and 7.0
	{"ERR ACL failure in script", lacksRight},            // later
	{"NOAUTH", "the server wants a password"},
	{"WRONGPASS", "the server knows no such user and password"},
	{"ERR unknown command", "the server does not run scripts: it must be Redis 5 or later, or Valkey"},
	{"Write commands not allowed after non deterministic", "the server is too old: it must be Redis 5 or later, or Valkey"},
}

// explain turns what the client returned into what callers decide on.
func explain(key string, err error) error {
	var said redis.Error
	if !errors.As(err, &said) || errors.Is(err, redis.ErrClosed) {
		if errors.Is(err, redis.ErrClosed) {
			return fmt.Errorf("distributed: %w", err)
		}
		return &outage{err}
	}
	text := scriptError(said.Error())
	for _, t := range transient {
		if strings.HasPrefix(text, t) {
			return &outage{err}
		}
	}
	for _, p := range permanent {
		if strings.Contains(text, p.reply) {
			return fmt.Errorf("distributed: key %q: %w (%s)", key, err, p.fix)
		}
	}
	return fmt.Errorf("distributed: key %q: %w", key, err)
}

// scriptError returns what stopped a script. Servers before Redis 7 put it behind the place
// where the script was: "ERR Error running script (call to f_…): @user_script:7: -OOM …".
func scriptError(text string) string {
	if strings.HasPrefix(text, "ERR Error running script") {
		if _, cause, found := strings.Cut(text, ": -"); found {
			return cause
		}
	}
	return text
}

var errTimeout = fmt.Errorf("no answer within Options.Timeout: %w", context.DeadlineExceeded)
