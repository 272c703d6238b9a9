package healthcheck

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/certtest"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// authority signs what servers in tests show. It is the one that this host trusts.
var authority certtest.Authority

// endpoints is set in the environment of a process that is all endpoints of a benchmark.
const endpoints = "HEALTHCHECK_TEST_ENDPOINTS"

func TestMain(m *testing.M) {
	if os.Getenv(endpoints) != "" {
		beEndpoints()
	}
	dir, err := os.MkdirTemp("", "healthcheck")
	if err == nil {
		err = trustAuthority(filepath.Join(dir, "ca.pem"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// beEndpoints accepts what connects to any address of this host, and prints at which port.
func beEndpoints() {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	fmt.Println(l.Addr(), err)
	for {
		if conn, err := l.Accept(); err == nil {
			conn.Close()
		}
	}
}

// trustAuthority makes the authority, and has crypto/x509 find it, and no other, in a file.
func trustAuthority(path string) (err error) {
	if authority, err = certtest.New("authority"); err != nil {
		return err
	}
	os.Setenv("SSL_CERT_FILE", path)
	os.Setenv("SSL_CERT_DIR", filepath.Dir(path))
	return authority.Write(path)
}

// certificate returns one for a name.
func certificate(t testing.TB, name string) tls.Certificate {
	cert, err := authority.For(name)
	fatal.If(t, err)
	return cert
}
