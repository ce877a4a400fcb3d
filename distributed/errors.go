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

// isNil reports whether the client is nil, or an interface with a nil pointer.
func isNil(rdb redis.UniversalClient) bool {
	return rdb == nil || reflect.ValueOf(rdb).Kind() == reflect.Pointer && reflect.ValueOf(rdb).IsNil()
}

// An unavailableError is an error that may not occur again with the next call. It matches
// store.ErrUnavailable.
type unavailableError struct{ cause error }

func (e *unavailableError) Error() string        { return e.cause.Error() }
func (e *unavailableError) Unwrap() error        { return e.cause }
func (e *unavailableError) Is(target error) bool { return target == store.ErrUnavailable }

// transient lists the prefixes of errors after which another server, or the same server later, may
// run the command.
var transient = []string{
	"BUSY ", "CLUSTERDOWN ", "LOADING ", "MASTERDOWN ", "MISCONF ", "NOREPLICAS ", "OOM ", "READONLY ",
	"TRYAGAIN ", "MOVED ", "ASK ", "UNKILLABLE ", "ERR max number of clients reached",
}

const lacksRight = "the user lacks a right: give it the rights that the package documentation lists"

// permanent lists errors that persist until somebody acts, and the fix for each.
var permanent = []struct{ reply, fix string }{
	{"WRONGTYPE", "the key holds a value of another program: use another Options.Prefix"},
	{"THROTTLE version", "a newer release has written the value: upgrade this program"},
	{"THROTTLE foreign", "the key holds a value of another program: use another Options.Prefix"},
	{"THROTTLE corrupt", "the value is damaged: delete the key, and the quota starts anew"},
	{"THROTTLE clocks", "set the clocks: a tier counts by the calendar"},
	{"NOPERM", lacksRight},
	{"The user executing the script can't ", lacksRight}, // Redis 6 and 7.0
	{"ERR ACL failure in script", lacksRight},            // later
	{"NOAUTH", "the server requires a password: set it in the options of the client"},
	{"WRONGPASS", "the server has no such user and password: correct the options of the client"},
	{"ERR unknown command", "the server does not run scripts: use Redis 5 or later, or Valkey"},
	{"Write commands not allowed after non deterministic", "the server is too old: use Redis 5 or later, or Valkey"},
}

// explain turns an error of the client into the error that callers receive: an unavailableError
// if the call may succeed later, and otherwise an error that names the key and the fix.
func explain(key string, err error) error {
	if err == errFollowed {
		return err
	}
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, redis.ErrClosed) {
		if errors.Is(err, redis.ErrClosed) {
			return fmt.Errorf("distributed: %w", err)
		}
		return &unavailableError{err}
	}
	text := scriptError(reply.Error())
	for _, t := range transient {
		if strings.HasPrefix(text, t) {
			return &unavailableError{err}
		}
	}
	for _, p := range permanent {
		if strings.Contains(text, p.reply) {
			return fmt.Errorf("distributed: key %q: %w (%s)", key, err, p.fix)
		}
	}
	return fmt.Errorf("distributed: key %q: %w", key, err)
}

// scriptError returns the error that stopped a script. Servers before Redis 7 write the position
// in the script before it: "ERR Error running script (call to f_…): @user_script:7: -OOM …".
func scriptError(text string) string {
	if strings.HasPrefix(text, "ERR Error running script") {
		if _, cause, found := strings.Cut(text, ": -"); found {
			return cause
		}
	}
	return text
}

var errTimeout = fmt.Errorf("no answer within Options.Timeout: %w", context.DeadlineExceeded)
