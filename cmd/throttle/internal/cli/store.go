package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/cmd/throttle/internal/pgurl"
)

// storeFlags say where quotas are kept.
type storeFlags struct{ url, redis, prefix, file string }

func (f *storeFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "file", "", "share quotas through the file at this `path`; the default is throttle/quotas.db in $XDG_STATE_HOME or the user's cache directory")
	flags.StringVar(&f.redis, "redis", "", "share quotas through the Redis at this `URL`, such as redis://localhost:6379/0")
	flags.StringVar(&f.prefix, "prefix", "", "what keys in Redis begin with (default \"throttle:\")")
	flags.StringVar(&f.url, "store", "", "share quotas through the PostgreSQL or Redis at this `URL`, such as postgres://app@localhost:5432/app")
}

// given reports whether a flag names a place.
func (f *storeFlags) given() bool { return f.url != "" || f.redis != "" || f.file != "" }

// place returns the place that the flags name, and an error for flags that exclude each other, and for a bad
// URL. The error has no part of the URL but the port, because the URL may have a password.
func (f *storeFlags) place() (place, error) {
	given := [][2]string{{"store", f.url}, {"redis", f.redis}, {"file", f.file}}
	given = slices.DeleteFunc(given, func(flag [2]string) bool { return flag[1] == "" })
	if len(given) > 1 {
		a, b := given[0][0], given[1][0]
		return place{}, usagef("--%s and --%s are two places: leave one out, or set it to nothing with --%s= or --%s=", a, b, a, b)
	}
	p := place{config.Store{Prefix: f.prefix, File: f.file}}
	if pgurl.Is(f.url) {
		if _, _, err := pgurl.Parse(f.url); err != nil {
			return p, usagef("--store %w", err)
		}
		p.Postgres = config.NewSecret(f.url)
	} else if f.url != "" || f.redis != "" {
		if err := checkRedis(given[0][0], given[0][1]); err != nil {
			return p, err
		}
		p.Redis = config.NewSecret(given[0][1])
	}
	if f.prefix != "" && p.Redis.IsZero() {
		return p, usagef("--prefix is of --redis: leave it out, or add --redis")
	}
	return p, checkText("prefix", f.prefix)
}

// checkRedis returns an error for a flag that is not the URL of a Redis server.
func checkRedis(flag, text string) error {
	wrong := "--redis is not the URL of a Redis server: write it as redis://localhost:6379/0, or rediss:// with TLS"
	if flag == "store" {
		wrong = "--store is not the URL of a PostgreSQL or Redis server: write it as postgres://USER@HOST:PORT/DATABASE, or redis://localhost:6379/0"
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "redis" && u.Scheme != "rediss" && u.Scheme != "unix":
		return usagef("%s", wrong)
	case u.Scheme != "unix":
		if err := checkPort("--"+flag, u); err != nil {
			return err
		}
	}
	if _, err := redis.ParseURL(text); err != nil {
		return usagef("--%s is not the URL of a Redis server: behind the host and the port it may have the number of a database, as in redis://localhost:6379/0", flag)
	}
	return nil
}

// A place is where quotas are kept.
type place struct{ config.Store }

// isServer reports whether the place is a server, and not a file.
func (p *place) isServer() bool { return !p.Redis.IsZero() || !p.Postgres.IsZero() }

// path returns the path of the file.
func (c *command) path(p place) (string, error) {
	if p.File != "" {
		return p.File, nil
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

// openStore opens the store of a place, and creates the default file if it is missing. The caller closes
// the store. The store is not asked: a server that is away is found when it is used.
func (c *command) openStore(p place) (throttle.Store, io.Closer, error) {
	if !p.isServer() {
		path, err := c.path(p)
		if err != nil {
			return nil, nil, err
		}
		if p.File == "" {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return nil, nil, &storeError{"the file of the quotas", err}
			}
		}
		if err := checkLink(path); err != nil {
			return nil, nil, err
		}
		p.File = path
	}
	redis.SetLogger(noLog{}) // the errors say what is wrong
	s, closer, err := (&config.Config{Store: p.Store}).OpenStore()
	switch {
	case err == nil:
		return s, closer, nil
	case errors.Is(err, throttle.ErrUnavailable):
		return nil, nil, p.error(err)
	case p.isServer(): // the URL was checked
		return nil, nil, &configError{err}
	}
	return nil, nil, &storeError{"the file of the quotas", errors.New(strings.TrimPrefix(errors.Unwrap(err).Error(), "host: "))}
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
func (p *place) error(err error) error {
	var refused *throttle.WaitError
	var known *storeError
	if err == nil || errors.As(err, &known) || errors.As(err, &refused) && !errors.Is(err, throttle.ErrUnavailable) {
		return err
	}
	return &storeError{p.where(), p.diagnose(err)}
}

// diagnose returns why a server cannot be used. The store tries again for as long as it may, and then
// knows only that it had no answer. One more try has the cause: a refused connection, a name without
// an address, or a wrong password. The result has no password.
func (p *place) diagnose(err error) error {
	late := errors.Is(err, context.DeadlineExceeded)
	var cause error
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	switch {
	case !p.Redis.IsZero() && late:
		cause = pingRedis(ctx, p.Redis.Reveal())
	case !p.Postgres.IsZero():
		if err, cause = p.missing(err), pgurl.Ping(ctx, p.Postgres.Reveal()); cause == nil && !late {
			return err
		}
	default:
		return err
	}
	switch {
	case cause == nil:
		return errSlow
	case errors.Is(cause, context.DeadlineExceeded):
		return errors.New("it does not answer")
	default:
		return cause
	}
}

// pingRedis calls a Redis once.
func pingRedis(ctx context.Context, url string) error {
	o, err := redis.ParseURL(url)
	if err != nil {
		return errors.New("its URL is wrong")
	}
	o.DialerRetries, o.MaxRetries, o.DialTimeout = 1, -1, 2*time.Second
	rdb := redis.NewClient(o)
	defer rdb.Close()
	return rdb.Ping(ctx).Err()
}

// errSlow is the cause of a server that answers, but not in time.
var errSlow = errors.New("it is slow: it did not answer in time")

// patiently makes a call that charges nothing, and makes it again while the server is slow. The error is that
// of p.error.
func (p *place) patiently(call func() error) (err error) {
	for range 5 {
		if err = p.error(call()); !errors.Is(err, errSlow) {
			break
		}
	}
	return err
}

// where names the store, without the password of a server.
func (p *place) where() string {
	switch {
	case !p.Redis.IsZero():
		if o, err := redis.ParseURL(p.Redis.Reveal()); err == nil {
			return "Redis at " + o.Addr
		}
		return "Redis"
	case !p.Postgres.IsZero():
		return pgurl.Where(p.Postgres.Reveal())
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
func (p *place) limiter(policy throttle.Policy, key string, s throttle.Store) (*throttle.Limiter, error) {
	l, err := throttle.New(policy, s)
	if err != nil || key == "" {
		return l, asConfigError(err)
	}
	g, err := throttle.NewGroup(policy, s, throttle.GroupOptions{})
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
