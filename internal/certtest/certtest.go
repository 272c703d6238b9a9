// Package certtest makes certificates of servers in tests.
package certtest

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
	"os"
	"time"
)

// An Authority signs certificates.
type Authority struct{ own tls.Certificate }

// New returns an Authority of this name, which nobody trusts yet.
func New(name string) (Authority, error) {
	own, err := signed(&x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: name},
	}, nil)
	return Authority{own}, err
}

// Write writes the certificate of the Authority itself, as SSL_CERT_FILE has it.
func (a Authority) Write(path string) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.own.Certificate[0]}), 0o600)
}

// For returns the certificate of a server of this name, valid for an hour.
func (a Authority) For(name string) (tls.Certificate, error) {
	return signed(&x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}}, &a.own)
}

// signed returns a certificate of this shape, signed by another one, or by itself.
func signed(shape *x509.Certificate, by *tls.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a key for a certificate: %w", err)
	}
	shape.SerialNumber = big.NewInt(time.Now().UnixNano())
	shape.NotBefore, shape.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := shape, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, shape, parent, key.Public(), signer)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a certificate of %s: %w", shape.Subject.CommonName, err)
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}
