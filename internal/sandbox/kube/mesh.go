package kube

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/hawser-net/hawser/internal/admin/connect"
)

// A cluster with a number has a second etcd, of which other clusters read what this one has. It is
// on the control plane's address, asks for certificates of an authority of its own, and lets its
// readers read what is meant for them, and nothing else.
const (
	meshEtcd   = "mesh-etcd"
	meshDir    = "mesh" // below pki
	meshWriter = "operator"
	meshReader = "remote"

	meshStoreSecret = "hawser-mesh-store"
	meshStorePath   = "/var/lib/cilium/mesh-store" // where the operator finds it
)

// meshed reports whether the cluster can be connected with others.
func (s *state) meshed() bool { return s.ID != 0 && s.Mode == Full && s.CNI != PTP }

func (p plan) meshURL() string { return fmt.Sprintf("https://%s:%d", p.master().IPv4, meshPort) }

// readable are the keys that other clusters read.
func readable(cluster string) (keys, prefixes []string) {
	return []string{"cilium/.heartbeat", "cilium/cluster-config/" + cluster}, []string{"cilium/state/", "cilium/synced/" + cluster + "/"}
}

// writeMeshPKI writes the certificates of the cluster's store for others into dir.
func writeMeshPKI(dir string, st *state) error {
	ca, err := newAuthority("hawser-sandbox-" + st.Name + "-mesh")
	if err != nil {
		return err
	}
	master := st.plan().master()
	files := map[string][]byte{"ca.crt": ca.pem}
	var errs []error
	issue := func(name string, addrs ...netip.Addr) {
		id, err := ca.issue(pkix.Name{CommonName: name}, nil, addrs...)
		errs = append(errs, err)
		files[name+".crt"], files[name+".key"] = id.cert, id.key
	}
	issue("server", master.IPv4, master.IPv6, netip.MustParseAddr("127.0.0.1"))
	issue(meshWriter)
	issue(meshReader)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, data := range files {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return errors.Join(errs...)
}

// meshStore is the store that other clusters read.
func (c *Cluster) meshStore(st *state) program {
	keys, prefixes := readable(st.Name)
	argv := c.self("etcd", "--dir", filepath.Join(c.dataDir(), meshEtcd), "--ready-fd", "3", "--listen", st.plan().meshURL(),
		"--tls-dir", c.path("pki", meshDir), "--writer", meshWriter, "--reader", meshReader)
	for _, k := range keys {
		argv = append(argv, "--readable", k)
	}
	for _, p := range prefixes {
		argv = append(argv, "--readable-below", p)
	}
	return program{name: meshEtcd, ready: true, argv: argv}
}

// deployMeshSecrets creates the operator's access to the store for others, and the access that
// other clusters get.
func (c *Cluster) deployMeshSecrets(ctx context.Context, st *state) error {
	files := map[string]string{}
	for _, name := range []string{"ca.crt", meshWriter + ".crt", meshWriter + ".key", meshReader + ".crt", meshReader + ".key"} {
		data, err := os.ReadFile(c.path("pki", meshDir, name))
		if err != nil {
			return err
		}
		files[name] = string(data)
	}
	config := fmt.Sprintf("endpoints: [%s]\ntrusted-ca-file: %[2]s/ca.crt\ncert-file: %[2]s/tls.crt\nkey-file: %[2]s/tls.key\n", st.plan().meshURL(), meshStorePath)
	var docs []string
	for name, data := range map[string]map[string]string{
		meshStoreSecret:      {"config.yaml": config, "ca.crt": files["ca.crt"], "tls.crt": files[meshWriter+".crt"], "tls.key": files[meshWriter+".key"]},
		connect.AccessSecret: {"endpoints": st.plan().meshURL(), "ca.crt": files["ca.crt"], "tls.crt": files[meshReader+".crt"], "tls.key": files[meshReader+".key"]},
	} {
		doc, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name, "namespace": "kube-system"}, "stringData": data,
		})
		if err != nil {
			return err
		}
		docs = append(docs, string(doc))
	}
	return c.apply(ctx, st, []byte(strings.Join(docs, "\n---\n")))
}

// meshOperator gives the operator the store for others, as the chart's clustermesh.store does.
func meshOperator(spec map[string]any) {
	for _, c := range spec["containers"].([]any) {
		container := c.(map[string]any)
		args, _ := container["args"].([]any)
		container["args"] = append(args, "--kvstore=etcd", "--kvstore-opt=etcd.config="+meshStorePath+"/config.yaml")
		mounts, _ := container["volumeMounts"].([]any)
		container["volumeMounts"] = append(mounts, map[string]any{"name": "mesh-store", "mountPath": meshStorePath, "readOnly": true})
	}
	volumes, _ := spec["volumes"].([]any)
	spec["volumes"] = append(volumes, map[string]any{"name": "mesh-store", "secret": map[string]any{"secretName": meshStoreSecret, "defaultMode": 0o440}})
	spec["securityContext"] = map[string]any{"fsGroup": 65532} // who the operator runs as
}

// claimID refuses a number that another cluster on this machine has: such two could not be
// connected.
func (c *Cluster) claimID() error {
	if c.cfg.ID == 0 {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(c.cfg.Root, "*", stateName))
	if err != nil {
		return err
	}
	for _, f := range files {
		other := &Cluster{cfg: Config{Name: filepath.Base(filepath.Dir(f)), Root: c.cfg.Root}}
		st, err := other.load()
		if err != nil || st.Name == c.cfg.Name || st.ID != c.cfg.ID {
			continue // one that cannot be read is on its way up or down
		}
		return fmt.Errorf("cluster %q has the number %d already, so the two could never be connected: choose another --cluster-id", st.Name, st.ID)
	}
	return nil
}
