package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"
)

// authority signs certificates. Its keys are on elliptic curves: a cluster that lives for hours
// need not wait for primes.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// identity is a certificate with its key, in PEM.
type identity struct{ cert, key []byte }

const validFor = 10 * 365 * 24 * time.Hour

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := certificate(pkix.Name{CommonName: name})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: block("CERTIFICATE", der)}, nil
}

func certificate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validFor), BasicConstraintsValid: true,
	}, nil
}

// issue signs a certificate for a client, and for a server of these names and addresses if there
// are any.
func (a *authority) issue(subject pkix.Name, names []string, addrs ...netip.Addr) (identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return identity{}, err
	}
	template, err := certificate(subject)
	if err != nil {
		return identity{}, err
	}
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	template.DNSNames = names
	for _, addr := range addrs {
		template.IPAddresses = append(template.IPAddresses, net.IP(addr.AsSlice()))
	}
	if len(names)+len(addrs) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return identity{}, fmt.Errorf("certificate of %s: %w", subject, err)
	}
	pemKey, err := encodeKey(key)
	return identity{cert: block("CERTIFICATE", der), key: pemKey}, err
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return block("EC PRIVATE KEY", der), nil
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// kubeconfig is a client's configuration for the API server at this URL.
func (a *authority) kubeconfig(cluster, server string, id identity) ([]byte, error) {
	named := func(key string, value any) []map[string]any { return []map[string]any{{"name": cluster, key: value}} }
	return yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": cluster,
		"clusters": named("cluster", map[string]any{"server": server, "certificate-authority-data": a.pem}),
		"users":    named("user", map[string]any{"client-certificate-data": id.cert, "client-key-data": id.key}),
		"contexts": named("context", map[string]any{"cluster": cluster, "user": cluster}),
	})
}

// writePKI writes every certificate, key and kubeconfig of a cluster into dir. loopback is the
// user's URL of the API server.
func writePKI(dir string, st *state, loopback string) error {
	cluster, master := st.Name, st.plan().master()
	ca, err := newAuthority("hawser-sandbox-" + cluster)
	if err != nil {
		return err
	}
	// A certificate signed by this CA may impersonate any user: only the API server's aggregator
	// has one.
	front, err := newAuthority("hawser-sandbox-" + cluster + "-front-proxy")
	if err != nil {
		return err
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	accountsKey, err := encodeKey(accounts)
	if err != nil {
		return err
	}
	caKey, err := encodeKey(ca.key)
	if err != nil {
		return err
	}
	files := map[string][]byte{"ca.crt": ca.pem, "ca.key": caKey, "front-proxy-ca.crt": front.pem, "accounts.key": accountsKey}
	url := fmt.Sprintf("https://%s:%d", master.IPv4, apiPort)
	var errs []error
	issue := func(name string, by *authority, subject pkix.Name, names []string, addrs ...netip.Addr) identity {
		id, err := by.issue(subject, names, addrs...)
		errs = append(errs, err)
		files[name+".crt"], files[name+".key"] = id.cert, id.key
		return id
	}
	client := func(name, url string, subject pkix.Name) {
		data, err := ca.kubeconfig(cluster, url, issue(name, ca, subject, nil))
		errs = append(errs, err)
		files[name+".kubeconfig"] = data
	}
	masters := []string{"system:masters"}
	issue("apiserver", ca, pkix.Name{CommonName: "kube-apiserver"},
		[]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		netip.MustParseAddr("127.0.0.1"), master.IPv4, master.IPv6, st.plan().firstService())
	issue("apiserver-kubelet", ca, pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: masters}, nil)
	issue("front-proxy", front, pkix.Name{CommonName: "front-proxy-client"}, nil)
	client("admin", url, pkix.Name{CommonName: "admin", Organization: masters})
	client("user", loopback, pkix.Name{CommonName: "admin", Organization: masters})
	client("controller-manager", url, pkix.Name{CommonName: "system:kube-controller-manager"})
	client("scheduler", url, pkix.Name{CommonName: "system:kube-scheduler"})
	client("kube-proxy", url, pkix.Name{CommonName: "system:kube-proxy"})
	for _, n := range st.Nodes {
		id := issue(n.Name, ca, pkix.Name{CommonName: "system:node:" + n.Name, Organization: []string{"system:nodes"}}, []string{n.Name}, n.IPv4, n.IPv6)
		data, err := ca.kubeconfig(cluster, url, id)
		errs = append(errs, err)
		files[n.Name+".kubeconfig"] = data
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, data := range files {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return errors.Join(errs...)
}
