// Package config reads the file that describes which APIs a program calls and what they allow. The
// proxy of the command throttle reads it, and a Go program that reads the same file keeps the same
// quotas as the proxy beside it:
//
//	c, err := config.Load("throttle.yaml")
//	store, closer, err := c.OpenStore()
//	defer closer.Close()
//	transport, err := c.Transport("/openai", store)
//	client := &http.Client{Transport: transport}
//
// The file is YAML, or JSON. testdata/example.yaml has every field. A field that does not exist, a
// key that is there twice, and a value of another type are errors. [Load] reports all problems of a
// file, each with its line, its column and its field.
//
// [ParseLimits] reads limits alone, as the command line has them: a policy such as
// "5/s + 10000/h", or a preset such as "openai:requests=500,tokens=30000".
package config

import (
	"crypto/sha256"
	"crypto/subtle"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
)

// Version is the version of the file's format.
const Version = 1

// The defaults of a file.
const (
	DefaultListen   = "127.0.0.1:7411"
	DefaultMaxBody  = 64 << 10
	DefaultConnect  = 10 * time.Second
	DefaultShutdown = 30 * time.Second
	DefaultLog      = "info"
)

// ReservedPrefix is the prefix of the proxy's own pages. No route may have it.
const ReservedPrefix = "/_throttle"

// A Config is what a file says. [Load] and [Parse] return only valid ones, with the defaults filled
// in. Don't change it.
type Config struct {
	// Schema is the address of the JSON schema, for editors. It is not read.
	Schema string `json:"$schema,omitempty"`

	// Version is the version of the format: 1. If zero, 1.
	Version int `json:"version,omitempty"`

	// Listen is the address of the proxy, HOST:PORT or unix:PATH. If empty, 127.0.0.1:7411.
	Listen string `json:"listen,omitempty"`

	// AllowPublic allows a Listen that other machines can reach. If false, Listen must be a loopback
	// address or a socket.
	AllowPublic bool `json:"allow_public,omitempty"`

	// Store is where quotas are kept. If empty, in this process.
	Store Store `json:"store,omitzero"`

	// Routes are the APIs, by the prefix of their paths in the proxy, such as "/openai".
	Routes map[string]*Route `json:"routes"`

	// Clients are the programs that may use the proxy, by name. If empty, every program may, and
	// needs no token.
	Clients map[string]*Client `json:"clients,omitempty"`

	// Timeouts bound connections and the end of the proxy.
	Timeouts Timeouts `json:"timeouts,omitzero"`

	// MaxBody is how much of a request's body the proxy keeps to estimate costs; longer bodies pass
	// unread. Each Route may have its own. If zero, 64KB.
	MaxBody Size `json:"max_body,omitempty"`

	// Observability is what the proxy shows of itself.
	Observability Observability `json:"observability,omitzero"`

	// Observer receives the events of all requests, and Alert those of budgets. The caller sets them
	// before the first Transport. If nil, there are none.
	Observer *throttle.Observer   `json:"-"`
	Alert    func(throttle.Alert) `json:"-"`
}

// A Store is where quotas are kept: in Redis, in a file, or if both are empty, in this process.
type Store struct {
	// Redis is the URL of a Redis or Valkey server, such as redis://localhost:6379/0, or rediss://
	// with TLS.
	Redis Secret `json:"redis,omitzero"`

	// Prefix begins the names of the keys in Redis. If empty, "throttle:".
	Prefix string `json:"prefix,omitempty"`

	// File is the path of a file for the processes of one host. A file keeps neither Concurrency nor
	// estimates.
	File string `json:"file,omitempty"`
}

// A Route leads from a prefix of the proxy to an API. It has a Preset or a Policy.
type Route struct {
	// To is the address of the API, such as https://api.openai.com/v1, without a / at its end.
	To string `json:"to"`

	// Preset is the name of a preset, such as "openai". See [Presets].
	Preset string `json:"preset,omitempty"`

	// With are the parameters of the preset.
	With map[string]string `json:"with,omitempty"`

	// AnyHost applies the preset to the host of To, even if it is not a host of the preset, such as a
	// gateway in front of the API. If false, To must lead to a host of the preset.
	AnyHost bool `json:"any_host,omitempty"`

	// Policy is the limits as throttle.ParsePolicy reads them, such as "5/s + 10000/h | guard=auto".
	Policy string `json:"policy,omitempty"`

	// Name names the quota in the store, in errors and in metrics. Programs that share a quota use
	// the same name. Routes with the same name share a quota, and must have the same limits. If
	// empty, the prefix without its first slash.
	Name string `json:"name,omitempty"`

	// MaxWait refuses requests that would wait longer. If zero, the client alone limits a wait.
	MaxWait time.Duration `json:"max_wait,omitempty"`

	// MaxQueue refuses a request when so many already wait. If zero, any number may wait.
	MaxQueue int `json:"max_queue,omitempty"`

	// Budget is a policy of budgets that all requests of the route share, such as
	// "50000/month;budget=true | alert_at=80,100". Its units are those that requests of the route
	// cost. If empty, there is none.
	Budget string `json:"budget,omitempty"`

	// Cost is what each request costs beside what the preset charges, by unit: {usd: 5000} for half
	// a cent, if the budget counts millionths of a dollar.
	Cost map[string]int64 `json:"cost,omitempty"`

	// Class is the class of requests that come without one: interactive, normal or batch. If empty,
	// normal. The class of a client comes first.
	Class string `json:"class,omitempty"`

	// Clients are the names of the clients that may use the route. If empty, all may.
	Clients []string `json:"clients,omitempty"`

	// Set sets headers of requests to the API, such as {Authorization: "Bearer ${env:OPENAI_API_KEY}"}.
	Set map[string]Secret `json:"set,omitempty"`

	// Remove are headers that are removed from requests to the API.
	Remove []string `json:"remove,omitempty"`

	// MaxBody is the route's own MaxBody. If zero, that of the Config.
	MaxBody Size `json:"max_body,omitempty"`

	// Timeout bounds the time from a request's admission to the end of its response. If zero, it is
	// not bounded.
	Timeout time.Duration `json:"timeout,omitempty"`

	prefix   string
	upstream *url.URL
	limits   Limits
	budget   throttle.Policy // without tiers if there is none
	class    throttle.Class
}

// Prefix returns the prefix of the route's paths in the proxy, such as "/openai".
func (r *Route) Prefix() string { return r.prefix }

// Upstream returns a copy of To, parsed.
func (r *Route) Upstream() *url.URL {
	u := *r.upstream
	return &u
}

// Limits returns the limits of the route, with Name, MaxWait and MaxQueue applied.
func (r *Route) Limits() Limits { return r.limits }

// DefaultClass returns Class, parsed.
func (r *Route) DefaultClass() throttle.Class { return r.class }

// Allows reports whether a client may use the route.
func (r *Route) Allows(client string) bool {
	if len(r.Clients) == 0 {
		return true
	}
	for _, name := range r.Clients {
		if name == client {
			return true
		}
	}
	return false
}

// A Client is a program that may use the proxy.
type Client struct {
	// Token is what the client sends as its token, at least 16 bytes.
	Token Secret `json:"token"`

	// Class is the class of the client's requests: interactive, normal or batch. If empty, that of
	// the route.
	Class string `json:"class,omitempty"`

	// Budget is a policy of budgets for all requests of the client, over all routes, such as
	// "1000/day;budget=true". If empty, there is none.
	Budget string `json:"budget,omitempty"`

	class  throttle.Class
	budget throttle.Policy // without tiers if there is none
}

// DefaultClass returns Class, parsed, and whether the client has one.
func (c *Client) DefaultClass() (class throttle.Class, ok bool) { return c.class, c.Class != "" }

// Timeouts bound connections and the end of the proxy.
type Timeouts struct {
	// Connect bounds the time to connect to an API. If zero, 10s.
	Connect time.Duration `json:"connect,omitempty"`

	// ResponseHeader bounds the time from the end of a request to the header of its response. If
	// zero, it is not bounded.
	ResponseHeader time.Duration `json:"response_header,omitempty"`

	// Shutdown is how long the proxy waits for open requests before it ends. If zero, 30s.
	Shutdown time.Duration `json:"shutdown,omitempty"`
}

// Observability is what the proxy shows of itself, under /_throttle/.
type Observability struct {
	// Metrics serves metrics for Prometheus at /_throttle/metrics. If nil, true.
	Metrics *bool `json:"metrics,omitempty"`

	// Page serves the live page at /_throttle/. If nil, true.
	Page *bool `json:"page,omitempty"`

	// Log is the level of the log: debug, info, warn, error or off. If empty, info.
	Log string `json:"log,omitempty"`
}

// A Size is a number of bytes, written as 65536, "64KB" or "1MB". KB is 1024 bytes.
type Size int64

// Load reads a file. It reads the environment and the files that the file refers to. The error is an
// [*Error] if the file has problems.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostBytes+1))
	if err != nil {
		return nil, err
	}
	return Parse(text, path)
}

// Parse is like Load for the text of a file. Name names the file in errors.
func Parse(text []byte, name string) (*Config, error) { return Loader{}.Parse(text, name) }

// A Loader reads files. The zero Loader is what Load and Parse use.
type Loader struct {
	// LookupEnv returns the value of a variable that a ${env:NAME} refers to. If nil, os.LookupEnv.
	LookupEnv func(name string) (value string, ok bool)

	// ReadFile returns the contents of a file that a ${file:PATH} refers to. If nil, os.ReadFile.
	ReadFile func(path string) ([]byte, error)

	// WithoutSecrets reads no environment and no files: Secrets keep their references. Use it to
	// check a file on a machine that lacks the secrets.
	WithoutSecrets bool
}

// Parse reads the text of a file. Name names the file in errors.
func (l Loader) Parse(text []byte, name string) (*Config, error) {
	d := decoder{loader: l, file: name}
	c := d.config(text)
	if len(d.problems) > 0 {
		return nil, &Error{File: name, Problems: d.sorted()}
	}
	return c, nil
}

// ClientFor returns the name of the client with a token. It compares in constant time.
func (c *Config) ClientFor(token string) (name string, ok bool) {
	given := sha256.Sum256([]byte(token))
	for n, client := range c.Clients {
		if has := sha256.Sum256([]byte(client.Token.Reveal())); subtle.ConstantTimeCompare(given[:], has[:]) == 1 && !client.Token.IsZero() {
			name, ok = n, true
		}
	}
	return name, ok
}

// RouteFor returns the route of a path in the proxy, and the path that remains: "/v1/models" for
// "/openai/v1/models" at the prefix "/openai". The longest prefix counts. It returns nil if no route
// has the path.
func (c *Config) RouteFor(path string) (r *Route, rest string) {
	for prefix := strings.TrimSuffix(path, "/"); len(prefix) > 1; prefix = prefix[:strings.LastIndexByte(prefix, '/')] {
		if r = c.Routes[prefix]; r != nil {
			return r, path[len(prefix):]
		}
		if !strings.Contains(prefix, "/") {
			break
		}
	}
	if r = c.Routes["/"]; r != nil {
		return r, path
	}
	return nil, ""
}
