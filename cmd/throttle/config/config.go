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
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/providers"
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

	// Listen is the address of the proxy, HOST:PORT or unix:PATH. SetListen replaces it. If empty,
	// 127.0.0.1:7411.
	Listen string `json:"listen,omitempty"`

	// AllowPublic allows a Listen that other machines can reach. If false, Listen must be a loopback
	// address or a socket.
	AllowPublic bool `json:"allow_public,omitempty"`

	// PublicURL is the address at which clients reach the proxy, such as https://throttle.example. The
	// links of responses lead to it. If empty, they lead to http:// and the Host of the request.
	PublicURL string `json:"public_url,omitempty"`

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

	// Log receives what the store of OpenStore reports to an operator: the server is away, or has lost a
	// quota. If nil, nothing is logged.
	Log *slog.Logger `json:"-"`

	public *url.URL
}

// Public returns PublicURL, parsed, nil if it is empty.
func (c *Config) Public() *url.URL { return c.public }

// A Store is where quotas are kept: in Redis, in PostgreSQL, in a file, or if all are empty, in this
// process.
type Store struct {
	// Redis is the URL of a Redis or Valkey server, such as redis://localhost:6379/0, or rediss://
	// with TLS.
	Redis Secret `json:"redis,omitzero"`

	// Prefix begins the names of the keys in Redis. If empty, "throttle:".
	Prefix string `json:"prefix,omitempty"`

	// Postgres is the URL of a PostgreSQL database, such as postgres://app@localhost:5432/app?sslmode=verify-full.
	// throttle postgres migrate creates its table. All fields below that PostgreSQL has may be parameters of the
	// URL instead.
	Postgres Secret `json:"postgres,omitzero"`

	// Table is the name of the table in PostgreSQL, or of its schema and the table, as in limits.quota. If
	// empty, throttle_quota.
	Table string `json:"table,omitempty"`

	// Timeout is how long a call of Redis, or a round trip to PostgreSQL, may take before the server counts
	// as away. If zero, 1s.
	Timeout time.Duration `json:"timeout,omitempty"`

	// Horizon is how far ahead a process reserves in PostgreSQL while requests wait. If zero, 500ms.
	Horizon time.Duration `json:"horizon,omitempty"`

	// Lease is how long PostgreSQL keeps what a process that has died held of Concurrency and estimates.
	// It should be the same in all processes. If zero, 10s.
	Lease time.Duration `json:"lease,omitempty"`

	// PollOnly makes processes ask PostgreSQL for each other's pauses instead of listening. It is needed
	// behind a pooler that pools transactions, such as PgBouncer.
	PollOnly bool `json:"poll_only,omitempty"`

	// Sync makes PostgreSQL write to its disk before it answers. If false, a server that crashes may forget
	// the last 0.6s.
	Sync bool `json:"sync,omitempty"`

	// Fallback is what happens while Redis is away. If empty, requests wait for Redis.
	Fallback Fallback `json:"fallback,omitzero"`

	// File is the path of a file for the processes of one host.
	File string `json:"file,omitempty"`
}

// A Fallback lets each process go on by itself while Redis is away, with its part of every limit.
type Fallback struct {
	// Workers is the largest number of processes that share the quotas. Each of them has a limit of
	// Limit / Workers. If zero, requests wait for Redis.
	Workers int `json:"workers,omitempty"`
}

// A Route leads from a prefix of the proxy to an API. It has a Preset, a Policy or a Pool.
type Route struct {
	// To is the address of the API, such as https://api.openai.com/v1, without a / at its end. Its path
	// may have references as those of a Secret: https://api.telegram.org/bot${env:TOKEN}. They stay
	// references here. A route with a Pool has none.
	To string `json:"to,omitempty"`

	// Preset is the name of a preset, such as "openai": throttle providers lists all.
	Preset string `json:"preset,omitempty"`

	// With are the parameters of the preset.
	With map[string]string `json:"with,omitempty"`

	// Models are the parameters of single models, by pattern, for a preset of a language model:
	// {"gpt-4o*": {requests: 5000, tokens: 800000}}. Those that are left out are as in With. In a pattern
	// a * stands for any text, and the most specific pattern counts. All models of a pattern share its
	// limits, and all models without a pattern share those of With. If empty, each model has those of
	// With.
	Models map[string]map[string]string `json:"models,omitempty"`

	// AnyHost applies the preset to the host of To, even if it is not a host of the preset, such as a
	// gateway in front of the API. If false, To must lead to a host of the preset.
	AnyHost bool `json:"any_host,omitempty"`

	// Policy is the limits as throttle.ParsePolicy reads them, such as "5/s + 10000/h | guard=auto". A
	// tier with follow, as 5000/h;follow=15000, takes over the limits of the headers RateLimit-Policy,
	// RateLimit-Limit and X-RateLimit-Limit. One with learn, as 5/s;algo=gcra;burst=1;learn=1000, finds its rate by
	// refusals.
	Policy string `json:"policy,omitempty"`

	// Pool is several deployments, regions or accounts of one owner instead of To and limits. Each has an
	// address, limits and credentials of its own, and a request goes to the one that admits it first. The
	// credentials of clients reach none of them.
	Pool []*Member `json:"pool,omitempty"`

	// Spill is how long a request waits for the members of the lowest rank, or for the one that Sticky
	// chooses, before the other members may serve it. A request that is known to wait longer goes on at
	// once. If zero, a request goes on if it would have to wait.
	Spill time.Duration `json:"spill,omitempty"`

	// Sticky makes requests with the same key prefer the same member of the Pool, such as the one that has
	// cached the beginning of a prompt. If empty, no member is preferred within a rank.
	Sticky Sticky `json:"sticky,omitzero"`

	// Name names the quota in the store, in errors and in metrics. Programs that share a quota use
	// the same name. Routes with the same name share a quota, and must have the same limits. If
	// empty, the prefix without its first slash.
	Name string `json:"name,omitempty"`

	// Key makes an account of each value of a header, with the limits of Preset or Policy for itself.
	// If empty, all requests of the route share them.
	Key Key `json:"key,omitzero"`

	// MaxWait refuses requests that would wait longer, for whatever limits. If zero, the client alone
	// limits a wait.
	MaxWait time.Duration `json:"max_wait,omitempty"`

	// MaxQueue refuses a request when so many already wait. A client with limits of its own, and each
	// account of Key, has a queue of its own. If zero, any number may wait.
	MaxQueue int `json:"max_queue,omitempty"`

	// Budget is a policy of budgets that all requests of the route share, such as
	// "50000/month;budget=true | alert_at=80,100". Its units are those that requests of the route
	// cost. In dollars, as "$500/month", requests cost what Prices say. If empty, there is none.
	Budget string `json:"budget,omitempty"`

	// Prices are the prices of models, for a Budget in dollars. If empty, the listed prices, and requests
	// to models that are not listed are refused.
	Prices Prices `json:"prices,omitzero"`

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

	// Query sets parameters in the query of requests to the API, such as {apikey: "${env:API_KEY}"}.
	// Those that a client sends under the same names are removed.
	Query map[string]Secret `json:"query,omitempty"`

	// Remove are headers that are removed from requests to the API.
	Remove []string `json:"remove,omitempty"`

	// MaxBody is the route's own MaxBody. If zero, that of the Config.
	MaxBody Size `json:"max_body,omitempty"`

	// Timeout bounds the time from a request's admission to the end of its response. If zero, it is
	// not bounded.
	Timeout time.Duration `json:"timeout,omitempty"`

	prefix   string
	field    string   // in the file
	upstream *url.URL // with the values of references; of a pool, that of its first member
	secrets  []Secret // in upstream and Query, and of the members of a pool
	limits   Limits
	budget   throttle.Policy     // without tiers if there is none
	spending *providers.Spending // nil if the budget is not in dollars
	class    throttle.Class
}

// Prefix returns the prefix of the route's paths in the proxy, such as "/openai".
func (r *Route) Prefix() string { return r.prefix }

// Upstream returns a copy of To, or of that of the first member of a Pool, parsed, with the values of its
// references: show its Host alone.
func (r *Route) Upstream() *url.URL {
	u := *r.upstream
	return &u
}

// Secrets returns the values of references in To, and those of Query, of at least eight bytes, each as
// it is and as it is in an address. What a program shows of responses must not contain them.
func (r *Route) Secrets() []Secret { return slices.Clone(r.secrets) }

// Limits returns the limits of the route, with Name, MaxWait and MaxQueue applied. A route with a Pool has
// none beside those of the members.
func (r *Route) Limits() Limits { return r.limits }

// DefaultClass returns Class, parsed.
func (r *Route) DefaultClass() throttle.Class { return r.class }

// Allows reports whether a client may use the route.
func (r *Route) Allows(client string) bool {
	return len(r.Clients) == 0 || slices.Contains(r.Clients, client)
}

// A Member is one deployment, region or account of a Pool. It has a Preset or a Policy.
type Member struct {
	// Name names the member in the pool: letters, digits, hyphens, points and underscores.
	Name string `json:"name"`

	// To is the address of the member's API, as that of a Route. Paths of the route continue it.
	To string `json:"to"`

	// Preset is the name of a preset, With are its parameters, Models those of single models, and AnyHost
	// applies it to any host, as those of a Route.
	Preset string `json:"preset,omitempty"`

	// With are the parameters of the preset.
	With map[string]string `json:"with,omitempty"`

	// Models are the parameters of single models, by pattern.
	Models map[string]map[string]string `json:"models,omitempty"`

	// AnyHost applies the preset to the host of To, even if it is not a host of the preset.
	AnyHost bool `json:"any_host,omitempty"`

	// Policy is the limits as throttle.ParsePolicy reads them, such as "5/s + 10000/h".
	Policy string `json:"policy,omitempty"`

	// Quota names the member's quota in the store, in errors and in metrics. Routes, members of other
	// pools and programs with the same name share it. If empty, the name of the route, / and Name.
	Quota string `json:"quota,omitempty"`

	// Rank orders the members: those of rank 0 are preferred to those of rank 1, and so on.
	Rank int `json:"rank,omitempty"`

	// Weight is the member's share of the requests among members of its Rank that have room at the same
	// time. If zero, 1.
	Weight int `json:"weight,omitempty"`

	// Set sets headers of requests to the member, such as {Authorization: "Bearer ${env:EAST_KEY}"}.
	Set map[string]Secret `json:"set,omitempty"`

	// Query sets parameters in the query of requests to the member, such as {apikey: "${env:EAST_KEY}"}.
	Query map[string]Secret `json:"query,omitempty"`

	// NoCredentials states that the member's API needs no credentials. If false, Set, Query or the path of
	// To must have some.
	NoCredentials bool `json:"no_credentials,omitempty"`

	route *Route // the member as a route of its own, whose Name is that of the quota
}

// Upstream returns a copy of To, as Route.Upstream does.
func (m *Member) Upstream() *url.URL { return m.route.Upstream() }

// Limits returns the limits of the member, with the name of its quota.
func (m *Member) Limits() Limits { return m.route.limits }

// A Sticky is the part of a request whose value chooses a member.
type Sticky struct {
	// Header is the name of a header, such as X-Session-Id.
	Header string `json:"header,omitempty"`

	// Body is the name of a field of a body in JSON, such as prompt_cache_key or user, with points before
	// fields inside of fields. A body of more than MaxBody has none.
	Body string `json:"body,omitempty"`
}

// DefaultMaxKeys is how many accounts a Key keeps at most.
const DefaultMaxKeys = 10_000

// A Key makes an account of each value of a header.
type Key struct {
	// Header is the name of the header, such as Authorization. Only a hash of its value is kept.
	// Requests without the header are one account.
	Header string `json:"header"`

	// MaxKeys is how many accounts have a quota at the same time. A further one takes the place of an
	// account of which nothing is used, or its requests are refused. If zero, 10000.
	MaxKeys int `json:"max_keys,omitempty"`
}

// A Client is a program that may use the proxy.
type Client struct {
	// Token is what the client sends as its token, at least 16 bytes.
	Token Secret `json:"token"`

	// Class is the class of the client's requests: interactive, normal or batch. If empty, that of
	// the route.
	Class string `json:"class,omitempty"`

	// Policy is the limits of all requests of the client, over all routes, as throttle.ParsePolicy reads
	// them, such as "5/s". The limits of the routes hold besides. If empty, only those and Budget.
	Policy string `json:"policy,omitempty"`

	// Budget is a policy of budgets for all requests of the client, over all routes, such as
	// "1000/day;budget=true". In dollars, as "$10/day", the requests of routes with a Budget in dollars
	// count. If empty, there is none.
	Budget string `json:"budget,omitempty"`

	// MaxWait refuses requests of the client that would wait longer, for whatever limits. It needs a
	// Policy or a Budget. If zero, MaxWait of the route alone.
	MaxWait time.Duration `json:"max_wait,omitempty"`

	// MaxQueue refuses a request of the client when so many of its requests already wait on the
	// route. It needs a Policy or a Budget. If zero, MaxQueue of the route alone.
	MaxQueue int `json:"max_queue,omitempty"`

	class throttle.Class
	own   throttle.Policy // Policy and Budget, MaxWait and MaxQueue; without tiers if there is neither
}

// clientPrefix begins the name of a client's own limits, in errors, logs and metrics: "client:web".
const clientPrefix = "client:"

// Limits returns the client's own limits, Policy and Budget in one. Their name is "client:" and that of
// the client. They are those of a throttle.Group, whose key is the name of the client. It returns false
// if the client has none.
func (c *Client) Limits() (p throttle.Policy, ok bool) { return c.own, len(c.own.Tiers) > 0 }

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
	// Listen is an address for the page, the metrics and the health alone, HOST:PORT, such as
	// 0.0.0.0:9411, which Prometheus and the kubelet can reach. The proxy's own address then has none
	// of them. If empty, it has all.
	Listen string `json:"listen,omitempty"`

	// ControlToken is the token of requests to /_throttle/pause, /resume and /forget, at least 16
	// bytes. If empty, the proxy refuses them.
	ControlToken Secret `json:"control_token,omitzero"`

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
	text, err := readAtMost(path, mostBytes+1)
	if err != nil {
		return nil, err
	}
	return Parse(text, path)
}

// readAtMost reads the beginning of a file.
func readAtMost(path string, bytes int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, bytes))
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

	each func(value string) string // returns what replaces a reference, from its value
}

// Parse reads the text of a file. Name names the file in errors.
func (l Loader) Parse(text []byte, name string) (*Config, error) {
	if l.LookupEnv == nil {
		l.LookupEnv = os.LookupEnv
	}
	if l.ReadFile == nil {
		l.ReadFile = readSecret
	}
	l.each = func(value string) string { return value }
	d := decoder{loader: l}
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
	for prefix := strings.TrimSuffix(path, "/"); len(prefix) > 1; prefix = prefix[:max(0, strings.LastIndexByte(prefix, '/'))] {
		if r = c.Routes[prefix]; r != nil {
			return r, path[len(prefix):]
		}
	}
	if r = c.Routes["/"]; r != nil {
		return r, path
	}
	return nil, ""
}
