//go:build netns

package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/certtest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// writePair writes a certificate and its key, as PEM.
func writePair(t testing.TB, path string, cert tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	fatal.If(t, err)
	fatal.If(t, os.WriteFile(path+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), 0o600))
	fatal.If(t, os.WriteFile(path+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
}

// renew writes new certificates of etcd and of the host, signed by a new authority.
func renew(t testing.TB, dir string) {
	t.Helper()
	ca, err := certtest.New("authority")
	fatal.If(t, err)
	fatal.If(t, ca.Write(filepath.Join(dir, "ca.crt")))
	for _, name := range []string{"etcd.test", "host.test"} {
		cert, err := ca.For(name)
		fatal.If(t, err)
		writePair(t, filepath.Join(dir, name), cert)
	}
}

// Both sides authenticate with certificates, and renewed certificates are used without a restart.
func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	renew(t, dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	s := prepareServer(t, "--cert-file", in("etcd.test.crt"), "--key-file", in("etcd.test.key"), "--client-cert-auth", "--trusted-ca-file", in("ca.crt"))
	s.scheme = "https"
	s.start()
	o := s.options()
	o.Endpoints = []string{"https://etcd.test:2379"}
	o.dial = func(ctx context.Context, addr string) (net.Conn, error) {
		return s.dialHost(ctx, strings.Replace(addr, "etcd.test", serverAddr.Addr().String(), 1))
	}
	reports := func(o Options, want string) {
		t.Helper()
		f := follow(t, o)
		pace.UntilOr(t, func() bool { err := f.problem(); return err != nil && strings.Contains(err.Error(), want) }, func() string {
			s, n := f.last()
			return strings.Join(append(words(s), want, "not reported:"), " ") + " " + errText(f.problem()) + strings.Repeat("!", n)
		})
		f.end()
	}
	reports(o, "certificate signed by unknown authority")
	o.CAFile = in("ca.crt")
	reports(o, "remote error: tls: bad certificate")
	o.CertFile, o.KeyFile = in("host.test.crt"), in("host.test.key")
	other := o
	other.Endpoints = []string{"https://other.test:2379"}
	other.dial = func(ctx context.Context, _ string) (net.Conn, error) { return s.dialHost(ctx, "192.0.2.1:2379") }
	reports(other, "not other.test")
	other = o
	other.CAFile = in("none.crt")
	reports(other, "reading ca_file")

	f := follow(t, o)
	f.wait()
	s.kill()
	renew(t, dir)
	s.start()
	f.waitFailed(time.Now())
	f.waitAnswer()
}

func errText(err error) string {
	if err == nil {
		return "nothing"
	}
	return err.Error()
}
