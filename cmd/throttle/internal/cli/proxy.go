package cli

import (
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
	"syscall"
	"time"

	"github.com/apithrottle/throttle"
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
headers, bodies and tokens. See docs/proxy.md.`,
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
	flags.BoolVar(&f.accessLog, "access-log", false, "log each request: method, route, status, wait and duration")
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

	// The fields below change when the file is read again.
	config     *config.Config
	store      throttle.Store
	base       *http.Transport
	transports map[string]*throttle.Transport // by prefix
}

func (c *command) runProxy(ctx context.Context, f proxyFlags) error {
	cfg, err := c.loadProxyConfig(f)
	if err != nil {
		return &configError{err}
	}
	if f.check {
		for prefix := range cfg.Routes {
			if _, err := cfg.Transport(prefix, nil); err != nil {
				return &configError{err}
			}
		}
		return c.print(map[string]any{"ok": true, "routes": len(cfg.Routes), "clients": len(cfg.Clients)}, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s: ok: %s, %s\n", f.config, count(len(cfg.Routes), "route"), count(len(cfg.Clients), "client"))
			return err
		})
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	listener, err := listen(cfg)
	if err != nil {
		return err
	}
	defer listener.Close()
	// These loggers know no level. net/http writes to the first what an upstream sends between two
	// responses, and go-redis to the second each dial that fails.
	log.SetOutput(io.Discard)
	redis.SetLogger(noLog{})
	store, closer, err := cfg.OpenStore()
	if err != nil {
		return err
	}
	defer closer.Close()
	s := c.newSidecar(f, cfg, store, listener.Addr())
	if err := s.apply(cfg); err != nil {
		return &configError{err}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	reloads := make(chan struct{})
	go func() {
		defer close(reloads)
		for {
			select {
			case <-hangups:
				s.reload()
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { stop(); <-reloads }()
	s.log.Info("the proxy listens", "address", listener.Addr().String(), "routes", s.routes(), "clients", len(cfg.Clients))
	if cfg.AllowPublic && len(cfg.Clients) == 0 {
		s.log.Warn("every program that reaches the address may use the proxy: add clients with tokens")
	}
	shutdown := cfg.Timeouts.Shutdown
	if f.shutdown > 0 {
		shutdown = f.shutdown
	}
	server := &proxy.Server{Handler: s.handler, Shutdown: shutdown, Log: s.log}
	err = server.Serve(ctx, listener)
	s.log.Info("the proxy has ended")
	return err
}

// loadProxyConfig reads the file, and checks the address of --listen as that of the file.
func (c *command) loadProxyConfig(f proxyFlags) (*config.Config, error) {
	cfg, err := c.loadConfig(f.config, false)
	if err == nil && f.listen != "" {
		cfg.Listen = f.listen
	}
	return cfg, err
}

// newSidecar returns a sidecar without routes.
func (c *command) newSidecar(f proxyFlags, cfg *config.Config, store throttle.Store, addr net.Addr) *sidecar {
	s := &sidecar{command: c, flags: f, log: c.proxyLog(cfg), stats: observe.NewStats(), store: store}
	s.handler = proxy.New(proxy.Options{
		Stats: s.stats, Page: *cfg.Observability.Page, Metrics: *cfg.Observability.Metrics, PublicPages: f.publicPages,
		LocalHosts: isLoopbackTCP(addr), Log: s.log, AccessLog: f.accessLog,
	})
	return s
}

// listen listens on the address of the file. An address that others can reach must be meant.
func listen(cfg *config.Config) (net.Listener, error) {
	if path, ok := strings.CutPrefix(cfg.Listen, "unix:"); ok {
		return listenUnix(path)
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	if !isLoopbackTCP(l.Addr()) && !cfg.AllowPublic && len(cfg.Clients) == 0 {
		l.Close()
		return nil, &configError{fmt.Errorf("other machines can reach %s: listen on 127.0.0.1, add clients with tokens, or set allow_public: true", cfg.Listen)}
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

// apply makes the routes and clients of a file those of the proxy. A route whose limits are the same
// keeps its transport, and with it its queue. The others continue with what is charged.
func (s *sidecar) apply(cfg *config.Config) error {
	cfg.Observer = throttle.JoinObservers(s.handler.Observer(), s.stats.Observer(), observe.Log(s.log, observe.LogOptions{}))
	cfg.Alert = func(a throttle.Alert) {
		s.log.Warn("a budget is used", "policy", a.Policy, "tier", a.Tier, "percent", a.Percent, "used", a.Used, "limit", a.Limit)
	}
	var changes config.Changes
	if s.config != nil {
		if changes = cfg.Since(s.config); changes.Store {
			return errors.New("another store needs a new start: quotas do not move")
		}
	}
	base := s.base
	if base == nil || changes.Timeouts {
		base = proxy.NewBase(cfg.Timeouts.Connect, cfg.Timeouts.ResponseHeader)
	}
	transports := make(map[string]*throttle.Transport)
	var table proxy.Table
	for _, prefix := range slices.Sorted(maps.Keys(cfg.Routes)) {
		t := s.transports[prefix]
		if t == nil || slices.Contains(changes.Limits, prefix) && !s.setPolicy(cfg, prefix, t) {
			var err error
			if t, err = cfg.Transport(prefix, s.store); err != nil {
				return err
			}
		}
		transports[prefix] = t
		table.Routes = append(table.Routes, proxyRoute(cfg.Routes[prefix], t, base))
	}
	for name, client := range cfg.Clients {
		class, has := client.DefaultClass()
		table.Clients = append(table.Clients, proxy.Client{Name: name, Token: client.Token.Reveal(), Class: class, HasClass: has})
	}
	s.handler.SetTable(table)
	if s.base != nil && s.base != base {
		s.base.CloseIdleConnections()
	}
	s.config, s.base, s.transports = cfg, base, transports
	return nil
}

// setPolicy changes the policy of a route's transport, so that requests which wait keep their place in
// the queue. It reports false if more than the policy differs: the route then needs another transport.
func (s *sidecar) setPolicy(cfg *config.Config, prefix string, t *throttle.Transport) bool {
	old, r := s.config.Routes[prefix], cfg.Routes[prefix]
	charges := func(c *config.Client) bool { return c.Budget != "" }
	if old.Limits().IsPreset() || r.Limits().IsPreset() || old.Name != r.Name || old.Timeout != r.Timeout ||
		old.Budget != r.Budget || r.Budget != "" || len(old.Cost)+len(r.Cost) > 0 ||
		slices.ContainsFunc(slices.Collect(maps.Values(s.config.Clients)), charges) || slices.ContainsFunc(slices.Collect(maps.Values(cfg.Clients)), charges) {
		return false
	}
	p := r.Limits().Policies()[0]
	p.Observer, p.Alert = cfg.Observer, cfg.Alert
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return t.Route(new(http.Request)).SetPolicy(ctx, p) == nil
}

// proxyRoute returns a route of the proxy.
func proxyRoute(r *config.Route, t *throttle.Transport, base *http.Transport) proxy.Route {
	sending := *t
	sending.Base = base
	set := make(map[string]string)
	for name, value := range r.Set {
		set[name] = value.Reveal()
	}
	return proxy.Route{
		Prefix: r.Prefix(), Upstream: r.Upstream(), Transport: &sending, Class: r.DefaultClass(), Set: set, Remove: r.Remove,
		MaxBody: int64(r.MaxBody), ReadsResponses: r.Limits().IsPreset(), Allows: r.Allows,
	}
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
		all = append(all, prefix+" → "+s.config.Routes[prefix].Upstream().Host)
	}
	return all
}
