package clustermesh

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// secureCluster is the etcd of cluster b: it speaks TLS, wants a certificate of its clients, and
// knows users.
type secureCluster struct {
	*testing.T
	etcd *kvstoretest.Etcd
	ca   kvstoretest.Authority
}

// newSecureCluster fills the store. The user remote has the rights that docs/user/clustermesh.md
// says are enough, and no others.
func newSecureCluster(t *testing.T) *secureCluster {
	t.Helper()
	c := &secureCluster{T: t, ca: kvstoretest.NewAuthority(t)}
	c.etcd = kvstoretest.StartSecureEtcd(t, c.ca)
	raw := c.etcd.Client()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for key, v := range cluster("b", 2) {
		text, ok := v.(string)
		if !ok {
			data, err := json.Marshal(v)
			must(nil, err)
			text = string(data)
		}
		must(raw.Put(t.Context(), key, text))
	}
	must(raw.RoleAdd(t.Context(), "remote"))
	read := clientv3.PermissionType(clientv3.PermRead)
	must(raw.RoleGrantPermission(t.Context(), "remote", "cilium/.heartbeat", "", read))
	must(raw.RoleGrantPermission(t.Context(), "remote", "cilium/cluster-config/b", "", read))
	for _, prefix := range []string{"cilium/state/", "cilium/synced/b/"} {
		must(raw.RoleGrantPermission(t.Context(), "remote", prefix, clientv3.GetPrefixRangeEnd(prefix), read))
	}
	for user, role := range map[string]string{"root": "root", "remote": "remote"} {
		must(raw.UserAdd(t.Context(), user, "secret of "+user))
		must(raw.UserGrantRole(t.Context(), user, role))
	}
	must(raw.AuthEnable(t.Context()))
	return c
}

// file writes what a directory has of the cluster: its settings, and the certificates that these
// name.
func (c *secureCluster) file(dir, password string, certificates kvstoretest.Authority) {
	c.Helper()
	cert, key := certificates.Issue(c.T, "a", x509.ExtKeyUsageClientAuth)
	path := func(name string) string { return filepath.Join(dir, name) }
	text := fmt.Sprintf("endpoints: [%q]\ntrusted-ca-file: %s\ncert-file: %s\nkey-file: %s\nusername: remote\npassword: %q\n",
		c.etcd.Endpoint(), path("b-ca.crt"), path("b.crt"), path("b.key"), password)
	for name, data := range map[string][]byte{"b-ca.crt": c.ca.PEM(), "b.crt": cert, "b.key": key} {
		if err := os.WriteFile(path(name), data, 0o600); err != nil {
			c.Fatal(err)
		}
	}
	if err := os.WriteFile(path("b.tmp"), []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
	if err := os.Rename(path("b.tmp"), path("b")); err != nil {
		c.Fatal(err)
	}
}

// followed has cluster a follow what the directory says, by etcd's client.
func followed(t *testing.T, dir string) *world {
	t.Helper()
	w := &world{t: t, dir: dir, tables: newTables(), log: &testenv.Log{}}
	var err error
	w.mesh, err = New(Params{
		Config: Config{Dir: dir}, Name: "a", ID: 1, MaxClusters: 255, Poll: 20 * time.Millisecond, Describe: 50 * time.Millisecond,
		Sinks: Sinks{w.tables, w.tables, w.tables, w.tables}, Log: slog.New(slog.NewTextHandler(w.log, nil)),
		Open: func(ctx context.Context, file string, log *slog.Logger) (kvstore.Backend, error) {
			c := storedial.Defaults()
			c.Kind, c.Options = "etcd", map[string]string{"etcd.config": file}
			return storedial.Open(ctx, c, log)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	return w
}

// metrics are those of a mesh, without the moments of failures.
func metrics(t *testing.T, m *Mesh) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Collector("n1", func() int { return 3 }))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += " " + l.GetName() + "=" + l.GetValue()
			}
			v := m.GetGauge().GetValue()
			if strings.HasSuffix(f.GetName(), "_ts") && v > 0 || strings.HasSuffix(f.GetName(), "_failures") && v > 0 {
				v = 1
			}
			fmt.Fprintf(&b, "%s%s %g\n", strings.TrimPrefix(f.GetName(), "cilium_clustermesh_"), labels, v)
		}
	}
	return b.String()
}

// TestSecureStore follows a cluster whose etcd wants a certificate, a user and a password, with
// rights to read the documented keys only. With a wrong password, or a certificate of another CA,
// nothing is observed, and the metrics show it; when the file is put right it is.
func TestSecureStore(t *testing.T) {
	t.Parallel()
	c := newSecureCluster(t)
	for name, wrong := range map[string]func(dir string){
		"password":    func(dir string) { c.file(dir, "guessed", c.ca) },
		"certificate": func(dir string) { c.file(dir, "secret of remote", kvstoretest.NewAuthority(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			wrong(dir)
			w := followed(t, dir)
			w.status("b", func(s Status) bool { return s.LastError != "" && !s.Connected })
			if text := w.tables.text(); len(text) > 0 {
				t.Errorf("received with a wrong %s: %q", name, text)
			}
			const own, other = " source_cluster=a source_node_name=n1", " source_cluster=a source_node_name=n1 target_cluster=b"
			lines := func(failed, ready, each string) string {
				return "global_services" + own + " 3\nremote_cluster_endpoints" + other + each + "\nremote_cluster_failures" + other + failed +
					"\nremote_cluster_identities" + other + each + "\nremote_cluster_last_failure_ts" + other + failed + "\nremote_cluster_nodes" + other + each +
					"\nremote_cluster_readiness_status" + other + ready + "\nremote_cluster_refused" + other + " 0\nremote_cluster_services" + other + each +
					"\nremote_clusters" + own + " 1\n"
			}
			if diff := gocmp.Diff(lines(" 1", " 0", " 0"), metrics(t, w.mesh)); diff != "" {
				t.Errorf("metrics with a wrong %s (-want +got):\n%s", name, diff)
			}
			c.file(dir, "secret of remote", c.ca)
			w.eventually("with the right "+name, rowsOf("b", 2))
			w.status("b", func(s Status) bool { return s.Ready && s.Connected && s.LastError == "" })
			if diff := gocmp.Diff(lines(" 1", " 1", " 1"), metrics(t, w.mesh)); diff != "" {
				t.Errorf("metrics with the right %s (-want +got):\n%s", name, diff)
			}
			if log := w.log.String(); strings.Contains(log, "permission denied") || strings.Contains(log, "secret of") || strings.Contains(log, "guessed") {
				t.Errorf("the log has missing rights, or secrets:\n%s", w.log.String())
			}
			problems, err := testutil.GatherAndLint(registered(w.mesh))
			for _, p := range problems {
				if !strings.Contains(p.Text, "abbreviated") { // the field's own name
					t.Errorf("metric %s: %s", p.Metric, p.Text)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func registered(m *Mesh) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.Collector("n1", nil))
	return reg
}
