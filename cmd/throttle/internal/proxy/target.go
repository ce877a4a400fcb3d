package proxy

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// checkTarget refuses methods and request lines that are not for a reverse proxy.
func checkTarget(r *http.Request) *problem {
	switch {
	case r.Method == http.MethodConnect:
		p := badRequest(http.StatusMethodNotAllowed, "connect", "This proxy does not tunnel: it could not count the requests inside. "+
			"Don't set it as HTTPS_PROXY. Set the base URL of the client to this proxy and the prefix of a route, such as http://127.0.0.1:7411/github.")
		p.allow = allowed
		return p
	case r.Method == http.MethodTrace:
		p := badRequest(http.StatusMethodNotAllowed, "trace", "This proxy does not serve TRACE.")
		p.allow = allowed
		return p
	case r.URL.Host != "" || r.URL.Scheme != "" || r.URL.User != nil || r.URL.Opaque != "":
		return badRequest(http.StatusMisdirectedRequest, "absolute", "This proxy is not for HTTP_PROXY: the request line has an address. "+
			"Set the base URL of the client to this proxy and the prefix of a route, such as http://127.0.0.1:7411/github.")
	case !strings.HasPrefix(r.URL.Path, "/"):
		return badRequest(http.StatusBadRequest, "path", "The path must begin with /.")
	case !isSafe(r.URL.Path):
		return badRequest(http.StatusBadRequest, "path", "The path has a part of dots alone, or a control character.")
	case strings.ContainsAny(r.Host, "@/\\?#"):
		return badRequest(http.StatusBadRequest, "host", "The Host is not a host.")
	}
	return nil
}

const allowed = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"

// isSafe reports whether a path, decoded once, has neither control characters nor parts of dots alone,
// also if an upstream decodes it again, takes \ for / or removes what follows a semicolon.
func isSafe(path string) bool {
	if isPlain(path) {
		return true
	}
	for range 4 {
		for _, part := range strings.FieldsFunc(path, func(c rune) bool { return c == '/' || c == '\\' }) {
			part, _, _ = strings.Cut(part, ";")
			if part = strings.TrimSpace(part); part == "." || part == ".." {
				return false
			}
		}
		if strings.ContainsFunc(path, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			return false
		}
		if !strings.Contains(path, "%") {
			return true
		}
		again := unescape(path)
		if again == path {
			return true
		}
		path = again
	}
	return false
}

// isPlain reports whether a path has nothing that isSafe must look at: dots at the begin of a part, or
// what an upstream may decode.
func isPlain(path string) bool {
	begin := true
	for i := range len(path) {
		c := path[i]
		if c <= ' ' || c == 0x7f || c == '%' || c == '\\' || c == ';' || c >= 0x80 || begin && c == '.' {
			return false
		}
		begin = c == '/'
	}
	return true
}

// unescape decodes a path once. Like a lenient decoder it leaves a % as it is that no two hexadecimal
// digits follow.
func unescape(path string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(path, "%")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if code, err := strconv.ParseUint(after[:min(2, len(after))], 16, 8); err == nil && len(after) >= 2 {
			b.WriteByte(byte(code))
			path = after[2:]
		} else {
			b.WriteByte('%')
			path = after
		}
	}
}

// tunnelsHTTP reports whether a request asks for a tunnel through which HTTP passes, such as h2c. The
// proxy could not see the requests inside.
func tunnelsHTTP(h http.Header) bool {
	for part := range strings.SplitSeq(strings.ToLower(first(h, "Upgrade")), ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(part), "/")
		if name == "h2c" || name == "h2" || name == "http" || name == "tls" {
			return true
		}
	}
	return false
}

// checkRest refuses what follows a prefix if an upstream could take it for the address of a host.
func checkRest(rest string) *problem {
	if path, err := url.PathUnescape(rest); err != nil || len(path) > 1 && (path[1] == '/' || path[1] == '\\') {
		return badRequest(http.StatusBadRequest, "path", "The path has an empty part behind the prefix of the route: remove a slash from the base URL of the client.")
	}
	return nil
}

// isLocalHost reports whether the Host of a request is a name or an address of this host.
func isLocalHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), "."))
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// isLocal reports whether the address of a client is of this host. That of a socket has no IP address.
func isLocal(addr string) bool {
	if ip, err := netip.ParseAddrPort(addr); err == nil {
		return ip.Addr().Unmap().IsLoopback()
	}
	return addr == "" || addr[0] == '@' || addr[0] == '/'
}

// isForwarded reports whether another proxy, which may be on this host, has passed a request on.
func isForwarded(h http.Header) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"} {
		if len(h[name]) > 0 {
			return true
		}
	}
	return false
}
