package healthz

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// OnlyAs answers with next where a request asks this host by an IP address, by localhost or by one
// of names, and with 403 otherwise. A page in a browser can make its own name resolve to this host
// (DNS rebinding) and read what next answers there, but not under a name of this host. A request
// without a Host header, which HTTP/1.0 allows, is not from a browser.
func OnlyAs(names func() []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := hostName(r.Host)
		isOwn := func(own string) bool { return own != "" && strings.EqualFold(own, name) } // node_name may be empty
		if r.Host != "" && !isLiteral(name) && !slices.ContainsFunc(names(), isOwn) {
			w.Header().Set("X-Content-Type-Options", "nosniff")
			http.Error(w, fmt.Sprintf("the Host header names %s, which is not this host; ask by IP address, or add the name to http_names in svcproxy.toml",
				source.Excerpt(name)), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostName returns a Host header without its port, the brackets of an IPv6 address and the dot that ends a full name.
func hostName(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		header = host
	}
	header = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	return strings.TrimSuffix(header, ".")
}

// isLiteral reports whether a name is resolved by no name server: it is an address or localhost.
func isLiteral(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil || strings.EqualFold(name, "localhost")
}
