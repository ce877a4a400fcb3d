package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/config"
)

// storeFlags say where quotas are kept.
type storeFlags struct{ redis, prefix, file string }

func (f *storeFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "file", "", "share quotas through the file at this `path`; the default is throttle/quotas.db in $XDG_STATE_HOME or the user's cache directory")
	flags.StringVar(&f.redis, "redis", "", "share quotas through the Redis at this `URL`, such as redis://localhost:6379/0")
	flags.StringVar(&f.prefix, "prefix", "", "what keys in Redis begin with (default \"throttle:\")")
}

// check returns an error for flags that exclude each other, and for a bad URL. The error has no part of
// the URL but the port, because the URL may have a password.
func (f *storeFlags) check() error {
	if f.redis == "" {
		if f.prefix != "" {
			return usagef("--prefix is of --redis: leave it out, or add --redis")
		}
		return nil
	}
	if f.file != "" {
		return usagef("--redis and --file are two places: leave one out, or set it to nothing with --redis= or --file=")
	}
	u, err := url.Parse(f.redis)
	switch {
	case err != nil || u.Scheme != "redis" && u.Scheme != "rediss" && u.Scheme != "unix":
		return usagef("--redis is not the URL of a Redis server: write it as redis://localhost:6379/0, or rediss:// with TLS")
	case u.Scheme != "unix":
		if err := checkPort("--redis", u); err != nil {
			return err
		}
	}
	if _, err := redis.ParseURL(f.redis); err != nil {
		return usagef("--redis is not the URL of a Redis server: behind the host and the port it may have the number of a database, as in redis://localhost:6379/0")
	}
	return checkText("prefix", f.prefix)
}

// path returns the path of the file.
func (c *command) path(f storeFlags) (string, error) {
	if f.file != "" {
		return f.file, nil
	}
	dir, err := c.Getenv("XDG_STATE_HOME"), error(nil)
	if !filepath.IsAbs(dir) {
		dir, err = os.UserCacheDir()
	}
	if err != nil {
		return "", usagef("no directory for quotas is known: set --file: %w", err)
	}
	return filepath.Join(dir, "throttle", "quotas.db"), nil
}

// openStore opens the store that flags name, and creates the default file if it is missing. The
// caller closes the store. The store is not asked: a Redis that is away is found when it is used.
func (c *command) openStore(f storeFlags) (throttle.Store, io.Closer, error) {
	if f.redis == "" {
		path, err := c.path(f)
		if err != nil {
			return nil, nil, err
		}
		if f.file == "" {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return nil, nil, &configError{fmt.Errorf("no file for quotas: %w", err)}
			}
		}
		f.file = path
	}
	if f.file != "" {
		if err := checkLink(f.file); err != nil {
			return nil, nil, err
		}
	}
	redis.SetLogger(noLog{}) // the errors say what is wrong
	where := config.Store{Prefix: f.prefix, File: f.file}
	if f.redis != "" {
		where.Redis = config.NewSecret(f.redis)
	}
	s, closer, err := (&config.Config{Store: where}).OpenStore()
	switch {
	case err == nil:
		return s, closer, nil
	case errors.Is(err, throttle.ErrUnavailable):
		return nil, nil, f.error(err)
	case f.redis != "":
		return nil, nil, usagef("--redis is not the URL of a Redis server: write it as redis://localhost:6379/0, or rediss:// with TLS")
	}
	return nil, nil, &configError{fmt.Errorf("no file for quotas: %s", strings.TrimPrefix(errors.Unwrap(err).Error(), "host: "))}
}

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// report makes a store record what a limiter has to report: a process that ends would forget it.
func report(l *throttle.Limiter, closer io.Closer) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = l.Status(ctx) // a file records reports with the next use
	_ = closer.Close()
}

// error returns an error of a quota as the command reports it. A refusal is as it is. Anything else
// is a store that cannot be used.
func (f *storeFlags) error(err error) error {
	var refused *throttle.WaitError
	var known *storeError
	if err == nil || errors.As(err, &known) || errors.As(err, &refused) && !errors.Is(err, throttle.ErrUnavailable) {
		return err
	}
	if f.redis != "" {
		err = f.diagnose(err)
	}
	return &storeError{f.where(), err}
}

// diagnose returns why a Redis cannot be used. The store tries again for as long as it may, and then
// knows only that it had no answer. One more try has the cause: a refused connection, a name without
// an address, or a wrong password. The result has neither a user nor a password.
func (f *storeFlags) diagnose(err error) error {
	o, bad := redis.ParseURL(f.redis)
	if bad != nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	o.DialerRetries, o.MaxRetries, o.DialTimeout = 1, -1, 2*time.Second
	rdb := redis.NewClient(o)
	defer rdb.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	switch cause := rdb.Ping(ctx).Err(); {
	case cause == nil:
		return errSlow
	case errors.Is(cause, context.DeadlineExceeded):
		return errors.New("it does not answer")
	default:
		return cause
	}
}

// errSlow is the cause of a Redis that answers, but not in time.
var errSlow = errors.New("it is slow: it did not answer in time")

// patiently makes a call that charges nothing, and makes it again while Redis is slow. The error is that
// of f.error.
func (f *storeFlags) patiently(call func() error) (err error) {
	for range 5 {
		if err = f.error(call()); !errors.Is(err, errSlow) {
			break
		}
	}
	return err
}

// where names the store, without the password of a Redis.
func (f *storeFlags) where() string {
	if o, err := redis.ParseURL(f.redis); err == nil {
		return "Redis at " + o.Addr
	}
	return "the file"
}

// A storeError is the error of a store that cannot be used.
type storeError struct {
	where string
	cause error
}

func (e *storeError) Error() string {
	return fmt.Sprintf("%s cannot be used: %s", e.where, strings.TrimPrefix(e.cause.Error(), "throttle: "))
}

func (e *storeError) Unwrap() []error { return []error{throttle.ErrUnavailable, e.cause} }

// A quotaFlags says which quota requests count in.
type quotaFlags struct {
	policy, scope, name, key string
	store                    storeFlags

	// private reports that the quota is of this process alone, and needs no name.
	private bool
}

func (f *quotaFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.policy, "policy", "", "the `limits`: a policy such as '5/s + 10000/h', or a preset such as notion")
	flags.StringVar(&f.scope, "scope", "", "which `limit` of a preset that has several")
	flags.StringVar(&f.name, "name", "", "the `name` that shares the quota")
	flags.StringVar(&f.key, "key", "", "the `account`, if one name has several")
	f.store.register(flags)
}

// resolve returns the policy.
func (f *quotaFlags) resolve(verb string) (throttle.Policy, error) {
	if f.policy == "" {
		return throttle.Policy{}, usagef("%s needs --policy: limits such as '5/s + 10000/h'", verb)
	}
	for flag, text := range map[string]string{"name": f.name, "key": f.key} {
		if err := checkText(flag, text); err != nil {
			return throttle.Policy{}, err
		}
	}
	limits, err := config.ParseLimits(f.name, f.policy)
	if err != nil {
		return throttle.Policy{}, &configError{err}
	}
	all := limits.Policies()
	if !limits.IsPreset() {
		switch {
		case f.scope != "":
			return throttle.Policy{}, usagef("--scope is of a preset: leave it out")
		case f.name == "" && !f.private:
			return throttle.Policy{}, usagef("%s needs --name: programs that give the same name share the quota", verb)
		}
		return all[0], nil
	}
	provider, _ := limits.Provider()
	var scopes []string
	for i, s := range provider.Scopes {
		if scopes = append(scopes, s.Name); s.Name == f.scope || f.scope == "" && len(all) == 1 {
			return all[i], nil
		}
	}
	if f.scope == "" {
		return throttle.Policy{}, usagef("%s has several limits: choose one with --scope: %s", f.policy, strings.Join(scopes, ", "))
	}
	return throttle.Policy{}, usagef("%s has no limit %q: it has %s", f.policy, f.scope, strings.Join(scopes, ", "))
}

// limiter returns the limiter of a policy in a store, of an account if the key is not empty.
func (f *storeFlags) limiter(p throttle.Policy, key string, s throttle.Store) (*throttle.Limiter, error) {
	for _, t := range p.Tiers {
		if f.redis == "" && (t.Algorithm == throttle.Concurrency || t.Estimated) {
			return nil, &configError{fmt.Errorf("policy %q: tier %v: a file does not keep what a command holds until its end: use --redis", p.Name, t)}
		}
	}
	l, err := throttle.New(p, s)
	if err != nil || key == "" {
		return l, asConfigError(err)
	}
	g, err := throttle.NewGroup(p, s, throttle.GroupOptions{})
	if err != nil {
		return nil, &configError{err}
	}
	return g.For(key), nil
}

func asConfigError(err error) error {
	if err != nil {
		return &configError{err}
	}
	return nil
}
