package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// tlsConfig returns the client side of TLS for the settings file, or nil for plain text. Certificates are read again at every handshake: a renewed file is
// used from the next connection on.
func (f File) tlsConfig() (*tls.Config, error) {
	if f.InsecureTransport || (f.CertFile == "" && f.TrustedCAFile == "" && !f.InsecureSkipTLSVerify) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.InsecureSkipTLSVerify}
	if f.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("client certificate for etcd: %w", err)
			}
			return &cert, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	if f.TrustedCAFile != "" && !f.InsecureSkipTLSVerify {
		if _, err := readPool(f.TrustedCAFile); err != nil {
			return nil, err
		}
		// The standard check takes a fixed set of authorities. It is switched off and done here, in full, with the file as it is now.
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(state tls.ConnectionState) error { return verify(state, f.TrustedCAFile) }
	}
	return c, nil
}

func readPool(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("authorities for etcd: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("authorities for etcd: %s holds no PEM certificate", path)
	}
	return pool, nil
}

// verify does what crypto/tls does by default: a chain to one of the authorities, for the name we dialled, for use as a server.
func verify(state tls.ConnectionState, caFile string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("etcd showed no certificate")
	}
	if state.ServerName == "" {
		return errors.New("etcd cannot be verified: the name dialled is not known")
	}
	roots, err := readPool(caFile)
	if err != nil {
		return err
	}
	inter := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		inter.AddCert(cert)
	}
	_, err = state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: inter, DNSName: state.ServerName, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}
