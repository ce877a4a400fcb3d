package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
	"github.com/apithrottle/throttle/observe"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// A proxyFlags has the flags of the verb proxy.
type proxyFlags struct {
	config      string
	listen      string
	shutdown    time.Duration
	accessLog   bool
	publicPages bool
	check       bool
}

func (c *command) proxy() *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy --config FILE",
		Short: "Run a proxy that queues requests instead of refusing them",
		Long: `Run a reverse proxy for programs in any language. Set the base URL of a client to
the proxy and the prefix of a route: http://127.0.0.1:7411/github for
https://api.github.com. A request waits until the limits of its route admit it.

SIGHUP reads the file again; what is charged stays charged. SIGTERM ends the
proxy: requests that wait are refused, and admitted ones end. The proxy serves a
page at /_throttle/, metrics at /_throttle/metrics, and its health at
/_throttle/health and /_throttle/live.

Logs go to the standard error, with --json as JSON. They have no paths, queries,
headers, bodies and tokens. See docs/proxy.md.

Exit codes: 64 bad usage, 69 the file of the quotas cannot be used, 78 a bad
configuration file, 1 an address that cannot be listened on, or requests that had
not ended when the time to end was over.`,
		Example: `  throttle proxy --config throttle.yaml
  throttle proxy --config throttle.yaml --check
  curl http://127.0.0.1:7411/github/zen`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.config == "" {
				return usagef("proxy needs --config FILE")
			}
			return c.runProxy(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.config, "config", "", "the configuration file; - is the standard input")
	flags.StringVar(&f.listen, "listen", "", "the address, HOST:PORT or unix:PATH, instead of the file's")
	flags.DurationVar(&f.shutdown, "shutdown", 0, "how long admitted requests may take when the proxy ends, instead of the file's time")
	flags.BoolVar(&f.accessLog, "access-log", false, "log each request: method, route, client, status, wait and duration")
	flags.BoolVar(&f.publicPages, "public-pages", false, "serve the page and the metrics to other hosts, too")
	flags.BoolVar(&f.check, "check", false, "check the file, and end")
	return cmd
}

// A sidecar is a running proxy with its file.
type sidecar struct {
	command *command
	flags   proxyFlags
	log     *slog.Logger
	stats   *observe.Stats
	handler *proxy.Handler

	observer *throttle.Observer
	store    throttle.Store

	shutdown atomic.Int64 // how long admitted requests may take when the proxy ends

	// The fields below change when the file is read again.
	config     *config.Config
	base       *http.Transport
	transports *config.Transports
}

func (c *command) runProxy(ctx context.Context, f proxyFlags) error {
	cfg, err := c.loadProxyConfig(f)
	switch {
	case err != nil:
		return err
	case f.check:
		return c.checkProxy(f, cfg)
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	listener, pages, err := listenAll(cfg)
	if err != nil {
		return err
	}
	defer listener.Close()
	if pages != nil {
		defer pages.Close()
	}
	// These loggers know no level. net/http writes to the first what an upstream sends between two
	// responses, and go-redis to the second each dial that fails.
	log.SetOutput(io.Discard)
	redis.SetLogger(noLog{})
	cfg.Log = c.proxyLog(cfg)
	store, closer, err := cfg.OpenStore()
	if err != nil {
		return &storeError{storeName(cfg), cmp.Or(errors.Unwrap(err), err)} // without the field of the configuration file
	}
	defer closer.Close()
	s, err := c.newSidecar(f, cfg, store, listener.Addr())
	if err != nil {
		return err
	}
	if err := s.apply(cfg); err != nil {
		return &configError{err}
	}
	return s.serve(ctx, listener, pages, hangups)
}

// checkProxy writes that a file can be used.
func (c *command) checkProxy(f proxyFlags, cfg *config.Config) error {
	if _, err := cfg.Transports(nil); err != nil {
		return &configError{err}
	}
	return c.print(map[string]any{"ok": true, "routes": len(cfg.Routes), "clients": len(cfg.Clients)}, func() string {
		return fmt.Sprintf("%s: ok: %s, %s\n", f.config, plural(int64(len(cfg.Routes)), "route"), plural(int64(len(cfg.Clients)), "client"))
	})
}

// serve serves until the context ends. A value from hangups makes it read the file again.
func (s *sidecar) serve(ctx context.Context, listener, pages net.Listener, hangups <-chan os.Signal) error {
	s.log.Info("the proxy listens", "address", listener.Addr().String(), "routes", s.routes(), "clients", len(s.config.Clients))
	if pages != nil {
		s.log.Info("the pages listen", "address", pages.Addr().String())
	}
	if s.config.AllowPublic && len(s.config.Clients) == 0 {
		s.log.Warn("every program that reaches the address may use the proxy: add clients with tokens")
	}
	server := &proxy.Server{
		Handler: s.handler, Pages: pages, Shutdown: func() time.Duration { return time.Duration(s.shutdown.Load()) }, Log: s.log,
	}
	ctx, stop := context.WithCancel(ctx)
	var reloads sync.WaitGroup
	defer func() { stop(); reloads.Wait() }()
	reloads.Go(func() {
		for {
			select {
			case <-hangups:
				s.reload()
			case <-ctx.Done():
				return
			}
		}
	})
	err := server.Serve(ctx, listener)
	s.log.Info("the proxy has ended")
	return err
}

// loadProxyConfig reads the file, and checks the address of --listen as that of the file.
func (c *command) loadProxyConfig(f proxyFlags) (*config.Config, error) {
	cfg, err := c.loadConfig(f.config, false)
	if err != nil {
		return nil, &configError{err}
	}
	if f.listen != "" {
		if err := cfg.SetListen(f.listen); err != nil {
			return nil, usagef("--%w", err)
		}
	}
	return cfg, nil
}

// newSidecar returns a sidecar without routes.
func (c *command) newSidecar(f proxyFlags, cfg *config.Config, store throttle.Store, addr net.Addr) (*sidecar, error) {
	s := &sidecar{command: c, flags: f, log: cfg.Log, stats: observe.NewStats(), store: store}
	opts := proxy.Options{
		Stats: s.stats, Page: *cfg.Observability.Page, Metrics: *cfg.Observability.Metrics, PublicPages: f.publicPages,
		LocalHosts: isLoopbackTCP(addr), Log: s.log, AccessLog: f.accessLog,
	}
	if err := describePages(&opts, cfg, store, addr); err != nil {
		return nil, err
	}
	s.handler = proxy.New(opts)
	s.observer = throttle.JoinObservers(s.handler.Observer(), s.stats.Observer(), observe.Log(s.log, observe.LogOptions{}))
	return s, nil
}

// listen listens on the address of the file. An address that others can reach must be meant.
func listen(cfg *config.Config) (net.Listener, error) {
	if path, ok := strings.CutPrefix(cfg.Listen, "unix:"); ok {
		return listenUnix(path)
	}
	l, err := listenTCP(cfg.Listen)
	if err != nil {
		return nil, err
	}
	if !isLoopbackTCP(l.Addr()) && !cfg.AllowPublic { // localhost may be any address
		l.Close()
		return nil, &configError{fmt.Errorf("other machines can reach %s: use 127.0.0.1, or set allow_public: true", cfg.Listen)}
	}
	return l, nil
}

func isLoopbackTCP(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// listenUnix listens on a socket, in the place of one that a killed process has left.
func listenUnix(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if conn, err := net.Dial("unix", path); err == nil {
			conn.Close()
			return nil, fmt.Errorf("listen on unix:%s: another process listens there", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on unix:%s: %w", path, err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on unix:%s: %w", path, err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// proxyLog returns the log of the level that the file names.
func (c *command) proxyLog(cfg *config.Config) *slog.Logger {
	var level slog.Level
	if cfg.Observability.Log == "off" {
		return slog.New(slog.DiscardHandler)
	}
	if err := level.UnmarshalText([]byte(cfg.Observability.Log)); err != nil {
		panic(err) // the file was checked
	}
	opts := &slog.HandlerOptions{Level: level}
	if c.json {
		return slog.New(slog.NewJSONHandler(c.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(c.Stderr, opts))
}

// amount returns an amount of a tier for people: of a tier in dollars, in dollars.
func amount(tier string, n int64) string {
	unit := ""
	if p, err := throttle.ParsePolicy("", tier); err == nil && len(p.Tiers) == 1 {
		unit = p.Tiers[0].Unit
	}
	return algorithms.FormatAmount(n, unit)
}

// mostReload bounds how long a reload waits for a shared store.
const mostReload = 5 * time.Second

// apply makes the routes and clients of a file those of the proxy. After an error, the proxy has those of
// before.
func (s *sidecar) apply(cfg *config.Config) error {
	cfg.Observer = s.observer
	cfg.Alert = func(a throttle.Alert) {
		s.log.Warn("a budget is used", "policy", a.Policy, "tier", a.Tier, "percent", a.Percent, "used", amount(a.Tier, a.Used), "limit", amount(a.Tier, a.Limit))
	}
	transports, err := s.reloaded(cfg)
	if err != nil {
		return err
	}
	base := s.base
	if base == nil || s.config.Timeouts != cfg.Timeouts {
		base = proxy.NewBase(cfg.Timeouts.Connect, cfg.Timeouts.ResponseHeader)
	}
	table := proxy.Table{PublicURL: cfg.Public()}
	for _, prefix := range slices.Sorted(maps.Keys(cfg.Routes)) {
		r := proxyRoute(cfg.Routes[prefix], transports.Of(prefix), base)
		r.Known, r.Whole = transports.Known(prefix)
		if len(r.Members) > 0 {
			r.Pool = transports.PoolOf(prefix)
			r.Whole = r.Pool != nil
		}
		for i, m := range r.Members {
			r.Members[i].Known, _ = transports.KnownOf(prefix, m.Name)
		}
		table.Routes = append(table.Routes, r)
	}
	table.Clients = proxyClients(cfg, transports.Clients())
	s.handler.SetTable(table)
	if s.base != nil && s.base != base {
		s.base.CloseIdleConnections()
	}
	s.config, s.base, s.transports = cfg, base, transports
	s.shutdown.Store(int64(cmp.Or(max(0, s.flags.shutdown), cfg.Timeouts.Shutdown)))
	return nil
}

// reloaded returns the transports of a file.
func (s *sidecar) reloaded(cfg *config.Config) (*config.Transports, error) {
	if s.transports == nil {
		return cfg.Transports(s.store)
	}
	ctx, cancel := context.WithTimeout(context.Background(), mostReload)
	defer cancel()
	return s.transports.Reload(ctx, cfg)
}

// proxyRoute returns a route of the proxy.
func proxyRoute(r *config.Route, t *throttle.Transport, base *http.Transport) proxy.Route {
	sending := *t
	remove, drop, reads := r.Remove, []string(nil), r.Limits().IsPreset()
	var members []proxy.Member
	if pool, ok := t.Base.(*config.Pool); ok {
		own := *pool
		own.Base, sending.Base = base, &own
		remove, drop = slices.Concat(remove, pool.Headers()), pool.Parameters()
		for _, m := range r.Pool {
			members = append(members, proxy.Member{Name: m.Name, Upstream: m.Upstream()})
			reads = reads || m.Limits().IsPreset()
		}
	} else {
		sending.Base = base
	}
	var secrets []string
	for _, secret := range r.Secrets() {
		secrets = append(secrets, secret.Reveal())
	}
	return proxy.Route{
		Prefix: r.Prefix(), Name: r.Name, Upstream: r.Upstream(), Members: members, Transport: &sending, Class: r.DefaultClass(), Set: revealed(r.Set), Remove: remove,
		Query: revealed(r.Query), Drop: drop, Secrets: secrets, Key: r.Key.Header,
		MaxBody: int64(r.MaxBody), ReadsResponses: reads, Allows: r.Allows,
	}
}

// proxyClients returns the clients of a file. Quotas are their own limits, by the names of the policies.
func proxyClients(cfg *config.Config, quotas map[string]*throttle.Limiter) (all []proxy.Client) {
	for name, client := range cfg.Clients {
		class, has := client.DefaultClass()
		own, _ := client.Limits()
		all = append(all, proxy.Client{Name: name, Token: client.Token.Reveal(), Class: class, HasClass: has, Quota: quotas[own.Name]})
	}
	return all
}

func revealed(secrets map[string]config.Secret) map[string]string {
	values := make(map[string]string)
	for name, value := range secrets {
		values[name] = value.Reveal()
	}
	return values
}

// reload reads the file again. If it has a problem, everything stays as it is.
func (s *sidecar) reload() {
	cfg, err := s.command.loadProxyConfig(s.flags)
	if err == nil {
		changes := cfg.Since(s.config)
		if err = s.apply(cfg); err == nil {
			s.log.Info("the file was read again", "changes", changes.String())
			if changes.Listen || changes.Observability {
				s.log.Warn("another address, log level or set of pages needs a new start")
			}
			return
		}
	}
	s.log.Error("the file was read again and has a problem: the old one stays", "error", err.Error())
}

// routes lists the routes for the log: prefixes and hosts.
func (s *sidecar) routes() []string {
	var all []string
	for _, prefix := range slices.Sorted(maps.Keys(s.config.Routes)) {
		r := s.config.Routes[prefix]
		hosts := []string{r.Upstream().Host}
		for i, m := range r.Pool {
			hosts = append(hosts[:i], m.Name+" "+m.Upstream().Host)
		}
		all = append(all, prefix+" → "+strings.Join(hosts, ", "))
	}
	return all
}
