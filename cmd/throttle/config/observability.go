package config

import (
	"net/netip"
	"slices"
)

// observability checks what the proxy shows of itself.
func (d *decoder) observability(c *Config) {
	o, on := &c.Observability, true
	setDefault(&o.Metrics, &on)
	setDefault(&o.Page, &on)
	setDefault(&o.Log, DefaultLog)
	if levels := []string{"debug", "info", "warn", "error", "off"}; !slices.Contains(levels, o.Log) {
		d.bad("observability.log", "is %q: it must be %s", o.Log, list(levels, "or"))
	}
	if o.Listen != "" || d.filled("observability.listen") {
		d.pagesListen(c)
	}
	const field = "observability.control_token"
	if d.token(field, o.ControlToken) {
		if owner, taken := c.ClientFor(o.ControlToken.Reveal()); taken {
			d.bad(field, "is the token of client %s, too: a client must not pause the quotas of others", owner)
		}
	}
}

// pagesListen checks the address of the pages. Other machines may reach it only if the file names its
// host.
func (d *decoder) pagesListen(c *Config) {
	const field = "observability.listen"
	address := c.Observability.Listen
	host, port, ok := splitAddress(address)
	_, notIP := netip.ParseAddr(host)
	switch {
	case !ok:
		d.bad(field, "is %q: it must be HOST:PORT, such as 127.0.0.1:9411, or 0.0.0.0:9411 for other machines", address)
	case host == "":
		d.bad(field, "is %q, without a host: write 127.0.0.1:%s for this machine alone, or 0.0.0.0:%s if other machines may read the pages", address, port, port)
	case notIP != nil && host != "localhost":
		d.bad(field, "is %q: its host must be an IP address or localhost, such as 127.0.0.1:%s", address, port)
	case address == c.Listen && port != "0":
		d.bad(field, "is %q, the address of the proxy: use another port, or remove the field", address)
	}
}
