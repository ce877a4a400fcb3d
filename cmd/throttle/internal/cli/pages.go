package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
)

// listenAll listens on the addresses of the file. Pages is nil if the pages have none of their own.
func listenAll(cfg *config.Config) (l, pages net.Listener, err error) {
	if l, err = listen(cfg); err != nil || cfg.Observability.Listen == "" {
		return l, nil, err
	}
	if pages, err = listenTCP(cfg.Observability.Listen); err != nil {
		l.Close()
		return nil, nil, fmt.Errorf("observability.listen: %w", err)
	}
	return l, pages, nil
}

// listenTCP listens on an address, which the error has once.
func listenTCP(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

// describePages sets what the page says about the proxy.
func describePages(opts *proxy.Options, cfg *config.Config, store throttle.Store, addr net.Addr) error {
	name := addr.String()
	if addr.Network() == "unix" {
		name = "unix:" + name
	}
	opts.Title, opts.Store = "throttle proxy at "+name, storeName(cfg)
	opts.Subtitle = "Version " + readVersion().Version + ". Quotas are in " + opts.Store + "."
	if host, err := os.Hostname(); err == nil {
		opts.Subtitle = "On " + host + ". " + opts.Subtitle
	}
	opts.PagesElsewhere = cfg.Observability.Listen != ""
	opts.ControlToken = cfg.Observability.ControlToken.Reveal()
	if cfg.Store == (config.Store{}) {
		return nil
	}
	l, err := throttle.New(throttle.Policy{Name: "throttle-health", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, store)
	if err != nil {
		return err
	}
	opts.Check = func(ctx context.Context) error {
		_, err := l.Status(ctx)
		return err
	}
	return nil
}

// storeName names what keeps the quotas, without a password.
func storeName(cfg *config.Config) string {
	switch p := (&place{cfg.Store}); {
	case p.isServer():
		return p.where()
	case p.File != "":
		return "the file " + p.File
	}
	return "the memory of the proxy"
}
