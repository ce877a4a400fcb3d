package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// NewBase returns the transport that sends requests to upstreams. It uses no proxy of the environment,
// and leaves the encoding of responses to clients. Timeouts of zero are no bound.
func NewBase(connect, responseHeader time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    connect,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1024,
		IdleConnTimeout:        90 * time.Second,
		ResponseHeaderTimeout:  responseHeader,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 1 << 20,
	}
}

// A Server serves a Handler.
type Server struct {
	Handler *Handler

	// Pages is where the pages alone are served, until the server has ended. If nil, nowhere.
	Pages net.Listener

	// Shutdown returns how long admitted requests may take once the server ends. If nil, 30 s.
	Shutdown func() time.Duration

	// Log receives what goes wrong. If nil, nothing is logged.
	Log *slog.Logger
}

// The bounds of a connection.
const (
	maxHeaderBytes    = 64 << 10
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
)

// Serve serves connections until ctx ends. It then stops to accept, refuses the requests that wait, and
// waits for those that are admitted, for at most Shutdown. Serve returns nil if all of them have ended.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	logger := s.Log
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	base, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := newServer(s.Handler, base, logger)
	server.ReadTimeout = s.Handler.idle // of what the Handler does not read itself
	defer s.servePages(base, logger)()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- server.Serve(l) }()
	}
	select {
	case err := <-ended:
		server.Close()
		return err
	case <-ctx.Done():
	}
	most := 30 * time.Second
	if s.Shutdown != nil {
		most = s.Shutdown()
	}
	limit, stop := context.WithTimeout(context.Background(), most)
	defer stop()
	s.Handler.Drain()
	err := server.Shutdown(limit)
	if err == nil {
		err = s.Handler.wait(limit) // connections that were upgraded
	}
	if err != nil {
		cancel()
		server.Close()
		return errors.New("requests had not ended when the time to end was over")
	}
	return nil
}

// newServer returns a server of HTTP/1. Its log has no texts of clients.
func newServer(h http.Handler, base context.Context, logger *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:                      h,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            readHeaderTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeaderBytes,
		BaseContext:                  func(net.Listener) context.Context { return base },
		ErrorLog:                     slog.NewLogLogger(connections{logger.Handler()}, slog.LevelWarn),
		Protocols:                    protocols,
	}
}

// servePages serves the pages at an address of their own. The
// function that it returns ends that.
func (s *Server) servePages(base context.Context, logger *slog.Logger) (end func()) {
	if s.Pages == nil {
		return func() {}
	}
	tcp, ok := s.Pages.Addr().(*net.TCPAddr)
	server := newServer(s.Handler.Pages(ok && tcp.IP.IsLoopback()), base, logger)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(s.Pages); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("the address of the pages has failed", "error", err.Error())
		}
	}()
	return func() { server.Close(); <-done }
}

// wait waits until no request is open.
func (h *Handler) wait(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for h.Open() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// connections is the handler of the lines that net/http logs. It leaves out their text, which may have
// anything.
type connections struct{ slog.Handler }

func (c connections) Handle(ctx context.Context, r slog.Record) error {
	return c.Handler.Handle(ctx, slog.NewRecord(r.Time, slog.LevelWarn, "a connection failed", r.PC))
}
