package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// check returns an error for flags that exclude each other.
func (f *storeFlags) check() error {
	if f.redis != "" && f.file != "" {
		return usagef("--redis and --file are two places: leave one out, or set it to nothing with --redis= or --file=")
	}
	return nil
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
		return nil, nil, usagef("--redis is not the URL of a Redis server, such as redis://localhost:6379/0")
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
	if err == nil || errors.As(err, &refused) && !errors.Is(err, throttle.ErrUnavailable) {
		return err
	}
	return &storeError{f.where(), err}
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
	limits, err := config.ParseLimits(f.name, f.policy)
	if err != nil {
		return throttle.Policy{}, &configError{err}
	}
	all := limits.Policies()
	if !limits.IsPreset() {
		switch {
		case f.scope != "":
			return throttle.Policy{}, usagef("--scope is of a preset: leave it out")
		case f.name == "":
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
		return throttle.Policy{}, usagef("%s has several limits: choose one with --scope: %q", f.policy, scopes)
	}
	return throttle.Policy{}, usagef("%s has no limit %q: it has %q", f.policy, f.scope, scopes)
}

// limiter returns the limiter of a policy in a store.
func (f *quotaFlags) limiter(p throttle.Policy, s throttle.Store) (*throttle.Limiter, error) {
	for _, t := range p.Tiers {
		if f.store.redis == "" && (t.Algorithm == throttle.Concurrency || t.Estimated) {
			return nil, &configError{fmt.Errorf("policy %q: tier %v: a file does not keep what a command holds until its end: use --redis", p.Name, t)}
		}
	}
	l, err := throttle.New(p, s)
	if err != nil || f.key == "" {
		return l, asConfigError(err)
	}
	g, err := throttle.NewGroup(p, s)
	if err != nil {
		return nil, &configError{err}
	}
	return g.For(f.key), nil
}

func asConfigError(err error) error {
	if err != nil {
		return &configError{err}
	}
	return nil
}
