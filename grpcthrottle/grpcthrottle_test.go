package grpcthrottle_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/grpcthrottle"
)

const (
	method = "/test.Service/Call"
	other  = "/test.Service/Other"
)

// A server answers the first calls with the errors of next, and others by their method: a call of
// method echoes the messages until the client has sent its last.
type server struct {
	mu       sync.Mutex
	next     []error
	received []time.Time
	messages []time.Time
	open     int // streams
	most     int // streams at once
}

func (s *server) handle(_ any, stream grpc.ServerStream) error {
	s.mu.Lock()
	s.received = append(s.received, time.Now())
	s.open++
	s.most = max(s.most, s.open)
	var err error
	if len(s.next) > 0 {
		err, s.next = s.next[0], s.next[1:]
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	}()
	if err != nil {
		return err
	}
	for {
		var m emptypb.Empty
		if err := stream.RecvMsg(&m); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		s.mu.Lock()
		s.messages = append(s.messages, time.Now())
		s.mu.Unlock()
		if err := stream.SendMsg(&m); err != nil {
			return err
		}
	}
}

// dial returns a connection to the server, inside limits.
func dial(t *testing.T, s *server, l grpcthrottle.Limits, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	lis := bufconn.Listen(1 << 16)
	g := grpc.NewServer(grpc.UnknownServiceHandler(s.handle))
	go g.Serve(lis)
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("passthrough:///test", append(opts,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(l.Unary), grpc.WithStreamInterceptor(l.Stream))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func limiter(t *testing.T, spec string) *throttle.Limiter {
	t.Helper()
	p, err := throttle.ParsePolicy("grpc", spec)
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttle.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func call(ctx context.Context, conn *grpc.ClientConn, method string) error {
	return conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
}

func open(t *testing.T, ctx context.Context, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// failure is the error of a status with details.
func failure(t *testing.T, code codes.Code, message string, details ...protoadapt.MessageV1) error {
	t.Helper()
	st, err := status.New(code, message).WithDetails(details...)
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func retryIn(d time.Duration) protoadapt.MessageV1 {
	return protoadapt.MessageV1Of(&errdetails.RetryInfo{RetryDelay: durationpb.New(d)})
}

func TestUnary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(server)
		conn := dial(t, s, grpcthrottle.Limits{Limiter: limiter(t, "5/s")})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := call(t.Context(), conn, method); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i, at := range s.received {
			if i >= 5 && at.Sub(s.received[i-5]) < time.Second {
				t.Errorf("call %d came %v after the fifth before it", i+1, at.Sub(s.received[i-5]))
			}
		}
		if took := s.received[len(s.received)-1].Sub(s.received[0]); len(s.received) != 50 || took != 9*time.Second {
			t.Errorf("%d calls took %v", len(s.received), took)
		}
	})
}

// A refusal pauses the quota for all, whether of a call or of a stream. What else fails does not.
func TestRefusals(t *testing.T) {
	const backoff = -1
	for name, test := range map[string]struct {
		err  error
		wait time.Duration
	}{
		"with a delay":             {failure(t, codes.ResourceExhausted, "Quota exceeded.", protoadapt.MessageV1Of(&errdetails.QuotaFailure{}), retryIn(7500*time.Millisecond)), 7500 * time.Millisecond},
		"without one":              {failure(t, codes.ResourceExhausted, "Quota exceeded."), backoff},
		"unavailable with a delay": {failure(t, codes.Unavailable, "Overloaded.", retryIn(time.Hour)), time.Minute},
		"unavailable":              {failure(t, codes.Unavailable, "Overloaded."), 0},
		"too large":                {failure(t, codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)"), 0},
		"not of the quota":         {failure(t, codes.PermissionDenied, "No."), 0},
		"of the server":            {failure(t, codes.Internal, "Oops."), 0},
	} {
		for kind, refused := range map[string]func(*testing.T, *grpc.ClientConn) error{
			"call": func(t *testing.T, conn *grpc.ClientConn) error { return call(t.Context(), conn, method) },
			"stream": func(t *testing.T, conn *grpc.ClientConn) error {
				return open(t, t.Context(), conn).RecvMsg(&emptypb.Empty{})
			},
		} {
			t.Run(name+" of a "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &server{next: []error{test.err}}
					conn := dial(t, s, grpcthrottle.Limits{Limiter: limiter(t, "1000/s")})
					if err := refused(t, conn); status.Code(err) != status.Code(test.err) {
						t.Fatalf("%v, want %v", err, test.err)
					}
					start := time.Now()
					if err := call(t.Context(), conn, method); err != nil {
						t.Fatal(err)
					}
					took := time.Since(start)
					if test.wait == backoff && (took < time.Second || took > 2*time.Second) || test.wait != backoff && took != test.wait {
						t.Errorf("the next call waited %v, want %v", took, test.wait)
					}
				})
			})
		}
	}
}

// What the Limiter refuses is not sent, and has a status.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(server)
		lim := limiter(t, "1/min | max_wait=20s")
		conn := dial(t, s, grpcthrottle.Limits{Limiter: lim})
		if err := call(t.Context(), conn, method); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		for _, test := range []struct {
			ctx  context.Context
			err  error
			code codes.Code
		}{{short, throttle.ErrDeadline, codes.DeadlineExceeded}, {canceled, context.Canceled, codes.Canceled}} {
			if err := call(test.ctx, conn, method); !errors.Is(err, test.err) || status.Code(err) != test.code {
				t.Errorf("%v of %v, want %v", status.Code(err), err, test.code)
			}
			if _, err := conn.NewStream(test.ctx, &grpc.StreamDesc{ServerStreams: true}, method); !errors.Is(err, test.err) {
				t.Errorf("a stream: %v", err)
			}
		}
		lim.Close()
		if err := call(t.Context(), conn, method); !errors.Is(err, throttle.ErrClosed) || status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a closed Limiter: %v", err)
		}
		if len(s.received) != 1 {
			t.Errorf("%d calls were sent", len(s.received))
		}
	})
}

// A stream holds its place until it ends, however it ends.
func TestStreamsHoldTheirPlace(t *testing.T) {
	for name, end := range map[string]func(stream grpc.ClientStream, cancel func()) error{
		"received": func(stream grpc.ClientStream, _ func()) error {
			if err := errors.Join(stream.CloseSend(), stream.RecvMsg(&emptypb.Empty{})); !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		},
		"canceled": func(_ grpc.ClientStream, cancel func()) error {
			cancel()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := new(server)
				conn := dial(t, s, grpcthrottle.Limits{Limiter: limiter(t, "2;algo=concurrency")})
				var wg sync.WaitGroup
				start := time.Now()
				for range 8 {
					wg.Go(func() {
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						stream := open(t, ctx, conn)
						for range 3 {
							if err := errors.Join(stream.SendMsg(&emptypb.Empty{}), stream.RecvMsg(&emptypb.Empty{})); err != nil {
								t.Error(err)
							}
						}
						time.Sleep(time.Second)
						if err := end(stream, cancel); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				if took := time.Since(start); took != 4*time.Second || len(s.received) != 8 {
					t.Errorf("%d streams took %v", len(s.received), took)
				}
				if s.most > 2 && name == "received" { // the server may learn later that a stream was canceled
					t.Errorf("%d streams at once", s.most)
				}
			})
		})
	}
}

// The first message of a stream ends a probe; the stream need not end.
func TestStreamPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{next: []error{failure(t, codes.ResourceExhausted, "Quota exceeded.", retryIn(time.Second))}}
		conn := dial(t, s, grpcthrottle.Limits{Limiter: limiter(t, "1000/s")})
		if err := call(t.Context(), conn, method); err == nil {
			t.Fatal("no error")
		}
		start := time.Now()
		stream := open(t, t.Context(), conn)
		if err := errors.Join(stream.SendMsg(&emptypb.Empty{}), stream.RecvMsg(&emptypb.Empty{})); err != nil {
			t.Fatal(err)
		}
		if err := call(t.Context(), conn, method); err != nil || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(server)
		messages := limiter(t, "2/s")
		limits := grpcthrottle.Limits{Messages: func(_ context.Context, m string) *throttle.Limiter {
			if m != method {
				return nil
			}
			return messages
		}}
		stream := open(t, t.Context(), dial(t, s, limits))
		start := time.Now()
		for range 9 {
			if err := errors.Join(stream.SendMsg(&emptypb.Empty{}), stream.RecvMsg(&emptypb.Empty{})); err != nil {
				t.Fatal(err)
			}
		}
		for i := 2; i < len(s.messages); i++ {
			if took := s.messages[i].Sub(s.messages[i-2]); took < time.Second {
				t.Errorf("3 messages in %v", took)
			}
		}
		if took := time.Since(start); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("9 messages took %v", took)
		}
	})
}

// Calls have limits of their own, by method, and costs.
func TestRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, "10/s;unit=points")
		limits := grpcthrottle.Limits{
			Route: func(_ context.Context, m string) *throttle.Limiter {
				if m != method {
					return nil
				}
				return lim
			},
			Cost: func(_ context.Context, _ string, request any) throttle.Cost {
				if _, ok := request.(*emptypb.Empty); !ok {
					t.Errorf("the request is a %T", request)
				}
				return throttle.Cost{"points": 5}
			},
		}
		conn := dial(t, new(server), limits)
		start := time.Now()
		for range 3 {
			for _, m := range []string{method, other} {
				if err := call(t.Context(), conn, m); err != nil {
					t.Fatal(err)
				}
			}
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
	})
}
