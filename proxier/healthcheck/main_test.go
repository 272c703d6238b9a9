package healthcheck

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// authority signs what servers in tests show. It is the one that this host trusts.
var authority tls.Certificate

// endpoints is set in the environment of a process that is all endpoints of a benchmark.
const endpoints = "HEALTHCHECK_TEST_ENDPOINTS"

func TestMain(m *testing.M) {
	if os.Getenv(endpoints) != "" {
		beEndpoints()
	}
	dir, err := os.MkdirTemp("", "healthcheck")
	if err == nil {
		err = trust(filepath.Join(dir, "ca.pem"))
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

// trust makes an authority, and has crypto/x509 find it, and no other, in a file.
func trust(path string) error {
	ca := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "authority"}}
	var err error
	if authority, err = signed(ca, nil); err != nil {
		return err
	}
	os.Setenv("SSL_CERT_FILE", path)
	os.Setenv("SSL_CERT_DIR", filepath.Dir(path))
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate[0]}), 0o600)
}

// signed returns a certificate of this shape, signed by the authority by, or by itself.
func signed(shape *x509.Certificate, by *tls.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	shape.SerialNumber = big.NewInt(time.Now().UnixNano())
	shape.NotBefore, shape.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := shape, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, shape, parent, key.Public(), signer)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// certificate returns one for a name.
func certificate(t testing.TB, name string) tls.Certificate {
	cert, err := signed(&x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}}, &authority)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
