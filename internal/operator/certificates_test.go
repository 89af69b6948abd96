package operator

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	api "github.com/hawser-net/hawser/api/operator"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestStoreCertificates: before the certificate ends by which the operator speaks with the store it
// is among the operator's problems, as is that of the store's authorities, and its time is a
// metric.
func TestStoreCertificates(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	write := func(name string, left time.Duration) string {
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(left)},
			&x509.Certificate{}, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own, authorities := write("own.crt", 5*time.Minute), write("ca.crt", 10*time.Minute)
	settings := filepath.Join(t.TempDir(), "etcd.yaml")
	name := func(own, authorities string) {
		if err := os.WriteFile(settings, fmt.Appendf(nil, "endpoints: [https://192.0.2.1:2379]\ncert-file: %s\nkey-file: /none\ntrusted-ca-file: %s\n", own, authorities), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	name(write("former.crt", 100*time.Hour), write("former-ca.crt", 100*time.Hour))
	for kind, options := range map[string]map[string]string{
		"etcd":   {"etcd.config": settings},
		"consul": {"consul.address": "192.0.2.1:8501", "consul.certFile": own, "consul.keyFile": "/none", "consul.caFile": authorities},
	} {
		cfg := Defaults()
		cfg.Store.Kind, cfg.Store.Options = kind, options
		o, err := New(cfg, nil, "test")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		e := o.storeCertificates()
		name(own, authorities) // after the operator has started
		go func() { ended <- e.Run(ctx) }()
		controllers.Eventually(t, 3*time.Minute, func() string {
			p := o.problems.all()
			slices.SortFunc(p, func(a, b api.Problem) int { return cmp.Compare(a.Error, b.Error) })
			if len(p) != 2 || p[0].Part != "certificates" || !strings.Contains(p[0].Error, "the certificate store ("+own+") ends in 5m") ||
				!strings.Contains(p[1].Error, "the certificate store-authorities ("+authorities+") ends in 10m") {
				return fmt.Sprintf("%s: problems are %+v", kind, p)
			}
			return ""
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		families, err := o.metrics.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		left := map[string]float64{}
		for _, f := range families {
			if f.GetName() != "hawser_certificate_seconds_left" {
				continue
			}
			for _, m := range f.GetMetric() {
				left[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
		if s := left["store"]; s < 1 || s > 300 || left["store-authorities"] < 301 || left["store-authorities"] > 600 {
			t.Errorf("%s: seconds left are %v", kind, left)
		}
	}
}
