package configs

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// Etcd says which etcd has service files, and as whom it is asked.
type Etcd struct {
	Endpoints                 []string // URLs of members, with a port
	Prefix                    string   // of keys; it begins and ends with /
	CAFile, CertFile, KeyFile string   // absolute; empty: the certificates of the system, and none
	Username                  string   // empty: there is no login
	PasswordFile              string   // absolute
}

// etcdName is the name of the source and of its table.
const etcdName = "etcd"

// maxPrefix is in bytes. The name of a text is the key, and has 1024 at most.
const (
	maxPrefix    = 512
	maxEndpoints = 64
	maxLogin     = 1024
)

var etcdFields = []field{
	decode.Key("endpoints", decode.Unique(decode.Matching(`a URL with a port, such as "https://10.0.0.1:2379"`, isMember).As(`^https?://[^/]+:[0-9]+$`)).And(fewEndpoints), func(s *Settings) *[]string { return &s.Etcd.Endpoints }),
	decode.Key("prefix", decode.Matching(`the beginning of keys, with / at both ends, such as "/svcproxy/services/"`, isKeyPrefix).As("^/(.*/)?$").Or("/svcproxy/services/"), func(s *Settings) *string { return &s.Etcd.Prefix }),
	decode.Key("ca_file", pathOrNone, func(s *Settings) *string { return &s.Etcd.CAFile }),
	decode.Key("cert_file", pathOrNone, func(s *Settings) *string { return &s.Etcd.CertFile }),
	decode.Key("key_file", pathOrNone, func(s *Settings) *string { return &s.Etcd.KeyFile }),
	decode.Key("username", decode.Matching(fmt.Sprintf("at most %d characters that can be printed", maxLogin), isLogin), func(s *Settings) *string { return &s.Etcd.Username }),
	decode.Key("password_file", pathOrNone, func(s *Settings) *string { return &s.Etcd.PasswordFile }),
}

// isMember reports whether s is a URL of a member of etcd: a scheme, a host and a port, and nothing else.
func isMember(s string) bool {
	u, err := url.Parse(s)
	return err == nil && isURL(s) && u.Port() != "" && u.Hostname() != "" && s == u.Scheme+"://"+u.Host
}

func isKeyPrefix(s string) bool {
	return strings.HasPrefix(s, "/") && strings.HasSuffix(s, "/") && len(s) <= maxPrefix && isPrintable(s)
}

func isLogin(s string) bool { return len(s) <= maxLogin && isPrintable(s) }

func fewEndpoints(r *decode.Reader, list []string) bool {
	if len(list) > maxEndpoints {
		r.Fault(fmt.Sprintf("there are %d endpoints", len(list)), fmt.Sprintf("want %d at most", maxEndpoints))
	}
	return len(list) <= maxEndpoints
}

func readEtcd(r *decode.Reader, v any, s *Settings) {
	if decode.Table(r, v, etcdFields, s) {
		s.Etcd.check(r)
	}
}

// check reports what is wrong with what is right by itself.
func (e *Etcd) check(r *decode.Reader) {
	fault := func(msg, hint string, at ...any) {
		r.Problem(source.Problem{Path: source.At(at...), Msg: msg, Hint: hint})
	}
	if e.CertFile == "" && e.KeyFile != "" {
		fault("key_file is set, and cert_file is not", "write both, or none", "key_file")
	}
	if e.KeyFile == "" && e.CertFile != "" {
		fault("cert_file is set, and key_file is not", "write both, or none", "cert_file")
	}
	if e.Username == "" && e.PasswordFile != "" {
		fault("password_file is set, and username is not", "write both, or none", "password_file")
	}
	if e.PasswordFile == "" && e.Username != "" {
		fault("username is set, and password_file is not", "write both, or none", "username")
	}
	for i, endpoint := range e.Endpoints {
		switch {
		case e.Username != "" && !isPrivate(endpoint):
			fault(fmt.Sprintf("the password would be sent to %s as it is", endpoint), "write https://, or leave out username and password_file", "endpoints", i)
		case e.CAFile+e.CertFile != "" && !strings.HasPrefix(endpoint, "https:"):
			fault(fmt.Sprintf("there are certificates, and %s needs none", endpoint), "write https://, or leave out the certificates", "endpoints", i)
		}
	}
}

// isPrivate reports whether nobody on the network can read what is sent to a URL.
func isPrivate(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "https" || err == nil && addr.IsLoopback()
}

// Password reads the password of the login.
func (e *Etcd) Password() (string, error) { return readPassword(e.PasswordFile, "etcd", maxLogin) }
