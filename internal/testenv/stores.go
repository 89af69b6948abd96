package testenv

import (
	"testing"

	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// Etcd is an etcd server inside the test process.
type Etcd = kvstoretest.Etcd

// Authority signs certificates for a test.
type Authority = kvstoretest.Authority

// StartEtcd is [kvstoretest.StartEtcd].
func StartEtcd(t testing.TB) *Etcd {
	t.Helper()
	return kvstoretest.StartEtcd(t)
}

// StartSecureEtcd is [kvstoretest.StartSecureEtcd].
func StartSecureEtcd(t testing.TB, a Authority) *Etcd {
	t.Helper()
	return kvstoretest.StartSecureEtcd(t, a)
}

// StartConsul is [kvstoretest.StartConsul].
func StartConsul(t testing.TB) (address string) {
	t.Helper()
	return kvstoretest.StartConsul(t)
}

// NewAuthority is [kvstoretest.NewAuthority].
func NewAuthority(t testing.TB) Authority {
	t.Helper()
	return kvstoretest.NewAuthority(t)
}
