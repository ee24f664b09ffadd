package webhook

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"slices"
	"time"
)

// Keys of the Secret.
const (
	caCert   = "ca.crt"
	caKey    = "ca.key"
	caBundle = "ca-bundle.crt"
	tlsCert  = "tls.crt"
	tlsKey   = "tls.key"
)

const authorityName = "grapevine-injector-ca"

// maxBackdate is how much the clocks of API server and injector may differ.
const maxBackdate = 5 * time.Minute

// backdate is the time before a certificate's making at which it holds already. It
// is a small part of the life, of which due takes thirds.
func backdate(life time.Duration) time.Duration { return min(maxBackdate, life/10) }

// plan is what certificates are wanted.
type plan struct {
	names            []string // DNS names and addresses of the service, the first is its own
	caLife, certLife time.Duration
}

// renew returns the Secret's data as it should be, the same map if all is well.
// trusted says that the API server trusts the CA of data already.
func (p plan) renew(now time.Time, data map[string][]byte, trusted bool) (map[string][]byte, error) {
	next := maps.Clone(data)
	if next == nil {
		next = make(map[string][]byte)
	}
	ca, caErr := readPair(next[caCert], next[caKey])
	if caErr != nil || !ca.Leaf.IsCA || due(now, ca.Leaf, p.caLife) {
		var err error
		if next[caCert], next[caKey], err = newAuthority(now, p.caLife); err != nil {
			return nil, err
		}
		if ca, err = readPair(next[caCert], next[caKey]); err != nil {
			return nil, err
		}
		trusted = false
	}
	next[caBundle] = joinBundle(now, next[caCert], next[caBundle])
	serving, err := readPair(next[tlsCert], next[tlsKey])
	usable := err == nil && p.usable(now, serving.Leaf, next[caBundle])
	bySame := usable && serving.Leaf.CheckSignatureFrom(ca.Leaf) == nil
	if !usable || trusted && (!bySame || due(now, serving.Leaf, p.certLife)) {
		if next[tlsCert], next[tlsKey], err = p.issue(now, ca); err != nil {
			return nil, err
		}
	}
	if maps.EqualFunc(next, data, bytes.Equal) {
		return data, nil
	}
	return next, nil
}

// usable says whether a client that trusts bundle would take the certificate.
func (p plan) usable(now time.Time, cert *x509.Certificate, bundle []byte) bool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for _, name := range p.names {
		if cert.VerifyHostname(name) != nil {
			return false
		}
	}
	_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err == nil
}

// due says whether less than a third of its life is left, or more than is wanted
// now.
func due(now time.Time, c *x509.Certificate, life time.Duration) bool {
	left := c.NotAfter.Sub(now)
	return left < c.NotAfter.Sub(c.NotBefore)/3 || left > life
}

func readPair(certPEM, keyPEM []byte) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return pair, fmt.Errorf("read certificate: %w", err)
	}
	if pair.Leaf == nil {
		return pair, errors.New("read certificate: no leaf")
	}
	return pair, nil
}

func newAuthority(now time.Time, life time.Duration) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make CA key: %w", err)
	}
	return sign(key, key, nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: authorityName}, NotBefore: now.Add(-backdate(life)), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
}

func (p plan) issue(now time.Time, ca tls.Certificate) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make serving key: %w", err)
	}
	signer, ok := ca.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, errors.New("CA key is of another kind than ECDSA")
	}
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: p.names[0]}, NotBefore: now.Add(-backdate(p.certLife)), NotAfter: now.Add(p.certLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if c.NotAfter.After(ca.Leaf.NotAfter) {
		c.NotAfter = ca.Leaf.NotAfter
	}
	for _, name := range p.names {
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	return sign(key, signer, ca.Leaf, c)
}

// sign makes the certificate of key; parent nil: its own.
func sign(key, signer *ecdsa.PrivateKey, parent, c *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, fmt.Errorf("make serial number: %w", err)
	}
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// joinBundle is the CAs of the bundles that live, each once, in their order. What
// is no CA of ours is left out.
func joinBundle(now time.Time, bundles ...[]byte) []byte {
	var out []byte
	var seen [][]byte
	for _, b := range bundles {
		for _, c := range readBundle(b) {
			if c.Subject.CommonName != authorityName || !c.IsCA || now.After(c.NotAfter) ||
				slices.ContainsFunc(seen, func(raw []byte) bool { return bytes.Equal(raw, c.Raw) }) {
				continue
			}
			seen = append(seen, c.Raw)
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
	}
	return out
}

func readBundle(b []byte) (out []*x509.Certificate) {
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			return out
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
}

// holds says whether all CAs of part are in bundle.
func holds(bundle, part []byte) bool {
	have := readBundle(bundle)
	want := readBundle(part)
	for _, c := range want {
		if !slices.ContainsFunc(have, c.Equal) {
			return false
		}
	}
	return len(want) > 0
}
