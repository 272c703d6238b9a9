package http

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	nethttp "net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"svcproxy.dev/svcproxy/internal/certtest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

func authority(t *testing.T, name string) (a certtest.Authority, path string) {
	t.Helper()
	a, err := certtest.New(name)
	fatal.If(t, err)
	path = filepath.Join(t.TempDir(), "ca.pem")
	fatal.If(t, a.Write(path))
	return a, path
}

// writePair writes a certificate and its key as PEM.
func writePair(t *testing.T, pair tls.Certificate, cert, key string) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	fatal.If(t, err)
	fatal.If(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600))
	fatal.If(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
}

// localhost returns a URL of a server with the host name that is in its certificate.
func (w *web) localhost(path string) string {
	return strings.Replace(w.URL, "127.0.0.1", "localhost", 1) + path
}

// A server is trusted by ca_file alone, and a renewed ca_file is used without a restart.
func TestAuthorities(t *testing.T) {
	ours, ourPath := authority(t, "ours")
	_, theirPath := authority(t, "theirs")
	pair, err := ours.For("localhost")
	fatal.If(t, err)
	w := newWebOver(t, &tls.Config{Certificates: []tls.Certificate{pair}})
	w.put("/web.toml", "A")
	path := filepath.Join(t.TempDir(), "used.pem")
	replace := func(from string) {
		text, err := os.ReadFile(from)
		fatal.If(t, err)
		fatal.If(t, os.WriteFile(path+".new", text, 0o600))
		fatal.If(t, os.Rename(path+".new", path))
	}
	f := follow(t, Options{URLs: []string{w.localhost("/web.toml")}, CAFile: path})
	f.refuses("reading a file of [http]: " + path)
	fatal.If(t, os.WriteFile(path, []byte("none"), 0o600))
	f.refuses("holds no certificate in PEM")
	replace(theirPath)
	f.refuses("certificate signed by unknown authority")
	replace(ourPath)
	f.expect(": web.toml=A")

	fatal.If(t, os.Remove(path))
	w.put("/web.toml", "B")
	f.expect(": web.toml=B")
	f.settles(2)
	if n := strings.Count(f.log.String(), "cannot use renewed credentials"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, f.log)
	}

	other := follow(t, Options{URLs: []string{w.localhost("/web.toml")}})
	other.refuses("certificate signed by unknown authority") // not one of the system's authorities
	plain := follow(t, Options{URLs: []string{strings.Replace(w.localhost("/web.toml"), "https", "http", 1)}})
	plain.refuses("400 Bad Request")
}

// A renewed certificate and key are used without a restart. While only one of the two is new, the old pair stays in use.
func TestRenewedCertificate(t *testing.T) {
	ours, ca := authority(t, "ours")
	pair, err := ours.For("localhost")
	fatal.If(t, err)
	trusted := x509.NewCertPool()
	text, err := os.ReadFile(ca)
	fatal.If(t, err)
	trusted.AppendCertsFromPEM(text)
	w := newWebOver(t, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted})
	var mu sync.Mutex
	seen := map[string]int{}
	w.set("/web.toml", func(out nethttp.ResponseWriter, r *nethttp.Request) {
		mu.Lock()
		seen[r.TLS.PeerCertificates[0].Subject.CommonName]++
		mu.Unlock()
		_, _ = out.Write([]byte("A"))
	})
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	issue := func(name, cert, key string) {
		pair, err := ours.For(name)
		fatal.If(t, err)
		writePair(t, pair, cert, key)
	}
	asked := func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return seen[name]
	}
	without := follow(t, Options{URLs: []string{w.localhost("/web.toml")}, CAFile: ca})
	without.refuses("certificate required")
	without.end()

	issue("first", cert, key)
	f := follow(t, Options{URLs: []string{w.localhost("/web.toml")}, CAFile: ca, CertFile: cert, KeyFile: key})
	f.expect(": web.toml=A")
	issue("second", cert, filepath.Join(dir, "second.key"))
	pace.Until(t, "a pair that does not match", func() bool { return strings.Contains(f.log.String(), "private key does not match") })
	f.settles(2)
	if asked("second") != 0 {
		t.Error("a certificate was used without its key")
	}
	fatal.If(t, os.Rename(filepath.Join(dir, "second.key"), key))
	pace.Until(t, "the renewed certificate", func() bool { return asked("second") > 0 })
	f.settles(1)
}

// The current token is sent to the origin of a URL, and to no other origin, whatever the server answers.
func TestBearer(t *testing.T) {
	w, other := newWeb(t), newWeb(t)
	w.publish(1, texts{"web.toml": "A"})
	path := filepath.Join(t.TempDir(), "token")
	f := follow(t, Options{URLs: []string{w.URL + indexPath}, BearerFile: path})
	f.refuses("reading a file of [http]")
	for _, text := range []string{"", "\n", "two words", "two\nlines", "\x00"} {
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
		f.refuses("does not hold a token")
	}
	fatal.If(t, os.WriteFile(path, []byte("secret-1\n"), 0o600))
	f.expect("1: web.toml=A")
	fatal.If(t, os.WriteFile(path, []byte("secret-2"), 0o600))
	sent := func(token string) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.bearers[token]
	}
	pace.Until(t, "the new token", func() bool { return sent("Bearer secret-2") })
	w.set(indexPath, redirect(other.URL+indexPath))
	f.refuses("redirects to another origin")
	w.put(indexPath, indexOf(3, texts{other.URL + "/svc/web.toml": "A"}))
	f.refuses("not below")
	if len(other.bearers) > 0 {
		t.Errorf("another server was asked with %v", other.bearers)
	}
	if len(w.bearers) != 2 {
		t.Errorf("sent %v", w.bearers)
	}
	if _, err := f.polls(); strings.Contains(err.Error()+f.log.String(), "secret") {
		t.Errorf("%v\n%s", err, f.log)
	}
}

// Up to five redirects within the origin are followed. The names of texts do not change.
func TestRedirectWithin(t *testing.T) {
	w := newWeb(t)
	w.publish(1, texts{"web.toml": "A"})
	w.set("/svc/web.toml", redirect("/store/a?version=7"))
	w.put("/store/a", "A")
	for i := range maxRedirects - 1 {
		w.set(fmt.Sprintf("/svc/%d.json", i), redirect(fmt.Sprintf("/svc/%d.json", i+1)))
	}
	w.set(fmt.Sprintf("/svc/%d.json", maxRedirects-1), redirect(w.URL+indexPath))
	f := follow(t, Options{URLs: []string{w.URL + "/svc/0.json"}})
	f.expect("1: web.toml=A")
	f.mu.Lock()
	defer f.mu.Unlock()
	if name := f.sets[0].Texts[0].Name; name != w.URL+"/svc/web.toml" {
		t.Error(name)
	}
}

// Requests ask for uncompressed answers, and send the validators of the known version.
func TestRequest(t *testing.T) {
	w := newWeb(t)
	headers := make(chan nethttp.Header, 2)
	w.set("/web.toml", func(out nethttp.ResponseWriter, r *nethttp.Request) {
		select {
		case headers <- r.Header:
		default:
		}
		out.Header().Set("ETag", `W/"7"`)
		out.Header().Set("Last-Modified", "Wed, 01 Jan 2020 00:00:00 GMT")
		_, _ = out.Write([]byte("A"))
	})
	follow(t, Options{URLs: []string{w.URL + "/web.toml"}, UserAgent: "svcproxy/1"})
	first, second := <-headers, <-headers
	for key, want := range map[string][2]string{
		"User-Agent":        {"svcproxy/1", "svcproxy/1"},
		"Accept-Encoding":   {"identity", "identity"},
		"If-None-Match":     {"", `W/"7"`},
		"If-Modified-Since": {"", "Wed, 01 Jan 2020 00:00:00 GMT"},
		"Authorization":     {"", ""},
	} {
		if got := [2]string{first.Get(key), second.Get(key)}; got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}
