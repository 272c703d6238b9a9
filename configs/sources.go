package configs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/http"
)

// OfSources are the settings that one source alone has. They are read at start only.
type OfSources struct {
	HTTP       HTTP
	Kubernetes Kubernetes
	Etcd       Etcd
}

// HTTP says which service files of web servers are used.
type HTTP struct {
	URLs              []string // of service files, and of indexes of them
	Interval, Timeout time.Duration
	CAFile            string // empty: the authorities of the system
	CertFile, KeyFile string // of a client's certificate; empty: none
	BearerFile        string // empty: no token
	PublicKey         string // of minisign; empty: nothing is signed
	MaxSize           decode.ByteSize
}

// Kubernetes says where the API server is.
type Kubernetes struct {
	Kubeconfig, APIServer, ProxyName string
}

// sources are those that settings can ask for, each with the keys of the table of
// its name. One without keys has no table.
var sources = []section{
	{file.Name, nil},
	{http.Name, []field{
		decode.Key("urls", textURLs, func(s *Settings) *[]string { return &s.HTTP.URLs }),
		decode.Key("interval", decode.Duration(100*time.Millisecond, maxInterval).Or(10*time.Second), func(s *Settings) *time.Duration { return &s.HTTP.Interval }),
		decode.Key("timeout", decode.Duration(100*time.Millisecond, time.Hour).Or(5*time.Second), func(s *Settings) *time.Duration { return &s.HTTP.Timeout }),
		decode.Key("ca_file", pathOrNone, func(s *Settings) *string { return &s.HTTP.CAFile }),
		decode.Key("cert_file", pathOrNone, func(s *Settings) *string { return &s.HTTP.CertFile }),
		decode.Key("key_file", pathOrNone, func(s *Settings) *string { return &s.HTTP.KeyFile }),
		decode.Key("bearer_file", pathOrNone, func(s *Settings) *string { return &s.HTTP.BearerFile }),
		decode.Key("public_key", publicKey, func(s *Settings) *string { return &s.HTTP.PublicKey }),
		decode.Key("max_size", decode.Bytes(1<<10, 1<<30).Or(16<<20), func(s *Settings) *decode.ByteSize { return &s.HTTP.MaxSize }),
	}},
	{"kubernetes", []field{
		decode.Key("kubeconfig", pathOrNone, func(s *Settings) *string { return &s.Kubernetes.Kubeconfig }),
		decode.Key("api_server", decode.Matching(`a URL, such as "https://10.0.0.1:6443"`, orEmpty(isURL)).As(orNone("https?://.+")), func(s *Settings) *string { return &s.Kubernetes.APIServer }),
		decode.Key("proxy_name", decode.Matching("letters, digits, -, _ and .", source.IsLabelValue).As(orNone(namePattern)), func(s *Settings) *string { return &s.Kubernetes.ProxyName }),
	}},
	{etcdName, etcdFields},
}

// checkSources reports sources that say nothing of their server.
func (s *Settings) checkSources(r *decode.Reader) {
	if slices.Contains(s.Sources, etcdName) && len(s.Etcd.Endpoints) == 0 {
		r.Problem(source.Problem{Path: source.At("sources"), Msg: "sources has etcd, and [etcd] has no endpoints", Hint: `write endpoints = ["https://10.0.0.1:2379"] there, say`})
	}
}

// pathOrNone reads the path of a file that may not be set.
var pathOrNone = decode.Matching("an absolute path", orEmpty(isPath)).As(orNone("/.*"))

// maxURLs is how many URLs are followed: each is polled by itself.
const maxURLs = 64

// textURLs reads URLs of service files and of indexes.
var textURLs = decode.Unique(textURL).And(func(r *decode.Reader, list []string) bool {
	if len(list) > maxURLs {
		r.Fault(fmt.Sprintf("urls has %d URLs", len(list)), fmt.Sprintf("at most %d; an index can list many files", maxURLs))
	}
	return len(list) <= maxURLs
})

var textURL = decode.Text.As(`^https?://.+\.(toml|json)$`).And(func(r *decode.Reader, s string) bool {
	_, err := http.ParseURL(s)
	if err != nil {
		r.Fault(source.Excerpt(s)+" is not the URL of a service file or an index", err.Error())
	}
	return err == nil
})

var publicKey = decode.Matching(`the second line of a public key of minisign, or ""`, orEmpty(func(s string) bool {
	_, err := http.ParseKey(s)
	return err == nil
})).As(orNone("RW[A-Za-z0-9+/]{54}"))

// check returns what is wrong with the keys together; used: they are those of a source that is asked for.
func (h *HTTP) check(used bool) error {
	switch {
	case used && len(h.URLs) == 0:
		return fmt.Errorf("sources has %q, and [http] has no urls", http.Name)
	case (h.CertFile == "") != (h.KeyFile == ""):
		return errors.New("[http] cert_file and key_file belong together, and one is not set")
	case h.BearerFile == "":
		return nil
	}
	for _, text := range h.URLs {
		if u, err := http.ParseURL(text); err == nil && u.Scheme != "https" && !isLoopback(u.Hostname()) {
			return fmt.Errorf("[http] bearer_file would be sent in clear text to %s; write https://", text)
		}
	}
	return nil
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

func sourceNames() (names []string) {
	for _, s := range sources {
		names = append(names, s.name)
	}
	return names
}

// remoteNames are those of the sources that have a server.
func remoteNames() []string {
	return slices.DeleteFunc(sourceNames(), func(name string) bool { return name == file.Name })
}

// sourceTables are the tables of sources.
func sourceTables() []section {
	return slices.DeleteFunc(slices.Clone(sources), func(s section) bool { return len(s.fields) == 0 })
}

// DifferentSources returns the names of the sources whose tables differ.
func DifferentSources(a, b Settings) (names []string) {
	for _, t := range sourceTables() {
		if slices.ContainsFunc(t.fields, func(f field) bool { return decode.Literal(f.Value(&a)) != decode.Literal(f.Value(&b)) }) {
			names = append(names, t.name)
		}
	}
	return names
}
